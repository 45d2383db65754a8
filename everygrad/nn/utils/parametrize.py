"""Parameters that are functions of other parameters: `module.weight` is computed when read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.core.nearest import answering as _answering
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn.containers import ModuleDict, ModuleList
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.nn.utils.computed import compute, computed_names, keep
from everygrad.ops.python.inplace import assign

_cache: ContextVar[dict[tuple[int, str], Tensor] | None] = ContextVar("cached", default=None)


@contextmanager
def cached() -> Iterator[None]:
    """Within the block each parametrised tensor is computed once.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.parametrizations.weight_norm(eg.nn.Linear(2, 3))
    >>> with eg.nn.utils.parametrize.cached():
    ...     layer.weight is layer.weight
    True
    """
    token = _cache.set({}) if _cache.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _cache.reset(token)


class ParametrizationList(ModuleList):
    """The functions that make one tensor, and what they make it from: `original`, or
    `original0`, `original1`, ... where the first one takes several."""

    original: Any
    inputs: int

    def __init__(self, modules: list[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        self.inputs = 0
        before = original.detach()
        found: Any = before
        with no_grad():
            for module in reversed(modules):
                invert = getattr(module, "right_inverse", None)
                if invert is not None:
                    found = invert(found)
        if isinstance(found, Tensor):
            self.original = _same_kind(original, found)
        elif isinstance(found, tuple | list) and all(isinstance(t, Tensor) for t in found):
            self.inputs = len(found)
            for k, part in enumerate(found):
                setattr(self, f"original{k}", _same_kind(original, part))
        else:
            raise ArgumentError(
                f"register_parametrization: right_inverse must give a tensor or several, got "
                f"{type(found).__name__}"
            )
        if not unsafe:
            with no_grad():
                out = self()
            if not isinstance(out, Tensor):
                raise ArgumentError(
                    f"register_parametrization: a parametrisation must give a tensor, got "
                    f"{type(out).__name__}"
                )
            if (out.shape, out.dtype) != (before.shape, before.dtype):
                raise ShapeError(
                    f"register_parametrization: gives {out.dtype} {out.shape} in place of "
                    f"{before.dtype} {before.shape}; unsafe=True allows it"
                )

    def originals(self) -> list[Tensor]:
        """What the tensor is made from."""
        if not self.inputs:
            return [self.original]
        return [getattr(self, f"original{k}") for k in range(self.inputs)]

    def forward(self) -> Any:
        first, *rest = self._members()
        out = first(*self.originals())
        for module in rest:
            out = module(out)
        return out

    def right_inverse(self, value: Tensor) -> None:
        """Give the originals the values that make the tensor `value`."""
        with no_grad():
            found: Any = value
            for module in reversed(self._members()):
                invert = getattr(module, "right_inverse", None)
                if invert is None:
                    raise ArgumentError(
                        f"{type(module).__name__} has no right_inverse, so what it makes cannot be "
                        f"assigned"
                    )
                found = invert(found)
            parts = [found] if isinstance(found, Tensor) else list(found)
            for own, part in zip(self.originals(), parts, strict=True):
                if own.shape != part.shape:
                    raise ShapeError(
                        f"right_inverse: gives {part.shape} for an original of {own.shape}"
                    )
            for own, part in zip(self.originals(), parts, strict=True):
                assign(own, part.astype(own.dtype), "right_inverse")


def _same_kind(original: Tensor, value: Tensor) -> Tensor:
    if isinstance(original, Parameter):
        return Parameter(value, original.requires_grad)
    return value


def _value(module: Any, name: str) -> Any:
    made = module.parametrizations[name]
    cache = _cache.get()
    if cache is None:
        return made()
    key = (id(module), name)
    if key not in cache:
        cache[key] = made()
    return cache[key]


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Let `module.tensor_name` be parametrization(original) from now on; returns the module.

    The parameter becomes `parametrizations.<name>.original`. A parametrisation with a
    `right_inverse` decides what the original is, and lets the tensor be assigned. Several are
    applied one after the other.

    >>> import everygrad as eg
    >>> class Positive(eg.nn.Module):
    ...     def forward(self, x):
    ...         return eg.exp(x)
    >>> layer = eg.nn.Linear(2, 1, bias=False)
    >>> layer = eg.nn.utils.parametrize.register_parametrization(layer, "weight", Positive())
    >>> bool((layer.weight > 0).all()), list(layer.state_dict())
    (True, ['parametrizations.weight.original'])
    """
    if not isinstance(parametrization, Module):
        raise ArgumentError(
            f"register_parametrization: takes a Module, got {type(parametrization).__name__}"
        )
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        _add(module, tensor_name, parametrization, unsafe)
        return module
    original = vars(module).get(tensor_name)
    if not isinstance(original, Tensor):
        held = ", ".join(n for n, _ in module._own(Tensor)) or "none"
        raise ArgumentError(
            f"register_parametrization: {type(module).__name__} has no tensor {tensor_name!r}; "
            f"there are: {held}"
        )
    owner: Any = module
    buffer = module._buffers.get(tensor_name)
    made = ParametrizationList([parametrization], original, unsafe)
    if buffer is not None:
        for name in [n for n, _ in made._own(Tensor)]:
            value = vars(made)[name]
            del vars(made)[name]
            made.register_buffer(name, value, buffer)
    delattr(module, tensor_name)
    if "parametrizations" not in vars(module):
        owner.parametrizations = ModuleDict()
    owner.parametrizations[tensor_name] = made
    compute(
        module,
        tensor_name,
        lambda self: _value(self, tensor_name),
        lambda self, value: self.parametrizations[tensor_name].right_inverse(value),
    )
    return module


def _add(module: Any, name: str, parametrization: Module, unsafe: bool) -> None:
    """One more function behind those there are; originals become what they must be."""
    held = module.parametrizations[name]
    with no_grad():
        before = held()
        invert = getattr(parametrization, "right_inverse", None)
        inner = before if invert is None else invert(before)
        after = parametrization(inner)
    if not unsafe and (after.shape, after.dtype) != (before.shape, before.dtype):
        raise ShapeError(
            f"register_parametrization: gives {after.dtype} {after.shape} in place of "
            f"{before.dtype} {before.shape}; unsafe=True allows it"
        )
    if invert is not None:
        held.right_inverse(inner)
    held.append(parametrization)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has parametrisations, or one of this name.

    >>> import everygrad as eg
    >>> eg.nn.utils.parametrize.is_parametrized(eg.nn.Linear(2, 3))
    False
    """
    held = vars(module).get("parametrizations")
    if not isinstance(held, ModuleDict) or not len(held):
        return False
    return tensor_name is None or tensor_name in held


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Make a parameter plain again, with the value it is computed to, or with its original.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.parametrizations.weight_norm(eg.nn.Linear(2, 3))
    >>> layer = eg.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    >>> sorted(layer.state_dict())
    ['bias', 'weight']
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(
            f"remove_parametrizations: {type(module).__name__} has no parametrised {tensor_name!r}"
        )
    held: Any = vars(module)["parametrizations"]
    made = held[tensor_name]
    if leave_parametrized:
        with no_grad():
            value = made()
    elif made.inputs:
        raise ArgumentError(
            f"remove_parametrizations: {tensor_name!r} is made of {made.inputs} tensors, none of "
            f"which has its shape; pass leave_parametrized=True"
        )
    else:
        value = made.original
    first = made.originals()[0]
    keep(module, tensor_name)
    del held[tensor_name]
    if not len(held):
        delattr(module, "parametrizations")
    if isinstance(first, Parameter):
        setattr(module, tensor_name, Parameter(value.detach(), first.requires_grad))
    else:
        module.register_buffer(tensor_name, value.detach())
    return module


def type_before_parametrizations(module: Module) -> type[Module]:
    """The class a module had before anything of it was computed.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.parametrizations.weight_norm(eg.nn.Linear(2, 3))
    >>> eg.nn.utils.parametrize.type_before_parametrizations(layer).__name__
    'Linear'
    """
    cls: type[Module] = getattr(type(module), "uncomputed", type(module))
    return cls


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give a module the parametrisations of another, and the parameters they are made from.

    >>> import everygrad as eg
    >>> one = eg.nn.utils.parametrizations.weight_norm(eg.nn.Linear(2, 3))
    >>> two = eg.nn.utils.parametrize.transfer_parametrizations_and_params(one, eg.nn.Linear(2, 3))
    >>> eg.nn.utils.parametrize.is_parametrized(two, "weight")
    True
    """
    if not is_parametrized(from_module, tensor_name):
        raise ArgumentError(
            f"transfer_parametrizations_and_params: {type(from_module).__name__} has no such "
            f"parametrisation"
        )
    source: Any = vars(from_module)["parametrizations"]
    for name in [tensor_name] if tensor_name is not None else list(source.keys()):
        if name in computed_names(to_module):
            raise ArgumentError(
                f"transfer_parametrizations_and_params: {name!r} of {type(to_module).__name__} is "
                f"parametrised already"
            )
        for module in source[name]:
            register_parametrization(to_module, name, module, unsafe=True)
        target: Any = vars(to_module)["parametrizations"]
        for own, other in zip(target[name].originals(), source[name].originals(), strict=True):
            with no_grad():
                assign(own, other.detach(), "transfer_parametrizations_and_params")
    return to_module


__getattr__ = _answering(__name__)
