"""The table of ATen ops beside PyTorch itself: a row for each overload that is tagged `core`, eager
and inside `eg.jit`; some of PyTorch's own samples of its ops, forward and through aot_autograd's
backward. `python -m devtools.aten` does this with all of them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func

import everygrad as eg
from devtools.aten import samples
from devtools.aten.checking import (
    Log,
    RefusedByPyTorchError,
    check_call,
    difference,
    ours,
    theirs,
)
from devtools.aten.more_rows import MORE
from devtools.aten.rows import LEFT_OUT, ROWS, Maker, core_overloads, dtypes_of
from everygrad.errors import DtypeError, MissingOpsError
from everygrad.interop.torch.aten.registry import Result
from everygrad.interop.torch.aten.table import HANDLERS
from everygrad.interop.torch.graph import Program

CORE = core_overloads()
# What no program may hold, and why.
REFUSED = {
    "nonzero.default": "the size of its result depends on values",
    "_local_scalar_dense.default": "it reads a value in the graph",
    "resize_.default": "it gives memory another size, which no functional graph does",
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """PyTorch warns about what its own tests do; one thread is enough for these sizes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


def test_every_core_overload_is_served_or_refused() -> None:
    assert len(CORE) >= 189
    refused = {name: HANDLERS[f"aten::{name}"].refused for name in CORE}
    assert {name: why for name, why in refused.items() if why} == REFUSED
    assert set(ROWS) == set(CORE) - set(REFUSED)


def test_every_name_in_the_table_is_an_overload_of_pytorchs() -> None:
    unknown = []
    for name in HANDLERS:
        space, _, rest = name.partition("::")
        base, _, kind = rest.rpartition(".")
        if space == "aten" and not hasattr(getattr(torch.ops.aten, base, None), kind):
            unknown.append(name)
    assert not unknown


@pytest.mark.parametrize("name", ROWS)
def test_core_overload(name: str, device: str) -> None:
    """In all dtypes on the CPU; on other devices in float32."""
    log = Log()
    home = device == "cpu"
    for dtype in dtypes_of(name) if home else (torch.float32,):
        for row in ROWS[name]:
            if (name, dtype) not in LEFT_OUT:
                _try(log, CORE[name], row, dtype, device)
    assert not log.wrong, log.wrong[0]
    assert sum((log.checked + log.drawn).values()) > 0 or not home


def _try(log: Log, target: Any, row: Any, dtype: torch.dtype, device: str = "cpu") -> None:
    try:
        given = row(Maker(dtype))
    except (RuntimeError, TypeError):  # PyTorch draws no such tensors
        return
    jit = device == "cpu" and dtype is torch.float32 and not _gives_numbers(target)
    try:
        check_call(log, target, given, jit, device)
    except RefusedByPyTorchError:
        return
    except DtypeError as error:
        if "does not exist on this device" not in str(error):
            raise


def _gives_numbers(target: Any) -> bool:
    return target.__name__.startswith("sym_")


@pytest.mark.parametrize("name", MORE)
def test_overload_that_is_not_core(name: str) -> None:
    base, _, kind = name.rpartition(".")
    log = Log()
    for dtype in dtypes_of(name):
        for row in MORE[name]:
            _try(log, getattr(getattr(torch.ops.aten, base), kind), row, dtype)
    assert not log.wrong, log.wrong[0]
    assert log.checked[f"aten::{name}"] >= len(MORE[name])


# --- PyTorch's own samples -----------------------------------------------------------------------

CHOSEN = random.Random(17).sample(samples.names(), 24)


@pytest.mark.parametrize("name", CHOSEN)
def test_samples_of_an_op(name: str) -> None:
    log = Log()
    samples.check(log, name, 2, backward=False, core=True)
    samples.check(log, name, 2, backward=True, core=False)
    assert not log.wrong, log.wrong[0]


def test_most_samples_are_checked() -> None:
    """A table that served nothing would pass the property above."""
    log = Log()
    for name in ("nn.functional.layer_norm", "linalg.solve", "cumsum", "nn.functional.conv2d"):
        samples.check(log, name, 2, backward=True, core=True)
    assert not log.wrong
    assert not log.missing
    assert len(log.checked) > 15


def test_a_wrong_handler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = HANDLERS["aten::mm.default"]
    wrong = type(right)(lambda x, y: right.function(x, y) * 1.01)
    monkeypatch.setitem(HANDLERS, "aten::mm.default", wrong)
    log = Log()
    samples.check(log, "mm", 1, backward=False, core=True)
    assert log.wrong


# --- whole graphs, whose results and gradients are ours ------------------------------------------


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with both of aot_autograd's graphs run by us."""

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        program = Program(graph)
        held = {name: ours(value) for name, value in program.constants.items()}

        @eg.jit
        def run(*values: Any) -> Any:
            return program(values, held)

        def call(*given: torch.Tensor) -> list[Any]:
            found = run(*(ours(g) for g in given))
            return [theirs(f) if isinstance(f, eg.Tensor) else f for f in found]

        return make_boxed_func(call)

    return aot_function(function, compiler, compiler)


def both(function: Callable[..., Any], *tensors: torch.Tensor, error: float = 0.0) -> None:
    """The same values, gradients and changed inputs, by PyTorch and by us. `error`: where results
    come from shorter floats than they are."""
    found = []
    for run in (function, compiled(function)):
        leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
        out = run(*leaves)
        if out.requires_grad:
            weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape)
            (out * weights).sum().backward()
        found.append([out.detach(), *(t.grad for t in leaves if t.requires_grad), *leaves])
    expected, got = found
    for e, g in zip(expected, got, strict=True):
        assert not difference(e, None if g is None else ours(g), looser=error), (e, g)


def drawn(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_(grad)


def test_padding_idx_has_no_gradient() -> None:
    index = torch.tensor([[1, 0, 2], [0, 0, 3]])
    embedding = torch.nn.functional.embedding

    def by_frequency(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return embedding(i, w, padding_idx=0, scale_grad_by_freq=True) ** 2

    both(lambda w, i: embedding(i, w, padding_idx=0) ** 2, drawn(5, 3), index)
    both(by_frequency, drawn(5, 3), index)


def test_tied_weights_add_their_gradients() -> None:
    def tied(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(i, w) @ w.t()

    both(tied, drawn(4, 3), torch.tensor([0, 2, 2]))


def test_index_put_by_a_bool_mask() -> None:
    def put(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z[y > 0] = y.max()
        z[y < -0.5] = y.sum()
        return z

    both(put, drawn(4, 5), drawn(4, 5, grad=False).flip(0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n, b: n + 1.5,
        lambda x, n, b: x + n[0] + n.double().sum(),
        lambda x, n, b: n / 2,
        lambda x, n, b: b.sum() + n,
        lambda x, n, b: x * b + n[0],
        lambda x, n, b: torch.where(b, x, 1),
        lambda x, n, b: (n > 1) & b,
        lambda x, n, b: n.float().mean() ** n,
    ],
)
def test_promotion_follows_the_nodes_metadata(function: Any) -> None:
    x = drawn(4, grad=False, dtype=torch.float32)
    both(function, x, torch.tensor([1, 2, 3, 4]), torch.tensor([True, False, True, True]))


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "batch_norm", "rms_norm"])
def test_norms_of_half_floats_are_rounded_once(name: str) -> None:
    function: Any = getattr(torch.nn.functional, name)
    more: tuple[Any, ...] = {"group_norm": (2,), "batch_norm": (None, None, None, None, True)}.get(
        name, ((6,),)
    )
    x = (drawn(8, 4, 6, grad=False) * 3 + 100).to(torch.bfloat16)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return function(x, *more)

    exact = function(x.double(), *more)
    got = compiled(norm)(x)
    assert got.dtype is torch.bfloat16
    assert (got.double() - exact).abs().max() <= exact.abs().max() * 2**-8
    assert exact.abs().max() > 0.9


def test_autocast_of_a_norm_between_products() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.nn.functional.layer_norm(x @ w, (6,), g) @ w.t()

    both(layer, *(drawn(*s, dtype=torch.float32) for s in ((5, 4), (4, 6), (6,))), error=2**-7)


def test_channels_last_images() -> None:
    x = drawn(2, 3, 6, 6).detach().to(memory_format=torch.channels_last).requires_grad_()

    def network(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.conv2d(x, w, padding=1)
        return torch.nn.functional.max_pool2d(y.relu(), 2).mean((2, 3))

    both(network, x, drawn(4, 3, 3, 3))


def test_running_statistics_move() -> None:
    def step(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    both(step, drawn(4, 3, 2), drawn(3, grad=False), drawn(3, grad=False).abs() + 1)


# --- names that PyTorch serves on GPUs only ------------------------------------------------------


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_gpus(causal: bool, heads: int) -> None:
    q, k, v = drawn(2, 4, 5, 8), drawn(2, heads, 5, 8), drawn(2, heads, 5, 8) * 0.5
    g = drawn(2, 4, 5, 8).detach().flip(0)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=heads != 4
    )
    slopes = torch.autograd.grad(out, (q, k, v), g)
    like = Result((2, 4, 5, 8), eg.float64)
    given = [ours(t) for t in (q, k, v)]
    forward = {
        "efficient_attention": (None, True, 0.0, causal),
        "cudnn_attention": (None, True, 0.0, causal),
        "flash_attention": (0.0, causal),
        "fused_attention_overrideable": (None, 0.0, causal),
    }
    sums = torch.logsumexp(_scores(q, k, causal), -1).detach()
    for name, options in forward.items():
        run = HANDLERS[f"aten::_scaled_dot_product_{name}.default"].function
        found = run(*given, *options, result=[like, Result((2, 4, 5), eg.float64), None, None])
        assert not difference(out, found[0]), name
        assert not difference(sums, found[1]), name
    backward = {
        "efficient_attention": (*(None,) * 5, 0.0, [True, True, True, False], causal),
        "cudnn_attention": (*(None,) * 9, 0.0, causal),
        "flash_attention": (*(None,) * 6, 0.0, causal, None, None),
        "fused_attention_overrideable": (
            *(None, [True, True, True, False], *(None,) * 6, 0.0, causal, None, None),
        ),
    }
    for name, options in backward.items():
        run = HANDLERS[f"aten::_scaled_dot_product_{name}_backward.default"].function
        found = run(ours(g), *given, *options)
        assert not difference(slopes, found[:3]), name


def _scores(q: torch.Tensor, k: torch.Tensor, causal: bool) -> torch.Tensor:
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    return scores.masked_fill(~seen, -torch.inf) if causal else scores


def test_grouped_products() -> None:
    ends = torch.tensor([2, 2, 5])
    x, w, y = drawn(6, 4), drawn(3, 4, 2), drawn(6, 2)
    grouped = HANDLERS["aten::_grouped_mm.default"].function
    rows = torch.cat([x[:2] @ w[0], x[2:5] @ w[2], torch.zeros(1, 2, dtype=x.dtype)])
    assert not difference(rows.detach(), grouped(ours(x), ours(w), ours(ends)))
    sums = torch.stack([x[:2].t() @ y[:2], torch.zeros(4, 2, dtype=x.dtype), x[2:5].t() @ y[2:5]])
    assert not difference(sums.detach(), grouped(ours(x).mT, ours(y), ours(ends)))
    columns = torch.cat([(w[0].t() @ x[:2].t()), (w[2].t() @ x[2:5].t())], 1).detach()
    got = grouped(ours(w).mT, ours(x).mT, ours(ends))
    assert not difference(columns, got[:, :5])


# --- random numbers: the distribution, not the bits ----------------------------------------------

N = 20000
DISTRIBUTIONS: dict[str, tuple[tuple[Any, ...], float, float]] = {
    "bernoulli.p": ((0.3,), 0.3, 0.21),
    "uniform.default": ((-1.0, 3.0), 1.0, 16 / 12),
    "normal_functional.default": ((2.0, 3.0), 2.0, 9.0),
    "exponential.default": ((2.0,), 0.5, 0.25),
    "log_normal.default": ((0.0, 0.5), 1.1331, 0.3647),
    "geometric.default": ((0.25,), 4.0, 12.0),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str) -> None:
    options, mean, var = DISTRIBUTIONS[name]
    eg.manual_seed(0)
    found = HANDLERS[f"aten::{name}"].function(eg.zeros((N,), dtype="float32"), *options)
    assert found.shape == (N,)
    assert abs(float(found.mean()) - mean) < 5 * (var / N) ** 0.5
    assert abs(float(found.var()) / var - 1) < 0.1


def test_dropout_keeps_its_mask_for_backward() -> None:
    x = drawn(200, 50)
    p = 0.3
    out = compiled(lambda x: torch.nn.functional.dropout(x, p, True))(x)
    out.sum().backward()
    kept = out != 0
    assert abs(float(kept.double().mean()) - (1 - p)) < 0.02
    torch.testing.assert_close(x.grad, kept.double() / (1 - p))


def test_sizes_that_depend_on_values_are_refused_by_name() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.nonzero.default, (x,)))
    with pytest.raises(MissingOpsError, match=r"aten::nonzero\.default.*depends on values"):
        Program(torch.fx.GraphModule(torch.nn.Module(), graph))
