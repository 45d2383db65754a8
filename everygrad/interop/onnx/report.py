"""`python -m everygrad onnx model.onnx`: what is in a file, what is missing, whether it runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from onnx import ModelProto, ValueInfoProto

from everygrad._jit.jit import jit
from everygrad.autograd.modes import no_grad
from everygrad.backends import base
from everygrad.errors import ArgumentError, DeviceError, EverygradError, MissingOpsError
from everygrad.interop.onnx import checks, values
from everygrad.interop.onnx.importing import OnnxModule, load_onnx
from everygrad.ops.python.creation import zeros

DEVICES = ("cpu", "cuda", "webgpu")
MOST_ELEMENTS = 1 << 28  # of one input of zeros
_RUNS = 5


def main(
    path: Path,
    devices: Sequence[str] = DEVICES,
    sizes: Sequence[str] = (),
    out: TextIO | None = None,
) -> int:
    """Print the report; the exit status: 0 if the model is whole and ran on the first device."""
    out = sys.stdout if out is None else out

    def say(lines: Iterable[str]) -> None:
        for line in lines:
            print(line, file=out, flush=True)

    try:
        model, _, _ = checks.read_model(path)
        checks.check_model(model, path.name)
        given = _sizes(sizes)
        _check_sizes(model, given)
        say(_contents(path, model))
        module = load_onnx(path)
    except MissingOpsError as error:
        places = sorted(error.lacking.items())
        say(["missing"])
        say(f"  {name}: {', '.join(at[:4])}{' ...' if len(at) > 4 else ''}" for name, at in places)
        return 1
    except (EverygradError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        print(f"{path}: {first}", file=sys.stderr)
        return 1
    say(["missing    nothing"])
    ran = []
    for device in devices:
        worked, lines = _run(module, model, device, given)
        ran.append(worked)
        say(lines)
    return 0 if ran and ran[0] else 1


# --- what is in the file -------------------------------------------------------------------------


def _contents(path: Path, model: ModelProto) -> Iterator[str]:
    graph = model.graph
    held = {i.name for i in graph.initializer}
    opsets = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in sorted(checks.opsets_of(model).items()))
    maker = f", made by {model.producer_name}" if model.producer_name else ""
    yield f"{path.name}: opset {opsets}{maker}"
    for word, ports in (("inputs", graph.input), ("outputs", graph.output)):
        shown = [p for p in ports if p.name not in held]
        yield word
        yield from (f"  {p.name}: {_described(p)}" for p in shown)
    counts = Counter(_names(graph.node))
    listed = ", ".join(f"{name} {n}" for name, n in counts.most_common())
    yield f"weights    {len(graph.initializer)}"
    yield f"operators  {sum(counts.values())}: {listed}"


def _names(nodes: Iterable[Any]) -> Iterator[str]:
    """The operators, of graphs inside nodes too; other domains than ONNX's own are said."""
    for node in nodes:
        domain = checks.domain_of(node.domain)
        yield f"{domain}:{node.op_type}" if domain else node.op_type
        for _, inner in checks.graphs_of(node):
            yield from _names(inner.node)


def _shape(port: ValueInfoProto) -> list[int | str] | None:
    """The sizes that a file says; None where it says none."""
    tensor = port.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim
    ]


def _described(port: ValueInfoProto) -> str:
    kind = str(port.type.WhichOneof("value") or "tensor").removesuffix("_type")
    if kind != "tensor":
        return kind
    shape = _shape(port)
    listed = "any shape" if shape is None else f"[{', '.join(map(str, shape))}]"
    element = port.type.tensor_type.elem_type
    return f"{values.NP_DTYPES.get(element) or values.dtype_name(element)} {listed}"


# --- zeros through it ----------------------------------------------------------------------------


def _sizes(given: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, number = text.partition("=")
        if not name or not (number.isascii() and number.isdigit()):
            raise ArgumentError(f"--size takes name=number, got {text!r}")
        found[name] = int(number)
    return found


def _check_sizes(model: ModelProto, given: dict[str, int]) -> None:
    left = {d for p in model.graph.input for d in _shape(p) or () if isinstance(d, str)}
    unknown = sorted({*given} - left)
    if unknown:
        raise ArgumentError(f"--size names {unknown}; the sizes left open are {sorted(left)}")


def _inputs(module: OnnxModule, model: ModelProto, given: dict[str, int]) -> dict[str, Any]:
    """Zeros for each input; a size that is open is 1 unless it is given."""
    made = {}
    for port in model.graph.input:
        if port.name not in module.input_names:
            continue
        shape = _shape(port)
        if port.type.WhichOneof("value") != "tensor_type" or shape is None:
            raise ArgumentError(f"input {port.name!r} is {_described(port)}: no zeros can be made")
        sizes = tuple(given.get(s, 1) if isinstance(s, str) else s for s in shape)
        count = 1
        for size in sizes:
            count *= size
        if count > MOST_ELEMENTS:
            raise ArgumentError(f"input {port.name!r} of {list(sizes)} has {count} elements")
        dtype = values.NP_DTYPES.get(port.type.tensor_type.elem_type)
        made[port.name] = zeros(sizes, str(dtype))
    return made


def _run(
    module: OnnxModule, model: ModelProto, device: str, given: dict[str, int]
) -> tuple[bool, list[str]]:
    """Whether the model runs on a device, and what to say of it."""
    try:
        backend = base.get(device)
    except DeviceError as error:
        return False, [f"{device:<10} not found: {str(error).splitlines()[0]}"]
    lines = []
    worked = True
    try:
        inputs = {n: x.to(device) for n, x in _inputs(module, model, given).items()}
        module.eval().to(device)
        with no_grad():
            for word, call in (("eager", module), ("jit", jit(module))):
                first, later = _times(partial(call, **inputs), backend)
                lines.append(f"{device:<10} {word:<5} first {first:8.2f} ms, then {later:8.3f} ms")
    except EverygradError as error:
        worked = bool(lines)  # eager ran, and only the compiled function is refused
        lines.append(f"{device:<10} {type(error).__name__}: {str(error).splitlines()[0]}")
    return worked, lines


def _times(work: Any, backend: Any) -> tuple[float, float]:
    """Milliseconds of the first call, and the least of a few more."""
    found = [1e3 * backend.timed(work)[2] for _ in range(1 + _RUNS)]
    return found[0], min(found[1:])
