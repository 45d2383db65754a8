"""Saved values put into live objects of the same structure, all of them or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np

from everygrad.core.nearest import differences
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn.module import Module
from everygrad.ops.python.creation import tensor

Change = tuple[Callable[[], Any], Callable[[], Any]]  # what does it, and what takes it back


def restore(live: Any, saved: Any, file: str) -> Any:
    """Give `live` what was saved; returns it. If it raises, nothing has changed."""
    plan = _Plan()
    plan.match(live, saved, "")
    plan.refuse(file)
    done: list[Change] = []
    try:
        for change in plan.changes:
            done.append(change)
            change[0]()
    except BaseException:
        for _, undo in reversed(done):
            undo()
        raise
    return live


class _Plan:
    """What has to change, and what does not fit: all of it is found before anything changes."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.shapes: list[str] = []
        self.kinds: list[str] = []

    def refuse(self, file: str) -> None:
        faults = [*differences(self.missing, self.unexpected), *self.shapes, *self.kinds]
        if faults:
            kind = ShapeError if self.shapes else ArgumentError
            raise kind(f"load: {file} does not fit: " + "; ".join(faults))

    def match(self, live: Any, saved: Any, name: str) -> None:
        if isinstance(live, Module):
            self._module(live, saved, name)
        elif isinstance(live, Tensor | np.ndarray):
            self._values(live, saved, name)
        elif callable(getattr(live, "load_state_dict", None)):
            before = live.state_dict()
            self.changes.append(
                (lambda: _take_up(live, saved, name), lambda: live.load_state_dict(before))
            )
        elif isinstance(live, MutableMapping | list | tuple) or _is_dataclass(live):
            self._container(live, saved, name)
        else:
            what = name or "into"
            self.kinds.append(f"{what} is a {type(live).__name__}, which cannot be changed")

    def _module(self, live: Module, saved: Any, name: str) -> None:
        if not isinstance(saved, Mapping):
            self._other_kind(live, saved, name)
            return
        faults = live.state_faults(saved)
        self.missing += [_joined(name, k) for k in faults.missing]
        self.unexpected += [_joined(name, k) for k in faults.unexpected]
        self.shapes += [f"{_joined(name, k)} {how}" for k, how in faults.shapes.items()]
        self.kinds += [f"{_joined(name, k)} {how}" for k, how in faults.kinds.items()]
        before = live.state_dict()
        self.changes.append(
            (lambda: live.load_state_dict(saved), lambda: live.load_state_dict(before))
        )

    def _values(self, live: Any, saved: Any, name: str) -> None:
        if not isinstance(saved, Tensor | np.ndarray):
            self._other_kind(live, saved, name)
        elif tuple(saved.shape) != tuple(live.shape):
            what = name or "the tensor"
            self.shapes.append(f"{what} has shape {tuple(saved.shape)}, not {tuple(live.shape)}")
        elif str(saved.dtype) != str(live.dtype):
            self.kinds.append(f"{name or 'the tensor'} is {saved.dtype}, not {live.dtype}")
        elif isinstance(live, Tensor):
            new, old = tensor(saved, live.dtype, live.device)._data, live._data
            self.changes.append(
                (lambda: live.rebind(new, live._node), lambda: live.rebind(old, live._node))
            )
        elif not live.flags.writeable:
            self.kinds.append(f"{name or 'the array'} cannot be written to")
        else:
            held, put = live.copy(), np.asarray(saved)
            self.changes.append((lambda: np.copyto(live, put), lambda: np.copyto(live, held)))

    def _container(self, live: Any, saved: Any, name: str) -> None:
        own = _children(live)
        if own is None:  # a list of plain values: as long as the saved one is
            if isinstance(saved, list):
                before = list(live)
                self.changes.append((lambda: _refill(live, saved), lambda: _refill(live, before)))
            else:
                self._other_kind(live, saved, name)
            return
        given = _children(saved, whole=True)
        if given is None or isinstance(live, list | tuple) != isinstance(saved, list | tuple):
            self._other_kind(live, saved, name)
            return
        if not own and isinstance(live, MutableMapping):
            own = dict.fromkeys(given)  # an empty dict takes what there is
        self.missing += [_joined(name, k) for k in own if k not in given]
        self.unexpected += [_joined(name, k) for k in given if k not in own]
        for key in own:
            if key in given:
                self._item(live, key, own[key], given[key], _joined(name, key))

    def _item(self, live: Any, key: Any, value: Any, saved: Any, name: str) -> None:
        if _is_live(value):
            self.match(value, saved, name)
        elif isinstance(live, MutableMapping | list):
            there = key in live if isinstance(live, MutableMapping) else True
            undo = (lambda: live.__setitem__(key, value)) if there else (lambda: live.pop(key))
            self.changes.append((lambda: live.__setitem__(key, saved), undo))
        elif _is_dataclass(live) and not type(live).__dataclass_params__.frozen:
            self.changes.append(
                (lambda: setattr(live, key, saved), lambda: setattr(live, key, value))
            )
        elif value != saved:
            self.kinds.append(
                f"{name} is {value!r} in a {type(live).__name__}, which cannot be changed to "
                f"{saved!r:.80}; use a list or a dict"
            )

    def _other_kind(self, live: Any, saved: Any, name: str) -> None:
        what = name or "the object"
        self.kinds.append(
            f"{what} is a {type(live).__name__} here and a {type(saved).__name__} in the file"
        )


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_live(value: Any) -> bool:
    """Whether something is changed in place rather than replaced."""
    return (
        isinstance(value, Tensor | np.ndarray | MutableMapping | list | tuple)
        or _is_dataclass(value)
        or callable(getattr(value, "load_state_dict", None))
    )


def _children(value: Any, whole: bool = False) -> dict[Any, Any] | None:
    """What is in a container by its key; None of a list of plain values, unless `whole`, and of
    what is no container."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list) and not whole and not any(_is_live(v) for v in value):
        return None
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if _is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return None


def _take_up(live: Any, saved: Any, name: str) -> None:
    try:
        live.load_state_dict(saved)
    except Exception as error:  # of whatever kind: it is raised again, with the place
        error.add_note(f"load: while {name or 'the object'}, a {type(live).__name__}, was restored")
        raise


def _refill(live: list[Any], values: list[Any]) -> None:
    live[:] = values


def _joined(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)
