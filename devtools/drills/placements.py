"""Every sample of every op in shards, beside the op on the whole.

    python -m devtools.drills.placements [name ...]

The short form is `tests/distributed/test_placement_rules.py`.
"""

from __future__ import annotations

import sys

from tests.distributed.placement_proof import NAMES, proof_of

ALL = 1000  # samples: more than any op has


def main(names: list[str]) -> int:
    wrong = proven = 0
    for name in names or NAMES:
        proof = proof_of(name, ALL)
        proven += proof.sharded > 0
        for line in proof.wrong:
            wrong += 1
            print(f"{name}: {line}")
        if not proof.sharded:
            print(f"{name}: refuses shards ({sum(proof.refused.values())} refusals)")
    print(f"{proven} of {len(names or NAMES)} ops proven in shards, {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
