"""The nodes, constants and names of one ONNX graph while it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from everygrad import dtypes
from everygrad.compiler.ir import Value
from everygrad.dtypes import DType
from everygrad.interop.onnx.exporting.sizes import (
    Dim,
    Mismatch,
    Number,
    Size,
    expressed,
    is_static,
    of_number,
)

ONNX_TYPES = {
    dtypes.bool_: TensorProto.BOOL,
    dtypes.int8: TensorProto.INT8,
    dtypes.int16: TensorProto.INT16,
    dtypes.int32: TensorProto.INT32,
    dtypes.int64: TensorProto.INT64,
    dtypes.uint8: TensorProto.UINT8,
    dtypes.uint16: TensorProto.UINT16,
    dtypes.uint32: TensorProto.UINT32,
    dtypes.uint64: TensorProto.UINT64,
    dtypes.float16: TensorProto.FLOAT16,
    dtypes.bfloat16: TensorProto.BFLOAT16,
    dtypes.float32: TensorProto.FLOAT,
    dtypes.float64: TensorProto.DOUBLE,
}
_SMALL = 1 << 12  # bytes up to which equal constants are looked for
_NODES = 1 << 20  # bytes up to which a constant is a node, so that nobody takes it for a weight
_TOLERANCE = {8: 1e-12, 4: 1e-5, 2: 1e-2}  # of constants that change, by the size of a float


class NoForm(Exception):  # noqa: N818  # seen by `saving` alone, which lists them all
    """A call that ONNX has no form for, and why."""


def tensor_proto(name: str, array: Any) -> Any:
    """An array as ONNX stores it: raw, little endian."""
    dtype = dtypes.FROM_NP[array.dtype]
    made = TensorProto(name=name, data_type=ONNX_TYPES[dtype], dims=array.shape)
    made.raw_data = np.ascontiguousarray(array).tobytes()
    return made


class Writer:
    """One graph. `names` maps values to the names of tensors; `opset` is ONNX's version."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []  # nodes that stand before all others
        self.weights: dict[str, Any] = {}  # parameters, buffers and large constants, by name
        self.names: dict[Value, str] = {}
        self.folded: dict[Value, Any] = {}  # values made of constants alone, as arrays
        self.symbols: list[tuple[str, int, tuple[int, ...], str]] = []  # (input, axis, sizes, name)
        self._taken: set[str] = set()
        self._constants: dict[tuple[Any, ...], str] = {}
        self._sizes: dict[Any, str] = {}
        self._casts: dict[tuple[str, DType], str] = {}
        self._full: dict[Value, str] = {}

    # --- names and nodes -------------------------------------------------------------------------

    def unique(self, hint: str) -> str:
        """A name that nothing else has."""
        name, n = hint, 1
        while name in self._taken or not name:
            name, n = f"{hint}_{n}", n + 1
        self._taken.add(name)
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, by that output's name."""
        return self.nodes_of(kind, inputs, 1, **attributes)[0]

    def nodes_of(
        self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        made = [self.unique(kind.lower()) for _ in range(outputs)]
        given = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(
            helper.make_node(kind, list(inputs), made, self.unique(f"node_{kind}"), **given)
        )
        return made

    def weight(self, name: str, array: Any) -> str:
        made = self.unique(name)
        self.weights[made] = np.ascontiguousarray(array).reshape(array.shape)
        return made

    def constant(self, array: Any) -> str:
        """A constant array; equal small ones are one."""
        array = np.asarray(array)
        if array.nbytes > _NODES:
            return self.weight("constant", array)
        if array.nbytes > _SMALL:
            return self._constant(array)
        key = (array.dtype.str, array.shape, array.tobytes(), str(array.dtype))
        if key not in self._constants:
            self._constants[key] = self._constant(array)
        return self._constants[key]

    def _constant(self, array: Any) -> str:
        made = self.unique("constant")
        value = tensor_proto(f"{made}_value", array)
        self.constants.append(helper.make_node("Constant", [], [made], f"node_{made}", value=value))
        return made

    def scalar(self, value: Any, dtype: DType) -> str:
        with np.errstate(over="ignore"):
            return self.constant(np.asarray(value).astype(dtype.np))

    def cast(self, x: str, dtype: DType) -> str:
        key = (x, dtype)
        if key not in self._casts:
            self._casts[key] = self.node("Cast", x, to=ONNX_TYPES[dtype])
        return self._casts[key]

    # --- sizes -----------------------------------------------------------------------------------

    def ints(self, sizes: Sequence[Size], near: Sequence[Value] = ()) -> str:
        """A vector of sizes; those that change are computed. `near` are values whose sizes help."""
        if is_static(tuple(sizes)):
            return self.constant(np.array(sizes, np.int64).reshape(-1))
        parts = [
            self.size(s, near) if isinstance(s, Dim) else self.constant(np.array([s], np.int64))
            for s in sizes
        ]
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0)

    def size(self, dim: Dim, near: Sequence[Value] = ()) -> str:
        """A size that changes, as a vector of one element."""
        if dim in self._sizes:
            return self._sizes[dim]
        known = [(tensor, axis, values) for tensor, axis, values, _ in self.symbols]
        known += [
            (self.names[v], axis, s.values)
            for v in near
            if v in self.names
            for axis, s in enumerate(sizes_of(v))
            if isinstance(s, Dim)
        ]
        term = expressed(dim, [values for _, _, values in known])
        if term is None:
            shown = ", ".join(f"{name}={values}" for _, _, values, name in self.symbols)
            raise Mismatch(f"a size of {dim.values} is not expressed by {shown}", "")
        atoms = [self.axis_size(*known[i][:2]) for i in term.atoms]
        out = atoms[0]
        for other in atoms[1:]:
            out = self.node("Mul", out, other)
        if term.factor != 1:
            out = self.node("Mul", out, self.ints([term.factor]))
        if term.divisor != 1:
            out = self.node("Div", out, self.ints([term.divisor]))
        for kind, which in (("Add", term.added), ("Sub", term.subtracted)):
            if which is not None:
                out = self.node(kind, out, self.axis_size(*known[which][:2]))
        if term.offset:
            out = self.node("Add", out, self.ints([term.offset]))
        self._sizes[dim] = out
        return out

    def scalar_size(self, dim: Dim) -> str:
        """A size that changes, as a scalar."""
        key = ("scalar", dim)
        if key not in self._sizes:
            self._sizes[key] = self.node("Squeeze", self.size(dim), self.ints([0]))
        return self._sizes[key]

    def axis_size(self, tensor: str, axis: int) -> str:
        key = (tensor, axis)
        if key not in self._sizes:
            self._sizes[key] = self.node("Shape", tensor, start=axis, end=axis + 1)
        return self._sizes[key]

    def dim_name(self, size: Size) -> int | str | None:
        """What an output's size is called; None where it has no short name."""
        if not isinstance(size, Dim):
            return size
        term = expressed(size, [values for _, _, values, _ in self.symbols])
        if term is None or term.added is not None or term.subtracted is not None:
            return None
        text = "*".join(self.symbols[i][3] for i in term.atoms)
        text += f"*{term.factor}" if term.factor != 1 else ""
        text += f"//{term.divisor}" if term.divisor != 1 else ""
        return text + (f"{term.offset:+d}" if term.offset else "")

    # --- leaves ----------------------------------------------------------------------------------

    def name(self, v: Value) -> str:
        """The tensor that a value is, whole."""
        if v in self.names:
            return self.names[v]
        if v in self.folded:
            self.names[v] = self.constant(self.folded[v])
            return self.names[v]
        if v.kind == "full":
            return self.filled(v)
        assert v.kind == "constant", v
        found = self.progression(v) if "range" in v.params else self.constant(v.params["array"])
        self.names[v] = found
        return found

    def filled(self, v: Value) -> str:
        """One number everywhere, in its shape."""
        if v not in self._full:
            one = self.number(v)
            self._full[v] = self.node("Expand", one, self.ints(v.shape)) if v.shape else one
        return self._full[v]

    def number(self, v: Value) -> str:
        """The number of a `full`, as a scalar."""
        value = v.params["value"]
        if isinstance(value, Dim):
            one = self.scalar_size(value)
            return one if v.dtype is dtypes.int64 else self.cast(one, v.dtype)
        if not isinstance(value, Number):
            return self.scalar(value, v.dtype)
        found = of_number(value, _TOLERANCE[v.dtype.itemsize])
        if found is None:
            raise Mismatch(f"a constant is {value.values} at the sizes traced", "")
        how, size = found
        assert isinstance(size, Dim)
        one = self.cast(self.scalar_size(size), v.dtype)
        if how in ("sqrt", "rsqrt"):
            one = self.node("Sqrt", one)
        return self.node("Reciprocal", one) if how in ("reciprocal", "rsqrt") else one

    def progression(self, v: Value) -> str:
        start, step, length = v.params["range"]
        assert isinstance(length, Dim)
        key = ("range", start, step, length, v.dtype)
        if key in self._sizes:
            return self._sizes[key]
        count = self.scalar_size(length)
        out = self.node("Range", self.scalar(0, dtypes.int64), count, self.scalar(1, dtypes.int64))
        out = out if v.dtype is dtypes.int64 else self.cast(out, v.dtype)
        if step != 1:
            out = self.node("Mul", out, self.scalar(step, v.dtype))
        if start:
            out = self.node("Add", out, self.scalar(start, v.dtype))
        self._sizes[key] = out
        return out


def in_float32(write: Write, *narrow: DType) -> Write:
    """`write` between casts for arguments of these dtypes, as our own kernels compute them.

    By default bfloat16, which ONNX, or most runtimes, have no such op of.
    """
    halves = narrow or (dtypes.bfloat16,)

    def wide(w: Writer, v: Value) -> str:
        if all(a.dtype not in halves for a in v.args):
            return write(w, v)
        args = []
        for a in v.args:
            stand_in = a.copy_of(*a.args)
            if a.dtype in halves:
                stand_in.dtype = dtypes.float32
                w.names[stand_in] = w.cast(w.name(a), dtypes.float32)
            else:
                w.names[stand_in] = w.name(a)
            args.append(stand_in)
        call = v.copy_of(*args)
        if v.dtype not in halves:
            return write(w, call)
        call.dtype = dtypes.float32
        return w.cast(write(w, call), v.dtype)

    return wide


def sizes_of(v: Value) -> tuple[Size, ...]:
    """The shape of a value, in which sizes may change."""
    return v.shape


def static(what: str, thing: Any) -> Any:
    """A parameter that ONNX takes as an attribute: it must not change."""
    if not is_static(thing):
        raise Mismatch(f"{what} changes with the sizes ({thing}), which ONNX has no form for", "")
    return thing


Write = Callable[[Writer, Value], str]
