"""The recorded graph as data, text, DOT and SVG."""

import re
import time
import xml.etree.ElementTree as ET
from collections import Counter

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, GradientError
from everygrad.tools import graph_dot, graph_svg, graph_text, read_graph

SVG = "{http://www.w3.org/2000/svg}"


def leaf(*shape: int) -> eg.Tensor:
    return eg.ones(shape, requires_grad=True)


def mlp() -> tuple[eg.Tensor, dict[str, eg.Tensor]]:
    x, w, b, v = eg.ones((4, 3)), leaf(3, 2), leaf(2), leaf(2, 1)
    return (eg.relu(x @ w + b) @ v).mean(), {"x": x, "w": w, "b": b, "v": v}


def attention() -> tuple[eg.Tensor, dict[str, eg.Tensor]]:
    x = leaf(2, 5, 8)
    named = {f"w{n}": leaf(8, 8) for n in "qkvo"}
    q, k, v = (x @ named[f"w{n}"] for n in "qkv")
    out = eg.softmax(q @ k.matrix_transpose() * 0.35) @ v @ named["wo"]
    return eg.layer_norm(x + out, (8,)), {"x": x, **named}


def diamond() -> tuple[eg.Tensor, dict[str, eg.Tensor]]:
    a = leaf(3)
    return eg.exp(a) * eg.sin(a) + a * a, {"a": a}


def test_text() -> None:
    loss, names = mlp()
    assert graph_text(loss, names).splitlines() == [
        "%0: f32[3, 2] = leaf w",
        "%1: [4, 2] = matmul x %0",
        "%2: f32[2] = leaf b",
        "%3: [4, 2] = add %1 %2",
        "%4: f32[4, 2] = relu %3",
        "%5: f32[2, 1] = leaf v",
        "%6: [4, 1] = matmul %4 %5",
        "%7: f32[] = mean %6 axes=(0, 1)",
        "return %7",
    ]


def test_text_of_what_is_not_a_plain_op() -> None:
    x = leaf(2)
    assert graph_text(x) == "%0: f32[2] = leaf\nreturn %0"
    assert graph_text([x, x * 0.5]).endswith("%1: f32[2] = multiply %0 0.5\nreturn %0, %1")
    y = eg.checkpoint(eg.exp, x)
    assert "exp %0  # computed again in backward" in graph_text(y)
    with eg.detect_anomaly():
        z = eg.exp(x)
    assert re.search(r"exp %0  # .*test_graph_pictures.py:\d+", graph_text(z))
    total = eg.exp(x).sum()
    total.backward()
    assert "= exp %0  # used up" in graph_text(total)

    class Twice(eg.Function):
        @staticmethod
        def forward(x, times):
            return x * times

    assert "= Twice %0" in graph_text(Twice.apply(x, times=2))


def test_constants_and_casts() -> None:
    x = eg.ones((2, 3), dtype=eg.float64, requires_grad=True)
    text = graph_text((x * np.arange(3.0)).astype(eg.bfloat16).reshape(6))
    assert "multiply %0 f64[3]" in text
    assert "%2: bf16[2, 3] = astype %1 dtype=bfloat16 source=float64" in text
    assert "%3: bf16[6] = reshape %2" in text


def test_names() -> None:
    w = leaf(2)
    hidden = w * 2
    assert "= multiply %0 2  # hidden" in graph_text(hidden.sum(), {"hidden": hidden})

    class Model:
        def named_parameters(self):
            yield "layer.weight", w

    assert "leaf layer.weight" in graph_text(hidden, Model())
    assert "leaf layer.weight" in graph_text(hidden, Model().named_parameters())
    with pytest.raises(ArgumentError, match=r"names must be .* got an entry"):
        graph_text(hidden, {"w": 3})


def test_a_graph_of_gradients() -> None:
    x = leaf(2)
    (g,) = eg.autograd.grad((x**3).sum(), x, create_graph=True)
    assert len(read_graph(g).nodes) > 3
    ET.fromstring(graph_svg(g))


def test_data() -> None:
    graph = read_graph(diamond()[0])
    assert [n.op for n in graph.nodes] == ["leaf", "exp", "sin", "multiply", "multiply", "add"]
    assert Counter(graph.edges)[0, 4] == 2
    assert graph.outputs == (5,)
    for node in graph.nodes:
        assert all(i < node.number for i in node.inputs if isinstance(i, int))


def test_a_graph_keeps_nothing_alive() -> None:
    x = leaf(2)
    y = eg.exp(x)
    node = x._node
    graph = read_graph(y)
    del x, y
    assert node.tensor() is None
    assert "exp" in str(graph)


def test_nothing_recorded_is_refused() -> None:
    with pytest.raises(GradientError, match=r"nothing was recorded .*\(2,\); set requires_grad"):
        graph_text(eg.ones((2,)))
    with pytest.raises(ArgumentError, match="takes Tensors, got int"):
        graph_text([3])
    with pytest.raises(ArgumentError, match="at least one"):
        graph_text([])


def test_dot() -> None:
    loss, names = mlp()
    text = graph_dot(loss, names)
    assert text.startswith("digraph everygrad {")
    assert text.endswith("}")
    assert text.count(" -> ") == 7
    assert 'n0 [label="w\\nf32[3, 2]"' in text
    x = leaf(1)
    assert 'label="a\\"b\\\\c d\\nf32[1]"' in graph_dot(x, {'a"b\\c\nd': x})


@pytest.mark.parametrize("make", [mlp, diamond, attention])
def test_svg(make) -> None:
    result, names = make()
    graph = read_graph(result, names)
    root = ET.fromstring(graph_svg(result, names))
    groups = root.findall(f"{SVG}g")
    kinds = Counter(g.find(f"{SVG}rect").get("class") for g in groups)
    leaves = sum(n.is_leaf for n in graph.nodes)
    assert kinds == {"leaf": leaves, "result": 1, "op": len(graph.nodes) - leaves - 1}
    heads = [p for p in root.findall(f"{SVG}path") if p.get("class") == "head"]
    assert len(heads) == len(list(graph.edges))
    assert {g.find(f"{SVG}title").text for g in groups} == set(map(str, graph.nodes))


def boxes_of(root: ET.Element) -> list[tuple[float, float, float, float]]:
    found = []
    for group in root.findall(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
        found.append((x, y, x + w, y + h))
        for text in group.findall(f"{SVG}text"):
            size = 13 if text.get("class") else 11
            assert len(text.text) * size * 0.61 <= w - 10, f"{text.text} does not fit"
            assert y + size <= float(text.get("y")) < y + h
    return found


@pytest.mark.parametrize("make", [mlp, diamond, attention])
def test_boxes_fit_and_do_not_overlap(make) -> None:
    root = ET.fromstring(graph_svg(*make()))
    _, _, width, height = map(float, root.get("viewBox").split())
    boxes = boxes_of(root)
    for n, (left, top, right, bottom) in enumerate(boxes):
        assert 0 < left < right < width
        assert 0 < top < bottom < height
        for other in boxes[:n]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, "two boxes overlap"


def test_results_stand_below_what_they_are_made_of() -> None:
    result, names = attention()
    root = ET.fromstring(graph_svg(result, names))
    tops = [top for _, top, _, _ in boxes_of(root)]
    for a, b in read_graph(result, names).edges:
        assert tops[a] < tops[b]


def test_a_residual_connection_runs_beside_the_boxes() -> None:
    result, names = attention()
    root = ET.fromstring(graph_svg(result, names))
    boxes = boxes_of(root)
    for path in root.findall(f"{SVG}path"):
        lines = re.fullmatch(r"M([\d.-]+),([\d.-]+)L([\d.-]+),([\d.-]+)", path.get("d"))
        if lines:  # where a long edge passes a layer
            x, y1, _, y2 = map(float, lines.groups())
            for left, top, right, bottom in boxes:
                assert not (left < x < right and y1 < bottom and y2 > top)


def test_any_name_is_well_formed() -> None:
    x = leaf(2)
    name = "<b>&\"'\x00\x1b\ud800 é " + "long" * 30
    root = ET.fromstring(graph_svg(x * x, {name: x}))
    shown = root.find(f"{SVG}g/{SVG}text").text
    assert shown.startswith("<b>&\"'\ufffd\ufffd\ufffd é long")
    assert shown.endswith("…")
    boxes_of(root)


def test_long_chains_print_and_are_not_drawn() -> None:
    y = leaf(1)
    for _ in range(100_000):
        y = y * 1.0
    start = time.process_time()
    assert graph_text(y).count("\n") == 100_001
    assert time.process_time() - start < 20
    for picture in (graph_svg, graph_dot):
        with pytest.raises(ArgumentError, match=r"100,001 nodes are too many .* graph_text prints"):
            picture(y)
    del y


def test_the_limit_of_pictures() -> None:
    x = leaf(1)
    y = x
    for _ in range(1999):
        y = y * x  # the last use of x is 1,999 layers away
    start = time.process_time()
    root = ET.fromstring(graph_svg(y))
    assert time.process_time() - start < 20
    assert len(root.findall(f"{SVG}g")) == 2000
    with pytest.raises(ArgumentError, match="limit=10"):
        graph_svg(y, limit=10)
