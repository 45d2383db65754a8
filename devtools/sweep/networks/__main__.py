"""Whole networks, layer by layer against PyTorch, for as long as is said.

python -m devtools.sweep.networks --device cpu --minutes 10
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from devtools.sweep.networks.check import check, dtypes_of
from devtools.sweep.networks.models import NETWORKS


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=None, help="go on with more seeds so long")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--scale", type=int, default=1, help="times the size of images and texts")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="only these, by comma")
    parser.add_argument("--verify", action="store_true", help="compiled with verify=True")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """1 if a network differs."""
    options = _parsed(arguments)
    begun, seed, failed = time.monotonic(), options.seed, 0
    while True:
        for name in options.networks.split(","):
            for dtype in dtypes_of(options.device):
                start = time.monotonic()
                facts = (options.device, dtype, seed, options.scale, options.verify)
                found = check(name, *facts)
                taken = time.monotonic() - start
                failed += bool(found)
                print(f"{name} {dtype} seed {seed}: {len(found)} differences, {taken:.1f} s")
                for fault in found[:20]:
                    print(f"  {fault}", flush=True)
        seed += 1
        if options.minutes is None or time.monotonic() - begun > 60 * options.minutes:
            break
    print(f"{failed} networks differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
