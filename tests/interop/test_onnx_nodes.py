"""The onnx package's own cases, one operator each: the stored outputs are what we compute."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

import everygrad as eg
from devtools import onnx_cases
from everygrad.errors import DtypeError, MissingOpsError, TraceError
from everygrad.interop.onnx.operators.registry import handler_for
from everygrad.interop.onnx.program import HANDLERS, has_body
from tests.conftest import CAPABILITIES

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


def test_whole_models() -> None:
    """Models of several nodes, most of which PyTorch wrote in opsets of long ago."""
    found = {c.name: c for c in onnx_cases.stored_cases()}
    assert len(found) >= 130
    runnable = [c for name, c in found.items() if name not in onnx_cases.REFUSED]
    assert onnx_cases.failures(runnable) == {}
    assert set(onnx_cases.REFUSED) <= set(found)
    for name in onnx_cases.REFUSED:
        with pytest.raises(MissingOpsError, match="Gradient"):
            eg.io.load_onnx(found[name].model)


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


# Operators that ask for values: how many elements there are, what text or bytes say. Inputs of
# these cases are tensors; in most models they are constants, and known.
BY_VALUES = {
    *(
        "BitCast",
        "ImageDecoder",
        "MelWeightMatrix",
        "NonMaxSuppression",
        "NonZero",
        "OneHot",
        "Pad",
    ),
    *("Range", "Resize", "RoiAlign", "TfIdfVectorizer", "TreeEnsemble", "Unique", "Upsample"),
}
TEXT = {"StringConcat", "StringNormalizer", "StringSplit", "LabelEncoder", "RegexFullMatch"}


def first_cases() -> dict[str, Any]:
    """For each operator the first of its cases that has a stored output to compare with."""
    found: dict[str, Any] = {}
    for case in plain():
        if case.name not in onnx_cases.DIFFERENT:
            found.setdefault(case.model.graph.node[-1].op_type, case)
    return found


def as_given(value: Any, device: str) -> Any:
    """An input as a program has it: a tensor, but for sizes, text, and dtypes without tensors."""
    sizes = isinstance(value, np.ndarray) and value.ndim <= 1 and value.dtype.kind in "iub"
    if not isinstance(value, np.ndarray) or sizes or value.dtype not in eg.dtypes.FROM_NP:
        return value
    return eg.asarray(value, device=device)


def compare(found: Any, case: Any, atol: float = 0.0) -> None:
    """As the case allows, or within atol where that is more."""
    got = [onnx_cases.as_array(v) for v in (found if isinstance(found, tuple) else (found,))]
    stored = [onnx_cases.as_array(v) for v in case.data_sets[0][1]]
    assert len(got) == len(stored)
    for g, s in zip(got, stored, strict=True):
        onnx_cases.same(g, s, case.rtol, max(atol, onnx_cases.allowed(case, stored)))


def test_every_operator_compiled() -> None:
    """Inside `eg.jit` each operator gives the same, or is refused by the node's name."""
    refused: dict[str, str] = {}
    served = 0
    for op, case in first_cases().items():
        module = eg.io.load_onnx(case.model)
        given = [as_given(onnx_cases.as_array(v), "cpu") for v in case.data_sets[0][0]]
        tensors = [v for v in given if isinstance(v, eg.Tensor)]

        def call(held: list[Any], given: list[Any] = given, module: Any = module) -> Any:
            left = iter(held)
            return module(*(next(left) if isinstance(v, eg.Tensor) else v for v in given))

        try:
            found = eg.jit(call)(tensors)
        except TraceError as error:
            refused[op] = "".join(getattr(error, "__notes__", []))
            continue
        compare(found, case)
        served += 1
    assert set(refused) <= BY_VALUES | TEXT
    unnamed = [op for op, note in refused.items() if op not in TEXT and f"({op})" not in note]
    assert unnamed == []
    assert served > 170


def test_every_operator_on_devices(device: str) -> None:
    able = "float64" in CAPABILITIES[device.split(":")[0]]
    refused: dict[str, str] = {}
    served = 0
    for op, case in first_cases().items():
        module = eg.io.load_onnx(case.model)
        try:
            given = [as_given(onnx_cases.as_array(v), device) for v in case.data_sets[0][0]]
            found = module.to(device)(*given)
        except DtypeError as error:  # a case in float64
            refused[op] = str(error)
            continue
        compare(found, case, 0.0 if able else 1e-5)
        served += 1
    assert served > 170
    assert [t for t in refused.values() if "does not exist on this device" not in t] == []
    assert not (able and refused)
