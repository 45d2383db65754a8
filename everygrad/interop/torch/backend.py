"""`torch.compile(model, backend="everygrad")`: graphs of forward and backward on our compiler.

Experimental. aot_autograd makes graphs of ATen ops without mutations, of which each is compiled as
a whole. Nodes without a handler stay with PyTorch, and what lies between them is compiled.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from everygrad.errors import ArgumentError, MissingOpsError
from everygrad.interop.torch.aten.registry import Result
from everygrad.interop.torch.aten.table import HANDLERS
from everygrad.interop.torch.compiled import CompiledGraph
from everygrad.interop.torch.effects import settle_checks
from everygrad.interop.torch.graph import _PLAIN, DTYPES, overload
from everygrad.interop.torch.recurrent import keep_whole
from everygrad.interop.torch.repeated import without_repeated
from everygrad.interop.torch.sizes import (
    decided_by_values,
    has_symbols,
    is_symbolic,
    sizes_of,
    with_sizes,
)
from everygrad.interop.torch.versions import torch_name

pytree: Any = torch_name("torch.utils._pytree")
_aot_autograd = torch_name("torch._dynamo.backends.common.aot_autograd")
_core_decompositions = torch_name("torch._decomp.core_aten_decompositions")
_partition = torch_name("functorch.compile.min_cut_rematerialization_partition")
_partition_config = torch_name("functorch.compile.config")
_onednn_enabled = torch_name("torch._C._get_mkldnn_enabled")
_enable_onednn = torch_name("torch._C._set_mkldnn_enabled")

log = logging.getLogger("everygrad.torch")
MOST_SIZES = 64  # sets of sizes that one graph is kept compiled for
_OPTIONS = {"fullgraph": bool}
_named: set[str] = set()  # ops that a warning named


def everygrad(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = None,
) -> Callable[..., Any]:
    """The backend that `torch.compile` finds by its name.

    options  {"fullgraph": True}: ops that are not known here are an error, not left to PyTorch
    """
    chosen = _checked(options, mode)

    def compiler(graph: GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Any]:
        return compiled(graph, chosen["fullgraph"])

    keep_whole(module)
    with without_onednn():
        return _aot_autograd(
            fw_compiler=compiler,
            bw_compiler=compiler,
            inference_compiler=compiler,
            decompositions=decompositions(),
            partition_fn=partition,
        )(module, inputs)


@contextmanager
def without_onednn() -> Iterator[None]:
    """A block in which PyTorch makes no ops of oneDNN: with them an LSTM is one node, whose weights
    are in a layout that nobody else reads."""
    before = _onednn_enabled()
    _enable_onednn(False)
    try:
        yield
    finally:
        _enable_onednn(before)


def _checked(options: Mapping[str, Any] | None, mode: str | None) -> dict[str, Any]:
    if mode not in (None, "default"):
        raise ArgumentError(f"torch.compile: backend everygrad has no modes, got {mode!r}")
    given = dict(options or {})
    for name, value in given.items():
        if name not in _OPTIONS:
            raise ArgumentError(
                f"torch.compile: backend everygrad has no option {name!r}; it has "
                f"{', '.join(_OPTIONS)}"
            )
        if not isinstance(value, _OPTIONS[name]):
            raise ArgumentError(
                f"torch.compile: the option {name} must be a {_OPTIONS[name].__name__}, "
                f"got {value!r}"
            )
    return {"fullgraph": False, **given}


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """How ops are taken apart: the core ATen table, without what is known here whole. PyTorch looks
    at every op that is registered to make its table: once in a process is enough."""
    known = {op: r for op, r in _core_decompositions().items() if overload(op) not in HANDLERS}
    return {**known, **_OWN}


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Taken apart, as is its backward, so that elements are computed again there from the scores
    and two numbers a row: as one op, the result of a loss over many classes would be saved, and in
    float32, which is twice as large as the scores under autocast."""
    dtype = torch.float32 if half_to_float else x.dtype
    x = _wide(x)
    if not x.numel():
        return x.to(dtype)
    below = x - x.amax(dim, keepdim=True)
    return (below - below.exp().sum(dim, keepdim=True).log()).to(dtype)


def _log_softmax_backward(
    g: torch.Tensor, out: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    g, out = _wide(g), _wide(out)
    return (g - out.exp() * g.sum(dim, keepdim=True)).to(dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# What PyTorch's own rules leave over
_OWN: dict[Any, Callable[..., Any]] = {
    torch.ops.prims.fma.default: lambda x, y, z: x * y + z,
    torch.ops.aten._log_softmax.default: _log_softmax,
    torch.ops.aten._log_softmax_backward_data.default: _log_softmax_backward,
}


def partition(joint: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """A joint graph of forward and backward as two, by PyTorch's own rule. What backward's nodes
    are given but do not read here is not saved, nor computed: the logarithms of attention's sums
    would be a product of all queries and keys, and places of maxima a second pooling."""
    device = device_of(joint)
    support = Support(device)
    without_detached(joint)
    for node in list(joint.graph.nodes):
        handler = HANDLERS.get(overload(node.target)) if node.op == "call_function" else None
        if handler is not None and handler.unread and support.why_not(node) is None:
            unread = handler.unread
            if callable(unread):
                unread = unread([as_result(a) for a in node.args], device)
            leave_unread(node, unread)
    if is_symbolic(joint):  # PyTorch's pass knows what symbols are equal
        joint.recompile()
        return _partition(joint, inputs, **options)
    without_repeated(joint)
    joint.recompile()
    with _partition_config.patch(cse=False):
        return _partition(joint, inputs, **options)


def as_result(argument: Any) -> Any:
    """A tensor among a node's arguments as what is known of it; others as they are."""
    value = argument.meta.get("val") if isinstance(argument, Node) else argument
    if isinstance(value, torch.Tensor):
        return Result(tuple(value.shape), DTYPES[value.dtype])
    return value


def without_detached(joint: GraphModule) -> None:
    """A joint graph holds gradients as values, so that detaching means nothing inside. PyTorch's
    rule takes it for work that is not done twice, and would save its result."""
    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        source = node.args[0]
        node.replace_all_uses_with(source, lambda user: user.op != "output")


def leave_unread(node: Node, places: Sequence[int]) -> None:
    """Zeros of the same kind for these arguments of a node. Symbolic sizes stay as they are."""
    for i in places:
        given = node.args[i] if i < len(node.args) else None
        value = given.meta.get("val") if isinstance(given, Node) else None
        if not isinstance(value, torch.Tensor) or has_symbols(value):
            continue
        with node.graph.inserting_before(node):
            made = node.graph.call_function(
                torch.ops.aten.full.default,
                (list(value.shape), 0),
                {"dtype": value.dtype, "device": value.device},
            )
        made.meta = {**node.meta, "val": value}
        node.update_arg(i, made)


# --- what runs here, and what does not -----------------------------------------------------------


def compiled(module: GraphModule, whole: bool = False) -> Callable[[list[Any]], Any]:
    """A graph as a function of a list of PyTorch's tensors; `whole`: with no node left over."""
    settle_checks(module)
    if is_symbolic(module):
        left = decided_by_values(module)
        if left:
            refuse_or_warn(left, whole)
            return by_pytorch(module)
        return BySize(module, whole)
    return compiled_once(module, whole)


def compiled_once(module: GraphModule, whole: bool) -> Callable[[list[Any]], Any]:
    """The same for a graph with known sizes."""
    device = device_of(module)
    support = Support(device)
    left = support.lacking(module)
    if not left:
        return CompiledGraph(module, device)
    refuse_or_warn(left, whole)
    return Partitioned(module, device, support)


def device_of(module: GraphModule) -> str:
    """The device of a graph: its tensors', where they have one; else the CPU's ("cpu")."""
    values = pytree.tree_leaves([n.meta.get("val") for n in module.graph.nodes])
    found = {v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"}
    if not found:
        return "cpu"
    first = min(found, key=str)
    return f"cuda:{first.index or 0}"


class Support(OperatorSupportBase):
    """Which nodes can run here."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def is_node_supported(self, submodules: Mapping[str, Any], node: Node) -> bool:
        if node.op == "get_attr":
            return False
        return node.op == "call_function" and self.why_not(node) is None

    def why_not(self, node: Node) -> str | None:
        """What stands against a node, by name: its op, or a value that it gives or reads."""
        name = overload(node.target)
        if node.target not in _PLAIN:
            handler = HANDLERS.get(name)
            if handler is None:
                return name
            if handler.refused:
                return f"{name} ({handler.refused})"
        for n in (node, *node.all_input_nodes):
            for value in pytree.tree_leaves(n.meta.get("val")):
                if isinstance(value, torch.Tensor) and not self.takes(value):
                    return f"{name} on {value.layout} {value.dtype} {value.device.type}"
        return None

    def takes(self, value: torch.Tensor) -> bool:
        return (
            value.layout is torch.strided
            and value.dtype in DTYPES
            and (value.device == self.device or (not value.dim() and value.device.type == "cpu"))
        )

    def lacking(self, module: GraphModule) -> dict[str, list[str]]:
        """What stands against nodes of a graph, with the nodes' names."""
        found: dict[str, list[str]] = {}
        for node in module.graph.nodes:
            if node.op == "call_function":
                why = self.why_not(node)
                if why is not None:
                    found.setdefault(why, []).append(node.name)
        return found


def by_pytorch(module: GraphModule) -> Callable[[list[Any]], Any]:
    """A graph as PyTorch runs it, for boxed calls."""

    def call(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return module(*given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def refuse_or_warn(left: dict[str, list[str]], whole: bool) -> None:
    """Say once in a process which ops stay with PyTorch; refuse them if a graph must be whole."""
    if whole:
        raise MissingOpsError('torch.compile(backend="everygrad")', left)
    new = sorted(set(left) - _named)
    if new:
        _named.update(new)
        warnings.warn(
            f'torch.compile(backend="everygrad"): PyTorch itself runs {", ".join(new)}, which are '
            f'not known here; options={{"fullgraph": True}} makes this an error',
            stacklevel=2,
        )


class Partitioned:
    """A graph with nodes that PyTorch runs, and compiled parts between them."""

    def __init__(self, module: GraphModule, device: str, support: Support) -> None:
        self._boxed_call = True
        parts = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
        self.module = parts.partition_and_fuse()
        for name, part in list(self.module.named_children()):
            if isinstance(part, GraphModule) and name.startswith("fused_"):
                setattr(self.module, name, _Part(CompiledGraph(part, device)))

    def __call__(self, args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return self.module(*given)


def as_said(value: Any, node: Node) -> Any:
    """A value that PyTorch computed, with the strides that the graph says it has: ops of others may
    give other ones, and compiled code reads memory by what was said."""
    if not isinstance(value, torch.Tensor):
        return value
    said = node.meta["val"].stride()
    if value.stride() == said:
        return value
    return torch.empty_strided(value.shape, said, dtype=value.dtype, device=value.device).copy_(
        value
    )


class _Part(torch.nn.Module):
    """A compiled part, as a module of the graph around it."""

    def __init__(self, function: CompiledGraph) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        out = self.function(list(map(as_said, args, self.function.placeholders)))
        return out[0] if self.function.single else out


# --- sizes ---------------------------------------------------------------------------------------


class BySize:
    """A graph with symbolic sizes: compiled for each set of sizes it is called with."""

    def __init__(self, module: GraphModule, whole: bool) -> None:
        self._boxed_call = True
        self.module, self.whole = module, whole
        self.made: OrderedDict[Any, Callable[[list[Any]], Any]] = OrderedDict()
        self.count = 0
        self.lock = threading.Lock()

    def __call__(self, args: list[Any]) -> Any:
        sizes = sizes_of(args)
        found = self.made.get(sizes)
        if found is None:
            with self.lock:
                found = self.made.get(sizes) or self.compile(sizes, args)
        return found(args)

    def compile(self, sizes: Any, args: list[Any]) -> Callable[[list[Any]], Any]:
        found = self.made[sizes] = compiled_once(with_sizes(self.module, args), self.whole)
        self.count += 1
        numbers = [a for a in args if isinstance(a, int)]
        log.info("torch.compile: a graph is compiled for sizes %s, its %d.", numbers, self.count)
        if len(self.made) > MOST_SIZES:
            self.made.popitem(last=False)
            if self.count == MOST_SIZES + 1:
                log.warning(
                    "torch.compile: a graph was compiled for %d sets of sizes; older code is "
                    "dropped, here and from now on: pad inputs to few sizes",
                    self.count,
                )
        return found
