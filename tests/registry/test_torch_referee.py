"""PyTorch as second referee: values, first and second derivatives, real and complex."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import everygrad as eg
from everygrad.ops.record.spec import REGISTRY, Op, Sample
from tests.support.checks import (
    WITH_SAMPLES,
    all_close,
    arrays_of,
    call,
    close,
    function_of,
    is_flat,
    is_float,
    map_sample,
)

torch.set_num_threads(1)  # these arrays are tiny, and two test processes share the cores
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One op called the same way in both libraries, on several sets of input shapes."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[Shape, ...], ...]
    low: float = -2.0
    high: float = 2.0
    complex: bool = False

    def __str__(self) -> str:
        return self.name


ONE: Any = (((),), ((4,),), ((2, 3),), ((0, 2),), ((3, 1, 2),))
TWO: Any = (((3,), (3,)), ((2, 3), (3,)), ((4, 1), (1, 3)), ((), (2, 2)), ((2, 1, 3), (4, 1)))
MANY: Any = (((2, 3, 4),),)
UNARY = {
    # name: (PyTorch's function, lowest, highest, whether complex too)
    "negative": (torch.neg, -2, 2, True), "square": (torch.square, -2, 2, True),
    "reciprocal": (torch.reciprocal, 0.5, 2, True), "sqrt": (torch.sqrt, 0.1, 2, True),
    "rsqrt": (torch.rsqrt, 0.1, 2, True), "sign": (torch.sign, -2, 2, False),
    "abs": (torch.abs, -2, 2, True), "floor": (torch.floor, -5, 5, False),
    "ceil": (torch.ceil, -5, 5, False), "trunc": (torch.trunc, -5, 5, False),
    "round": (torch.round, -5, 5, False), "exp": (torch.exp, -2, 2, True),
    "exp2": (torch.exp2, -2, 2, True), "expm1": (torch.expm1, -2, 2, True),
    "log": (torch.log, 0.1, 2, True), "log1p": (torch.log1p, -0.9, 2, True),
    "log2": (torch.log2, 0.1, 2, True), "log10": (torch.log10, 0.1, 2, True),
    "sin": (torch.sin, -3, 3, True), "cos": (torch.cos, -3, 3, True),
    "tan": (torch.tan, -1.2, 1.2, True), "asin": (torch.asin, -0.9, 0.9, True),
    "acos": (torch.acos, -0.9, 0.9, True), "atan": (torch.atan, -2, 2, True),
    "sinh": (torch.sinh, -2, 2, True), "cosh": (torch.cosh, -2, 2, True),
    "tanh": (torch.tanh, -2, 2, True), "asinh": (torch.asinh, -2, 2, True),
    "acosh": (torch.acosh, 1.2, 3, True), "atanh": (torch.atanh, -0.9, 0.9, True),
    "erf": (torch.erf, -2, 2, False), "sigmoid": (torch.sigmoid, -5, 5, False),
    "relu": (torch.relu, -2, 2, False), "softplus": (F.softplus, -5, 5, False),
    "silu": (F.silu, -5, 5, False), "gelu": (F.gelu, -3, 3, False),
    "conj": (lambda x: torch.conj(x).resolve_conj(), -2, 2, True),
    "clone": (torch.clone, -2, 2, True), "positive": (torch.positive, -2, 2, True),
}  # fmt: skip
BINARY = {
    "add": (torch.add, -2, 2, True), "subtract": (torch.subtract, -2, 2, True),
    "multiply": (torch.multiply, -2, 2, True), "divide": (torch.divide, 0.5, 2, True),
    "remainder": (torch.remainder, 0.3, 2, False), "maximum": (torch.maximum, -2, 2, False),
    "minimum": (torch.minimum, -2, 2, False), "pow": (torch.pow, 0.5, 2, True),
    "atan2": (torch.atan2, 0.3, 2, False),
}  # fmt: skip


def method(name: str, *args: Any, **options: Any) -> Callable[..., Any]:
    return lambda x, *more: REGISTRY[name].function(x, *more, *args, **options)


def _reductions() -> Iterator[Case]:
    axes: tuple[Any, ...] = (None, 0, -1, (0, 2), (-1, 1))
    for axis in axes:
        for keep in (False, True):
            given = {"axis": axis, "keepdims": keep}
            dims = tuple(range(3)) if axis is None else axis
            for name, fn, complex_too in (
                ("sum", torch.sum, True),
                ("mean", torch.mean, True),
                ("max", torch.amax, False),
                ("min", torch.amin, False),
                ("logsumexp", torch.logsumexp, False),
            ):
                yield Case(
                    name,
                    method(name, **given),
                    lambda x, fn=fn, dims=dims, keep=keep: fn(x, dim=dims, keepdim=keep),
                    MANY,
                    complex=complex_too,
                )
            for name, fn in (("var", torch.var), ("std", torch.std)):
                yield Case(
                    name,
                    method(name, correction=1, **given),
                    lambda x, fn=fn, dims=dims, keep=keep: fn(
                        x, dim=dims, correction=1, keepdim=keep
                    ),
                    MANY,
                )
    for axis in (0, 1, -1):
        for name, fn in (
            ("prod", torch.prod),
            ("softmax", F.softmax),
            ("log_softmax", F.log_softmax),
        ):
            yield Case(
                name,
                method(name, axis=axis),
                lambda x, fn=fn, axis=axis: fn(x, dim=axis),
                (((3, 4),), ((2, 3, 4),)),
                complex=name == "prod",
            )


INDEX = np.array([0, 2, 2, 1])
PLACES = np.array([[0, 2, 1], [1, 1, 0]])
LABELS = np.array([0, 2, 1, 2])


def _t(a: Any) -> Any:
    return torch.tensor(a)


def _movement() -> Iterator[Case]:
    both: Any = (
        ("reshape", ((3, 2),), lambda x: x.reshape(3, 2), (2, 3)),
        ("permute_dims", ((2, 0, 1),), lambda x: x.permute(2, 0, 1), (2, 3, 4)),
        ("broadcast_to", ((4, 2, 3),), lambda x: x.expand(4, 2, 3), (2, 1)),
        ("flip", ((0, -1),), lambda x: x.flip(0, -1), (2, 3)),
        ("squeeze", (1,), lambda x: x.squeeze(1), (2, 1, 3)),
        ("expand_dims", (1,), lambda x: x.unsqueeze(1), (2, 3)),
        ("swapaxes", (0, -1), lambda x: x.swapaxes(0, -1), (2, 3, 4)),
        ("moveaxis", ((0, 1), (-1, 0)), lambda x: x.movedim((0, 1), (-1, 0)), (2, 3, 4)),
        ("matrix_transpose", (), lambda x: x.mT, (2, 3, 4)),
        ("flatten", (1,), lambda x: x.flatten(1), (2, 3, 4)),
        ("roll", ((1, -2), (0, 1)), lambda x: x.roll((1, -2), (0, 1)), (3, 4)),
        ("pad", (((1, 0), (0, 2)),), lambda x: F.pad(x, (0, 2, 1, 0)), (2, 3)),
        ("tril", (1,), lambda x: x.tril(1), (3, 4)),
        ("triu", (-1,), lambda x: x.triu(-1), (2, 4, 3)),
        ("split", (2, 1), lambda x: list(x.split(2, 1)), (2, 5)),
        ("getitem", ((slice(None, None, 2), INDEX),), lambda x: x[::2, _t(INDEX)], (3, 4)),
        ("getitem", ((..., -1),), lambda x: x[..., -1], (3, 4)),
        ("getitem", ((None, 1),), lambda x: x[None, 1], (3, 4)),
        ("sum_to", ((3, 1),), lambda x: x.sum_to_size(3, 1), (2, 3, 4)),
    )
    for name, args, theirs, shape in both:
        yield Case(name, method(name, *args), theirs, ((shape,),), complex=True)
    yield Case(
        "concat",
        lambda *xs: eg.concat(xs, axis=1),
        lambda *xs: torch.cat(xs, 1),
        (((2, 3), (2, 1), (2, 0)),),
        complex=True,
    )
    yield Case(
        "stack",
        lambda *xs: eg.stack(xs, axis=-1),
        lambda *xs: torch.stack(xs, -1),
        (((2, 3), (2, 3)),),
        complex=True,
    )
    yield Case(
        "where",
        lambda x, y: eg.where(eg.tensor(PLACES > 0), x, y),
        lambda x, y: torch.where(_t(PLACES > 0), x, y),
        (((2, 3), (3,)), ((), (2, 1))),
        complex=True,
    )
    yield Case("clamp", lambda x: x.clamp(-0.5, 1.0), lambda x: x.clamp(-0.5, 1.0), ONE)
    yield Case("clamp", lambda x: x.clamp(min=0.1), lambda x: x.clamp(min=0.1), ONE)
    yield Case(
        "clamp",
        lambda x, a, b: x.clamp(a, b),
        lambda x, a, b: x.clamp(a, b),
        (((4, 3), (3,), (4, 1)),),
    )


def _indexing() -> Iterator[Case]:
    index, places = eg.tensor(INDEX), eg.tensor(PLACES)
    yield Case(
        "take",
        lambda x: x.take(index, axis=1),
        lambda x: x.index_select(1, _t(INDEX)),
        (((2, 3, 2),),),
        complex=True,
    )
    yield Case(
        "index_select",
        lambda x: x.index_select(index),
        lambda x: x.index_select(0, _t(INDEX)),
        (((3, 2),),),
        complex=True,
    )
    yield Case(
        "index_add",
        lambda x, y: x.index_add(index, y, axis=1),
        lambda x, y: x.index_add(1, _t(INDEX), y),
        (((2, 3), (2, 4)),),
        complex=True,
    )
    yield Case(
        "gather",
        lambda x: x.gather(places, axis=0),
        lambda x: x.gather(0, _t(PLACES)),
        (((3, 4),),),
        complex=True,
    )
    yield Case(
        "scatter_add",
        lambda x, y: x.scatter_add(places, y, axis=1),
        lambda x, y: x.scatter_add(1, _t(PLACES), y),
        (((3, 4), (2, 3)),),
        complex=True,
    )
    yield Case(
        "take_along_axis",
        lambda x: x.take_along_axis(places, axis=1),
        lambda x: x.take_along_dim(_t(PLACES), 1),
        (((2, 4),), ((1, 3),)),
        complex=True,
    )
    yield Case(
        "embedding",
        lambda w: eg.embedding(places, w),
        lambda w: F.embedding(_t(PLACES), w),
        (((3, 2),),),
    )


def _products() -> Iterator[Case]:
    yield Case(
        "matmul",
        eg.matmul,
        torch.matmul,
        (
            ((2, 3), (3, 4)),
            ((3,), (3,)),
            ((3,), (3, 2)),
            ((2, 3), (3,)),
            ((4, 2, 3), (3, 2)),
            ((2, 3), (4, 3, 2)),
            ((2, 1, 2, 3), (4, 3, 2)),
            ((3,), (2, 3, 2)),
            ((5, 1, 2, 3), (3,)),
            ((0, 3), (3, 2)),
            ((2, 0), (0, 3)),
            ((4, 0, 3), (3, 2)),
        ),
        complex=True,
    )
    linear_shapes = (((2, 3), (4, 3)), ((3,), (2, 3)), ((2, 5, 3), (4, 3)), ((0, 3), (4, 3)))
    yield Case("linear", eg.nn.functional.linear, F.linear, linear_shapes, complex=True)
    biased = (((2, 3), (4, 3), (4,)), ((2, 2, 3), (1, 3), (1,)))
    yield Case("linear_bias", eg.nn.functional.linear, F.linear, biased, complex=True)
    rows = (((4, 2), (4, 3)), ((2, 2, 3), (2, 2, 1)))
    summed = "...i,...j->ij"
    yield Case(
        "linear_weight", REGISTRY["linear_weight"].function, partial(torch.einsum, summed), rows
    )
    yield Case(
        "vecdot", eg.vecdot, torch.linalg.vecdot, (((3,), (3,)), ((2, 3), (3,))), complex=True
    )
    yield Case("outer", eg.outer, torch.outer, (((3,), (2,)),), complex=True)


def _neural() -> Iterator[Case]:
    labels = eg.tensor(LABELS)
    for k, s, p, d, groups in (
        (3, 1, 1, 1, 1),
        (2, 2, 0, 1, 2),
        (3, 2, 1, 2, 1),
        (1, 3, 0, 1, 2),
        ((2, 3), (2, 1), (0, 2), (1, 2), 1),
    ):
        kh, kw = k if isinstance(k, tuple) else (k, k)
        yield Case(
            "conv2d",
            lambda x, w, b, s=s, p=p, d=d, g=groups: eg.conv2d(x, w, b, s, p, d, g),
            lambda x, w, b, s=s, p=p, d=d, g=groups: F.conv2d(x, w, b, s, p, d, g),
            (((2, 2, 7, 6), (4, 2 // groups, kh, kw), (4,)),),
        )
    for k, s, p, d in ((2, None, 0, 1), (3, 2, 1, 1), ((2, 3), (1, 2), (1, 1), (2, 1))):
        yield Case(
            "max_pool2d",
            lambda x, a=(k, s, p, d): eg.max_pool2d(x, *a),
            lambda x, a=(k, s, p, d): F.max_pool2d(x, *a),
            (((2, 3, 7, 6),),),
        )
        for pad in (True, False):
            yield Case(
                "avg_pool2d",
                lambda x, a=(k, s, p), c=pad: eg.avg_pool2d(x, *a, count_include_pad=c),
                lambda x, a=(k, s, p), c=pad: F.avg_pool2d(x, *a, count_include_pad=c),
                (((2, 3, 7, 6),),),
            )
    yield Case(
        "layer_norm",
        lambda x, w, b: eg.layer_norm(x, (3, 4), w, b, 1e-3),
        lambda x, w, b: F.layer_norm(x, (3, 4), w, b, 1e-3),
        (((2, 3, 4), (3, 4), (3, 4)),),
    )
    yield Case(
        "nll_gather",
        lambda x: REGISTRY["nll_gather"].function(x, labels, axis=1, ignore_index=1),
        lambda x: F.nll_loss(x, _t(LABELS), ignore_index=1, reduction="none"),
        (((4, 3),),),
    )
    for how in ("mean", "sum", "none"):
        yield Case(
            "mse_loss",
            lambda x, y, r=how: eg.mse_loss(x, y, r),
            lambda x, y, r=how: F.mse_loss(x, y, reduction=r),
            (((2, 3), (2, 3)),),
        )
        for smooth in (0.0, 0.2):
            options = {"reduction": how, "label_smoothing": smooth}
            yield Case(
                "cross_entropy",
                lambda x, o=options: eg.cross_entropy(x, labels, **o),
                lambda x, o=options: F.cross_entropy(x, _t(LABELS), **o),
                (((4, 3),),),
            )
            # PyTorch has no gradient for the weights of the classes: they are constants here
            weight = np.array([0.5, 2.0, 1.0])
            yield Case(
                "cross_entropy",
                lambda x, o=options, w=weight: eg.cross_entropy(
                    x, labels, eg.tensor(w), ignore_index=1, **o
                ),
                lambda x, o=options, w=weight: F.cross_entropy(
                    x, _t(LABELS), _t(w), ignore_index=1, **o
                ),
                (((4, 3),),),
            )
            yield Case(
                "cross_entropy",
                lambda x, y, o=options: eg.cross_entropy(x, y, **o),
                lambda x, y, o=options: F.cross_entropy(x, y, **o),
                (((4, 3), (4, 3)),),
                low=0.1,
            )


def _all_cases() -> list[Case]:
    cases = [
        Case(n, REGISTRY[n].function, fn, shapes, low, high, also)
        for table, shapes in ((UNARY, ONE), (BINARY, TWO))
        for n, (fn, low, high, also) in table.items()
    ]
    # PyTorch has no imag of real numbers: it is 0
    imag = Case("imag", eg.imag, lambda x: x.imag if x.is_complex() else x * 0, ONE, complex=True)
    cases += [imag, Case("real", eg.real, torch.real, ONE, complex=True)]
    return [*cases, *_reductions(), *_movement(), *_indexing(), *_products(), *_neural()]


CASES = _all_cases()
NAMES = sorted({c.name for c in CASES})
# without a counterpart in PyTorch, or without a derivative to compare
ELSEWHERE = {
    "floor_divide", "slice", "unslice", "conv2d_input", "conv2d_weight", "max_pool2d_index",
    "max_pool2d_value", "max_pool2d_spread", "sum_pool2d", "sum_pool2d_spread",
    "convolve3d", "convolve3d_input", "convolve3d_weight",
    "astype", "to", "identity", "softmax_vjp", "log_softmax_vjp", "standardize",
    "standardize_vjp", "last_write", "mulhi", "philox", "check_range",
    "attention", "attention_masked", "attention_grads", "attention_masked_grads", "nll_scatter",
}  # fmt: skip


def test_every_differentiable_op_has_a_second_referee() -> None:
    ops = {n: REGISTRY[n] for n in WITH_SAMPLES if n not in NAMES and n not in ELSEWHERE}
    # test_linalg.py and test_fft.py hold these beside PyTorch, to second order
    own = {"einsum", "kron", "tensordot", "stft", "istft"}
    own |= {n for n, op in ops.items() if op.namespace in ("linalg", "fft")}
    said = own | {n for n, op in ops.items() if is_flat(op) or op.namespace == "internal"}
    assert {*ops} - said - {n for n, op in ops.items() if "torch" in op.notes} == set()


def counterpart(op: Op) -> Callable[..., Any]:
    """What the record names as PyTorch's version: "module:name", or a function of torch first."""
    named = op.notes["torch"]
    if not isinstance(named, str):
        return partial(named, torch)
    module, name = named.split(":")
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


def differentiable(op: Op) -> list[Sample]:
    return [] if is_flat(op) else [s for s in op.samples() if any(map(is_float, arrays_of(s)))]


@pytest.mark.parametrize(
    "name",
    [n for n in WITH_SAMPLES if REGISTRY[n].notes.get("torch") and differentiable(REGISTRY[n])],
)
def test_samples_equal_pytorch(name: str) -> None:
    """The record's own samples, called the same way; `axis` is `dim` there."""
    op = REGISTRY[name]
    renamed = {"axis": "dim", "keepdims": "keepdim"}
    for sample in differentiable(op):
        floats = list(filter(is_float, arrays_of(sample)))

        def ours(*xs: Any, sample=sample) -> Any:
            return call(function_of(op), with_these(sample, xs, eg.tensor))

        def theirs(*xs: Any, sample=sample) -> Any:
            given = with_these(sample, xs, torch.tensor)
            known = given.kwargs
            if isinstance(op.notes["torch"], str):
                known = {renamed.get(k, k): v for k, v in known.items()}
            return counterpart(op)(*given.args, **known)

        compare_arrays(Case(name, ours, theirs, ()), floats, np.random.default_rng(11))


def with_these(sample: Sample, floats: Any, make: Callable[[Any], Any]) -> Sample:
    """The sample with these tensors for its floating-point arrays, and its others made tensors."""
    supply = iter(floats)
    return map_sample(sample, lambda a: next(supply) if is_float(a) else make(a))


def listed(out: Any) -> list[Any]:
    return list(out) if isinstance(out, list | tuple) else [out]


def draw(rng: Any, shape: Shape, case: Case, complex_too: bool) -> Any:
    x = rng.uniform(case.low, case.high, shape)
    return np.asarray(x + 1j * rng.uniform(-1, 1, shape) if complex_too else x)


def seeds_like(rng: Any, outs: list[Any]) -> list[Any]:
    made = []
    for out in outs:
        v = rng.uniform(-1, 1, tuple(out.shape))
        made.append(np.asarray(v + 1j * rng.uniform(-1, 1, v.shape) if out.is_complex() else v))
    return made


def compare(case: Case, shapes: tuple[Shape, ...], complex_too: bool) -> None:
    """Both libraries on random inputs of these shapes."""
    rng = np.random.default_rng(11)
    compare_arrays(case, [draw(rng, s, case, complex_too) for s in shapes], rng)


def compare_arrays(case: Case, arrays: list[Any], rng: Any) -> None:
    """Values, gradients, and the gradients of <gradients, random>, in both libraries."""
    ours = [eg.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    out, want = listed(case.ours(*ours)), listed(case.theirs(*theirs))
    what = f"{case.name} {[a.shape for a in arrays]}"
    all_close(out, [w.numpy(force=True) for w in want], 1e-11, what)
    vs = seeds_like(rng, want)
    seeds = [eg.tensor(v, requires_grad=True) for v in vs]
    their_seeds = [torch.tensor(v, requires_grad=True) for v in vs]
    once = eg.autograd.grad(out, ours, seeds, create_graph=True)
    plain = eg.autograd.grad(listed(case.ours(*ours)), ours, [s.detach() for s in seeds])
    their_once = torch.autograd.grad(want, theirs, their_seeds, create_graph=True)
    all_close(list(once), [g.numpy(force=True) for g in their_once], 1e-10, what)
    all_close(list(plain), [g.numpy(force=True) for g in their_once], 1e-10, what)
    us = seeds_like(rng, list(their_once))
    targets, their_targets = [*ours, *seeds], [*theirs, *their_seeds]
    twice = _again(once, targets, us)
    their_twice = _again_torch(their_once, their_targets, us)
    for got, expected, target in zip(twice, their_twice, their_targets, strict=True):
        zero = np.zeros(tuple(target.shape))
        close(
            zero if got is None else got,
            zero if expected is None else expected.numpy(force=True),
            1e-9,
            what,
        )


def _again(grads: Any, targets: list[Any], us: list[Any]) -> Any:
    pairs = [(g, eg.tensor(u)) for g, u in zip(grads, us, strict=True) if g.requires_grad]
    if not pairs:
        return [None] * len(targets)
    return eg.autograd.grad(
        [g for g, _ in pairs], targets, [u for _, u in pairs], allow_unused=True
    )


def _again_torch(grads: Any, targets: list[Any], us: list[Any]) -> Any:
    pairs = [(g, torch.tensor(u)) for g, u in zip(grads, us, strict=True) if g.requires_grad]
    if not pairs:
        return [None] * len(targets)
    return torch.autograd.grad(
        [g for g, _ in pairs], targets, [u for _, u in pairs], allow_unused=True
    )


@pytest.mark.parametrize("name", NAMES)
def test_equals_pytorch(name: str) -> None:
    for case in [c for c in CASES if c.name == name]:
        for shapes in case.shapes:
            compare(case, shapes, complex_too=False)


@pytest.mark.parametrize("name", sorted({c.name for c in CASES if c.complex}))
def test_complex_derivatives_equal_pytorch(name: str) -> None:
    """Also after the op's derivative was compiled for real numbers."""
    for case in [c for c in CASES if c.name == name and c.complex]:
        for shapes in case.shapes:
            compare(case, shapes, complex_too=False)
            compare(case, shapes, complex_too=True)


def test_real_input_of_a_complex_product_gets_a_real_gradient() -> None:
    a, b = np.array([1.0, -2.0]), np.array([1 + 2j, 3 - 1j])
    for name in ("add", "subtract", "multiply", "divide", "pow"):
        x, y = eg.tensor(np.abs(a), requires_grad=True), eg.tensor(b, requires_grad=True)
        s, t = torch.tensor(np.abs(a), requires_grad=True), torch.tensor(b, requires_grad=True)
        out, want = REGISTRY[name].function(x, y), BINARY[name][0](s, t)
        out.backward(eg.ones_like(out))
        want.backward(torch.ones_like(want))
        close(x.grad, s.grad.numpy(), 1e-12, name)
        close(y.grad, t.grad.numpy(), 1e-12, name)
        assert x.grad.dtype is eg.float64
