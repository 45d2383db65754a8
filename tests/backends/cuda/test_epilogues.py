"""Epilogues of matrix products: which are found in graphs, without a GPU, and what they compute, by
a fake cuBLASLt on the host's memory. On a GPU: the same values as without epilogues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.backends import base
from everygrad.backends.cuda.driver import cublaslt
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.gemm import matmul
from everygrad.backends.cuda.graph import epilogues
from everygrad.backends.cuda.graph.epilogues import MATMUL_EPILOGUE, with_epilogues
from everygrad.backends.cuda.graph.rewriting import rewritten
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from tests.conftest import DEVICES
from tests.support.cublaslt_host import Host, gelu, gelu_slope

DRY = "cuda:dry"
on_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """The dry device with this cuBLASLt; epilogues without a cost are always chosen."""
    made = Host()
    monkeypatch.setattr(DryDriver, "lt", made)
    free(monkeypatch)
    return made


def free(monkeypatch: pytest.MonkeyPatch, **costs: float) -> None:
    for name in epilogues.COSTS:
        monkeypatch.setitem(epilogues.COSTS, name, (costs.get(name, 0.0),) * 2)


# --- graphs --------------------------------------------------------------------------------------


def graph_of(fn: Callable[..., Any], *arrays: Any) -> Graph:
    given = (eg.tensor(a) for a in arrays)
    return rewritten(eg.jit(fn).lower(*given).simplified)


def live(graph: Graph) -> list[Value]:
    return list(in_order(reachable(graph.outputs)))


def ended(graph: Graph) -> list[str]:
    """The epilogues of a graph, in order."""
    return [v.params["epilogue"] for v in live(graph) if v.op is MATMUL_EPILOGUE]


def outputs(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a graph, op by op: epilogues on the dry device, all else on the CPU."""
    known: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    dry, cpu = base.get(DRY), base.get("cpu")
    for v in graph.values:
        args = [np.ascontiguousarray(known[a]) for a in v.args]
        if v in known:
            continue
        if v.kind == "full":
            known[v] = np.full(v.shape, v.params["value"], v.dtype.np)
        elif v.kind == "constant":
            known[v] = v.params["array"]
        elif v.op is MATMUL_EPILOGUE:
            on_device: list[Any] = [dry.from_numpy(a) for a in args]
            known[v] = dry.to_numpy(dry.run(v.op, on_device, v.params))
        else:
            known[v] = np.asarray(cpu.run(v.op, args, v.params))
    return [known[v] for v in graph.outputs]


def same_values(graph: Graph, made: Graph, inputs: Sequence[Any], rtol: float = 1e-4) -> None:
    made.verify()
    for x, y in zip(outputs(made, inputs), outputs(graph, inputs), strict=True):
        agree(x, y, rtol)


def agree(found: Any, wanted: Any, rtol: float) -> None:
    """Relative to the largest element: an element may be the difference of larger ones."""
    x, y = np.float64(found), np.float64(wanted)
    assert x.shape == y.shape
    assert np.abs(x - y).max() <= rtol * max(1.0, np.abs(y).max())


def changed(graph: Graph) -> Graph:
    return with_epilogues(base.get(DRY), graph)


def rand(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": nn.functional.relu,
    "gelu": lambda x: nn.functional.gelu(x, approximate="tanh"),
}
BOTH_WAYS = {"relu": ["relu_bias"], "gelu": ["gelu_aux_bias", "dgelu", "bgrad_a"]}
# odd sizes: rows of aux are padded
SIZES = ((6, 8, 16), (5, 3, 7), (2, 3, 4, 9))


def operands(sizes: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    *rows, k, n = sizes
    return [
        rand(*rows, k, dtype=dtype),
        *(rand(n, k, seed=1, dtype=dtype), rand(n, seed=2, dtype=dtype)),
        *(rand(4, n, seed=3, dtype=dtype), rand(4, seed=4, dtype=dtype)),
    ]


def two_layers(act: Callable[[Any], Any]) -> Callable[..., Any]:
    """A loss of two layers, and all its derivatives."""

    def loss(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        inner = act(nn.functional.linear(x, w, b))
        out = nn.functional.linear(inner, v, c).astype("float32")
        return (out * out).sum()

    return eg.grad(loss, (0, 1, 2, 3, 4))


def doubled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same, where no sum is an output."""
    return lambda *args: tuple(out * 2.0 for out in fn(*args))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_layer_forward_and_backward(name: str, sizes: tuple[int, ...], host: Host) -> None:
    given = operands(sizes)
    graph = graph_of(two_layers(ACTIVATIONS[name]), *given)
    made = changed(graph)
    assert ended(made) == BOTH_WAYS[name]
    assert ("gelu_tanh.d0" in [v.name for v in live(graph)]) is (name == "gelu")
    assert "gelu_tanh.d0" not in [v.name for v in live(made)]
    same_values(graph, made, given)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_layer_of_halves(name: str, dtype: str, host: Host) -> None:
    given = operands((6, 8, 16), eg.dtypes.as_dtype(dtype).np)
    graph = graph_of(two_layers(ACTIVATIONS[name]), *given)
    made = changed(graph)
    assert ended(made) == BOTH_WAYS[name]
    same_values(graph, made, given, 0.03)


def test_sums_go_where_they_cost_least(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands((6, 8, 16))
    graph = graph_of(doubled(two_layers(ACTIVATIONS["gelu"])), *given)
    free(monkeypatch, bgrad_a=1.0)
    made = changed(graph)
    assert ended(made) == ["gelu_aux_bias", "dgelu_bgrad"]
    same_values(graph, made, given)
    monkeypatch.setattr(host, "refused", ("bgrad_a", "dgelu_bgrad"))
    made = changed(graph)  # by a kernel of their own
    assert ended(made) == ["gelu_aux_bias", "dgelu"]
    same_values(graph, made, given)


def test_results_hold_nothing_that_is_not_asked_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = operands((6, 8, 16))
    graph = graph_of(two_layers(ACTIVATIONS["gelu"]), *given)
    monkeypatch.setattr(host, "refused", ("bgrad_a",))
    assert ended(changed(graph)) == ["gelu_aux_bias", "dgelu"]

    def with_inner(x: Any, w: Any, g: Any) -> Any:
        inner, pull = eg.vjp(ACTIVATIONS["gelu"], nn.functional.linear(x, w))
        return inner, pull(nn.functional.linear(g, w))[0] @ w

    x, w = given[:2]
    # the product's result is in memory for two kernels; a product reads it as its aux
    assert ended(changed(graph_of(with_inner, x, w, x))) == ["dgelu"]


@pytest.mark.parametrize("flat", [False, True])
def test_forward_and_backward_in_graphs_of_their_own(flat: bool, host: Host) -> None:
    """As torch.compile cuts them: forward returns gelu's input and its result, backward is given
    the input. PyTorch's products are of matrices, with views around them (`flat`)."""
    x, w, b, v, _ = operands((2, 3, 8, 16))
    shape = (2, 3, 16)

    def product(x: Any, y: Any, shape: Any) -> Any:
        return (x.reshape(6, -1) @ y).reshape(shape) if flat else x @ y

    def forward(x: Any, w: Any, b: Any) -> Any:
        before = x.reshape(6, 8) @ w.T + b if flat else nn.functional.linear(x, w, b)
        return before, ACTIVATIONS["gelu"](before.reshape(shape))

    def backward(g: Any, v: Any, before: Any, w: Any) -> Any:
        _, pull = eg.vjp(ACTIVATIONS["gelu"], before.reshape(shape))
        d = pull(product(g, v, shape))[0]
        return product(d, w, (2, 3, 8)), d.reshape(6, 16).T @ x.reshape(6, 8)

    graph = graph_of(forward, x, w, b)
    made = changed(graph)
    assert ended(made) == ["gelu_aux_bias"]
    same_values(graph, made, [x, w, b])
    saved = rand(*((6, 16) if flat else shape), seed=8)
    given = [rand(2, 3, 4, seed=9), v, saved, w]
    graph = graph_of(backward, *given)
    made = changed(graph)
    assert ended(made) == ["dgelu"]
    same_values(graph, made, given)


def test_an_input_of_gelu_that_no_product_reads_as_it_is(host: Host) -> None:
    """Rows that are padded, a part of wider rows, and what a kernel computes on the way."""
    g, v, w = rand(6, 4, seed=9), rand(4, 16, seed=3), rand(16, 8)

    def backward(g: Any, v: Any, before: Any, w: Any, change: Any = lambda x: x) -> Any:
        _, pull = eg.vjp(ACTIVATIONS["gelu"], change(before))
        return pull(g @ v)[0] @ w

    def sliced(g: Any, v: Any, before: Any, w: Any) -> Any:
        return backward(g, v, before, w, lambda x: x[:, 16:])

    def computed(g: Any, v: Any, before: Any, w: Any) -> Any:
        return backward(g, v, before, w, eg.exp)

    odd = [g, rand(4, 15, seed=3), rand(6, 15, seed=8), rand(15, 8)]
    for fn, given in (
        (backward, odd),
        (sliced, [g, v, rand(6, 32, seed=8), w]),
        (computed, [g, v, rand(6, 16, seed=8), w]),
    ):
        graph = graph_of(fn, *given)
        assert not ended(changed(graph))
    x, w, b = operands((5, 3, 7))[:3]  # rows of its aux would be padded
    graph = graph_of(lambda x, w, b: two_results(x @ w.T + b), x, w, b)
    assert not any("gelu" in e for e in ended(changed(graph)))


def two_results(before: Any) -> Any:
    return before, ACTIVATIONS["gelu"](before)


def test_what_has_no_algorithm_stays(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands((6, 8, 16))
    graph = graph_of(two_layers(ACTIVATIONS["gelu"]), *given)
    for refused in (("gelu_aux_bias",), ("dgelu", "dgelu_bgrad"), tuple(epilogues.COSTS)):
        monkeypatch.setattr(host, "refused", refused)
        assert changed(graph) is graph
    monkeypatch.setattr(host, "refused", ("relu_bias",))
    graph = graph_of(two_layers(ACTIVATIONS["relu"]), *given)
    assert changed(graph) is graph


def test_what_costs_more_than_it_saves_stays(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogues, "LAUNCH", 0)
    given = operands((6, 8, 16))
    relu, gelu = (graph_of(two_layers(ACTIVATIONS[name]), *given) for name in ("relu", "gelu"))
    # a kernel reads and writes four bytes an element: twice forward, three times backward
    free(monkeypatch, relu_bias=8.5)
    assert not ended(changed(relu))
    free(monkeypatch, relu_bias=7.5)
    assert ended(changed(relu)) == ["relu_bias"]
    free(monkeypatch, gelu_aux_bias=8.5, dgelu=11.0)
    assert ended(changed(gelu)) == BOTH_WAYS["gelu"]
    free(monkeypatch, gelu_aux_bias=8.5, dgelu=11.75)
    assert not ended(changed(gelu))
    free(monkeypatch, dgelu=12.5)
    assert not ended(changed(gelu))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_table_of_costs(dtype: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the measured costs: gelu of halves only; sums by a product where a launch matters."""
    monkeypatch.undo()
    monkeypatch.setattr(DryDriver, "lt", host)
    np_dtype = eg.dtypes.as_dtype(dtype).np
    given = [a.astype(np_dtype) for a in operands((64, 128, 256))]
    relu, gelu = (graph_of(two_layers(ACTIVATIONS[name]), *given) for name in ("relu", "gelu"))
    assert ended(changed(relu)) == ["relu_bias"]
    assert ended(changed(gelu)) == ([] if dtype == "float32" else BOTH_WAYS["gelu"])
    monkeypatch.setattr(epilogues, "LAUNCH", 0)  # as if arrays were much larger
    assert ended(changed(relu)) == ["relu_bias"]
    assert ended(changed(gelu)) == ([] if dtype == "float32" else BOTH_WAYS["gelu"][:2])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_forward_without_backward_stores_no_aux(name: str, host: Host) -> None:
    act = ACTIVATIONS[name]
    x, w, b = operands((6, 8, 16))[:3]

    def fn(x: Any, w: Any, b: Any) -> Any:
        return act(act(x @ w.T + b) @ w + x)  # x is not a bias

    graph = graph_of(fn, x, w, b)
    made = changed(graph)
    assert ended(made) == [f"{name}_bias"]
    same_values(graph, made, [x, w, b])
    bare = graph_of(lambda x, w: act(act(x @ w.T) @ w), x, w)
    assert ended(changed(bare)) == [name, name]
    same_values(bare, changed(bare), [x, w])


def test_the_exact_gelu_is_another_function(host: Host) -> None:
    graph = graph_of(two_layers(nn.functional.gelu), *operands((6, 8, 16)))
    assert not any("gelu" in name for name in ended(changed(graph)))


def test_what_others_need_is_not_taken_away(host: Host) -> None:
    x, w, b = operands((6, 8, 16))[:3]
    relu = nn.functional.relu

    def pre_returned(x: Any, w: Any, b: Any) -> Any:
        before = x @ w.T + b
        return relu(before), before

    def product_read(x: Any, w: Any, b: Any) -> Any:
        product = x @ w.T
        return relu(product + b), eg.exp(product)

    for fn in (pre_returned, product_read):
        graph = graph_of(fn, x, w, b)
        made = changed(graph)
        assert not [e for e in ended(made) if "relu" in e]
        same_values(graph, made, [x, w, b])


def test_an_activation_that_groups_compute_on_the_way_stays(host: Host) -> None:
    x, w, b = operands((6, 8, 16))[:3]
    graph = graph_of(lambda x, w, b: eg.exp(nn.functional.relu(x @ w.T + b)).sum(), x, w, b)
    assert changed(graph) is graph


def test_a_derivative_that_groups_compute_reads_what_was_left(host: Host) -> None:
    """More than an activation is between two products: only gelu's input is read again."""
    given = [*operands((6, 8, 16)), rand(6, 16, seed=5)]

    def loss(x: Any, w: Any, b: Any, v: Any, c: Any, mask: Any) -> Any:
        before = nn.functional.linear(x, w, b)
        inner = ACTIVATIONS["gelu"](before)
        straight = nn.functional.linear(inner, v, c)
        return eg.sin(straight).sum() + (inner * mask).sum()

    graph = graph_of(eg.grad(loss, (0, 1, 2, 3, 4)), *given)
    assert not any("gelu" in e for e in ended(changed(graph)))

    def tangent(x: Any, w: Any, b: Any, t: Any, g: Any) -> Any:
        """Two derivatives by the same input: of a product's gradient, and of another."""
        before = nn.functional.linear(x, w, b)
        act = ACTIVATIONS["gelu"]
        inner, pull = eg.vjp(act, before)
        return inner @ w, pull(nn.functional.linear(t, w))[0] @ w, pull(eg.exp(g))[0] @ w

    given = [*operands((6, 8, 16))[:3], rand(6, 8, seed=6), rand(6, 16, seed=7)]
    graph = graph_of(tangent, *given)
    made = changed(graph)
    assert ended(made) == ["gelu_aux_bias", "dgelu"]
    assert "gelu_tanh.d0" in [v.name for v in live(made)]
    same_values(graph, made, given)


def test_a_bias_only_where_a_kernel_reads_it(host: Host) -> None:
    x, w, b, v, _ = operands((6, 8, 16))
    graph = graph_of(lambda x, w, b, v: (x @ w.T + b) @ v.T, x, w, b, v)
    made = changed(graph)
    assert ended(made) == ["bias"]
    same_values(graph, made, [x, w, b, v])
    graph = graph_of(lambda x, w, b: eg.exp(x @ w.T + b), x, w, b)
    assert changed(graph) is graph


@pytest.mark.parametrize("transposed", [True, False])
def test_sums_of_what_a_kernel_made(transposed: bool, host: Host) -> None:
    """The bias's gradient by the weight's product, for weights stored either way."""
    x, w, b, v, _ = operands((2, 3, 8, 16))
    w = w if transposed else np.ascontiguousarray(w.T)

    def loss(x: Any, w: Any, b: Any, v: Any) -> Any:
        inner = nn.functional.linear(x, w, b) if transposed else x @ w + b
        return eg.sin(inner @ v.T).sum()

    graph = graph_of(eg.grad(loss, (1, 2)), x, w, b, v)
    made = changed(graph)
    assert ended(made) == ["bias", "bgrad_a" if transposed else "bgrad_b"]
    same_values(graph, made, [x, w, b, v])


@pytest.mark.parametrize("donated", [False, True])
def test_products_are_timed_where_they_write_over_nothing(
    donated: bool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the arena, and in the new memory of results; not in a result that takes an input's."""
    timed: list[int] = []
    monkeypatch.setattr(
        host, "tune", lambda plan, name, timer, stream, a, b, c, d, *rest: timed.append(d),
        raising=False,
    )  # fmt: skip
    dry: Any = base.get(DRY)
    graph = eg.jit(lambda x, w: (x @ w, eg.exp(x @ w @ w))).lower(*map(eg.tensor, SQUARES))
    replay = dry.compile(graph.simplified)
    replay.runner.tuned = False
    arrays = [dry.from_numpy(a) for a in SQUARES]
    if donated:
        slot = replay.slot(replay.results[0])
        for i, array in enumerate(arrays):
            replay.put(i, array)
        first = replay.run({slot: dry.from_numpy(SQUARES[0])})[0][0]
    else:
        first = replay.run_on(arrays)[0]
    assert len(timed) == (1 if donated else 2)
    assert (first.ptr in timed) is not donated


SQUARES = [rand(64, 64), rand(64, 64, seed=1)]


def test_float64_and_batches_stay(host: Host) -> None:
    x, w, b = (a.astype(np.float64) for a in operands((6, 8, 16))[:3])
    fn = lambda x, w, b: nn.functional.relu(x @ w.T + b)  # noqa: E731 # two graphs of one
    assert not ended(changed(graph_of(fn, x, w, b)))
    many = [rand(3, 6, 8), rand(3, 8, 16)]
    assert not ended(changed(graph_of(lambda x, w: nn.functional.relu(x @ w), *many)))


def test_without_the_library_nothing_changes() -> None:
    graph = graph_of(two_layers(ACTIVATIONS["relu"]), *operands((6, 8, 16)))
    bare = SimpleNamespace(gpu=SimpleNamespace(driver=SimpleNamespace(lt=None)), tf32=False)
    assert with_epilogues(bare, graph) is graph


def test_an_unknown_problem_is_asked_for_once() -> None:
    asked: list[cublaslt.GemmProblem] = []

    class Refusing(cublaslt.CublasLt):
        def __init__(self) -> None:
            self.plans, self._refused = {}, set()

        def _new_plan(self, problem: cublaslt.GemmProblem) -> cublaslt.GemmPlan:
            asked.append(problem)
            raise eg.errors.CompileError(f"{problem}: there is no algorithm")

    problem = cublaslt.GemmProblem(2, 3, 4, eg.float32, lda=4, ldb=3, ldd=3)
    library = Refusing()
    assert not library.serves(problem)
    assert not library.serves(problem)
    assert asked == [problem]


# --- every epilogue by itself --------------------------------------------------------------------


def every_epilogue(device: str, dtype: str) -> list[tuple[str, Any, Any]]:
    """The expected and actual results of each epilogue, for matrices stored either way."""
    dev: Any = base.get(device)
    kind = eg.dtypes.as_dtype(dtype)
    m, n, k = 24, 40, 16
    x, y, b = (rand(*s, seed=s[0], dtype=kind.np) for s in ((k, m), (k, n), (n,)))
    left = dev.from_numpy(x).view((m, k), (1, m))
    right, bias = dev.from_numpy(y), dev.from_numpy(b)
    found, aux = [], {}
    for name in cublaslt.EPILOGUES:
        use = cublaslt.uses(name)
        act = name.removeprefix("d").split("_")[0]
        others = [bias] if use.reads_bias else [aux[act]] if use.reads_aux else []
        out = matmul.matmul_epilogue(dev, left, right, *others, epilogue=name)
        where = matmul.results(name, m, n, kind)
        if use.writes_aux:
            aux[act] = out.view((where.aux.size,), (1,), where.aux.at)
        with np.errstate(invalid="ignore"):  # bits of signs may be those of a NaN
            flat = np.float64(dev.to_numpy(out)).reshape(-1)
        pieces = [flat[p.at : p.at + p.size] for p in (where.product, where.sums)]
        found.append((name, np.concatenate(pieces), _wanted(name, *map(np.float64, (x.T, y, b)))))
    return found


def _wanted(name: str, x: Any, y: Any, b: Any) -> Any:
    use = cublaslt.uses(name)
    product = x @ y
    before = product + b
    by_name = {
        "relu": lambda: np.maximum(before if use.reads_bias else product, 0),
        "gelu": lambda: gelu(before if use.reads_bias else product),
        "drelu": lambda: product * (before > 0),
        "dgelu": lambda: product * gelu_slope(before),
        "bias": lambda: before,
    }
    out = by_name.get(name.split("_")[0], lambda: product)()
    sums = {"bgrad_a": x.sum(1), "bgrad_b": y.sum(0)}.get(name, out.sum(0))
    return np.concatenate([out.reshape(-1), sums if use.sums else []])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_epilogue(dtype: str, host: Host) -> None:
    for _, found, wanted in every_epilogue(DRY, dtype):
        agree(found, wanted, 1e-5 if dtype == "float32" else 0.02)
    assert host.done == [*cublaslt.EPILOGUES]


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_epilogue_on_a_gpu(dtype: str) -> None:
    for _, found, wanted in every_epilogue("cuda", dtype):
        agree(found, wanted, 1e-5 if dtype == "float32" else 0.02)


# --- whole steps ---------------------------------------------------------------------------------


def mlp_step(device: str, name: str, low: bool, rows: int = 96) -> tuple[Any, Any, Any]:
    eg.manual_seed(3)
    act = nn.ReLU if name == "relu" else lambda: nn.GELU(approximate="tanh")
    layers = [nn.Linear(40, 128), act(), nn.Linear(128, 72), act(), nn.Linear(72, 10)]
    model = nn.Sequential(*layers).to(device)
    opt = optim.SGD(model.parameters(), lr=0.1)
    x = eg.tensor(rand(rows, 40), device=device)
    y = eg.tensor(np.arange(rows) % 10, device=device)

    def step() -> Any:
        with eg.autocast(dtype=eg.bfloat16, enabled=low):
            loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step, model, opt


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_step_is_recorded_with_its_epilogues(name: str, low: bool, host: Host) -> None:
    step, *_ = mlp_step(DRY, name, low)
    titles = "\n".join(eg.jit(step).lower().plan.steps())
    for ending in BOTH_WAYS[name]:
        assert titles.count(f"epilogue {ending}:") == 2
    assert titles.count("epilogue") == 8


def trained(device: str, name: str, low: bool, compiled: bool) -> list[Any]:
    step, model, _ = mlp_step(device, name, low)
    run = eg.jit(step) if compiled else step
    losses = [run().detach().numpy() for _ in range(4)]
    return [*losses, *(p.detach().numpy() for p in model.parameters())]


@on_gpu
@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_training_on_a_gpu(name: str, low: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch)
    found = trained("cuda", name, low, compiled=True)
    wanted = trained("cpu", name, low, compiled=False)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=0.05 if low else 1e-4, atol=0.02 if low else 1e-5)


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [*SIZES, (64, 128, 256), (130, 72, 136)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_layer_on_a_gpu(
    name: str, sizes: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch)
    fn = two_layers(ACTIVATIONS[name])
    given = operands(sizes, eg.dtypes.as_dtype(dtype).np)
    given = [(a / 8).astype(a.dtype) for a in given]  # float16 must hold all gradients
    compiled = eg.jit(fn)
    tensors = [eg.tensor(a, device="cuda") for a in given]
    found = [compiled(*tensors) for _ in range(3)][-1]  # the last one is a graph
    wanted = fn(*(eg.tensor(a, dtype="float32") for a in given))
    for x, y in zip(found, wanted, strict=True):
        agree(x.numpy(), y.numpy(), 1e-4 if dtype == "float32" else 0.03)
