"""Gradients that come of the handlers of ATen ops, by our own autograd, beside PyTorch's: what
`eg.from_torch` trains with. The samples are PyTorch's own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import everygrad as eg
from devtools.aten import samples
from everygrad.interop.torch.aten.table import HANDLERS
from everygrad.interop.torch.exchange import from_tensor
from everygrad.interop.torch.graph import Program, overload

NAMES = (
    *("abs", "acos", "acosh", "add", "addcdiv", "addcmul", "amax", "amin", "as_strided", "asinh"),
    *("atan2", "atanh", "bmm", "cat", "clamp", "clone", "constant_pad_nd", "copysign", "cumprod"),
    *("cumsum", "diag_embed", "diagonal", "diagonal_scatter", "div.floor_rounding", "erf", "exp"),
    *("div.no_rounding_mode", "expand", "expm1", "flip", "fmax", "fmod", "frac", "gather", "hypot"),
    *("index_add", "index_copy", "index_fill", "index_put", "index_reduce.amax", "index_select"),
    *("lerp", "lgamma", "linalg.vector_norm", "log1p", "logaddexp", "logcumsumexp", "logit"),
    *("logsumexp", "masked_fill", "masked_scatter", "max.reduction_with_dim", "maximum", "mean"),
    *("median", "min.binary", "mode", "mul", "nan_to_num", "nansum", "norm", "permute", "pow"),
    *("prod", "reciprocal", "remainder", "renorm", "repeat", "roll", "rsqrt", "rsub", "scatter"),
    *("scatter_add", "scatter_reduce.amax", "scatter_reduce.mean", "scatter_reduce.prod", "select"),
    *("select_scatter", "sigmoid", "sinc", "slice_scatter", "sort", "split_with_sizes", "sqrt"),
    *("squeeze", "stack", "std", "std_mean", "sub", "sum", "take", "tan", "tanh", "topk", "trapz"),
    *("tril", "unbind", "unfold", "unsqueeze", "var", "var_mean", "view", "where", "xlogy"),
)


@pytest.fixture(scope="module")
def table() -> dict[Any, Any]:
    """The decompositions that from_torch asks for: of what has no handler here."""
    found = torch.export.default_decompositions()
    kept = {op: HANDLERS.get(overload(op)) for op in list(found)}
    return {op: found[op] for op, handler in kept.items() if handler is None or handler.refused}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_pytorchs(name: str, table: dict[Any, Any]) -> None:
    checked = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        for label, function, tensors in samples.samples(name, torch.float64, 4, grad=True):
            wanted = [t for t in tensors if t.requires_grad]
            outs = [o for o in function(*tensors) if o.requires_grad]
            if not wanted or not outs:
                continue
            seeds = [torch.randn_like(o) for o in outs]
            want = torch.autograd.grad(outs, wanted, seeds, allow_unused=True)
            for got, expected in zip(_ours(function, tensors, seeds, table), want, strict=True):
                zeros = np.zeros(got.shape)
                found = zeros if got.grad is None else got.grad.numpy()
                given = zeros if expected is None else expected.numpy()
                np.testing.assert_allclose(found, given, rtol=1e-9, atol=1e-9, err_msg=label)
                checked += 1
    assert checked


def _ours(function: Any, tensors: Any, seeds: Any, table: dict[Any, Any]) -> list[eg.Tensor]:
    """Our tensors that stand for those that require a gradient, after a backward pass."""
    plain = [t.detach() for t in tensors]
    graph = make_fx(function, decomposition_table=table, tracing_mode="fake")(*plain)
    program = Program(graph)
    given = [from_tensor(t, copy=True) for t in tensors]
    leaves = [g.requires_grad_() for g, t in zip(given, tensors, strict=True) if t.requires_grad]
    held = {k: from_tensor(v, copy=True) for k, v in program.constants.items()}
    outs = [o for o in program(given, held) if o.requires_grad]
    sum((o * from_tensor(s)).sum() for o, s in zip(outs, seeds, strict=True)).backward()
    return leaves
