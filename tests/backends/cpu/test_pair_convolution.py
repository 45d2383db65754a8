"""Convolutions of 16-bit floats against PyTorch in float64: values, gradients, with and without the
processor's dot products of bfloat16 pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.backends import thread_pool
from everygrad.backends.cpu.conv import pair_convolution
from everygrad.backends.cpu.graph.execution_plan import NativeStep, build
from everygrad.compiler.ir import Graph
from everygrad.ops.nn.conv2d import Window
from everygrad.ops.record.spec import REGISTRY

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
HAS_DOTS = pair_convolution.serves(eg.bfloat16)


class Case(NamedTuple):
    """An image, a kernel, and how it moves."""

    image: tuple[int, int, int, int]
    kernel: tuple[int, int, int, int]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1


CASES = [
    Case((2, 4, 17, 17), (6, 4, 3, 3), padding=1),
    Case((2, 3, 20, 20), (5, 3, 3, 3), stride=2, padding=1),  # one channel without a pair
    Case((1, 5, 40, 37), (7, 5, 5, 3), padding=2),
    Case((2, 6, 17, 33), (4, 3, 3, 3), padding=1, dilation=2, groups=2),
    Case((2, 4, 32, 32), (4, 1, 3, 3), stride=3, padding=1, groups=4),  # by channel
    Case((2, 64, 14, 14), (32, 64, 3, 3), padding=1),
    Case((2, 37, 28, 28), (53, 37, 1, 1)),  # a product
    Case((2, 36, 28, 28), (52, 18, 1, 1), groups=2),
    Case((2, 36, 28, 28), (52, 18, 1, 1), stride=2, groups=2),
    Case((3, 3, 33, 33), (8, 3, 7, 7), stride=2, padding=3),
    Case((2, 32, 7, 7), (48, 32, 1, 1)),  # images side by side
    Case((3, 33, 5, 7), (48, 11, 1, 1), groups=3),
    Case((1, 8, 70, 70), (8, 8, 3, 3), stride=2),
    Case((2, 7, 16, 16), (16, 7, 5, 5), padding=2),
    Case((2, 4, 20, 50), (8, 4, 4, 2), stride=4, padding=1),
    Case((1, 300, 9, 9), (40, 300, 1, 1), stride=2),  # one tap, many channels
]


def window(case: Case) -> dict[str, int]:
    return dict(zip(Case._fields[2:], case[2:], strict=True))


def drawn(case: Case, dtype: str) -> list[Any]:
    rng = np.random.default_rng(0)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    return [rng.standard_normal(s).astype(kind) for s in (case.image, case.kernel)]


def gradients(x: Any, w: Any, g: Any, **how: int) -> tuple[Any, ...]:
    y, back = eg.vjp(lambda x, w: eg.conv2d(x, w, **how), x, w)
    return (y, *back(g))


def check(case: Case, dtype: str, compiled: bool) -> None:
    """Value and gradients, each rounded once, to what a float32 sum loses."""
    x, w = drawn(case, dtype)
    tx, tw = (torch.tensor(a.astype(np.float64), requires_grad=True) for a in (x, w))
    how = window(case)
    ty = torch.nn.functional.conv2d(tx, tw, **how)
    g = np.random.default_rng(1).standard_normal(ty.shape).astype(x.dtype)
    ty.backward(torch.tensor(g.astype(np.float64)))
    # what the sums of magnitudes are, which bound a sum's error
    ax, aw = (torch.tensor(np.abs(a.astype(np.float64)), requires_grad=True) for a in (x, w))
    ay = torch.nn.functional.conv2d(ax, aw, **how)
    ay.backward(torch.tensor(np.abs(g.astype(np.float64))))

    def run(x: Any, w: Any, g: Any) -> Any:
        return gradients(x, w, g, **how)

    got = (eg.jit(run) if compiled else run)(*map(eg.tensor, (x, w, g)))
    wants, sizes = (ty, tx.grad, tw.grad), (ay, ax.grad, aw.grad)
    for name, out, want, size in zip(("y", "x", "w"), got, wants, sizes, strict=True):
        assert str(out.dtype) == dtype
        exact = want.detach().numpy()
        lost = size.detach().numpy() * 2.0**-16
        least = 2.0**-25 if dtype == "float16" else 0.0  # half the spacing of subnormal numbers
        bound = ROUNDING[dtype] * (np.abs(exact) + lost) + lost + least
        apart = np.abs(out.astype("float64").numpy() - exact)
        assert (apart <= bound).all(), (name, case)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case: Case, compiled: bool) -> None:
    check(case, "bfloat16", compiled)


@pytest.mark.parametrize("case", CASES[:9:4], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_without_dot_products(
    case: Case, dtype: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_convolution, "serves", lambda dtype: False)
    check(case, dtype, compiled)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_no_images(dtype: str, compiled: bool) -> None:
    """The gradient of the kernel is a sum over nothing."""
    x, w, g = (eg.ones(s, dtype) for s in ((0, 4, 20, 20), (40, 4, 3, 3), (0, 40, 18, 18)))
    made = (eg.jit(gradients) if compiled else gradients)(x, w, g)
    assert [t.shape for t in made] == [g.shape, x.shape, w.shape]
    assert not made[2].astype("float32").numpy().any()


def test_padding_beside_infinities() -> None:
    """Padding is 0, which no infinity meets; a channel without a pair meets none either."""
    x = np.ones((1, 3, 20, 20), ml_dtypes.bfloat16)
    x[0, 2, 0, 0] = np.inf
    w = np.ones((17, 3, 3, 3), ml_dtypes.bfloat16)
    got = eg.conv2d(eg.tensor(x), eg.tensor(w), padding=1).astype("float32").numpy()
    assert np.isinf(got[:, :, :2, :2]).all()
    assert np.isfinite(got[:, :, 2:]).all()
    assert np.isfinite(got[:, :, :, 2:]).all()


@pytest.mark.skipif(not HAS_DOTS, reason="no dot products of pairs here")
@pytest.mark.parametrize("case", CASES[:3] + CASES[6:7], ids=str)
def test_the_same_bits_on_any_threads(case: Case) -> None:
    x, w = map(eg.tensor, drawn(case, "bfloat16"))
    g = eg.ones(eg.conv2d(x, w, **window(case)).shape, "bfloat16")
    before, found = thread_pool.num_threads(), []
    try:
        for threads in (1, 2, 3):
            thread_pool.set_num_threads(threads)
            made = gradients(x, w, g, **window(case))
            found.append([t.numpy().view(np.uint16) for t in made])
    finally:
        thread_pool.set_num_threads(before)
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other, strict=True))


@pytest.mark.skipif(not HAS_DOTS, reason="no dot products of pairs here")
def test_compiled_convolutions_are_native() -> None:
    """No call of NumPy between native steps."""
    graph = Graph()
    x, w = (graph.input(s, eg.bfloat16) for s in ((2, 8, 16, 16), (8, 8, 3, 3)))
    given = {"window": Window((3, 3), (1, 1), (1, 1), (1, 1), 1)}
    graph.outputs = [graph.call(REGISTRY["conv2d"], [x, w], given)]
    assert all(isinstance(step, NativeStep) for step in build(graph).steps)
