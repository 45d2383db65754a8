"""Every test that takes `device` runs once on each device the run promises."""

from __future__ import annotations

import gc
import os

import pytest

from everygrad.ops import load_all

load_all()  # tests are made from the registry

# What kinds of devices can do that others cannot. A test that takes `device` runs on every device
# of the run, unless it says what it needs: `pytest.mark.needs("float64")`.
CAPABILITIES = {"cpu": {"float64"}, "cuda": {"float64"}, "webgpu": set[str]()}
DEVICES = [d for d in os.environ.get("EVERYGRAD_TEST_DEVICES", "cpu").split(",") if d]


def pytest_collection_finish() -> None:
    """The tests themselves are a million objects: no collection is to walk them again."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        needed = {n for mark in metafunc.definition.iter_markers("needs") for n in mark.args}
        able = [d for d in DEVICES if needed <= CAPABILITIES[d.split(":")[0]]]
        metafunc.parametrize("device", able)
