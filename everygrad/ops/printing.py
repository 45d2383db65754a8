"""How a tensor shows itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.autograd.transforms import outlived
from everygrad.backends import base
from everygrad.ops.spec import give_methods
from everygrad.tensor import Tensor, Wrapped

_DEFAULTS = ("float32", "int64", "bool")


def _values(x: Tensor) -> str:
    payload = x._data
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
    node = self._node
    if node is not None:
        facts.append("requires_grad=True" if node.is_leaf else f"op={node.op.name}")
    return f"tensor({', '.join([_values(self), *facts])})"


def __format__(self: Tensor, spec: str) -> str:  # noqa: N807
    """A tensor of one element formats as its number."""
    return format(self.item(), spec) if spec and self.size == 1 else repr(self)


def _transpose(self: Tensor) -> Any:
    return self.matrix_transpose()


give_methods(
    __repr__=__repr__,
    __format__=__format__,
    T=property(_transpose),
    mT=property(_transpose),
)
