"""A Parameter: a tensor that a module owns and an optimiser changes."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError


class Parameter(Tensor):
    """A leaf tensor that a Module finds by itself when it is made an attribute.

    It takes the value of `data`, not its place in a graph.

    >>> import everygrad as eg
    >>> eg.nn.Parameter(eg.tensor([1.0, 2.0]))
    Parameter containing:
    tensor([1., 2.], requires_grad=True)
    """

    __slots__ = ()

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        if not isinstance(data, Tensor):
            raise ArgumentError(
                f"Parameter: takes a Tensor, got {type(data).__name__}; make one with eg.tensor()"
            )
        self._source = None
        self.rebind(data._data, None)
        self.requires_grad_(requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"

    def __copy__(self) -> Parameter:
        return Parameter(self, self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        # the value is shared, it never changes; the leaf is not, it belongs to one tensor
        made = Parameter(self, self.requires_grad)
        made.grad = None if self.grad is None else self.grad.detach().clone()
        return made
