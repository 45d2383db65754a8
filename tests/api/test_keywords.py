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
    ROWS,
    RUNS,
    SPD,
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

pytestmark = [
    pytest.mark.needs("float64"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),  # PyTorch's of what it calls deprecated
]

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
    "swapaxes": [{"input": CUBE, "axis0": 0, "axis1": 2}],
    "swapdims": [{"input": CUBE, "dim0": 0, "dim1": 2}],
    "permute": [{"input": CUBE, "dims": (2, 0, 1)}],
    "unsqueeze": [{"input": X, "dim": 0}],
    "tensordot": [{"a": X, "b": Y.T, "dims": 1}],
    "allclose": [{"input": X, "other": Y, "atol": 9.0}],
    "where": [{"condition": MASK, "input": X, "other": Y}],
    "polygamma": [{"n": 0, "input": UNIT}],
    **{n: [{"input": X, "dim": 1}, {"input": X}] for n in ("max", "sum", "mean", "argmax")},
    **{n: [{"input": X, "dim": 1}] for n in ("softmax", "cumsum", "logsumexp", "sort", "unbind")},
    "nn.functional.softmax": [{"input": X, "dim": 1}],
    "nn.functional.pad": [
        {"input": X, "pad": (1, 2), "mode": "constant", "value": 3.0},
        *[
            {"input": CUBE, "pad": widths, "mode": mode}
            for mode in ("circular", "reflect", "replicate")
            for widths in ((-1, 2), (1, -2), (2, 1))
        ],
    ],
    "nn.functional.linear": [{"input": X, "weight": Y, "bias": np.ones(3)}],
    "nn.functional.margin_ranking_loss": [{"input1": V, "input2": W, "target": np.sign(V)}],
    "nn.functional.mse_loss": [
        {"input": X, "target": Y, "weight": UNIT},
        {"input": X, "target": Y, "reduction": "sum"},
    ],
    "linalg.qr": [{"A": SQUARE}],
    "linalg.solve": [{"A": SQUARE, "B": X}],
    "nonzero": [{"input": INTS, "as_tuple": True}, {"input": INTS, "as_tuple": False}],
    "round": [{"input": 100 * X, "decimals": d} for d in (0, 2, -1)],
    "special.round": [{"input": 100 * X, "decimals": 1}],
    "index_add": [{"input": X, "dim": 0, "index": ROWS, "source": Y[:2], "alpha": -2.0}],
    "searchsorted": [
        {"sorted_sequence": np.sort(V), "input": X, "right": True, "out_int32": True},
        {"sorted_sequence": np.sort(V), "input": X, "side": "right"},
    ],
    "bucketize": [{"input": X, "boundaries": np.sort(V), "out_int32": True}],
    **{
        n: [{"row": 3, "col": 4, "offset": 1, "dtype": "int32"}]
        for n in ("tril_indices", "triu_indices")
    },
    "stft": [{"input": RUNS, "n_fft": 4, "return_complex": False, "window": np.ones(4)}],
    "cdist": [{"x1": X, "x2": Y, "compute_mode": "donot_use_mm_for_euclid_dist"}],
    "norm": [{"input": X, "p": "fro"}, {"input": X, "p": "fro", "dim": 1}],
    "repeat_interleave": [{"input": X, "repeats": 2, "dim": 1, "output_size": 8}],
    "nn.functional.huber_loss": [{"input": X, "target": Y, "weight": UNIT}],
    "nn.functional.l1_loss": [
        {"input": X, "target": Y, "weight": UNIT, "reduction": r} for r in ("mean", "sum", "none")
    ],
    "nn.functional.kl_div": [{"input": X, "target": UNIT, "size_average": False}],
    "nn.functional.smooth_l1_loss": [{"input": X, "target": Y, "reduce": False}],
    "linalg.eigvalsh": [{"input": SQUARE, "UPLO": u} for u in "UL"],
    "linalg.matrix_norm": [
        {"input": CUBE, "ord": 1, "dim": (0, 2), "keepdim": k} for k in (True, False)
    ],
    "linalg.matrix_rank": [{"input": 9 * SQUARE, "atol": 0.5}, {"input": SPD, "hermitian": True}],
    "linalg.pinv": [{"input": X, "atol": 0.5}, {"input": SPD, "hermitian": True}],
    "special.zeta": [{"input": UNIT + 2, "other": UNIT}],
}


METHOD_WORDS = ("pow", "dot", "outer", "addcmul", "permute", "swapaxes", "swapdims")


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


def test_places_that_count() -> None:
    for call in (
        lambda m, x: m.linalg.matrix_norm(x, 1, (-2, -1), True),
        lambda m, x: m.linalg.matrix_rank(x @ x.T, 9.0),
        lambda m, x: m.meshgrid([x[0], x[1, 0]], indexing="ij"),
        lambda m, x: m.nn.functional.pad(x, (-1, 2, 1, -2), value=3.0),
        lambda m, x: m.nn.MSELoss(size_average=False)(x, 2 * x),
        lambda m, x: m.nn.BCEWithLogitsLoss(reduce=False)(x, 0 * x),
        lambda m, x: m.round(x * 10, decimals=1),
        lambda m, x: m.cat([m.tensor([]), x, m.tensor([])], dim=1),
        lambda m, x: m.cat((m.tensor([], dtype=m.float64), x.float())),
        lambda m, x: m.nn.functional.one_hot((x > 0).long()),
    ):
        same(call(eg, eg.tensor(X)), call(torch, torch.tensor(X)))
