"""ONNX files that lie: refused by name, and before memory is taken for what they say."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper, parser

import everygrad as eg
from everygrad.errors import ArgumentError, EverygradError, FileError, MissingFileError
from everygrad.interop.onnx.program import HANDLERS

HUGE = 1 << 40
MOST_MEMORY = 8 << 20  # bytes: none of these files has anything of that size


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def small() -> ModelProto:
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    g (float[N, 4] x) => (float[N, 3] y) {
        [product] a = MatMul (x, w)
        [sum] b = Add (a, bias)
        [picked] c = Relu (b)
        shape = Constant <value: tensor = int64[2] {-1, 3}> ()
        [last] y = Reshape (c, shape)
    }
    """)
    rng = np.random.default_rng(0)
    for name, size in (("w", (4, 3)), ("bias", (3,))):
        value = rng.standard_normal(size).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def changed(how: Callable[[ModelProto], Any]) -> ModelProto:
    model = small()
    how(model)
    return model


def nested(depth: int) -> ModelProto:
    """An If inside an If inside ..."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "inner",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    for _ in range(depth):
        branch = helper.make_node(
            "If", ["on"], ["y"], then_branch=graph, else_branch=helper.make_graph([], "e", [], [])
        )
        graph = helper.make_graph(
            [branch], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        )
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    graph.input.append(helper.make_tensor_value_info("on", TensorProto.BOOL, None))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def recursive() -> ModelProto:
    return parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[N] x) => (float[N] y) { y = own.a (x) }
    <domain: "own", opset_import: ["": 17, "own": 1]>
    a (p) => (q) { q = own.b (p) }
    <domain: "own", opset_import: ["": 17, "own": 1]>
    b (p) => (q) { q = own.a (p) }
    """)


def doubling() -> ModelProto:
    """Each of 40 functions calls the next one twice."""
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[N] x) => (float[N] y) { y = own.f0 (x) }
    """)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for i in range(40):
        inner = {"op_type": f"f{i + 1}", "domain": "own"} if i < 39 else {"op_type": "Exp"}
        nodes = [helper.make_node(inputs=[a], outputs=[b], **inner) for a, b in ("pq", "qr")]
        model.functions.append(helper.make_function("own", f"f{i}", ["p"], ["r"], nodes, opsets))
    return model


def sparse(model: ModelProto, shape: list[int], at: list[int]) -> None:
    values = numpy_helper.from_array(np.ones(len(at), np.float32), "s")
    indices = numpy_helper.from_array(np.array(at, np.int64), "at")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, shape))


def external(location: str, **more: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **more}.items():
            tensor.external_data.add(key=key, value=value)

    return change


def swap(model: ModelProto) -> None:
    first, second = model.graph.node[0], model.graph.node[1]
    first.input[0], second.output[0] = "b", "b"


FILES: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: b"", "no version or no graph"),
    "no model": (lambda: b"GIF89a" * 40, "not an ONNX model"),
    "cut short": (lambda: small().SerializeToString()[:-20], "not an ONNX model, or cut short"),
    "no graph": (lambda: changed(lambda m: m.ClearField("graph")), "no version or no graph"),
    "cyclic": (lambda: changed(swap), "the graph is cyclic or out of order"),
    "unknown input": (
        lambda: changed(lambda m: m.graph.node[1].input.__setitem__(1, "ghost")),
        "sum .Add. uses 'ghost', which nothing before it makes",
    ),
    "made twice": (
        lambda: changed(lambda m: m.graph.node[2].output.__setitem__(0, "b")),
        "picked makes 'b' a second time",
    ),
    "no such output": (
        lambda: changed(lambda m: setattr(m.graph.output[0], "name", "z")),
        "nothing makes the output 'z'",
    ),
    "an operator without a name": (
        lambda: changed(lambda m: setattr(m.graph.node[0], "op_type", "")),
        "product names no operator",
    ),
    "two weights of one name": (
        lambda: changed(lambda m: setattr(m.graph.initializer[1], "name", "w")),
        "an initializer has no name of its own",
    ),
    "a huge weight": (
        lambda: changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, HUGE)),
        "tensor 'w' of shape .* needs",
    ),
    "sizes whose product overflows": (
        lambda: changed(lambda m: m.graph.initializer[0].dims.extend([HUGE, HUGE, HUGE])),
        "tensor 'w' of shape .* needs",
    ),
    "a negative size": (
        lambda: changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, -4)),
        "tensor 'w' has a negative size",
    ),
    "a negative input": (
        lambda: changed(
            lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", -2)
        ),
        "input 'x' has size -2",
    ),
    "too few bytes": (
        lambda: changed(lambda m: setattr(m.graph.initializer[0], "raw_data", b"1234")),
        "needs 48 entries, the file has 4",
    ),
    "a segment": (
        lambda: changed(lambda m: setattr(m.graph.initializer[0].segment, "begin", 0)),
        "stored in segments",
    ),
    "a huge sparse weight": (
        lambda: changed(lambda m: sparse(m, [HUGE, HUGE], [0])),
        "sparse tensor 's' of shape",
    ),
    "a sparse index outside": (
        lambda: changed(lambda m: sparse(m, [4], [9])),
        "sparse tensor 's': indices",
    ),
    "nested 28 deep": (lambda: nested(28), "nested more than 24 deep"),
    "functions that call each other": (recursive, "calls itself"),
    "functions that double 40 times": (doubling, "more than 131072 nodes"),
    "an attribute without a type": (
        lambda: changed(lambda m: m.graph.node[0].attribute.append(AttributeProto(name="axis"))),
        "attribute 'axis' has no type",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_malformed_files_are_refused(name: str) -> None:
    make, text = FILES[name]
    made = make()
    data = made if isinstance(made, bytes) else made.SerializeToString()
    with little_memory(), pytest.raises(FileError, match=text):
        eg.io.load_onnx(data)


OUTSIDE = {
    "absolute": "/etc/passwd",
    "above": "../secret.bin",
    "above, hidden": "inner/../../secret.bin",
    "a backslash": "..\\secret.bin",
    "nothing": "",
    "the folder itself": ".",
    "a link": "link.bin",
    "a zero byte": "a\0b",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_data_outside_the_folder_is_not_read(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\x00" * 48)
    os.symlink(tmp_path / "secret.bin", folder / "link.bin")
    path = folder / "model.onnx"
    path.write_bytes(changed(external(OUTSIDE[name])).SerializeToString())
    with little_memory(), pytest.raises(FileError, match=r"load_onnx: model\.onnx: "):
        eg.io.load_onnx(path)


LENGTHS = {
    "past the end": {"offset": "8", "length": "48"},
    "huge": {"length": str(HUGE)},
    "negative": {"offset": "-8"},
    "no number": {"offset": "0x10"},
    "beyond 64 bits": {"offset": "9" * 40},
}


@pytest.mark.parametrize("name", LENGTHS)
def test_wrong_places_in_external_data(name: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\x00" * 48)
    path = tmp_path / "model.onnx"
    path.write_bytes(changed(external("w.bin", **LENGTHS[name])).SerializeToString())
    with little_memory(), pytest.raises(FileError, match="tensor 'w'"):
        eg.io.load_onnx(path)
    path.write_bytes(changed(external("w.bin", offset="0", length="48")).SerializeToString())
    assert not dict(eg.io.load_onnx(path).named_parameters())["w"].detach().numpy().any()


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no file"):
        eg.io.load_onnx(tmp_path / "none.onnx")
    path = tmp_path / "model.onnx"
    path.write_bytes(changed(external("none.bin")).SerializeToString())
    with pytest.raises(MissingFileError, match="there is no file 'none"):
        eg.io.load_onnx(path)
    with pytest.raises(ArgumentError, match=r"takes a path, bytes or an onnx\.ModelProto, got int"):
        eg.io.load_onnx(3)


NAMES = ["../../etc/passwd", "a/b", "..", ".", "forward", "training", "_hooks", "a..b", "x" * 5000]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_paths_or_attributes(name: str, tmp_path: Path) -> None:
    """They are keys, whatever they look like, and saving them writes nothing beside the file."""
    model = small()
    model.graph.initializer[0].name = name
    model.graph.node[0].input[1] = name
    module = eg.io.load_onnx(model)
    x = eg.ones((2, 4))
    expected = eg.io.load_onnx(small())(x).detach().numpy()
    assert (module(x).detach().numpy() == expected).all()
    assert len(module.state_dict()) == 2
    eg.save(tmp_path / "state", module.state_dict())
    assert len(list(tmp_path.iterdir())) == 1


SIZES = {
    "ConstantOfShape": ("int64[2] {1099511627776, 1099511627776}", "y = ConstantOfShape (v)"),
    "negative": ("int64[1] {-5}", "y = ConstantOfShape (v)"),
    "Expand": ("int64[2] {1099511627776, 1}", "y = Expand (x, v)"),
    "Tile": ("int64[1] {1099511627776}", "y = Tile (x, v)"),
    "Pad": ("int64[2] {0, 1099511627776}", "y = Pad (x, v)"),
    "OneHot": ("int64 {1099511627776}", "i = Cast <to: int = 7> (x)  y = OneHot (i, v, x)"),
    "Range": ("int64 {1099511627776}", "a = Sub (v, v)  b = Div (v, v)  y = Range (a, v, b)"),
    "Resize": ("float[1] {1e12}", "r = Identity (v)  y = Resize (x, r, v)"),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_inside_the_graph(name: str) -> None:
    value, body = SIZES[name]
    text = f"""
    <ir_version: 8, opset_import: ["": 17]>
    g (float[2] x) => (float y) {{ v = Constant <value: tensor = {value}> ()  {body} }}
    """
    module = eg.io.load_onnx(parser.parse_model(text))
    with little_memory(), pytest.raises(ArgumentError, match="the result would be of shape"):
        module(eg.ones((2,)))


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A file with a few bytes changed, taken out, doubled, or cut off."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(found))
        how = draw.randrange(5)
        if how == 0:
            found[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            found[at] = draw.choice((0, 1, 127, 128, 255))
        elif how == 2:
            del found[at : at + draw.randrange(1, 9)]
        elif how == 3:
            found[at:at] = found[at : at + draw.randrange(1, 9)]
        else:
            del found[max(1, at) :]
        if not found:
            break
    return bytes(found)


def seeds() -> list[bytes]:
    """Models with weights, branches, loops and functions."""
    branch = parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[N, 4] x) => (float[N, 4] y) {
        n = Constant <value: tensor = int64 {3}> ()
        on = Constant <value: tensor = bool {1}> ()
        a = Loop (n, on, x) <body = b (int64 i, bool c, float[N, 4] v) => (bool d, float[N, 4] w) {
            d = Identity (c)
            w = Mul (v, v)
        }>
        b = own.f <alpha: float = 0.5> (a)
        y = Softmax <axis: int = -1> (b)
    }
    <domain: "own", opset_import: ["": 17]>
    f <alpha> (p) => (q) { q = LeakyRelu <alpha: float = @alpha> (p) }
    """)
    pooled = parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    g (float[1, 1, 4, 4] x) => (float y) {
        a = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (x)
        b = Transpose <perm: ints = [1, 0, 3, 2]> (a)
        c, d = Split <axis: int = 2> (b)
        y = Concat <axis: int = 3> (c, d)
    }
    """)
    return [m.SerializeToString() for m in (small(), branch, pooled)]


INPUTS = [eg.ones((2, 4)), eg.ones((2, 4)), eg.ones((1, 1, 4, 4))]


@pytest.mark.parametrize("kind", range(3))
def test_changed_bytes_are_refused_or_run(kind: int) -> None:
    """Whatever a file says, what is raised is ours, and little memory is taken."""
    data, x = seeds()[kind], INPUTS[kind]
    eg.io.load_onnx(data)(x)
    draw = random.Random(kind)
    refused = ran = 0
    with little_memory():
        for _ in range(400):
            try:
                eg.io.load_onnx(mutated(data, draw))(x)
                ran += 1
            except EverygradError:
                refused += 1
    assert refused > 100
    assert ran > 0


NUMBERS = (0, 1, -1, 2, 3, -7, 127, 1 << 31, HUGE, -(1 << 63), (1 << 63) - 1)
OPERATORS = sorted({op for domain, op in HANDLERS if domain == ""} - {"Loop"})


def restructured(data: bytes, draw: random.Random) -> ModelProto:
    """A model that parses: other operators, attributes, sizes, dtypes and inputs."""
    model = ModelProto()
    model.ParseFromString(data)
    for _ in range(draw.choice((1, 2, 3))):
        node = draw.choice(list(model.graph.node))
        how = draw.randrange(6)
        if how == 0:
            node.op_type = draw.choice(OPERATORS)
        elif how == 1:
            name = draw.choice(("axis", "axes", "to", "pads", "strides", "kernel_shape", "group"))
            number = draw.choice(NUMBERS)
            del node.attribute[:]
            several = name in ("axes", "pads", "strides", "kernel_shape")
            node.attribute.append(helper.make_attribute(name, [number] * 2 if several else number))
        elif how == 2:
            known = [v for n in model.graph.node for v in (*n.input, *n.output) if v]
            del node.input[:]
            node.input.extend(draw.choice(["", *known]) for _ in range(draw.randrange(4)))
        elif how == 3 and model.graph.initializer:
            tensor = draw.choice(list(model.graph.initializer))
            tensor.dims[:] = [draw.choice(NUMBERS) for _ in range(draw.randrange(4))]
        elif how == 4 and model.graph.initializer:
            draw.choice(list(model.graph.initializer)).data_type = draw.randrange(40)
        else:
            model.opset_import[0].version = draw.choice((*range(1, 30), *NUMBERS))
    return model


@pytest.mark.parametrize("kind", range(3))
def test_changed_structures_are_refused_or_run(kind: int) -> None:
    data, x = seeds()[kind], INPUTS[kind]
    draw = random.Random(kind)
    refused = ran = 0
    with little_memory():
        for _ in range(200):
            try:
                eg.io.load_onnx(restructured(data, draw))(x)
                ran += 1
            except EverygradError:
                refused += 1
    assert refused > 50
    assert ran > 10
