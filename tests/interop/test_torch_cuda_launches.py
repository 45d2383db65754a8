"""What a transformer's training step by torch.compile launches on CUDA, without a GPU: what its
forward and backward know of each other they know by saved tensors alone."""

from __future__ import annotations

import ctypes

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from everygrad.backends import base
from everygrad.backends.cuda import device
from everygrad.backends.cuda.attention import attention, flash
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.interop.torch import backend
from everygrad.interop.torch.compiled import CompiledGraph
from tests.support.cublaslt_host import Host

DEVICE = "cuda:0"
BATCH, TOKENS, HEADS, WIDTH, WORDS = 3, 64, 2, 128, 320
ROWS = BATCH * TOKENS


class Layer(nn.Module):
    """GPT-2's, with attention by the op that PyTorch chooses on CUDA."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.places(torch.arange(TOKENS))
        parts = self.qkv(self.ln1(x)).split(WIDTH, dim=2)
        q, k, v = (p.view(BATCH, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2) for p in parts)
        y = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        x = x + self.proj(y.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))
        x = x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))
        scores = self.head(self.ln3(x)).reshape(ROWS, WORDS)
        with torch.autocast("cpu", enabled=False):  # CUDA's autocast computes losses in float32
            return F.cross_entropy(scores.float(), labels.reshape(ROWS))


def graphs_of_a_step():
    """As aot_autograd cuts them: forward and backward, under autocast."""
    found = []

    def keep(module, _):
        found.append(module)
        return make_boxed_func(module.forward)

    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Layer()
        names, params = zip(*model.named_parameters(), strict=True)

        def loss(tokens, labels, *params):
            with torch.autocast("cpu", torch.bfloat16):
                given = dict(zip(names, params, strict=True))
                return torch.func.functional_call(model, given, (tokens, labels), tie_weights=True)

        step = aot_function(
            loss,
            fw_compiler=keep,
            bw_compiler=keep,
            decompositions=backend.decompositions(),
            partition_fn=backend.partition,
        )
        tokens = [torch.empty(BATCH, TOKENS, dtype=torch.int64) for _ in range(2)]
        step(*tokens, *params).backward()
    return found


@pytest.fixture
def gpu(monkeypatch):
    """A dry "cuda:0" with libraries for products and attention; graphs of the CPU are for it."""
    for name in ("cuda", DEVICE):
        monkeypatch.delitem(base._OPEN, name, raising=False)
    monkeypatch.setattr(device, "Driver", lambda index: DryDriver())
    monkeypatch.setattr(device.Cuda, "dlpack_device", (1, 0))
    monkeypatch.setattr(DryDriver, "lt", Host())
    monkeypatch.setattr(flash, "_tensor_map", lambda *args: (ctypes.c_uint64 * 16)())
    monkeypatch.setattr(attention, "_compile_later", lambda driver, call: call)
    monkeypatch.setattr(backend, "device_of", lambda joint: DEVICE)
    monkeypatch.setattr(backend.Support, "takes", lambda self, value: True)
    yield
    for name in ("cuda", DEVICE):
        base._OPEN.pop(name, None)


@pytest.mark.usefixtures("gpu")
def test_a_layer_launches_what_it_launches_in_one_graph():
    forward, behind = graphs_of_a_step()
    saved = [n.meta["val"] for n in next(iter(reversed(forward.graph.nodes))).args[0]]
    wide = [t for t in saved if t.numel() == ROWS * WORDS]
    assert [t.dtype for t in wide] == [torch.bfloat16]  # scores, and not their logarithms
    titles = [
        [step.title for step in CompiledGraph(module, DEVICE).function.replay.steps_]
        for module in (forward, behind)
    ]
    kernels = [[t for t in part if t.startswith("attention")] for part in titles]
    # statistics are computed once
    assert kernels == [["attention_forward"], ["attention_delta", "attention_queries",
                                               "attention_keys"]]  # fmt: skip
    ends = [[t.split("epilogue ")[1] for t in part if "epilogue" in t] for part in titles]
    assert ends[0] == ["bias", "none", "gelu_aux_bias", "none", "none"]
    assert ends[1].count("dgelu") == 1
    # heads are merged and split by strides, and nothing is gathered for a product
    moved = [t for part in titles for t in part if t.startswith(("concat", "fused_copy"))]
    assert not moved
