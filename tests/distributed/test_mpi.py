"""Processes under mpiexec: the bits of simulated ranks, and the launcher's ways with failures."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devtools.drills.distributed import KINDS, PHASES, Fault, run_case
from everygrad.launch import worker
from everygrad.launch.__main__ import parsed
from everygrad.launch.launcher import (
    SETTINGS,
    Job,
    environment,
    find_mpiexec,
    first_host,
    options,
)
from everygrad.launch.output import Output
from everygrad.training.progress import Progress

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def launch(*arguments: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "everygrad.launch", *arguments]
    around = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        command, env=around, capture_output=True, text=True, timeout=timeout, check=False
    )


def test_two_processes_give_the_bits_of_simulated_ranks() -> None:
    done = launch("-n", "2", str(HERE / "mpi_checks.py"))
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines == ["[0] rank 0: 5 checks", "[1] rank 1: 5 checks"]


SCRIPT = """
import os, sys, time
print("attempt", os.environ["EVERYGRAD_ATTEMPT"], sys.argv[1:], flush=True)
if sys.argv[1] == "fail" and os.environ["EVERYGRAD_ATTEMPT"] == "0":
    sys.exit(3)
if sys.argv[1] == "hang" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    print(f"pid {os.getpid()}", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


def test_the_launcher_restarts(script: str) -> None:
    done = launch("-n", "2", "--max-restarts", "2", script, "fail", "--lr", "3")
    assert done.returncode == 0
    for attempt in (0, 1):
        for rank in (0, 1):
            assert f"[{rank}] attempt {attempt} ['fail', '--lr', '3']" in done.stdout
    assert "launch: start 2 of 3" in done.stderr
    assert "start 3" not in done.stderr


def test_the_launcher_gives_up(script: str) -> None:
    done = launch("-n", "2", script, "fail")
    assert done.returncode == 1
    assert re.search(r"launch: rank [01]: exit status 3", done.stderr)


def test_the_launcher_ends_what_it_started(script: str) -> None:
    command = [sys.executable, "-m", "everygrad.launch", "-n", "2", script, "hang"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = next(int(line.split()[2]) for line in process.stdout if " pid " in line)
        process.terminate()
        assert process.wait(30) == 128 + 15
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


CASES = [("kill", "backward"), ("stop", "save"), ("raise", "step"), ("missing", "end")]


@pytest.mark.parametrize(("kind", "phase"), CASES)
def test_a_drill(kind: str, phase: str) -> None:
    """One case of each kind; `python -m devtools.drills.distributed` has all of them."""
    assert kind in KINDS
    assert phase in PHASES
    _, wanted, _ = run_case(Fault("none", "none"), 2, None) if not WANTED else (None, WANTED[0], 0)
    WANTED[:] = [wanted]
    wrong, _, _ = run_case(Fault(kind, phase), 2, wanted)
    assert wrong is None, wrong


WANTED: list[bytes] = []  # the parameters of a training that nobody disturbs


def test_what_the_launcher_makes_of_its_arguments(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# two\nfirst.example slots=2\nsecond slots=2\n", encoding="utf-8")
    job = parsed(["-n", "4", "--hosts", str(hosts), "--max-restarts", "1", "a.py", "-n", "7"])
    assert job == Job(4, "a.py", ["-n", "7"], str(hosts), 1)
    assert first_host(str(hosts)) == "first.example"
    env = environment(job, "/folder", 1)
    assert env["EVERYGRAD_CONTROL_ADDRESS"] == "first.example"
    assert (env["EVERYGRAD_LAUNCH_DIR"], env["EVERYGRAD_ATTEMPT"]) == ("/folder", "1")
    assert env["OMPI_MCA_btl"] == {**SETTINGS, **os.environ}["OMPI_MCA_btl"]
    assert env["OMPI_MCA_mpi_ft_enable"] == "1"
    assert "EVERYGRAD_CONTROL_ADDRESS" not in environment(Job(2, "a.py", []), "/folder", 0)
    found = find_mpiexec()
    assert found is not None
    assert Path(found).name == "mpiexec"
    given = options(found, job)  # mpiexec gives other hosts its own variables alone
    forwarded = {given[i + 1] for i, word in enumerate(given) if word == "-x"}
    assert {name for name in env if name.startswith("EVERYGRAD_")} <= forwarded
    assert "-x" not in options(found, Job(2, "a.py", []))
    for wrong in (["-n", "0", "a.py"], ["-n", "1", "--max-restarts", "-1", "a.py"], ["a.py"]):
        with pytest.raises(SystemExit):
            parsed(wrong)
    done = launch("-n", "2", str(tmp_path / "nowhere.py"))
    assert done.returncode == 2
    assert "there is no script" in done.stderr


@pytest.mark.parametrize("here", [True, False])
def test_notes_of_ranks_reach_the_launcher(
    here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a file, or from a host that does not see the launcher's folder as a line of output."""
    folder = tmp_path / "launch"
    monkeypatch.setenv("EVERYGRAD_LAUNCH_DIR", str(folder))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    if here:
        folder.mkdir()
    monkeypatch.setattr("sys.__stderr__", sys.stderr)
    worker.note("failed", "ValueError: two\nlines")
    said = capfd.readouterr().err
    if not here:
        folder.mkdir()
        line = f"[1,3]<stderr>: not ended{said}".encode()
        assert Output(str(folder)).keep_note(line)
        assert not Output(str(tmp_path)).keep_note(line)  # of another launch
    assert (folder / "failed-3").read_text(encoding="utf-8") == "ValueError: two\nlines"
    assert [path.name for path in folder.iterdir()] == ["failed-3"]


def test_the_launcher_shows_one_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of the first rank, below all lines; lines that come meanwhile stand above it."""
    monkeypatch.setenv("EVERYGRAD_LAUNCH_DIR", str(tmp_path))
    monkeypatch.setenv("EVERYGRAD_LAUNCH_BAR", "1")
    monkeypatch.setattr(Progress, "REDRAWN", 0.0)
    monkeypatch.setattr("sys.__stderr__", sys.stderr)
    progress = Progress(4, 0)
    progress.advance()
    first = capfd.readouterr().err.encode()
    progress.advance({"loss": 0.5})
    second = capfd.readouterr().err.encode()
    progress.close()
    end = capfd.readouterr().err.encode()
    terminal = io.StringIO()
    output = Output(str(tmp_path), terminal)
    lines = [first, b"[1,1]<stdout>: hello\n", second, end, b"[1,0]<stdout>: bye\n"]
    output.show(io.BytesIO(b"".join(lines)), terminal)
    seen = terminal.getvalue().split("\r\x1b[K")
    assert [s.partition(",")[0] for s in seen] == [
        "",
        "[#####...............] step 1/4",
        "[1] hello\n[#####...............] step 1/4",
        "[##########..........] step 2/4",
    ]
    assert ", loss 0.5, " in seen[-1]
    assert seen[-1].endswith("left\n[0] bye\n")
    assert not list(tmp_path.iterdir())
