"""What the loader's tests share."""

from __future__ import annotations

import pytest

from everygrad.data.workers import processes


@pytest.fixture(autouse=True)
def _no_gpu_of_another_test(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that an earlier test has opened would have workers spawned, which takes seconds each;
    tests that take a device see it as it is."""
    if "device" not in request.fixturenames:
        monkeypatch.setattr(processes, "a_gpu_is_open", lambda: False)
