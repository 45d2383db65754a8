"""GPT-2 in its published sizes; queries, keys and values written in the ways people write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.models import Array, Batch, Library, Model

VOCABULARY = 50304  # a multiple of 64; the published one, of which rows are not aligned:
PUBLISHED = 50257


def network(
    L: Library, *, layers: int, heads: int, width: int, tokens: int, qkv: str, words: int
) -> Any:
    nn, F, lib = L.nn, L.F, L.lib

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            if qkv == "three":
                self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
            else:
                self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)

        def parts(self, x: Any) -> Any:
            b, t, _ = x.shape
            if qkv == "permute":
                both = self.qkv(x).reshape(b, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
                return both[0], both[1], both[2]
            each = (self.q(x), self.k(x), self.v(x)) if qkv == "three" else \
                self.qkv(x).split(width, dim=2)  # fmt: skip
            return [p.view(b, t, heads, width // heads).transpose(1, 2) for p in each]

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            q, k, v = self.parts(x)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).reshape(b, t, width))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention()
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.ln1(x))
            return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    class GPT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(tokens, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.ln = nn.LayerNorm(width)
            self.head = nn.Linear(width, words, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, ids: Any) -> Any:
            x = self.wte(ids) + self.wpe(lib.arange(ids.shape[1], device=L.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.ln(x))

    return GPT()


def batch(rng: np.random.Generator, *, size: int, tokens: int, words: int) -> dict[str, Array]:
    text = rng.integers(0, words, (size, tokens + 1))
    return {"x": text[:, :-1].copy(), "y": text[:, 1:].copy()}


def loss(L: Library, model: Any, b: Batch) -> Any:
    logits = model(b["x"])
    return L.F.cross_entropy(logits.reshape(-1, logits.shape[-1]), b["y"].reshape(-1))


def _model(
    name: str, layers: int, heads: int, width: int, size: int, tokens: int, asked: str,
    qkv: str = "split", device: str = "cuda", words: int = VOCABULARY,
) -> Model:  # fmt: skip
    count = size * tokens
    parameters = layers * 12 * width**2 + words * width
    flops = 6.0 * count * parameters + 6.0 * layers * count * tokens * width
    return Model(
        f"{name}.{qkv}" if qkv != "split" else name,
        f"{layers} layers, {heads} heads, width {width}, {size} x {tokens} tokens, {words} words, "
        f"q/k/v by {qkv}",
        partial(
            network, layers=layers, heads=heads, width=width, tokens=tokens, qkv=qkv, words=words
        ),
        partial(batch, size=size, tokens=tokens, words=words),
        loss,
        (device,),
        precision="bf16" if device == "cuda" else "f32",
        units=count,
        unit="tokens",
        flops=flops,
        asked={"cuda.jit" if device == "cuda" else "cpu.memory": asked},
        tolerance=2e-2 if device == "cuda" else 2e-3,
    )


MODELS = [
    _model("gpt2", 12, 12, 768, 16, 1024, "600k tokens/s"),
    _model("gpt2", 12, 12, 768, 16, 1024, "600k tokens/s", "permute"),
    _model("gpt2", 12, 12, 768, 16, 1024, "600k tokens/s", "three"),
    _model("gpt2.published", 12, 12, 768, 16, 1024, "the peer's tokens/s", words=PUBLISHED),
    _model("gpt2.long", 12, 12, 768, 2, 8192, "the peer's tokens/s"),
    _model("gpt2.medium", 24, 16, 1024, 8, 1024, "1.05 of the peer's tokens/s, its memory"),
    _model("gpt2.cpu", 4, 8, 512, 2, 128, "the peer's", device="cpu"),
    _model("gpt2.large", 36, 20, 1280, 8, 1024, "50 % of the peak, the peer's memory"),
]
