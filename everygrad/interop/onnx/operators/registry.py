"""The table of handlers: which function serves an ONNX operator from which opset on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

MICROSOFT = "com.microsoft"  # onnxruntime's own operators
ML = "ai.onnx.ml"
PREVIEW = "ai.onnx.preview"
TRAINING = "ai.onnx.preview.training"


class Body(Protocol):
    """A graph inside a node: what If, Loop and Scan run."""

    @property
    def inputs(self) -> Sequence[str]: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    @property
    def declared(self) -> Sequence[tuple[Any, Any]]:
        """The dtype and the sizes of its outputs, None where the file leaves them open."""

    def __call__(self, *values: Any) -> list[Any]: ...


class Call:
    """One node at work: its attributes, and what a handler may ask beside its inputs."""

    __slots__ = ("attributes", "bodies", "device", "name", "op", "outputs", "training", "version")

    def __init__(
        self,
        name: str,
        op: str,
        version: int,
        attributes: Mapping[str, Any],
        outputs: Sequence[str],
        device: str,
        training: bool,
        bodies: Mapping[str, Body],
    ) -> None:
        self.name = name
        self.op = op
        self.version = version  # of the opset that the node's domain is used in
        self.attributes = attributes
        self.outputs = outputs  # names; "" where a result is not wanted
        self.device = device
        self.training = training  # whether the module is: dropout drops
        self.bodies = bodies

    def __call__(self, attribute: str, default: Any = None) -> Any:
        """An attribute's value, or the default."""
        return self.attributes.get(attribute, default)

    def wants(self, output: int) -> bool:
        """Whether the graph uses this result."""
        return output < len(self.outputs) and self.outputs[output] != ""


class Handler(NamedTuple):
    """What serves an operator from opset `since` on.

    `static`: inputs whose values decide shapes or ways; the handler gets NumPy arrays of them.
    `either`: inputs that it gets as NumPy arrays where their values are known, else as tensors.
    `buffers`: inputs that are state, so that a weight which is nothing else is not trained.
    `raw`: the handler takes NumPy arrays, tensors and sequences as they come; any other gets
    tensors. `fold`: of NumPy arrays alone the result is a NumPy array, known while tracing.
    """

    function: Callable[..., Any]
    since: int
    static: frozenset[int] = frozenset()
    buffers: frozenset[int] = frozenset()
    raw: bool = False
    fold: bool = True
    either: frozenset[int] = frozenset()


HANDLERS: dict[tuple[str, str], list[Handler]] = {}


def onnx_op(
    *names: str,
    since: int = 1,
    domain: str = "",
    static: Sequence[int] = (),
    buffers: Sequence[int] = (),
    raw: bool = False,
    fold: bool = True,
    either: Sequence[int] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table for these operators; see `Handler` for what the words mean."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        places = (frozenset(static), frozenset(buffers))
        handler = Handler(function, since, *places, raw, fold, frozenset(either))
        for name in names:
            known = HANDLERS.setdefault((domain, name), [])
            known.append(handler)
            known.sort(key=lambda h: h.since)
        return function

    return register


def handler_for(domain: str, op: str, version: int) -> Handler | None:
    """The handler of an operator in an opset, if there is one."""
    fitting = [h for h in HANDLERS.get((domain, op), ()) if h.since <= version]
    return fitting[-1] if fitting else None
