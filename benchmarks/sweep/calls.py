"""How the sweep calls ops that are not one function of one large array, and PyTorch's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Spec(NamedTuple):
    """An array to make: uniform numbers of a dtype from low to high, or a matrix to solve with."""

    shape: tuple[int, ...]
    low: float
    high: float
    dtype: str = "float32"
    kind: str = "uniform"


class Call(NamedTuple):
    """Arguments, specs in place of arrays; a list of specs stands first if at all."""

    args: tuple[Any, ...]
    options: dict[str, Any]


def F(*shape: int, low: float = -2, high: float = 2, dtype: str = "float32") -> Spec:  # noqa: N802
    return Spec(shape, low, high, dtype)


def I(high: int, *shape: int, low: int = 0) -> Spec:  # noqa: N802, E743
    return Spec(shape, low, high, "int64")


def B(*shape: int) -> Spec:  # noqa: N802
    return Spec(shape, -2, 2, "bool")


def S(*shape: int) -> Spec:  # noqa: N802
    """Symmetric positive definite matrices."""
    return Spec(shape, -1, 1, "float32", "definite")


def is_spec(value: Any) -> bool:
    return isinstance(value, Spec)


def arguments(specs: Sequence[Spec]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [_made(spec, rng) for spec in specs]


def _made(spec: Spec, rng: np.random.Generator) -> Any:
    if spec.dtype == "bool":
        return rng.random(spec.shape) < 0.5
    if spec.dtype == "int64":
        return rng.integers(int(spec.low), int(spec.high), spec.shape)
    x = rng.uniform(spec.low, spec.high, spec.shape).astype(spec.dtype)
    if spec.kind == "sorted":
        return np.sort(x, axis=-1)
    if spec.kind == "definite":
        return x @ x.swapaxes(-1, -2) / spec.shape[-1] + np.eye(spec.shape[-1], dtype=x.dtype)
    return x


def c(*args: Any, **options: Any) -> Call:
    return Call(args, options)


_BIG, _ROWS, _MATS = F(1024, 1024), F(2048, 512), F(4, 256, 256)
_SEQ, _IMG, _VOL = F(8, 16, 4096), F(8, 16, 64, 64), F(4, 8, 16, 32, 32)
_KNOTS = F(1024, low=0, high=1)._replace(kind="sorted")
_LABELS = I(512, 2048)
CALLS = {
    # moves
    "reshape": c(_BIG, (512, 2048)), "permute_dims": c(F(64, 128, 128), (2, 0, 1)),
    "broadcast_to": c(F(1024), (1024, 1024)), "sum_to": c(_BIG, (1024,)),
    "squeeze": c(F(1, 1024, 1024), 0), "expand_dims": c(_BIG, axis=0),
    "swapaxes": c(_BIG, 0, 1), "moveaxis": c(F(64, 128, 128), 0, 2), "roll": c(_BIG, 7, 1),
    "concat": c([_BIG, _BIG]), "stack": c([_BIG, _BIG]), "hstack": c([_BIG, _BIG]),
    "vstack": c([_BIG, _BIG]), "dstack": c([_BIG, _BIG]), "split": c(_BIG, 256),
    "pad": c(_IMG, ((0, 0), (0, 0), (1, 1), (1, 1))), "chunk": c(_BIG, 4), "rot90": c(_BIG),
    "tensor_split": c(_BIG, 4), "repeat": c(_BIG, 2), "repeat_interleave": c(_BIG, 2, 0),
    "tile": c(_BIG, (2, 1)), "unfold": c(_BIG, 1, 64, 32), "flip": c(_BIG),
    "pixel_shuffle": c(_IMG, 2), "pixel_unshuffle": c(_IMG, 2), "channel_shuffle": c(_IMG, 4),
    "vander": c(F(1024)), "one_hot": c(I(1000, 8192), 1000),
    "diag": c(F(1024)), "diag_embed": c(F(1024, 64)), "getitem": c(_BIG, slice(1, None, 2)),
    "astype": c(_BIG, "float64"), "flatten": c(_IMG), "clone": c(_BIG),
    # reductions, norms
    **{n: c(_BIG, axis=-1) for n in (
        "sum", "mean", "max", "min", "prod", "var", "std", "logsumexp", "amax", "amin", "nansum",
        "nanmean", "nanmax", "nanmin", "argmax", "argmin", "norm", "count_nonzero",
        "cumulative_sum", "cumulative_prod", "median", "nanmedian", "vector_norm")},
    "softmax": c(_ROWS), "log_softmax": c(_ROWS), "layer_norm": c(_ROWS, (512,)),
    "rms_norm": c(_ROWS, (512,), F(512)), "normalize": c(_ROWS, axis=-1),
    "batch_norm": c(_IMG, None, None, F(16), F(16), True), "group_norm": c(_IMG, 4),
    "instance_norm": c(_IMG), "local_response_norm": c(_IMG, 5), "prelu": c(_IMG, F(16)),
    "cosine_similarity": c(_ROWS, _ROWS, axis=-1), "pairwise_distance": c(_ROWS, _ROWS),
    "cross": c(F(1 << 18, 3), F(1 << 18, 3)), "diff": c(_BIG, axis=-1),
    "trapezoid": c(_BIG), "glu": c(_BIG), "pdist": c(F(512, 64)),
    # orders, scans, searches
    "sort": c(_BIG, axis=-1), "argsort": c(_BIG, axis=-1), "msort": c(_BIG), "topk": c(_BIG, 10),
    "kthvalue": c(_BIG, 10), "quantile": c(_BIG, 0.3, axis=-1),
    "nanquantile": c(_BIG, 0.3, axis=-1), "cumsum": c(_BIG, 1), "cumprod": c(_BIG, 1),
    "cummax": c(_BIG, 1), "cummin": c(_BIG, 1), "logcumsumexp": c(_BIG, -1),
    "searchsorted": c(_KNOTS, F(1024, 1024, low=0, high=1)),
    "bucketize": c(F(1024, 1024, low=0, high=1), _KNOTS),
    "isin": c(I(10**4, 1 << 20), I(10**4, 99)),
    "bincount": c(I(1000, 1 << 20)), "histogram": c(_BIG, 100), "unique": c(I(1000, 1 << 20)),
    "unique_values": c(I(1000, 1 << 20)), "unique_counts": c(I(1000, 1 << 20)),
    "unique_inverse": c(I(1000, 1 << 20)), "unique_all": c(I(1000, 1 << 20)),
    # indexing
    "take": c(F(10000, 128), I(10000, 8192), axis=0), "embedding": c(I(10000, 8192), F(10000, 128)),
    "index_select": c(F(10000, 128), I(10000, 8192), axis=0),
    "index_add": c(F(10000, 128), I(10000, 8192), F(8192, 128)),
    "gather": c(_BIG, I(1024, 1024, 1024), 1), "take_along_axis": c(_BIG, I(1024, 1024, 1024), 1),
    "scatter_add": c(_BIG, I(1024, 1024, 1024), _BIG, 1),
    "scatter": c(_BIG, I(1024, 1024, 1024), _BIG, axis=1),
    "index_copy": c(F(10000, 128), I(10000, 8192), F(8192, 128)),
    "index_fill": c(F(10000, 128), I(10000, 8192), 7.0), "put": c(_BIG, I(1 << 20, 8192), F(8192)),
    "masked_select": c(_BIG, B(1024, 1024)), "masked_fill": c(_BIG, B(1024, 1024), 7.0),
    "masked_scatter": c(_BIG, B(1024, 1024), _BIG), "where": c(B(1024, 1024), _BIG, _BIG),
    # products
    "matmul": c(_MATS, _MATS), "linear": c(F(8, 256, 256), F(256, 256)),
    "outer": c(F(1024), F(1024)),
    "linear_bias": c(F(8, 256, 256), F(256, 256), F(256)), "vecdot": c(_ROWS, _ROWS),
    "tensordot": c(_MATS, F(256, 256), axes=1), "kron": c(F(32, 32), F(32, 32)),
    "einsum": c("bij,bjk->bik", _MATS, _MATS), "multi_dot": c([F(256, 64), F(64, 256), F(256, 64)]),
    "matrix_power": c(F(4, 64, 64, low=-0.1, high=0.1), 5),
    # linear algebra
    **{n: c(S(4, 128, 128)) for n in (
        "cholesky", "det", "slogdet", "inv", "eigh", "eigvalsh", "eig", "eigvals", "svd", "qr",
        "svdvals", "pinv", "matrix_exp", "lu_factor", "lu", "cond", "matrix_rank", "matrix_norm")},
    "solve": c(S(4, 128, 128), F(4, 128, 32)), "cholesky_solve": c(F(4, 128, 32), S(4, 128, 128)),
    "solve_triangular": c(S(4, 128, 128), F(4, 128, 32), upper=False),
    "lstsq": c(S(4, 128, 128), F(4, 128, 32)),
    # images and sequences
    "conv1d": c(_SEQ, F(16, 16, 5)), "conv2d": c(_IMG, F(32, 16, 3, 3), padding=1),
    "conv3d": c(_VOL, F(8, 8, 3, 3, 3)), "conv_transpose1d": c(_SEQ, F(16, 16, 4), None, 2),
    "conv_transpose2d": c(_IMG, F(16, 16, 4, 4), None, 2, 1),
    "conv_transpose3d": c(_VOL, F(8, 8, 2, 2, 2), None, 2),
    **{f"{kind}_pool{n}d": c(x, 2) for kind in ("max", "avg")
       for n, x in ((1, _SEQ), (2, _IMG), (3, _VOL))},
    **{f"lp_pool{n}d": c(x, 2.0, 2) for n, x in ((1, _SEQ), (2, _IMG), (3, _VOL))},
    **{f"adaptive_{kind}_pool{n}d": c(x, 7) for kind in ("max", "avg")
       for n, x in ((1, _SEQ), (2, _IMG), (3, _VOL))},
    "interpolate": c(_IMG, scale_factor=2.0, mode="bilinear"),
    "grid_sample": c(_IMG, F(8, 64, 64, 2, low=-1, high=1)),
    "affine_grid": c(F(8, 2, 3), (8, 16, 64, 64)),
    "im2col": c(_IMG, 3), "col2im": c(F(8, 144, 3844), (64, 64), 3),
    "attention": c(F(4, 8, 256, 64), F(4, 8, 256, 64), F(4, 8, 256, 64)),
    "fft_fft": c(_BIG), "fft_hfft": c(F(1024, 513)), "fft_irfft": c(F(1024, 513)),
    "stft": c(F(1 << 18), 512, hop_length=128), "rotary_embedding": c(F(4, 8, 256, 64)),
    # losses
    "mse_loss": c(_BIG, _BIG), "l1_loss": c(_BIG, _BIG), "smooth_l1_loss": c(_BIG, _BIG),
    "huber_loss": c(_BIG, _BIG), "cross_entropy": c(_ROWS, _LABELS), "nll_loss": c(_ROWS, _LABELS),
    "binary_cross_entropy": c(F(1024, 1024, low=0.1, high=0.9), F(1024, 1024, low=0, high=1)),
    "binary_cross_entropy_with_logits": c(_BIG, F(1024, 1024, low=0, high=1)),
    "kl_div": c(_BIG, F(1024, 1024, low=0.1, high=1), reduction="batchmean"),
    "poisson_nll_loss": c(_BIG, F(1024, 1024, low=0.1, high=2)),
    "multi_margin_loss": c(_ROWS, _LABELS),
    "gaussian_nll_loss": c(_BIG, _BIG, F(1024, 1024, low=0.1, high=2)),
    "triplet_margin_loss": c(_ROWS, _ROWS, _ROWS), "addcmul": c(_BIG, _BIG, _BIG),
    "addcdiv": c(_BIG, _BIG, F(1024, 1024, low=1)), "dropout": c(_BIG, 0.1),
}  # fmt: skip
THEIRS: dict[str, Any] = {
    "positive": "torch:positive", "reshape": "torch:reshape", "permute_dims": "torch:permute",
    "broadcast_to": "torch:broadcast_to", "expand_dims": lambda t, x, axis: x.unsqueeze(axis),
    "concat": "torch:cat", "flip": lambda t, x: t.flip(x, (0, 1)), "argsort": "torch:argsort",
    "matrix_transpose": lambda t, x: x.mT, "sum_to": lambda t, x, shape: x.sum(0),
    "pad": lambda t, x, widths: t.nn.functional.pad(x, (1, 1, 1, 1)),
    "repeat": lambda t, x, n: t.repeat_interleave(x, n), "unfold": lambda t, x, *a: x.unfold(*a),
    "getitem": lambda t, x, at: x[at], "astype": lambda t, x, to: x.to(getattr(t, to)),
    "max": "torch:amax", "min": "torch:amin", "count_nonzero": "torch:count_nonzero",
    "take": lambda t, x, index, axis: t.index_select(x, axis, index),
    "index_select": lambda t, x, index, axis: t.index_select(x, axis, index),
    "index_add": lambda t, x, index, source: t.index_add(x, 0, index, source),
    "gather": lambda t, x, index, axis: t.gather(x, axis, index),
    "take_along_axis": lambda t, x, index, axis: t.gather(x, axis, index),
    "scatter_add": lambda t, x, index, source, axis: t.scatter_add(x, axis, index, source),
    "scatter": lambda t, x, index, source, axis: t.scatter(x, axis, index, source),
    "linear_bias": "torch.nn.functional:linear", "vecdot": "torch.linalg:vecdot",
    "embedding": "torch.nn.functional:embedding", "cross": "torch.linalg:cross",
    "tensordot": lambda t, x, y, axes: t.tensordot(x, y, axes), "cond": "torch.linalg:cond",
    "unique_values": "torch:unique", "unique_counts": lambda t, x: t.unique(x, return_counts=True),
    "unique_inverse": lambda t, x: t.unique(x, return_inverse=True),
    "unique_all": lambda t, x: t.unique(x, return_inverse=True, return_counts=True),
    "attention": "torch.nn.functional:scaled_dot_product_attention", "histogram": "torch:histc",
    "layer_norm": "torch.nn.functional:layer_norm", "dropout": "torch.nn.functional:dropout",
    "conv1d": "torch.nn.functional:conv1d", "conv3d": "torch.nn.functional:conv3d",
    "batch_norm": "torch.nn.functional:batch_norm", "nll_loss": "torch.nn.functional:nll_loss",
    "instance_norm": "torch.nn.functional:instance_norm", "lu": "torch.linalg:lu",
    "grid_sample": "torch.nn.functional:grid_sample",
    "median": lambda t, x, axis: t.median(x, axis),
    "multi_margin_loss": "torch.nn.functional:multi_margin_loss", "equal": "torch:eq",
    "nanmedian": lambda t, x, axis: t.nanmedian(x, axis), "greater": "torch:gt", "less": "torch:lt",
    "binary_cross_entropy": "torch.nn.functional:binary_cross_entropy",
    "binary_cross_entropy_with_logits": "torch.nn.functional:binary_cross_entropy_with_logits",
    "stft": lambda t, x, n, hop_length: t.stft(x, n, hop_length, return_complex=True),
    "cumulative_sum": "torch:cumsum", "cumulative_prod": "torch:cumprod",
    "log_softmax": lambda t, x: t.log_softmax(x, -1), "softmax": lambda t, x: t.softmax(x, -1),
    "trapezoid": "torch:trapezoid", "quantile": "torch:quantile",
    "nanquantile": "torch:nanquantile",
    "bincount": "torch:bincount", "trace": "torch:trace", "diagonal": "torch:diagonal",
}  # fmt: skip
# Of these there is nothing large to time, or no call without a long tale.
UNTIMED = {"to", "philox", "identity", "atleast_1d", "atleast_2d", "atleast_3d"}
