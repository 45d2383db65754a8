"""Interrupts by the thousand: `python -m devtools.drills.interrupts --count 10000 --device cpu`.

Each step of `steps` is interrupted at places chosen among all at which CPython handles signals
(`--ways places`), by real signals after random times (`signals`), and by another process that
sends them all the time (`storm`); after each, its state,
the modes in force and the next call must be those of an undisturbed run. Prints a table, and ends
with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from functools import partial

from devtools.drills.interrupting import KINDS, Drill, Storm, after, at, chosen, handled
from devtools.drills.steps import STEPS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10000, help="interrupts in all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", default="places,signals,storm")
    parser.add_argument("--only", default="", help="steps whose name holds this")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    ways = given.ways.split(",")
    steps = {k: v for k, v in STEPS.items() if given.only in k}
    if given.device != "cpu" and not given.only:
        del steps["large ops"]  # of the CPU's threads; elsewhere they have a million places
    share = -(-given.count // (len(steps) * len(ways)))
    bad, total = 0, 0
    print(f"{'step':22} {'way':8} {'places':>7} {'trials':>7} {'came':>6} {'lost':>5} {'wrong':>6}")
    with handled() as handler:
        for name, make in steps.items():
            drill = Drill(partial(make, given.device), handler)
            for way in ways:
                storm = Storm(drill.seconds) if way == "storm" else None
                began = time.perf_counter()
                faults: Counter[str] = Counter()
                came = lost = wrong = trials = 0
                while trials < share:
                    if way == "places":
                        picked = [partial(at, k, handler) for k in chosen(share, drill.places, rng)]
                        rng.shuffle(picked)
                    elif way == "signals":
                        picked = [
                            partial(after, 1e-6 + rng.random() * drill.seconds * 1.1, handler)
                            for _ in range(share)
                        ]
                    else:
                        picked = [partial(storm, handler)] * share
                    for interrupt in picked[: share - trials]:
                        handler.kind = rng.choice(KINDS)
                        trial = drill.trial(interrupt)
                        trials += 1
                        came += trial.came
                        lost += trial.lost
                        wrong += bool(trial.faults)
                        faults.update(trial.faults)
                        if trial.faults:
                            drill.renew()
                if storm is not None:
                    storm.close()
                total += came
                bad += wrong
                print(f"{name:22} {way:8} {drill.places:7} {trials:7} {came:6} {lost:5} {wrong:6}"
                      f"   {time.perf_counter() - began:.0f} s", flush=True)  # fmt: skip
                for text, count in faults.most_common(6):
                    print(f"    {count} times: {text[:300]}", flush=True)
    print(f"{total} interrupts on {given.device}, {bad} of them left something wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
