"""`eg.io.save_onnx`: a traced function or module as an ONNX file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import defs

from everygrad._jit.record import Record, Target
from everygrad._jit.verify import values_of
from everygrad.compiler.ir import Value, in_order, reachable
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, MissingOpsError
from everygrad.interop.onnx.exporting import assembly, elementwise, movement
from everygrad.interop.onnx.exporting.arguments import (
    Symbol,
    checked_names,
    symbols_of,
    target_of,
    tensors_of,
)
from everygrad.interop.onnx.exporting.kernels import KERNELS
from everygrad.interop.onnx.exporting.patterns import fused
from everygrad.interop.onnx.exporting.sizes import Merged, Mismatch, is_static
from everygrad.interop.onnx.exporting.tracing import computed, payload_of, traces_of
from everygrad.interop.onnx.exporting.writer import ONNX_TYPES, NoForm, Writer
from everygrad.io.web import argument_names, parameter_names

OLDEST = 18  # before it, axes of reductions and widths of paddings are attributes
DEFAULT = 20
EXTERNAL_ABOVE = 1 << 30  # a protobuf file ends at 2 GiB
FOLDED = 1 << 20  # bytes up to which a value made of constants is written as what it is


def save_onnx(
    fn: Callable[..., Any],
    inputs: Any,
    path: Any,
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = DEFAULT,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    external_above: int = EXTERNAL_ABOVE,
) -> Path:
    """Write a function or module, traced on inputs like these, as an ONNX file.

    inputs          its arguments: a tensor, or a tuple or list of them
    dynamic         axes whose sizes stay open: {"x": {0: "batch"}}; the function is traced at three
                    sizes, and refused where it does not do the same at each
    opset           ONNX's version, from 18 on
    input_names     by default the names of the function's parameters
    output_names    by default "output", or "output0", "output1", ...
    external_above  weights of more than so many bytes in all go to a file beside, `<path>.data`

    Tensors that the function holds become initializers, named as in its `state_dict`. Checks of
    index ranges are left to the runtime. Raises a MissingOpsError that lists everything ONNX has no
    form for, with the lines of the program.

    >>> import everygrad as eg, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = eg.io.save_onnx(lambda x: x * 2, eg.ones((3,)), f"{folder}/twice.onnx")
    ...     eg.io.load_onnx(path)(eg.ones((3,)))
    tensor([2., 2., 2.])
    """
    target = target_of(path)
    if not callable(fn):
        raise ArgumentError(f"save_onnx: takes a function or a module, got {type(fn).__name__}")
    tensors, tree = tensors_of(inputs)
    newest = defs.onnx_opset_version()
    if type(opset) is not int or not OLDEST <= opset <= newest:
        raise ArgumentError(f"save_onnx: opset must be from {OLDEST} to {newest}, got {opset!r}")
    if type(external_above) is not int or external_above < 0:
        raise ArgumentError(
            f"save_onnx: external_above must be a number of bytes, got {external_above!r}"
        )
    names = checked_names("input_names", input_names, len(tensors))
    names = argument_names(fn, len(tensors)) if names is None else names
    symbols = symbols_of(dynamic, names, tensors)
    traces = traces_of(fn, tensors, tree, symbols)
    results = traces[0].results
    wanted = checked_names("output_names", output_names, results)
    if wanted is None:
        wanted = ["output"] if results == 1 else [f"output{i}" for i in range(results)]
    if {*wanted} & {*names}:
        raise ArgumentError(f"save_onnx: {sorted({*wanted} & {*names})} names inputs and outputs")
    program = str(getattr(fn, "__name__", type(fn).__name__))
    export = Export(program, traces, tensors, names, symbols, opset)
    model, large = export.model(wanted)
    assembly.write(model, large, target, external_above)
    return target


class Export:
    """One function on its way into a file. `lacking` says what stands in the way, and where."""

    def __init__(
        self,
        program: str,
        traces: list[Record],
        tensors: Sequence[Tensor],
        names: Sequence[str],
        symbols: dict[str, Symbol],
        opset: int,
    ) -> None:
        self.program = program
        self.traces = traces
        self.tensors = tensors
        self.names = names
        self.symbols = symbols
        self.w = Writer(opset)
        self.lacking: dict[str, list[str]] = {}

    def lacks(self, what: str, where: str) -> None:
        places = self.lacking.setdefault(what, [])
        if where not in places:
            places.append(where)

    def model(self, output_names: list[str]) -> tuple[Any, dict[str, Any]]:
        """The model, and its weights that are not in it yet."""
        for name in (*self.names, *output_names):
            self.w.unique(name)
        self.state()
        inputs, outputs = self.merged()
        given = self.leaves(inputs)
        for v in _after_arguments(outputs):
            if v.op is not None:
                self.value(v)
            elif v.dtype not in ONNX_TYPES:
                self.lacks(f"{v.dtype}", v.where or "a constant")
        found = [self.output(v) for v in outputs]
        if self.lacking:
            raise MissingOpsError(
                f"save_onnx: {self.program}", self.lacking, what="ONNX has no form for"
            )
        assembly.finish(self.w, found, output_names)
        results = [
            assembly.Port(name, v.dtype, tuple(map(self.w.dim_name, v.shape)))
            for name, v in zip(output_names, outputs, strict=True)
        ]
        return assembly.model_of(self.w, self.program, given, results)

    # --- what stands in the way --------------------------------------------------------------

    def state(self) -> None:
        """Random numbers, and tensors that are given new values."""
        record = self.traces[0]
        live = list(in_order(reachable(record.graph.outputs)))
        random = [v for v in live if v.facts.random]
        for v in random:
            self.lacks("random numbers; switch dropout off with model.eval()", v.where)
        names = parameter_names(record)
        for t in record.targets:
            if random and _is_random_state(t):
                continue
            where = "" if t.output is None else record.graph.outputs[t.output].where
            if t.new:
                self.lacks("tensors that it makes and keeps; return them", where or "its end")
            else:
                self.lacks("new values of tensors; use model.eval()", _described(t, names))
        if not record.results:
            raise ArgumentError(f"save_onnx: {self.program} returns nothing; return tensors")

    # --- one graph of all traces ---------------------------------------------------------------

    def merged(self) -> tuple[list[tuple[Value, Any]], list[Value]]:
        """The inputs with their origins, and the outputs."""
        first = self.traces[0]
        origins = first.origins
        outputs = first.graph.outputs[: first.results]
        if len(self.traces) == 1:
            return list(zip(first.graph.inputs, origins, strict=True)), outputs
        if any(t.results != first.results for t in self.traces):
            raise MissingOpsError(
                f"save_onnx: {self.program}",
                {"a number of results that changes with the sizes": ["its end"]},
                what="ONNX has no form for",
            )
        joined = Merged()
        inputs = []
        places = [{_key(o): v for v, o in zip(t.graph.inputs, t.origins, strict=True)}
                  for t in self.traces]  # fmt: skip
        for origin in origins:
            group = [p.get(_key(origin)) for p in places]
            if all(v is not None for v in group):
                inputs.append((joined.input(tuple(v for v in group if v is not None)), origin))
        lists = [t.graph.outputs[: t.results] for t in self.traces]
        made = []
        for group_of_outputs in zip(*lists, strict=True):
            try:
                made.append(joined.value(group_of_outputs))
            except Mismatch as error:
                self.lacks(error.what, error.where)
        if self.lacking:
            raise MissingOpsError(
                f"save_onnx: {self.program}", self.lacking, what="ONNX has no form for"
            )
        return inputs, made

    def leaves(self, inputs: Sequence[tuple[Value, Any]]) -> list[assembly.Port]:
        """The arguments as inputs, everything else as initializers."""
        known = parameter_names(self.traces[0])
        given: dict[int, assembly.Port] = {}
        for v, origin in inputs:
            if origin.argument is None:
                array = values_of([payload_of(origin, self.tensors)])[0]
                name = known.get(id(origin.tensor), "captured")
                if v.dtype not in ONNX_TYPES:
                    self.lacks(f"{v.dtype}", name)
                    continue
                self.w.names[v] = self.w.weight(name, array)
            elif origin.grad:
                self.lacks("the gradient of an input; hand it over as an input", "an argument")
            else:
                self.w.names[v] = self.names[origin.argument]
        for i, (name, t) in enumerate(zip(self.names, self.tensors, strict=True)):
            given[i] = assembly.Port(name, t.dtype, self.input_shape(i, t))
        self.input_symbols()
        return [given[i] for i in sorted(given)]

    def input_shape(self, i: int, t: Tensor) -> tuple[int | str, ...]:
        shape: list[int | str] = list(t.shape)
        for name, symbol in self.symbols.items():
            for at, axis in symbol.places:
                if at == i:
                    shape[axis] = name
        return tuple(shape)

    def input_symbols(self) -> None:
        """Where the sizes that stay open are found when the model runs."""
        arguments = [{o.argument: v for v, o in zip(t.graph.inputs, t.origins, strict=True)}
                     for t in self.traces]  # fmt: skip
        for name, symbol in self.symbols.items():
            at, axis = symbol.places[0]
            sizes = tuple(a[at].shape[axis] for a in arguments)
            self.w.symbols.append((self.names[at], axis, sizes, name))

    # --- values ------------------------------------------------------------------------------

    def value(self, v: Value) -> None:
        """Write one call; what cannot be is noted, and the rest is looked at all the same."""
        self.w.names[v] = "?"
        if v.facts.random:  # said already
            return
        if v.dtype not in ONNX_TYPES:
            self.lacks(f"{v.name} of {v.dtype}", v.where)
            return
        if self.foldable(v):
            self.w.folded[v] = computed(v, self.w.folded)
            del self.w.names[v]
            return
        try:
            self.w.names[v] = self.written(v)
        except NoForm as error:
            self.lacks(f"{v.name} ({error})" if str(error) else v.name, v.where)
        except Mismatch as error:
            self.lacks(f"{v.name}: {error.what}", error.where or v.where)

    def foldable(self, v: Value) -> bool:
        """Whether a value is made of constants alone, the same at all sizes."""
        return (
            is_static(v.shape)
            and v.nbytes <= FOLDED
            and is_static(tuple(v.params.values()))
            and all(a in self.w.folded or _is_constant(a) for a in v.args)
        )

    def written(self, v: Value) -> str:
        if 0 in v.shape and is_static(v.shape):  # runtimes are not sure of arrays without elements
            return self.w.constant(np.zeros(v.shape, v.dtype.np))
        if v.kind == "elementwise":
            return fused(self.w, v) or elementwise.write(self.w, v)
        if v.kind == "movement":
            return movement.move(self.w, v)
        if v.kind == "reduction":
            return movement.reduce(self.w, v)
        form = KERNELS.get(v.name)
        if form is None:
            raise NoForm
        return form.write(self.w, v)

    def output(self, v: Value) -> str:
        try:
            return self.w.name(v)
        except Mismatch as error:
            self.lacks(error.what, error.where or "its results")
            return "?"


def _is_constant(v: Value) -> bool:
    """A number or an array that the program says."""
    static = is_static(v.shape) and v.dtype in ONNX_TYPES and v.nbytes <= FOLDED
    return static and v.kind in ("full", "constant") and is_static(v.params.get("value"))


def _key(origin: Any) -> Any:
    tensor = None if origin.tensor is None else id(origin.tensor)
    return origin.argument, tensor, origin.grad


def _after_arguments(outputs: Iterable[Value]) -> Iterator[Value]:
    """Every value behind these, each after its arguments."""
    todo = [(v, False) for v in outputs]
    done: set[Value] = set()
    while todo:
        v, ready = todo.pop()
        if v in done:
            continue
        if ready or not v.args:
            done.add(v)
            yield v
        else:
            todo.append((v, True))
            todo += [(a, False) for a in reversed(v.args)]


def _is_random_state(target: Target) -> bool:
    t = target.tensor
    return t is not None and t.device == "cpu" and t.shape == (4,) and str(t.dtype) == "uint32"


def _described(target: Target, names: dict[int, str]) -> str:
    t = target.tensor
    name = f"input {target.argument}" if t is None else names.get(id(t), "a tensor")
    return f"the gradient of {name}" if target.grad else name
