"""Hooks of modules: around forward, and around what a backward pass brings through a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.autograd.graph import HookHandle
from everygrad.autograd.modes import recording
from everygrad.core.tensor import Tensor
from everygrad.ops.python.conversion import clone
from everygrad.ops.shape.joining import concat

KINDS = ("forward_pre", "forward", "backward_pre", "backward")


class Hook:
    """A user's function and how it wants to be called."""

    __slots__ = ("always_call", "function", "with_kwargs")

    def __init__(self, function: Any, with_kwargs: bool, always_call: bool) -> None:
        self.function = function
        self.with_kwargs = with_kwargs
        self.always_call = always_call

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class ModuleHooks:
    """The hooks of one module, by kind and handle."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[int, Any]] = {}

    def of(self, kind: str) -> list[Hook]:
        return list(self.kinds.get(kind, {}).values())

    @property
    def has_backward(self) -> bool:
        return bool(self.kinds.get("backward") or self.kinds.get("backward_pre"))

    def names(self) -> tuple[Any, ...]:
        """What a compiled function takes for granted: which hooks there are."""
        return tuple(part for kind in KINDS for part in (kind, *self.kinds.get(kind, ())))

    def add(
        self,
        module: Any,
        kind: str,
        hook: Callable[..., Any],
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> HookHandle:
        held = self.kinds.setdefault(kind, {})
        handle = _ModuleHook(held, module, self)
        before = dict(held)
        if prepend:
            held.clear()
        held[handle.id] = Hook(hook, with_kwargs, always_call)
        if prepend:
            held.update(before)
        self.note(module)
        return handle

    def note(self, module: Any) -> None:
        """Tell the module whether it has hooks, and compiled functions to look again."""
        vars(module)["_hooked"] = any(self.kinds.values())
        base: Any = next(c for c in type(module).__mro__ if "changes" in vars(c))
        base.changes += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleHooks:
        made = ModuleHooks()
        made.kinds = {kind: dict(held) for kind, held in self.kinds.items()}
        return made


class _ModuleHook(HookHandle):
    """Tells the module when its hook is taken away."""

    def __init__(self, hooks: dict[int, Any], module: Any, owner: ModuleHooks) -> None:
        super().__init__(hooks)
        self._module = module
        self._owner = owner

    def remove(self) -> None:
        super().remove()
        self._owner.note(self._module)


def _joint(tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One tensor that all of these go through, and what they are behind it.

    A hook of the one sees the gradients of all at once, and can replace them.
    """
    if len(tensors) == 1:
        one = clone(tensors[0])
        return one, [one]
    flat = [t.reshape(-1) for t in tensors]
    one = concat(flat, axis=0)
    parts: list[Tensor] = []
    start = 0
    for t in tensors:
        parts.append(one[start : start + t.size].reshape(t.shape).astype(t.dtype))
        start += t.size
    return one, parts


def _cut(g: Tensor, like: list[Tensor]) -> list[Tensor]:
    """The gradients of the tensors behind a joint one."""
    if len(like) == 1:
        return [g]
    parts, start = [], 0
    for t in like:
        parts.append(g[start : start + t.size].reshape(t.shape).astype(t.dtype))
        start += t.size
    return parts


def _glued(parts: list[Tensor], g: Tensor) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    out: Tensor = concat([p.reshape(-1).astype(g.dtype) for p in parts], axis=0)
    return out


class BackwardWatch:
    """One call of a module whose backward pass hooks look at."""

    def __init__(self, module: Any, hooks: ModuleHooks) -> None:
        self.module = module
        self.hooks = hooks
        self.inputs: list[Tensor | None] = []  # one for each positional argument
        self.outputs: list[Tensor | None] = []
        self.grad_output: tuple[Any, ...] = ()

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, behind a node of their own."""
        wanted = [isinstance(a, Tensor) and a.requires_grad and recording() for a in args]
        self.inputs = [a if w else None for a, w in zip(args, wanted, strict=True)]
        held = [a for a in self.inputs if a is not None]
        if not held:
            return args
        one, parts = _joint(held)
        one.register_hook(self._at_inputs)
        rest = iter(parts)
        return tuple(next(rest) if w else a for a, w in zip(args, wanted, strict=True))

    def leave(self, out: Any) -> Any:
        """The results, behind a node of their own."""
        several = isinstance(out, tuple | list)
        given = list(out) if several else [out]
        self.outputs = [t if isinstance(t, Tensor) and t.requires_grad else None for t in given]
        held = [t for t in self.outputs if t is not None]
        if not held:
            return out
        one, parts = _joint(held)
        one.register_hook(self._at_outputs)
        rest = iter(parts)
        made = [given[i] if t is None else next(rest) for i, t in enumerate(self.outputs)]
        if not several:
            return made[0]
        return type(out)(*made) if hasattr(out, "_fields") else type(out)(made)

    def _at_outputs(self, g: Tensor) -> Tensor | None:
        held = [t for t in self.outputs if t is not None]
        parts = _cut(g, held)
        changed = False
        for hook in self.hooks.of("backward_pre"):
            new = hook(self.module, self._placed(parts, self.outputs))
            if new is not None:
                parts, changed = _replaced(new, self.outputs, parts), True
        self.grad_output = self._placed(parts, self.outputs)
        if not any(t is not None for t in self.inputs):
            self._call(tuple(None for _ in self.inputs))
        return _glued(parts, g) if changed else None

    def _at_inputs(self, g: Tensor) -> Tensor | None:
        held = [t for t in self.inputs if t is not None]
        parts = _cut(g, held)
        changed = False
        for hook in self.hooks.of("backward"):
            new = hook(self.module, self._placed(parts, self.inputs), self.grad_output)
            if new is not None:
                parts, changed = _replaced(new, self.inputs, parts), True
        return _glued(parts, g) if changed else None

    def _call(self, grad_input: tuple[Any, ...]) -> None:
        for hook in self.hooks.of("backward"):
            hook(self.module, grad_input, self.grad_output)

    @staticmethod
    def _placed(parts: list[Tensor], places: list[Tensor | None]) -> tuple[Any, ...]:
        rest = iter(parts)
        return tuple(None if t is None else next(rest) for t in places)


def _replaced(new: Any, places: list[Tensor | None], parts: list[Tensor]) -> list[Tensor]:
    """What a hook returned in place of the gradients."""
    given = new if isinstance(new, tuple | list) else (new,)
    kept = [g for g, t in zip(given, places, strict=False) if t is not None]
    return [p if g is None else g for g, p in zip(kept, parts, strict=True)]
