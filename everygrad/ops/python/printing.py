"""How a tensor shows itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.autograd.transform_scope import outlived
from everygrad.backends import base
from everygrad.core.tensor import Tensor, Wrapped, stand_in
from everygrad.errors import ShapeError
from everygrad.ops.record.spec import give_methods

_DEFAULTS = ("float32", "int64", "bool")


def _values(x: Tensor) -> str:
    payload = stand_in(x)._data
    if (why := outlived(payload)) is not None:
        return f"<{why}>"
    if isinstance(payload, Wrapped) or x.device == "null":
        return f"<{type(payload).__name__} {list(x.shape)}>"
    array = base.get(x.device).to_numpy(payload)
    if str(array.dtype) == "bfloat16":
        array = array.astype(np.float32)
    with np.printoptions(precision=4, threshold=1000, edgeitems=3, linewidth=90, suppress=False):
        text = np.array2string(array, separator=", ", prefix="tensor(")
    return text if array.size else f"[], shape={list(x.shape)}"


def __repr__(self: Tensor) -> str:  # noqa: N807
    """The values, and what is not the default: dtype, device, place in the graph."""
    facts = []
    if str(self.dtype) not in _DEFAULTS or self.size == 0:
        facts.append(f"dtype={self.dtype}")
    if self.device != "cpu":
        facts.append(f"device={self.device!r}")
    node = stand_in(self)._node
    if node is not None:
        facts.append("requires_grad=True" if node.is_leaf else f"op={node.op.name}")
    return f"tensor({', '.join([_values(self), *facts])})"


def __format__(self: Tensor, spec: str) -> str:  # noqa: N807
    """A tensor of one element formats as its number."""
    return format(self.item(), spec) if spec and self.size == 1 else repr(self)


def _transpose(self: Tensor) -> Any:
    return self.matrix_transpose()


def _two_axes(self: Tensor) -> Any:
    """Of matrices alone, as in the Array API: of more axes NumPy turns all round, others two."""
    if len(self.shape) != 2:
        raise ShapeError(
            f"T: takes a matrix, got shape {self.shape}; use mT for the last two axes, "
            "permute_dims() for any order"
        )
    return self.matrix_transpose()


give_methods(
    __repr__=__repr__,
    __format__=__format__,
    T=property(_two_axes),
    mT=property(_transpose),
)
