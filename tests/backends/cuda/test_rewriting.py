"""Graph rewrites of the CUDA backend before and after fusion, without a GPU: attention that saves
what backward needs, recomputed values, results in the memory of operands."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad._jit.buffers import _separated
from everygrad._jit.trace import Tracer
from everygrad.backends import base
from everygrad.backends.cpu.graph import lowering
from everygrad.backends.cuda.attention import attention, flash
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph import recording, rewriting
from everygrad.backends.cuda.graph.rewriting import rewritten
from everygrad.backends.cuda.graph.runner import Runner
from everygrad.compiler import recompute
from everygrad.compiler.fuse import fuse
from everygrad.compiler.groups import Group, used_outside
from everygrad.compiler.ir import Graph
from everygrad.compiler.schedule import fusable
from everygrad.compiler.views import view_of
from everygrad.ops.record.spec import REGISTRY
from tests.conftest import DEVICES
from tests.support.cuda_graphs import Memory, agree, eager, graph_of, outputs, rand

DRY = "cuda:dry"


# --- attention -----------------------------------------------------------------------------------

BATCH, TOKENS, HEADS, WIDTH = 2, 8, 3, 4


def attend(x: Any, w: Any, order: tuple[int, ...] = (0, 1, 2), mask: Any = None) -> Any:
    """Heads from one product, as models do it."""
    parts = (x @ w).split(HEADS * WIDTH, axis=-1)
    shape = (BATCH, TOKENS, HEADS, WIDTH)
    q, k, v = (parts[i].reshape(shape).permute_dims((0, 2, 1, 3)) for i in order)
    out = nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None
    )
    return out.permute_dims((0, 2, 1, 3)).reshape(BATCH, TOKENS, HEADS * WIDTH)


def attention_step(**how: Any) -> Callable[..., Any]:
    return eg.grad(lambda x, w: (attend(x, w, **how) ** 2).sum(), (0, 1))


def names(graph: Graph) -> list[str]:
    return [v.name for v in rewriting.AttentionRewriter(graph).live]


INPUTS = (rand(BATCH, TOKENS, 5), rand(5, 3 * HEADS * WIDTH, seed=1))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_attention_leaves_what_its_derivative_needs(order: tuple[int, ...]) -> None:
    graph = graph_of(attention_step(order=order), *INPUTS)
    made = rewritten(graph)
    made.verify()
    found = names(made)
    assert (found.count("attention_saved"), found.count("attention_saved_grads")) == (1, 1)
    assert not {"attention", "attention_grads"} & {*found}
    # q, k and v from one product, in their order: nothing is concatenated
    assert ("concat" in found) is (order != (0, 1, 2))
    agree(outputs(made, INPUTS), outputs(graph, INPUTS))


@pytest.mark.parametrize("apart", [False, True])
def test_results_for_buffers_of_others_are_copied_only_where_memory_is_shared(apart: bool) -> None:
    """Merged heads are attention's result as it lies in memory. Of several results that show it one
    is that memory; in another order it is copied."""

    def fn(product: Any) -> Any:
        merged = attend(product, eg.eye(3 * HEADS * WIDTH))
        heads = merged.reshape(BATCH, TOKENS, HEADS, WIDTH).permute_dims((0, 2, 1, 3))
        if apart:
            return (merged,)
        return merged, merged.reshape(BATCH * TOKENS, -1), heads, heads[:, :1], merged

    q = rand(BATCH, TOKENS, 3 * HEADS * WIDTH)
    graph = _separated(graph_of(fn, q))
    made = rewritten(graph)
    agree(outputs(made, [q]), outputs(graph, [q]))
    assert names(made).count("copy") == (0 if apart else 4)
    bases = [view_of(v).base for v in made.outputs]
    assert len({*bases}) == len(bases)


def test_masked_attention_too() -> None:
    mask = eg.tensor(rand(1, 1, TOKENS, TOKENS, seed=2))
    graph = graph_of(attention_step(mask=mask), *INPUTS)
    given = [*INPUTS, mask.numpy()]
    made = rewritten(graph)
    assert "attention_saved_grads" in names(made)
    assert "concat" not in names(made)
    agree(outputs(made, given), outputs(graph, given))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_derivative_without_its_forward_is_interleaved(
    order: tuple[int, ...], masked: bool
) -> None:
    """As torch.compile cuts graphs: q, k and v are given, of one product as before."""

    def fn(g: Any, product: Any, mask: Any) -> Any:
        parts = product.split(HEADS * WIDTH, axis=-1)
        shape = (BATCH, TOKENS, HEADS, WIDTH)
        given = [parts[i].reshape(shape).permute_dims((0, 2, 1, 3)) for i in order]
        more = {"attn_mask": mask} if masked else {"is_causal": True}
        _, pull = eg.vjp(lambda *qkv: nn.functional.scaled_dot_product_attention(*qkv, **more),
                         *given)  # fmt: skip
        found = [d.permute_dims((0, 2, 1, 3)).reshape(BATCH, TOKENS, -1) for d in pull(g)]
        return eg.concat([found[order.index(i)] for i in range(3)], axis=-1)

    given = [
        rand(BATCH, HEADS, TOKENS, WIDTH),
        rand(BATCH, TOKENS, 3 * HEADS * WIDTH, seed=1),
        rand(1, 1, TOKENS, TOKENS, seed=2),
    ]
    graph = graph_of(fn, *given)
    made = rewritten(graph)
    found = names(made)
    assert "attention_packed_grads" in found
    assert ("concat" in found) is (order != (0, 1, 2))
    agree(outputs(made, given), outputs(graph, given))


@pytest.fixture
def with_attention(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tracer to which the two ops are ops, as on a device with kernels for them."""
    served = ("attention_log_sums", "attention_saved_slopes")
    held = Tracer.expands
    monkeypatch.setattr(
        Tracer, "expands",
        lambda self, op, *rest: op.name not in served and held(self, op, *rest),
    )  # fmt: skip
    for name in served:
        monkeypatch.setitem(
            lowering.KERNELS, name, lambda *args, name=name, **params: eager(name, args, params)
        )


@pytest.mark.usefixtures("with_attention")
def test_forward_gives_what_backward_in_another_graph_needs() -> None:
    """The logarithms are those that the forward saved for itself; with them given, derivatives need
    nothing that the forward computed."""
    sums, slopes = (REGISTRY[f"attention_{n}"].function for n in ("log_sums", "saved_slopes"))
    attention = REGISTRY["attention"].function
    apart = (0, 2, 1, 3)

    def heads(product: Any) -> list[Any]:
        shape = (BATCH, TOKENS, HEADS, WIDTH)
        parts = product.split(HEADS * WIDTH, axis=-1)
        return [p.reshape(shape).permute_dims(apart) for p in parts]

    def forward(product: Any) -> Any:
        q, k, v = heads(product)
        return attention(q, k, v, 0.5, True).permute_dims(apart), sums(q, k, 0.5, True)

    def backward(g: Any, product: Any, out: Any, log_sums: Any) -> Any:
        flat = slopes(g, *heads(product), out.permute_dims(apart), log_sums, 0.5, True)
        found = [flat[i * g.size : (i + 1) * g.size].reshape(g.shape) for i in range(3)]
        merged = [d.permute_dims(apart).reshape(BATCH, TOKENS, -1) for d in found]
        return eg.concat(merged, axis=-1)

    product = rand(BATCH, TOKENS, 3 * HEADS * WIDTH, seed=1)
    graph = graph_of(forward, product)
    made = rewritten(graph)
    assert "attention_saved_log_sums" in names(made)
    assert "attention_log_sums" not in names(made)
    out, log_sums = outputs(graph, [product])
    agree(outputs(made, [product]), [out, log_sums])
    given = [rand(BATCH, HEADS, TOKENS, WIDTH), product, out, log_sums]
    graph = graph_of(backward, *given)
    made = rewritten(graph)
    assert "attention_packed_slopes" in names(made)
    assert "concat" not in names(made)
    agree(outputs(made, given), outputs(graph, given))
    # and they are the derivatives
    _, pull = eg.vjp(lambda x: attention(*heads(x), 0.5, True), eg.tensor(product))
    agree(outputs(made, given), [pull(eg.tensor(given[0]))[0].numpy()])


def test_derivatives_used_in_another_way_stay_flat() -> None:
    def fn(x: Any) -> Any:
        q = x.permute_dims((0, 2, 1, 3))
        out = REGISTRY["attention"].function(q, q, q, 0.5, True)
        flat = REGISTRY["attention_grads"].function(out, q, q, q, 0.5, True)
        return out.permute_dims((0, 2, 1, 3)).reshape(-1)[1:], flat[3:] * 2.0

    x = rand(1, 4, 2, 4)
    graph = graph_of(fn, x)
    made = rewritten(graph)
    assert {"attention_saved", "attention_grads"} <= {*names(made)}
    agree(outputs(made, [x]), outputs(graph, [x]))


@pytest.mark.parametrize("tokens", [64, 65])
def test_logarithms_that_are_given_are_not_computed_again(
    monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """But where the kernels' lines of them are padded."""
    monkeypatch.setattr(DryDriver, "lt", object())
    monkeypatch.setattr(flash, "_tensor_map", lambda *args: (ctypes.c_uint64 * 16)())
    monkeypatch.setattr(attention, "_compile_later", lambda driver, call: call)
    rec = recording.recorder(base.get(DRY))
    q = rec.empty((1, 2, tokens, 64), eg.bfloat16)
    sums = attention._log_sums(rec, q, q, scale=0.5)
    assert (sums.shape, sums.dtype) == ((1, 2, tokens), np.float32)
    for packed in (False, True):
        rec.gpu.commands.clear()
        made = attention._slopes(rec, q, q, q, q, q, sums, scale=0.5, packed=packed)
        assert made.shape == ((1, tokens, 3, 2, 64) if packed else (3 * 2 * tokens * 64,))
        titles = [step.title for step in recording.steps_of(rec.gpu)]
        kernels = [t for t in titles if t.startswith("attention")]
        first = "attention_delta" if tokens == 64 else "attention_statistics"
        assert kernels == [first, "attention_queries", "attention_keys"]


def test_attention_that_needs_more_shared_memory_than_there_is_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DryDriver, "lt", object())
    dev: Any = base.get(DRY)
    q = dev.empty((1, 2, 128, 128), eg.bfloat16)
    given = (dev, q, q, q, None, 0.5, True)
    assert attention._AttentionCall(*given).serves
    monkeypatch.setattr(DryDriver, "shared", 99 << 10)  # as on GPUs for games
    assert not attention._AttentionCall(*given).serves


# --- computed again ------------------------------------------------------------------------------


def three_layers(x: Any, up: Any, b: Any, down: Any, gain: Any, kind: str = "none") -> Any:
    def loss(x: Any, up: Any, b: Any, down: Any, gain: Any) -> Any:
        for _ in range(3):
            norm = nn.functional.layer_norm(x, (x.shape[-1],), gain)
            x = x + nn.functional.gelu(norm @ up + b, approximate=kind) @ down
        return (x * x).sum()

    return eg.grad(loss, (0, 1, 2, 3, 4))(x, up, b, down, gain)


MLP = (rand(24, 16), rand(16, 32, seed=1), rand(32, seed=2), rand(32, 16, seed=3), rand(16, seed=4))


@pytest.fixture
def eager_to_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LARGE", 64), ("LARGE_LATE", 64), ("FAR", 3)):
        monkeypatch.setattr(recompute, name, value)


def grouped(fn: Callable[..., Any], given: Sequence[Any], again: bool) -> tuple[Graph, list[Group]]:
    graph = rewritten(graph_of(fn, *given))
    return graph, fuse(graph, fusable, 64, siblings=1, recompute=again)


@pytest.mark.usefixtures("eager_to_recompute")
def test_groups_compute_again_what_is_cheap() -> None:
    graph, before = grouped(three_layers, MLP, again=False)
    wanted = Memory(graph, before, MLP).outputs
    agree(wanted, outputs(graph, MLP))
    graph, after = grouped(three_layers, MLP, again=True)
    agree(Memory(graph, after, MLP).outputs, wanted)
    stored, still_stored = (_stored(groups, graph, full=True) for groups in (before, after))
    assert stored - still_stored == 6  # in each layer: a product with its bias, and a norm
    rows, more_rows = (_stored(groups, graph, full=False) for groups in (before, after))
    assert more_rows > rows  # means and deviations, from which norms are recomputed


@pytest.mark.usefixtures("eager_to_recompute")
@pytest.mark.parametrize(("kind", "name"), [("none", "gelu"), ("tanh", "gelu_tanh")])
def test_activations_are_recomputed_rather_than_saved(kind: str, name: str) -> None:
    _, groups = grouped(partial(three_layers, kind=kind), MLP, again=True)
    made = [v for g in groups for v in g.members if v.name == name]
    readers = [g.opaque for g in groups if g.opaque is not None]
    bases = [view_of(a).base for v in readers for a in v.args]
    assert [bases.count(v) for v in made] == [1] * 6  # twice in each layer, each for one product


def _stored(groups: Sequence[Group], graph: Graph, full: bool) -> int:
    """How many stored values of groups only groups read: whole ones, or rows."""
    opaque = {view_of(a).base for g in groups if g.opaque is not None for a in g.opaque.args}
    stored = used_outside(groups, []) - opaque
    roles = [m.role for g in groups for v, m in g.members.items() if v in stored]
    return sum((role == "full") is full for role in roles)


# --- in the place of an operand ------------------------------------------------------------------


def lowered(fn: Callable[..., Any], *arrays: Any) -> Any:
    return eg.jit(fn).lower(*(eg.tensor(a).to(DRY) for a in arrays)).plan


def test_a_softmax_takes_the_place_of_its_scores() -> None:
    x = rand(256, 256)
    size = x.nbytes
    plan = lowered(lambda x: eg.softmax(x @ x, axis=-1) @ x, x)
    assert plan.memory().arena == size
    # read as it is by another kernel: it must stay
    both = lowered(lambda x: eg.softmax(x @ x, axis=-1) @ (x @ x), x)
    assert both.memory().arena == 2 * size


def test_a_first_step_needs_no_more_memory_than_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros of one element, as an optimiser's state begins, are made whole where the new state
    goes: not beside it."""
    # other tests leave threads behind, and threads prevent writing in place
    monkeypatch.setattr("everygrad._jit.entry._others_may_look", lambda: False)
    model = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 8)).to(DRY)
    opt = eg.optim.AdamW(model.parameters())

    @eg.jit
    def step(x: Any) -> Any:
        loss = (model(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    x = eg.tensor(rand(4, 512)).to(DRY)
    memory = base.get(DRY).gpu.memory
    before = memory.counted
    peaks = []
    for _ in range(3):
        memory.peak = 0
        step(x)
        peaks.append(memory.peak - before)
    assert peaks[0] <= peaks[1] == peaks[2]
    weights = 4 * sum(p.size for p in model.parameters())
    assert peaks[2] < 3.5 * weights  # gradients and two averages beside them


def test_state_that_lowering_makes_is_on_the_device() -> None:
    model = nn.Linear(4, 2).to(DRY)
    opt = eg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @eg.jit
    def step(x: Any) -> Any:
        loss = (model(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    x = eg.ones((3, 4), device=DRY)
    assert step.lower(x).graph is not None
    made = [value for state in opt.state.values() for value in state.values()]
    assert {value.device for value in made if value.ndim} == {DRY}
    step(x)


def test_what_is_read_in_two_shapes_is_not_written_over() -> None:
    def fn(x: Any) -> Any:
        y = x @ x
        return (y.reshape(-1) * y.reshape(128, 512).reshape(-1) + 1.0).reshape(256, 256) @ x

    x = rand(256, 256)
    assert lowered(fn, x).memory().arena in (x.nbytes, 2 * x.nbytes)


def test_numbers_of_classes_are_counted_and_not_read() -> None:
    def fn(x: Any) -> Any:
        labels = eg.zeros((x.shape[0],), "int64", x.device)
        return eg.grad(lambda x: nn.functional.cross_entropy(x, labels))(x)

    (text,) = [t for t in lowered(fn, rand(64, 4096)).sources() if "max_f" in t]
    assert "Pack<i64" not in text


def long_rows() -> Any:
    x = 3 * rand(24, 40000)
    x[0, :9000] = -np.inf
    x[1, 5000] = 40.0
    x[2] = -np.inf
    x[3, 7] = np.nan
    x[4, 9] = np.inf
    return x


def normalised(x: Any) -> Any:
    labels = eg.tensor(np.arange(24) * 1601, device=x.device)
    grad = eg.grad(lambda x: nn.functional.cross_entropy(x, labels, reduction="sum"))(x)
    return eg.logsumexp(x, axis=-1), eg.softmax(x, axis=-1), grad


def test_long_rows_are_read_twice() -> None:
    texts = lowered(lambda x: eg.softmax(x, axis=-1), long_rows()).sources()
    (text,) = [t for t in texts if "max_f" in t]
    assert text.count("*)(a0 +") == 2
    assert "from_t" in text
    (short,) = lowered(lambda x: eg.softmax(x, axis=-1), rand(40, 300)).sources()
    assert short.count("*)(a0 +") == 1  # registers hold it
    assert "from_t" not in short


@pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
def test_long_rows_have_the_cpu_s_values() -> None:
    x = long_rows()
    wanted = normalised(eg.tensor(x))
    found = eg.jit(normalised)(eg.tensor(x, device="cuda"))
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f.numpy(), w.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
def test_gradients_of_losses_of_16_bit_scores_are_right_to_their_last_bits() -> None:
    x = eg.tensor(20 * rand(48, 40000)).astype("bfloat16")
    labels = np.arange(48) * 801

    def gradient(x: Any) -> Any:
        y = eg.tensor(labels, device=x.device)
        return eg.grad(
            lambda x: nn.functional.cross_entropy(x.astype("float32"), y, reduction="sum")
        )(x)

    wide = x.astype("float64").numpy()
    wanted = np.exp(wide - wide.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    wanted[np.arange(48), labels] -= 1
    found = eg.jit(gradient)(x.to("cuda")).astype("float64").numpy()
    np.testing.assert_allclose(found, wanted, rtol=1.01 * 2**-8, atol=1e-37)


def test_functions_of_22_bits_serve_what_is_rounded_to_16() -> None:
    def gradient(x: Any) -> Any:
        labels = eg.zeros((x.shape[0],), "int64", x.device)
        return eg.grad(
            lambda x: nn.functional.cross_entropy(x.astype("float32"), labels, reduction="sum")
        )(x)

    def texts(dtype: str) -> str:
        x = eg.tensor(rand(64, 40000)).astype(dtype).to(DRY)
        return "".join(eg.jit(gradient).lower(x).plan.sources())

    assert texts("bfloat16").count("exp_low(") >= 2
    assert "exp_low(" not in texts("float32")


@pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("tokens", [flash.LONG, flash.LONG + 65])
def test_attention_over_long_contexts(tokens: int, width: int, causal: bool) -> None:
    given = [rand(1, 1, tokens, width, seed=i) for i in range(4)]

    def attend(q: Any, k: Any, v: Any, g: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return (out.astype("float32") * g.astype("float32")).sum()

        return eg.grad(loss, (0, 1, 2))(q, k, v)

    halves = [eg.tensor(a).astype("bfloat16") for a in given]
    wanted = attend(*(a.astype("float32") for a in halves))
    found = attend(*(a.to("cuda") for a in halves))
    for f, w in zip(found, wanted, strict=True):
        off = np.linalg.norm(f.astype("float32").numpy() - w.numpy()) / np.linalg.norm(w.numpy())
        assert off < 1e-2


@pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
@pytest.mark.parametrize("width", [520, 768, 1000, 3000])
def test_norms_of_all_widths(width: int) -> None:
    given = (rand(300, width), rand(width, seed=1), rand(width, seed=2), rand(300, width, seed=3))

    def grads(x: Any, gain: Any, bias: Any, g: Any) -> Any:
        def loss(x: Any, gain: Any, bias: Any) -> Any:
            return (nn.functional.layer_norm(x, (width,), gain, bias) * g).sum()

        return eg.grad(loss, (0, 1, 2))(x, gain, bias)

    wanted = grads(*(eg.tensor(a) for a in given))
    found = eg.jit(grads)(*(eg.tensor(a, device="cuda") for a in given))
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f.numpy(), w.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
def test_half_activations_are_right_to_their_last_bit() -> None:
    x = np.linspace(-9, 9, 4001).astype(np.float32)

    def both(x: Any) -> Any:
        half = x.astype("bfloat16")
        return nn.functional.gelu(half).astype("float32"), eg.grad(
            lambda h: nn.functional.gelu(h).astype("float32").sum()
        )(half).astype("float32")

    exact = eg.tensor(x).astype("bfloat16").astype("float64")
    wanted = (nn.functional.gelu(exact), eg.grad(lambda t: nn.functional.gelu(t).sum())(exact))
    for f, w in zip(eg.jit(both)(eg.tensor(x, device="cuda")), wanted, strict=True):
        np.testing.assert_allclose(f.numpy(), w.numpy(), rtol=2**-8 * 1.01, atol=4e-6)


def test_a_step_drops_gradients_that_it_replaces() -> None:
    w = eg.ones((64, 64), device=DRY, requires_grad=True)

    def step(x: Any) -> Any:
        loss = (x @ w).sum()
        w.grad = None
        loss.backward()
        return loss

    compiled = eg.jit(step)
    x = eg.ones((64, 64), device=DRY)
    addresses = []
    for _ in range(3):
        compiled(x)
        addresses.append(w.grad._data.ptr)  # type: ignore[union-attr]
    assert len(set(addresses[1:])) == 1
    held = w.grad
    compiled(x)
    assert w.grad._data.ptr != held._data.ptr  # type: ignore[union-attr]
    assert isinstance(compiled.latest.replay.runner, Runner)  # type: ignore[union-attr]
