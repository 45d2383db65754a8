"""Starts the ranks through mpiexec, shows what they print, starts again, and leaves nothing behind.

A start that fails is ended as a whole: ranks that are left are told by the control channel and end
by themselves, and what does not end within `PATIENCE` seconds is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from everygrad.errors import ArgumentError, DeviceError
from everygrad.launch.output import Output

PATIENCE = 4.0  # seconds that the other ranks have to end after one failed
STOPPED = 4.0  # seconds after which a process that is stopped has failed
# what costs a second at start, twice the bytes, or half of a link (on one TCP connection the two
# directions take turns), in Open MPI's wheel; clusters override it
SETTINGS = {
    "OMPI_MCA_mtl": "^ofi",
    "OMPI_MCA_btl": "^ofi,uct",
    "OMPI_MCA_btl_tcp_links": "4",
    "OMPI_MCA_coll_libnbc_iallreduce_algorithm": "1",
    "PYTHONUNBUFFERED": "1",
}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Job(NamedTuple):
    """What to start."""

    ranks: int
    script: str
    arguments: Sequence[str]
    hosts: str | None = None
    max_restarts: int = 0


def find_mpiexec() -> str | None:
    """mpiexec of the wheel beside this Python, or the one in PATH."""
    beside = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    for folder in beside:
        if (folder / "mpiexec").is_file():
            return str(folder / "mpiexec")
    return shutil.which("mpiexec")


def options(mpiexec: str, job: Job) -> list[str]:
    """mpiexec's options for this job, by whose mpiexec it is."""
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    given = ["-n", str(job.ranks)]
    if "Open MPI" in said.stdout or "OpenRTE" in said.stdout:
        # the others live on when a rank dies or fails: they say who it was
        given += ["--runtime-options", "recoverable,continuous,error-nonzero-status=0"]
        given += ["--output", "tag"]
        given += ["--oversubscribe", "--bind-to", "none"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            given.append("--allow-run-as-root")
        if job.hosts:  # mpiexec gives other hosts its own variables alone
            given += ["--hostfile", job.hosts]
            for name in forwarded():
                given += ["-x", name]
        return given
    given += ["-prepend-rank", "-disable-auto-cleanup"]
    return [*given, *(["-f", job.hosts] if job.hosts else [])]


def forwarded() -> list[str]:
    """The variables that ranks on other hosts need as well."""
    own = {"EVERYGRAD_LAUNCH_DIR", "EVERYGRAD_ATTEMPT", "EVERYGRAD_CONTROL_ADDRESS"}
    own.add("EVERYGRAD_LAUNCH_BAR")
    also = {"PYTHONPATH", *_THREADS} & os.environ.keys()
    set_ = {name for name in os.environ if name.startswith("EVERYGRAD_")}
    return sorted({*own, *also, *set_, "PYTHONUNBUFFERED"})


def first_host(hosts: str) -> str:
    """The host of rank 0: the first that the file names."""
    for line in Path(hosts).read_text(encoding="utf-8").splitlines():
        words = line.split("#")[0].split()
        if words:
            return words[0].split(":")[0]
    raise ArgumentError(f"launch: {hosts} names no host")


def environment(job: Job, folder: str, attempt: int) -> dict[str, str]:
    """What the ranks find in their environment; what is set already stays."""
    env = dict(os.environ)
    for name, value in SETTINGS.items():
        env.setdefault(name, value)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if job.hosts is None:
        for name in _THREADS:
            env.setdefault(name, str(max(1, (cores or 1) // job.ranks)))
    else:
        env.setdefault("EVERYGRAD_CONTROL_ADDRESS", first_host(job.hosts))
        # without it a connection that a dead rank leaves ends the ranks on other hosts as well
        env.setdefault("OMPI_MCA_mpi_ft_enable", "1")
    env["EVERYGRAD_LAUNCH_DIR"] = folder
    env["EVERYGRAD_ATTEMPT"] = str(attempt)
    env["EVERYGRAD_LAUNCH_BAR"] = str(int(sys.stderr.isatty()))
    return env


class Start:
    """One start of all ranks."""

    def __init__(self, job: Job, command: Sequence[str], attempt: int) -> None:
        self.job = job
        self.folder = tempfile.mkdtemp(prefix="everygrad-launch-")
        self.process = subprocess.Popen(
            command,
            env=environment(job, self.folder, attempt),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.output = Output(self.folder, sys.stderr if sys.stderr.isatty() else None)
        streams = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self.readers = [
            threading.Thread(target=self.output.show, args=both, daemon=True) for both in streams
        ]
        for reader in self.readers:
            reader.start()

    def noted(self, state: str) -> dict[int, str]:
        """What the ranks left word of, by rank."""
        return {
            int(path.name.rpartition("-")[2]): path.read_text(encoding="utf-8")
            for path in Path(self.folder).glob(f"{state}*")
            if path.name.startswith(f"{state}-") or path.name == state
        }

    def wait(self) -> str | None:
        """Wait for the end; what went wrong, or None."""
        failing: float | None = None
        stopped: dict[int, float] = {}
        causes: dict[int, str] = {}
        while self.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)
            causes.update(self.lost(stopped))
            if failing is None and (causes or self.noted("failed")):
                failing = time.monotonic()
            if failing is not None and time.monotonic() - failing > self.patience(causes):
                break
        failed, done = self.noted("failed"), self.noted("done")
        self.end()
        missing = [r for r in range(self.job.ranks) if r not in done]
        if not missing:
            return None
        # who lost a peer is not the cause
        first = [r for r in failed if not failed[r].startswith("PeerLost")]
        rank = [*causes, *first, *missing][0]
        reason = causes.get(rank) or failed.get(rank, "died without a word")
        return f"rank {rank}: {reason}"

    def patience(self, causes: dict[int, str]) -> float:
        """How long mpiexec has to end by itself: not long where every rank is accounted for."""
        known = {*self.noted("failed"), *self.noted("done"), *causes}
        return 0.5 if len(known) == self.job.ranks else PATIENCE

    def lost(self, stopped: dict[int, float]) -> dict[int, str]:
        """The ranks of this host whose processes are gone without a word, or stopped for long;
        `stopped` keeps since when."""
        found: dict[int, str] = {}
        if self.job.hosts is not None or not Path("/proc/self/stat").exists():
            return found
        for rank, pid in self.noted("pid").items():
            state = _state_of(pid)
            if state is None:
                time.sleep(0.05)  # it may have left word just now
                if not self.noted(f"done-{rank}") and not self.noted(f"failed-{rank}"):
                    found[rank] = "died without a word"
            elif state != "T":
                stopped.pop(rank, None)
            elif time.monotonic() - stopped.setdefault(rank, time.monotonic()) > STOPPED:
                found[rank] = "is stopped"
        return found

    def end(self) -> None:
        """End everything that this start began."""
        for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            if self.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(patience)
        if self.job.hosts is None:
            for pid in self.noted("pid").values():
                if pid.isdecimal() and _is_ours(int(pid), self.folder):
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
        for reader in self.readers:
            reader.join(3.0)
        self.output.draw("")

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _state_of(pid: str) -> str | None:
    """The letter that /proc has for what a process does; None where it is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[0]


def _is_ours(pid: int, folder: str) -> bool:
    """Whether a process is the rank that this start began, not another one of the same number."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"EVERYGRAD_LAUNCH_DIR={folder}".encode() in environ


def run(job: Job) -> int:
    """Start, start again as often as is allowed, and return the exit status."""
    if not Path(job.script).is_file():
        raise ArgumentError(f"launch: there is no script {job.script}")
    mpiexec = find_mpiexec()
    if mpiexec is None and (job.ranks > 1 or job.hosts):
        raise DeviceError('launch: found no mpiexec; pip install "everygrad[mpi]"')
    worker = str(Path(__file__).with_name("worker.py"))  # as a file: it need not import everygrad
    ranks = [sys.executable, worker, job.script, *job.arguments]
    command = ranks if mpiexec is None else [mpiexec, *options(mpiexec, job), *ranks]
    for attempt in range(job.max_restarts + 1):
        start = Start(job, command, attempt)
        ended = _forwarding(start)
        try:
            wrong = start.wait()
        finally:
            start.end()
            start.forget()
        if wrong is None:
            return 0
        print(f"launch: {wrong}", file=sys.stderr, flush=True)
        if ended:
            return 128 + ended[0]
        if attempt < job.max_restarts:
            print(f"launch: start {attempt + 2} of {job.max_restarts + 1}", file=sys.stderr)
    return 1


def _forwarding(start: Start) -> list[int]:
    """Ctrl-C and SIGTERM end the ranks; the list gets the signal's number."""
    got: list[int] = []

    def handler(number: int, frame: Any) -> None:
        got.append(number)
        with suppress(ProcessLookupError):
            os.killpg(start.process.pid, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    return got
