"""A process ends as usual, whatever daemon threads are in: native code that they are taken out of
must not end it with an abort."""

from __future__ import annotations

import subprocess
import sys

import pytest

from everygrad.autograd import trees

START = """
import sys, threading, time
import everygrad as eg
from everygrad.autograd import trees

sys.setswitchinterval(1e-6)  # the GIL goes from hand to hand: threads wait for it in many places

class Pair:
    def __init__(self, *parts): self.parts = parts

def parts(pair):
    for _ in range(30): trees.leaves_of([1, [2]])  # Python inside C++, and C++ inside of that
    return pair.parts, None

trees.register(Pair, parts, lambda _, parts: Pair(*parts))
tree = [Pair(1, {"a": Pair(2)}), (3, [4])]
leaves, structure = trees.flatten(tree)
small = eg.ones((4,))
jitted = eg.jit(lambda x: {"a": x * 2.0, "b": [x.sum()]})
jitted(small)
"""
END = """
def forever():
    while True: work()

for _ in range(4): threading.Thread(target=forever, daemon=True).start()
time.sleep(0.02)
"""
# every function of containers, and what a program has of them
WORK = {
    "flatten": "trees.flatten(tree)",
    "unflatten": "trees.unflatten(structure, leaves)",
    "leaves_of": "trees.leaves_of(tree)",
    "map_leaves": "trees.map_leaves(abs, tree)",
    "spread": "trees.spread(1, tree)",
    "paths_of": "trees.paths_of(tree)",
    "replays": "jitted(small)",
    "traces": "eg.jit(lambda x: [x + 1.0])(small)",
    "transforms": "eg.vmap(lambda d: d['a'] * 2.0)({'a': small})",
    "eager": "small * 2.0 + small",
}


def test_every_function_of_containers_is_tried() -> None:
    own = {
        name
        for name, f in vars(trees).items()
        if callable(f) and getattr(f, "__module__", "") == trees.__name__ and name[0] != "_"
    }
    assert own - {"register"} <= {*WORK}


@pytest.mark.parametrize("name", WORK)
def test_daemon_threads_do_not_abort_the_end(name: str) -> None:
    """optree alone, in 4 daemon threads, aborts 19 of 20 processes."""
    program = f"{START}\ndef work(): {WORK[name]}\n{END}"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr


def test_the_end_may_flatten_containers_itself() -> None:
    """Handlers of the end that run after ours still get answers, in the thread that ends."""
    program = (
        "import atexit, optree\n"  # which clears its own table at the end
        "atexit.register(lambda: print(trees.leaves_of({'a': 1, 'b': [2]})))\n"
        f"{START}\ndef work(): trees.flatten(tree)\n{END}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n"), done.stderr
