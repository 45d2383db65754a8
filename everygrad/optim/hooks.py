"""Functions of the user's that an optimiser calls: before and after a step, a save, a load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.autograd.graph import HookHandle
from everygrad.errors import ArgumentError

_KINDS = (
    *("step_pre", "step_post", "state_dict_pre", "state_dict_post"),
    *("load_state_dict_pre", "load_state_dict_post"),
)


class Hooks:
    """Hooks of six kinds, in the order in which they are called."""

    changes: int  # a compiled step calls the hooks there were when it was traced

    def _begin_hooks(self) -> None:
        self._hooks: dict[str, dict[int, Callable[..., Any]]] = {kind: {} for kind in _KINDS}

    def _called(self, kind: str) -> list[Callable[..., Any]]:
        return list(self._hooks[kind].values())

    def _register(self, kind: str, hook: Callable[..., Any], prepend: bool) -> HookHandle:
        if not callable(hook):
            raise ArgumentError(
                f"{type(self).__name__}.register_{kind}_hook: takes a function, "
                f"got {type(hook).__name__}"
            )
        hooks = self._hooks[kind]
        handle = _OptimizerHook(hooks, self)
        rest = list(hooks.items()) if prepend else []
        if prepend:
            hooks.clear()
        hooks[handle.id] = hook
        hooks.update(rest)
        self.changes += 1
        return handle

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(optimizer, args, kwargs)` before each step.

        It may return the arguments that `step` is to get, as (args, kwargs).
        """
        return self._register("step_pre", hook, False)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return self._register("step_post", hook, False)

    def register_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(optimizer)` before each `state_dict()`."""
        return self._register("state_dict_pre", hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(optimizer, state_dict)` after each `state_dict()`; what it returns, if
        anything, takes the place of the dict."""
        return self._register("state_dict_post", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(optimizer, state_dict)` before each load; what it returns, if anything, is
        loaded instead."""
        return self._register("load_state_dict_pre", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(optimizer)` after each load."""
        return self._register("load_state_dict_post", hook, prepend)


class _OptimizerHook(HookHandle):
    def __init__(self, hooks: dict[int, Any], owner: Hooks) -> None:
        super().__init__(hooks)
        self._owner = owner

    def remove(self) -> None:
        super().remove()
        self._owner.changes += 1
