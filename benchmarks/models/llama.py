"""A Llama: rotary positions, grouped heads, SwiGLU, RMS norms."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.models import Array, Batch, Library, Model


def network(
    L: Library, *, layers: int, heads: int, groups: int, width: int, hidden: int, vocabulary: int,
    tokens: int,
) -> Any:  # fmt: skip
    nn, F, lib = L.nn, L.F, L.lib
    size = width // heads

    def tables() -> tuple[Any, Any]:
        steps = lib.arange(0, size, 2, dtype=lib.float32) / size
        angles = lib.arange(tokens, dtype=lib.float32)[:, None] * (10000.0**-steps)[None, :]
        return lib.cos(angles), lib.sin(angles)

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x[..., : size // 2], x[..., size // 2 :]
        return lib.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(width, heads * size, bias=False)
            self.k = nn.Linear(width, groups * size, bias=False)
            self.v = nn.Linear(width, groups * size, bias=False)
            self.o = nn.Linear(heads * size, width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            b, t, _ = x.shape
            q = self.q(x).view(b, t, heads, size).transpose(1, 2)
            k = self.k(x).view(b, t, groups, size).transpose(1, 2)
            v = self.v(x).view(b, t, groups, size).transpose(1, 2)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o(y.transpose(1, 2).reshape(b, t, heads * size))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
            self.attention = Attention()
            self.gate = nn.Linear(width, hidden, bias=False)
            self.up = nn.Linear(width, hidden, bias=False)
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            x = x + self.attention(self.n1(x), cos, sin)
            y = self.n2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.RMSNorm(width, eps=1e-6)
            self.head = nn.Linear(width, vocabulary, bias=False)
            cos, sin = tables()
            self.register_buffer("cos", cos)
            self.register_buffer("sin", sin)

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.head(self.norm(x))

    return Llama()


def batch(rng: np.random.Generator, *, size: int, tokens: int, words: int) -> dict[str, Array]:
    text = rng.integers(0, words, (size, tokens + 1))
    return {"x": text[:, :-1].copy(), "y": text[:, 1:].copy()}


def loss(L: Library, model: Any, b: Batch) -> Any:
    logits = model(b["x"])
    return L.F.cross_entropy(logits.reshape(-1, logits.shape[-1]), b["y"].reshape(-1))


def _model(
    name: str, layers: int, heads: int, groups: int, width: int, size: int, tokens: int,
    devices: tuple[str, ...], asked: dict[str, str], vocabulary: int = 32000,
    precision: str = "f32",
) -> Model:  # fmt: skip
    hidden = (8 * width // 3 + 63) // 64 * 64
    return Model(
        name,
        f"{layers} layers, {heads} heads in {groups} groups, width {width}, "
        f"{size} x {tokens} tokens",
        partial(network, layers=layers, heads=heads, groups=groups, width=width, hidden=hidden,
                vocabulary=vocabulary, tokens=tokens),
        partial(batch, size=size, tokens=tokens, words=vocabulary),
        loss, devices, precision=precision, units=size * tokens, unit="tokens", asked=asked,
        tolerance=2e-2 if precision == "bf16" else 2e-3,
    )  # fmt: skip


MODELS = [
    _model("llama", 12, 16, 4, 1024, 8, 1024, ("cuda",),
           {"cuda.eager": "1.2 of the peer's"}, precision="bf16"),
    _model("llama.f32", 12, 16, 4, 1024, 8, 1024, ("webgpu",), {"webgpu.jit": "1 s"}),
    _model("llama.small", 3, 4, 2, 128, 8, 128, ("cpu", "webgpu"),
           {"cpu.eager": "the peer's", "webgpu.first": "3 s"}, vocabulary=512),
]  # fmt: skip
