"""Every test that takes `device` runs once on each device the run promises."""

from __future__ import annotations

import gc
import os

import pytest

from everygrad.ops import load_all

load_all()  # tests are made from the registry

# the tests that know of devices without float64; the others are about the engine, not the device
EVERYWHERE = {
    "test_ops",
    "test_ops_derivatives",
    "test_ops_transforms",
    "test_errors",
    "test_examples",
    "test_amp",
    "test_profile",
    "test_reductions",
    "test_signed_zeros",
    "test_conversions",
    "test_refusals",
    "test_order",
    "test_selecting",
    "test_array_api",
    "test_array_api_cases",
    "test_array_api_suites",
    "test_distributions",
    "test_fuzz",
    "test_interrupts",
    "test_convolutions",
    "test_losses",
    "test_elementwise",
    "test_special",
    "test_attention_cases",
    "test_arguments",
    "test_pieces",
    "test_lists_of_tensors",
    "test_lost_writes",
    "test_sweep",
    "test_protocols",
}
DEVICES = [d for d in os.environ.get("EVERYGRAD_TEST_DEVICES", "cpu").split(",") if d]


def pytest_collection_finish() -> None:
    """The tests themselves are a million objects: no collection is to walk them again."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        name = metafunc.module.__name__.split(".")[-1]
        wide = [d for d in DEVICES if name in EVERYWHERE or d.split(":")[0] != "webgpu"]
        metafunc.parametrize("device", wide)
