"""Fused groups in the kernel language: lowered for machines of few threads, verified, run by the
interpreter, which finds races, and compared with NumPy op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from devtools.fuzz.__main__ import program_of
from everygrad import dtypes, nn
from everygrad._jit.pipeline import prepared
from everygrad.backends.reference.evaluate import is_known
from everygrad.backends.reference.interpreter import KernelError
from everygrad.codegen import show
from everygrad.codegen.groups import group_threads
from everygrad.codegen.groups.group import GroupWriter, write_kernel
from everygrad.codegen.groups.group_plan import assign_in_place, kernels_of, task_of
from everygrad.compiler.ir import Graph, reachable
from everygrad.compiler.row_ops import row_op
from everygrad.compiler.views import strided
from tests.support.kernel_groups import (
    GPU,
    MACHINES,
    check,
    check_graph,
    graph_of,
    groups_of,
    inputs_of,
    run,
    same,
    values_of,
)

F = nn.functional


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def layouts(x: Any, row: Any, words: Any) -> Any:
    """Broadcast, permuted, flipped and strided operands, and rows chosen by an index."""
    table = eg.take(x.reshape(-1, x.shape[-1]), words, axis=0)
    flipped = x[:, ::-1, ::2]
    return (
        x + row,
        x.permute_dims((2, 0, 1)) * 2.0,
        flipped * flipped,
        eg.exp(table) + row,
        table.sum(axis=1),
    )


def several(x: Any) -> Any:
    """Results of many dtypes, and shared parts."""
    y = x * 1.5 + 1.0
    return y, y > 1.0, y.astype("float16"), y.astype("int8"), F.gelu(x), eg.grad(_gelu)(x), y.sum()


def _gelu(x: Any) -> Any:
    return F.gelu(x).sum()


def sums(x: Any) -> Any:
    y = x * 2.0 + 1.0
    return y, y.sum(axis=0), y.mean(), y.max(axis=0), y.sum(axis=1), (y > 3.0).any()


def halves(x: Any) -> Any:
    x = x.astype("bfloat16")
    return F.softmax(x, axis=-1), x.mean(axis=1), x.sum(axis=0), x > 0.0


def norm_loss(x: Any) -> Any:
    w = x[0]
    loss: Callable[..., Any] = lambda x, w: (F.layer_norm(x, (x.shape[1],), w) ** 2).mean()  # noqa: E731
    return loss(x, w), *eg.grad(loss, (0, 1))(x, w)


def entropy(x: Any) -> Any:
    labels = eg.arange(x.shape[0], device=x.device) % x.shape[1]
    return eg.grad(lambda x: F.cross_entropy(x, labels))(x), F.cross_entropy(x, labels)


def integers(x: Any) -> Any:
    n = (x * 4.0).astype("int32")
    return n.sum(axis=1), n.max(axis=0), eg.prod(n % 3 + 1, axis=1), (n > 0).all(axis=1), n // 3


def complexes(x: Any) -> Any:
    z = x.astype("complex64") * 1j + 1.0
    return z * z, z.sum(axis=1), z.mean(axis=0), z.mean()


FORMS: dict[str, Callable[..., Any]] = {
    "several": several,
    "sums": sums,
    "softmax": lambda x: F.softmax(x, axis=-1),
    "softmax gradient": eg.grad(lambda x: (F.softmax(x, axis=-1) ** 2).sum()),
    "norm": norm_loss,
    "entropy": entropy,
    "halves": halves,
    "integers": integers,
    "complex": complexes,
}
# odd rows, rows that are held and that are not, with one lane and several; many rows; few long ones
SHAPES = [(5, 7), (40, 24), (2, 600), (70, 3)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", FORMS)
def test_interpreted(name: str, machine: str) -> None:
    for shape in SHAPES:
        assert check(FORMS[name], normal(*shape), machine=MACHINES[machine])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["sums", "softmax", "norm", "halves"])
def test_sizes_that_are_arguments(name: str, machine: str) -> None:
    for shape in SHAPES:
        assert check(FORMS[name], normal(*shape), machine=MACHINES[machine], name="open")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("length", [5, 40, 200])
def test_rows_whose_neighbours_are_other_rows(
    length: int, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read and stored where they are, by neighbouring threads for neighbouring rows."""
    monkeypatch.setattr(group_threads, "SIDE_BY_SIDE", 2)
    x, graph = normal(3, length, 6), Graph()
    base = graph.input((x.size,), dtypes.float32)
    steps = (6 * length, 1, 6)
    rows = strided(base, (3, 6, length), steps, 0)
    graph.outputs = [row_op(graph, "softmax", [rows], (2,), 0.0)]
    (group,), stored = groups_of(graph)
    group.stores = dict.fromkeys(graph.outputs, steps)
    (kernel,) = kernels_of(group, stored, MACHINES[machine], name="softmax")
    e = np.exp(x - x.max(axis=1, keepdims=True))
    for got in run(kernel, {base: x}).values():
        same(got.reshape(x.shape), e / e.sum(axis=1, keepdims=True), "softmax")


@pytest.mark.parametrize("machine", MACHINES)
def test_layouts(machine: str) -> None:
    words = np.random.default_rng(0).integers(0, 12, 9)
    for last in (8, 5):
        assert check(layouts, normal(3, 4, last), normal(last), words, machine=MACHINES[machine])


@pytest.mark.parametrize("size", [1, 3, 4, 33, 1025])
def test_one_row_of_any_length(size: int) -> None:
    for machine in MACHINES.values():
        assert check(several, normal(size), machine=machine)


def specials(x: Any) -> Any:
    """What a running maximum meets: rows of -inf alone, and NaN and inf anywhere."""
    most = x.max(axis=-1, keepdims=True)
    return F.softmax(x, axis=-1), eg.exp(x - most).sum(axis=-1), most


def test_a_running_maximum_of_infinities_and_nan() -> None:
    x = normal(6, 400)
    x[0, 7] = x[1, :] = np.nan
    x[2, 0], x[3, 399], x[4, :], x[5, :390] = np.inf, -np.inf, -np.inf, -np.inf
    for machine in MACHINES.values():
        assert check(specials, x, machine=machine)


def test_a_maximum_and_its_sum_are_one_pass() -> None:
    """Of rows that registers do not hold; those they hold are read once."""
    reads = {}
    for length in (16, 400):
        graph = graph_of(FORMS["softmax"], normal(9, length))
        (group,), stored = groups_of(graph)
        (kernel,) = kernels_of(group, stored, GPU)
        text = show.kernel(kernel.kernel)
        reads[length] = text.count("= a0[")
    assert reads == {16: 1, 400: 2}


# --- several tasks, and results in the memory of operands ---------------------------------------


def writers_of(fn: Callable[..., Any], *arrays: Any) -> tuple[Any, list[GroupWriter]]:
    graph = graph_of(fn, *arrays)
    groups, stored = groups_of(graph)
    wanted = [[v for v in g.members if v in stored] for g in groups]
    tasks = [task_of(g, w, GPU) for g, w in zip(groups, wanted, strict=True)]
    return graph, [GroupWriter(t, GPU) for t in tasks]


def test_independent_tasks_are_one_kernel() -> None:
    arrays = [normal(5), normal(3, 30), normal(70)]
    graph, writers = writers_of(lambda *xs: [eg.exp(x) * 2.0 for x in xs], *arrays)
    assert len(writers) == 3
    made = write_kernel([(w, {}) for w in writers], GPU)
    known = values_of(graph, arrays)
    for v, got in run(made, known).items():
        same(got[: v.size].reshape(v.shape), known[v], str(v))
    assert len(made.writes) == 3


@pytest.mark.parametrize("size", [30, 33])
def test_a_result_takes_the_memory_of_an_operand(size: int) -> None:
    arrays = [normal(size), normal(size + 1)[1:]]
    graph, writers = writers_of(lambda x, y: x * 0.5 + y, *arrays)
    pairs = {graph.inputs[0]: graph.outputs[0]}
    assert assign_in_place(writers, pairs, size) == [pairs]
    made = write_kernel([(writers[0], pairs)], GPU)
    assert made.reads == [graph.inputs[1]]
    known = values_of(graph, arrays)
    ((v, got),) = run(made, known).items()
    same(got[:size], known[v], "in place")


def test_no_result_takes_the_memory_of_what_is_read_again() -> None:
    """Another thread reads the row's first element, or a later pass reads the row."""
    x = normal(8, 400)
    for fn in (lambda x: x - x.mean(axis=-1, keepdims=True), lambda x: x - x[:, :1]):
        graph, (writer,) = writers_of(fn, x)
        pairs = {graph.inputs[0]: graph.outputs[0]}
        assert assign_in_place([writer], pairs, x.size) == [{}]
    with pytest.raises(KernelError, match="another one"):
        run(write_kernel([(writer, pairs)], GPU), values_of(graph, [x]))


# --- programs that nobody chose -------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [range(0, 12), range(12, 24)], ids=str)
def test_programs_of_the_fuzzer(seeds: range) -> None:
    count = 0
    for seed in seeds:
        program = program_of(seed, narrow=True)
        graph = prepared(eg.jit(program.function()).lower(*program.tensors()).graph, "cpu")
        if all(is_known(v.op) for v in reachable(graph.outputs) if v.op is not None):
            machine = MACHINES["gpu" if seed % 2 else "simulated"]
            count += check_graph(graph, inputs_of(graph, seed), machine)
    assert count > len(seeds)
