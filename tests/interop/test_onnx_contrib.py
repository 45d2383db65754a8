"""Operators that onnxruntime adds for language models: it is the referee."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import everygrad as eg

RNG = np.random.default_rng(0)
BATCH, STEPS, HEADS, GROUPS, WIDTH = 2, 5, 4, 2, 16
HIDDEN, KEYS = HEADS * WIDTH, GROUPS * WIDTH


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32) * 0.5


def u8(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> Any:
    """At most 64 in size: on processors without VNNI onnxruntime adds two products of a uint8 and
    an int8 in 16 bits, which saturates beyond that."""
    return RNG.integers(-64, 65, shape).astype(np.int8)


class Case(NamedTuple):
    """A node: operator, inputs (None where one is left out), attributes, names of its outputs."""

    op: str
    inputs: list[Any]
    attributes: dict[str, Any]
    outputs: tuple[str, ...] = ("a",)
    integers: tuple[str, ...] = ()  # outputs that are int32


ANGLES = np.arange(32)[:, None] / 100.0 ** (np.arange(WIDTH // 2) / (WIDTH // 2))
COS, SIN = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)
PLACES = np.tile(np.arange(STEPS), (BATCH, 1))
PADDED = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
SUM = ("a", "", "", "d")
QKV = [f(BATCH, STEPS, HIDDEN) for _ in range(3)]
PROJECTED = [f(BATCH, STEPS, HIDDEN), f(HIDDEN, 3 * HIDDEN), f(3 * HIDDEN)]
GROUPED = [f(BATCH, STEPS, HIDDEN), f(BATCH, STEPS, KEYS), f(BATCH, STEPS, KEYS)]
LENGTHS = [np.full(BATCH, STEPS - 1, np.int32), np.array(STEPS, np.int32)]
PROMPT = [*GROUPED, None, None, *LENGTHS]
TOKEN = [f(BATCH, 1, HIDDEN), f(BATCH, 1, KEYS), f(BATCH, 1, KEYS)]
BUFFERS = [f(BATCH, GROUPS, 8, WIDTH), f(BATCH, GROUPS, 8, WIDTH)]
COUNTS = {"num_heads": HEADS, "kv_num_heads": GROUPS}
CACHES = ("a", "b", "c")

CASES = {
    "simplified": Case(
        "SimplifiedLayerNormalization", [QKV[0], f(HIDDEN)], {"epsilon": 1e-5, "axis": -1}
    ),
    "skip": Case(
        "SkipLayerNormalization",
        [*QKV[:2], f(HIDDEN), f(HIDDEN), f(HIDDEN)],
        {"epsilon": 1e-5},
        SUM,
    ),
    "skip, simplified": Case(
        "SkipSimplifiedLayerNormalization", [*QKV[:2], f(HIDDEN)], {"epsilon": 1e-5}, SUM
    ),
    "fast gelu": Case("FastGelu", [QKV[0], f(HIDDEN)], {}),
    "bias gelu": Case("BiasGelu", [QKV[0], f(HIDDEN)], {}),
    "gelu": Case("Gelu", [QKV[0]], {}),
    "quick gelu": Case("QuickGelu", [QKV[0]], {"alpha": 1.5}),
    "embedding": Case(
        "EmbedLayerNormalization",
        [
            RNG.integers(0, 10, (BATCH, STEPS)).astype(np.int32),
            RNG.integers(0, 2, (BATCH, STEPS)).astype(np.int32),
            *(f(10, HIDDEN), f(7, HIDDEN), f(2, HIDDEN), f(HIDDEN), f(HIDDEN)),
            PADDED,
        ],
        {"epsilon": 1e-5},
        ("a", "b"),
        ("b",),
    ),
    "attention": Case("Attention", PROJECTED, {"num_heads": HEADS}),
    "attention, mask": Case("Attention", [*PROJECTED, PADDED], {"num_heads": HEADS}),
    "attention, lengths": Case(
        "Attention", [*PROJECTED, np.array([3, 5], np.int32)], {"num_heads": HEADS}
    ),
    "attention, causal": Case("Attention", PROJECTED, {"num_heads": HEADS, "unidirectional": 1}),
    "attention, past": Case(
        "Attention",
        [*PROJECTED, None, f(2, BATCH, HEADS, 3, WIDTH)],
        {"num_heads": HEADS, "unidirectional": 1},
        ("a", "b"),
    ),
    "multi-head": Case(
        "MultiHeadAttention",
        [QKV[0], f(BATCH, 7, HIDDEN), f(BATCH, 7, HIDDEN)],
        {"num_heads": HEADS},
    ),
    "multi-head, bias": Case("MultiHeadAttention", [*QKV, f(3 * HIDDEN)], {"num_heads": HEADS}),
    "multi-head, mask": Case("MultiHeadAttention", [*QKV, None, PADDED], {"num_heads": HEADS}),
    "multi-head, added": Case(
        "MultiHeadAttention", [*QKV, None, None, f(1, HEADS, STEPS, STEPS)], {"num_heads": HEADS}
    ),
    "multi-head, past": Case(
        "MultiHeadAttention",
        [*QKV, None, None, None, f(BATCH, HEADS, 3, WIDTH), f(BATCH, HEADS, 3, WIDTH)],
        {"num_heads": HEADS},
        CACHES,
    ),
    "multi-head, causal": Case(
        "MultiHeadAttention", QKV, {"num_heads": HEADS, "unidirectional": 1, "scale": 0.3}
    ),
    "rotary": Case("RotaryEmbedding", [QKV[0], PLACES, COS, SIN], {}),
    "rotary, interleaved": Case("RotaryEmbedding", [QKV[0], PLACES, COS, SIN], {"interleaved": 1}),
    "rotary, from a place on": Case(
        "RotaryEmbedding", [f(BATCH, HEADS, STEPS, WIDTH), np.array([2]), COS, SIN], {}
    ),
    "rotary, in part": Case(
        "RotaryEmbedding",
        [QKV[0], PLACES, COS[:, :4].copy(), SIN[:, :4].copy()],
        {"num_heads": HEADS, "rotary_embedding_dim": 8},
    ),
    "grouped, prompt": Case("GroupQueryAttention", PROMPT, COUNTS, CACHES),
    "grouped, rotary": Case(
        "GroupQueryAttention", [*PROMPT, COS, SIN], {**COUNTS, "do_rotary": 1}, CACHES
    ),
    "grouped, interleaved": Case(
        "GroupQueryAttention",
        [*PROMPT, COS, SIN],
        {**COUNTS, "do_rotary": 1, "rotary_interleaved": 1},
        CACHES,
    ),
    "grouped, one token": Case(
        "GroupQueryAttention",
        [*TOKEN, *BUFFERS, np.array([8, 8], np.int32), np.array(9, np.int32), COS, SIN],
        {**COUNTS, "do_rotary": 1},
        CACHES,
    ),
    "grouped, each its own length": Case(
        "GroupQueryAttention",
        [*TOKEN, *BUFFERS, np.array([8, 5], np.int32), np.array(9, np.int32), COS, SIN],
        {**COUNTS, "do_rotary": 1},
        CACHES,
    ),
    "grouped, packed": Case(
        "GroupQueryAttention",
        [f(BATCH, STEPS, HIDDEN + 2 * KEYS), None, None, None, None, *LENGTHS],
        COUNTS,
        CACHES,
    ),
    "grouped, window": Case(
        "GroupQueryAttention", PROMPT, {**COUNTS, "local_window_size": 2}, CACHES
    ),
    "grouped, softcap": Case("GroupQueryAttention", PROMPT, {**COUNTS, "softcap": 2.0}, CACHES),
    "grouped, smooth": Case("GroupQueryAttention", PROMPT, {**COUNTS, "smooth_softmax": 1}, CACHES),
    "fused product": Case("FusedMatMul", [f(2, 3, 4), f(2, 5, 4)], {"alpha": 0.5, "transB": 1}),
    "dynamic product": Case(
        "DynamicQuantizeMatMul",
        [f(3, 4), u8(4, 5), np.array(0.1, np.float32), np.array(120, np.uint8)],
        {},
    ),
    "quantised lstm": Case(
        "DynamicQuantizeLSTM",
        [
            *(f(STEPS, BATCH, 6), i8(2, 6, 16), i8(2, 4, 16), f(2, 32), None, None, None, None),
            *(np.full(2, 0.01, np.float32), np.zeros(2, np.int8)),
            *(np.full(2, 0.02, np.float32), np.zeros(2, np.int8)),
        ],
        {"hidden_size": 4, "direction": "bidirectional"},
        CACHES,
    ),
    **{
        f"{bits} bits, {'own zero' if own else 'middle'}": Case(
            "MatMulNBits",
            [f(3, 40), u8(6, 3, 2 * bits), f(6, 3), *([u8(6, -(-3 * bits // 8))] if own else [])],
            {"N": 6, "K": 40, "block_size": 16, "bits": bits},
        )
        for bits in (2, 4, 8)
        for own in (False, True)
    },
}


def model_of(case: Case) -> tuple[Any, dict[str, Any]]:
    names = ["" if v is None else f"x{i}" for i, v in enumerate(case.inputs)]
    domain = "" if case.op == "SimplifiedLayerNormalization" else "com.microsoft"
    node = helper.make_node(case.op, names, case.outputs, domain=domain, **case.attributes)
    feed = {n: v for n, v in zip(names, case.inputs, strict=True) if n}
    graph = helper.make_graph(
        [node],
        case.op,
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in feed.items()
        ],
        [
            helper.make_tensor_value_info(
                o, TensorProto.INT32 if o in case.integers else TensorProto.FLOAT, None
            )
            for o in case.outputs
            if o
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), feed


def options() -> Any:
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = 1
    return found


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str) -> None:
    model, feed = model_of(CASES[name])
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feed)
    found = eg.io.load_onnx(model)(**feed)
    got = found if isinstance(found, tuple) else (found,)
    assert len(got) == len(expected) > 0
    for g, e in zip(got, expected, strict=True):
        assert g.shape == e.shape
        np.testing.assert_allclose(g.numpy(), e, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["grouped, one token", "4 bits, own zero", "attention, mask"])
def test_compiled(name: str) -> None:
    model, feed = model_of(CASES[name])
    module = eg.io.load_onnx(model)
    known = {n for n in feed if feed[n].shape == () or n == "x6"}  # a length decides a shape
    given = {n: v if n in known else eg.asarray(v) for n, v in feed.items()}
    eager = module(**given)
    compiled = eg.jit(lambda rest: module(**rest, **{n: feed[n] for n in known}))
    again = compiled({n: v for n, v in given.items() if n not in known})
    pairs = zip(_several(eager), _several(again), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


def _several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)
