"""A rank fails in every way, in every phase of training: the right one is named, nothing hangs, and
a relaunch goes on bit for bit.

    python -m devtools.drills.distributed [--kinds kill,stop] [--phases start,save] [--ranks 2]

Each case starts a small training through the launcher. In its first start, rank 1 fails in one way
(`KINDS`) in one phase (`PHASES`) of its third step. The others must name it within `LONGEST`
seconds, the launcher must start all ranks again from the last whole checkpoint, and the parameters
at the end must be those of a training that nobody disturbed. `tests/distributed/test_mpi.py` is the
short form.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg

KINDS = ("kill", "stop", "raise", "shape", "order", "missing")
PHASES = ("start", "forward", "backward", "step", "save", "end")
LONGEST = 10.0  # seconds from the fault until the ranks have ended
STEPS, AT, RANK = 4, 2, 1
ROOT = Path(__file__).parents[2]


class Fault(NamedTuple):
    """What rank 1 does, and when; only in the first start."""

    kind: str
    phase: str

    def here(self, phase: str, step: int, rank: int) -> bool:
        first = os.environ.get("EVERYGRAD_ATTEMPT", "0") == "0"
        return first and rank == RANK and phase == self.phase and step == AT


def commit(kind: str) -> None:
    """What can be done at any place."""
    print(f"fault at {time.time():.3f}", flush=True)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "raise":
        raise ValueError("the drill's fault")


class Phases:
    """The collectives of each phase, one of which goes wrong."""

    def __init__(self, fault: Fault, mesh: Any) -> None:
        self.fault = fault
        self.mesh = mesh

    def together(self, phase: str, step: int, x: Any) -> Any:
        """The sum of x over the ranks, and a barrier after it."""
        dist, mesh = eg.distributed, self.mesh
        if not self.fault.here(phase, step, mesh.rank):
            out = dist.all_reduce(x, mesh, "data", "mean")
            dist.barrier(mesh)
            return out
        commit(self.fault.kind)
        if self.fault.kind == "order":
            dist.barrier(mesh)
            return dist.all_reduce(x, mesh, "data", "mean")
        if self.fault.kind == "shape":
            x = eg.concat([x.reshape(-1), eg.zeros((1,), dtype=x.dtype)])
            dist.all_reduce(x, mesh, "data", "mean")
        return x  # the call is missing


def train(folder: Path, fault: Fault) -> None:
    """A rank's program."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    if fault.here("start", AT, rank) and fault.kind in ("kill", "stop", "raise"):
        commit(fault.kind)
    dist = eg.distributed
    mesh = dist.Mesh({"data": dist.world_size()})
    phases = Phases(fault, mesh)
    w = eg.tensor(np.linspace(-1, 1, 12).reshape(3, 4), requires_grad=True)
    adam = eg.optim.Adam([w], lr=0.05)
    begin = 0
    if any(folder.glob("step-*")):
        found = eg.load_latest(folder)
        begin = found["step"] + 1
        w.rebind(found["w"]._data, w._node)
        adam.load_state_dict(found["adam"])
    phases.together("start", AT if begin == 0 else -1, eg.ones((2,)))
    checkpoints = eg.io.Checkpoints(folder) if rank == 0 else None
    for step in range(begin, STEPS):
        x = eg.tensor(np.random.default_rng([step, rank]).normal(size=(5, 3)))
        adam.zero_grad()
        h = phases.together("forward", step, x.mean(axis=0)) + x @ w @ w.T
        loss = (h * h).mean()
        loss.backward()
        w.grad = phases.together("backward", step, w.grad)
        adam.step()
        phases.together("step", step, (w * w).sum().detach())
        if checkpoints is not None:
            checkpoints.save(step, {"step": step, "w": w.detach(), "adam": adam.state_dict()})
            checkpoints.wait()
        phases.together("save", step, eg.ones((1,)))
    phases.together("end", AT, eg.ones((3,)))
    if checkpoints is not None:
        checkpoints.close()
        eg.save(folder / "final.safetensors", {"w": w.detach()})


# --- the drill -----------------------------------------------------------------------------------


def launched(folder: Path, fault: Fault, ranks: int) -> tuple[str, float]:
    """What a launch with this fault prints, and how long it took from the fault to the restart."""
    command = [sys.executable, "-m", "everygrad.launch", "-n", str(ranks), "--max-restarts", "1"]
    command += [__file__, "--train", str(folder), "--kinds", fault.kind, "--phases", fault.phase]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "EVERYGRAD_RING_DIR": str(folder)}
    seconds = {"began": 0.0, "ended": 0.0}
    lines: list[str] = []
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "fault at" in line:
                seconds["began"] = time.monotonic()
            if line.startswith("launch: rank"):
                seconds["ended"] = time.monotonic()
    lines.append(f"exit status {process.returncode}\n")
    return "".join(lines), seconds["ended"] - seconds["began"]


def run_case(fault: Fault, ranks: int, wanted: bytes | None) -> tuple[str | None, bytes, float]:
    """What is wrong with a case, its final parameters, and the seconds from fault to end."""
    with tempfile.TemporaryDirectory(prefix="everygrad-drill-") as name:
        folder = Path(name)
        said, seconds = launched(folder, fault, ranks)
        final = folder / "final.safetensors"
        if "exit status 0" not in said or not final.exists():
            return f"it did not end well:\n{said}", b"", seconds
        made: bytes = eg.load(final)["w"].numpy().tobytes()
    if fault.kind == "none":
        return None, made, 0.0
    if not re.search(_named(fault), said):
        return f"rank {RANK} is not named:\n{said}", made, seconds
    if seconds > LONGEST:
        return f"it took {seconds:.1f} s:\n{said}", made, seconds
    if wanted is not None and made != wanted:
        return "the parameters are not those of an undisturbed training", made, seconds
    return None, made, seconds


def _named(fault: Fault) -> str:
    """How the others must name it."""
    if fault.kind in ("shape", "order", "missing"):
        # a call that is missing is a mismatch with the next one, or the end of the rank
        differ = rf"call different collectives[\s\S]*rank {RANK}:"
        return rf"{differ}|waits for another one: .*rank {RANK} in|PeerLost: rank {RANK} has ended"
    if fault.phase == "start":  # before the ranks know each other: the launcher knows
        return rf"launch: rank {RANK}: "
    how = {"kill": "died", "stop": "hangs", "raise": "raised ValueError"}[fault.kind]
    return rf"PeerLost: rank {RANK} {how}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--train", help="a folder: be a rank of the training")
    given = parser.parse_args()
    if given.train:
        train(Path(given.train), Fault(given.kinds, given.phases))
        return 0
    wrong, wanted, _ = run_case(Fault("none", "none"), given.ranks, None)
    assert wrong is None, wrong
    failures = 0
    for kind in given.kinds.split(","):
        for phase in given.phases.split(","):
            wrong, _, seconds = run_case(Fault(kind, phase), given.ranks, wanted)
            failures += wrong is not None
            print(f"{kind:8} {phase:9} {seconds:5.1f} s  {wrong or 'as it should'}", flush=True)
    print(f"{failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    raise SystemExit(main())
