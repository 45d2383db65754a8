"""Calls with every argument under PyTorch's name for it."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from tests.api.test_aliases import (
    CUBE,
    INTS,
    MASK,
    MORE,
    OTHER,
    SQUARE,
    UNIT,
    V,
    W,
    X,
    Y,
    given,
    same,
    torch_dtype,
)

pytestmark = pytest.mark.needs("float64")

WORDS: dict[str, list[dict[str, Any]]] = {
    "pow": [{"input": UNIT, "exponent": 2.0}, {"input": UNIT, "exponent": Y}],
    **{n: [{"input": X, "mat2": Y.T}] for n in ("mm",)},
    "bmm": [{"input": CUBE, "mat2": OTHER}],
    "mv": [{"input": X, "vec": V}],
    "dot": [{"input": V, "tensor": W}],
    "outer": [{"input": V, "vec2": W}],
    **{n: [{"input": X, "tensor1": Y, "tensor2": UNIT}] for n in ("addcmul", "addcdiv")},
    "isin": [{"elements": INTS, "test_elements": MORE}],
    "heaviside": [{"input": X, "values": Y}],
    "diag": [{"input": X, "diagonal": 1}],
    "linspace": [{"start": 0.0, "end": 1.0, "steps": 5, "dtype": "float64"}],
    "logspace": [{"start": 0.0, "end": 1.0, "steps": 5, "dtype": "float64"}],
    "full": [{"size": (2, 3), "fill_value": 1.5, "dtype": "float64"}],
    "full_like": [{"input": X, "fill_value": 2.0}],
    **{n: [{"input": X}] for n in ("zeros_like", "ones_like", "logit", "resolve_conj", "t")},
    "eye": [{"n": 3, "m": 4, "dtype": "float64"}],
    "split": [{"tensor": X, "split_size_or_sections": [1, 2], "dim": 0}],
    "chunk": [{"input": X, "chunks": 2, "dim": 1}],
    "transpose": [{"input": X, "dim0": 0, "dim1": 1}],
    "permute": [{"input": CUBE, "dims": (2, 0, 1)}],
    "unsqueeze": [{"input": X, "dim": 0}],
    "tensordot": [{"a": X, "b": Y.T, "dims": 1}],
    "allclose": [{"input": X, "other": Y, "atol": 9.0}],
    "where": [{"condition": MASK, "input": X, "other": Y}],
    "polygamma": [{"n": 0, "input": UNIT}],
    **{n: [{"input": X, "dim": 1}, {"input": X}] for n in ("max", "sum", "mean", "argmax")},
    **{n: [{"input": X, "dim": 1}] for n in ("softmax", "cumsum", "logsumexp", "sort", "unbind")},
    "nn.functional.softmax": [{"input": X, "dim": 1}],
    "nn.functional.pad": [{"input": X, "pad": (1, 2), "mode": "constant", "value": 3.0}],
    "nn.functional.linear": [{"input": X, "weight": Y, "bias": np.ones(3)}],
    "nn.functional.margin_ranking_loss": [{"input1": V, "input2": W, "target": np.sign(V)}],
    "nn.functional.mse_loss": [{"input": X, "target": Y, "reduction": "sum"}],
    "linalg.qr": [{"A": SQUARE}],
    "linalg.solve": [{"A": SQUARE, "B": X}],
    "special.zeta": [{"input": UNIT + 2, "other": UNIT}],
}


METHOD_WORDS = ("pow", "dot", "outer", "addcmul", "permute")


@pytest.mark.parametrize(
    ("name", "named"),
    [(name, named) for name, calls in WORDS.items() for named in calls],
)
def test_every_argument_has_pytorchs_name(name: str, named: dict[str, Any]) -> None:
    ours, theirs = attrgetter(name)(eg), attrgetter(name)(torch)
    _, words = given((named,), torch.tensor)
    want = theirs(**torch_dtype(words))
    _, words = given((named,), eg.tensor)
    same(ours(**words), want)
    if name in METHOD_WORDS:
        first, *others = words.items()
        same(getattr(first[1], name)(**dict(others)), want)
