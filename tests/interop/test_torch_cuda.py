"""PyTorch's graphs for NVIDIA GPUs, on a driver that launches nothing: names of devices, memory and
the order of streams. What kernels compute is tested where there is a GPU."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from everygrad.backends import base
from everygrad.backends.cuda import device
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph.runner import Runner
from everygrad.interop.torch import backend, cuda
from everygrad.interop.torch.aten.nn import attention
from everygrad.interop.torch.aten.table import HANDLERS
from everygrad.interop.torch.compiled import CompiledGraph
from everygrad.interop.torch.graph import overload

THEIRS = 4242  # the handle of PyTorch's stream


class _Driver(DryDriver):
    """Notes how streams were ordered; its own stream has a handle."""

    def __init__(self):
        super().__init__()
        self.stream = 17
        self.orders = []

    def order(self, first, second):
        self.orders.append((first, second))


@pytest.fixture
def gpu(monkeypatch):
    """A GPU "cuda:0" whose memory is the host's: PyTorch's tensors of the CPU stand for its own."""
    for name in ("cuda", "cuda:0"):
        monkeypatch.delitem(base._OPEN, name, raising=False)
    monkeypatch.setattr(device, "Driver", lambda index: _Driver())
    monkeypatch.setattr(device.Cuda, "dlpack_device", (1, 0))
    monkeypatch.setattr(cuda, "on_gpu", lambda t: t.dim() > 0)
    stream = SimpleNamespace(cuda_stream=THEIRS)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: stream)
    opened = base.get("cuda:0")
    yield opened
    for name in ("cuda", "cuda:0"):
        base._OPEN.pop(name, None)


def graph_of(fn, *shapes):
    """The graph that aot_autograd would hand over for tensors of a GPU."""
    with FakeTensorMode():
        given = [torch.empty(*shape, device="cuda:0") for shape in shapes]
        return make_fx(fn, decomposition_table=backend.decompositions())(*given)


def compiled(fn, *shapes):
    module = graph_of(fn, *shapes)
    assert backend.device_of(module) == "cuda:0"
    found = backend.compiled(module, True)
    assert isinstance(found, CompiledGraph)
    return found


def test_devices_have_one_name(gpu):
    """Tensors made inside a graph are where its inputs are: PyTorch says "cuda:0" of both."""
    made = compiled(
        lambda x: [x + torch.arange(4, device="cuda:0"), torch.ones(3, device="cuda:0") * x.sum()],
        (2, 4),
    )
    assert made.device == gpu.device == "cuda"
    out = made([torch.ones(2, 4)])
    assert [tuple(t.shape) for t in out] == [(2, 4), (3,)]


def test_numbers_on_the_cpu_are_taken_along(gpu):
    with FakeTensorMode():
        given = [torch.empty(3, device="cuda:0"), torch.empty(())]
        module = make_fx(lambda x, n: [x * n])(*given)
    (out,) = backend.compiled(module, True)([torch.ones(3), torch.tensor(2.0)])
    assert out.shape == (3,)


def test_results_have_pytorchs_strides_and_are_no_views(gpu):
    made = compiled(lambda x: [(x + 1).t(), x.t().exp(), x.sum(0)], (2, 3))
    found = made([torch.ones(2, 3)])
    assert [t.stride() for t in found] == [(1, 3), (1, 3), (1,)]
    assert not found[1]._is_view()
    assert not found[2]._is_view()


def test_constants_and_inputs_are_never_handed_out(gpu):
    made = compiled(lambda x: [torch.ones(300, device="cuda:0"), x * 1, x.clone()], (300,))
    x = torch.zeros(300)
    first, second = made([x]), made([x])
    places = [t.data_ptr() for t in (*first, *second, x)]
    assert len(set(places)) == len(places)


def test_empty_results(gpu):
    made = compiled(lambda x, y: [x * 2, y + 1, x.sum(0)], (0, 3), (4, 3))
    for _ in range(2):
        found = made([torch.zeros(0, 3), torch.zeros(4, 3)])
        assert [tuple(t.shape) for t in found] == [(0, 3), (4, 3), (3,)]
        del found
        gc.collect()


def test_attention_is_handed_out_in_the_order_said(gpu):
    """Inside, its heads lie beside each other: (batch, tokens, heads, width)."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    made = compiled(lambda q, k, v: [attend(q, k, v, 0.0, True)[0]], *[(2, 3, 8, 4)] * 3)
    found = made.function.on_payloads(
        [cuda.payload(gpu, torch.ones(2, 3, 8, 4), b) for b in made.function.inputs]
    )
    (out,) = made([torch.ones(2, 3, 8, 4) for _ in range(3)])
    assert out.stride() == made.made[0].stride
    assert found[0].is_contiguous or out.data_ptr() != found[0].ptr


def test_streams_wait_for_each_other(gpu):
    made = compiled(lambda x: [x * 2], (300,))
    driver = gpu.gpu.driver
    (out,) = made([torch.zeros(300)])
    assert driver.orders == [(THEIRS, driver.stream), (driver.stream, THEIRS)]
    driver.orders.clear()
    del out
    gc.collect()
    assert not driver.orders  # memory that waits: the next call is ordered behind theirs anyhow
    kept = [made([torch.zeros(300)]) for _ in range(cuda._HELD + 1)]
    driver.orders.clear()
    kept.clear()
    gc.collect()
    assert driver.orders == [(THEIRS, driver.stream)]  # much of it, for all at once


def test_memory_that_another_stream_freed_is_ordered_behind_that_one(gpu, monkeypatch):
    made = compiled(lambda x: [x * 2], (300,))
    driver = gpu.gpu.driver
    (out,) = made([torch.zeros(300)])
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=THEIRS + 1)
    )
    driver.orders.clear()
    del out
    gc.collect()
    made([torch.zeros(300)])
    ours = driver.stream
    assert driver.orders == [(THEIRS + 1, ours), (THEIRS, ours), (ours, THEIRS + 1)]


def test_only_what_moved_is_put_anew(gpu, monkeypatch):
    """Parameters stay where they are; what is read as a copy is copied in each call."""
    put = []
    held = Runner.put_input
    monkeypatch.setattr(Runner, "put_input", lambda self, i, a: (put.append(i), held(self, i, a)))
    with FakeTensorMode():
        given = [torch.empty(300, device="cuda:0") for _ in range(2)]
        module = make_fx(lambda x, y, n: [x * n + y])(*given, torch.empty(()))
    made = backend.compiled(module, True)
    block = torch.zeros(2048)
    first = -block.data_ptr() // 4 % 128
    x, other = block[first : first + 300], block[first + 384 : first + 684]
    y, n = block[first + 801 : first + 1101], torch.tensor(2.0)
    for wanted, x_now in (([0, 1, 2], x), ([1, 2], x), ([0, 1, 2], other), ([0, 1, 2], x)):
        put.clear()
        made([x_now, y, n])
        assert put == wanted


def test_memory_is_held_as_long_as_pytorch_holds_it(gpu):
    made = compiled(lambda x: [x * 2], (300,))
    kept = [made([torch.zeros(300)])[0] for _ in range(5)]
    assert len({t.data_ptr() for t in kept}) == 5
    del kept
    gc.collect()
    places = {made([torch.zeros(300)])[0].data_ptr() for _ in range(5)}
    assert len(places) == 1  # the buffer of the call before, so that its CUDA graph serves again


def test_a_slice_is_read_no_further_than_its_memory(gpu):
    """The last row of a slice is shorter than its buffer's. Inputs that are not aligned, or at ever
    new addresses, are copied as a whole."""
    copied = []
    driver = gpu.gpu.driver
    held = driver.copy_from
    driver.copy_from = lambda other, target, source, size: (
        copied.append((source, size)),
        held(other, target, source, size),
    )
    with FakeTensorMode():
        given = torch.empty(4, 8, device="cuda:0").narrow(0, 1, 3).narrow(1, 3, 4)
        module = make_fx(lambda x: [x * 2])(given)
    made = backend.compiled(module, True)
    for _ in range(4):
        whole = torch.ones(4, 8)
        made([whole[1:, 3:7]])
        start, end = whole.data_ptr(), whole.data_ptr() + whole.nbytes
        read = [source + size for source, size in copied if start <= source < end]
        assert read
        assert max(read) == end


def _training_graphs(monkeypatch, fn, *given):
    """The graphs that aot_autograd cuts: of forward and of backward."""
    found = []
    held = CompiledGraph.__init__

    def init(self, module, where):
        found.append(module)
        held(self, module, where)

    monkeypatch.setattr(CompiledGraph, "__init__", init)
    torch._dynamo.reset()
    out = torch.compile(fn, backend=backend.everygrad, options={"fullgraph": True})(*given)
    torch.autograd.grad(out.sum(), given)
    return found


def test_what_backward_does_not_read_is_not_computed(monkeypatch):
    def attention_and_pooling(q, k, v):
        x = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.nn.functional.max_pool2d(x, 2)

    given = [torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3)]
    forward, behind = _training_graphs(monkeypatch, attention_and_pooling, *given)
    saved = [n.meta["val"] for n in next(iter(reversed(forward.graph.nodes))).args[0]]
    assert all(t.dim() == 4 and t.is_floating_point() for t in saved)  # no sums, no places
    names = {overload(n.target) for n in behind.graph.nodes if n.op == "call_function"}
    assert sum(bool(HANDLERS[name].unread) for name in names if name in HANDLERS) == 2


def test_parts_of_larger_memory_are_read_in_place(gpu, monkeypatch):
    """Queries, keys and values of one product begin where a row of it does: that is aligned for
    what kernels load at once, 16 bytes, though not as an allocation is."""
    copied = []
    monkeypatch.setattr(Runner, "copy_input", lambda self, *args: copied.append(args))
    made = compiled(lambda x, y: [x * 2 + y], (300,), (300,))
    block = torch.zeros(2048)
    first = -block.data_ptr() // 4 % 128
    for _ in range(2):
        made([block[first + 4 : first + 304], block[first + 384 : first + 684]])
    assert not copied
    made([block[first + 5 : first + 305], block[first + 384 : first + 684]])
    assert copied


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("kind", ["flash", "cudnn", "efficient"])
def test_attention_saves_its_logarithms_where_kernels_read_them(monkeypatch, served, kind):
    """Elsewhere they would be a product of all queries and keys; derivatives are the same."""
    monkeypatch.setattr(attention, "serves_log_sums", lambda q, k, device="": served)
    given = [torch.randn(2, 3, 64, 8, requires_grad=True) for _ in range(3)]
    graphs = []

    def keep(module, _):
        graphs.append(module)
        return make_boxed_func(module.forward)

    def fn(q, k, v):
        if kind == "flash":
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        op = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention")
        return op(q, k, v, None, True, 0.0, True)[0]

    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = [torch.empty(2, 3, 64, 8, requires_grad=True) for _ in range(3)]
        out = aot_function(
            fn,
            fw_compiler=keep,
            bw_compiler=keep,
            decompositions=backend.decompositions(),
            partition_fn=backend.partition,
        )(*fake)
        out.sum().backward()
    forward, behind = (CompiledGraph(module, "cpu") for module in graphs)
    saved = [n.meta["val"] for n in next(iter(reversed(graphs[0].graph.nodes))).args[0]]
    assert any(t.numel() == 2 * 3 * 64 for t in saved) is served
    out, *saved = forward([t.detach() for t in given])
    want = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)
    torch.testing.assert_close(out, want)
    g = torch.randn_like(out)
    found = behind([*saved, g])
    for d, wanted in zip(found, torch.autograd.grad(want, given, g), strict=True):
        torch.testing.assert_close(d, wanted)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_over_classes_saves_its_scores_alone(monkeypatch, weighted):
    """Its logarithms of probabilities are computed again from the scores and two numbers a row;
    under autocast the scores are halves, and those would be saved in float32."""
    weight = torch.rand(40) + 0.5 if weighted else None

    def loss(x, w):
        scores = (x.bfloat16() @ w.bfloat16()).float()
        return torch.nn.functional.cross_entropy(scores, torch.arange(6), weight)

    given = [torch.randn(6, 8, requires_grad=True), torch.randn(8, 40, requires_grad=True)]
    forward, _ = _training_graphs(monkeypatch, loss, *given)
    saved = [n.meta["val"] for n in next(iter(reversed(forward.graph.nodes))).args[0]]
    large = [t for t in saved if tuple(t.shape) == (6, 40)]
    assert [t.dtype for t in large] == [torch.bfloat16]


class _Small(torch.nn.Module):
    """What language and image models are made of, dropout included."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(16, 8)
        self.mix = torch.nn.Linear(8, 24)
        self.norm = torch.nn.LayerNorm(8)
        self.image = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.batch = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, tokens):
        x = self.words(tokens)
        q, k, v = (t.view(2, 6, 2, 4).transpose(1, 2) for t in self.mix(x).split(8, 2))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.norm(x + torch.nn.functional.dropout(y.transpose(1, 2).reshape(2, 6, 8), 0.1))
        z = torch.relu(self.batch(self.image(y.view(2, 2, 6, 4)))).mean((1, 2, 3))
        scores = self.head(y) * z[:, None, None]
        return torch.nn.functional.cross_entropy(scores.float().view(12, 16), tokens.view(-1))


@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_step_is_compiled_for_a_gpu(gpu, monkeypatch, autocast):
    """The graphs of a model, made on the CPU, compiled for the GPU: results are as PyTorch says."""
    model = _Small().train()

    def step(tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(tokens)

    graphs = []
    held = CompiledGraph.__init__

    def init(self, module, where):
        graphs.append(module)
        held(self, module, where)

    torch._dynamo.reset()
    with monkeypatch.context() as patched:
        patched.setattr(CompiledGraph, "__init__", init)
        call = torch.compile(step, backend=backend.everygrad, options={"fullgraph": True})
        call(torch.randint(0, 16, (2, 6))).backward()
    assert len(graphs) == 2
    for module in graphs:
        made = CompiledGraph(module, "cuda:0")
        given = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
        out = made([_like(v) for v in given])
        wanted = [n.meta["val"] for n in next(iter(reversed(module.graph.nodes))).args[0] if n]
        for found, want in zip([t for t in out if t is not None], wanted, strict=True):
            assert (found.shape, found.dtype) == (want.shape, want.dtype)
            assert found.stride() == want.stride() or not found.numel()


def _like(value):
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()
