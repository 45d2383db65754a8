"""`torch.compile(backend="everygrad")` gives what PyTorch's eager mode gives.

PyTorch is the referee. Most cases are functions in tables: each is run twice, eagerly and compiled,
on inputs of its own, and results, gradients, strides and what happened to the inputs are compared.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import everygrad as eg
from everygrad.errors import MissingOpsError
from everygrad.interop.torch import backend
from everygrad.interop.torch.layouts import layout_of
from tests.support.torch_compile import assert_same, compiled


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def _mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


# --- functions, run eagerly and compiled on equal inputs -----------------------------------------


def _masked_put(x):
    y = x.clone()
    y[x > 0] = -1.0
    y[0, 1:] = 7.0
    return y


def _cached(cache, new):
    cache[:, 1] = new
    cache.index_copy_(1, torch.tensor([0, 3]), torch.stack([new, new + 1], 1))
    return cache.sum()


FUNCTIONS = {
    "bool mask index_put": (_masked_put, lambda: [torch.randn(3, 4).double()]),
    "cache": (_cached, lambda: [torch.zeros(2, 5, 3), torch.randn(2, 3)]),
    "in place": (lambda x: x.add_(1).mul_(2).sum(), lambda: [torch.randn(3)]),
    "int plus float": (lambda x: x + 1.5, lambda: [torch.arange(4)]),
    "int by int": (lambda x: x / 2, lambda: [torch.arange(4)]),
    "0-d counts less": (lambda x, y: x * y, lambda: [torch.randn(3), torch.randn(()).double()]),
    "sum of bools": (lambda x: (x > 0).sum() + (x > 0).float().mean(), lambda: [torch.randn(5)]),
    "uint8 plus bool": (lambda x: (x + (x > 2)) * 3, lambda: [torch.arange(5).to(torch.uint8)]),
    "bfloat16": (lambda x: x @ x.t() + 1, lambda: [torch.randn(3, 4).bfloat16()]),
    "float16": (lambda x: x * 3 - x.mean(), lambda: [torch.randn(3, 4).half()]),
    "complex": (lambda x: (x * x.conj()).real.sum() + x.abs(), lambda: [torch.randn(3) + 1j]),
    "views": (
        lambda x: (x.t(), x[1:], x.view(-1), x.unsqueeze(0)),
        lambda: [torch.randn(3, 4).double()],
    ),
    "views of what is made": (
        lambda x: (lambda y: (y, y.t(), y[0], y.reshape(-1)[1:]))(x.exp()),
        lambda: [torch.randn(3, 4).double()],
    ),
    "one result twice": (lambda x: (lambda y: (y, y))(x + 1), lambda: [torch.randn(3)]),
    "an input and None": (lambda x: (x, None, x * 2), lambda: [torch.randn(3)]),
    "constants": (lambda x: (torch.zeros(3), torch.arange(4), x + 1), lambda: [torch.randn(3)]),
    "neutral": (lambda x: (x * 1, x + 0, x.clone(), x.contiguous()), lambda: [torch.randn(3)]),
    "transposed input": (lambda x: x.exp() @ x.t(), lambda: [torch.randn(3, 4).double().t()]),
    "square transposed": (
        lambda x: (x.exp(), (x + 1).t().contiguous().t()),
        lambda: [torch.randn(4, 4).double().t()],
    ),
    "sliced input": (lambda x: x * 2 + x.sum(1, True), lambda: [torch.randn(6, 9)[1::2, 2:8:3]]),
    "expanded input": (lambda x: x + 1, lambda: [torch.randn(3, 1).expand(3, 4)]),
    "overlapping input": (lambda x: x * 2, lambda: [torch.randn(8).unfold(0, 4, 1)]),
    "offset input": (lambda x: x.view(-1) + 1, lambda: [torch.randn(7)[1:]]),
    "permuted input": (lambda x: x.sum(1) * 2, lambda: [torch.randn(2, 3, 4).permute(2, 0, 1)]),
    "empty": (lambda x: (x + 1, x.sum()), lambda: [torch.empty(0, 3)]),
    "0-d": (lambda x: x.exp(), lambda: [torch.tensor(2.0)]),
    "channels_last": (
        lambda x: (x.relu(), F.conv2d(x, torch.ones(2, 3, 3, 3))),
        lambda: [torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)],
    ),
    "made channels_last": (
        lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
        lambda: [torch.randn(2, 3, 4, 4)],
    ),
    "made expanded": (lambda x: x.exp().expand(3, 4) + 0, lambda: [torch.randn(3, 1)]),
    "factorisations that check": (
        lambda x: (torch.linalg.inv(x), torch.linalg.cholesky(x), torch.linalg.solve(x, x[0])),
        lambda: [torch.eye(3) * 2 + 1],
    ),
    "number argument": (lambda x, n: x * n, lambda: [torch.randn(3), 2.5]),
    "graph break": (lambda x: x[x > 0].sum() + x.sum(), lambda: [torch.randn(9)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_equal_eager(name):
    fn, make = FUNCTIONS[name]
    torch.manual_seed(1)
    theirs = make()
    mine = copy.deepcopy(theirs)
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            assert a.stride() == b.stride()
    call = compiled(fn)
    for _ in range(2):  # as compiled, and as replayed
        want, got = fn(*theirs), call(*mine)
        narrow = name in ("bfloat16", "float16")
        assert_same(got, want, 1e-2 if narrow else 1e-5)
        assert_same(mine, theirs, 1e-6)  # what was written in place
        for g, w in zip(_tensors(got), _tensors(want), strict=True):
            assert g.stride() == w.stride()


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value if v is not None for t in _tensors(v)]


def test_results_are_nobody_elses_memory():
    call = compiled(lambda x: (torch.zeros(3), x * 1, x.clone(), x + 0, x + 1))
    x = torch.randn(3)
    before = x.clone()
    for _ in range(3):
        results = call(x)
        want = (torch.zeros(3), before, before, before, before + 1)
        assert_same(list(results), list(want), 0)
        assert len({r.data_ptr() for r in (*results, x)}) == 6
        for r in results:
            r.fill_(9.0)  # by the user, who may
        assert_same(x, before, 0)


def test_results_are_kept_from_later_calls():
    call = compiled(lambda x: (x * 2, x[1:] + 1))
    held = [call(torch.full((400, 400), float(i))) for i in range(4)]
    for i, (double, more) in enumerate(held):
        assert bool((double == 2.0 * i).all())
        assert bool((more == i + 1.0).all())


@pytest.mark.parametrize("size", [(2, 3, 4), (3, 3, 3), (2, 1, 2), (4, 4)])
def test_every_order_of_axes_is_read_and_written(size):
    seen = 0
    for order in itertools.permutations(range(len(size))):
        x = torch.randn([size[i] for i in order]).double()
        x = x.permute([order.index(i) for i in range(len(size))])
        layout = layout_of(tuple(x.shape), x.stride())
        assert layout is not None
        assert layout.dense
        flat = x.permute(order).contiguous().view(-1).numpy()
        buffer = eg.asarray(flat.reshape(layout.buffer))
        assert torch.equal(torch.from_dlpack(layout.restored(buffer)), x)
        back = layout.arranged(eg.asarray(x.contiguous().numpy()))
        assert torch.equal(torch.from_dlpack(back).reshape(-1), torch.from_numpy(flat))
        seen += 1
    assert seen in (2, 6)


def test_memory_is_shared_not_copied():
    call = compiled(lambda x: (x.t(), x[1:], x))
    x = torch.randn(3, 4)
    turned, rest, same = call(x)
    assert turned.data_ptr() == x.data_ptr() == same.data_ptr()
    x.fill_(5.0)
    assert bool((turned == 5).all())
    assert bool((rest == 5).all())


def _weight_is_saved(w, x):
    return (x @ w.t()).tanh() @ w


@pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_a_weight_changed_before_backward_is_noticed(way):
    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(2, 3, requires_grad=True)
    call = way(_weight_is_saved)
    call(w, x).sum().backward()
    loss = call(w, x).sum()
    with torch.no_grad():
        w.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("padding", [None, 0, 3])
def test_gradients_of_tied_and_padded_embeddings(padding):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(6, 4, padding_idx=padding)
            self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, i):
            return self.head(self.emb(i).tanh())

    model = Tied().double()
    index = torch.tensor([[0, 3, 3, 1], [5, 0, 3, 2]])
    grads = []
    for call in (model, compiled(model)):
        model.zero_grad()
        call(index).pow(2).sum().backward()
        grads.append(model.emb.weight.grad.clone())
    assert_same(grads[1], grads[0])


AUTOCAST = {
    "linear": lambda: nn.Linear(8, 4),
    "layer norm": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)),
    "softmax": lambda: nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)),
}


@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_is_as_exact_as_eager(name):
    model = AUTOCAST[name]()
    x = torch.randn(5, 8) * 10

    def trained(call, x, enabled=True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = call(x)
        out.to(x.dtype).pow(2).sum().backward()
        return out.detach(), [p.grad.double() for p in model.parameters()]

    eager, eager_grads = trained(model, x)
    mine, my_grads = trained(compiled(model), x)
    _, exact = trained(model.double(), x.double(), enabled=False)
    assert_same(mine, eager, 2e-2)
    for got, want, true in zip(my_grads, eager_grads, exact, strict=True):
        # both round to eight bits, at other places: neither is the measure of the other
        assert float((got - true).norm()) <= 2 * float((want - true).norm()) + 1e-6


# --- randomness ----------------------------------------------------------------------------------


def test_dropout_obeys_the_seed():
    model = nn.Dropout(0.25)
    call = compiled(model)
    x = torch.ones(200, 100, requires_grad=True)

    def drawn(seed):
        torch.manual_seed(seed)
        out = call(x)
        return out.detach(), torch.autograd.grad(out.sum(), x)[0]

    first, grad = drawn(3)
    again, _ = drawn(3)
    other, _ = drawn(4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, grad)  # ones: backward used the mask of forward
    assert first.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.01
    assert not torch.equal(call(x), call(x))


def test_random_functions_obey_the_seed():
    call = compiled(lambda x: (torch.rand_like(x), torch.randn(5), torch.bernoulli(x)))
    x = torch.full((50, 20), 0.5)
    torch.manual_seed(5)
    first = call(x)
    torch.manual_seed(5)
    assert_same(list(call(x)), list(first), 0)
    assert 0.4 < float(first[0].mean()) < 0.6
    assert set(first[2].unique().tolist()) == {0.0, 1.0}


# --- sizes ---------------------------------------------------------------------------------------


def test_each_size_is_compiled_for_itself_and_said(caplog):
    model = _mlp().double()
    call = compiled(model, dynamic=True)
    with caplog.at_level(logging.INFO, "everygrad.torch"):
        for n in (5, 7, 5, 9, 7):
            x = torch.randn(n, 4).double()
            grads = []
            for forward in (model, call):
                model.zero_grad()
                out = forward(x)
                out.pow(2).sum().backward()
                grads.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
            assert_same(grads[1], grads[0])
    said = [r.getMessage() for r in caplog.records if "compiled for sizes" in r.getMessage()]
    assert len(said) == 6  # three sizes, forward and backward
    assert any("[9]" in line and "3." in line for line in said)


def test_sizes_that_are_computed():
    def fn(x):
        n = x.shape[0]
        return x.reshape(n // 2, -1) * n + torch.arange(x.shape[1] * 2), x.sum() / n

    call = compiled(fn, dynamic=True)
    for n in (4, 8, 10):
        x = torch.randn(n, 3).double()
        assert_same(list(call(x)), list(fn(x)))


# --- what is not known here ----------------------------------------------------------------------


@torch.library.custom_op("everygrad_tests::unknown", mutates_args=())
def _unknown(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@_unknown.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("everygrad_tests::other", mutates_args=())
def _other(x: torch.Tensor) -> torch.Tensor:
    return x + 5


@_other.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("everygrad_tests::turned", mutates_args=())
def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t() * 2  # not the strides that are said below


@_turned.register_fake
def _(x):
    return torch.empty_like(x)


def test_sizes_that_values_decide_stay_with_pytorch():
    def positive(x):
        return x[x > 0] * 2 + x.sum()

    names = "capture_dynamic_output_shape_ops"
    with torch._dynamo.config.patch({names: True}):
        with pytest.raises(Exception, match=r"aten::index.Tensor .the size of its result"):
            compiled(positive)(torch.arange(-2.0, 3.0))
        call = compiled(positive, options={})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for x in (torch.arange(-2.0, 3.0), torch.arange(-2.0, 9.0), -torch.ones(3)):
                assert_same(call(x), positive(x))


def test_a_matrix_that_is_singular_raises():
    with pytest.raises(ValueError, match="a matrix is singular"):
        compiled(torch.linalg.inv)(torch.zeros(2, 2))


def test_strides_that_an_op_does_not_have():
    x = torch.randn(3, 3).double()
    call = compiled(lambda x: _turned(x + 1).exp() * 3, options={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(call(x), ((x + 1) * 2).exp() * 3)


def _with_unknown(x):
    y = _unknown((x * 2).t() + 1)
    return (_other(y.exp()).sin() + y, y[0] * 2, x)


def test_unknown_ops_stay_with_pytorch_and_are_named_once():
    backend._named.clear()
    x = torch.randn(3, 4).double()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            call = compiled(_with_unknown, options={})
            assert_same(list(call(x)), list(_with_unknown(x)))
            assert_same(list(call(x)), list(_with_unknown(x)))
            torch._dynamo.reset()
    ours = [str(w.message) for w in caught if "everygrad" in str(w.message)]
    assert len(ours) == 1
    assert "everygrad_tests::unknown" in ours[0]
    assert "everygrad_tests::other" in ours[0]


def test_fullgraph_names_everything_that_is_missing():
    with pytest.raises(Exception, match="no op here for 2") as caught:
        compiled(_with_unknown)(torch.randn(3, 4))
    inner = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(inner, MissingOpsError)
    assert set(inner.lacking) == {
        "everygrad_tests::unknown.default",
        "everygrad_tests::other.default",
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fullgrap": True}, "no option 'fullgrap'; it has fullgraph"),
        ({"fullgraph": 1}, "fullgraph must be a bool, got 1"),
    ],
)
def test_options_are_checked(options, said):
    with pytest.raises(Exception, match=said):
        compiled(lambda x: x + 1, options=options)(torch.randn(3))


def test_an_index_out_of_range_is_refused():
    call = compiled(lambda x, i: x[i] * 2)
    x = torch.randn(4)
    assert_same(call(x, torch.tensor([0, 3])), x[[0, 3]] * 2)
    with pytest.raises(IndexError, match="out of range"):
        call(x, torch.tensor([0, 4]))
    assert_same(call(x, torch.tensor([1, 2])), x[[1, 2]] * 2)


# --- threads, processes --------------------------------------------------------------------------


def test_several_threads_call_one_model():
    model = _mlp().double()
    call = compiled(model)
    inputs = [torch.randn(5, 4).double() for _ in range(16)]
    want = [model(x).detach() for x in inputs]
    call(inputs[0])
    faults = []

    def work(numbers):
        try:
            for _ in range(10):
                for i in numbers:
                    x = inputs[i].clone().requires_grad_()
                    out = call(x)
                    (grad,) = torch.autograd.grad(out.sum(), x)
                    (expected,) = torch.autograd.grad(model(x).sum(), x)
                    assert_same(out.detach(), want[i])
                    assert_same(grad, expected)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(range(k, 16, 4),)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_several_threads_train_at_several_sizes(caplog):
    """Each thread has its own sizes, some of which others have too; each set of sizes is compiled
    once, by whichever thread comes first."""
    model = _mlp().double()
    call = compiled(model, dynamic=True)
    sizes = [[2, 3, 5], [3, 5, 7], [7, 2, 9], [9, 4, 3]]
    given = {n: torch.randn(n, 4).double() for n in {*itertools.chain(*sizes)}}

    def gradients(run, x):
        out = run(x)
        found = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        return [out.detach(), *found]

    want = {n: gradients(model, x) for n, x in given.items()}
    gradients(call, given[2])  # Dynamo makes its graph
    faults = []

    def work(numbers):
        try:
            for n in numbers * 4:
                assert_same(gradients(call, given[n]), want[n])
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(numbers,)) for numbers in sizes]
    with caplog.at_level(logging.INFO, "everygrad.torch"):
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not faults
    lines = [r.getMessage() for r in caplog.records if r.name == "everygrad.torch"]
    told = [line.partition("sizes ")[2].partition("],")[0] for line in lines]
    assert told
    assert max(map(told.count, told)) <= 2  # a graph of forward, and one of backward


def test_the_backend_is_found_by_its_name(tmp_path):
    root = Path(__file__).parents[2]
    declared = (root / "pyproject.toml").read_text()
    section = declared.split('[project.entry-points."torch_dynamo_backends"]')[1].split("[")[0]
    name, value = (part.strip().strip('"') for part in section.strip().split("="))
    info = tmp_path / "everygrad_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: everygrad-entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{name} = {value}\n")
    program = (
        "import torch\n"
        "assert 'everygrad' in torch._dynamo.list_backends()\n"
        "f = torch.compile(lambda x: x * 2 + 1, backend='everygrad')\n"
        "assert f(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]\n"
        "import everygrad.interop.torch.compiled\n"
        "print('found')\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "found"
