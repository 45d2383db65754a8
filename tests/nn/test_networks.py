"""Two networks at their full widths, layer by layer against PyTorch; `devtools.sweep.networks` has
the others."""

from __future__ import annotations

import pytest

from devtools.sweep.networks.check import check


@pytest.mark.parametrize("name", ["bottlenecks", "gpt2"])
def test_every_layer_is_what_pytorch_gives(name: str) -> None:
    """Values, gradients and running statistics, eager and compiled, in float32."""
    assert check(name, "cpu", "float32", seed=0) == []
