"""Parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.python.inplace import assign
from everygrad.ops.shape.joining import concat


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters one after the other, as one vector; gradients go through.

    >>> import everygrad as eg
    >>> eg.nn.utils.parameters_to_vector(eg.nn.Linear(2, 3).parameters()).shape
    (9,)
    """
    held = list(parameters)
    if not held:
        raise ArgumentError("parameters_to_vector: needs one parameter or more, got none")
    out: Tensor = concat([p.reshape(-1) for p in held], axis=0)
    return out


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give parameters their values from one vector.

    >>> import everygrad as eg
    >>> layer = eg.nn.Linear(2, 1)
    >>> eg.nn.utils.vector_to_parameters(eg.tensor([1.0, 2.0, 3.0]), layer.parameters())
    >>> layer.bias.tolist()
    [3.0]
    """
    held = list(parameters)
    needed = sum(p.size for p in held)
    if vec.ndim != 1 or vec.shape[0] != needed:
        raise ShapeError(
            f"vector_to_parameters: {needed} numbers are needed, in one axis, got {vec.shape}"
        )
    start = 0
    for p in held:
        part = vec.detach()[start : start + p.size].reshape(p.shape)
        assign(p, part.astype(p.dtype), "vector_to_parameters")
        start += p.size
