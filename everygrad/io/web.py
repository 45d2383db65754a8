"""`export_web`: a compiled function as a folder of static files that a browser's WebGPU runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from safetensors.numpy import save

from everygrad._jit.pipeline import prepared
from everygrad._jit.record import InputOrigin, Record, Target, trace
from everygrad._jit.verify import interpreted, values_of
from everygrad.autograd.trees import flatten
from everygrad.backends import base
from everygrad.backends.webgpu.source.word_layout import LAYOUTS
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.io.files import replace
from everygrad.io.webmodel import IN_BROWSER, Exported, recorded

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

PAGE = Path(__file__).parent / "page"
_SHOWN = 3  # places named for each kind of obstacle


def export_web(fn: Callable[..., Any], example_inputs: Any, folder: str | Path) -> Path:
    """Write `fn`, compiled for inputs like these, as a page that runs in a browser.

    fn              a function of tensors on "webgpu", jitted or not; those it holds are captured
    example_inputs  its arguments: a tensor, or a tuple or list of them
    folder          made if it is not there; gets index.html, everygrad.js, model.json, kernels.wgsl
                    and weights.safetensors. Serve it: python -m http.server -d FOLDER

    In a page of your own: `import {load} from "./everygrad.js"`, then
    `const model = await load(".")` and `const [out] = await model.run([new Float32Array(...)])`.
    Raises an ArgumentError that lists everything a browser cannot do.
    """
    if not callable(fn):
        raise ArgumentError(f"export_web: takes a function, got {type(fn).__name__}")
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ArgumentError(f"export_web: {target} is a file; name a folder")
    if isinstance(example_inputs, Tensor):
        example_inputs = (example_inputs,)
    if not isinstance(example_inputs, tuple | list):
        kind = type(example_inputs).__name__
        raise ArgumentError(
            f"export_web: example_inputs is a {kind}; give the arguments as a tuple"
        )
    leaves, tree = flatten((tuple(example_inputs), {}))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    record, _ = trace(fn, leaves, tree, escapes=True)
    _give_values(record, tensors)
    graph = _forward(record)
    obstacles = [*_inputs(leaves), *_changes(record), *_graph_obstacles(record, graph)]
    obstacles += _interface(record, graph)
    made = None
    if record.device.split(":")[0] != "webgpu":
        cure = 'move the model and the inputs: x.to("webgpu")'
        obstacles.insert(0, f"it runs on {record.device}, a page on WebGPU; {cure}")
    elif all(v.dtype in LAYOUTS for v in graph.values):
        made, more = recorded(cast("WebGPU", base.get(record.device)), graph)
        obstacles += more
    if obstacles or made is None:
        listed = "".join(f"\n  - {o}" for o in obstacles)
        raise ArgumentError(f"export_web: {_name(fn)} cannot run in a browser:{listed}")
    _fill(made, record, tensors, fn)
    _write(made, target)
    return target


def _forward(record: Record) -> Graph:
    """The graph of what the function returns alone, simplified."""
    returned = record.graph.with_outputs(record.graph.outputs[: record.results])
    return prepared(returned, record.device)


def _give_values(record: Record, tensors: Sequence[Tensor]) -> None:
    """State that the function made while it was traced is what a call would have made it."""
    made = [t for t in record.targets if t.new and t.tensor is not None]
    if not made:
        return
    wanted = [record.graph.outputs[t.output or 0] for t in made]
    given = values_of([_payload(s, tensors) for s in record.origins])
    known = interpreted(record.graph, given, wanted)
    for t, value in zip(made, wanted, strict=True):
        assert t.tensor is not None
        t.tensor.rebind(base.get(record.device).from_numpy(known[value]), None)


def _payload(origin: InputOrigin, tensors: Sequence[Tensor]) -> Any:
    """The array an input has now."""
    t: Any = origin.tensor if origin.argument is None else tensors[origin.argument]
    return (t.grad if origin.grad else t)._data


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


# --- what stands in the way ----------------------------------------------------------------------


def _inputs(leaves: Sequence[Any]) -> Iterator[str]:
    """Arguments that a page could not hand over."""
    seen: dict[int, int] = {}
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            yield (
                f"input {i} is {leaf!r:.40} ({type(leaf).__name__}), which would be a constant of "
                f"the page; make it a tensor, or leave it to the function"
            )
        elif id(leaf) in seen:
            yield f"inputs {seen[id(leaf)]} and {i} are one tensor; give each its own"
        else:
            seen[id(leaf)] = i


def _changes(record: Record) -> Iterator[str]:
    """Tensors that are given new values; a random state is named as randomness instead."""
    names = parameter_names(record)
    random = any(v.facts.random for v in record.graph.values)
    lasting = [t for t in record.targets if not (random and _is_random_state(t))]
    kept = [t for t in lasting if t.new]
    found = [_described(t, names) for t in lasting if not t.new]
    if found:
        yield (
            f"it changes {', '.join(found)}: a page keeps nothing from call to call; export the "
            f"forward pass alone, with model.eval()"
        )
    if kept:
        lines = {record.graph.outputs[t.output].where for t in kept if t.output is not None}
        yield f"it keeps tensors that it makes at {_places(lines)}; return them instead"
    read = [names.get(id(s.tensor), "an input") for s in record.origins if s.grad and not s.tensor]
    if read:
        yield f"it reads the gradient of {', '.join(read)}; hand it over as an input"


def _is_random_state(target: Target) -> bool:
    t = target.tensor
    return t is not None and t.device == "cpu" and t.shape == (4,) and str(t.dtype) == "uint32"


def _described(target: Target, names: dict[int, str]) -> str:
    t = target.tensor
    name = f"input {target.argument}" if t is None else names.get(id(t), "a tensor")
    of = "the gradient of " if target.grad else ""
    return f"{of}{name}" if t is None else f"{of}{name} ({t.dtype}{list(t.shape)})"


def _graph_obstacles(record: Record, graph: Graph) -> Iterator[str]:
    """Randomness, and dtypes that do not exist in a browser."""
    live = list(in_order(reachable(graph.outputs)))
    drawn = {v.where for v in live if v.facts.random}
    if drawn:
        yield (
            f"it draws random numbers at {_places(drawn)}; hand them over as an input, or switch "
            f"dropout off with model.eval()"
        )
    lacking: dict[str, set[str]] = {}
    for v in [*graph.inputs, *live]:
        if v.dtype not in LAYOUTS:
            lacking.setdefault(str(v.dtype), set()).add(v.where or "a constant")
    for dtype, lines in lacking.items():
        yield f"{dtype} at {_places(lines)} does not exist there; use float32"


def _interface(record: Record, graph: Graph) -> Iterator[str]:
    """Inputs and outputs that no typed array of JavaScript holds; no outputs at all."""
    if not graph.outputs:
        yield "it returns nothing; return the tensors that the page shall show"
    given = [v for v, s in zip(graph.inputs, record.origins, strict=True) if s.argument is not None]
    for word, cure, values in (
        ("input", "hand over float32 and convert it inside", given),
        ("output", "return it with astype('float32')", graph.outputs),
    ):
        for i, v in enumerate(values):
            if v.dtype in LAYOUTS and str(v.dtype) not in IN_BROWSER:
                yield f"{word} {i} is {v.dtype}, which JavaScript has no arrays of; {cure}"


def _places(lines: set[str]) -> str:
    shown = sorted(lines)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


# --- names ---------------------------------------------------------------------------------------


def parameter_names(record: Record) -> dict[int, str]:
    """Parameters and buffers by id, each under its longest name: that of the outermost module."""
    found: dict[int, str] = {}
    for module, _ in record.modules:
        for name, t in [*module.named_parameters(), *module.named_buffers()]:
            if len(name) > len(found.get(id(t), "")):
                found[id(t)] = name
    return found


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """As the function calls them, where that is known."""
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return plain[:count] if len(plain) >= count else [f"input{i}" for i in range(count)]


# --- files ---------------------------------------------------------------------------------------


def _fill(
    made: Exported, record: Record, tensors: Sequence[Tensor], fn: Callable[..., Any]
) -> None:
    """Inputs and captured tensors: what the graph's inputs are for."""
    made.name = _name(fn)
    names, arguments = parameter_names(record), argument_names(fn, len(tensors))
    order: list[tuple[int, Value]] = []
    for v, s in zip(made.graph.inputs, record.origins, strict=True):
        if s.argument is not None:
            order.append((s.argument, v))
        else:
            made.weight(names.get(id(s.tensor), ""), v, values_of([_payload(s, tensors)])[0])
    for at, v in sorted(order, key=lambda pair: pair[0]):
        made.input(arguments[at], v)


def _write(made: Exported, folder: Path) -> None:
    """The files; model.json last, so that what it speaks of is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(PAGE.iterdir()):
        replace(folder / page.name, page.read_bytes())
    about = {"format": "everygrad", "function": made.name}
    replace(folder / "weights.safetensors", save(made.weights, metadata=about))
    replace(folder / "kernels.wgsl", made.kernels_text().encode())
    replace(folder / "model.json", made.json().encode())
