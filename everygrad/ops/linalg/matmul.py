"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from everygrad import dtypes
from everygrad.amp.policy import policy, whole
from everygrad.compiler import costs
from everygrad.compiler.facts import Gemm
from everygrad.core import shapes
from everygrad.core.tensor import Tensor, shared, wrap
from everygrad.dispatch import apply, operands
from everygrad.errors import DtypeError, ShapeError
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import (
    REGISTRY,
    composite,
    give_methods,
    refuse,
    register,
    sample,
)
from everygrad.ops.record.splits import linear_axes, linear_weight_axes, matmul_axes


def _portable(x: Tensor, y: Tensor) -> Tensor:
    """Every pair of a row and a column, multiplied and summed."""
    return (x.expand_dims(-1) * y.expand_dims(-3)).sum(axis=-2).astype(x.dtype)


def _transposed(x: Tensor) -> Tensor:
    payload = shared(x)
    if x._node is None and type(payload) is ndarray and payload.dtype.kind != "c":
        return wrap(payload.swapaxes(-1, -2))  # nothing to record: a view is enough
    return x.matrix_transpose().conj() if x.dtype.is_complex else x.matrix_transpose()


def _result(x: Any, y: Any) -> tuple[shapes.Shape, dtypes.DType]:
    if x.shape[-1] != y.shape[-2]:
        raise ValueError("inner sizes differ")  # the record's `explain` has the words
    batch = shapes.broadcast("matmul", x.shape[:-2], y.shape[:-2])
    return (*batch, x.shape[-2], y.shape[-1]), x.dtype


class _Matmul(Kernel):
    """A batch of matrices times one matrix is a single product of taller matrices."""

    def explain(self, inputs: Sequence[Tensor], params: dict[str, Any]) -> None:
        x, y = inputs
        _check(x.shape, y.shape, x)
        shapes.broadcast("matmul", x.shape[:-2], y.shape[:-2])

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        x, y = self.restore(node, create_graph)[1:]
        px, py = node.parents
        dx = dy = None
        rank = y.ndim if py is None else len(py.shape)
        plain = rank == 2 and not g.dtype.is_complex  # y is one matrix, in all rows' products
        if px is not None:
            dx = apply(LINEAR, g, y) if plain else apply(MATMUL, g, _transposed(y))
        if py is not None:
            dy = apply(LINEAR_WEIGHT, x, g) if plain else apply(MATMUL, _transposed(x), g)
        return [dx, dy]

    def batched(
        self, values: Sequence[Tensor], flags: Sequence[bool], size: int, params: dict[str, Any]
    ) -> Tensor:
        """The batch axis stands in front of the axes that broadcast; unbatched sides stay small."""
        rank = max(v.ndim - has for v, has in zip(values, flags, strict=True))
        aligned = [
            v.reshape((size, *(1,) * (rank + 1 - v.ndim), *v.shape[1:])) if has else v
            for v, has in zip(values, flags, strict=True)
        ]
        return apply(MATMUL, *aligned)


MATMUL: Kernel = _Matmul(
    "matmul",
    _portable,
    ("x", "y"),
    (lambda g, y: g, lambda g, x: g),
    linear=(0, 1),
    result=_result,
    precision="low",
    flops=costs.product,
    gemm=Gemm.PLAIN,
    splits=matmul_axes,
)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """The matrix product. Vectors count as a row on the left and a column on the right; leading
    axes broadcast.

    >>> import everygrad as eg
    >>> (eg.ones((2, 3)) @ eg.ones((3, 4))).shape
    (2, 4)
    """
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.dtype is y.dtype):
        x, y = operands("matmul", x, y)
    a, b = x.shape, y.shape
    if len(a) > 1 and len(b) > 1 and a[-1] == b[-2] and x.dtype is not dtypes.bool_:
        return apply(MATMUL, x, y)
    _check(a, b, x)
    if len(a) == 1:
        x = _viewed(x, (1, *a))
    if len(b) == 1:
        y = _viewed(y, (*b, 1))
    out = apply(MATMUL, x, y)
    if len(a) > 1 and len(b) > 1:
        return out
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return _viewed(out, (*out.shape[:-2], *rows, *columns))


def _viewed(x: Tensor, shape: shapes.Shape) -> Tensor:
    """x with an axis of size 1 more or fewer."""
    payload = shared(x)
    if x._node is None and type(payload) is ndarray:
        return wrap(payload.reshape(shape))  # nothing to record: a view is enough
    return x.reshape(shape)


def _check(a: shapes.Shape, b: shapes.Shape, x: Tensor) -> None:
    if not a or not b:
        raise ShapeError(f"matmul: {a} @ {b}: a 0-d tensor is no matrix; use *")
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise ShapeError(f"matmul: {a} @ {b}: inner sizes {a[-1]} and {inner} differ")
    if x.dtype is dtypes.bool_:
        raise DtypeError("matmul: does not take bool; cast with astype()")


register(
    MATMUL,
    matmul,
    methods=("matmul", "__matmul__"),
    careful=True,
    reference=np.matmul,
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(3, 4)),
            sample(s.real(3), s.real(3, seed=1)),
            sample(s.real(3), s.real(3, 2)),
            sample(s.real(2, 3), s.real(3)),
            sample(s.real(4, 2, 3), s.real(3, 2)),
            sample(s.real(2, 3), s.real(4, 3, 2)),
            sample(s.real(2, 1, 2, 3), s.real(4, 3, 2)),
            sample(s.real(3), s.real(2, 3, 2)),
            sample(s.real(0, 3), s.real(3, 2)),
            sample(s.real(2, 0), s.real(0, 3)),
        )
    ),
    refuses=(
        refuse(
            ShapeError,
            r"matmul: \(3, 4\) @ \(5, 6\): inner sizes 4 and 5 differ",
            s.real(3, 4),
            s.real(5, 6),
        ),
        refuse(ShapeError, "a 0-d tensor is no matrix", s.real(), s.real(3)),
        refuse(
            ShapeError,
            r"matmul: cannot broadcast \(2,\) with \(3,\)",
            s.real(2, 2, 2),
            s.real(3, 2, 2),
        ),
        refuse(DtypeError, "matmul: does not take bool", s.booleans(2, 2), s.booleans(2, 2)),
        refuse(DtypeError, "matmul: takes tensors, got str", s.real(2, 2), "a"),
    ),
)


# --- linear: x @ weight^T, as layers have it -----------------------------------------------------


def _weight_portable(v: Tensor, x: Tensor) -> Tensor:
    rows = shapes.size_of(x.shape[:-1])
    flat = v.reshape(rows, v.shape[-1])
    return apply(MATMUL, _transposed(flat), x.reshape(rows, x.shape[-1]))


# not a transpose and a matmul: the weight's gradient would come out transposed in memory, and every
# optimiser step would pay for that
LINEAR: Kernel = Kernel(
    "linear",
    lambda x, w: matmul(x, w.matrix_transpose()),
    ("x", "w"),
    (lambda g, w: apply(MATMUL, g, w), lambda g, x: apply(LINEAR_WEIGHT, g, x)),
    linear=(0, 1),
    result=lambda x, w: ((*x.shape[:-1], w.shape[0]), x.dtype),
    precision="low",
    flops=costs.product,
    gemm=Gemm.TRANSPOSED,
    splits=linear_axes,
)
# v^T @ x, summed over all rows: with matmul and linear, each one's derivatives are the others
LINEAR_WEIGHT: Kernel = Kernel(
    "linear_weight",
    _weight_portable,
    ("v", "x"),
    (lambda g, x: apply(LINEAR, x, g), lambda g, v: apply(MATMUL, v, g)),
    linear=(0, 1),
    precision="low",
    flops=costs.weight_product,
    splits=linear_weight_axes,
)


class _LinearBias(Kernel):
    """Its rules, without what makes them from values by their names: every layer has one."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        _, x, w, _ = self.restore(node, create_graph)
        to_x, to_w, to_b = node.parents
        return [
            None if to_x is None else apply(MATMUL, g, w),
            None if to_w is None else apply(LINEAR_WEIGHT, g, x),
            None if to_b is None else _bias_gradient(g),
        ]


def _bias_gradient(g: Tensor) -> Tensor:
    return apply(REGISTRY["sum"], g, axes=tuple(range(g.ndim - 1)), keepdims=False)


# one op, so that a backend may add the bias while the product is at hand; compilers see two
LINEAR_BIAS: Kernel = _LinearBias(
    "linear_bias",
    lambda x, w, b: apply(LINEAR, x, w) + b,
    ("x", "w", "b"),
    (lambda g, w: g, lambda g, x: g, lambda g: g),
    precision="low",
    flops=costs.product,
    splits=linear_axes,
)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight^T for x of two or more dimensions and a weight (out features, in features)."""
    if weight.ndim != 2 or x.ndim < 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: a weight (out, in) of shape {weight.shape} does not take x of {x.shape}"
        )
    if x._data.dtype is not weight._data.dtype:
        x, weight = operands("linear", x, weight)
    if x.dtype.is_complex:
        return matmul(x, weight.matrix_transpose())
    return apply(LINEAR, x, weight)


register(
    LINEAR,
    linear,
    reference=lambda x, w: x @ w.T,
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(4, 3, seed=1)),
            sample(s.real(2, 2, 3), s.real(1, 3, seed=1)),
            sample(s.real(0, 3), s.real(2, 3)),
        )
    ),
    refuses=(
        refuse(
            ShapeError, r"linear: a weight .* \(4, 2\) does not take", s.real(2, 3), s.real(4, 2)
        ),
    ),
)


register(
    LINEAR_WEIGHT,
    lambda v, x: apply(LINEAR_WEIGHT, v, x),
    reference=lambda v, x: v.reshape(-1, v.shape[-1]).T @ x.reshape(-1, x.shape[-1]),
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(4, 2), s.real(4, 3, seed=1)),
            sample(s.real(2, 2, 3), s.real(2, 2, 1, seed=1)),
            sample(s.real(0, 3), s.real(0, 2)),
        )
    ),
)


def linear_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight^T + bias, of tensors that fit."""
    dtype, wanted = x._data.dtype, weight.shape
    same = dtype is weight._data.dtype is bias._data.dtype
    if not same and policy() is not None:
        return _linear_bias_as_one(x, weight, bias)
    if not same or dtype.kind == "c" or bias.shape != wanted[:1]:
        return linear(x, weight) + bias
    if len(wanted) != 2 or x.ndim < 2 or x.shape[-1] != wanted[1]:
        return linear(x, weight)  # which says what is wrong
    return apply(LINEAR_BIAS, x, weight, bias)


_linear_bias_as_one = whole("linear_bias", linear_bias)

register(
    LINEAR_BIAS,
    linear_bias,
    reference=lambda x, w, b: x @ w.T + b,
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(4, 3, seed=1), s.real(4, seed=2)),
            sample(s.real(2, 2, 3), s.real(1, 3, seed=1), s.real(1, seed=2)),
            sample(s.real(0, 3), s.real(2, 3), s.real(2)),
        )
    ),
    refuses=(
        refuse(
            ShapeError,
            r"linear: a weight .* \(4, 2\) does not take",
            s.real(2, 3),
            s.real(4, 2),
            s.real(4),
        ),
    ),
)


def _rmatmul(self: Tensor, other: Any) -> Tensor:
    return matmul(*operands("matmul", other, self))


give_methods(__rmatmul__=_rmatmul)


@composite(
    scalar_rows="row",
    reference="tests.support.references.basic:vecdot",
    samples=lambda: iter(
        (
            sample(s.real(3), s.real(3, seed=1)),
            sample(s.real(2, 3), s.real(3)),
            sample(s.real(3, 2), s.real(3, 2, seed=1), axis=0),
        )
    ),
    refuses=(
        refuse(ShapeError, "vecdot: cannot broadcast", s.real(2), s.real(3)),
        refuse(ShapeError, "vecdot: along axis -1 x has 1 elements and y 3", s.real(1), s.real(3)),
    ),
)
def vecdot(x: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """The sum of products along an axis of one size in both, x conjugated if complex."""
    shape = shapes.broadcast("vecdot", x.shape, y.shape)
    along = shapes.axis_index(axis, len(shape), "vecdot")
    sizes = [((1,) * (len(shape) - v.ndim) + v.shape)[along] for v in (x, y)]
    if sizes[0] != sizes[1]:  # only the other axes broadcast
        raise ShapeError(
            f"vecdot: along axis {axis} x has {sizes[0]} elements and y {sizes[1]}; "
            f"use broadcast_to on the shorter one"
        )
    return ((x.conj() if x.dtype.is_complex else x) * y).sum(
        axis=axis, dtype=dtypes.promote(x.dtype, y.dtype)
    )


@composite(
    reference=np.outer,
    samples=lambda: iter((sample(s.real(3), s.real(2)),)),
    refuses=(refuse(ShapeError, "outer: takes vectors", s.real(2, 2), s.real(2)),),
)
def outer(x: Tensor, y: Tensor) -> Tensor:
    """Every product of an element of x and an element of y."""
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"outer: takes vectors, got {x.shape} and {y.shape}")
    return x.expand_dims(1) * y
