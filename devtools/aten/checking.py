"""Runs PyTorch's graphs node by node, each node by PyTorch and by us on the same values."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

import everygrad as eg
from everygrad import dtypes
from everygrad.interop.torch.aten.table import HANDLERS
from everygrad.interop.torch.graph import DTYPES, Program, missing, overload

# What an error may be, in units of the largest element: of one op, which both round in their way.
TOLERANCES = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 3e-5,
    torch.complex64: 3e-5,
    torch.bfloat16: 1.6e-2,
    torch.float16: 2e-3,
}
# Where PyTorch is further from the truth than that: its kernel multiplies by 1/6 in float32,
# and its Bessel functions agree with SciPy's to 3e-7 (ours to 1e-15).
LOOSER = {
    "aten::hardsigmoid_backward.default": 1e-7,
    **{f"aten::special_bessel_{kind}.default": 1e-6 for kind in ("j0", "j1", "y0", "y1")},
}
# Memory that nobody has written yet has no values to compare.
UNWRITTEN = ("empty", "new_empty", "prims::empty")
DRAWN = ("aten::rand.default", "aten::randn.default", "aten::randperm.default")
# Room that a library keeps for itself: results beyond these many mean nothing to anybody else.
MEANT = {
    "aten::mkldnn_rnn_layer.default": 3,
    "aten::_ctc_loss.default": 1,
    "aten::_ctc_loss.Tensor": 1,
}
# Of values that are the same, any may be the one that is named: indices are not compared then.
TIED = ("kthvalue", "median", "nanmedian", "mode", "sort", "topk")
# Both are right, but a basis may be any other of the same space.
BASES = {"_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_qr"}


def ours(value: Any) -> Any:
    """PyTorch's tensor as one of ours, its values copied."""
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return eg.asarray(plain.float().numpy().copy()).astype(dtypes.bfloat16)
    return eg.asarray(plain.numpy().copy(order="C"))


def theirs(value: eg.Tensor) -> torch.Tensor:
    """Our tensor as one of PyTorch's."""
    if value.dtype is dtypes.bfloat16:
        return torch.from_numpy(value.astype("float32").numpy().copy()).to(torch.bfloat16)
    return torch.from_numpy(np.array(value.numpy()))


def program_of(node: Node, values: dict[Node, Any]) -> Program:
    """The node alone, as a program whose inputs are what the node reads."""
    graph, made = Graph(), {}
    for read in node.all_input_nodes:
        made[read] = graph.placeholder(read.name)
        made[read].meta["val"] = read.meta.get("val", values[read])
    copied = graph.node_copy(node, lambda n: made[n])
    copied.meta = dict(node.meta)
    graph.output(copied)
    return Program(SimpleNamespace(graph=graph))  # type: ignore[arg-type]


class RefusedByPyTorchError(Exception):
    """PyTorch itself does not take these arguments."""


class Log:
    """What was checked, what is missing, and what was wrong."""

    def __init__(self) -> None:
        self.checked: Counter[str] = Counter()
        self.drawn: Counter[str] = Counter()
        self.missing: defaultdict[str, set[str]] = defaultdict(set)
        self.wrong: list[str] = []
        self.untraced: Counter[str] = Counter()
        self.sample = ""

    def add(self, other: Log) -> None:
        self.checked.update(other.checked)
        self.drawn.update(other.drawn)
        self.untraced.update(other.untraced)
        self.wrong += other.wrong
        for name, samples in other.missing.items():
            self.missing[name] |= samples


class NodeByNode(Interpreter):
    """PyTorch's interpreter, which has us compute each node too, and compares."""

    def __init__(self, module: GraphModule, log: Log) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.log = log

    def run_node(self, n: Node) -> Any:
        name = overload(n.target) if n.op == "call_function" else ""
        if "::" not in name or name.startswith("torch::"):  # sizes, and tokens that order effects
            return super().run_node(n)
        handler = HANDLERS.get(name)
        if handler is None or handler.refused:
            self.log.missing[name].add(self.log.sample)
            return super().run_node(n)
        if any(_open_size(read.meta.get("val")) for read in (*n.all_input_nodes, n)):
            self.log.missing[f"behind a size that depends on values: {name}"].add(self.log.sample)
            return super().run_node(n)
        # before PyTorch runs the node, which may write into what it reads
        given = {read: self.env[read] for read in n.all_input_nodes}
        values = [pytree.tree_map(ours, v) for v in given.values()]
        expected = super().run_node(n)
        self.check(n, name, given, values, expected)
        return expected

    def check(
        self, n: Node, name: str, given: dict[Node, Any], values: list[Any], expected: Any
    ) -> None:
        if "val" not in n.meta:
            n.meta["val"] = expected
        try:
            found = program_of(n, given)(values, {})
        except Exception as error:
            self.log.wrong.append(f"{name} ({self.log.sample}): {type(error).__name__}: {error}")
            return
        drawn = _drawn(n.target)
        short = name.partition("::")[2].rpartition(".")[0]
        valued = not drawn and not short.startswith(UNWRITTEN) and short not in BASES
        if name in MEANT:
            expected, found = expected[: MEANT[name]], found[: MEANT[name]]
        if short in TIED and not values[0].dtype.is_differentiable:
            expected, found = expected[0], found[0]
        fault = difference(expected, found, valued, LOOSER.get(name, 0.0))
        (self.log.drawn if drawn else self.log.checked)[name] += 1
        if fault:
            shown = ", ".join(str(n.meta.get("val")) for n in given)
            self.log.wrong.append(f"{name} ({self.log.sample}): {fault}; args {n.args}: {shown}")


def check_call(
    log: Log, target: Any, given: tuple[Any, ...], jit: bool = False, device: str = "cpu"
) -> None:
    """One call of an overload: by PyTorch, by us on a device, and by us inside `eg.jit`. A dict
    that comes last holds arguments by name."""
    args, kwargs = (given[:-1], given[-1]) if given and isinstance(given[-1], dict) else (given, {})
    graph, values = Graph(), []

    def placeholder(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(values)}")
        node.meta["val"] = value.clone() if value.is_contiguous() else value
        values.append(value)
        return node

    made = pytree.tree_map(placeholder, (args, kwargs))
    node = graph.call_function(target, *made)
    copies = [ours(v).to(device) for v in values]
    try:
        expected = target(*args, **kwargs)
    except (RuntimeError, TypeError) as error:
        raise RefusedByPyTorchError(str(error)) from error
    node.meta["val"] = expected
    graph.output(node)
    program = Program(SimpleNamespace(graph=graph))  # type: ignore[arg-type]
    name = overload(target)
    valued = name not in DRAWN and not name.partition("::")[2].startswith(UNWRITTEN)
    valued = valued and not (target is torch.ops.aten.native_dropout.default and args[2])
    run = [lambda *v: program(v, {})]
    if jit and not target._schema.is_mutable:
        run.append(eg.jit(run[0]))
    for function in run:
        found = pytree.tree_map(_on_cpu, function(*copies))
        if name in MEANT:
            expected, found = expected[: MEANT[name]], found[: MEANT[name]]
        fault = difference(expected, found, valued, LOOSER.get(name, 0.0))
        if target._schema.is_mutable:
            after = map(_on_cpu, copies)
            written = (difference(b, a, valued) for b, a in zip(values, after, strict=True))
            fault = fault or next(filter(None, written), "")
        if fault:
            log.wrong.append(f"{name} {given}: {fault}")
    (log.checked if valued else log.drawn)[name] += 1


def _on_cpu(value: Any) -> Any:
    return value.to("cpu") if isinstance(value, eg.Tensor) else value


def _drawn(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _open_size(value: Any) -> bool:
    """Whether a size is known only when the graph runs."""
    tensors = [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    return any(isinstance(n, torch.SymInt) for t in tensors for n in t.shape)


def difference(expected: Any, found: Any, valued: bool = True, looser: float = 0.0) -> str:
    """What is wrong with what we found, or nothing. `looser`: an error that is allowed anyway."""
    if isinstance(expected, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            return f"{len(expected)} results expected"
        faults = (difference(e, f, valued, looser) for e, f in zip(expected, found, strict=True))
        return next((f"result {i}: {fault}" for i, fault in enumerate(faults) if fault), "")
    if not isinstance(expected, torch.Tensor):
        same = expected is None or found == expected or expected != expected
        return "" if same else f"{found!r} instead of {expected!r}"
    if not isinstance(found, eg.Tensor):
        return f"{found!r} instead of a tensor {tuple(expected.shape)}"
    if found.shape != tuple(expected.shape) or found.dtype is not DTYPES[expected.dtype]:
        return f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
    plain = expected.detach().resolve_conj().resolve_neg()
    return far(plain, theirs(found), looser) if valued else ""


def far(expected: torch.Tensor, found: torch.Tensor, looser: float = 0.0) -> str:
    """How far the elements are apart, if that is too far."""
    tolerance = TOLERANCES.get(expected.dtype)
    if tolerance is None:
        wrong = int((expected != found).sum())
        return f"{wrong} of {expected.numel()} elements differ" if wrong else ""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = expected.to(wide), found.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return ""
    finite = a.isfinite() & b.isfinite()
    if not bool((same | finite).all()):
        return f"not finite in other places: {found.flatten()[:8]} for {expected.flatten()[:8]}"
    scale = max(1.0, float(a[finite].abs().max()))
    error = float((a - b)[finite].abs().max()) / scale
    return f"an error of {error:.2g}" if error > max(tolerance, looser) else ""


__all__ = ["Log", "NodeByNode", "difference", "far", "missing", "ours", "program_of", "theirs"]
