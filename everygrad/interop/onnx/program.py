"""A graph of ONNX nodes made ready to run: handlers found, weights named, lifetimes known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from everygrad import dtypes
from everygrad.core.context import intercepted
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, EverygradError, FileError
from everygrad.interop.onnx import checks, values
from everygrad.interop.onnx.operators.registry import Call, Handler, handler_for
from everygrad.interop.onnx.operators.table import HANDLERS as HANDLERS
from everygrad.interop.onnx.tensors import read_sparse, read_tensor

# The results of these are known from shapes alone: what decides a shape is not looked for beyond.
_FROM_SHAPES = frozenset(("Shape", "Size", "SequenceLength"))


# What Python and NumPy raise of attributes and sizes that make no sense: an axis that is not there,
# a list that is too short, a division by a step of 0.
MISFITS = (
    *(TypeError, ValueError, LookupError, ArithmeticError, AttributeError),
    *(AssertionError, RuntimeError),
)


MOST_BODIES = 64  # of one node, for values of different shapes


class Weight(NamedTuple):
    """A tensor stored in the file: `trained` unless it is state; constants are not saved."""

    name: str
    array: np.ndarray[Any, Any]
    trained: bool
    saved: bool


class Source:
    """What all graphs of one file share: its functions, its weights, what is missing."""

    def __init__(
        self, what: str, folder: Path | None = None, functions: checks.Functions | None = None
    ) -> None:
        self.what = what
        self.folder = folder
        self.functions = functions or {}
        self.weights: dict[str, Weight] = {}
        self.constants_train = False  # files without initializers keep their weights in Constants
        self.lacking: dict[str, list[str]] = {}
        self.called: dict[Any, Program] = {}  # functions, by what makes their bodies differ

    def lacks(self, what: str, where: str) -> None:
        self.lacking.setdefault(what, []).append(where)

    def unique(self, name: str) -> str:
        """A name that no other weight has: graphs inside nodes may use one again."""
        found, count = name, 1
        while found in self.weights:
            found, count = f"{name}_{count}", count + 1
        return found


class Run(NamedTuple):
    """What a run of a graph knows beside its values."""

    device: str
    training: bool
    weights: Mapping[str, Any]


class Body:
    """A graph inside a node, with the values it sees outside: what a handler may call."""

    def __init__(self, program: Program, outer: Mapping[str, Any], run: Run) -> None:
        self._program = program
        self._outer = outer
        self._run = run
        self.inputs: Sequence[str] = program.inputs
        self.outputs: Sequence[str] = program.outputs
        self.declared = program.declared

    def __call__(self, *given: Any) -> list[Any]:
        held = {name: self._outer[name] for name in self._program.captured}
        held.update(zip(self.inputs, given, strict=True))
        return self._program(held, self._run)


class Step:
    """One node made ready."""

    def __init__(self, node: NodeProto, index: int, scope: Scope) -> None:
        self.name = checks.label(node, index)
        self.op = node.op_type
        self.domain = checks.domain_of(node.domain)
        self.version = scope.opsets.get(self.domain, 1)
        self.inputs = list(node.input)
        self.outputs = list(node.output)
        self.node = _bound(node, scope)
        self.attributes = attributes_of(node, scope, self.name)
        self.programs = {
            name: Program.of_graph(graph, scope) for name, graph in checks.graphs_of(node)
        }
        self.handler: Handler | None = None
        self.called: Program | None = None
        self.dies: list[str] = []
        self._bodies: dict[Any, Program] = {}
        self._opsets = scope.opsets
        key = (self.domain, self.op, node.overload)
        if key in scope.source.functions:
            self.called = _called_program(key, self.attributes, node, scope)
        else:
            self.handler = handler_for(self.domain, self.op, self.version)
            self._check_dtype(scope.source)
            if self.handler is None and not has_body(self.domain, self.op, self.version):
                home = self.domain or "ai.onnx"
                scope.source.lacks(f"{home}::{self.op} (opset {self.version})", self.name)

    def size(self) -> int:
        """How many nodes this one is, with those inside it."""
        inner = [*self.programs.values(), *([self.called] if self.called else [])]
        return 1 + sum(program.size for program in inner)

    def _check_dtype(self, source: Source) -> None:
        """Note a data type that an attribute names and the onnx package does not know."""
        named = ("to", "dtype", "output_dtype", "precision") if not self.domain else ()
        for attribute in named:
            wanted = self.attributes.get(attribute, 0)
            if isinstance(wanted, int) and wanted and wanted not in values.NP_DTYPES:
                source.lacks(values.dtype_name(wanted), self.name)

    def captured(self) -> set[str]:
        """Values of the graph around that graphs inside this node use."""
        return {name for p in self.programs.values() for name in p.captured}

    def static_inputs(self) -> set[str]:
        """Inputs that decide a shape or a way, so that their values should be known."""
        if self.called is not None:
            wanted = {i for i, n in enumerate(self.called.inputs) if n in self.called.static}
        else:
            wanted = {*self.handler.static, *self.handler.either} if self.handler else set()
        named = {self.inputs[i] for i in wanted if i < len(self.inputs) and self.inputs[i]}
        return named | {n for p in self.programs.values() for n in p.captured if n in p.static}

    def run(self, held: Mapping[str, Any], run: Run) -> Sequence[Any]:
        given = [held[name] if name else None for name in self.inputs]
        try:
            found = self._run(given, held, run)
            if any(self.outputs[len(found) :]):
                raise ArgumentError(f"gives {len(found)} results, the file wants {self.outputs}")
            return found
        except EverygradError as error:
            error.add_note(f"in the ONNX node {self.name!r} ({self.op})")
            raise
        except MISFITS as error:
            raise ArgumentError(
                f"ONNX node {self.name!r} ({self.op}): attributes and inputs do not fit: {error}"
            ) from error

    def _run(self, given: list[Any], held: Mapping[str, Any], run: Run) -> Sequence[Any]:
        if self.called is not None:
            return self.called(_padded(self.called.inputs, given), run)
        if self.handler is None:
            program = self._expanded(given)
            return program(_padded(program.inputs, given), run)
        device = next((v.device for v in given if isinstance(v, Tensor)), run.device)
        bodies = {name: Body(program, held, run) for name, program in self.programs.items()}
        call = Call(
            *(self.name, self.op, self.version, self.attributes, self.outputs),
            str(device),
            run.training,
            bodies,
        )
        found = self._handle(self.handler, call, given)
        several = found if isinstance(found, tuple) else (found,)
        # a NumPy function of a 0-d array gives a scalar, which is no array
        return [np.asarray(v) if isinstance(v, np.generic) else v for v in several]

    def _handle(self, handler: Handler, call: Call, given: list[Any]) -> Any:
        arrays = handler.static if intercepted() else handler.static | handler.either
        known = [values.array_of(v) if i in arrays else v for i, v in enumerate(given)]
        if handler.raw:
            return handler.function(call, *known)
        rest = [v for i, v in enumerate(known) if i not in arrays and v is not None]
        if handler.fold and given and all(isinstance(v, np.ndarray) for v in rest):
            call.device = "cpu"
            return values.outside(_folded, handler, call, known)
        return handler.function(call, *_computed(handler, call, known))

    def _expanded(self, given: list[Any]) -> Program:
        """The body that ONNX itself gives an operator, for values of these types."""
        key = tuple(_kind_of(v) for v in given)
        if key not in self._bodies:
            types = [_type_of(v) for v in given]
            schema = onnx.defs.get_schema(self.op, self.version, self.domain)
            function = _body_of(schema, self.node, types)
            defaults = {
                name: onnx.helper.get_attribute_value(a.default_value)
                for name, a in schema.attributes.items()
                if a.default_value.name
            }
            if len(self._bodies) >= MOST_BODIES:
                self._bodies.pop(next(iter(self._bodies)))
            source = Source(self.name)
            bound = {n: _plain(v) for n, v in defaults.items()} | self.attributes
            self._bodies[key] = function_program(function, bound, source, self.node, self._opsets)
            if source.lacking:
                raise FileError(f"{self.op}: its body needs {', '.join(source.lacking)}")
        return self._bodies[key]


def _computed(handler: Handler, call: Call, known: list[Any]) -> list[Any]:
    kept = handler.static | handler.either
    return [v if i in kept else values.tensor_of(v, call.device) for i, v in enumerate(known)]


def _folded(handler: Handler, call: Call, known: list[Any]) -> Any:
    found = handler.function(call, *_computed(handler, call, known))
    if isinstance(found, tuple):
        return tuple(values.array_of(v) for v in found)
    return values.array_of(found)


def _padded(names: Sequence[str], given: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, [*given, *[None] * (len(names) - len(given))], strict=False))


# --- bodies that ONNX gives its operators --------------------------------------------------------


def _schema(domain: str, op: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def has_body(domain: str, op: str, version: int) -> bool:
    schema = _schema(domain, op, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _body_of(schema: Any, node: NodeProto, types: Sequence[bytes]) -> FunctionProto:
    function = FunctionProto()
    if schema.has_function:
        function.CopyFrom(schema.function_body)
        return function
    text = schema.get_context_dependent_function(node.SerializeToString(), list(types))
    function.ParseFromString(text)
    return function


def _kind_of(value: Any) -> Any:
    """What a body may depend on: the dtype and the shape of each value."""
    if isinstance(value, list):
        return tuple(_kind_of(v) for v in value[:1])
    return value if value is None else (values.dtype_of(value), tuple(value.shape))


def _type_of(value: Any) -> bytes:
    """The type of a value as a TypeProto, in bytes."""
    if value is None:
        return onnx.TypeProto().SerializeToString()
    if isinstance(value, list):
        element = onnx.TypeProto()
        element.ParseFromString(_type_of(value[0]) if value else b"")
        return onnx.helper.make_sequence_type_proto(element).SerializeToString()
    number = onnx.helper.np_dtype_to_tensor_dtype(values.dtype_of(value))
    return onnx.helper.make_tensor_type_proto(number, value.shape).SerializeToString()


# --- attributes ----------------------------------------------------------------------------------


def attributes_of(node: NodeProto, scope: Scope, where: str) -> dict[str, Any]:
    """A node's attributes as Python's values; those of the function around it by reference."""
    found = {}
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in scope.bound:
                found[attribute.name] = scope.bound[attribute.ref_attr_name]
        elif attribute.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            found[attribute.name] = _value(attribute, scope, where)
    return found


def _bound(node: NodeProto, scope: Scope) -> NodeProto:
    """A node of a function's body with a call's attributes in the place of references."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    found = NodeProto()
    found.CopyFrom(node)
    del found.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            found.attribute.append(a)
        elif a.ref_attr_name in scope.bound:
            value = scope.bound[a.ref_attr_name]
            stored = onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            found.attribute.append(onnx.helper.make_attribute(a.name, stored))
    return found


def _value(attribute: AttributeProto, scope: Scope, where: str) -> Any:
    source = scope.source
    kind = attribute.type
    if kind == AttributeProto.TENSOR and attribute.t.data_type not in values.NP_DTYPES:
        source.lacks(values.dtype_name(attribute.t.data_type), where)
        return None
    if kind == AttributeProto.TENSOR:
        return read_tensor(attribute.t, f"{source.what}: {where}", source.folder)
    if kind == AttributeProto.TENSORS:
        return [read_tensor(t, f"{source.what}: {where}", source.folder) for t in attribute.tensors]
    if kind == AttributeProto.SPARSE_TENSOR:
        return read_sparse(attribute.sparse_tensor, f"{source.what}: {where}", source.folder)
    if kind in (AttributeProto.TYPE_PROTO, AttributeProto.TYPE_PROTOS):
        return attribute.tp
    if kind == AttributeProto.UNDEFINED:
        raise FileError(f"{source.what}: {where}: attribute {attribute.name!r} has no type")
    try:
        return _plain(onnx.helper.get_attribute_value(attribute))
    except ValueError as error:
        raise FileError(f"{source.what}: {where}: {attribute.name!r}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) or (hasattr(value, "MergeFrom") and hasattr(value, "append")):
        return [_plain(v) for v in value]
    return value


# --- graphs --------------------------------------------------------------------------------------


class Scope(NamedTuple):
    """What the nodes of one graph see: the file, their opsets, the attributes of a function."""

    source: Source
    opsets: Mapping[str, int]
    bound: Mapping[str, Any]
    keeps: bool  # whether weights become the module's; else they stay arrays


class Program:
    """A graph made ready to run."""

    def __init__(
        self,
        nodes: Iterable[NodeProto],
        inputs: Sequence[str],
        outputs: Sequence[str],
        stored: Mapping[str, np.ndarray[Any, Any]],
        scope: Scope,
    ) -> None:
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.steps = [Step(node, i, scope) for i, node in enumerate(nodes)]
        made = {*self.inputs, *stored, *(o for s in self.steps for o in s.outputs)}
        used = {n for s in self.steps for n in (*s.inputs, *s.captured()) if n} | {*self.outputs}
        self.captured = sorted(used - made)
        self.declared: list[tuple[Any, Any]] = []  # dtype and sizes of outputs, where they are said
        self.static = self._static()
        self.known: dict[str, Any] = {}  # arrays that stay NumPy's
        self.held: dict[str, str] = {}  # names of weights, and what the module calls them
        self.size = sum(step.size() for step in self.steps)
        if self.size > checks.MOST_NODES:
            raise FileError(
                f"{scope.source.what}: more than {checks.MOST_NODES} nodes, with those of "
                "functions at each of their calls"
            )
        self._place(stored, scope)
        self._lifetimes()

    @classmethod
    def of_graph(cls, graph: GraphProto, scope: Scope) -> Program:
        source = scope.source
        stored: dict[str, Any] = {}
        for tensor in graph.initializer:
            if tensor.data_type not in values.NP_DTYPES:
                source.lacks(values.dtype_name(tensor.data_type), tensor.name)
            else:
                stored[tensor.name] = read_tensor(tensor, source.what, source.folder)
        for sparse in graph.sparse_initializer:
            stored[sparse.values.name] = read_sparse(sparse, source.what, source.folder)
        inputs = [v.name for v in graph.input if v.name not in stored]
        outputs = [v.name for v in graph.output]
        program = cls(graph.node, inputs, outputs, stored, scope)
        program.declared = [_declared(v) for v in graph.output]
        return program

    def _static(self) -> set[str]:
        """Names whose values decide shapes, followed back from the operators that say so."""
        makers = {o: s for s in self.steps for o in s.outputs if o}
        todo = [n for s in self.steps for n in s.static_inputs()]
        found: set[str] = set()
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            maker = makers.get(name)
            if maker is not None and maker.op not in _FROM_SHAPES:
                todo += [n for n in maker.inputs if n]
        return found

    def _place(self, stored: Mapping[str, np.ndarray[Any, Any]], scope: Scope) -> None:
        """Decide for each stored tensor whether it trains, is state, or stays an array."""
        uses: dict[str, list[bool]] = {}  # whether each use is as state
        for step in self.steps:
            state = step.handler.buffers if step.handler else frozenset()
            for i, name in enumerate(step.inputs):
                uses.setdefault(name, []).append(i in state)
        constants = {}
        rest = []
        for step in self.steps:
            value = _constant(step)
            if value is None:
                rest.append(step)
            else:
                constants[step.outputs[0]] = value
        self.steps = rest
        for name, array in [*stored.items(), *constants.items()]:
            if name in self.static or values.is_foreign(array) or not scope.keeps:
                self.known[name] = array
                continue
            kind = dtypes.FROM_NP[array.dtype]
            is_weight = kind.is_float and array.ndim > 0 and array.size > 1
            saved = name in stored or (scope.source.constants_train and is_weight)
            is_state = bool(uses.get(name)) and all(uses[name])
            trained = saved and kind.is_float and not is_state
            at = scope.source.unique(name)
            scope.source.weights[at] = Weight(at, array, trained, saved)
            self.held[name] = at

    def _lifetimes(self) -> None:
        """Values are let go after their last use."""
        kept = {*self.outputs, *self.inputs, *self.known, *self.held, *self.captured}
        for step in reversed(self.steps):
            for name in {*step.inputs, *step.captured(), *step.outputs} - kept - {""}:
                step.dies.append(name)
                kept.add(name)

    def __call__(self, given: dict[str, Any], run: Run) -> list[Any]:
        """The graph's outputs; `given` has its inputs, and the values captured from around it."""
        held = {**self.known, **{n: run.weights[at] for n, at in self.held.items()}, **given}
        for step in self.steps:
            found = step.run(held, run)
            for name, value in zip(step.outputs, found, strict=False):
                if name:
                    held[name] = value
            for name in step.dies:
                held.pop(name, None)
        # the body of an operator may leave out a result that the node does not want
        return [held.get(name) for name in self.outputs]


def _declared(info: onnx.ValueInfoProto) -> tuple[Any, Any]:
    """The dtype and the sizes that a file says of a value, None where it does not."""
    said = info.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else None for d in said.shape.dim]
    return values.NP_DTYPES.get(said.elem_type), shape if said.HasField("shape") else None


def _constant(step: Step) -> Any:
    """The value of a Constant node, unless its dtype is among what is missing."""
    if step.op != "Constant" or step.domain or step.handler is None:
        return None
    if any(value is None for value in step.attributes.values()):
        return None
    call = Call(step.name, step.op, step.version, step.attributes, step.outputs, "cpu", False, {})
    return step.handler.function(call)


def _called_program(
    key: tuple[str, str, str], given: Mapping[str, Any], node: NodeProto, scope: Scope
) -> Program:
    """A function's program, one for all calls that differ in nothing but their inputs: functions
    that call each other twice would otherwise double with every step."""
    source = scope.source
    plain = all(isinstance(v, int | float | str | list) for v in given.values())
    form = (key, repr(sorted(given.items())), repr(sorted(scope.opsets.items())))
    if not plain or form not in source.called:
        found = function_program(source.functions[key], given, source, node, scope.opsets)
        if not plain:
            return found
        source.called[form] = found
    _check_arity(source.functions[key], node)
    return source.called[form]


def _check_arity(function: FunctionProto, node: NodeProto) -> None:
    if len(node.input) > len(function.input) or len(node.output) > len(function.output):
        raise ArgumentError(
            f"function {function.name!r} takes {len(function.input)} values and gives "
            f"{len(function.output)}; {node.name!r} has {len(node.input)} and {len(node.output)}"
        )


def function_program(
    function: FunctionProto,
    given: Mapping[str, Any],
    source: Source,
    node: NodeProto,
    opsets: Mapping[str, int],
) -> Program:
    """A function's body with a call's attributes in their places."""
    _check_arity(function, node)
    bound = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in function.attribute_proto}
    scope = Scope(source, {**opsets, **checks.opsets_of(function)}, {**bound, **given}, False)
    return Program(function.node, list(function.input), list(function.output), {}, scope)
