"""A function of ours and one of PyTorch: the same values, first and second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import everygrad as eg
from tests.support.checks import close, fitted, is_float

torch.set_num_threads(1)  # these arrays are tiny, and two test processes share the cores


def _listed(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple | list) else [out]


def _derivatives(outs: list[Any], leaves: list[Any], seeds: Any, moves: Any, grad: Any) -> Any:
    """Gradients of <outs, seeds>, and those of <gradients, moves>; None for what is unused."""
    first = grad(outs, leaves, seeds, create_graph=True, allow_unused=True)
    pairs = [(g, m) for g, m in zip(first, moves, strict=True) if g is not None]
    total = sum((g * m).sum() for g, m in pairs)
    if not pairs or not total.requires_grad:
        return first, [None] * len(leaves)
    return first, grad([total], leaves, [total * 0 + 1], allow_unused=True)


def beside(
    device: str,
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    *arrays: Any,
    tolerance: float = 1e-10,
) -> None:
    """Both on the same arrays; where a derivative is unused on one side it is 0 on the other."""
    given = [fitted(a, device) for a in arrays]
    xs = [eg.tensor(a, device=device, requires_grad=is_float(a)) for a in given]
    ts = [
        torch.tensor(
            a.astype(np.float64) if a.dtype == np.float32 else a, requires_grad=is_float(a)
        )
        for a in given
    ]
    got, want = _listed(ours(*xs)), _listed(theirs(*ts))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        close(g, w.detach().numpy(), tolerance, "values")
    mine = [g for g in got if g.dtype.is_differentiable and g.requires_grad]
    other = [w for w in want if w.dtype.is_floating_point and w.requires_grad]
    assert len(mine) == len(other)
    if not mine:
        return
    rng = np.random.default_rng(0)
    seeds = [rng.uniform(-1, 1, w.shape) for w in other]
    leaves, roots = [x for x in xs if x.requires_grad], [t for t in ts if t.requires_grad]
    moves = [rng.uniform(-1, 1, t.shape) for t in roots]
    found = _derivatives(
        mine,
        leaves,
        [eg.tensor(s, m.dtype, device) for s, m in zip(seeds, mine, strict=True)],
        [eg.tensor(m, x.dtype, device) for m, x in zip(moves, leaves, strict=True)],
        eg.autograd.grad,
    )
    asked = _derivatives(
        other,
        roots,
        [torch.tensor(s) for s in seeds],
        map(torch.tensor, moves),
        torch.autograd.grad,
    )
    for order, (ours_then, theirs_then) in enumerate(zip(found, asked, strict=True), 1):
        for g, w, t in zip(ours_then, theirs_then, roots, strict=True):
            g = np.zeros(t.shape) if g is None else g
            w = np.zeros(t.shape) if w is None else w.numpy(force=True)
            close(g, w, tolerance * 100**order, f"derivative {order}")


# --- PyTorch's versions of ops that it has under other names, or for one axis only ---------------


def _with_first(out: Any, axis: int, value: float, wanted: bool) -> Any:
    first = torch.full_like(out.narrow(axis, 0, 1) if out.shape[axis] else out, value)
    return torch.cat([first, out], axis) if wanted else out


def cumulative_sum(x: Any, dim: int = 0, include_initial: bool = False) -> Any:
    return _with_first(torch.cumsum(x, dim), dim, 0.0, include_initial)


def cumulative_prod(x: Any, dim: int = 0, include_initial: bool = False) -> Any:
    return _with_first(torch.cumprod(x, dim), dim, 1.0, include_initial)


def trapezoid(y: Any, x: Any = None, dx: float = 1.0, dim: int = -1) -> Any:
    return torch.trapezoid(y, dx=dx, dim=dim) if x is None else torch.trapezoid(y, x, dim=dim)


def scatter(
    x: Any, index: Any, source: Any, dim: int = 0, reduce: Any = None, include_self: bool = True
) -> Any:
    if reduce is None:
        return torch.scatter(x, dim, index, source)
    name = {"add": "sum", "mul": "prod"}.get(reduce, reduce)
    return torch.scatter_reduce(x, dim, index, source, name, include_self=include_self)


def bincount(x: Any, weights: Any, minlength: int = 0) -> Any:
    """PyTorch's own has no derivative."""
    size = max(minlength, int(x.max()) + 1)
    return torch.zeros(size, dtype=weights.dtype).index_add(0, x, weights)


def _together(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction of one axis as one of several: they are made one first."""

    def run(x: Any, *args: Any, dim: Any = None, keepdim: bool = False, **more: Any) -> Any:
        dims = range(x.ndim) if dim is None else dim if isinstance(dim, tuple) else (dim,)
        dims = [d % x.ndim for d in dims]
        kept = [d for d in range(x.ndim) if d not in dims]
        rows = x.permute(*kept, *dims).reshape(*[x.shape[d] for d in kept], -1)
        out = fn(rows, *args, dim=-1, **more)
        shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
        lead = list(out.shape[: out.ndim - len(kept)])
        return out.reshape(lead + shape) if keepdim else out

    return run


def _shares(fn: Any) -> Any:
    return lambda x, q, **more: fn(x, torch.tensor(q, dtype=x.dtype), **more)


quantile = _together(_shares(torch.quantile))
nanquantile = _together(_shares(torch.nanquantile))
median = _together(lambda x, dim: torch.median(x, dim).values)
nanmedian = _together(lambda x, dim: torch.nanmedian(x, dim).values)


def nanmax(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return torch.amax(torch.where(torch.isnan(x), -torch.inf, x), dim, keepdim)


def nanmin(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return torch.amin(torch.where(torch.isnan(x), torch.inf, x), dim, keepdim)


def repeat(x: Any, repeats: Any, dim: Any = None) -> Any:
    return torch.repeat_interleave(x, torch.as_tensor(repeats), dim)
