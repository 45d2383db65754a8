"""The onnx package's own cases, one operator each: the stored outputs are what we compute."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache
from typing import Any

import onnx
import pytest

from devtools import onnx_cases
from everygrad.interop.onnx.operators.registry import handler_for
from everygrad.interop.onnx.program import HANDLERS, has_body

PARTS = 4  # each test process loads all cases, and runs some


@cache
def plain() -> list[Any]:
    return onnx_cases.cases()


def part_of(name: str) -> int:
    return zlib.crc32(name.encode()) % PARTS


@pytest.mark.parametrize("part", range(PARTS))
def test_plain_cases(part: int) -> None:
    chosen = [c for c in plain() if part_of(c.name) == part]
    assert len(chosen) > 250
    assert onnx_cases.failures(chosen) == {}


def test_how_many_there_are() -> None:
    """The table of what differs names cases of the package, each with its reason."""
    names = {c.name for c in plain()}
    assert len(names) >= 1138
    assert set(onnx_cases.DIFFERENT) <= names
    assert len(onnx_cases.DIFFERENT) <= 15
    assert all(len(named.reason) > 20 for named in onnx_cases.DIFFERENT.values())


def test_the_comparison_finds_what_is_wrong() -> None:
    """A case whose stored output is another is reported, so that the test above can fail."""
    case = next(c for c in plain() if c.name == "test_abs")
    inputs, outputs = case.data_sets[0]
    wrong = replace(case, data_sets=[(inputs, [outputs[0] + 1])])
    assert set(onnx_cases.failures([wrong])) == {"test_abs"}


def test_every_operator_of_the_default_domain_is_known() -> None:
    """Each version of each operator that files may use has a handler, or a body of ONNX's own."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    lacking = {
        (s.name, s.since_version)
        for s in schemas
        if handler_for("", s.name, s.since_version) is None
        and not has_body("", s.name, s.since_version)
    }
    assert len(schemas) > 400
    assert HANDLERS
    assert lacking == set()
