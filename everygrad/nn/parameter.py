"""Tensors that a module owns: parameters, which an optimiser changes, and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.python.creation import empty


class OtherRanks(Protocol):
    """What the ranks that have parts of parameters, or of a model, do together; all of them call
    it. `parts`: of parameters; else there are whole ones here, and others on other ranks."""

    parts: bool

    def clip_grad_norm(
        self, parts: Sequence[Tensor], max_norm: float, norm_type: float, check: bool
    ) -> Tensor:
        """Scale gradients by the norm of all parts' gradients; returns that norm."""

    def on_any(self, parts: Sequence[Tensor], found: Tensor) -> Tensor:
        """Whether a 0-d bool is true on any of these ranks."""


def other_ranks(parameters: Iterable[Tensor]) -> OtherRanks | None:
    """Who has the rest, where one of these is a part of a parameter."""
    given = (p.others for p in parameters if isinstance(p, Parameter))
    return next((others for others in given if others is not None), None)


class Parameter(Tensor):
    """A leaf tensor that a Module finds by itself when it is made an attribute.

    It takes the value of `data`, not its place in a graph.

    >>> import everygrad as eg
    >>> eg.nn.Parameter(eg.tensor([1.0, 2.0]))
    Parameter containing:
    tensor([1., 2.], requires_grad=True)
    """

    __slots__ = ("_others",)
    _others: OtherRanks | None

    @property
    def others(self) -> OtherRanks | None:
        """Where this is a part of a parameter, or in a part of a model: who has the rest."""
        return getattr(self, "_others", None)

    @others.setter
    def others(self, others: OtherRanks | None) -> None:
        self._others = others

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


class Buffer(Tensor):
    """A tensor that becomes a module's buffer when it is made an attribute.

    >>> import everygrad as eg
    >>> layer = eg.nn.Module()
    >>> layer.seen = eg.nn.Buffer(eg.zeros((2,)))
    >>> list(layer.state_dict())
    ['seen']
    """

    __slots__ = ("persistent",)

    def __init__(self, data: Tensor, *, persistent: bool = True) -> None:
        if not isinstance(data, Tensor):
            raise ArgumentError(
                f"Buffer: takes a Tensor, got {type(data).__name__}; make one with eg.tensor()"
            )
        self._source = None
        self.rebind(data._data, None)
        self.persistent = persistent

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        return Buffer(self, persistent=self.persistent)


class UninitializedParameter(Parameter):
    """The place of a parameter whose shape the first input decides: see the lazy modules.

    >>> import everygrad as eg
    >>> eg.nn.UninitializedParameter()
    <UninitializedParameter>
    """

    __slots__ = ()

    def __init__(
        self, requires_grad: bool = True, device: str | None = None, dtype: Any = None
    ) -> None:
        # no elements: it knows its dtype and device, and what moves a module moves it too
        super().__init__(empty((0,), dtype, device), requires_grad)

    def materialize(self, shape: Sequence[int]) -> Parameter:
        """A parameter of this shape, without values yet, for the same place."""
        return Parameter(empty(tuple(shape), self.dtype, self.device), self.requires_grad)

    def __repr__(self) -> str:
        return "<UninitializedParameter>"

    def __deepcopy__(self, memo: dict[int, Any]) -> UninitializedParameter:
        return UninitializedParameter(self.requires_grad, self.device, self.dtype)


class UninitializedBuffer(Buffer):
    """The place of a buffer whose shape the first input decides.

    >>> import everygrad as eg
    >>> eg.nn.UninitializedBuffer()
    <UninitializedBuffer>
    """

    __slots__ = ()

    def __init__(self, device: str | None = None, dtype: Any = None) -> None:
        super().__init__(empty((0,), dtype, device))

    def __repr__(self) -> str:
        return "<UninitializedBuffer>"

    def __deepcopy__(self, memo: dict[int, Any]) -> UninitializedBuffer:
        return UninitializedBuffer(self.device, self.dtype)
