"""The graph behind a tensor as a picture: leaves on top, the result at the bottom.

A layered layout in four steps: a layer for each node, an order within each layer that crosses few
edges, places that keep edges straight, then the drawing. Edges that skip layers get an invisible
box in each layer they pass, shared by all uses of one result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from everygrad.core.tensor import Tensor
from everygrad.tools.graph import LIMIT, Graph, GraphNode, Names, label_lines, read_graph

TITLE, DETAIL = 13, 11  # font sizes
ADVANCE = 0.61  # of the font size: how wide a character of a monospaced font is at most
LINE = 16  # from line to line
PAD_X, PAD_Y = 14, 9
GAP_X, GAP_Y = 26, 46
MARGIN = 24
PASSING = 12  # width kept free for an edge that passes a layer
FAR = 30  # layers: a longer edge is drawn straight, behind the boxes
SWEEPS = 12

STYLE = f"""
  text {{ font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
         font-size: {DETAIL}px; fill: #475569; text-anchor: middle; }}
  .title {{ font-size: {TITLE}px; font-weight: 600; fill: #0f172a; }}
  rect {{ stroke-width: 1.2; }}
  .op {{ fill: #e8eefc; stroke: #7c93d1; }}
  .leaf {{ fill: #fdf0d5; stroke: #d29a3a; }}
  .result {{ fill: #d9f2e3; stroke: #3f9d6b; }}
  path {{ fill: none; stroke: #64748b; stroke-width: 1.2; }}
  .head {{ fill: #64748b; stroke: none; }}
"""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass
class Box:
    """A node to draw, or (node None) a place where an edge passes a layer."""

    node: GraphNode | None
    layer: int
    lines: list[str] = field(default_factory=list)
    above: list[int] = field(default_factory=list)  # boxes its edges come from, one for each use
    below: list[int] = field(default_factory=list)
    width: float = PASSING
    height: float = 0.0
    x: float = 0.0  # centre
    y: float = 0.0  # top

    def pull(self, other: Box) -> float:
        """How much an edge wants to be straight: long edges most, those of leaves least."""
        if self.node is None or other.node is None:
            return 8.0 if self.node is other.node else 2.0
        return 0.2 if self.node.is_leaf or other.node.is_leaf else 2.0


def graph_svg(x: Tensor | Sequence[Tensor], names: Names = None, limit: int = LIMIT) -> str:
    """The graph behind a tensor as an SVG picture, which scales to the page it is put on.

    >>> import everygrad as eg
    >>> w = eg.tensor([1.0, 2.0], requires_grad=True)
    >>> eg.tools.graph_svg((w * w).sum(), names={"w": w})[:31]
    '<svg xmlns="http://www.w3.org/2'
    """
    graph = read_graph(x, names, limit)
    boxes, far = _boxes(graph)
    layers = _ordered(boxes)
    _place(boxes, layers)
    return _draw(graph, boxes, far)


# --- layers --------------------------------------------------------------------------------------


def _layers(graph: Graph) -> list[int]:
    """Ops below their inputs; leaves, and what is made of one leaf alone, above their use."""
    count = len(graph.nodes)
    layer = [0] * count
    first_use = [count] * count
    alone = [True] * count
    for node in graph.nodes:
        inputs = {i for i in node.inputs if isinstance(i, int)}
        layer[node.number] = max((layer[i] + 1 for i in inputs), default=0)
        alone[node.number] = len(inputs) <= 1 and all(alone[i] for i in inputs)
    for node in reversed(graph.nodes):
        if alone[node.number] and first_use[node.number] < count:
            layer[node.number] = first_use[node.number] - 1
        for i in node.inputs:
            if isinstance(i, int):
                first_use[i] = min(first_use[i], layer[node.number])
    return layer


def _boxes(graph: Graph) -> tuple[list[Box], list[tuple[int, int]]]:
    """Boxes linked from layer to layer, and the edges that are too long for that."""
    boxes = [Box(n, at, label_lines(n)) for n, at in zip(graph.nodes, _layers(graph), strict=True)]
    for box in boxes:
        texts = [len(box.lines[0]) * TITLE, *(len(line) * DETAIL for line in box.lines[1:])]
        box.width = max(56.0, max(texts) * ADVANCE + 2 * PAD_X)
        box.height = len(box.lines) * LINE + 2 * PAD_Y
    passing: dict[tuple[int, int], int] = {}  # (source, layer) -> the box its edges share there
    far = []
    for source, target in graph.edges:
        start, end = boxes[source].layer, boxes[target].layer
        if end - start > FAR:
            far.append((source, target))
            continue
        last = source
        for at in range(start + 1, end):
            if (source, at) not in passing:
                passing[source, at] = len(boxes)
                boxes.append(Box(None, at))
                _link(boxes, last, passing[source, at])
            last = passing[source, at]
        _link(boxes, last, target)
    return boxes, far


def _link(boxes: list[Box], a: int, b: int) -> None:
    boxes[a].below.append(b)
    boxes[b].above.append(a)


# --- order within layers --------------------------------------------------------------------------


def _ordered(boxes: list[Box]) -> list[list[int]]:
    """The boxes of each layer from left to right: sweeps by mean position, the best one kept."""
    layers: list[list[int]] = [[] for _ in range(1 + max(box.layer for box in boxes))]
    for i in _walk(boxes):
        layers[boxes[i].layer].append(i)
    best, fewest = layers, _crossings(boxes, layers)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        layers = [list(row) for row in layers]
        down = sweep % 2 == 0
        for row in layers if down else layers[::-1]:
            _sort_row(boxes, layers, row, down)
        count = _crossings(boxes, layers)
        if count < fewest:
            best, fewest = layers, count
    return best


def _walk(boxes: list[Box]) -> list[int]:
    """All boxes, depth first from the results upwards: neighbours start side by side."""
    found: list[int] = []
    seen: set[int] = set()
    for root in sorted(range(len(boxes)), key=lambda i: -boxes[i].layer):
        todo = [root]
        while todo:
            i = todo.pop()
            if i not in seen:
                seen.add(i)
                found.append(i)
                todo += reversed(boxes[i].above)
    return found


def _places(layers: list[list[int]]) -> dict[int, int]:
    return {i: place for row in layers for place, i in enumerate(row)}


def _sort_row(boxes: list[Box], layers: list[list[int]], row: list[int], down: bool) -> None:
    at = boxes[row[0]].layer
    beside = at - 1 if down else at + 1
    if not 0 <= beside < len(layers):
        return
    place = {i: p for p, i in enumerate(layers[beside])}
    own = {i: p for p, i in enumerate(row)}

    def mean(i: int) -> float:
        near = boxes[i].above if down else boxes[i].below
        return sum(place[j] for j in near) / len(near) if near else float(own[i])

    row.sort(key=mean)


def _crossings(boxes: list[Box], layers: list[list[int]]) -> int:
    """How many pairs of edges cross, by counting inversions layer by layer."""
    place = _places(layers)
    total = 0
    for row in layers:
        ends = [p for i in row for p in sorted(place[j] for j in boxes[i].below)]
        total += _inversions(ends)
    return total


def _inversions(values: list[int]) -> int:
    tree = [0] * (max(values, default=0) + 2)  # a Fenwick tree: how many came at or before a place
    total = 0
    for seen, value in enumerate(values):
        i, before = value + 1, 0
        while i:
            before += tree[i]
            i &= i - 1
        total += seen - before
        i = value + 1
        while i < len(tree):
            tree[i] += 1
            i += i & -i
    return total


# --- places --------------------------------------------------------------------------------------


def _place(boxes: list[Box], layers: list[list[int]]) -> None:
    for row in layers:
        x = 0.0
        for i in row:
            boxes[i].x = x + boxes[i].width / 2
            x += boxes[i].width + GAP_X
        for i in row:
            boxes[i].x -= x / 2
    # long edges straighten slowly; small pictures, which people look at closely, get the time
    sweeps = SWEEPS * (20 if len(boxes) < 500 else 2)
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        for row in layers if down else layers[::-1]:
            _settle(boxes, row, both=sweep >= SWEEPS, down=down)
    y = float(MARGIN)
    for row in layers:
        tallest = max(boxes[i].height for i in row)
        for i in row:
            boxes[i].y = y + (tallest - boxes[i].height) / 2
            if boxes[i].node is None:  # an edge passes the whole layer straight
                boxes[i].y, boxes[i].height = y, tallest
        y += tallest + GAP_Y
    left = min(box.x - box.width / 2 for box in boxes) - MARGIN
    for box in boxes:
        box.x -= left


def _settle(boxes: list[Box], row: list[int], both: bool, down: bool) -> None:
    """Move a row towards its neighbours: least squares, with the order and the gaps kept.

    Boxes that would overlap are pooled into blocks that move as one (pool adjacent violators).
    """
    offset = 0.0
    blocks: list[list[float]] = []  # [sum of weight * wish, sum of weights, number of boxes]
    offsets = []
    for n, i in enumerate(row):
        box = boxes[i]
        if n:
            before = boxes[row[n - 1]]
            gap = GAP_X if box.node or before.node else PASSING
            offset += (before.width + box.width) / 2 + gap
        offsets.append(offset)
        near = box.above + box.below if both else box.above if down else box.below
        pulls = [(box.pull(boxes[j]), boxes[j].x) for j in near] or [(0.01, box.x)]
        weight = sum(w for w, _ in pulls)
        wish = sum(w * x for w, x in pulls) / weight
        blocks.append([weight * (wish - offset), weight, 1])
        while len(blocks) > 1 and _at(blocks[-2]) >= _at(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    n = 0
    for block in blocks:
        for _ in range(int(block[2])):
            boxes[row[n]].x = _at(block) + offsets[n]
            n += 1


def _at(block: list[float]) -> float:
    return block[0] / block[1]


# --- drawing -------------------------------------------------------------------------------------


def _draw(graph: Graph, boxes: list[Box], far: list[tuple[int, int]]) -> str:
    width = max(box.x + box.width / 2 for box in boxes) + MARGIN
    height = max(box.y + box.height for box in boxes) + MARGIN
    results = set(graph.outputs)
    size = f"{width:.0f} {height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">',
        f"<title>{_text(f'{len(graph.nodes)} recorded operations and leaves')}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#ffffff"/>',
        *(_curve([_foot(boxes[a]), _top(boxes[b], boxes[b].x)]) for a, b in far),
        *_edges(boxes),
        *(_box(box, box.node, box.node.number in results) for box in boxes if box.node),
        "</svg>",
    ]
    return "\n".join(parts)


def _box(box: Box, node: GraphNode, is_result: bool) -> str:
    kind = "leaf" if node.is_leaf else "result" if is_result else "op"
    left = box.x - box.width / 2
    rows = []
    for n, line in enumerate(box.lines):
        style = ' class="title"' if n == 0 else ""
        y = box.y + PAD_Y + LINE * n + 12
        rows.append(f'<text x="{box.x:.1f}" y="{y:.1f}"{style}>{_text(line)}</text>')
    return (
        f"<g><title>{_text(str(node))}</title>"
        f'<rect class="{kind}" x="{left:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="8"/>{"".join(rows)}</g>'
    )


def _edges(boxes: list[Box]) -> list[str]:
    """One curve for each edge into a box, from its source or from where it left a shared one."""
    drawn = []
    for target in boxes:
        sources = sorted(target.above, key=lambda i: boxes[i].x)
        ports = _ports(target, len(sources))
        for i, port in zip(sources, ports, strict=True):
            source = boxes[i]
            end = _top(target, port)
            drawn.append(_curve([_foot(source), end], head=target.node is not None))
            if target.node is None:
                drawn.append(_line(end, _foot(target)))
    return drawn


def _ports(box: Box, count: int) -> list[float]:
    """Where edges enter a box: spread around the middle of its top."""
    step = min(22.0, (box.width - 20) / max(1, count - 1)) if count > 1 else 0.0
    return [box.x + step * (n - (count - 1) / 2) for n in range(count)]


Point = tuple[float, float]


def _foot(box: Box) -> Point:
    return box.x, box.y + box.height


def _top(box: Box, x: float) -> Point:
    return x, box.y


def _curve(ends: list[Point], head: bool = True) -> str:
    (x1, y1), (x2, y2) = ends
    stop = y2 - 6 if head else y2
    bend = (stop - y1) / 2
    handles = f"{x1:.1f},{y1 + bend:.1f} {x2:.1f},{stop - bend:.1f}"
    path = f"M{x1:.1f},{y1:.1f}C{handles} {x2:.1f},{stop:.1f}"
    arrow = f'<path class="head" d="M{x2:.1f},{y2:.1f}l-4,-8h8z"/>' if head else ""
    return f'<path d="{path}"/>{arrow}'


def _line(a: Point, b: Point) -> str:
    return f'<path d="M{a[0]:.1f},{a[1]:.1f}L{b[0]:.1f},{b[1]:.1f}"/>'


def _text(text: str) -> str:
    """Escaped, and without the characters XML does not have."""
    return escape(_NOT_XML.sub("\ufffd", text))
