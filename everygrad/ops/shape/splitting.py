"""Tensors taken apart along an axis and put side by side, by the names people know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.autograd.modes import RECORD, recording
from everygrad.core import shapes
from everygrad.core.tensor import Tensor, view, wrap
from everygrad.errors import ArgumentError, AxisError, ShapeError
from everygrad.ops.record import samples as s
from everygrad.ops.record.keywords import with_names
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.shape.joining import at_hand, concat, recorded_parts, split, stack

# --- apart ---------------------------------------------------------------------------------------


def _slices(op: str, x: Tensor, axis: int) -> tuple[Tensor, ...]:
    at = shapes.axis_index(axis, x.ndim, op)
    value = x.detach() if x._node is not None and recording() == RECORD else x
    if not at_hand(value):
        return tuple(part.squeeze(at) for part in split(x, 1, at))
    array, before = value._data, (slice(None),) * at
    parts = [wrap(array[(*before, i, ...)]) for i in range(array.shape[at])]
    made = parts if value is x else recorded_parts(x, parts, at, stack)
    return tuple([view(part, x) for part in made])


def _unstacked(x: Any, axis: int = 0) -> Any:
    return list(np.moveaxis(x, axis, 0))


@composite(
    torch="torch:unbind",
    reference=_unstacked,
    samples=lambda: iter((sample(s.real(3, 2)), sample(s.real(2, 2), axis=-1))),
    refuses=(refuse(AxisError, "unstack: axis 1 is out of range", s.real(3), axis=1),),
)
def unstack(x: Tensor, axis: int = 0, **names: Any) -> tuple[Tensor, ...]:
    """The slices along an axis, without it: `stack` undone."""
    if names:
        return with_names(unstack, names, x, axis)
    return _slices("unstack", x, axis)


@composite(
    torch="torch:unbind",
    reference=_unstacked,
    samples=lambda: iter((sample(s.real(2, 2), axis=1),)),
    refuses=(refuse(AxisError, "unbind: axis 1 is out of range", s.real(3), axis=1),),
)
def unbind(x: Tensor, axis: int = 0, **names: Any) -> tuple[Tensor, ...]:
    """`unstack` under PyTorch's name."""
    if names:
        return with_names(unbind, names, x, axis)
    return _slices("unbind", x, axis)


def _chunks(x: Any, chunks: int, axis: int = 0) -> Any:
    size = -(-x.shape[axis] // chunks)
    return np.split(x, range(size, x.shape[axis], size), axis)


@composite(
    torch="torch:chunk",
    reference=_chunks,
    samples=lambda: iter((sample(s.real(5, 2), 3), sample(s.real(2, 4), 2, axis=-1))),
    refuses=(
        refuse(ArgumentError, "chunk: the number of parts must be positive, got 0", s.real(3), 0),
        refuse(AxisError, "chunk: axis 1 is out of range", s.real(3), 2, axis=1),
    ),
)
def chunk(x: Tensor, chunks: int, axis: int = 0, **names: Any) -> list[Tensor]:
    """Parts of equal size, the last perhaps smaller: at most `chunks`, fewer where fewer do."""
    if names:
        return with_names(chunk, names, x, chunks, axis)
    at = shapes.axis_index(axis, x.ndim, "chunk")
    count = shapes.as_int(chunks, "chunk", "the number of parts")
    if count <= 0:
        raise ArgumentError(f"chunk: the number of parts must be positive, got {count}")
    size = -(-x.shape[at] // count)
    return split(x, size if size else [0] * count, at)


@composite(
    torch="torch:tensor_split",
    reference=lambda x, indices_or_sections, axis=0: np.array_split(x, indices_or_sections, axis),
    samples=lambda: iter(
        (
            sample(s.real(5), 3),
            sample(s.real(2, 4), (1, 3), axis=1),
            sample(s.real(4), [3, 1, 9]),
        )
    ),
    refuses=(
        refuse(ArgumentError, "tensor_split: the number of parts must be positive", s.real(3), 0),
        refuse(AxisError, "tensor_split: axis 1 is out of range", s.real(3), 2, axis=1),
    ),
)
def tensor_split(
    x: Tensor,
    indices_or_sections: int | Sequence[int],
    axis: int = 0,
    **names: Any,
) -> list[Tensor]:
    """So many parts, the first ones larger by one where it must be; or parts that end at indices.

    Indices are taken as in slices: an end before its start gives an empty part.
    """
    if names:
        return with_names(tensor_split, names, x, indices_or_sections, axis)
    at = shapes.axis_index(axis, x.ndim, "tensor_split")
    n = x.shape[at]
    if isinstance(indices_or_sections, Sequence):
        ends = shapes.as_shape(indices_or_sections, "tensor_split")
        bounds = list(zip((0, *ends), (*ends, n), strict=True))
        index = (slice(None),) * at
        return [x[(*index, slice(a, b))] for a, b in bounds]
    count = shapes.as_int(indices_or_sections, "tensor_split", "the number of parts")
    if count <= 0:
        raise ArgumentError(f"tensor_split: the number of parts must be positive, got {count}")
    return split(x, [n // count + (i < n % count) for i in range(count)], at)


# --- side by side --------------------------------------------------------------------------------


def _shaped(x: Tensor, rank: int) -> Tensor:
    """x with at least `rank` axes, put where NumPy puts them."""
    if x.ndim >= rank:
        return x
    if rank == 3:
        shape = {0: (1, 1, 1), 1: (1, *x.shape, 1), 2: (*x.shape, 1)}[x.ndim]
        return x.reshape(shape)
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _at_least(rank: int, tensors: tuple[Tensor, ...]) -> Any:
    made = tuple(_shaped(x, rank) for x in tensors)
    return made[0] if len(made) == 1 else made


def _rank_facts(reference: Any) -> dict[str, Any]:
    name = reference.__name__
    return {
        "reference": reference,
        "torch": f"torch:{name}",
        "samples": lambda: iter((sample(s.real()), sample(s.real(2)), sample(s.real(2, 2)))),
        "refuses": (refuse(ArgumentError, f"{name}: needs at least one tensor"),),
    }


def _some(op: str, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    if not tensors:
        raise ArgumentError(f"{op}: needs at least one tensor")
    return tuple(tensors)


@composite(**_rank_facts(np.atleast_1d))
def atleast_1d(*tensors: Tensor) -> Any:
    """With one axis at least; a tuple where several are given."""
    return _at_least(1, _some("atleast_1d", tensors))


@composite(**_rank_facts(np.atleast_2d))
def atleast_2d(*tensors: Tensor) -> Any:
    """With two axes at least, a vector as a row; a tuple where several are given."""
    return _at_least(2, _some("atleast_2d", tensors))


@composite(**_rank_facts(np.atleast_3d))
def atleast_3d(*tensors: Tensor) -> Any:
    """With three axes at least, a matrix as the first two; a tuple where several are given."""
    return _at_least(3, _some("atleast_3d", tensors))


def _stacking(reference: Any, *shapes_of: shapes.Shape) -> dict[str, Any]:
    def samples() -> Any:
        for shape in shapes_of:
            yield sample([s.real(*shape), s.real(*shape, seed=1)])

    name = reference.__name__
    return {
        "methods": (),
        "takes_list": True,
        "reference": reference,
        "torch": f"torch:{name}",
        "samples": samples,
        "refuses": (
            refuse(ArgumentError, f"{name}: needs at least one tensor", []),
            refuse(ShapeError, "concat: .* differ outside axis", [s.real(2, 2), s.real(1, 3, 2)]),
        ),
    }


@composite(**_stacking(np.hstack, (2,), (2, 1)))
def hstack(arrays: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the second axis, vectors along their only one."""
    xs = [_shaped(x, 1) for x in _some("hstack", list(arrays))]
    return concat(xs, axis=0 if xs[0].ndim == 1 else 1)


@composite(**_stacking(np.vstack, (2,), (1, 2)))
def vstack(arrays: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the first axis, vectors as rows."""
    return concat([_shaped(x, 2) for x in _some("vstack", list(arrays))], axis=0)


@composite(**_stacking(np.dstack, (2,), (2, 2)))
def dstack(arrays: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the third axis, after `atleast_3d`."""
    return concat([_shaped(x, 3) for x in _some("dstack", list(arrays))], axis=2)


@composite(
    torch="torch:ravel",
    reference=np.ravel,
    samples=lambda: iter((sample(s.real(2, 2)), sample(s.real()))),
)
def ravel(x: Tensor) -> Tensor:
    """All elements along one axis."""
    return x.reshape(-1)
