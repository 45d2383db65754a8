"""One process that checks a run of cases and says so, line by line: what crashes or hangs in native
code ends this process and not the sweep. Started by `devtools.sweep.pool`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sections", required=True)
    parser.add_argument("--start", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--largest", type=int, required=True)
    parser.add_argument("--processor", default="this")
    parser.add_argument("--kept", default="", help="a case as JSON: that one, and no other")
    parser.add_argument("--branches", default="", help="where to note which branches ran")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, stopped: Callable[[], bool] = lambda: False) -> None:
    # only now: what the import itself runs counts as well
    import torch

    from devtools.sweep import processors
    from devtools.sweep.cases import checked, drawn, section_of
    from devtools.sweep.registry import Context

    torch.set_num_threads(1)
    processors.play(options.processor)
    context = Context(options.device, options.largest)
    if options.kept:
        kept = json.loads(options.kept)
        case = section_of(kept["section"]).again(kept, context)
        cases = iter([(kept["section"], options.start, case)])
    else:
        cases = islice(drawn(options.sections.split(","), options.start, context), options.count)
    for name, seed, case in cases:
        if stopped():
            return
        kept = {"section": name, "device": options.device, "processor": options.processor}
        kept |= case.kept()
        say(begun=seed, kept=kept, title=case.title())
        outcome = checked(name, seed, case)
        say(done=seed, differences=outcome.differences)


def main(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    if not options.branches:
        run(options)
        return 0
    from devtools.sweep.branches import noted

    # what was noted is saved; a handler that raises may do so while coverage holds its own lock
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    with noted(options.branches):
        run(options, lambda: bool(asked))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
