"""One row or more for each overload that PyTorch tags `core`: arguments to call it with.

A row is a function of Maker, which draws tensors of the dtype at hand. Ops' own samples reach most
overloads too; these reach all of them, without tracing anything."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

Row = Callable[["Maker"], tuple[Any, ...]]


class Maker:
    """Draws tensors of one dtype, the same ones each time."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        """Numbers around 0; of integers, between -5 and 5."""
        if self.dtype is torch.bool:
            return torch.randint(0, 2, shape, generator=self.generator).bool()
        if self.dtype.is_floating_point:
            return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)
        return torch.randint(-5, 6, shape, generator=self.generator).to(self.dtype)

    def unit(self, *shape: int) -> torch.Tensor:
        """Numbers between 0 and 1; of integers, 1 to 5."""
        if self.dtype.is_floating_point:
            drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64)
            return (drawn * 0.9 + 0.05).to(self.dtype)
        return torch.randint(1, 6, shape, generator=self.generator).to(self.dtype)

    def index(self, count: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, count, shape, generator=self.generator)

    def mask(self, *shape: int) -> torch.Tensor:
        return torch.randint(0, 2, shape, generator=self.generator).bool()

    def order(self, *shape: int) -> torch.Tensor:
        """Numbers of which no two are the same."""
        count = int(torch.tensor(shape).prod())
        return torch.randperm(count, generator=self.generator).reshape(shape).to(self.dtype)


def _each(names: str, *rows: Row) -> dict[str, tuple[Row, ...]]:
    return dict.fromkeys(names.split(), rows)


def _over(row: Callable[..., tuple[Any, ...]], *choices: Sequence[Any]) -> tuple[Row, ...]:
    """A row for each choice of its first arguments."""
    return tuple(partial(row, *choice) for choice in choices)


_BINARY: tuple[Row, ...] = (
    lambda t: (t(2, 3), t(2, 3)),
    lambda t: (t(2, 1, 3), t(4, 1)),
    lambda t: (t(3), t()),
    lambda t: (t(0, 3), t(3)),
)
# The second's kind is wider, or it has no axes: the node's metadata says what comes of it.
_MIXED: tuple[Row, ...] = (
    lambda t: (t(2, 3), t(2, 3).to(torch.float64)),
    lambda t: (t(2, 3), t().to(torch.float64)),
    lambda t: (t(2, 3), torch.tensor(2)),
    lambda t: (t(2, 3), t.mask(3)),
)
_SCALAR: tuple[Row, ...] = (
    lambda t: (t(2, 3), 2),
    lambda t: (t(2, 3), 1.5),
    lambda t: (t(), -3),
    lambda t: (t(0), True),
)

ROWS: dict[str, tuple[Row, ...]] = {
    # --- one argument ----------------------------------------------------------------------------
    **_each(
        "abs.default asinh.default atan.default ceil.default cos.default erf.default exp.default "
        "expm1.default floor.default isinf.default isnan.default logical_not.default neg.default "
        "relu.default round.default sigmoid.default sign.default sin.default sinh.default "
        "cosh.default tan.default tanh.default trunc.default bitwise_not.default alias.default",
        lambda t: (t(3, 4),),
        lambda t: (t(),),
        lambda t: (t(0, 2),),
    ),
    **_each(
        "acos.default asin.default atanh.default log.default log10.default log1p.default "
        "log2.default reciprocal.default rsqrt.default sqrt.default",
        lambda t: (t.unit(3, 4),),
        lambda t: (t(3, 4),),  # outside of where they are defined too
    ),
    "acosh.default": (lambda t: (t.unit(3, 4) + 1,), lambda t: (t(5),)),
    "clone.default": (lambda t: (t(3, 4),),),
    # --- two arguments ---------------------------------------------------------------------------
    **_each(
        "add.Tensor sub.Tensor mul.Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor "
        "ge.Tensor maximum.default minimum.default logical_and.default logical_or.default "
        "logical_xor.default atan2.default",
        *_BINARY,
        *_MIXED,
    ),
    **_each("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor", *_BINARY),
    **_each(
        "add.Scalar sub.Scalar mul.Scalar eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar "
        "ge.Scalar div.Scalar remainder.Scalar fmod.Scalar",
        *_SCALAR,
    ),
    **_each(
        "bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar",
        lambda t: (t(2, 3), 6),
        lambda t: (t(3), -1),
    ),
    **_each(
        "div.Tensor remainder.Tensor fmod.Tensor",
        lambda t: (t(2, 3), t.unit(2, 3)),
        lambda t: (t(2, 3), t.unit(3).to(torch.float64)),
        lambda t: (t(2, 1), -t.unit(3)),
    ),
    "div.Tensor_mode": _over(
        lambda how, t: (t(2, 3), t.unit(3), {"rounding_mode": how}), (None,), ("trunc",), ("floor",)
    ),
    "div.Scalar_mode": _over(
        lambda how, t: (t(2, 3), 1.5, {"rounding_mode": how}), (None,), ("trunc",), ("floor",)
    ),
    "pow.Tensor_Scalar": (lambda t: (t.unit(3), 1.5), lambda t: (t(3), 3), lambda t: (t(4), 0)),
    "pow.Tensor_Tensor": (lambda t: (t.unit(2, 3), t.unit(3)), lambda t: (t.unit(3), t.unit())),
    "pow.Scalar": (lambda t: (2, t.unit(3)), lambda t: (1.5, t.unit(2, 2))),
    "atan2.out": (lambda t: (t(2, 3), t(2, 3), {"out": torch.empty(2, 3, dtype=_floating(t))}),),
    "clamp.default": (lambda t: (t(3, 4), -1, 1), lambda t: (t(3), None, 0), lambda t: (t(3), 0.5)),
    "clamp.Tensor": (lambda t: (t(3, 4), t(4), t(3, 1)), lambda t: (t(2, 3), None, t(3))),
    "where.self": (lambda t: (t.mask(2, 3), t(2, 3), t(3)), lambda t: (t.mask(), t(2), t(1))),
    "copy.default": (
        lambda t: (t(2, 3), t(3)),
        lambda t: (t(2, 3), torch.randn(2, 3, generator=t.generator)),
    ),
    # --- made from nothing, or almost ------------------------------------------------------------
    "arange.start_step": (
        lambda t: (1, 9, 2, {"dtype": t.dtype}),
        lambda t: (5, -1, -1, {"dtype": t.dtype}),
        lambda t: (0.5, 2, 0.25),
    ),
    "full.default": (lambda t: ([2, 3], 7, {"dtype": t.dtype}), lambda t: ([], 2.5)),
    "full_like.default": (lambda t: (t(2, 3), 2), lambda t: (t(2), 1.5)),
    "fill.Scalar": (lambda t: (t(2, 3), 3),),
    "scalar_tensor.default": (lambda t: (3, {"dtype": t.dtype}), lambda t: (2.5,)),
    "empty.memory_format": (lambda t: ([2, 3], {"dtype": t.dtype}),),
    "empty_strided.default": (lambda t: ([2, 3], [3, 1], {"dtype": t.dtype}),),
    "rand.default": (lambda t: ([2, 3], {"dtype": t.dtype}),),
    "randn.default": (lambda t: ([2, 3], {"dtype": t.dtype}),),
    "randperm.default": (lambda t: (7,), lambda t: (5, {"dtype": torch.int32})),
    "native_dropout.default": (lambda t: (t(3, 4), 0.5, True), lambda t: (t(3), 0.3, False)),
    "_to_copy.default": (
        lambda t: (t(2, 3), {"dtype": torch.float32}),
        lambda t: (t(2, 3), {"dtype": torch.bool}),
        lambda t: (t(3), {"dtype": torch.bfloat16}),
    ),
    # --- reductions ------------------------------------------------------------------------------
    **_each(
        "any.default mean.default prod.default",
        lambda t: (t(2, 3),),
        lambda t: (t(),),
        lambda t: (t(0, 2),),
    ),
    **_each("argmax.default argmin.default", lambda t: (t.order(2, 3),),
            lambda t: (t.order(2, 3), 1), lambda t: (t.order(3, 2), 0, True),
            lambda t: (t(),)),
    **_each("amax.default amin.default", lambda t: (t(2, 3), [1]),
            lambda t: (t(2, 3, 2), [0, -1], True), lambda t: (t(2, 3),)),
    **_each("max.dim min.dim", lambda t: (t.order(2, 3), 1), lambda t: (t.order(2, 3), 0, True),
            lambda t: (t(), 0)),
    "any.dim": (lambda t: (t(2, 3), 1), lambda t: (t(2, 3), 0, True)),
    "any.dims": (lambda t: (t(2, 3, 2), [0, 2]), lambda t: (t(2, 3), None, True)),
    "mean.dim": (lambda t: (t(2, 3), [0]), lambda t: (t(2, 3, 2), [0, -1], True),
                 lambda t: (t(2, 3), None)),
    "sum.dim_IntList": (lambda t: (t(2, 3), [0]), lambda t: (t(2, 3), [], True),
                        lambda t: (t(2, 3), [1], {"dtype": torch.float64})),
    "prod.dim_int": (lambda t: (t(2, 3), 1), lambda t: (t(2, 3), 0, True)),
    "var.correction": (lambda t: (t(3, 4), [1], {"correction": 0}), lambda t: (t(3, 4),),
                       lambda t: (t(3, 4), [0, 1], {"correction": 1.5, "keepdim": True})),
    "var.dim": (lambda t: (t(3, 4), [1]), lambda t: (t(3, 4), [0], False, True)),
    "cumsum.default": (lambda t: (t(2, 3), 1), lambda t: (t(), 0),
                       lambda t: (t(2, 3), 0, {"dtype": torch.float64})),
    "sort.default": (lambda t: (t.order(3, 4),), lambda t: (t.order(3, 4), 0, True)),
    "topk.default": (lambda t: (t.order(3, 5), 2), lambda t: (t.order(3, 5), 3, 0, False)),
    # --- shapes ----------------------------------------------------------------------------------
    "cat.default": (lambda t: ([t(2, 3), t(1, 3)],), lambda t: ([t(2, 3), t(2, 2)], -1),
                    lambda t: ([t(0), t(2, 3)], 1)),
    "constant_pad_nd.default": (lambda t: (t(2, 3), [1, 2]), lambda t: (t(2, 3), [-1, 1, 0, 2], 3)),
    "diagonal.default": (lambda t: (t(3, 4),), lambda t: (t(2, 3, 4), 1, 1, 2)),
    "expand.default": (lambda t: (t(3, 1), [2, 3, 4]), lambda t: (t(2, 1), [-1, 3])),
    "flip.default": (lambda t: (t(2, 3), [0, -1]),),
    "permute.default": (lambda t: (t(2, 3, 4), [2, 0, -2]),),
    "repeat.default": (lambda t: (t(2, 3), [2, 1, 2]),),
    "select.int": (lambda t: (t(2, 3), 1, -1),),
    "select_scatter.default": (lambda t: (t(2, 3), t(2), 1, -1),),
    "slice.Tensor": (lambda t: (t(5, 3), 0, 1, 4, 2), lambda t: (t(5), 0, -3),
                     lambda t: (t(5), 0, 2, 2**63 - 1)),
    "slice_scatter.default": (lambda t: (t(5, 3), t(2, 3), 0, 1, 4, 2),),
    "split_with_sizes.default": (lambda t: (t(5, 3), [2, 3]), lambda t: (t(2, 4), [1, 3], -1)),
    "squeeze.dim": (lambda t: (t(2, 1, 3), 1), lambda t: (t(2, 3), 0)),
    "squeeze.dims": (lambda t: (t(1, 2, 1), [0, -1]),),
    "unsqueeze.default": (lambda t: (t(2, 3), -1),),
    "view.default": (lambda t: (t(2, 6), [3, -1]), lambda t: (t(), [1, 1])),
    "as_strided.default": (lambda t: (t(4, 4), [2, 2], [4, 2], 1),
                           lambda t: (t(6), [2, 3], [1, 2])),
    "sym_size.int": (lambda t: (t(2, 3), 1),),
    "sym_numel.default": (lambda t: (t(2, 3),),),
    "sym_stride.int": (lambda t: (t(2, 3), 0), lambda t: (t(2, 3).t(), 0)),
    "sym_storage_offset.default": (lambda t: (t(2, 3),),),
    "sym_is_contiguous.default": (lambda t: (t(2, 3),), lambda t: (t(2, 3).t(),)),
    # --- indices ---------------------------------------------------------------------------------
    "gather.default": (lambda t: (t(3, 4), 1, t.index(4, 3, 2)),
                       lambda t: (t(), 0, t.index(1, 2))),
    "index.Tensor": (lambda t: (t(3, 4), [None, t.index(4, 2)]),
                     lambda t: (t(3, 4, 2), [t.index(3, 2), None, t.index(2, 2)]),
                     lambda t: (t(3, 4), [t.index(3, 2, 1), t.index(4, 5)])),
    "index_put.default": (lambda t: (t(3, 4), [t.index(3, 2)], t(2, 4), True),
                          lambda t: (t(3, 4), [torch.tensor([2, 0])], t(2, 4)),
                          lambda t: (t(3, 4), [t.mask(3, 4)], t()),
                          lambda t: (t(3, 4), [None, torch.tensor([1, 3])], t(3, 2))),
    "index_select.default": (lambda t: (t(3, 4), 1, t.index(4, 6)),),
    "embedding.default": (lambda t: (t(5, 3), t.index(5, 2, 4)),
                          lambda t: (t(5, 3), t.index(5, 4), 1)),
    "embedding_dense_backward.default": (
        lambda t: (t(2, 4, 3), t.index(5, 2, 4), 5, -1, False),
        lambda t: (t(6, 3), t.index(3, 6), 3, 1, False),
        lambda t: (t(6, 3), t.index(3, 6), 3, 0, True),
    ),
    "masked_scatter.default": (lambda t: (t(3, 4), t.mask(3, 4), t(12)),),
    "scatter.src": (lambda t: (t(3, 4), 0, torch.tensor([[0, 2, 1]]), t(1, 3)),),
    "scatter.value": (lambda t: (t(3, 4), 1, t.index(4, 3, 2), 2),),
    "scatter_add.default": (lambda t: (t(3, 4), 1, t.index(4, 3, 5), t(3, 5)),),
    "scatter_reduce.two": _over(
        lambda how, own, t: (
            t(3, 4), 1, t.index(4, 3, 5), t(3, 5), how, {"include_self": own}
        ),
        *itertools.product(("sum", "prod", "mean", "amax", "amin"), (True, False)),
    ),
    "_embedding_bag.default": (
        lambda t: (t(5, 3), t.index(5, 6), torch.tensor([0, 2, 2])),
        lambda t: (t(5, 3), t.index(5, 6), torch.tensor([0, 4]), False, 1, False, None, False, 2),
        lambda t: (t(5, 3), t.index(5, 6), torch.tensor([0, 3, 6]), False, 2, False, None, True),
        lambda t: (t(5, 3), t.index(5, 6), torch.tensor([0, 3]), False, 0, False, t(6)),
    ),
    # --- products --------------------------------------------------------------------------------
    "mm.default": (lambda t: (t(2, 3), t(3, 4)), lambda t: (t(2, 0), t(0, 3))),
    "bmm.default": (lambda t: (t(2, 3, 4), t(2, 4, 5)),),
    "addmm.default": (lambda t: (t(4), t(2, 3), t(3, 4)),
                      lambda t: (t(2, 4), t(2, 3), t(3, 4), {"beta": 0.5, "alpha": 2})),
    "convolution.default": (
        lambda t: (t(2, 4, 5), t(6, 2, 3), t(6), [2], [1], [1], False, [0], 2),
        lambda t: (t(1, 2, 5, 5), t(3, 2, 3, 2), None, [1, 2], [1, 0], [2, 1], False, [0, 0], 1),
        lambda t: (t(1, 2, 3, 4, 4), t(2, 2, 2, 2, 2), t(2), [1], [0], [1], False, [0], 1),
        lambda t: (t(1, 4, 3, 3), t(4, 2, 3, 3), t(4), [2, 2], [1, 1], [1, 1], True, [1, 0], 2),
    ),
    "convolution_backward.default": (
        lambda t: (t(1, 3, 3, 3), t(1, 2, 5, 5), t(3, 2, 3, 3), [3], [1, 1], [0, 0], [1, 1], False,
                   [0, 0], 1, [True, True, True]),
        lambda t: (t(2, 4, 3), t(2, 4, 5), t(4, 1, 3), None, [2], [1], [1], False, [0], 4,
                   [True, True, False]),
        lambda t: (t(1, 2, 5, 5), t(1, 3, 3, 3), t(3, 2, 3, 3), [2], [2, 2], [1, 1], [1, 1], True,
                   [0, 0], 1, [True, True, True]),
    ),
    # --- layers ----------------------------------------------------------------------------------
    "_softmax.default": (lambda t: (t(2, 3), 1, False), lambda t: (t(), 0, False)),
    "_log_softmax.default": (lambda t: (t(2, 3, 2), 1, False),),
    "elu.default": (lambda t: (t(3, 4),), lambda t: (t(3, 4), 1.5, 0.7, 2.0)),
    "gelu.default": (lambda t: (t(3, 4),), lambda t: (t(3, 4), {"approximate": "tanh"})),
    "hardtanh.default": (lambda t: (t(3, 4),), lambda t: (t(3, 4), -2, 0)),
    "leaky_relu.default": (lambda t: (t(3, 4),), lambda t: (t(3, 4), 0.3)),
    "native_layer_norm.default": (
        lambda t: (t(2, 3, 4), [4], t(4), t(4), 1e-5),
        lambda t: (t(2, 3, 4), [3, 4], None, None, 0.1),
    ),
    "native_layer_norm_backward.default": (
        lambda t: (t(2, 3, 4), t(2, 3, 4), [4], t(2, 3, 1), t.unit(2, 3, 1), t(4), t(4),
                   [True, True, True]),
    ),
    "native_group_norm.default": (lambda t: (t(2, 4, 3), t(4), t(4), 2, 4, 3, 2, 1e-5),
                                  lambda t: (t(2, 6, 2, 2), None, None, 2, 6, 4, 3, 0.1)),
    "native_group_norm_backward.default": (
        lambda t: (t(2, 4, 3), t(2, 4, 3), t(2, 2), t.unit(2, 2), t(4), 2, 4, 3, 2, [True] * 3),
    ),
    "_native_batch_norm_legit.default": (
        lambda t: (t(4, 3, 2), t(3), t(3), t(3), t.unit(3), True, 0.1, 1e-5),
        lambda t: (t(4, 3), None, None, t(3), t.unit(3), False, 0.1, 1e-3),
    ),
    "_native_batch_norm_legit.no_stats": (lambda t: (t(4, 3, 2), t(3), t(3), True, 0.1, 1e-5),),
    "_native_batch_norm_legit_no_training.default": (
        lambda t: (t(4, 3, 2, 2), t(3), t(3), t(3), t.unit(3), 0.1, 1e-5),
    ),
    **_each("_adaptive_avg_pool2d.default", lambda t: (t(1, 2, 5, 6), [2, 3]),
            lambda t: (t(2, 4, 4), [1, 1])),
    "_adaptive_avg_pool2d_backward.default": (lambda t: (t(1, 2, 2, 3), t(1, 2, 5, 6)),),
    "_adaptive_avg_pool3d.default": (lambda t: (t(1, 2, 4, 5, 6), [2, 3, 1]),),
    "adaptive_avg_pool1d.default": (lambda t: (t(1, 2, 5), [3]),),
    "avg_pool1d.default": (lambda t: (t(1, 2, 6), [3]), lambda t: (t(1, 2, 6), [3], [2], [1])),
    "avg_pool2d.default": (lambda t: (t(1, 2, 6, 5), [2, 3]),
                           lambda t: (t(1, 2, 6, 5), [3], [2], [1], True, False),
                           lambda t: (t(2, 6, 5), [2], [1], [0], False, True, 3)),
    "avg_pool2d_backward.default": (
        lambda t: (t(1, 2, 3, 2), t(1, 2, 6, 5), [2], [2], [0], False, True, None),
        lambda t: (t(1, 2, 3, 3), t(1, 2, 6, 5), [3], [2], [1], False, False, None),
    ),
    "avg_pool3d.default": (lambda t: (t(1, 2, 4, 5, 6), [2]),
                           lambda t: (t(1, 2, 4, 5, 6), [2, 3, 2], [1, 2, 2], [1], False, False)),
    "max_pool2d_with_indices.default": (lambda t: (t.order(1, 2, 6, 5), [2]),
                                        lambda t: (t.order(2, 6, 5), [3], [2], [1], [1], True)),
    "max_pool2d_with_indices_backward.default": (
        lambda t: _pooled(t, 2, [2], [2], [0], [1], False),
        lambda t: _pooled(t, 2, [3], [1], [1], [2], False),
    ),
    "max_pool3d_with_indices.default": (lambda t: (t.order(1, 2, 4, 4, 4), [2]),
                                        lambda t: (t.order(1, 1, 4, 5, 4), [3], [1], [1])),
    "reflection_pad1d.default": (lambda t: (t(2, 4), [1, 2]),),
    "reflection_pad2d.default": (lambda t: (t(1, 2, 4, 4), [1, 2, 0, 3]),),
    "reflection_pad3d.default": (lambda t: (t(1, 1, 3, 4, 4), [1, 2, 0, 3, 1, 1]),),
    "replication_pad2d.default": (lambda t: (t(1, 2, 4, 4), [1, 2, 0, 3]),),
    "replication_pad3d.default": (lambda t: (t(1, 1, 3, 4, 4), [1, 2, 0, 3, 1, 1]),),
    "col2im.default": (lambda t: (t(1, 8, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),),
    "grid_sampler_2d.default": _over(
        lambda mode, edge, align, t: (t(1, 2, 4, 5), t(1, 3, 3, 2), mode, edge, align),
        *((0, 0, False), (0, 1, True), (1, 2, False), (2, 0, True)),
    ),
    "upsample_bilinear2d.vec": (lambda t: (t(1, 2, 4, 5), [7, 8], False, None),
                                lambda t: (t(1, 2, 4, 5), None, True, [2.0, 1.5])),
    "upsample_nearest2d.vec": (lambda t: (t(1, 2, 4, 5), [7, 8], None),
                               lambda t: (t(1, 2, 4, 5), None, [2.0, 1.5])),
    # --- distances and transforms ----------------------------------------------------------------
    "_cdist_forward.default": (lambda t: (t(3, 4), t(5, 4), 2.0, None),
                               lambda t: (t(2, 3, 4), t(2, 2, 4), 1.0, None)),
    "_pdist_forward.default": (lambda t: (t(4, 3),), lambda t: (t(4, 3), 1.0)),
    "_fft_r2c.default": (lambda t: (t(3, 5), [1], 0, True), lambda t: (t(4, 6), [0, 1], 1, True),
                         lambda t: (t(3, 4), [0], 2, False)),
    "_fft_c2r.default": (lambda t: (torch.complex(t(3, 4), t(3, 4)), [1], 2, 6),
                         lambda t: (torch.complex(t(4, 3), t(4, 3)), [0, 1], 1, 5)),
}  # fmt: skip


FLOATS = (torch.float64, torch.float32, torch.bfloat16)
# Where PyTorch computes otherwise in a dtype than it says it does, or what it gives means nothing.
LEFT_OUT = {
    ("grid_sampler_2d.default", torch.bfloat16): "weights are rounded to 8 bits on the way",
    ("mm.default", torch.bool): "only without elements",
    ("col2im.default", torch.bool): "sums of bools",
}


def dtypes_of(name: str) -> tuple[torch.dtype, ...]:
    """The dtypes that an overload's rows are drawn in: those of derivatives in floats only."""
    if name not in ROWS or "backward" in name:
        return FLOATS[:2]
    return (*FLOATS, torch.int64, torch.int32, torch.bool)


def _floating(t: Maker) -> torch.dtype:
    return t.dtype if t.dtype.is_floating_point else torch.float32


def _pooled(t: Maker, count: int, *options: Any) -> tuple[Any, ...]:
    """A gradient of a max pooling, its input and the places of the largest."""
    x = t.order(1, 2, 6, 5)
    out, index = torch.ops.aten.max_pool2d_with_indices(x, *options)
    return (t(*out.shape), x, *options, index)


def core_overloads() -> dict[str, Any]:
    """Every overload that PyTorch tags `core`, by its name in the table."""
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        base, _, kind = name.partition("::")[2].partition(".")
        if name.startswith("aten::"):
            target = getattr(getattr(torch.ops.aten, base), kind or "default", None)
            if target is not None and torch.Tag.core in target.tags:
                found[f"{base}.{kind or 'default'}"] = target
    return found
