"""The proof of every rule of placement: an op on shards, put together, is the op on the whole.

`python -m devtools.drills.placements` tries all samples of every op.
"""

from __future__ import annotations

import pytest

from tests.distributed.placement_proof import NAMES, proof_of

# ops whose results depend on all elements at once, or whose sizes depend on values
WITHOUT_SHARDS = 0.07


@pytest.mark.parametrize("name", NAMES)
def test_shards_put_together_are_the_whole(name: str) -> None:
    proof = proof_of(name)
    assert proof.wrong == []
    assert proof.accepted or proof.refused or name == "dropout"  # the one op without samples


def test_most_ops_have_a_proven_rule(capsys: pytest.CaptureFixture[str]) -> None:
    proofs = {name: proof_of(name) for name in NAMES}
    proven = [name for name, proof in proofs.items() if proof.sharded]
    with_gradients = [name for name, proof in proofs.items() if proof.gradients]
    with capsys.disabled():
        print(
            f"\nplacement rules: {len(proven)} of {len(NAMES)} ops proven in shards, "
            f"{len(with_gradients)} of them with gradients"
        )
    assert len(proven) >= (1 - WITHOUT_SHARDS) * len(NAMES)
    assert len(with_gradients) > len(NAMES) // 2
