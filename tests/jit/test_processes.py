"""Fork and spawn after use: devtools/drills/processes.py, each kind of case once."""

from __future__ import annotations

import os

import pytest

from devtools.drills.processes import CHILDREN, USES, run_case
from tests.conftest import DEVICES

ONE_BY_ONE = ", ".join(u for u in USES if not u.startswith("while"))
# while another thread traces: test_threads_shared.py
MEANWHILE = ", ".join(u for u in USES if u.startswith("while") and u != "while another traces")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.mark.parametrize("uses", [ONE_BY_ONE, MEANWHILE], ids=["one by one", "meanwhile"])
def test_a_forked_child_works(uses: str) -> None:
    outcome = run_case("cpu", uses, "os.fork")
    assert not outcome.failed, outcome.text
    assert outcome.text == "worked"


@pytest.mark.parametrize("child", [c for c in CHILDREN if c != "os.fork"])
def test_a_child_of_multiprocessing_works(child: str) -> None:
    outcome = run_case("cpu", "everything", child)
    assert not outcome.failed, outcome.text
    assert outcome.text == "worked"


@pytest.mark.skipif("webgpu" not in DEVICES, reason="webgpu is not among the devices of this run")
@pytest.mark.parametrize("child", ["os.fork", "spawn"])
def test_a_gpu_does_not_follow_a_fork(child: str) -> None:
    """It would wait for threads that are not there: every use says so at once."""
    outcome = run_case("webgpu", "replay", child)
    assert not outcome.failed, outcome.text
    if child == "spawn":
        assert outcome.text == "worked"
    else:
        assert "DeviceError: matmul: webgpu: this process was forked from one" in outcome.text
