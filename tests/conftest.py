"""Every test that takes `device` runs once on each device the run promises."""

from __future__ import annotations

import os

import pytest

DEVICES = [d for d in os.environ.get("EVERYGRAD_TEST_DEVICES", "cpu").split(",") if d]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", DEVICES)
