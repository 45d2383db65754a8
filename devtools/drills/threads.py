"""Threads that trace, replay, run eagerly and differentiate on the same parameters.

    python -m devtools.drills.threads [--device cpu] [--seconds 600] [--roles traces,replays]

Every thread has a role, which it plays over and over: it computes something from tensors that all
share, and compares it, bit for bit, with what the same role gave before any other thread ran. Modes
are those of its own context throughout, and shared tensors hold arrays at every moment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import everygrad as eg
from everygrad import nn
from everygrad.core.tensor import Wrapped
from everygrad.errors import EverygradError
from everygrad.tools.profiler import profile

ROOT = Path(__file__).parents[2]
SIZES = (1, 2, 3, 5, 8, 13, 21, 34)


def bits(*tensors: Any) -> bytes:
    return b"".join(t.detach().to("cpu").numpy().tobytes() for t in tensors)


class Shared:
    """What all threads see and nobody changes."""

    def __init__(self, device: str) -> None:
        rng = np.random.default_rng(0)
        eg.manual_seed(0)
        self.device = device
        self.w = eg.tensor(rng.standard_normal((16, 16)).astype("float32"), device=device)
        self.big = eg.tensor(rng.standard_normal((200, 200)).astype("float32"), device=device)
        self.leaf = eg.tensor(rng.standard_normal(16).astype("float32"), device=device)
        self.leaf.requires_grad_()
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        self.xs = {
            n: eg.tensor(rng.standard_normal((n, 16)).astype("float32"), device=device)
            for n in SIZES
        }
        self.replayed = eg.jit(lambda x: eg.tanh(x @ self.w).sum(axis=0) + self.leaf.detach())

    def tensors(self) -> list[Any]:
        return [self.w, self.big, self.leaf, *self.model.parameters(), *self.xs.values()]


Role = Callable[[Shared, int], bytes]


def traces(s: Shared, turn: int) -> bytes:
    """A new function each time: traced, compiled, run."""
    x = s.xs[SIZES[turn % len(SIZES)]]
    return bits(eg.jit(lambda v: eg.tanh(s.model(v @ s.w) * 2).sum(axis=0))(x))


def steps(s: Shared, turn: int) -> bytes:
    """A training step on a parameter of its own, traced anew as shapes change."""
    p = eg.ones((16,), device=s.device, requires_grad=True)

    def step(v: Any) -> Any:
        loss = (eg.tanh((v * p) @ s.w) ** 2).mean()
        p.grad = None
        loss.backward()
        with eg.no_grad():
            p.__isub__(p.grad * 0.1)
        return loss

    run = eg.jit(step)
    losses = [run(s.xs[SIZES[(turn + k) % len(SIZES)]]) for k in (0, 1)]
    return bits(*losses, p)


def replays(s: Shared, turn: int) -> bytes:
    return bits(s.replayed(s.xs[8]))


def small(s: Shared, turn: int) -> bytes:
    """The plain `w * 2` of another thread."""
    out = s.w * 2 + s.leaf.detach()
    assert not out.requires_grad
    return bits(out, eg.exp(s.w), s.w[3])


def large(s: Shared, turn: int) -> bytes:
    return bits((eg.tanh(s.big) * s.big).sum(axis=0), s.big @ s.big)


def backward(s: Shared, turn: int) -> bytes:
    """Eager derivatives by shared leaves: gradients are returned, not summed into .grad."""
    out = (eg.tanh(s.model(s.xs[5] * s.leaf)) ** 2).sum()
    assert out.requires_grad
    return bits(*eg.autograd.grad(out, [s.leaf, *s.model.parameters()]))


def workers(s: Shared, turn: int) -> bytes:
    p = s.leaf.detach().requires_grad_()
    parts = [eg.tanh(s.w @ p * float(k)).sum() for k in range(1, 5)]
    sum(parts[1:], parts[0]).backward(workers=2)
    return bits(p.grad)


def without_grad(s: Shared, turn: int) -> bytes:
    with eg.no_grad():
        out = s.model(s.xs[3]) * s.leaf[:4]
        assert not out.requires_grad
        time.sleep(0)
    assert eg.is_grad_enabled()
    return bits(out)


def halves(s: Shared, turn: int) -> bytes:
    with eg.autocast():
        out = s.w @ s.w
        assert out.dtype is eg.bfloat16
        time.sleep(0)
    return bits(out.astype("float32"), s.w @ s.w)


def profiled(s: Shared, turn: int) -> bytes:
    with profile() as p:
        out = s.w @ s.w + 1
    assert {e.name for e in p.events} == {"matmul", "add"}, p.events
    return bits(out)


def mapped(s: Shared, turn: int) -> bytes:
    per_example = eg.vmap(eg.grad(lambda v: (eg.tanh(v @ s.w) ** 2).sum()))
    return bits(per_example(s.xs[5]), eg.jvp(eg.exp, (s.w,), (s.w,))[1])


def checkpointed(s: Shared, turn: int) -> bytes:
    out = eg.checkpoint(lambda v: eg.tanh(s.model(v)) ** 2, s.xs[5] * s.leaf).sum()
    return bits(*eg.autograd.grad(out, [s.leaf]))


ROLES: dict[str, Role] = {
    f.__name__: f
    for f in (traces, steps, replays, small, large, backward, workers, without_grad, halves,
              profiled, mapped, checkpointed)
}  # fmt: skip


class Drill:
    """Threads of these roles, two each, for some seconds; what went wrong."""

    def __init__(self, device: str, roles: Sequence[str]) -> None:
        self.shared = Shared(device)
        self.roles = roles
        self.expected = {
            (role, turn): ROLES[role](self.shared, turn)
            for role in roles
            for turn in range(len(SIZES))
        }
        self.faults: list[str] = []
        self.turns: Counter[str] = Counter()
        self.stop = threading.Event()

    def play(self, role: str) -> None:
        turn = 0
        while not self.stop.is_set():
            turn = (turn + 1) % len(SIZES)
            try:
                found = ROLES[role](self.shared, turn)
                if found != self.expected[role, turn]:
                    self.faults.append(f"{role}: other bits than undisturbed")
                if not eg.is_grad_enabled():
                    self.faults.append(f"{role}: recording is off")
            except Exception as error:
                where = traceback.format_exc(limit=-1).splitlines()[-2].strip()
                kind = "" if isinstance(error, EverygradError) else " (not one of ours)"
                self.faults.append(f"{role}: {type(error).__name__}{kind}: {error}, at {where}")
            self.turns[role] += 1

    def look(self) -> None:
        """Shared tensors hold arrays at every moment."""
        tensors = self.shared.tensors()
        while not self.stop.is_set():
            if any(isinstance(t._data, Wrapped) for t in tensors):
                self.faults.append("a shared tensor holds a tracer's payload")
            time.sleep(0)

    def run(self, seconds: float) -> None:
        threads = [
            *(threading.Thread(target=self.play, args=(r,), daemon=True) for r in self.roles * 2),
            threading.Thread(target=self.look, daemon=True),
        ]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)  # threads meet in more places
        try:
            for t in threads:
                t.start()
            time.sleep(seconds)
            self.stop.set()
            for t in threads:
                t.join(60)
        finally:
            self.stop.set()
            sys.setswitchinterval(interval)
        if any(t.is_alive() for t in threads):
            self.faults.append("a thread hangs")
        for role in self.roles:
            if ROLES[role](self.shared, 0) != self.expected[role, 0]:
                self.faults.append(f"{role}: other bits afterwards")
            if not self.turns[role]:
                self.faults.append(f"{role}: had no turn")


def run_drill(device: str, roles: Sequence[str], seconds: float) -> tuple[int, str]:
    """A drill in a process of its own, which may crash: its exit status, and what it said."""
    command = [sys.executable, "-X", "faulthandler", "-m", "devtools.drills.threads"]
    command += ["--device", device, "--roles", ",".join(roles), "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=120 + 2 * seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return 1, f"hangs: {error}"
    return done.returncode, f"{done.stdout}{done.stderr}"[:4000]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--roles", default=",".join(ROLES))
    given = parser.parse_args()
    drill = Drill(given.device, given.roles.split(","))
    drill.run(given.seconds)
    for fault, count in Counter(drill.faults).most_common(20):
        print(f"{count} times: {fault}")
    print(f"{sum(drill.turns.values())} turns: {dict(drill.turns)}; {len(drill.faults)} faults")
    return int(bool(drill.faults))


if __name__ == "__main__":
    raise SystemExit(main())
