"""One architecture by one compiler, in a process of its own: answers a line of JSON with another.

python -m devtools.zoo.timed_worker ARCHITECTURE PEER inference|training

{"first": true}    compile and run once: {"seconds", "result"}
{"seconds": 0.5}   run again and again for so long: {"times"}
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness.load import Mark
from devtools.zoo.check import loss_of
from devtools.zoo.timed_cases import CASES

THREADS = int(os.environ.get("ZOO_THREADS", "2"))
# one thread's processor time is the same on a busy machine; two threads wait for each other
CLOCK = time.process_time if THREADS == 1 else time.perf_counter
LEAST = 3  # runs of a round, however long they take
PEERS = ("everygrad", "inductor", "eager")


def compiled(network: Any, peer: str) -> Any:
    """The network by a peer, as its documentation says that it is quickest."""
    if peer == "eager":
        return network
    if peer == "inductor":  # its default leaves nn.LSTM to oneDNN, which is quicker than its loops
        return torch.compile(network)
    from everygrad.interop.torch.backend import everygrad

    torch._dynamo.config.allow_rnn = True
    return torch.compile(network, backend=everygrad, options={"fullgraph": True})


def work(name: str, peer: str, kind: str) -> Callable[[], float]:
    """What is timed: a forward pass without gradients, or a whole step of training by AdamW. Gives
    a number by which peers can be compared."""
    case = CASES[name]
    given = case.arguments()
    network = case.network() if kind == "inference" else case.trained()
    called = compiled(network, peer)
    if kind == "inference":

        def infer() -> float:
            with torch.no_grad():
                out = called(*given)
            return float(out[0].flatten()[-1])

        return infer
    adamw = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)

    def train() -> float:
        adamw.zero_grad()
        loss = loss_of(called(*given))
        loss.backward()
        adamw.step()
        return float(loss.detach())

    return train


def repeated(run: Callable[[], float], seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < LEAST or time.perf_counter() < end:
        start = CLOCK()
        run()
        times.append(CLOCK() - start)
    return times


def main() -> None:
    name, peer, kind = sys.argv[1:]
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    run = work(name, peer, kind)
    for line in sys.stdin:
        asked = json.loads(line)
        if "first" in asked:
            start = time.perf_counter()
            result = run()
            answer: dict[str, Any] = {"seconds": time.perf_counter() - start, "result": result}
        else:
            mark = Mark.now()
            answer = {"times": repeated(run, asked["seconds"]), "others": mark.others()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
