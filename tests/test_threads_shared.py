"""Threads on shared parameters: devtools/drills/threads.py, for a few seconds.

Whoever traces, profiles or casts must not be noticed by other threads: their results are those of
an undisturbed run, bit for bit.
"""

from __future__ import annotations

import os

import pytest

from devtools.drills.processes import run_case
from devtools.drills.threads import ROLES, run_drill

WITHOUT_TRACES = [r for r in ROLES if r not in ("traces", "steps")]


@pytest.mark.parametrize(
    "roles",
    [WITHOUT_TRACES, ["traces", "small", "backward"], ["steps", "replays", "large"], [*ROLES]],
    ids=["without traces", "a trace beside eager ops", "steps beside replays", "all"],
)
def test_no_thread_notices_another(roles: list[str]) -> None:
    code, text = run_drill("cpu", roles, seconds=2.0)
    assert code == 0, text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_another_thread_traces() -> None:
    outcome = run_case("cpu", ", ".join(["while another traces"] * 3), "os.fork")
    assert not outcome.failed, outcome.text
    assert outcome.text == "worked"
