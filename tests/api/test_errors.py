"""Bad input: a typed exception that names the op, shows the values and says what would work.

And nothing is changed by a call that raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import errors
from everygrad.errors import (
    AnomalyError,
    ArgumentError,
    AxisError,
    DeviceError,
    DtypeError,
    FreedGraphError,
    FunctionError,
    GradientError,
    OutOfRangeError,
    ShapeError,
    TraceError,
)


def ones(*shape: int, dtype: Any = "float64", device: str = "cpu", grad: bool = False) -> Any:
    return eg.ones(shape, dtype=dtype, device=device, requires_grad=grad)


def values(x: Any) -> Any:
    return x.detach().numpy()


# --- the table -----------------------------------------------------------------------------------

A, B = ones(2, 3), ones(3, 2)
INT = eg.tensor([1, 2, 3])
NULL = ones(2, 3, device="null")

Case = tuple[type[Exception], str, Callable[[], Any]]
SHAPES: dict[str, Case] = {
    "add": (ShapeError, r"add: cannot broadcast \(2, 3\) with \(3, 2\): sizes 2 and 3 at axis -2 "
            "differ and neither is 1", lambda: A + B),
    "matmul": (ShapeError, r"matmul: \(2, 3\) @ \(2, 3\): inner sizes 3 and 2 differ",
               lambda: A @ A),
    "matmul batch": (ShapeError, r"matmul: cannot broadcast \(2,\) with \(3,\)",
                     lambda: ones(2, 2, 2) @ ones(3, 2, 2)),
    "reshape": (ShapeError, r"reshape: \(2, 3\) has 6 elements, \(4,\) has 4",
                lambda: A.reshape(4)),
    "broadcast_to": (ShapeError, r"broadcast_to: cannot broadcast", lambda: A.broadcast_to((2, 4))),
    "concat": (ShapeError, r"concat: \(2, 3\), \(3, 2\) differ outside axis 0",
               lambda: eg.concat([A, B])),
    "stack": (ShapeError, r"stack: \(2, 3\), \(3, 2\) must be the same shape",
              lambda: eg.stack([A, B])),
    "squeeze": (ShapeError, r"squeeze: axis 1 of \(2, 3\) has size 3, not 1", lambda: A.squeeze(1)),
    "split": (ShapeError, r"split: sizes \(1, 1\) add up to 2, axis 1 has 3",
              lambda: A.split((1, 1), axis=1)),
    "conv2d": (ShapeError, r"conv2d: a kernel of \(5, 5\) .* does not fit an image of \(4, 4\)",
               lambda: eg.conv2d(ones(1, 1, 4, 4), ones(1, 1, 5, 5))),
    "mse_loss": (ShapeError,
                 r"mse_loss: prediction \(2, 3\) and target \(3, 2\) must have the same",
                 lambda: eg.mse_loss(A, B)),
    "max of nothing": (ShapeError, r"max: shape \(0, 3\) has no elements along axis 0",
                       lambda: ones(0, 3).max(axis=0)),
    "ragged": (ShapeError, "tensor: the nested lists are ragged", lambda: eg.tensor([[1], [1, 2]])),
    "setitem": (ShapeError,
                r"setitem: a value of shape \(2,\) does not fit the selected part \(3,\)",
                lambda: ones(2, 3).__setitem__(0, ones(2))),
    "len": (ShapeError, "len: a 0-d tensor has no length", lambda: len(ones())),
    "iter": (ShapeError, "iter: a 0-d tensor cannot be iterated", lambda: list(ones())),
}  # fmt: skip
DTYPES: dict[str, Case] = {
    "mean": (DtypeError, r"mean: does not take int64; cast it with astype\(\)", lambda: INT.mean()),
    "softmax": (DtypeError, "softmax: does not take int64", lambda: eg.softmax(INT)),
    "bool": (DtypeError, r"add: does not take bool; cast it with astype\(\)",
             lambda: (INT > 1) + (INT > 1)),
    "and": (DtypeError, "bitwise_and: does not take float64", lambda: A & A),
    "where": (DtypeError, "where: the condition must be a bool tensor, got float64; compare first",
              lambda: eg.where(A, A, A)),
    "index": (DtypeError, "take: the index must be an integer tensor, got float64",
              lambda: A.take(ones(2))),
    "name": (DtypeError, "'float99' is not a dtype", lambda: A.astype("float99")),
    "complex to int": (DtypeError,
                       r"astype: complex128 to int32 drops the imaginary part; take real",
                       lambda: (A * 1j).astype("int32")),
    "string": (DtypeError, "add: takes tensors and numbers, got str", lambda: A + "a"),
    "requires_grad": (DtypeError, r"requires_grad_: only floating and complex .* this one is int64",
                      lambda: eg.tensor([1]).requires_grad_()),
    "getitem": (DtypeError, "getitem: an index is an integer, a slice, .* got float 1.5",
                lambda: A[1.5]),
    "setitem": (DtypeError, r"setitem: float64 does not fit into int64; use astype\(\)",
                lambda: eg.tensor([1]).__setitem__(0, ones())),
    "iadd": (DtypeError, "__iadd__: the result float64 does not fit into x int64",
             lambda: eg.tensor([1, 2]).__iadd__(ones(2))),
    "tensor": (DtypeError, "tensor: cannot make a tensor of str", lambda: eg.tensor("abc")),
}  # fmt: skip
DEVICES: dict[str, Case] = {
    "add": (DeviceError,
            r"add: inputs are on different devices \(cpu, null\); move them with to\(\)",
            lambda: A + NULL),
    "matmul": (DeviceError, r"matmul: inputs are on different devices",
               lambda: A @ NULL.reshape(3, 2)),
    "where": (DeviceError, "where: inputs are on different devices",
              lambda: eg.where(A > 0, A, NULL)),
    "concat": (DeviceError, "concat: inputs are on different devices",
               lambda: eg.concat([A, NULL])),
    "unknown": (DeviceError, "device 'tpu' is not available: known devices are cpu, null",
                lambda: ones(2, device="tpu")),
    "no number": (DeviceError, "GPUs are named by their number", lambda: A.to("cuda:x")),
    "seed": (DeviceError, "backward: gradient is on null, the root on cpu",
             lambda: (ones(2, 3, grad=True) * 2).backward(NULL)),
    "values": (TraceError, "null device has no values", lambda: NULL.sum().item()),
    "not a name": (ArgumentError, "to: a device is named by a string, got 3", lambda: A.to(3)),
}  # fmt: skip
AXES: dict[str, Case] = {
    "sum": (AxisError, r"sum: axis 2 is out of range for 2 dimensions \(-2 to 1\)",
            lambda: A.sum(axis=2)),
    "twice": (AxisError, r"sum: axis \(0, -2\) names a dimension twice",
              lambda: A.sum(axis=(0, -2))),
    "0-d": (AxisError, "softmax: axis 1 given, but a 0-d tensor has no axes",
            lambda: eg.softmax(ones(), axis=1)),
    "permute": (AxisError, r"permute_dims: \(0,\) must name each of the 2 axes once",
                lambda: A.permute_dims((0,))),
    "float": (ArgumentError, "sum: axis must be an integer, got 1.0", lambda: A.sum(axis=1.0)),
    "bool": (ArgumentError, "sum: axis must be an integer, got True", lambda: A.sum(axis=True)),
    "concat": (AxisError, "concat: axis 2 is out of range", lambda: eg.concat([A, A], axis=2)),
    "flip": (AxisError, "flip: axis -3 is out of range", lambda: A.flip(axis=-3)),
}  # fmt: skip
INDICES: dict[str, Case] = {
    "int": (OutOfRangeError, "getitem: index 2 is out of range for axis 0 of size 2", lambda: A[2]),
    "negative": (OutOfRangeError, "index -4 is out of range for axis 1 of size 3",
                 lambda: A[0, -4]),
    "many": (OutOfRangeError, "getitem: 3 indices for a tensor of 2 dimensions",
             lambda: A[0, 0, 0]),
    "tensor": (OutOfRangeError, "getitem: index 5 is out of range for axis 0 of size 2",
               lambda: A[eg.tensor([0, 5])]),
    "take": (OutOfRangeError, "take: index 9 is out of range for an axis of size 2",
             lambda: A.take(eg.tensor([9]))),
    "gather": (OutOfRangeError, "gather: index -1 is out of range",
               lambda: A.gather(eg.tensor([[-1]]))),
    "setitem": (OutOfRangeError, "index 7 is out of range", lambda: ones(2).__setitem__(7, 1.0)),
    "setitem tensor": (OutOfRangeError, "index 7 is out of range",
                       lambda: ones(2).__setitem__(eg.tensor([7]), 1.0)),
    "label": (OutOfRangeError, "cross_entropy: label 3 is out of range for an axis of size 3",
              lambda: eg.cross_entropy(A, eg.tensor([0, 3]))),
    "embedding": (OutOfRangeError, "index 2 is out of range for an axis of size 2",
                  lambda: eg.embedding(eg.tensor([2]), A)),
    "mask": (OutOfRangeError, r"getitem: a bool index \(3,\) does not match axes of size \(2,\)",
             lambda: A[INT > 0]),
}  # fmt: skip


def freed() -> Any:
    y = (ones(grad=True) * 2) * 3
    y.backward()
    return y


GRADIENTS: dict[str, Case] = {
    "root of many": (GradientError,
                     r"backward: the root has shape \(2, 3\); pass gradient= of that "
                     r"shape, or reduce it to one number with sum\(\) or mean\(\)",
                     lambda: (ones(2, 3, grad=True) * 2).backward()),
    "constant root": (GradientError,
                      "backward: the root does not depend on any tensor that requires "
                      "grad; set requires_grad=True on what you want derivatives for",
                      lambda: ones().backward()),
    "constant in grad": (GradientError, "grad: the root does not depend",
                         lambda: eg.autograd.grad(ones(), ones(grad=True))),
    "complex root": (GradientError, r"the root is complex128; pass gradient=, or take real\(\)",
                     lambda: (ones(grad=True) * 1j).backward()),
    "input without": (GradientError, r"grad: an input \(shape \(2,\)\) does not require grad",
                      lambda: eg.autograd.grad((ones(2, grad=True) * 2).sum(), ones(2))),
    "freed": (FreedGraphError, r"backward: the graph at <multiply \[\]> was already used up by an "
              "earlier backward; pass retain_graph=True to the earlier one",
              lambda: freed().backward()),
    "freed behind": (FreedGraphError, "already used up", lambda: (freed() * 2).backward()),
    "seed shape": (ShapeError, r"backward: gradient has shape \(3,\), the root \(2, 3\)",
                   lambda: (ones(2, 3, grad=True) * 2).backward(ones(3))),
    "seed dtype": (DtypeError, "backward: gradient is float32, the root float64",
                   lambda: (ones(2, 3, grad=True) * 2).backward(ones(2, 3, dtype="float32"))),
    "seed type": (ArgumentError, "backward: gradient must be a Tensor, got float",
                  lambda: (ones(grad=True) * 2).backward(1.0)),
    "no inputs": (ArgumentError, "backward: inputs is empty; leave it out to reach every leaf",
                  lambda: (ones(grad=True) * 2).backward(inputs=[])),
    "input type": (ArgumentError, "backward: inputs must be Tensors, got int",
                   lambda: (ones(grad=True) * 2).backward(inputs=[3])),
    "leaf written": (GradientError,
                     r"__iadd__: this tensor is a leaf that requires grad; change it "
                     r"under no_grad\(\)", lambda: ones(2, grad=True).__iadd__(1.0)),
    "leaf set": (GradientError, "setitem: this tensor is a leaf that requires grad; write under",
                 lambda: ones(2, grad=True).__setitem__(0, 1.0)),
    "numpy": (GradientError, r"numpy: this tensor requires grad; use detach\(\).numpy\(\)",
              lambda: ones(2, grad=True).numpy()),
    "stop recording": (GradientError,
                       r"requires_grad_\(False\): .* result of an op; use detach\(\)",
                       lambda: (ones(grad=True) * 2).requires_grad_(False)),
    "grad type": (ArgumentError, "grad: must be a Tensor or None, got float",
                  lambda: setattr(ones(2), "grad", 1.0)),
    "grad shape": (ShapeError, r"grad: float64\[3\] does not fit a tensor float64\[2\]",
                   lambda: setattr(ones(2), "grad", ones(3))),
}  # fmt: skip
ITEMS: dict[str, Case] = {
    "item": (ArgumentError,
             r"item: needs exactly one element, this tensor has 6 \(shape \(2, 3\)\); "
             r"use tolist\(\) for more", lambda: A.item()),
    "item of none": (ArgumentError, "item: needs exactly one element, this tensor has 0",
                     lambda: ones(0).item()),
    "bool": (ArgumentError,
             r"bool\(\): needs exactly one element, .* reduce it with any\(\), all\(\)",
             lambda: bool(A > 0)),
    "float": (ArgumentError, r"float\(\): needs exactly one element", lambda: float(A)),
    "int": (ArgumentError, r"int\(\): needs exactly one element", lambda: int(A)),
    "index": (DtypeError, r"__index__: needs a 0-d integer tensor, got float64\[\]",
              lambda: [1, 2][ones()]),
}  # fmt: skip
PARAMETERS: dict[str, Case] = {
    "reduction": (ArgumentError,
                  r'mse_loss: reduction must be "mean", "sum" or "none", got \'avg\'',
                  lambda: eg.mse_loss(A, A, reduction="avg")),
    "dropout": (ArgumentError, "dropout: p must be between 0 and 1, got 1.5",
                lambda: eg.dropout(A, 1.5)),
    "stride": (ArgumentError, "conv2d: stride must be one or two integers of at least 1, got 0",
               lambda: eg.conv2d(ones(1, 1, 4, 4), ones(1, 1, 2, 2), stride=0)),
    "seed": (ArgumentError, r"manual_seed: the seed must be from 0 to 2\*\*64 - 1, got -1",
             lambda: eg.manual_seed(-1)),
    "split": (ArgumentError, "split: the size of a part must be positive, got 0",
              lambda: A.split(0)),
    "arange": (ArgumentError, "arange: step must not be 0", lambda: eg.arange(0, 3, 0)),
    "huge": (ShapeError, "is more memory than any device has", lambda: ones(2**30, 2**30)),
    "negative size": (ShapeError, "sizes must not be negative", lambda: ones(-1)),
    "nothing": (ArgumentError, "concat: needs at least one tensor", lambda: eg.concat([])),
}  # fmt: skip
TABLES = {
    "shapes": SHAPES, "dtypes": DTYPES, "devices": DEVICES, "axes": AXES, "indices": INDICES,
    "gradients": GRADIENTS, "items": ITEMS, "parameters": PARAMETERS,
}  # fmt: skip
CASES = [(table, name) for table, cases in TABLES.items() for name in cases]


@pytest.mark.parametrize(("table", "name"), CASES)
def test_refused(table: str, name: str) -> None:
    error, message, run = TABLES[table][name]
    state = eg.default_generator.get_state().tolist()
    with pytest.raises(error, match=message) as caught:
        run()
    assert isinstance(caught.value, errors.EverygradError)
    assert values(A).tolist() == np.ones((2, 3)).tolist()
    assert not A.requires_grad
    assert INT.tolist() == [1, 2, 3]
    assert eg.is_grad_enabled()
    assert eg.default_generator.get_state().tolist() == state


def test_every_error_is_also_a_python_one() -> None:
    builtin = (ValueError, IndexError, TypeError, RuntimeError)
    found = [
        v for v in vars(errors).values() if isinstance(v, type) and v.__module__ == errors.__name__
    ]
    assert len(found) > 12
    for kind in found:
        assert issubclass(kind, errors.EverygradError)
        assert kind is errors.EverygradError or issubclass(kind, builtin), kind


# --- nothing is changed --------------------------------------------------------------------------


def test_a_refused_assignment_changes_nothing() -> None:
    x = eg.tensor([[1.0, 2.0], [3.0, 4.0]])
    for bad in (
        lambda: x.__setitem__(0, ones(3, dtype="float32")),
        lambda: x.__setitem__(5, 1.0),
        lambda: x.__setitem__((0, 0), 1j),
        lambda: x.__iadd__(ones(3, dtype="float32")),
        lambda: x.__iadd__(ones(5, 2, 2, dtype="float32")),
        lambda: x.__imul__(1j),
    ):
        payload = x._data
        with pytest.raises(errors.EverygradError):
            bad()
        assert x._data is payload
        assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_refused_backward_changes_nothing() -> None:
    x = ones(2, grad=True)
    x.grad = ones(2) * 7
    y = (x * x).sum()
    bad: list[Callable[[], Any]] = [
        lambda: (x * x).backward(),
        lambda: y.backward(ones(3)),
        lambda: y.backward(ones(device="null")),
        lambda: y.backward(inputs=[]),
        lambda: y.backward(inputs=[ones(2)]),
        lambda: y.backward(workers=0),
        lambda: eg.autograd.grad(y, [x, ones(2, grad=True)]),
        lambda: eg.autograd.grad(y, x, [None, None]),
    ]
    for call in bad:
        with pytest.raises(errors.EverygradError):
            call()
        assert x.grad.tolist() == [7.0, 7.0]
    y.backward()  # the graph has not been used up either
    assert x.grad.tolist() == [9.0, 9.0]


class Wrong(eg.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def vjp(g: Any, out: Any, x: Any) -> Any:
        return g.sum()


@pytest.mark.parametrize("workers", [1, 4])
def test_a_backward_that_fails_on_its_way_restores_every_grad(workers: int) -> None:
    first, last = ones(2, grad=True), ones(2, grad=True)
    last.grad = ones(2) * 7
    for make, error in (
        (lambda: Wrong.apply(first) + last * 3, FunctionError),
        (lambda: eg.sqrt(first * 0.0) * 0.0 + last * 3, AnomalyError),
    ):
        with eg.detect_anomaly(), pytest.raises(error):
            make().sum().backward(workers=workers)
        assert first.grad is None
        assert last.grad.tolist() == [7.0, 7.0]


def test_a_refused_grad_assignment_keeps_the_old_one() -> None:
    x = ones(2, grad=True)
    x.grad = ones(2)
    with pytest.raises(ShapeError):
        x.grad = ones(3)
    assert x.grad.tolist() == [1.0, 1.0]


def test_nan_in_anomaly_mode() -> None:
    x = ones(2, grad=True)
    with eg.detect_anomaly():
        y = eg.log(x * 0.0) * 0.0
        with pytest.raises(AnomalyError) as caught:
            y.sum().backward()
    message = str(caught.value)
    assert message.startswith("backward of log: the gradient of input 0, shape [2], has NaN")
    assert f"recorded at {__file__}:" in message


def test_messages_show_the_cure() -> None:
    with pytest.raises(AttributeError, match="everygrad has no 'nothing'"):
        _ = eg.nothing
    x = ones(2, grad=True)
    y = x * 2
    y.backward(ones(2))
    with pytest.raises(RuntimeError, match="retain_graph=True"):  # also as the built-in type
        y.backward(ones(2))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "softmax", "sort", "any", "var"])
@pytest.mark.parametrize("given", [[1.0, 2.0], {1.0}, "text", None], ids=lambda v: str(type(v)))
def test_what_is_no_tensor_is_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(DtypeError, match=rf"^{name}: takes tensors, got .*; make one with eg.tens"):
        getattr(eg, name)(given)


@pytest.mark.parametrize(("name", "call"), {
    "addcmul": lambda: eg.addcmul(ones(2, 3), ones(2, 3), ones(4)),
    "expand": lambda: eg.expand(ones(2, 3), (4, 5)),
    "layer_norm": lambda: eg.layer_norm(eg.tensor([[1, 2]]), (2,)),
}.items())  # fmt: skip
def test_an_op_made_of_others_is_named_first(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(errors.EverygradError, match=rf"^{name}: "):
        call()
