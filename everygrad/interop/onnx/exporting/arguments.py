"""What `save_onnx` is given, looked at before anything is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everygrad.autograd.trees import flatten
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, MissingFileError
from everygrad.interop.onnx.exporting.writer import ONNX_TYPES
from everygrad.io.files import as_path

# what is added to sizes in the traces after the first; no two names change alike
CHANGES = ((1, 3), (3, 1), (2, 5), (5, 2), (1, 4), (4, 1))


def target_of(path: Any) -> Path:
    target = as_path(path, "save_onnx")
    if target.is_dir():
        raise ArgumentError(f"save_onnx: {target} is a folder; name a file")
    if not target.parent.is_dir():
        raise MissingFileError(f"save_onnx: there is no folder {target.parent} to put it into")
    return target


def tensors_of(inputs: Any) -> tuple[list[Tensor], Any]:
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list):
        kind = type(inputs).__name__
        raise ArgumentError(f"save_onnx: inputs is a {kind}; give the arguments as a tuple")
    leaves, tree = flatten((tuple(inputs), {}))
    seen: dict[int, int] = {}
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"save_onnx: input {i} is {leaf!r:.40} ({type(leaf).__name__}), which would be a "
                f"constant of the file; make it a tensor, or leave it to the function"
            )
        if id(leaf) in seen:
            raise ArgumentError(
                f"save_onnx: inputs {seen[id(leaf)]} and {i} are one tensor; give each its own"
            )
        if leaf.dtype not in ONNX_TYPES:
            raise ArgumentError(f"save_onnx: input {i} is {leaf.dtype}, which ONNX has no ops for")
        seen[id(leaf)] = i
    return leaves, tree


def checked_names(what: str, names: Any, count: int) -> list[str] | None:
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ArgumentError(f"save_onnx: {what} is {names!r}; give a list of names")
    found = list(names)
    if any(not isinstance(n, str) or not n for n in found) or len({*found}) != len(found):
        raise ArgumentError(f"save_onnx: {what} must be different, non-empty names, got {found}")
    if len(found) != count:
        raise ArgumentError(f"save_onnx: {what} has {len(found)} names for {count} tensors")
    return found


class Symbol(NamedTuple):
    """A named size: the size it was given, and the (input, axis) pairs that have it."""

    size: int
    places: list[tuple[int, int]]


def symbols_of(dynamic: Any, names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, Symbol]:
    if dynamic is None:
        return {}
    if not isinstance(dynamic, Mapping):
        raise ArgumentError(f'save_onnx: dynamic is {dynamic!r}; give {{"x": {{0: "batch"}}}}')
    found: dict[str, Symbol] = {}
    for name, axes in dynamic.items():
        if name not in names:
            raise ArgumentError(f"save_onnx: dynamic names {name!r}; the inputs are {list(names)}")
        if not isinstance(axes, Mapping):
            raise ArgumentError(
                f"save_onnx: dynamic[{name!r}] is {axes!r}; give {{axis: name of its size}}"
            )
        at = list(names).index(name)
        shape = tensors[at].shape
        for axis, symbol in axes.items():
            if type(axis) is not int or not -len(shape) <= axis < len(shape):
                raise ArgumentError(
                    f"save_onnx: dynamic[{name!r}] names axis {axis!r}; {name} has shape {shape}"
                )
            if not isinstance(symbol, str) or not symbol.isidentifier():
                raise ArgumentError(
                    f"save_onnx: dynamic[{name!r}][{axis}] is {symbol!r}; a size's name is a word"
                )
            size = shape[axis]
            known = found.setdefault(symbol, Symbol(size, []))
            if known.size != size:
                raise ArgumentError(
                    f"save_onnx: {symbol!r} is {known.size} and {size} in these inputs; give "
                    f"sizes that differ names that differ"
                )
            known.places.append((at, axis % len(shape)))
    if len(found) > len(CHANGES):
        raise ArgumentError(
            f"save_onnx: dynamic has {len(found)} names; at most {len(CHANGES)} can be told apart"
        )
    return found
