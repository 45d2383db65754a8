"""What the modules and utilities of nn refuse, and the names of torch.nn that they lack."""

import inspect
from typing import Any

import pytest
import torch

import everygrad as eg
from everygrad import nn
from everygrad.core.torch_absent import ABSENT
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.nn.functions.forward_words import in_our_words

F = nn.functional


def two_layers() -> Any:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


# --- what is refused -----------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "functional_call name": (
        lambda: nn.functional_call(nn.Linear(2, 3), {"wieght": eg.ones((3, 2))}, eg.ones((1, 2))),
        ArgumentError,
        "no 'wieght'; nearest: weight",
    ),
    "functional_call strict": (
        lambda: nn.functional_call(nn.Linear(2, 3), {}, eg.ones((1, 2)), strict=True),
        ArgumentError,
        "missing: weight, bias",
    ),
    "stack of none": (lambda: nn.stack_module_state([]), ArgumentError, "one module or more"),
    "stack of two kinds": (
        lambda: nn.stack_module_state([nn.Linear(2, 3), nn.ReLU()]),
        ArgumentError,
        "of one class",
    ),
    "summary": (lambda: nn.summary(nn.Linear(2, 3)), ArgumentError, "needs an input"),
    "vector": (
        lambda: nn.utils.vector_to_parameters(eg.ones((3,)), nn.Linear(2, 3).parameters()),
        ShapeError,
        "9 numbers are needed",
    ),
    "fuse in training": (
        lambda: nn.utils.fuse_conv_bn_eval(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)),
        ArgumentError,
        "evaluation only",
    ),
    "prune share": (
        lambda: nn.utils.prune.l1_unstructured(nn.Linear(2, 3), "weight", 1.5),
        ArgumentError,
        "between 0.0 and 1.0",
    ),
    "prune name": (
        lambda: nn.utils.prune.identity(nn.Linear(2, 3), "weights"),
        ArgumentError,
        "no parameter 'weights'; there are: weight, bias",
    ),
    "unprune": (
        lambda: nn.utils.prune.remove(nn.Linear(2, 3), "weight"),
        ArgumentError,
        "not pruned",
    ),
    "parametrize": (
        lambda: nn.utils.parametrize.register_parametrization(nn.Linear(2, 3), "w", nn.ReLU()),
        ArgumentError,
        "no tensor 'w'; there are: weight, bias",
    ),
    "parametrize shape": (
        lambda: nn.utils.parametrize.register_parametrization(
            nn.Linear(2, 3), "weight", nn.Flatten(0)
        ),
        ShapeError,
        r"gives float32 \(6,\) in place of float32 \(3, 2\)",
    ),
    "orthogonal map": (
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(2, 3), orthogonal_map="qr"),
        ArgumentError,
        "orthogonal_map must be one of",
    ),
    "spectral rounds": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(2, 3), n_power_iterations=0),
        ArgumentError,
        "n_power_iterations must be positive",
    ),
    "assign pruned": (
        lambda: setattr(
            nn.utils.prune.identity(nn.Linear(2, 3), "weight"), "weight", eg.ones((3, 2))
        ),
        ArgumentError,
        "computed from other parameters",
    ),
    "bag mode": (lambda: nn.EmbeddingBag(3, 2, mode="min"), ArgumentError, 'mode must be "sum"'),
    "bag offsets": (
        lambda: nn.EmbeddingBag(3, 2)(eg.tensor([[0, 1]]), eg.tensor([0])),
        ArgumentError,
        "offsets are for indices with one axis",
    ),
    "bag weights": (
        lambda: nn.EmbeddingBag(3, 2)(eg.tensor([[0, 1]]), per_sample_weights=eg.ones((1, 2))),
        ArgumentError,
        "per_sample_weights are for mode",
    ),
    "max norm": (
        lambda: nn.Embedding(3, 2, max_norm=0.0),
        ArgumentError,
        "max_norm must be positive",
    ),
    "bilinear": (
        lambda: nn.Bilinear(2, 3, 4)(eg.ones((5, 3)), eg.ones((5, 3))),
        ShapeError,
        "bilinear: a weight",
    ),
    "cutoffs": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5, 3]),
        ArgumentError,
        "cutoffs must be integers that rise",
    ),
    "rrelu": (lambda: nn.RReLU(0.5, 0.1), ArgumentError, "lower 0.5 must not be above upper 0.1"),
    "dropout1d": (lambda: nn.Dropout1d()(eg.ones((3,))), ShapeError, "takes 2 or 3 dimensions"),
    "dropout p": (lambda: nn.AlphaDropout(1.5), ArgumentError, "p must be between 0 and 1"),
    "fractional": (lambda: nn.FractionalMaxPool2d(2), ArgumentError, "output_size or output_ratio"),
    "fractional fit": (
        lambda: F.fractional_max_pool2d(eg.ones((1, 4, 4)), 3, output_size=3),
        ShapeError,
        "3 windows of 3 do not fit",
    ),
    "unflatten": (
        lambda: nn.Unflatten(1, (2, 2))(eg.ones((3, 5))),
        ShapeError,
        "an axis of 5 cannot become",
    ),
    "activation": (
        lambda: nn.TransformerEncoderLayer(4, 2, activation="tanh"),
        ArgumentError,
        'must be "relu", "gelu"',
    ),
    "transformer": (
        lambda: nn.Transformer(4, 2, 1, 1, 8)(eg.ones((3, 2, 4)), eg.ones((3, 1, 4))),
        ShapeError,
        "same batch",
    ),
    "lazy": (lambda: nn.LazyConv2d(3, 2)(eg.ones((3, 4))), ShapeError, "takes 4 dimensions"),
    "lazy options": (lambda: nn.LazyLinear(0), ArgumentError, "out_features must be a positive"),
    "orthogonal_": (lambda: nn.init.orthogonal_(eg.ones((3,))), ShapeError, "2 dimensions or more"),
    "trunc_normal_": (
        lambda: nn.init.trunc_normal_(eg.ones((3,)), a=2.0),
        ArgumentError,
        "must be below b",
    ),
    "sparse_": (
        lambda: nn.init.sparse_(eg.ones((3, 3)), 2.0),
        ArgumentError,
        "sparsity must be between",
    ),
    "dirac_": (lambda: nn.init.dirac_(eg.ones((3, 3))), ShapeError, "3, 4 or 5 dimensions"),
    "labels": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3])(eg.ones((1, 4)), eg.ones((1,))),
        DtypeError,
        "labels must be integers",
    ),
    "norm eps": (
        lambda: nn.BatchNorm2d(3, eps=-1.0),
        ArgumentError,
        "BatchNorm2d: eps must not be",
    ),
    "huber": (lambda: nn.HuberLoss(delta=-1.0), ArgumentError, "HuberLoss: delta must be positive"),
    "smooth": (lambda: nn.SmoothL1Loss(beta=-1.0), ArgumentError, "SmoothL1Loss: beta must not be"),
    "shuffle": (lambda: nn.PixelShuffle(0), ArgumentError, "PixelShuffle: upscale_factor must be"),
    "upsample": (lambda: nn.Upsample(2, mode="x"), ArgumentError, "Upsample: mode must be one of"),
    "submodule": (
        lambda: two_layers().get_submodule("7"),
        ArgumentError,
        "no module '7'; there are: 0, 1, 2",
    ),
    "parameter": (
        lambda: two_layers().get_parameter("0.weigth"),
        ArgumentError,
        "nearest: 0.weight",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()


# --- names ---------------------------------------------------------------------------------------


def torch_names(path: str) -> set[str]:
    """The public names of one of torch's modules: functions and classes that are its own."""
    module: Any = torch
    for step in path.split(".")[1:]:
        module = getattr(module, step)
    listed = getattr(module, "__all__", None)
    if listed is None or path == "torch.nn.init":
        listed = [n for n in dir(module) if not n.startswith("_")]
    theirs = {n: getattr(module, n, None) for n in listed}
    homes = {n: getattr(v, "__module__", "") or "torch" for n, v in theirs.items() if callable(v)}
    own = {n for n, home in homes.items() if "torch" in home}
    helpers = {"assert_int_or_pair", "boolean_dispatch", "handle_torch_function"}
    helpers |= {n for n in own if n.startswith("has_torch_function")}
    typing_names = {"Tensor", "DType", "Optional", "Callable", "Literal", "ParamSpec", "TypeVar"}
    typing_names |= {"BroadcastingList1", "BroadcastingList2", "BroadcastingList3"}
    return own - helpers - typing_names - {"ScalingType", "SwizzleType", "factory_kwargs"}


@pytest.mark.parametrize("path", ABSENT)
def test_absent_names_are_listed_with_their_reason(path: str) -> None:
    here: Any = eg
    for step in path.split(".")[1:]:
        here = getattr(here, step)
    names = torch_names(path)
    assert len(names) > 2
    absent = {n for n in names if not hasattr(here, n)}
    assert absent == set(ABSENT[path])
    assert len(absent) <= 0.1 * len(names)
    for name in absent:
        with pytest.raises(AttributeError, match=name):
            getattr(here, name)


def test_missing_names_answer_with_the_nearest() -> None:
    for module, name, near in (
        (nn, "Conv2D", "Conv2d"), (nn, "LinearLayer", "Linear"), (F, "soft_max", "softmax"),
        (nn.init, "xavier", "xavier_uniform"), (nn.utils, "clip_gradnorm_", "clip_grad_norm_"),
        (nn.utils.prune, "l1", "l1_unstructured"),
        (eg.distributions.transforms, "Affine", "AffineTransform"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=f"{name}.*nearest.*{near}"):
            getattr(module, name)


def forwards() -> list[str]:
    """The modules whose forward function is the same in both libraries but for names."""
    both = (n for n in torch_names("torch.nn") if isinstance(getattr(torch.nn, n), type))
    layers = [n for n in both if issubclass(getattr(torch.nn, n), torch.nn.Module)]
    others = ("RNNBase", "RNNCellBase", "Container")
    return sorted(n for n in layers if hasattr(nn, n) and n not in others)


@pytest.mark.parametrize("name", forwards())
def test_forward_takes_pytorchs_words(name: str) -> None:
    def named(cls: Any) -> list[str]:
        found = inspect.signature(cls.forward).parameters.values()
        return [p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)][1:]

    theirs, own = named(getattr(torch.nn, name)), named(getattr(nn, name))
    assert set(in_our_words(getattr(nn, name).forward, dict.fromkeys(theirs))) <= set(own)


def test_modules_called_by_pytorchs_words() -> None:
    x, labels = eg.randn(3, 4), eg.tensor([0, 1, 2])
    for module, places, words in (
        (nn.CrossEntropyLoss(), (x, labels), {"input": x, "target": labels}),
        (nn.Linear(4, 2), (x,), {"input": x}),
        (nn.Bilinear(4, 4, 2), (x, x), {"input1": x, "input2": x}),
        (nn.Sequential(nn.Linear(4, 2), nn.Tanh()), (x,), {"input": x}),
        (nn.Embedding(4, 2), (labels,), {"input": labels}),
    ):
        want = module(*places).tolist()
        assert module(**words).tolist() == want
        assert eg.allclose(eg.jit(module)(**words), eg.tensor(want), rtol=1e-5)
        module.register_forward_hook(lambda module, args, out: out)
        assert module(**words).tolist() == want

    class Own(nn.Module):
        def forward(self, q: Any, **others: Any) -> Any:
            return others

    assert Own()(1, input=2) == {"input": 2}
    with pytest.raises(TypeError, match="unexpected keyword argument 'inputt'"):
        nn.Linear(4, 2)(inputt=x)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        nn.Linear(4, 2)(x, input=x)
