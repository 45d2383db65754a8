"""Modules that `eg.io.load_onnx` makes: they run, compile, differentiate and train."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser

import everygrad as eg
from everygrad.errors import (
    ArgumentError,
    DtypeError,
    FileError,
    MissingOpsError,
    ShapeError,
    TraceError,
)

RNG = np.random.default_rng(7)

# The sizes of Reshape are computed from the input's shape, as exporters write it.
CNN = """
<ir_version: 8, opset_import: ["": 17]>
cnn ({kind}[N, 2, 8, 8] image) => ({kind}[N, 3] scores) {{
    a = Conv <pads: ints = [1, 1, 1, 1]> (image, conv__weight, conv__bias)
    b = BatchNormalization (a, bn__weight, bn__bias, bn__running_mean, bn__running_var)
    c = Relu (b)
    d = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (c)
    shape = Shape (d)
    zero = Constant <value: tensor = int64[1] {{0}}> ()
    first = Gather (shape, zero)
    rest = Constant <value: tensor = int64[1] {{-1}}> ()
    wanted = Concat <axis: int = 0> (first, rest)
    flat = Reshape (d, wanted)
    scores = Gemm <transB: int = 1> (flat, head__weight, head__bias)
}}
"""


def arrays(dtype: Any) -> dict[str, Any]:
    shapes = {
        "conv.weight": (4, 2, 3, 3),
        "conv.bias": (4,),
        "bn.weight": (4,),
        "bn.bias": (4,),
        "bn.running_mean": (4,),
        "head.weight": (3, 64),
        "head.bias": (3,),
    }
    found = {n: (0.3 * RNG.standard_normal(s)).astype(dtype) for n, s in shapes.items()}
    return {**found, "bn.running_var": RNG.uniform(0.5, 2, 4).astype(dtype)}


def with_weights(text: str, weights: dict[str, Any]) -> onnx.ModelProto:
    model = parser.parse_model(text)
    for node in model.graph.node:  # the parser's names have no dots
        node.input[:] = [name.replace("__", ".") for name in node.input]
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def cnn(dtype: Any) -> tuple[Any, Any, dict[str, Any]]:
    weights = arrays(dtype)
    kind = {np.float32: "float", np.float64: "double"}[dtype]
    image = RNG.standard_normal((2, 2, 8, 8)).astype(dtype)
    return with_weights(CNN.format(kind=kind), weights), image, weights


def torch_cnn(weights: dict[str, Any], image: Any) -> tuple[Any, dict[str, Any]]:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )
    net = net.to(torch.from_numpy(image).dtype).eval()
    renamed = {"conv": "0", "bn": "1", "head": "5"}
    state = {f"{renamed[n.split('.')[0]]}.{n.split('.')[1]}": v for n, v in weights.items()}
    net.load_state_dict({n: torch.from_numpy(v) for n, v in state.items()}, strict=False)
    out = net(torch.from_numpy(image))
    (out * out).sum().backward()
    back = {v: n for n, v in renamed.items()}
    grads = {
        f"{back[n.split('.')[0]]}.{n.split('.')[1]}": p.grad.numpy()
        for n, p in net.named_parameters()
    }
    return out.detach().numpy(), grads


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_weights_are_torchs(compiled: bool) -> None:
    model, image, weights = cnn(np.float64)
    expected, grads = torch_cnn(weights, image)
    module = eg.io.load_onnx(model)

    def loss(x: Any) -> Any:
        out = module(x)
        return (out * out).sum(), out

    step = eg.jit(loss) if compiled else loss
    total, out = step(eg.asarray(image))
    total.backward()
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-10, atol=1e-10)
    found = {n: p.grad.numpy() for n, p in module.named_parameters()}
    assert set(found) == set(grads)  # the running statistics are buffers
    for name, grad in grads.items():
        np.testing.assert_allclose(found[name], grad, rtol=1e-10, atol=1e-10)


def test_names_and_state() -> None:
    model, image, weights = cnn(np.float32)
    module = eg.io.load_onnx(model)
    assert set(module.state_dict()) == set(weights)
    assert {n for n, _ in module.named_buffers() if n in weights} == {
        "bn.running_mean",
        "bn.running_var",
    }
    assert module.input_names == ("image",)
    assert module.output_names == ("scores",)
    other = eg.io.load_onnx(model)
    other.load_state_dict({n: v * 0 for n, v in module.state_dict().items()})
    assert not other(image).detach().numpy().any()


def test_it_trains() -> None:
    model, image, _ = cnn(np.float32)
    module = eg.io.load_onnx(model)
    optimizer = eg.optim.SGD(module.parameters(), lr=0.05)
    x, y = eg.asarray(image), eg.tensor([0, 2])

    @eg.jit
    def step() -> Any:
        optimizer.zero_grad()
        loss = eg.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [float(step()) for _ in range(20)]
    assert losses[-1] < 0.3 * losses[0]


def test_on_every_device(device: str) -> None:
    model, image, weights = cnn(np.float32)
    expected, grads = torch_cnn(weights, image)
    module = eg.io.load_onnx(model).to(device)
    out = eg.jit(module)(eg.asarray(image, device=device))
    assert out.device.startswith(device.split(":")[0])
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    (out * out).sum().backward()
    found = dict(module.named_parameters())["head.weight"].grad.numpy()
    np.testing.assert_allclose(found, grads["head.weight"], rtol=1e-4, atol=1e-4)


# --- shapes that are computed --------------------------------------------------------------------


def test_one_size_taken_from_a_shape_is_known() -> None:
    """A 0-d index gives a 0-d value, which is an array all the same."""
    module = eg.io.load_onnx(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N, M] x) => (float[A] y) {
            shape = Shape (x)
            zero = Constant <value: tensor = int64 {0}> ()
            axes = Constant <value: tensor = int64[1] {0}> ()
            rows = Gather (shape, zero)
            total = Mul (rows, rows)
            wanted = Unsqueeze (total, axes)
            y = ConstantOfShape (wanted)
        }
        """)
    )
    assert eg.jit(module)(eg.ones((3, 2))).shape == (9,)


def test_weights_in_constants_train() -> None:
    """Some exporters write no initializers: then a Constant with axes is a weight."""
    module = eg.io.load_onnx(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[?, 2] x) => (float[?, 2] y) {
            w = Constant <value: tensor = float[2] {2.0, 3.0}> ()
            one = Constant <value: tensor = float {1.0}> ()
            a = Mul (x, w)
            y = Add (a, one)
        }
        """)
    )
    module(eg.ones((3, 2))).sum().backward()
    assert {n: p.grad.tolist() for n, p in module.named_parameters()} == {"w": [3.0, 3.0]}
    assert list(module.state_dict()) == ["w"]


def test_shape_arithmetic_is_known_while_tracing() -> None:
    """Halves the last axis by sizes computed from Shape, through Slice, Div, Mul and Cast."""
    module = eg.io.load_onnx(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N, M] x) => (float[A, B] y) {
            shape = Shape (x)
            one = Constant <value: tensor = int64[1] {1}> ()
            two = Constant <value: tensor = int64[1] {2}> ()
            last = Slice (shape, one, two)
            half = Div (last, two)
            asfloat = Cast <to: int = 1> (half)
            asint = Cast <to: int = 7> (asfloat)
            minus = Constant <value: tensor = int64[1] {-1}> ()
            wanted = Concat <axis: int = 0> (minus, asint)
            y = Reshape (x, wanted)
        }
        """)
    )
    x = eg.arange(24.0).reshape((2, 12))
    assert module(x).shape == eg.jit(module)(x).shape == (4, 6)
    assert module(x[:, :8]).shape == (4, 4)


LOOP = """
<ir_version: 8, opset_import: ["": 17]>
g (float[2] x) => (float[2] last, float[3, 2] all) {
    turns = Constant <value: tensor = int64 {3}> ()
    on = Constant <value: tensor = bool {1}> ()
    last, all = Loop (turns, on, x) <body = b (int64 i, bool c, float[2] v) =>
        (bool d, float[2] w, float[2] row) {
        d = Identity (c)
        w = Mul (v, factor)
        row = Identity (w)
    }>
}
"""


def test_a_loop_of_known_length() -> None:
    """The body's weight is the graph's; compiled, the loop is unrolled."""
    module = eg.io.load_onnx(with_weights(LOOP, {"factor": np.array([2.0], np.float32)}))
    x = eg.tensor([1.0, 3.0])
    for run in (module, eg.jit(module)):
        last, rows = run(x)
        assert last.tolist() == [8.0, 24.0]
        assert rows.tolist() == [[2.0, 6.0], [4.0, 12.0], [8.0, 24.0]]
    module(x)[0].sum().backward()
    assert dict(module.named_parameters())["factor"].grad.tolist() == [48.0]  # 3 f^2 (1 + 3)


BRANCH = """
<ir_version: 8, opset_import: ["": 17]>
g (float[2] x) => (float[2] y) {
    total = ReduceSum <keepdims: int = 0> (x)
    zero = Constant <value: tensor = float {0.0}> ()
    positive = Greater (total, zero)
    y = If (positive) <
        then_branch = t () => (float[2] a) { a = Exp (x) },
        else_branch = e () => (float[2] b) { b = Neg (x) }
    >
}
"""


def test_a_condition_on_values_is_decided_in_eager_mode_and_refused_in_jit() -> None:
    module = eg.io.load_onnx(parser.parse_model(BRANCH))
    assert module(eg.tensor([-1.0, -2.0])).tolist() == [1.0, 2.0]
    assert module(eg.tensor([0.0, 1.0]))[0].item() == 1.0
    with pytest.raises(TraceError) as caught:
        eg.jit(module)(eg.tensor([-1.0, -2.0]))
    assert caught.value.__notes__ == ["in the ONNX node \"the node of 'y'\" (If)"]


def test_functions_of_the_model() -> None:
    """A function calls another; attributes go through both by reference."""
    module = eg.io.load_onnx(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[N] x) => (float[N] y) { y = own.outer <slope: float = 0.5> (x) }
        <domain: "own", opset_import: ["": 17, "own": 1]>
        outer <slope> (a) => (c) {
            b = own.inner <alpha: float = @slope> (a)
            c = Add (b, b)
        }
        <domain: "own", opset_import: ["": 17]>
        inner <alpha> (p) => (q) { q = LeakyRelu <alpha: float = @alpha> (p) }
        """)
    )
    assert module(eg.tensor([-1.0, 2.0])).tolist() == [-1.0, 4.0]


def test_an_lstm_beside_torch() -> None:
    hidden, size, steps, batch = 3, 2, 4, 2
    net = torch.nn.LSTM(size, hidden).double()
    order = [0, 3, 1, 2]  # i f g o there, i o f c in ONNX

    def gates(v: Any) -> Any:
        parts = v.detach().numpy().reshape(4, hidden, *v.shape[1:])
        return parts[order].reshape(v.shape)

    weights = {
        "w": gates(net.weight_ih_l0)[None],
        "r": gates(net.weight_hh_l0)[None],
        "b": np.concatenate([gates(net.bias_ih_l0), gates(net.bias_hh_l0)])[None],
    }
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    g (double[T, B, 2] x) => (double[T, 1, B, 3] y, double[1, B, 3] h, double[1, B, 3] c) {
        y, h, c = LSTM <hidden_size: int = 3> (x, w, r, b)
    }
    """
    module = eg.io.load_onnx(with_weights(text, weights))
    x = RNG.standard_normal((steps, batch, size))
    expected, (h, c) = net(torch.from_numpy(x))
    found = module(x)
    (expected.sum() + (c * c).sum()).backward()
    (found[0].sum() + (found[2] * found[2]).sum()).backward()
    for a, b in zip(found, (expected[:, None], h, c), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)
    grad = dict(module.named_parameters())["w"].grad.numpy()[0]
    np.testing.assert_allclose(grad, gates(net.weight_ih_l0.grad), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_lengths_are_inputs_in_jit_too(op: str, gates: int, direction: str) -> None:
    count = 2 if direction == "bidirectional" else 1
    text = f"""
    <ir_version: 8, opset_import: ["": 17]>
    g (float[5, 2, 4] x, int32[2] n) => (float[5, {count}, 2, 3] y, float[{count}, 2, 3] h) {{
        y, h = {op} <hidden_size: int = 3, direction: string = "{direction}"> (x, w, r, b, n)
    }}
    """
    sizes = {"w": (count, gates * 3, 4), "r": (count, gates * 3, 3), "b": (count, gates * 6)}
    weights = {k: RNG.standard_normal(v).astype(np.float32) for k, v in sizes.items()}
    module = eg.io.load_onnx(with_weights(text, weights))
    x = eg.randn((5, 2, 4))
    compiled = eg.jit(module)
    for n in ([5, 3], [2, 5], [5, 5]):
        found = compiled(x, eg.tensor(n, dtype="int32"))
        for a, b in zip(found, module(x, np.int32(n)), strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=1e-6)


# --- inputs --------------------------------------------------------------------------------------

TWO = """
<ir_version: 8, opset_import: ["": 17]>
g (float[N, 3] x, float[N, 3] y) => (float[N, 3] z) { z = Sub (x, y) }
"""
X = eg.ones((2, 3))
WRONG_INPUTS: dict[str, tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = {
    "dtype": (
        DtypeError,
        "input 'y': the file says float32, got float64",
        (X, X.astype("float64")),
        {},
    ),
    "rank": (ShapeError, r"input 'x': the file says \(N, 3\), got \(3,\)", (X[0], X), {}),
    "size": (ShapeError, r"input 'x': the file says \(N, 3\), got \(2, 2\)", (X[:, :2], X), {}),
    "one name, two sizes": (ShapeError, r"input 'y': .* got \(1, 3\) with", (X, X[:1]), {}),
    "missing": (ArgumentError, r"missing: \['y'\]", (X,), {}),
    "unknown": (ArgumentError, r"unknown or given twice: \['z'\]", (X, X), {"z": X}),
    "twice": (ArgumentError, r"given twice: \['x'\]", (X, X), {"x": X}),
    "too many": (ArgumentError, "takes 2 inputs", (X, X, X), {}),
}


@pytest.mark.parametrize("name", WRONG_INPUTS)
def test_inputs_are_checked_against_the_file(name: str) -> None:
    error, text, args, named = WRONG_INPUTS[name]
    module = eg.io.load_onnx(parser.parse_model(TWO))
    with pytest.raises(error, match=text):
        module(*args, **named)


def test_inputs_by_name() -> None:
    module = eg.io.load_onnx(parser.parse_model(TWO))
    assert module(y=X, x=3 * X).tolist() == module(3 * X, y=X).tolist() == [[2.0] * 3] * 2


def test_a_weight_may_be_given_instead() -> None:
    """An initializer that is an input too has a default, and may be another by name."""
    model = with_weights(TWO, {"y": np.ones((1, 3), np.float32)})
    module = eg.io.load_onnx(model)
    assert module.input_names == ("x",)
    assert module(X[:1]).tolist() == [[0.0] * 3]
    assert module(X[:1], y=3 * X[:1]).tolist() == [[-2.0] * 3]


def test_what_is_missing_is_said_at_once() -> None:
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17, "own": 3]>
    g (float[N] x) => (float[N] y) {
        [first] a = own.Foo (x)
        [second] b = Bar (a)
        [third] y = own.Foo (b)
    }
    """)
    model.opset_import[0].version = 999
    model.graph.input[0].type.tensor_type.elem_type = 98
    model.graph.initializer.append(TensorProto(name="w", data_type=99, dims=[1]))
    constant = helper.make_node("Constant", [], ["k"], name="fourth")
    constant.attribute.append(helper.make_attribute("value", TensorProto(data_type=97, dims=[1])))
    model.graph.node.append(constant)
    model.graph.node.append(helper.make_node("Cast", ["x"], ["l"], name="fifth", to=96))
    with pytest.raises(MissingOpsError) as caught:
        eg.io.load_onnx(model)
    assert caught.value.lacking["own::Foo (opset 3)"] == ["first", "third"]
    assert caught.value.lacking["ai.onnx::Bar (opset 999)"] == ["second"]
    types = {"data type 98": "x", "data type 99": "w", "data type 97": "fourth"}
    for name, where in {**types, "data type 96": "fifth"}.items():
        assert caught.value.lacking[name] == [where]
    assert any(name.startswith("opset 999 of ai.onnx") for name in caught.value.lacking)


# --- files ---------------------------------------------------------------------------------------


def test_from_a_path_from_bytes_and_with_data_beside_it(tmp_path: Path) -> None:
    model, image, weights = cnn(np.float32)
    expected = eg.io.load_onnx(model)(image).detach().numpy()
    assert (eg.io.load_onnx(model.SerializeToString())(image).detach().numpy() == expected).all()
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size >= sum(v.nbytes for v in weights.values())
    assert (eg.io.load_onnx(path)(image).detach().numpy() == expected).all()
    with pytest.raises(FileError, match="load the model by its path"):
        eg.io.load_onnx(path.read_bytes())


def test_packed_weights_stay_what_they_are() -> None:
    """Weights of 4 bits are no tensors: they are dequantised in front of what computes."""
    tensor = helper.make_tensor("w", TensorProto.INT4, (2, 3), [1, -2, 3, -4, 5, -6])
    model = parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21]>
    g (float[N, 2] x) => (float[N, 3] y) {
        d = DequantizeLinear (w, scale)
        y = MatMul (x, d)
    }
    """)
    model.graph.initializer.append(tensor)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "scale"))
    module = eg.io.load_onnx(model)
    for run in (module, eg.jit(module)):
        assert run(eg.tensor([[2.0, 0.0]])).tolist() == [[1.0, -2.0, 3.0]]
    module(eg.tensor([[2.0, 0.0]])).sum().backward()
    assert dict(module.named_parameters())["scale"].grad.item() == 4.0


def test_without_the_onnx_package() -> None:
    code = "import sys; sys.modules['onnx'] = None\nimport everygrad as eg\neg.io.load_onnx"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'everygrad[onnx]'" in done.stderr
