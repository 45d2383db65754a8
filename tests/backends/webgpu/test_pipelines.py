"""Pipelines: made by other threads while a compiled function is recorded, and cached by source."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.backends.webgpu.driver.pipelines import Pipelines
from everygrad.core.config import config
from everygrad.errors import CompileError

pytestmark = pytest.mark.skipif(
    "webgpu" not in os.environ.get("EVERYGRAD_TEST_DEVICES", ""),
    reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)",
)


def test_one_made_later_is_waited_for_and_shared() -> None:
    go = threading.Event()
    made: list[str] = []

    def make(name: str, source: str, layout: Any) -> str:
        assert go.wait(10)
        made.append(source)
        return f"{name} of {layout}"

    pipelines = Pipelines(make)
    first = pipelines.get("kernel", "text", "layout", later=True)
    again = pipelines.get("kernel", "text", "layout", later=True)
    assert first is again
    assert not made
    go.set()
    assert pipelines.get("kernel", "text", "layout").raw == first.raw == "kernel of layout"
    assert made == ["text"]


def test_one_that_failed_is_made_again() -> None:
    attempts: list[str] = []

    def make(name: str, source: str, layout: Any) -> str:
        attempts.append(source)
        if len(attempts) == 1:
            raise CompileError("the first fails")
        return "made"

    pipelines = Pipelines(make)
    failed = pipelines.get("kernel", "text", None, later=True)
    for _ in range(2):
        with pytest.raises(CompileError, match="the first fails"):
            failed.raw  # noqa: B018  # raises
    assert pipelines.get("kernel", "text", None, later=True).raw == "made"


def test_those_of_a_software_driver_are_counted_by_what_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mesa keeps 300 bytes a character: counted as 64 KB each, a process grew by gigabytes."""
    monkeypatch.setattr(config, "code_bytes", 20 << 20)
    kept: dict[bool, int] = {}
    for software in (False, True):
        pipelines = Pipelines(lambda name, source, layout: object(), software)
        for i in range(24):
            pipelines.get("kernel", f"{i:20000}", None)
        kept[software] = len(pipelines)
    assert kept[False] == 24
    assert 1 <= kept[True] <= 7  # of 6 MB each; up to twice the bound while all were just used


def test_a_compiled_functions_kernels_are_made_by_other_threads(monkeypatch: Any) -> None:
    gpu = base.get("webgpu").gpu
    makers: list[str] = []
    make = gpu._pipelines._make

    def noted(name: str, source: str, layout: Any) -> Any:
        makers.append(threading.current_thread().name)
        return make(name, source, layout)

    monkeypatch.setattr(gpu._pipelines, "_make", noted)
    x = eg.tensor(np.ones((7, 11), np.float32), device="webgpu")
    out = eg.jit(lambda x: (x * 1.2345 + 6.789).sum(axis=0) @ eg.ones((11,), device="webgpu"))(x)
    assert abs(out.item() - 77 * 8.0235) < 1e-3
    assert makers
    assert all(name.startswith("everygrad webgpu") for name in makers)


def test_a_kernel_that_does_not_compile_is_refused_by_the_call(monkeypatch: Any) -> None:
    gpu = base.get("webgpu").gpu
    make = gpu._pipelines._make
    broken = ["the kernel"]

    def breaking(name: str, source: str, layout: Any) -> Any:
        return make(name, source + "fn broken() -> f32 { return 1u; }\n" * len(broken), layout)

    monkeypatch.setattr(gpu._pipelines, "_make", breaking)
    x = eg.tensor(np.ones(5, np.float32), device="webgpu")
    compiled = eg.jit(lambda x: x * 2.71828 + 3.14159)
    with pytest.raises(CompileError, match="does not compile"):
        compiled(x)
    broken.clear()
    assert abs(eg.jit(lambda x: x * 2.71828 + 3.14159)(x).numpy()[0] - 5.85987) < 1e-5
