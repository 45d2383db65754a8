"""The record of an op as dispatch and autograd see it: `ops.record` makes them, and knows more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from everygrad.compiler.facts import OpFacts

if TYPE_CHECKING:
    from everygrad.core.tensor import Tensor


class Op(OpFacts):
    """What is asked of every op, beside its facts."""

    inputs: tuple[str, ...]
    constant: bool = False  # the result never carries a derivative (comparisons, argmax)
    composed: bool = False  # no derivative of its own; that of its portable definition serves
    is_users: bool = False  # runs a user's own code, whose ops `autocast` looks at one by one

    def save(
        self, parents: Sequence[Any], payload: Any, inputs: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """The payloads that the derivative needs: (out, *inputs) with None for the others."""
        raise NotImplementedError

    def kept(self, wanted: Sequence[bool]) -> tuple[bool, ...]:
        """Which of (out, *inputs) `save` keeps where these inputs want a gradient."""
        raise NotImplementedError

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        """The gradient of each input, None where none is wanted."""
        raise NotImplementedError

    def jvp(
        self,
        out: Tensor,
        inputs: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        params: dict[str, Any],
    ) -> Tensor | None:
        """The tangent of the result, None where it is zero."""
        raise NotImplementedError

    def explain(self, inputs: Sequence[Tensor], params: dict[str, Any]) -> None:
        """Raise a named error if these inputs are at fault; called only after a failure."""
        raise NotImplementedError

    def portable(self, *inputs: Tensor, **params: Any) -> Tensor:
        """The op in terms of other ops."""
        raise NotImplementedError


class ElementwiseOp(Op):
    """What the fast paths of dispatch ask of an elementwise op."""

    body: Callable[..., Any]
    floats: frozenset[Any]  # NumPy's dtypes of inputs that need no conversion
    checks_integers = False  # whether `promote` looks at the values of integers
    keeps: tuple[bool, ...]  # which of (out, *inputs) some rule needs
    keep_table: tuple[tuple[bool, ...] | None, ...]  # of two inputs: by which want a gradient
    takes_exponent: bool = False  # whether they call it the exponent
    takes_alpha: bool = False  # whether PyTorch's calls may scale the second input

    def numpy_function(self, np_dtype: Any) -> Callable[..., Any]:
        """The body on NumPy arrays that all have this dtype."""
        raise NotImplementedError

    def promote(self, *values: Any) -> tuple[Tensor, ...]:
        """The inputs in one dtype that the op takes."""
        raise NotImplementedError
