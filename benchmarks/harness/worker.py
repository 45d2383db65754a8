"""The process one peer runs in: JSON lines in on stdin, JSON lines out on stdout.

    {"hello": true}                                     -> {"versions": {...}, "missing": why}
    {"check": NAME, "to": PATH}                         -> {"steps_s": [seconds, ...]}
    {"run": NAME, "steps": K, "rounds": N, "warmup_s": S}
                                                        -> {"times": [seconds a step, ...],
                                                            "others": [busy cores, ...]}
    {"trial": NAME, "rounds": N}                        -> {"steps_s": [...], "losses": [...],
                                                            "peak": bytes, "held": bytes,
                                                            "times": [...]}
    {"curve": NAME}                                     -> {"losses": [...]}

`missing` is what the peer lacks to run here, "" when nothing. `others` is what other processes
took of the machine in each round (`load.py`). `check` runs a fresh copy of the workload, times its
few steps one by one, and saves the outputs of its first and last step as an .npz file; `run` keeps
the workload built until another is asked for. `trial` and `curve` are for peers on CUDA, whose
steps are waited for at the end of a round: the first steps with their losses, the memory they took,
then rounds; and the losses of a step for each batch. A request that fails is answered
`{"error": traceback}` and the worker goes on.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import time
import traceback
from types import ModuleType
from typing import Any, TextIO

import numpy as np

from benchmarks.harness.load import Mark
from benchmarks.peers import ALL_MODULES, Step
from benchmarks.workloads import EVERY, WORKLOADS, Array


class Worker:
    """One peer's module and the workload that is built at the moment."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.name = ""
        self.step: Step | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "hello" in request:
            missing = getattr(self.module, "missing", str)()
            return {"versions": self.module.VERSIONS | _numpy(), "missing": missing}
        if "check" in request:
            return {"steps_s": self.check(request["check"], request["to"])}
        if "trial" in request:
            return self.trial(request["trial"], request["rounds"])
        if "curve" in request:
            return {"losses": self.curve(request["curve"])}
        how = request["steps"], request["rounds"], request.get("warmup_s", 0.0)
        rounds = self.run(request["run"], *how)
        return {"times": [seconds for seconds, _ in rounds], "others": [load for _, load in rounds]}

    def drop(self) -> None:
        self.name, self.step = "", None
        gc.collect()

    def build(self, name: str) -> Step:
        workload = EVERY[name]
        step: Step = self.module.STEPS[workload.kind](workload.data())
        return step

    def check(self, name: str, path: str) -> list[float]:
        self.drop()
        step = self.build(name)
        times = [_once(step)]
        saved = _prefixed("first", step.outputs())
        times += [_once(step) for _ in range(WORKLOADS[name].check_steps - 1)]
        saved |= _prefixed("last", step.outputs())
        if len(times) == 1:
            times.append(_once(step))  # a second one tells whether all was compiled by the first
        np.savez(path, **saved)  # type: ignore[arg-type]  # its stub forbids plain keywords
        return times

    def run(self, name: str, steps: int, rounds: int, warmup_s: float) -> list[tuple[float, float]]:
        if self.name != name or self.step is None:
            self.drop()
            self.name, self.step = name, self.build(name)
        step = self.step
        gc.collect()
        _warm(step, max(1, steps // 10), warmup_s)
        return [_time(step, steps) for _ in range(rounds)]

    def trial(self, name: str, rounds: int) -> dict[str, Any]:
        """The first steps one by one, then rounds of as many as the workload says."""
        self.drop()
        step: Any = self.build(name)
        self.module.wait()
        seconds, losses = [], []
        for _ in range(max(2, EVERY[name].check_steps)):
            seconds.append(self._waited(step, 1))
            losses.append(step.value())
        _warm(step, EVERY[name].steps, 0.0)
        memory = {"peak": self.module.peak(), "held": self.module.held()}
        times = [self._waited(step, EVERY[name].steps) for _ in range(rounds)]
        return {"steps_s": seconds, "losses": losses, "times": times, **memory}

    def _waited(self, step: Step, steps: int) -> float:
        """Seconds a step, of several that are waited for together."""
        self.module.wait()
        start = time.perf_counter()
        for _ in range(steps):
            step.run()
        self.module.wait()
        return (time.perf_counter() - start) / steps

    def curve(self, name: str) -> list[float]:
        """The loss of every step, each on a batch of its own."""
        self.drop()
        workload = EVERY[name]
        data = workload.data()
        step: Any = self.module.STEPS[workload.kind](data)
        losses = []
        for text in data.arrays["text"]:
            step.feed(text)
            step.run()
            losses.append(step.value())
        return losses


def _numpy() -> dict[str, str]:
    return {"numpy": np.__version__}


def _once(step: Step) -> float:
    start = time.perf_counter()
    step.run()
    return time.perf_counter() - start


def _prefixed(prefix: str, outputs: dict[str, Array]) -> dict[str, Array]:
    return {f"{prefix}.{name}": a for name, a in outputs.items()}


def _warm(step: Step, least: int, seconds: float) -> None:
    """At least `least` steps and `seconds`: caches, thread pools and clocks settle."""
    end = time.perf_counter() + seconds
    done = 0
    while done < least or time.perf_counter() < end:
        step.run()
        done += 1


def _time(step: Step, steps: int) -> tuple[float, float]:
    """Seconds a step, and the load other processes put on the machine meanwhile."""
    mark = Mark.now()
    start = time.perf_counter()
    for _ in range(steps):
        step.run()
    seconds = time.perf_counter() - start
    return seconds / steps, mark.others()


def _private_stdout() -> TextIO:
    """The pipe to the parent; whatever else writes to stdout goes to stderr from here on."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


def main() -> None:
    parser = argparse.ArgumentParser(description="One peer's process; started by the harness.")
    parser.add_argument("peer", choices=ALL_MODULES)
    module = ALL_MODULES[parser.parse_args().peer]
    pipe = _private_stdout()
    worker: Worker | None = None
    for line in sys.stdin:
        try:
            worker = worker or Worker(importlib.import_module(module))
            reply = worker.answer(json.loads(line))
        except Exception:  # the parent reports it and goes on to the next workload
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=pipe, flush=True)


if __name__ == "__main__":
    main()
