"""The functions behind the layers, for use without them: `import everygrad.nn.functional as F`."""

from __future__ import annotations

import math
from functools import wraps
from types import FunctionType
from typing import Any

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.core.torch_absent import missing
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.nn.functions.activations import (
    celu as celu,
    elu as elu,
    hardsigmoid as hardsigmoid,
    hardswish as hardswish,
    hardtanh as hardtanh,
    leaky_relu as leaky_relu,
    mish as mish,
    relu as relu,
    relu6 as relu6,
    selu as selu,
    silu as silu,
    threshold as threshold,
)
from everygrad.nn.functions.attention import Projections, attend, separate_weights
from everygrad.nn.functions.embeddings import (
    embedding as embedding,
    embedding_bag as embedding_bag,
)
from everygrad.nn.functions.products import (
    bilinear as bilinear,
    conv_tbc as conv_tbc,
    linear as linear,
    linear_cross_entropy as linear_cross_entropy,
)
from everygrad.ops.elementwise.activations import (
    glu as glu,
    hardshrink as hardshrink,
    logsigmoid as logsigmoid,
    prelu as prelu,
    softmin as softmin,
    softshrink as softshrink,
    softsign as softsign,
    tanhshrink as tanhshrink,
)
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import (
    sigmoid as sigmoid,
    tanh as tanh,
)
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.loss.ctc import ctc_loss as ctc_loss
from everygrad.ops.loss.distances import (
    cosine_embedding_loss as cosine_embedding_loss,
    cosine_similarity as cosine_similarity,
    hinge_embedding_loss as hinge_embedding_loss,
    margin_ranking_loss as margin_ranking_loss,
    multi_margin_loss as multi_margin_loss,
    multilabel_soft_margin_loss as multilabel_soft_margin_loss,
    normalize as normalize,
    pairwise_distance as pairwise_distance,
    soft_margin_loss as soft_margin_loss,
    triplet_margin_loss as triplet_margin_loss,
)
from everygrad.ops.loss.losses import (
    cross_entropy as cross_entropy,
    mse_loss as mse_loss,
    nll_loss as nll_loss,
)
from everygrad.ops.loss.margins import (
    cdist as cdist,
    multilabel_margin_loss as multilabel_margin_loss,
    pdist as pdist,
    triplet_margin_with_distance_loss as triplet_margin_with_distance_loss,
)
from everygrad.ops.loss.pointwise import (
    binary_cross_entropy as binary_cross_entropy,
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
    gaussian_nll_loss as gaussian_nll_loss,
    huber_loss as huber_loss,
    kl_div as kl_div,
    l1_loss as l1_loss,
    poisson_nll_loss as poisson_nll_loss,
    smooth_l1_loss as smooth_l1_loss,
)
from everygrad.ops.nn.adaptive_pooling import (
    adaptive_avg_pool1d as adaptive_avg_pool1d,
    adaptive_avg_pool2d as adaptive_avg_pool2d,
    adaptive_avg_pool3d as adaptive_avg_pool3d,
    adaptive_max_pool1d as adaptive_max_pool1d,
    adaptive_max_pool2d as adaptive_max_pool2d,
    adaptive_max_pool3d as adaptive_max_pool3d,
    max_unpool1d as max_unpool1d,
    max_unpool2d as max_unpool2d,
    max_unpool3d as max_unpool3d,
)
from everygrad.ops.nn.attention import attention, attention_masked
from everygrad.ops.nn.conv2d import conv2d as conv2d
from everygrad.ops.nn.conv_nd import (
    conv1d as conv1d,
    conv3d as conv3d,
    conv_transpose1d as conv_transpose1d,
    conv_transpose2d as conv_transpose2d,
    conv_transpose3d as conv_transpose3d,
)
from everygrad.ops.nn.normalisation import (
    batch_norm as batch_norm,
    group_norm as group_norm,
    instance_norm as instance_norm,
    local_response_norm as local_response_norm,
    rms_norm as rms_norm,
)
from everygrad.ops.nn.pooling import (
    avg_pool1d as avg_pool1d,
    avg_pool2d as avg_pool2d,
    avg_pool3d as avg_pool3d,
    lp_pool1d as lp_pool1d,
    lp_pool2d as lp_pool2d,
    lp_pool3d as lp_pool3d,
    max_pool1d as max_pool1d,
    max_pool2d as max_pool2d,
    max_pool3d as max_pool3d,
)
from everygrad.ops.nn.resampling import (
    affine_grid as affine_grid,
    grid_sample as grid_sample,
    interpolate as interpolate,
)
from everygrad.ops.nn.softmax_and_norm import (
    dropout as _dropout,
    layer_norm as layer_norm,
    log_softmax as log_softmax,
    softmax as softmax,
)
from everygrad.ops.nn.unfold import (
    channel_shuffle as channel_shuffle,
    col2im,
    pixel_shuffle as pixel_shuffle,
    pixel_unshuffle as pixel_unshuffle,
)
from everygrad.ops.python.creation import ones, zeros
from everygrad.ops.random.discrete import gumbel_softmax as gumbel_softmax
from everygrad.ops.random.generators import Generator
from everygrad.ops.random.layers import (
    alpha_dropout as alpha_dropout,
    dropout1d as dropout1d,
    dropout2d as dropout2d,
    dropout3d as dropout3d,
    feature_alpha_dropout as feature_alpha_dropout,
    fractional_max_pool2d as fractional_max_pool2d,
    fractional_max_pool3d as fractional_max_pool3d,
    rrelu as rrelu,
)
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.shape.builders import one_hot as one_hot
from everygrad.ops.shape.joining import pad as pad
from everygrad.ops.shape.tiling import unfold as windows

gelu, softplus = REGISTRY["gelu"].function, REGISTRY["softplus"].function
fold = col2im  # PyTorch's name
native_channel_shuffle = channel_shuffle


@wraps(windows)
def unfold(x: Tensor, *places: Any, **names: Any) -> Tensor:
    # `eg.unfold`, which no program can mean by the numbers that PyTorch's function of this name
    # takes first: windows along an axis are a method there
    if len(places) > 1 and not isinstance(places[0], list | tuple):
        said = ", ".join(map(repr, places))
        raise ArgumentError(
            f"nn.functional.unfold: ({said}) may be an axis, a size and a step, or PyTorch's "
            f"kernel_size, dilation and padding; say which by name, as kernel_size={places[0]!r}"
        )
    out: Tensor = windows(x, *places, **names)
    return out


def dropout(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: Any = False,
    generator: Generator | None = None,
) -> Tensor:
    """Each element 0 with probability p, else scaled by 1 / (1 - p); x itself if not training.

    `inplace` is taken and makes no difference.

    >>> import everygrad as eg
    >>> eg.nn.functional.dropout(eg.ones((3,)), 0.5, training=False)
    tensor([1., 1., 1.])
    """
    if isinstance(inplace, Generator):  # the fourth place of eg.dropout
        inplace, generator = False, inplace
    out: Tensor = _dropout(x, p, training, generator)
    return out


def upsample(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """`interpolate` under its older name.

    >>> import everygrad as eg
    >>> eg.nn.functional.upsample(eg.ones((1, 1, 2, 2)), scale_factor=2).shape
    (1, 1, 4, 4)
    """
    out: Tensor = interpolate(x, size, scale_factor, mode, align_corners)
    return out


def upsample_nearest(x: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` by the nearest element.

    >>> import everygrad as eg
    >>> eg.nn.functional.upsample_nearest(eg.ones((1, 1, 2, 2)), size=(3, 3)).shape
    (1, 1, 3, 3)
    """
    return upsample(x, size, scale_factor)


def upsample_bilinear(x: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` of images by lines between elements, with corners aligned.

    >>> import everygrad as eg
    >>> eg.nn.functional.upsample_bilinear(eg.ones((1, 1, 2, 2)), size=(3, 3)).shape
    (1, 1, 3, 3)
    """
    return upsample(x, size, scale_factor, "bilinear", True)


def _with_indices(name: str, pool: Any) -> Any:
    """A max pooling function that always gives the places too."""

    def with_indices(x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        kwargs["return_indices"] = True
        found: tuple[Tensor, Tensor] = pool(x, *args, **kwargs)
        return found

    with_indices.__name__ = with_indices.__qualname__ = f"{name}_with_indices"
    with_indices.__doc__ = f"`{name}` with return_indices=True: the largest and their places."
    return with_indices


max_pool1d_with_indices = _with_indices("max_pool1d", max_pool1d)
max_pool2d_with_indices = _with_indices("max_pool2d", max_pool2d)
max_pool3d_with_indices = _with_indices("max_pool3d", max_pool3d)
adaptive_max_pool1d_with_indices = _with_indices("adaptive_max_pool1d", adaptive_max_pool1d)
adaptive_max_pool2d_with_indices = _with_indices("adaptive_max_pool2d", adaptive_max_pool2d)
adaptive_max_pool3d_with_indices = _with_indices("adaptive_max_pool3d", adaptive_max_pool3d)
fractional_max_pool2d_with_indices = _with_indices("fractional_max_pool2d", fractional_max_pool2d)
fractional_max_pool3d_with_indices = _with_indices("fractional_max_pool3d", fractional_max_pool3d)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key^T * scale) @ value over the last two axes; scale is 1 / sqrt(width).

    A bool mask is True where a query may look at a key, a floating one is added to the scores. A
    query that may look nowhere gives 0. `is_causal` lets query i look at keys 0 to i. With
    `enable_gqa` several heads of the query (third axis from the end) share one of key and value.
    """
    if enable_gqa:
        return _grouped(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if min(query.ndim, key.ndim, value.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"scaled_dot_product_attention: query {query.shape}, key {key.shape} and value "
            f"{value.shape} need two axes, query and key with the same last one"
        )
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"scaled_dot_product_attention: {key.shape[-2]} keys for {value.shape[-2]} values"
        )
    if is_causal and attn_mask is not None:
        raise ArgumentError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if attn_mask is not None and attn_mask.dtype.kind not in ("bool", "float"):
        raise DtypeError(
            f"scaled_dot_product_attention: attn_mask must be bool or floating point, got "
            f"{attn_mask.dtype}; mask.astype('bool') is True where a query may look"
        )
    if not key.shape[-2]:  # nothing to look at: sums of no terms
        return matmul(matmul(query, key.matrix_transpose()), value)
    scale = max(1, query.shape[-1]) ** -0.5 if scale is None else scale
    if dropout_p == 0:
        return _attend(query, key, value, attn_mask, is_causal, scale)
    scores = matmul(query * scale, key.matrix_transpose())
    alive: Tensor | None = None
    if is_causal:
        scores = where(causal_mask(scores), scores, -math.inf)
    elif attn_mask is not None:
        scores, alive = _masked(scores, attn_mask)
    probs = softmax(scores)
    if alive is not None:
        probs = where(alive, probs, 0.0)
    return matmul(dropout(probs, dropout_p), value)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention` computes, from its weights: query, key and value are
    (length, batch, width)."""
    name = "multi_head_attention_forward"
    separate = None
    if use_separate_proj_weight:
        separate = separate_weights(q_proj_weight, k_proj_weight, v_proj_weight)
        in_proj_weight = None
    elif in_proj_weight is None:
        raise ArgumentError(f"{name}: in_proj_weight is missing, and no separate weights are used")
    sizes = (embed_dim_to_check, key.shape[-1], value.shape[-1])
    if separate is None:
        sizes = (embed_dim_to_check,) * 3
    return attend(
        name,
        (query, key, value),
        Projections(
            in_proj_weight, in_proj_bias, separate, bias_k, bias_v, out_proj_weight, out_proj_bias
        ),
        num_heads,
        sizes,
        scaled_dot_product_attention,
        batch_first=False,
        dropout_p=dropout_p if training else 0.0,
        key_padding_mask=key_padding_mask,
        need_weights=need_weights,
        attn_mask=attn_mask,
        average_attn_weights=average_attn_weights,
        is_causal=is_causal,
        add_zero_attn=add_zero_attn,
        static=(static_k, static_v),
    )


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *options: Any
) -> Tensor:
    """Attention in which neighbouring heads of the query share a head of key and value."""
    name = "scaled_dot_product_attention"
    if min(query.ndim, key.ndim, value.ndim) < 3:
        raise ShapeError(f"{name}: enable_gqa needs heads in the third axis from the end")
    heads, fewer = query.shape[-3], key.shape[-3]
    if value.shape[-3] != fewer or not fewer or heads % fewer:
        raise ShapeError(
            f"{name}: {heads} heads of the query cannot share {fewer} of the key and "
            f"{value.shape[-3]} of the value; the first must be a multiple of the others"
        )
    shape = (*query.shape[:-3], fewer, heads // fewer, *query.shape[-2:])
    if mask is not None and mask.ndim > 2:
        if mask.shape[-3] not in (1, heads):
            raise ShapeError(f"{name}: attn_mask {mask.shape} is not for {heads} heads")
        split = (fewer, heads // fewer) if mask.shape[-3] == heads else (1, 1)
        mask = mask.reshape((*mask.shape[:-3], *split, *mask.shape[-2:]))
    given = (query.reshape(shape), key.expand_dims(-3), value.expand_dims(-3))
    out = scaled_dot_product_attention(*given, mask, *options)
    return out.reshape((*query.shape[:-1], value.shape[-1]))


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """Without dropout: as one op, on inputs whose batches are alike."""
    name = "scaled_dot_product_attention"
    batch = shapes.broadcast(name, query.shape[:-2], key.shape[:-2], value.shape[:-2])
    given = [query, key, value] if mask is None else [query, key, value, mask]
    if mask is not None and mask.dtype.kind == "bool":
        given[3] = where(mask, zeros((), query.dtype, query.device), -math.inf)
    inputs = operands(name, *given, floating=True, ends_in="attention")
    q, k, v = (
        x if x.shape[:-2] == batch else x.broadcast_to((*batch, *x.shape[-2:])) for x in inputs[:3]
    )
    if mask is None:
        return attention(q, k, v, scale, causal)
    pairs = (*q.shape[:-1], k.shape[-2])
    if shapes.broadcast("attn_mask", mask.shape, pairs) != pairs:
        raise ShapeError(f"attn_mask: {mask.shape} does not broadcast to scores of {pairs}")
    added = inputs[3].reshape((1,) * (q.ndim - mask.ndim) + mask.shape)
    return attention_masked(q, k, v, added, scale)


def causal_mask(scores: Tensor) -> Tensor:
    """True where the key does not come after the query."""
    allowed: Tensor = ones(scores.shape[-2:], "bool", scores.device).tril()
    return allowed


def _masked(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The scores with the mask applied, rows it closes left open, and which rows are not closed."""
    if shapes.broadcast("attn_mask", mask.shape, scores.shape) != scores.shape:
        raise ShapeError(f"attn_mask: {mask.shape} does not broadcast to scores of {scores.shape}")
    if mask.dtype.kind == "bool":
        alive = mask.any(axis=-1, keepdims=True)
        return where(mask | ~alive, scores, -math.inf), alive
    alive = (mask != -math.inf).any(axis=-1, keepdims=True)
    return scores + where(alive, mask, 0.0), alive


# the rule of all ops holds for these functions too: arrays and numbers are taken
_HELPERS = (
    "matmul",
    "attention",
    "attention_masked",
    "attend",
    "separate_weights",
    "causal_mask",
    "col2im",
    "windows",
)
for _name, _function in [*globals().items()]:
    if isinstance(_function, FunctionType) and _name[0] != "_" and _name not in _HELPERS:
        _first = next(iter(_function.__annotations__.values()), "")
        if _first == "Tensor" and not hasattr(_function, "__signature__"):
            globals()[_name] = taking(_function)

__getattr__ = missing("everygrad.nn.functional", "torch.nn.functional", lambda: globals())
