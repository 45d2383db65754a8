"""JAX's functions among ours: computed by JAX on the CPU, differentiated by `jax.vjp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from everygrad.autograd.modes import recording
from everygrad.autograd.transforms.function import Function
from everygrad.autograd.transforms.vmap import Batched
from everygrad.autograd.trees import flatten, unflatten
from everygrad.core.tensor import Tensor, wrap
from everygrad.dtypes import FROM_NP
from everygrad.errors import ArgumentError, DeviceError, DtypeError, FunctionError, TraceError
from everygrad.ops.python.creation import asarray


def wrap_jax(f: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX function as a function of tensors on the CPU, differentiable as often as JAX's is.

    Tensors among the arguments, in containers and keywords too, reach `f` as JAX arrays; its
    results come back as tensors in the same containers, all of one dtype. `vmap` of it is JAX's.
    Inside `jit` it is refused by name: there are no ops to look at; wrap `jax.jit(f)` instead.

    >>> import everygrad as eg
    >>> import jax.numpy as jnp  # doctest: +SKIP
    >>> eg.grad(eg.wrap_jax(lambda x: jnp.sin(x) * x))(eg.tensor(0.0))  # doctest: +SKIP
    tensor(0.)
    """
    if not callable(f):
        raise ArgumentError(f"wrap_jax: takes a JAX function, got {type(f).__name__}")
    try:
        import jax
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise ModuleNotFoundError("wrap_jax needs JAX: pip install jax", name="jax") from None
    name = str(getattr(f, "__name__", type(f).__name__))

    @wraps(f, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        inputs = [leaves[i] for i in places]
        if not inputs:
            raise ArgumentError(f"wrap_jax({name}): no tensor among the arguments")

        def flat(*arrays: Any) -> list[Any]:
            given = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                given[i] = array
            moved, keywords = unflatten(tree, given)
            found, call.tree = flatten(f(*moved, **keywords))
            if not found:
                raise FunctionError(f"wrap_jax({name}): returns nothing; return arrays")
            return found

        call = _Call(jax, name, flat)
        found = _called(call, inputs)
        return unflatten(call.tree, found)

    return wrapped


class _Call:
    """One call of a function of JAX arrays that returns a list of them."""

    def __init__(self, jax: Any, name: str, flat: Callable[..., list[Any]]) -> None:
        self.jax = jax
        self.name = name
        self.flat = flat
        self.tree: Any = None  # of the results
        self.pull: Any = None  # what JAX kept for the gradient, while someone may want it
        self.floating: list[int] = []  # which inputs have a derivative

    # --- to JAX and back -------------------------------------------------------------------------

    def array(self, x: Tensor) -> Any:
        if x.device != "cpu":
            raise DeviceError(
                f"wrap_jax({self.name}): takes tensors on the cpu, got one on {x.device}; "
                f'use x.to("cpu")'
            )
        try:
            held = x.detach().numpy()
        except TraceError:
            raise TraceError(
                f"wrap_jax({self.name}): inside jit, where no value is known; call it outside, "
                f"and wrap jax.jit of the function instead"
            ) from None
        made = self.jax.numpy.asarray(held)
        kept = np.asarray(made).dtype
        if kept != held.dtype:
            raise DtypeError(
                f"wrap_jax({self.name}): JAX makes {kept} of {held.dtype}; "
                f'jax.config.update("jax_enable_x64", True), or cast the tensor with astype()'
            )
        return made

    def tensor(self, result: Any) -> Tensor:
        array = np.asarray(result).copy()  # JAX's memory stays JAX's
        if array.dtype not in FROM_NP:
            raise FunctionError(
                f"wrap_jax({self.name}): a result is {type(result).__name__} of {array.dtype}; "
                f"results are arrays of numbers"
            )
        return asarray(array)

    # --- batches and derivatives -----------------------------------------------------------------

    def mapped(self, flags: Sequence[bool]) -> _Call:
        """The same for a batch along the first axis of the inputs flagged."""
        axes = tuple(0 if has else None for has in flags)
        return _Call(self.jax, self.name, self.jax.vmap(self.flat, in_axes=axes))

    def of_floating(self, arrays: Sequence[Any]) -> Callable[..., list[Any]]:
        """The function of the inputs that have a derivative, the others fixed."""

        def function(*some: Any) -> list[Any]:
            given = list(arrays)
            for i, array in zip(self.floating, some, strict=True):
                given[i] = array
            return self.flat(*given)

        return function

    def gradient(self, count: int) -> _Call:
        """(cotangents, inputs) to the gradients of the inputs that have one, as JAX sees it."""

        def flat(*arrays: Any) -> list[Any]:
            g, inputs = arrays[:count], arrays[count:]
            function = self.of_floating(inputs)
            _, pull = self.jax.vjp(function, *[inputs[i] for i in self.floating])
            return list(pull(list(g)))

        return _Call(self.jax, f"the gradient of {self.name}", flat)

    def tangent(self, count: int) -> _Call:
        """(tangents, inputs) to the tangents of the results. The gradient is linear in its
        cotangents: its own transpose, by `jax.vjp` again, is what a tangent goes through."""

        def flat(*arrays: Any) -> list[Any]:
            moves, inputs = arrays[:count], arrays[count:]
            function = self.of_floating(inputs)
            out, pull = self.jax.vjp(function, *[inputs[i] for i in self.floating])
            zeros = [self.jax.numpy.zeros_like(o) for o in out]
            _, back = self.jax.vjp(lambda g: tuple(pull(g)), zeros)
            return list(back(tuple(moves))[0])

        return _Call(self.jax, f"the tangent of {self.name}", flat)


def _called(call: _Call, inputs: Sequence[Tensor]) -> list[Tensor]:
    call.floating = [i for i, x in enumerate(inputs) if x.dtype.is_differentiable]
    out = JaxFunction.apply(*inputs, call=call)
    return [out] if isinstance(out, Tensor) else list(out)


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether no transformation is around the values."""
    return all(type(t._data) is np.ndarray for t in tensors)


def _run_batched(call: _Call, inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """The results, where an input is a batch of the innermost `vmap`; JAX maps over it."""
    batches = [x._data for x in inputs if isinstance(x._data, Batched)]
    if not batches:
        return None
    top = max(batches, key=lambda batch: batch.level)
    flags = [isinstance(x._data, Batched) and x._data.transform is top.transform for x in inputs]
    below = [x._data.value if has else x for x, has in zip(inputs, flags, strict=True)]
    found = _called(call.mapped(flags), below)
    return tuple(wrap(Batched(top.transform, out, top.place)) for out in found)


class JaxFunction(Function):
    """A call of JAX as one op of ours."""

    @staticmethod
    def forward(*inputs: Any, call: _Call) -> Any:
        made = _run_batched(call, inputs)
        if made is None:
            made = _run(call, inputs)
        return made[0] if len(made) == 1 else made

    @staticmethod
    def vjp(g: Any, out: Any, *inputs: Any, call: _Call) -> Any:
        gs = list(g) if isinstance(g, tuple) else [g]
        if recording() or call.pull is None or not _is_plain((*gs, *inputs)):
            # a higher derivative: the gradient is a call too
            found = _called(call.gradient(len(gs)), [*gs, *inputs])
        else:
            found = [call.tensor(d) for d in call.pull([call.array(one) for one in gs])]
        grads: list[Any] = [None] * len(inputs)
        for i, d in zip(call.floating, found, strict=True):
            grads[i] = d
        return tuple(grads)

    @staticmethod
    def jvp(tangents: Any, out: Any, *inputs: Any, call: _Call) -> Any:
        moves = [tangents[i] for i in call.floating]
        found = _called(call.tangent(len(moves)), [*moves, *inputs])
        return found[0] if isinstance(out, Tensor) else tuple(found)


def _run(call: _Call, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of JAX, and in `call.pull` what it keeps for their gradient."""
    arrays = [call.array(x) for x in inputs]
    if call.floating:
        function = call.of_floating(arrays)
        out, call.pull = call.jax.vjp(function, *[arrays[i] for i in call.floating])
    else:
        out = call.flat(*arrays)
    return tuple(map(call.tensor, out))
