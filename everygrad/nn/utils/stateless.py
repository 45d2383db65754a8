"""Modules as functions of their parameters, for `grad`, `vmap` and ensembles of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.core.context import intercepted, tracing
from everygrad.core.nearest import answering as _answering
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn.module import Module
from everygrad.ops.shape.joining import stack

State = Mapping[str, Any]


def _places(module: Module) -> dict[str, list[tuple[Module, str]]]:
    """Where each parameter and buffer is: one that is shared is in several places."""
    found: dict[str, list[tuple[Module, str]]] = {}
    by_tensor: dict[int, list[tuple[Module, str]]] = {}
    for at, child in module._walk():
        held = [*child._own(Tensor)]
        for name, value in held:
            places = by_tensor.setdefault(id(value), [])
            places.append((child, name))
            found[f"{at}.{name}" if at else name] = places
    return found


@contextmanager
def swapped(module: Module, state: State, tie_weights: bool = True) -> Iterator[None]:
    """Within the block the module holds these tensors in place of its own."""
    places = _places(module)
    own = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    for name, value in state.items():
        if name not in places:
            near = ", ".join(get_close_matches(name, own)) or "none is near"
            raise ArgumentError(
                f"functional_call: {type(module).__name__} has no {name!r}; nearest: {near}"
            )
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"functional_call: {name!r} must be a Tensor, got {type(value).__name__}"
            )
    if intercepted() and (tracer := tracing.get()) is not None:
        for child in module.modules():  # as they are, not as they are in this block
            tracer.met(child)
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, value in state.items():
            spots = places[name] if tie_weights else [_own_place(module, name)]
            for child, attribute in spots:
                held = vars(child)
                before.append((held, attribute, held[attribute]))
                held[attribute] = value
        yield
    finally:
        for held, attribute, value in reversed(before):
            held[attribute] = value


def _own_place(module: Module, name: str) -> tuple[Module, str]:
    *path, last = name.split(".")
    return module.get_submodule(".".join(path)), last


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: State | Sequence[State],
    args: Any = (),
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """The module on `args`, with the given tensors in place of its parameters and buffers.

    The module itself does not change, so the call can be differentiated and mapped over them. What
    is not given is the module's own, unless `strict`. A tensor under one of the names of a shared
    parameter serves for all of them, unless `tie_weights` is False.

    >>> import everygrad as eg
    >>> layer = eg.nn.Linear(2, 1, bias=False)
    >>> loss = lambda p, x: eg.nn.functional_call(layer, p, x).sum()
    >>> eg.grad(loss)({"weight": eg.zeros((1, 2))}, eg.ones((3, 2)))["weight"]
    tensor([[3., 3.]])
    """
    given = parameter_and_buffer_dicts
    dicts = [given] if isinstance(given, Mapping) else list(given)
    state: dict[str, Any] = {}
    for one in dicts:
        if not isinstance(one, Mapping):
            raise ArgumentError(
                f"functional_call: takes a dict of tensors by name, got {type(one).__name__}"
            )
        if twice := state.keys() & one.keys():
            raise ArgumentError(f"functional_call: given twice: {', '.join(sorted(twice))}")
        state.update(one)
    if strict:
        own = [*dict(module.named_parameters()), *dict(module.named_buffers())]
        if missing := [name for name in own if name not in state]:
            raise ArgumentError(
                f"functional_call: missing: {', '.join(missing)}; strict=False takes the module's"
            )
    positional = args if isinstance(args, tuple) else (args,)
    with swapped(module, state, tie_weights):
        return module(*positional, **(kwargs or {}))


def stack_module_state(
    models: Sequence[Module],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters and the buffers of models of one kind, stacked along a first axis.

    `vmap` over both, and `functional_call` on one of the models, run them all at once.

    >>> import everygrad as eg
    >>> models = [eg.nn.Linear(2, 3) for _ in range(4)]
    >>> parameters, buffers = eg.nn.stack_module_state(models)
    >>> run = lambda p, x: eg.nn.functional_call(models[0], p, x)
    >>> eg.vmap(run, in_axes=(0, None))(parameters, eg.ones((5, 2))).shape
    (4, 5, 3)
    """
    held = list(models)
    if not held:
        raise ArgumentError("stack_module_state: needs one module or more, got none")
    first = held[0]
    if any(type(m) is not type(first) for m in held):
        kinds = ", ".join(sorted({type(m).__name__ for m in held}))
        raise ArgumentError(f"stack_module_state: modules must be of one class, got {kinds}")
    if len({m.training for m in held}) > 1:
        raise ArgumentError("stack_module_state: all must be in training mode, or none")
    parameters = {
        name: _stacked([dict(m.named_parameters())[name] for m in held])
        for name, _ in first.named_parameters()
    }
    buffers = {
        name: _stacked([dict(m.named_buffers())[name] for m in held])
        for name, _ in first.named_buffers()
    }
    return parameters, buffers


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Stacked as a leaf that is trained as they were."""
    with no_grad():
        out: Tensor = stack([t.detach() for t in tensors], axis=0)
    if all(t.requires_grad for t in tensors):
        out.requires_grad_()
    return out


def skip_init(module_cls: type[Module], *args: Any, **kwargs: Any) -> Module:
    """A module whose starting values are not to be relied on, because others will be loaded.

    Here they are drawn all the same.

    >>> import everygrad as eg
    >>> eg.nn.utils.skip_init(eg.nn.Linear, 2, 3)
    Linear(in_features=2, out_features=3, bias=True)
    """
    if not (isinstance(module_cls, type) and issubclass(module_cls, Module)):
        raise ArgumentError(f"skip_init: takes a class of modules, got {module_cls!r}")
    return module_cls(*args, **kwargs)


__getattr__ = _answering(__name__)
