"""The graph behind a tensor: as plain data, as text and for Graphviz.

`read_graph` copies what there is to show out of the recorded nodes, so a `Graph` keeps no values
alive. It is read without recursion: a chain of a million ops prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everygrad.autograd.graph import Leaf, Node
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import ArgumentError, GradientError

LIMIT = 2000  # nodes: a larger picture shows nothing
UNKNOWN = "_"  # an input that needs no gradient and was not saved
_PREFIX = {"float": "f", "complex": "c", "int": "i", "uint": "u"}

# names for leaves: a mapping, a Module, or what its named_parameters() gives
Names = Any


@dataclass(frozen=True)
class GraphNode:
    """One op, or one leaf: a tensor that asked for gradients.

    inputs  the numbers of the nodes it was made from; text for an input without a gradient
    roles   the op's own names for its inputs
    params  the op's parameters, briefly
    note    what else is known: used up, computed again, the user's line
    """

    number: int
    op: str
    shape: Shape
    dtype: str  # "f32", or "" where nothing saved tells
    inputs: tuple[int | str, ...] = ()
    roles: tuple[str, ...] = ()
    params: str = ""
    name: str = ""
    note: str = ""

    @property
    def is_leaf(self) -> bool:
        return self.op == "leaf"

    @property
    def type(self) -> str:
        """Dtype and shape: `f32[2, 3]`."""
        return f"{self.dtype}{list(self.shape)}"

    @property
    def constants(self) -> str:
        """The known inputs without a gradient, by the op's names for them: `y=0.5`."""
        pairs = zip(self.roles, self.inputs, strict=True)
        return ", ".join(f"{r}={i}" for r, i in pairs if isinstance(i, str) and i != UNKNOWN)

    def __str__(self) -> str:
        used = [i if isinstance(i, str) else f"%{i}" for i in self.inputs]
        words = [self.op, *used, self.params, self.name if self.is_leaf else ""]
        notes = ", ".join(filter(None, ["" if self.is_leaf else self.name, self.note]))
        line = f"%{self.number}: {self.type} = {' '.join(filter(None, words))}"
        return f"{line}  # {notes}" if notes else line


@dataclass(frozen=True)
class Graph:
    """The nodes in execution order: inputs before what is made from them."""

    nodes: tuple[GraphNode, ...]
    outputs: tuple[int, ...]

    @property
    def edges(self) -> Iterator[tuple[int, int]]:
        """Pairs (from, to), one for each use."""
        return ((i, n.number) for n in self.nodes for i in n.inputs if isinstance(i, int))

    def __str__(self) -> str:
        return "\n".join(
            [*map(str, self.nodes), f"return {', '.join(f'%{i}' for i in self.outputs)}"]
        )


def read_graph(x: Tensor | Sequence[Tensor], names: Names = None, limit: float = math.inf) -> Graph:
    """The graph behind one tensor or several.

    names  what to call tensors: {"w": w, ...}, a Module, or its named_parameters()
    limit  how many nodes it may have; a picture of many shows nothing
    """
    roots = [x] if isinstance(x, Tensor) else list(x)
    for t in roots:
        if not isinstance(t, Tensor):
            raise ArgumentError(f"graph: takes Tensors, got {type(t).__name__}")
        if t._node is None:
            raise GradientError(
                f"graph: nothing was recorded for this tensor of shape {t.shape}; "
                f"set requires_grad=True on what it is made from"
            )
    if not roots:
        raise ArgumentError("graph: needs at least one tensor")
    order = _execution_order([t._node for t in roots if t._node is not None])
    if len(order) > limit:
        raise ArgumentError(
            f"graph: {len(order):,} nodes are too many for a picture (limit={limit:,}); "
            f"graph_text prints graphs of any size"
        )
    reader = _Reader(order, roots, dict(_name_pairs(names)))
    return Graph(tuple(reader.nodes()), tuple(reader.number[t._node] for t in roots))


def graph_text(x: Tensor | Sequence[Tensor], names: Names = None) -> str:
    """The graph behind a tensor, one line for each op, inputs first.

    >>> import everygrad as eg
    >>> w = eg.tensor([1.0, 2.0], requires_grad=True)
    >>> print(eg.tools.graph_text((w * 0.5).sum(), names={"w": w}))
    %0: f32[2] = leaf w
    %1: [2] = multiply %0 0.5
    %2: f32[] = sum %1 axes=(0,)
    return %2
    """
    return str(read_graph(x, names))


def graph_dot(x: Tensor | Sequence[Tensor], names: Names = None, limit: int = LIMIT) -> str:
    """The graph behind a tensor in Graphviz's language.

    >>> import everygrad as eg
    >>> w = eg.tensor([1.0, 2.0], requires_grad=True)
    >>> print(eg.tools.graph_dot(eg.exp(w), names={"w": w}).splitlines()[-3])
      n1 [label="exp\\nf32[2]", fillcolor="#e8eefc", tooltip="%1: f32[2] = exp %0"];
    """
    graph = read_graph(x, names, limit)
    lines = [
        "digraph everygrad {",
        '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=11];',
        '  edge [color="#64748b", arrowsize=0.7];',
    ]
    for node in graph.nodes:
        label = "\\n".join(_quoted(part) for part in label_lines(node))
        colour = "#fdf0d5" if node.is_leaf else "#e8eefc"
        facts = f'label="{label}", fillcolor="{colour}", tooltip="{_quoted(str(node))}"'
        lines.append(f"  n{node.number} [{facts}];")
    lines += [f"  n{a} -> n{b};" for a, b in graph.edges]
    return "\n".join([*lines, "}"])


def label_lines(node: GraphNode) -> list[str]:
    """What a box in a picture says: the op or the leaf's name, its type, its details."""
    title = (node.name or "leaf") if node.is_leaf else node.op
    detail = " ".join(filter(None, [node.params, node.constants]))
    extra = node.name if not node.is_leaf else ""
    return [shortened(line, 36) for line in (title, node.type, detail, extra) if line]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _name_pairs(names: Names) -> Iterable[tuple[str, Any]]:
    if names is None:
        return ()
    if hasattr(names, "named_parameters"):
        names = names.named_parameters()
    pairs = list(names.items() if isinstance(names, Mapping) else names)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Tensor)):
            raise ArgumentError(
                'graph: names must be {"name": tensor}, a Module or its named_parameters(), '
                f"got an entry {pair!r}"[:200]
            )
    return pairs


class _Reader:
    """Copies recorded nodes into plain ones."""

    def __init__(self, order: list[Node], roots: list[Tensor], names: dict[str, Tensor]) -> None:
        self.order = order
        self.number: dict[Node | None, int] = {node: i for i, node in enumerate(order)}
        self.names = {t._node: name for name, t in names.items() if t._node is not None}
        # tensors without gradients leave no node; what ops saved of them is recognised
        self.values = {id(t._data): name for name, t in names.items() if t._node is None}
        self.dtypes: dict[Node, Any] = {
            t._node: t._data.dtype for t in roots if t._node is not None
        }
        for node in self.order:
            self.learn(node)

    def learn(self, node: Node) -> None:
        """Dtypes, from what is still there: a leaf's tensor, saved values, a cast's parameter."""
        if isinstance(node, Leaf):
            tensor = node.tensor()
            if tensor is not None:
                self.dtypes.setdefault(node, tensor._data.dtype)
            return
        for owner, payload in zip((node, *node.parents), _saved(node), strict=True):
            if owner is not None and payload is not None:
                self.dtypes.setdefault(owner, payload.dtype)
        if isinstance(to := (node.params or {}).get("dtype"), DType):
            self.dtypes.setdefault(node, to.np)

    def nodes(self) -> Iterator[GraphNode]:
        for number, node in enumerate(self.order):
            dtype, name = _short(self.dtypes.get(node)), self.names.get(node, "")
            if node.is_leaf:
                yield GraphNode(number, "leaf", node.shape, dtype, name=name)
                continue
            count = len(node.parents)
            roles = node.op.inputs if len(node.op.inputs) == count else map(str, range(count))
            yield GraphNode(
                number,
                node.op.name,
                node.shape,
                dtype,
                tuple(self.inputs(node)),
                tuple(roles),
                _brief_params(node),
                name,
                _note(node),
            )

    def inputs(self, node: Node) -> Iterator[int | str]:
        for parent, payload in zip(node.parents, _saved(node)[1:], strict=True):
            if parent is not None:
                yield self.number[parent]
            elif payload is None:
                yield UNKNOWN
            elif id(payload) in self.values:
                yield self.values[id(payload)]
            elif isinstance(payload, np.ndarray) and payload.ndim == 0:
                yield f"{payload.item():.6g}"
            else:
                yield f"{_short(payload.dtype)}{list(payload.shape)}"


def _execution_order(roots: list[Node]) -> list[Node]:
    """Every node once, after all of its parents; the first input's part comes first."""
    order: list[Node] = []
    done: set[Node] = set()
    for root in roots:
        todo: list[tuple[Node, bool]] = [(root, False)]
        while todo:
            node, ready = todo.pop()
            if ready:
                order.append(node)
            elif node not in done:
                done.add(node)
                todo.append((node, True))
                todo += [(p, False) for p in reversed(node.parents) if p is not None]
    return order


def _saved(node: Node) -> tuple[Any, ...]:
    """What the node kept as (out, *inputs); None for what it did not, or does not keep any more."""
    saved = node.saved
    places = 1 + len(node.parents)
    return saved if type(saved) is tuple and len(saved) == places else (None,) * places


def _note(node: Node) -> str:
    state = ""
    if node.saved is None:
        state = "used up"
    elif type(node.saved) is not tuple:
        state = "computed again in backward"
    return ", ".join(filter(None, [state, node.where]))


def _brief_params(node: Node) -> str:
    """Without what says nothing: flags that are off, and the shape that stands there already."""
    params = {k: v for k, v in (node.params or {}).items() if not _says_nothing(v, node.shape)}
    return shortened(" ".join(f"{k}={_brief(v)}" for k, v in params.items()), 80)


def _says_nothing(value: Any, shape: Shape) -> bool:
    return value is None or value is False or (type(value) is tuple and value == shape)


def _brief(value: Any) -> str:
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Tensor | np.ndarray):
        return f"array{list(value.shape)}"
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    return shortened(f"{value:g}" if isinstance(value, float) else repr(value), 40)


def _short(np_dtype: Any) -> str:
    """f32, i64, bool; nothing for a dtype that is not known."""
    dtype = FROM_NP.get(np_dtype)
    if dtype is None or dtype.kind == "bool":
        return "" if dtype is None else "bool"
    return "bf16" if dtype.name == "bfloat16" else f"{_PREFIX[dtype.kind]}{dtype.bits}"
