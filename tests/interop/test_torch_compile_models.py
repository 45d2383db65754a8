"""Models and optimisers of PyTorch's, trained through `torch.compile(backend="everygrad")`."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from everygrad.interop.torch import backend
from everygrad.interop.torch.compiled import CompiledGraph
from tests.support.torch_compile import assert_same, compiled


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


# --- whole models, trained by PyTorch's own optimisers -------------------------------------------


class TiedGPT(nn.Module):
    def __init__(self, vocabulary=40, width=16, heads=2, layers=1, context=8):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        batch, count = tokens.shape
        x = self.tokens(tokens) + self.places(torch.arange(count))
        for b in self.blocks:
            parts = b["qkv"](b["norm"](x)).chunk(3, -1)
            q, k, v = (p.view(batch, count, self.heads, -1).transpose(1, 2) for p in parts)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + b["out"](a.transpose(1, 2).reshape(batch, count, -1))
            x = x + b["down"](F.gelu(b["up"](b["norm2"](x))))
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 6, 2, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


def _mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def _cnn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3),
        nn.BatchNorm2d(6),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    )


MODELS = {
    "mlp": (_mlp, lambda: torch.randn(5, 4).double(), torch.optim.SGD, {"momentum": 0.9}),
    "cnn": (_cnn, lambda: torch.randn(2, 3, 10, 10).double(), torch.optim.AdamW, {}),
    "gpt": (TiedGPT, lambda: torch.randint(0, 40, (2, 8)), torch.optim.AdamW, {"fused": True}),
    "lstm": (Recurrent, lambda: torch.randn(3, 4, 5).double(), torch.optim.Adam, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_five_training_steps_equal_eager(name):
    make, draw, optimiser, keywords = MODELS[name]
    model = make().double()
    ours = copy.deepcopy(model)
    with torch._dynamo.config.patch(allow_rnn=True):
        call = compiled(ours)
        theirs = optimiser(model.parameters(), lr=1e-2, **keywords)
        mine = optimiser(ours.parameters(), lr=1e-2, **keywords)
        for _ in range(5):
            x = draw()
            for step, forward in ((theirs, model), (mine, call)):
                step.zero_grad()
                forward(x).pow(2).mean().backward()
                step.step()
        # AdamW divides by the root of what may be rounding alone: the last digits of it differ
        assert_same(list(ours.state_dict().values()), list(model.state_dict().values()), 1e-8)
        model.eval(), ours.eval()
        with torch.no_grad():
            assert_same(call(x), model(x), 1e-8)


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of its other compilers
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimisers_step_is_compiled(optimiser):
    theirs = [nn.Parameter(torch.randn(5).double()) for _ in range(3)]
    mine = copy.deepcopy(theirs)
    steps = [optimiser(theirs, lr=1e-2), optimiser(mine, lr=1e-2)]
    call = compiled(steps[1].step)
    for _ in range(3):
        for a, b in zip(theirs, mine, strict=True):
            a.grad = torch.randn(5).double()
            b.grad = a.grad.clone()
        steps[0].step()
        call()
        # compiled, PyTorch's AdamW counts its steps in float32
        assert_same(mine, theirs, 1e-10 if optimiser is torch.optim.SGD else 1e-6)


RECURRENT = {
    "lstm": lambda: nn.LSTM(5, 6, 2, batch_first=True),
    "gru": lambda: nn.GRU(5, 6, 2, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(5, 6, bias=False, bidirectional=True),
    "batch first": lambda: nn.GRU(5, 6, 2, batch_first=True),
    "projected": lambda: nn.LSTM(5, 6, 2, proj_size=3),
    "with dropout": lambda: nn.LSTM(5, 6, 2, dropout=0.5),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_one_node(name, monkeypatch):
    names = []
    made = backend.compiled

    def noted(graph, whole=False):
        names.append([str(n.target) for n in graph.graph.nodes])
        return made(graph, whole)

    monkeypatch.setattr(backend, "compiled", noted)
    model = RECURRENT[name]().double()
    x = torch.randn(3, 4, 5).double().requires_grad_()
    with torch._dynamo.config.patch(allow_rnn=True):
        found = []
        for call in (model, compiled(model)):
            torch.manual_seed(2)
            model.zero_grad()
            out, state = call(x)
            x.grad = None
            (out.pow(2).sum() + (state[0] if isinstance(state, tuple) else state).sum()).backward()
            found.append([out.detach(), x.grad, *(p.grad for p in model.parameters())])
    forward, backward = names
    assert not any("mkldnn" in n for n in forward + backward)
    if name == "with dropout":  # what is drawn inside must be drawn once: step by step
        assert len(forward) > 50
        return
    assert_same(found[1], found[0])
    assert sum("everygrad.recurrent" in n for n in forward) == 1
    assert sum("everygrad.recurrent_backward" in n for n in backward) == 1
    assert not any("mm" in n for n in forward)


def test_backward_computes_no_state_again(monkeypatch):
    """What the forward kept says all that the gradients need."""
    ran = []
    step = CompiledGraph.compile

    def noted(self, *given):
        made = step(self, *given)
        ran.append([s.name for s in made.replay.program.steps])
        return made

    monkeypatch.setattr(CompiledGraph, "compile", noted)
    layer = nn.LSTM(5, 6, 2, bidirectional=True)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled(layer)(torch.randn(3, 4, 5))[0].sum().backward()
    forward, backward = ran
    assert any("rnn_reserve" in name for name in forward)
    assert any("rnn_grads" in name for name in backward)
    assert not any("rnn_reserve" in name for name in backward)


def test_recurrent_ops_are_pytorchs_too():
    x = torch.randn(3, 4, 5).double().requires_grad_()
    model = nn.LSTM(5, 6).double()
    state = [torch.zeros(1, 4, 6).double() for _ in range(2)]
    params = list(model.parameters())
    made = torch.ops.everygrad.recurrent("lstm", x, state, params, True, 1, False, False)
    assert_same(made[0], model(x)[0])
    got = torch.autograd.grad(made[0].sum(), [x, *params])
    want = torch.autograd.grad(model(x)[0].sum(), [x, *params])
    assert_same(list(got), list(want))
