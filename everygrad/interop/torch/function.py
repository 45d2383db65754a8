"""`eg.to_torch`: a function of ours as one of PyTorch's, with derivatives of any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import torch

from everygrad.autograd.api import grad
from everygrad.autograd.modes import enable_grad, no_grad
from everygrad.autograd.transforms.functional import vjp
from everygrad.autograd.trees import flatten, unflatten
from everygrad.backends.cpu.runtime.pool import is_sole_owner
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.torch.exchange import from_tensor
from everygrad.interop.torch.versions import torch_name
from everygrad.ops.record.spec import REGISTRY

pytree: Any = torch_name("torch.utils._pytree")

_from_dlpack: Any = torch.utils.dlpack.from_dlpack
Flat = Callable[..., Sequence[Tensor]]  # takes tensors and gives tensors


def as_torch_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `calls.to_torch` gives."""
    if not callable(function):
        raise ArgumentError(f"to_torch: takes a function, got {type(function).__name__}")

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, given = pytree.tree_flatten((args, kwargs))
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        made: list[Any] = []  # the structure of the results

        def flat(*tensors: Tensor) -> Sequence[Tensor]:
            filled = list(leaves)
            for i, t in zip(at, tensors, strict=True):
                filled[i] = t
            again, keywords = pytree.tree_unflatten(filled, given)
            results, tree = flatten(function(*again, **keywords))
            for r in results:
                if not isinstance(r, Tensor):
                    raise ArgumentError(
                        f"to_torch: the function returned a {type(r).__name__}; return tensors "
                        f"and containers of them"
                    )
            made[:] = [tree]
            return results

        results = _call(flat, *(leaves[i] for i in at))
        return unflatten(made[0], list(results))

    # Dynamo would trace into this library, op by op.
    disable: Any = torch.compiler.disable
    return disable(call)


class _Call(torch.autograd.Function):
    """One call of a flat function. PyTorch records the call of its derivative as another one."""

    @staticmethod
    def forward(ctx: Any, function: Flat, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        inputs = [from_tensor(t) for t in given]
        for i in wanted:
            inputs[i].requires_grad_()
        with enable_grad() if wanted else no_grad():
            results = list(function(*inputs))
        out = tuple(_given_away(t, inputs) for t in results)
        ctx.function, ctx.wanted, ctx.count = function, wanted, len(given)
        ctx.smooth = [k for k, t in enumerate(results) if t._node is not None]
        ctx.inputs = [inputs[i] for i in wanted]
        ctx.results = [results[k] for k in ctx.smooth]
        ctx.mark_non_differentiable(*(t for k, t in enumerate(out) if k not in ctx.smooth))
        # results too: a derivative may need them, and must notice that they were written to
        ctx.save_for_backward(*given, *out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        given = ctx.saved_tensors[: ctx.count]
        seeds = [gradients[k].contiguous() for k in ctx.smooth]
        found: list[Any] = [None] * ctx.count
        if not ctx.smooth:
            return (None, *found)
        if torch.is_grad_enabled():  # create_graph=True
            derivative = _derivative(ctx.function, ctx.wanted, ctx.smooth, ctx.count)
            made = _call(derivative, *given, *seeds)
        else:
            cotangents = [from_tensor(s) for s in seeds]
            pulled = grad(ctx.results, ctx.inputs, cotangents, retain_graph=True, allow_unused=True)
            made = [None if g is None else _given_away(g.detach(), cotangents) for g in pulled]
        for i, g in zip(ctx.wanted, made, strict=True):
            found[i] = g
        return (None, *found)


_call: Any = _Call.apply


def _derivative(function: Flat, wanted: list[int], smooth: list[int], count: int) -> Flat:
    """The gradients of some inputs, as a function of all inputs and of the results' gradients."""

    def pulled(*given: Tensor) -> Sequence[Tensor]:
        inputs, seeds = list(given[:count]), given[count:]

        def part(*some: Tensor) -> tuple[Tensor, ...]:
            filled = list(inputs)
            for i, t in zip(wanted, some, strict=True):
                filled[i] = t
            results = function(*filled)
            return tuple(results[k] for k in smooth)

        _, pull = vjp(part, *(inputs[i] for i in wanted))
        found: Sequence[Tensor] = pull(tuple(seeds))
        return found

    return pulled


def _given_away(t: Tensor, inputs: Sequence[Tensor]) -> torch.Tensor:
    """A result as PyTorch's, who may write to it: on its own memory if nobody else sees that."""
    array = t._data
    if type(array) is not np.ndarray:
        return _from_dlpack(t.detach(), copy=True)
    owned = array.flags.writeable and is_sole_owner(array)
    alone = refcount(t) <= _ONE_LIST and refcount(array) <= _ONE_TENSOR
    alone = alone or _is_computed(t)
    shares = any(
        type(x._data) is np.ndarray and np.may_share_memory(array, x._data) for x in inputs
    )
    return _from_dlpack(t.detach(), copy=None if owned and alone and not shares else True)


def _is_computed(t: Tensor) -> bool:
    """Whether the op behind a tensor made its memory: a view or another name did not."""
    if t._node is None or t._node.is_leaf:
        return False
    op: Any = t._node.op
    known = REGISTRY.get(op.name) is op
    return known and not op.move and not op.alias


def _known_alone() -> tuple[int, int]:
    """What refcount says, in `_given_away`, of a tensor in one list, and of its array."""

    class Holder:
        _data: Any

    def look(t: Any) -> tuple[int, int]:
        array = t._data
        return refcount(t), refcount(array)

    t = Holder()
    t._data = np.empty(1)
    results = [t]
    del t
    (found,) = tuple(look(t) for t in results)
    return found


_ONE_LIST, _ONE_TENSOR = map(calibrated, _known_alone())
