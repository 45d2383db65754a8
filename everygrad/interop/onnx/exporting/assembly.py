"""A finished graph as a ModelProto, checked, and on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, TensorProto, checker, helper, shape_inference

from everygrad import dtypes
from everygrad.dtypes import DType
from everygrad.errors import CompileError
from everygrad.interop.onnx.exporting.writer import ONNX_TYPES, Writer, tensor_proto
from everygrad.io.files import replace, replacing, write_at

_INLINE = 1 << 10  # bytes up to which a constant stays in the file: sizes are among them
_PAGE = 4096  # runtimes map what begins at a multiple of this


class Port(NamedTuple):
    """An input or output of the graph; sizes are numbers, names, or None."""

    name: str
    dtype: DType
    shape: tuple[int | str | None, ...]

    def info(self) -> Any:
        return helper.make_tensor_value_info(self.name, ONNX_TYPES[self.dtype], list(self.shape))


def finish(w: Writer, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Give the outputs their names, and drop what nothing reads."""
    w.nodes = [*w.constants, *w.nodes]
    made = {name for node in w.nodes for name in node.output}
    renamed: dict[str, str] = {}
    for name, output in zip(found, wanted, strict=True):
        if name in made and name not in renamed:
            renamed[name] = output
        else:  # an input, a constant, or a second output of the same value
            w.nodes.append(helper.make_node("Identity", [name], [output], f"node_{output}"))
    needed, kept = {*wanted}, []
    for node in w.nodes:
        _rename(node, renamed)
    for node in reversed(w.nodes):
        if needed & {*node.output}:
            needed |= _reads(node)
            kept.append(node)
    w.nodes = kept[::-1]
    w.weights = {name: array for name, array in w.weights.items() if name in needed}


def _bodies(node: Any) -> list[Any]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def _rename(node: Any, names: dict[str, str]) -> None:
    for field in (node.input, node.output):
        for i, name in enumerate(field):
            if name in names:
                field[i] = names[name]
    for body in _bodies(node):
        for inner in body.node:
            _rename(inner, names)


def _reads(node: Any) -> set[str]:
    """The tensors a node reads, in the graphs inside it too."""
    found = {*node.input}
    for body in _bodies(node):
        for inner in body.node:
            found |= _reads(inner)
    return found


def model_of(
    w: Writer, name: str, inputs: Sequence[Port], outputs: Sequence[Port]
) -> tuple[Any, dict[str, Any]]:
    """The model with its small constants, checked, its shapes inferred; and the other weights."""
    small = {n: a for n, a in w.weights.items() if a.nbytes <= _INLINE}
    large = {n: a for n, a in w.weights.items() if a.nbytes > _INLINE}
    held = [tensor_proto(n, a) for n, a in small.items()]
    given = [t.info() for t in inputs]
    # large weights take part in the checks as inputs: their values are not looked at
    stand_ins = [Port(n, _dtype(a), a.shape).info() for n, a in large.items()]
    model = _model(w, name, [*given, *stand_ins], [t.info() for t in outputs], held)
    try:
        checker.check_model(model, full_check=True)
        model = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise CompileError(
            f"save_onnx: a wrong model was made; please report it: {error}"
        ) from None
    del model.graph.input[len(given) :]
    return model, large


def _model(w: Writer, name: str, inputs: Any, outputs: Any, held: Any) -> Any:
    graph = helper.make_graph(w.nodes, name, inputs, outputs, held)
    opsets = [helper.make_opsetid("", w.opset)]
    return helper.make_model(
        graph,
        opset_imports=opsets,
        producer_name="everygrad",
        ir_version=helper.find_min_ir_version_for(opsets),
    )


def _dtype(array: Any) -> DType:
    return dtypes.FROM_NP[array.dtype]


def write(model: Any, large: dict[str, Any], path: Path, external_above: int) -> None:
    """The file; weights of more than so many bytes in all lie beside it, in `<path>.data`."""
    total = sum(a.nbytes for a in large.values())
    if total <= external_above:
        model.graph.initializer.extend(tensor_proto(n, a) for n, a in large.items())
        replace(path, model.SerializeToString())
        return
    beside = path.with_name(f"{path.name}.data")
    offset = 0
    with replacing(beside) as file:
        for name, array in large.items():
            offset = -(-offset // _PAGE) * _PAGE
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            write_at(file, data.data, offset)
            model.graph.initializer.append(_outside(name, array, beside.name, offset))
            offset += array.nbytes
    replace(path, model.SerializeToString())


def _outside(name: str, array: Any, location: str, offset: int) -> Any:
    made = TensorProto(name=name, data_type=ONNX_TYPES[_dtype(array)], dims=array.shape)
    made.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
        made.external_data.add(key=key, value=str(value))
    return made
