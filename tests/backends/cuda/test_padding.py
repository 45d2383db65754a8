"""Products with padded rows in compiled CUDA functions, without a GPU: the rewritten graph computes
the same, each operand is copied once, and nothing changes where no copy pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph import padding
from everygrad.backends.cuda.graph.padding import PaddingRewriter, with_padding
from everygrad.backends.cuda.graph.replay import Replay
from everygrad.compiler.ir import Graph, Value, reachable
from everygrad.compiler.views import view_of
from everygrad.nn import functional as F
from tests.support.cuda_graphs import agree, outputs, rand

DRY = "cuda:dry"


@pytest.fixture
def dry(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda(DRY, DryDriver())
    monkeypatch.setitem(base._OPEN, DRY, made)
    return made


def head(x: Any, w: Any) -> Any:
    """The vocabulary's end of a language model, with both gradients."""

    def loss(x: Any, w: Any) -> Any:
        logits = F.linear(x, w)
        return F.log_softmax(logits.reshape(-1, logits.shape[-1]), axis=-1)[:, 3].sum()

    return eg.grad(loss, (0, 1))(x, w)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "head": (head, ((2, 3, 16), (13, 16))),
    "odd everywhere": (head, ((5, 7), (11, 7))),
    "returned": (F.linear, ((4, 16), (9, 16))),
    "bias": (lambda x, w, b: F.relu(F.linear(x, w, b)), ((4, 16), (9, 16), (9,))),
    "both transposed": (lambda x, y: x.T @ y.T, ((7, 5), (9, 7))),
    "a slice": (lambda x, y: x[:, 1:] @ y[1:], ((6, 9), (9, 10))),
    "reversed": (lambda x, y: eg.flip(x, axis=1) @ y, ((6, 9), (9, 10))),
    "more axes": (lambda x, y: (x @ y).sum(axis=0), ((2, 3, 5, 9), (9, 7))),
    "permuted rows": (lambda x, y: eg.permute_dims(x, (1, 0, 2)) @ y, ((3, 2, 9), (9, 8))),
    "a product of products": (lambda x, y: (x @ y) @ y.T, ((4, 9), (9, 7))),
    "its own transpose": (lambda x: x @ x.T, ((9, 7),)),
}


def traced(fn: Callable[..., Any], shapes: Any, dtype: str = "float32") -> tuple[Graph, list[Any]]:
    given = [rand(*shape, seed=i) for i, shape in enumerate(shapes)]
    tensors = [eg.tensor(a).astype(dtype).to(DRY) for a in given]
    return eg.jit(fn).lower(*tensors).simplified, given


def products(graph: Graph) -> list[Value]:
    return [v for v in reachable(graph.outputs) if v.facts.gemm is not None]


def is_aligned(v: Value) -> bool:
    """Whether rows of a product and of its operands are multiples of 16 bytes."""
    views = [view_of(a) for a in v.args]
    steps = [max(view.strides[-2:]) for view in views]
    return all(n % 4 == 0 for n in (*steps, *(view.offset for view in views), v.shape[-1]))


@pytest.mark.parametrize("case", CASES)
def test_padded_products_compute_the_same(
    dry: Cuda, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(padding, "OPERATIONS", 0)  # whatever it costs
    graph, given = traced(*CASES[case])
    rewriter = PaddingRewriter(graph, tf32=True)
    made = rewriter.run(graph)
    made.verify()
    assert rewriter.found
    assert all(map(is_aligned, products(made)))
    agree(outputs(made, given), outputs(graph, given))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_each_operand_is_copied_once(
    dry: Cuda, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Forward and both gradients of a layer are three products of three matrices."""
    monkeypatch.setattr(padding, "OPERATIONS", 0)
    graph, _ = traced(head, ((2, 3, 16), (13, 16)), dtype)
    made = with_padding(dry, graph)
    copied, before = (
        sorted(v.shape for v in reachable(g.outputs) if v.name == "unslice") for g in (made, graph)
    )
    assert len(products(made)) == 3
    assert before == [(6, 13)]  # of the user's own slice
    assert copied == [(6, 13), (6, 16), (16, 16)]  # the logits' gradient, and the weight


def test_what_is_aligned_or_small_stays_as_it_is(dry: Cuda) -> None:
    for shapes in (((64, 256), (512, 256)), ((4, 17), (9, 17))):
        graph, _ = traced(F.linear, shapes, "bfloat16")
        assert with_padding(dry, graph) is graph
    plain, _ = traced(F.linear, ((4096, 768), (5001, 768)))
    assert with_padding(dry, plain) is plain  # float32 is for other units


def test_a_large_vocabulary_is_padded(dry: Cuda) -> None:
    graph, _ = traced(head, ((4096, 768), (5001, 768)), "bfloat16")
    made = with_padding(dry, graph)
    assert [v.shape[-1] % 8 for v in products(made)] == [0, 0, 0]
    assert Replay(dry, graph).steps()


def test_results_are_contiguous(dry: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "OPERATIONS", 0)
    graph, _ = traced(F.linear, ((4, 16), (9, 16)), "bfloat16")
    (result,) = Replay(dry, graph).results
    assert result.strides == (9, 1)
    assert np.prod(result.shape) == 36
