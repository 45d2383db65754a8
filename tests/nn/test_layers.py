"""Layers against PyTorch's, one row of a table each: forward, backward and 20 steps of SGD."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune

import everygrad as eg
from everygrad import nn
from tests.support.trained_beside_torch import Case, real, train_beside_torch

# torch says what it will change one day; the values of today are compared
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning")


def arrays(*shapes: tuple[int, ...]) -> Any:
    return lambda rng: [rng.standard_normal(shape) for shape in shapes]


def labels(shape: tuple[int, ...], target: tuple[int, ...], classes: int) -> Any:
    return lambda rng: [rng.standard_normal(shape), rng.integers(0, classes, target)]


def signs(*shapes: tuple[int, ...]) -> Any:
    """Real arrays, and a last one of 1 and -1."""
    return lambda rng: [
        *(rng.standard_normal(s) for s in shapes),
        rng.choice([-1, 1], shapes[0][:1]),
    ]


def probabilities(shape: tuple[int, ...]) -> Any:
    def draw(rng: Any) -> list[Any]:
        return [rng.uniform(0.05, 0.95, shape), rng.integers(0, 2, shape).astype(np.float64)]

    return draw


def with_target(module: Any, lib: Any, xs: list[Any]) -> Any:
    """The last array is a target: no gradient is asked for."""
    return module(*xs[:-1], xs[-1].detach())


def bags(rng: Any) -> list[Any]:
    return [rng.integers(0, 7, (6,)), np.array([0, 2, 2, 5])]


def weighted_bags(rng: Any) -> list[Any]:
    return [rng.integers(0, 7, (6,)), np.array([0, 2, 2, 5]), rng.standard_normal(6)]


def by_max_pool(places: int) -> Any:
    """Unpooling what max pooling found."""

    def call(module: Any, lib: Any, xs: list[Any]) -> Any:
        pool = getattr(lib, f"MaxPool{places}d")(2, return_indices=True)
        return module(*pool(xs[0]))

    return call


def distance(a: Any, b: Any) -> Any:
    return ((a - b) ** 2).sum(-1)


MASK = np.triu(np.ones((5, 5), bool), 1)
PADDING = np.array([[False] * 5, [False] * 3 + [True] * 2])


def attention(module: Any, lib: Any, xs: list[Any]) -> Any:
    return module(*xs)[0]


def masked(module: Any, lib: Any, xs: list[Any]) -> Any:
    out, weights = module(xs[0], xs[1], xs[2], key_padding_mask=xs[3], attn_mask=xs[4])
    return out, weights


def encoded(module: Any, lib: Any, xs: list[Any]) -> Any:
    return module(xs[0], xs[2], src_key_padding_mask=xs[1])


def decoded(module: Any, lib: Any, xs: list[Any]) -> Any:
    return module(xs[0], xs[1], tgt_mask=xs[3], memory_key_padding_mask=xs[2])


def transformed(module: Any, lib: Any, xs: list[Any]) -> Any:
    return module(xs[0], xs[1], tgt_mask=xs[3], src_key_padding_mask=xs[2])


def sequences(count: int = 1) -> Any:
    def draw(rng: Any) -> list[Any]:
        return [*(rng.standard_normal((2, 5, 8)) for _ in range(count)), PADDING, MASK]

    return draw


QUERIES = arrays((5, 2, 8), (4, 2, 8), (4, 2, 8))
X = real(3, 4)
LINE, IMAGE, VOLUME = real(2, 4, 6), real(2, 4, 6, 6), real(2, 4, 4, 4, 4)
PLACES = {1: LINE, 2: IMAGE, 3: VOLUME}

CASES: dict[str, Case] = {
    # --- linear
    "Linear": Case(lambda n: n.Linear(4, 3), X),
    "Bilinear": Case(lambda n: n.Bilinear(4, 3, 5), arrays((2, 4), (2, 3))),
    "Bilinear 3-d": Case(lambda n: n.Bilinear(4, 3, 5, bias=False), arrays((2, 6, 4), (2, 6, 3))),
    "Identity": Case(lambda n: n.Identity(3, any=1), X),
    "Flatten": Case(lambda n: n.Flatten(start_dim=0, end_dim=1), LINE),
    "Unflatten": Case(lambda n: n.Unflatten(1, (2, -1) if n is nn else (2, 2)), LINE),
    "Sequential": Case(
        lambda n: n.Sequential(n.Linear(4, 5), n.ReLU(inplace=True), n.Linear(5, 2)), X
    ),
    # --- activations
    **{
        name: Case(lambda n, name=name: getattr(n, name)(), X)
        for name in (
            *("CELU", "ELU", "GELU", "SELU", "SiLU", "Mish", "ReLU", "ReLU6", "LeakyReLU", "Tanh"),
            *("Sigmoid", "LogSigmoid", "Softplus", "Softsign", "Softshrink", "Hardshrink", "PReLU"),
            *("Hardtanh", "Hardswish", "Tanhshrink"),
        )
    },
    **{
        f"{name} inplace": Case(
            lambda n, name=name: getattr(n, name)(inplace=True),
            X,
            lambda m, lib, xs: m(xs[0] * 1.0),
        )
        for name in (
            "CELU",
            "ELU",
            "SELU",
            "SiLU",
            "Mish",
            "ReLU",
            "ReLU6",
            "LeakyReLU",
            "Hardtanh",
            "Hardswish",
        )
    },
    # the slope of torch's is 1 / 6 as a float32
    "Hardsigmoid": Case(lambda n: n.Hardsigmoid(inplace=False), X, tolerance=1e-8),
    "GLU": Case(lambda n: n.GLU(dim=1), X),
    "Softmax": Case(lambda n: n.Softmax(dim=0), X),
    "Softmin": Case(lambda n: n.Softmin(dim=1), X),
    "LogSoftmax": Case(lambda n: n.LogSoftmax(dim=-1), X),
    "Softmax2d": Case(lambda n: n.Softmax2d(), IMAGE),
    "Threshold": Case(lambda n: n.Threshold(0.2, 3.0), X),
    "RReLU off": Case(lambda n: n.RReLU(0.1, 0.5), X, evaluate=True),
    # --- dropout, in evaluation
    **{
        f"{name} off": Case(lambda n, name=name: getattr(n, name)(0.4), shape, evaluate=True)
        for name, shape in (
            ("Dropout", X),
            ("Dropout1d", LINE),
            ("Dropout2d", IMAGE),
            ("Dropout3d", VOLUME),
            ("AlphaDropout", X),
            ("FeatureAlphaDropout", IMAGE),
        )
    },
    # --- convolution
    **{
        f"Conv{k}d": Case(
            lambda n, k=k: getattr(n, f"Conv{k}d")(4, 6, 3, 2, 1, groups=2), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    **{
        f"Conv{k}d reflect": Case(
            lambda n, k=k: getattr(n, f"Conv{k}d")(4, 2, 3, padding=1, padding_mode="reflect"),
            PLACES[k],
        )
        for k in (1, 2, 3)
    },
    **{
        f"ConvTranspose{k}d": Case(
            lambda n, k=k: getattr(n, f"ConvTranspose{k}d")(4, 6, 3, 2, 1, 1, groups=2), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    "Unfold": Case(lambda n: n.Unfold(3, dilation=1, padding=1, stride=2), IMAGE),
    "Fold": Case(lambda n: n.Fold((5, 4), 2), real(2, 12, 12)),
    # --- pooling
    **{
        f"MaxPool{k}d": Case(
            lambda n, k=k: getattr(n, f"MaxPool{k}d")(3, 2, 1, ceil_mode=True), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    **{
        f"AvgPool{k}d": Case(lambda n, k=k: getattr(n, f"AvgPool{k}d")(3, 2, 1), PLACES[k])
        for k in (1, 2, 3)
    },
    **{
        f"LPPool{k}d": Case(
            lambda n, k=k: getattr(n, f"LPPool{k}d")(3, 2),
            lambda rng, k=k: [np.abs(PLACES[k](rng)[0]) + 0.1],
        )
        for k in (1, 2, 3)
    },
    **{
        f"AdaptiveAvgPool{k}d": Case(
            lambda n, k=k: getattr(n, f"AdaptiveAvgPool{k}d")(3), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    **{
        f"AdaptiveMaxPool{k}d": Case(
            lambda n, k=k: getattr(n, f"AdaptiveMaxPool{k}d")(3), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    **{
        f"MaxUnpool{k}d": Case(
            lambda n, k=k: getattr(n, f"MaxUnpool{k}d")(2), PLACES[k], by_max_pool(k)
        )
        for k in (1, 2, 3)
    },
    "FractionalMaxPool2d": Case(
        lambda n: n.FractionalMaxPool2d(2, output_size=(3, 2), _random_samples=samples(n, 2)), IMAGE
    ),
    "FractionalMaxPool3d": Case(
        lambda n: n.FractionalMaxPool3d(2, output_ratio=0.5, _random_samples=samples(n, 3)), VOLUME
    ),
    # --- norms
    **{
        f"BatchNorm{k}d": Case(lambda n, k=k: getattr(n, f"BatchNorm{k}d")(4), PLACES[k])
        for k in (1, 2, 3)
    },
    **{
        f"BatchNorm{k}d off": Case(
            lambda n, k=k: getattr(n, f"BatchNorm{k}d")(4), PLACES[k], evaluate=True
        )
        for k in (1, 2, 3)
    },
    **{
        f"InstanceNorm{k}d": Case(
            lambda n, k=k: getattr(n, f"InstanceNorm{k}d")(
                4, affine=True, track_running_stats=False
            ),
            PLACES[k],
        )
        for k in (1, 2, 3)
    },
    "GroupNorm": Case(lambda n: n.GroupNorm(2, 4), IMAGE),
    "LayerNorm": Case(lambda n: n.LayerNorm((6, 6)), IMAGE),
    "RMSNorm": Case(lambda n: n.RMSNorm(6), LINE),
    "LocalResponseNorm": Case(lambda n: n.LocalResponseNorm(3), IMAGE),
    # --- padding
    **{
        f"{kind}Pad{k}d": Case(
            lambda n, kind=kind, k=k: getattr(n, f"{kind}Pad{k}d")(
                tuple(range(1, 1 + 2 * k)) if kind == "Zero" else 2
            ),
            PLACES[k],
        )
        for kind in ("Zero", "Reflection", "Replication", "Circular")
        for k in (1, 2, 3)
    },
    **{
        f"ConstantPad{k}d": Case(lambda n, k=k: getattr(n, f"ConstantPad{k}d")(2, 1.5), PLACES[k])
        for k in (1, 2, 3)
    },
    # --- resampling
    "Upsample": Case(lambda n: n.Upsample(scale_factor=2), IMAGE),
    "Upsample bilinear": Case(
        lambda n: n.Upsample((9, 5), mode="bilinear", align_corners=False), IMAGE
    ),
    "Upsample bicubic": Case(
        lambda n: n.Upsample((9, 5), mode="bicubic", align_corners=True), IMAGE
    ),
    "Upsample trilinear": Case(lambda n: n.Upsample(scale_factor=1.5, mode="trilinear"), VOLUME),
    "UpsamplingNearest2d": Case(lambda n: n.UpsamplingNearest2d(scale_factor=2), IMAGE),
    "UpsamplingBilinear2d": Case(lambda n: n.UpsamplingBilinear2d((9, 5)), IMAGE),
    "PixelShuffle": Case(lambda n: n.PixelShuffle(2), IMAGE),
    "PixelUnshuffle": Case(lambda n: n.PixelUnshuffle(2), IMAGE),
    "ChannelShuffle": Case(lambda n: n.ChannelShuffle(2), IMAGE),
    # --- embeddings
    "Embedding": Case(lambda n: n.Embedding(7, 3), lambda rng: [rng.integers(0, 7, (2, 5))]),
    "Embedding padding": Case(
        lambda n: n.Embedding(7, 3, padding_idx=2), lambda rng: [rng.integers(0, 7, (9,))]
    ),
    "Embedding max norm": Case(
        lambda n: n.Embedding(7, 3, max_norm=1.0),
        lambda rng: [rng.integers(0, 7, (2, 5))],
        lambda m, lib, xs: m(xs[0]) * 2.0,
    ),
    "Embedding frequency": Case(
        lambda n: n.Embedding(7, 3, scale_grad_by_freq=True), lambda rng: [rng.integers(0, 7, (9,))]
    ),
    **{
        f"EmbeddingBag {mode}": Case(lambda n, mode=mode: n.EmbeddingBag(7, 3, mode=mode), bags)
        for mode in ("sum", "mean", "max")
    },
    **{
        f"EmbeddingBag {mode} 2-d": Case(
            lambda n, mode=mode: n.EmbeddingBag(7, 3, mode=mode, padding_idx=1),
            lambda rng: [rng.integers(0, 7, (4, 3))],
        )
        for mode in ("sum", "mean", "max")
    },
    "EmbeddingBag weights": Case(lambda n: n.EmbeddingBag(7, 3, mode="sum"), weighted_bags),
    "EmbeddingBag ends": Case(
        lambda n: n.EmbeddingBag(7, 3, include_last_offset=True),
        lambda rng: [rng.integers(0, 7, (6,)), np.array([0, 2, 2, 6])],
    ),
    "EmbeddingBag max norm": Case(lambda n: n.EmbeddingBag(7, 3, mode="sum", max_norm=0.8), bags),
    # --- attention and transformers
    "MultiheadAttention": Case(lambda n: n.MultiheadAttention(8, 2), QUERIES),
    "MultiheadAttention widths": Case(
        lambda n: n.MultiheadAttention(8, 2, kdim=3, vdim=5),
        arrays((5, 2, 8), (4, 2, 3), (4, 2, 5)),
    ),
    "MultiheadAttention more": Case(
        lambda n: n.MultiheadAttention(
            8, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True
        ),
        lambda rng: [rng.standard_normal((2, 5, 8))] * 3 + [PADDING, MASK],
        masked,
    ),
    "MultiheadAttention unbatched": Case(
        lambda n: n.MultiheadAttention(8, 2), arrays((5, 8), (4, 8), (4, 8))
    ),
    "TransformerEncoderLayer": Case(
        lambda n: n.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        sequences(),
        encoded,
    ),
    "TransformerEncoderLayer first": Case(
        lambda n: n.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, activation="gelu", norm_first=True, bias=False
        ),
        real(5, 2, 8),
    ),
    "TransformerDecoderLayer": Case(
        lambda n: n.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        sequences(count=2),
        decoded,
    ),
    "TransformerDecoderLayer first": Case(
        lambda n: n.TransformerDecoderLayer(8, 2, 16, dropout=0.0, norm_first=True),
        arrays((5, 2, 8), (4, 2, 8)),
    ),
    "TransformerEncoder": Case(
        lambda n: n.TransformerEncoder(
            n.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, n.LayerNorm(8)
        ),
        sequences(),
        lambda m, lib, xs: m(xs[0], mask=xs[2], src_key_padding_mask=xs[1]),
    ),
    "TransformerDecoder": Case(
        lambda n: n.TransformerDecoder(
            n.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2
        ),
        sequences(count=2),
        decoded,
    ),
    "Transformer": Case(
        lambda n: n.Transformer(8, 2, 2, 1, 16, dropout=0.0, batch_first=True),
        sequences(count=2),
        transformed,
    ),
    "Transformer dropout off": Case(
        lambda n: n.Transformer(8, 2, 1, 1, 16, dropout=0.5, activation="gelu"),
        arrays((5, 2, 8), (4, 2, 8)),
        evaluate=True,
    ),
    # --- losses
    "MSELoss": Case(lambda n: n.MSELoss(), arrays((3, 4), (3, 4))),
    "L1Loss": Case(lambda n: n.L1Loss(reduction="sum"), arrays((3, 4), (3, 4))),
    "SmoothL1Loss": Case(lambda n: n.SmoothL1Loss(beta=0.5), arrays((3, 4), (3, 4))),
    "HuberLoss": Case(lambda n: n.HuberLoss(delta=0.5), arrays((3, 4), (3, 4))),
    "CrossEntropyLoss": Case(
        lambda n: n.CrossEntropyLoss(label_smoothing=0.1), labels((3, 4), (3,), 4)
    ),
    "NLLLoss": Case(lambda n: n.NLLLoss(), labels((3, 4, 2), (3, 2), 4)),
    "BCELoss": Case(lambda n: n.BCELoss(), probabilities((3, 4)), with_target),
    "BCEWithLogitsLoss": Case(lambda n: n.BCEWithLogitsLoss(), probabilities((3, 4)), with_target),
    "KLDivLoss": Case(
        lambda n: n.KLDivLoss(reduction="batchmean", log_target=True), arrays((3, 4), (3, 4))
    ),
    "PoissonNLLLoss": Case(
        lambda n: n.PoissonNLLLoss(),
        lambda rng: [rng.standard_normal((3, 4)), rng.poisson(3.0, (3, 4)).astype(np.float64)],
        with_target,
    ),
    "GaussianNLLLoss": Case(
        lambda n: n.GaussianNLLLoss(full=True),
        lambda rng: [*arrays((3, 4), (3, 4))(rng), rng.uniform(0.5, 2, (3, 4))],
    ),
    "HingeEmbeddingLoss": Case(lambda n: n.HingeEmbeddingLoss(), signs((5,))),
    "MarginRankingLoss": Case(lambda n: n.MarginRankingLoss(0.3), signs((5,), (5,))),
    "SoftMarginLoss": Case(lambda n: n.SoftMarginLoss(), signs((5,))),
    "CosineEmbeddingLoss": Case(lambda n: n.CosineEmbeddingLoss(0.1), signs((5, 3), (5, 3))),
    "MultiMarginLoss": Case(lambda n: n.MultiMarginLoss(p=2), labels((3, 4), (3,), 4)),
    "MultiLabelMarginLoss": Case(
        lambda n: n.MultiLabelMarginLoss(),
        lambda rng: [rng.standard_normal((2, 4)), np.array([[3, 0, -1, 1], [2, -1, 0, 0]])],
    ),
    "MultiLabelSoftMarginLoss": Case(
        lambda n: n.MultiLabelSoftMarginLoss(), probabilities((3, 4)), with_target
    ),
    "TripletMarginLoss": Case(
        lambda n: n.TripletMarginLoss(swap=True), arrays((3, 4), (3, 4), (3, 4))
    ),
    "TripletMarginWithDistanceLoss": Case(
        lambda n: n.TripletMarginWithDistanceLoss(distance_function=distance, margin=2.0),
        arrays((3, 4), (3, 4), (3, 4)),
    ),
    "CTCLoss": Case(
        lambda n: n.CTCLoss(),
        lambda rng: [rng.standard_normal((6, 2, 4)), rng.integers(1, 4, (2, 2))],
        lambda m, lib, xs: m(lib.functional.log_softmax(xs[0], -1), xs[1], (6, 5), (2, 2)),
    ),
    "LinearCrossEntropyLoss": Case(
        lambda n: n.LinearCrossEntropyLoss(5, 4, bias=True), labels((3, 5), (3,), 4)
    ),
    "LinearCrossEntropyLoss places": Case(
        lambda n: n.LinearCrossEntropyLoss(5, 4, out_features=(2,)), labels((3, 5), (3, 2), 4)
    ),
    "AdaptiveLogSoftmaxWithLoss": Case(
        lambda n: n.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10], head_bias=True),
        labels((6, 16), (6,), 20),
    ),
    "AdaptiveLogSoftmax log_prob": Case(
        lambda n: n.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10], div_value=2.0),
        real(6, 16),
        lambda m, lib, xs: m.log_prob(xs[0]),
    ),
    "CosineSimilarity": Case(lambda n: n.CosineSimilarity(dim=1), arrays((3, 4), (3, 4))),
    "PairwiseDistance": Case(
        lambda n: n.PairwiseDistance(p=3.0, keepdim=True), arrays((3, 4), (3, 4))
    ),
    # --- containers
    "ModuleList": Case(
        lambda n: n.ModuleList([n.Linear(4, 4), n.Linear(4, 2)]),
        X,
        lambda m, lib, xs: m[1](m[0](xs[0])),
    ),
    "ModuleDict": Case(
        lambda n: n.ModuleDict({"a": n.Linear(4, 4), "b": n.Tanh()}),
        X,
        lambda m, lib, xs: m["b"](m["a"](xs[0])),
    ),
    "ParameterList": Case(
        lambda n: n.ParameterList([ones(n, 4), ones(n, 4)]),
        X,
        lambda m, lib, xs: xs[0] * m[0] + m[1],
    ),
    "ParameterDict": Case(
        lambda n: n.ParameterDict({"a": ones(n, 4), "b": ones(n, 4)}),
        X,
        lambda m, lib, xs: xs[0] * m["a"] + m["b"],
    ),
    # --- lazy ones, which have become plain by the first call
    **{
        f"LazyConv{k}d": Case(
            lambda n, k=k: called(getattr(n, f"LazyConv{k}d")(6, 3, groups=2), n, k), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    **{
        f"LazyConvTranspose{k}d": Case(
            lambda n, k=k: called(getattr(n, f"LazyConvTranspose{k}d")(6, 3), n, k), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    **{
        f"LazyBatchNorm{k}d": Case(
            lambda n, k=k: called(getattr(n, f"LazyBatchNorm{k}d")(), n, k), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    **{
        f"LazyInstanceNorm{k}d": Case(
            lambda n, k=k: called(getattr(n, f"LazyInstanceNorm{k}d")(), n, k), PLACES[k]
        )
        for k in (1, 2, 3)
    },
    "LazyLinear": Case(lambda n: called(n.LazyLinear(3), n, 0), X),
    # --- weights made of others
    "weight_norm": Case(lambda n: n.utils.parametrizations.weight_norm(n.Linear(4, 3)), X),
    "weight_norm all": Case(
        lambda n: n.utils.parametrizations.weight_norm(n.Linear(4, 3), dim=None), X
    ),
    "weight_norm conv": Case(
        lambda n: n.utils.parametrizations.weight_norm(n.Conv2d(4, 3, 3), dim=1), IMAGE
    ),
    "spectral_norm": Case(
        lambda n: n.utils.parametrizations.spectral_norm(n.Linear(4, 3), n_power_iterations=2), X
    ),
    "spectral_norm conv": Case(
        lambda n: n.utils.parametrizations.spectral_norm(n.ConvTranspose2d(4, 3, 3)), IMAGE
    ),
    "orthogonal": Case(lambda n: n.utils.parametrizations.orthogonal(n.Linear(4, 4)), X),
    "orthogonal cayley": Case(
        lambda n: n.utils.parametrizations.orthogonal(n.Linear(4, 3), orthogonal_map="cayley"), X
    ),
    "orthogonal householder": Case(
        lambda n: n.utils.parametrizations.orthogonal(n.Linear(4, 6), use_trivialization=False), X
    ),
    "older weight_norm": Case(lambda n: n.utils.weight_norm(n.Linear(4, 3)), X),
    "older spectral_norm": Case(
        lambda n: n.utils.spectral_norm(n.Linear(4, 3), n_power_iterations=2), X
    ),
    "pruned": Case(lambda n: n.utils.prune.identity(n.Linear(4, 3), "weight"), X),
}


def samples(lib: Any, places: int) -> Any:
    """The same numbers for both libraries."""
    drawn = np.random.default_rng(7).uniform(size=(2, 4, places))
    return eg.tensor(drawn) if lib is nn else torch.from_numpy(drawn)


def ones(lib: Any, n: int) -> Any:
    array = np.ones(n)
    return eg.tensor(array) if lib is nn else torch.from_numpy(array)


def called(module: Any, lib: Any, places: int) -> Any:
    """A lazy module after its first input."""
    shape = {0: (3, 4), 1: (2, 4, 6), 2: (2, 4, 6, 6), 3: (2, 4, 4, 4, 4)}[places]
    array = np.ones(shape, np.float32)
    module(eg.tensor(array) if lib is nn else torch.from_numpy(array))
    return module


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name: str) -> None:
    train_beside_torch(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_torch(name: str) -> None:
    train_beside_torch(CASES[name], steps=2, jit=True)


def test_every_layer_of_torch_is_in_the_table() -> None:
    listed = {name.split(" ")[0] for name in CASES}
    layers = {n for n in dir(torch.nn) if isinstance(getattr(torch.nn, n), type)}
    layers = {n for n in layers if issubclass(getattr(torch.nn, n), torch.nn.Module)}
    elsewhere = {"Module", "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"}
    elsewhere |= {"RNNBase", "RNNCellBase"}
    assert {n for n in layers & {*dir(nn)} if n not in listed} <= elsewhere
