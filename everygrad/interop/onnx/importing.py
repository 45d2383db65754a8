"""`load_onnx`: an ONNX file as a Module whose weights train."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, TypeProto, ValueInfoProto

from everygrad import dtypes
from everygrad.core.context import tracing
from everygrad.core.tensor import Tensor
from everygrad.errors import (
    ArgumentError,
    DtypeError,
    EverygradError,
    FileError,
    MissingOpsError,
    ShapeError,
)
from everygrad.interop.onnx import checks, values
from everygrad.interop.onnx.program import MISFITS, Program, Run, Scope, Source, Weight
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import asarray


def load_onnx(source: Any) -> OnnxModule:
    """The model in an ONNX file as a Module: its weights are parameters, its inputs arguments.

    `source` is a path, the file's bytes or an `onnx.ModelProto`. Floating-point initializers
    (of a file that has none, its Constants) become parameters under their own names, running
    statistics and integers buffers; constants that decide shapes stay as they are. Inputs are
    given by position or by name, and checked against what the file says of their dtypes and sizes;
    a small vector of integers that is given as a NumPy array is known inside `eg.jit`, so that it
    may decide shapes. The module is in eval mode; `train()` makes Dropout of opsets before 12 drop,
    later ones do as the file says. Operators and opsets that are unknown are named all at once by
    a `MissingOpsError`; a malformed file is a `FileError`.

    >>> import everygrad as eg, onnx
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Exp(x)}'
    >>> eg.io.load_onnx(onnx.parser.parse_model(text))(eg.zeros((2,)))
    tensor([1., 1.])
    """
    model, what, folder = checks.read_model(source)
    try:
        return _module(model, what, folder)
    except EverygradError:
        raise
    except MISFITS as error:
        raise FileError(f"{what}: the file is malformed: {error}") from error


def _module(model: ModelProto, what: str, folder: Path | None) -> OnnxModule:
    checks.check_model(model, what)
    opsets = checks.opsets_of(model)
    shared = Source(what, folder, checks.functions_of(model, what))
    for fault in [
        f for o in (opsets, *map(checks.opsets_of, model.functions)) for f in checks.too_new(o)
    ]:
        shared.lacks(fault, "the model")
    shared.constants_train = not any(
        t.data_type in values.NP_DTYPES and values.np_dtype(t.data_type).kind == "f"
        for t in model.graph.initializer
    )
    declared = [Declared.of(v, what, shared) for v in model.graph.input]
    program = Program.of_graph(model.graph, Scope(shared, opsets, {}, True))
    if shared.lacking:
        raise MissingOpsError(what, shared.lacking)
    return OnnxModule(program, {d.name: d for d in declared}, shared.weights).eval()


class Declared(NamedTuple):
    """An input as the file declares it; None stands for what it leaves open."""

    name: str
    kind: str  # "tensor", or another of ONNX's: "sequence", "optional"
    dtype: np.dtype[Any] | None
    shape: tuple[int | str | None, ...] | None

    @classmethod
    def of(cls, info: ValueInfoProto, what: str, source: Source) -> Declared:
        kind = str(info.type.WhichOneof("value") or "tensor").removesuffix("_type")
        if kind != "tensor":
            return cls(info.name, kind, None, None)
        tensor: TypeProto.Tensor = info.type.tensor_type
        if tensor.elem_type and tensor.elem_type not in values.NP_DTYPES:
            source.lacks(values.dtype_name(tensor.elem_type), info.name)
        dtype = values.NP_DTYPES.get(tensor.elem_type)
        if not tensor.HasField("shape"):
            return cls(info.name, kind, dtype, None)
        shape: list[int | str | None] = []
        for dim in tensor.shape.dim:
            if dim.HasField("dim_value"):
                if dim.dim_value < -1:
                    raise FileError(f"{what}: input {info.name!r} has size {dim.dim_value}")
                # exporters write -1 and "?" for a size that they leave open
                shape.append(None if dim.dim_value == -1 else dim.dim_value)
            else:
                shape.append(dim.dim_param if dim.dim_param not in ("", "?") else None)
        return cls(info.name, kind, dtype, tuple(shape))

    def check(self, value: Any, bound: dict[str, int]) -> Any:
        """A value given for this input, as the graph takes it, or an error that names both."""
        if self.kind != "tensor" or value is None:
            return value
        if not isinstance(value, Tensor) and self.dtype not in dtypes.FROM_NP:
            value = np.asarray(value)  # text, float8: no tensor holds it
        elif not isinstance(value, Tensor) and not _decides_shapes(value):
            value = asarray(value)
        if self.dtype is not None and values.dtype_of(value) != self.dtype:
            given = values.dtype_of(value)
            text = self.dtype.kind == "O" and given.kind in "UO"
            if not text:
                raise DtypeError(
                    f"input {self.name!r}: the file says {self.dtype}, got {given}; "
                    f"cast it: x.astype({str(self.dtype)!r})"
                )
            value = value.astype(object)
        if self.shape is not None and not self._fits(value.shape, bound):
            raise ShapeError(
                f"input {self.name!r}: the file says {self._said()}, got {tuple(value.shape)}"
                + (f" with {bound}" if bound else "")
            )
        return value

    def _said(self) -> str:
        return "(" + ", ".join("?" if s is None else str(s) for s in self.shape or ()) + ")"

    def _fits(self, shape: tuple[int, ...], bound: dict[str, int]) -> bool:
        assert self.shape is not None
        if len(shape) != len(self.shape):
            return False
        for size, said in zip(shape, self.shape, strict=True):
            if isinstance(said, str):
                said = bound.setdefault(said, size)
            if said is not None and size != said:
                return False
        return True


class OnnxModule(Module):
    """What `load_onnx` gives: call it with the graph's inputs, by position or by name.

    One output is a tensor, several are a tuple, in the file's order; `input_names` and
    `output_names` say what they are called there.
    """

    def __init__(
        self, program: Program, declared: dict[str, Declared], weights: dict[str, Weight]
    ) -> None:
        super().__init__()
        self._program = program
        self._declared = declared
        self.input_names = tuple(n for n in declared if n not in program.held | program.known)
        self.output_names = tuple(program.outputs)
        # one by one, so that the file's copy of a weight is let go when there is ours
        self._homes = tuple(_put(self, weights.pop(name)) for name in list(weights))

    def _weights(self) -> Iterator[tuple[str, Any]]:
        for name, home, attribute in self._homes:
            yield name, vars(self.get_submodule(home) if home else self)[attribute]

    def forward(self, *args: Any, **named: Any) -> Any:
        names = self.input_names
        if len(args) > len(names):
            raise ArgumentError(f"takes {len(names)} inputs {names}, got {len(args)}")
        given = dict(zip(names, args, strict=False))
        wrong = sorted({n for n in named if n not in self._declared or n in given})
        missing = sorted({*names} - {*given} - {*named})
        if wrong or missing:
            raise ArgumentError(
                f"the inputs are {names}; "
                + "; ".join(
                    [
                        *([f"missing: {missing}"] if missing else []),
                        *([f"unknown or given twice: {wrong}"] if wrong else []),
                    ]
                )
            )
        bound: dict[str, int] = {}
        given = {n: self._declared[n].check(v, bound) for n, v in {**given, **named}.items()}
        weights = dict(self._weights())
        device = next((str(v.device) for v in _leaves(given, weights)), "cpu")
        with _unwatched():
            found = self._program(given, Run(device, self.training, weights))
        out = [_result(v, device) for v in found]
        return out[0] if len(out) == 1 else tuple(out)


@contextmanager
def _unwatched() -> Iterator[None]:
    """What runs here is ours and onnx's: `eg.jit` need not follow it frame by frame, for nothing
    that it reads can change but the module, which counts its changes."""
    if tracing.get() is None:
        yield
        return
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


def _decides_shapes(value: Any) -> bool:
    """Whether an array looks like sizes: it stays NumPy's, and so is known inside `eg.jit`."""
    small = isinstance(value, np.ndarray) and value.ndim <= 1 and value.size <= 64
    return small and value.dtype.kind in "iub"


def _leaves(*found: dict[str, Any]) -> Iterator[Tensor]:
    return (v for values_ in found for v in values_.values() if isinstance(v, Tensor))


def _result(value: Any, device: str) -> Any:
    """An output: known numbers become tensors; text and dtypes without tensors stay arrays."""
    if isinstance(value, list):
        return [_result(v, device) for v in value]
    return value if values.is_foreign(value) else values.tensor_of(value, device)


def _put(module: Module, weight: Weight) -> tuple[str, str, str]:
    """Hang a weight into the tree of modules that the dots in its name say, or beside it."""
    steps = weight.name.split(".")
    home = module
    at: list[str] = []
    for step in steps[:-1]:
        child = vars(home).get(step)
        if not isinstance(child, Module):
            if not step or hasattr(home, step):
                home, at, steps = module, [], [weight.name.replace(".", "_")]
                break
            child = Module()
            home.add_module(step, child)
        home = child
        at.append(step)
    attribute = steps[-1] or "_"
    while hasattr(home, attribute):
        attribute += "_"
    value = asarray(weight.array)
    if weight.trained:
        home.register_parameter(attribute, Parameter(value))
    else:
        home.register_buffer(attribute, value, persistent=weight.saved)
    return weight.name, ".".join(at), attribute
