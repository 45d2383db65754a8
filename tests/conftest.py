"""Every test that takes `device` runs once on each device the run promises."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import types

import pytest

from everygrad.codegen import verify
from everygrad.ops import load_all

load_all()  # tests are made from the registry
verify.VERIFY_GROUPS = True

# What kinds of devices can do that others cannot. A test that takes `device` runs on every device
# of the run, unless it says what it needs: `pytest.mark.needs("float64")`.
CAPABILITIES = {"cpu": {"float64"}, "cuda": {"float64"}, "webgpu": set[str](),
                "reference": {"float64"}}  # fmt: skip
DEVICES = [d for d in os.environ.get("EVERYGRAD_TEST_DEVICES", "cpu").split(",") if d]


_return_freed_memory = getattr(ctypes.CDLL(None), "malloc_trim", None)  # where libc is glibc


def pytest_collection_finish() -> None:
    """The tests themselves are a million objects: no collection is to walk them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no earlier test had left a thread, beside which jit would write nothing in place."""
    left = {t for t in threading.enumerate() if t is not threading.current_thread()}

    def alive() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t not in left]

    seen = types.SimpleNamespace(
        enumerate=alive,
        active_count=lambda: len(alive()),
        current_thread=threading.current_thread,
    )
    monkeypatch.setattr("everygrad._jit.entry.threading", seen)


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_collect() -> None:
    """Nor what earlier modules loaded: transformers and torch are a million objects more. Whatever
    refuses looks for cycles first, up to three times, which takes half a second then."""
    gc.collect()
    gc.freeze()
    if _return_freed_memory is not None:
        _return_freed_memory(0)  # of drivers' kernels, gigabytes by the end


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        needed = {n for mark in metafunc.definition.iter_markers("needs") for n in mark.args}
        able = [d for d in DEVICES if needed <= CAPABILITIES[d.split(":")[0]]]
        metafunc.parametrize("device", able)
