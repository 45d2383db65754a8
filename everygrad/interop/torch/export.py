"""torch.export, made to give ops that this library has, kept whole where they are one op here.

Decomposing drops where gradients stop: `detach` and `no_grad` are marked by an op of our own first.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from everygrad.core.tensor import Tensor
from everygrad.errors import EverygradError, TraceError
from everygrad.interop.torch.aten.registry import aten
from everygrad.interop.torch.aten.table import HANDLERS
from everygrad.interop.torch.graph import overload
from everygrad.interop.torch.versions import torch_name

_LIBRARY: Any = torch.library.Library("everygrad", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("stop_gradient(Tensor x) -> Tensor")
torch.library.impl(_LIBRARY, "stop_gradient", "CompositeExplicitAutograd")(lambda x: x.clone())
torch.library.register_fake("everygrad::stop_gradient", torch.empty_like, lib=_LIBRARY)
_STOP = torch.ops.everygrad.stop_gradient.default


@aten("everygrad::stop_gradient.default")
def stop_gradient(x: Tensor) -> Tensor:
    return x.detach()


@contextmanager
def unwatched() -> Iterator[None]:
    """PyTorch's own functions run here without `eg.jit` following them frame by frame: no result
    depends on what they read."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def in_modes(whole: torch.nn.Module, modes: Mapping[str, bool]) -> Iterator[None]:
    """PyTorch's modules in the modes that the parts here are in."""
    before = [(module, module.training) for module in whole.modules()]
    try:
        for name, module in whole.named_modules():
            module.training = modes.get(name, module.training)
        yield
    finally:
        for module, flag in before:
            module.training = flag


@contextmanager
def _noted_functions(found: set[str]) -> Iterator[None]:
    """Note which subclasses of torch.autograd.Function run: a graph has their forward alone."""
    function: Any = torch.autograd.Function
    held = vars(function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        found.add(cls.__qualname__)
        return held.__func__(cls, *args, **kwargs)

    function.apply = classmethod(apply)
    try:
        yield
    finally:
        function.apply = held


def export(whole: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """torch.export, with ops kept whole that are one op here too."""
    functions: set[str] = set()
    fast = torch_name("torch.backends.mha.get_fastpath_enabled")()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # kernels of PyTorch's own, which would hide a whole layer from the graph
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        try:
            with _noted_functions(functions):
                exported = torch_name("torch.export.export")(whole, tuple(args), dict(kwargs))
            program = decomposed(exported)
        except EverygradError:
            raise
        except Exception as error:
            first = str(error).strip().splitlines()[0][:300] if str(error).strip() else ""
            cure = "; pass use_cache=False to models of transformers" if "Cache'>" in first else ""
            raise TraceError(
                f"from_torch: torch.export cannot make one graph of {type(whole).__name__}: "
                f"{type(error).__name__}: {first}{cure}"
            ) from error
    if functions:
        warnings.warn(
            f"from_torch: gradients of {', '.join(sorted(functions))} are those of its forward: a "
            f"graph does not hold the backward of a torch.autograd.Function",
            stacklevel=4,
        )
    return program


@contextmanager
def _marked(graph_module: Any) -> Iterator[None]:
    """The graph with its detached values marked; as it was when the block ends."""
    changed: list[tuple[Any, Any]] = []
    added: list[Any] = []
    try:
        for node in list(graph_module.graph.nodes):
            if node.op != "call_function":
                continue
            if node.target is torch.ops.aten.detach.default:
                changed.append((node, node.target))
                node.target = _STOP
            elif getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled":
                _refuse_nested(graph_module, node)
                added += _stops_behind(node) if not node.args[0] else []
        yield
    finally:
        for node, target in changed:
            node.target = target
        for node in added:
            node.replace_all_uses_with(node.args[0])
            node.graph.erase_node(node)


def _stops_behind(region: Any) -> list[Any]:
    """A mark behind each result of a no_grad region: nothing that goes out has a gradient."""
    added = []
    for result in list(region.users):
        with region.graph.inserting_after(result):
            stop = region.graph.call_function(_STOP, (result,))
        stop.meta = dict(result.meta)
        result.replace_all_uses_with(stop, delete_user_cb=lambda user, own=stop: user is not own)
        added.append(stop)
    return added


def _refuse_nested(graph_module: Any, node: Any) -> None:
    inner = getattr(graph_module, node.args[1].target)
    for other in inner.graph.nodes:
        if getattr(other.target, "__name__", "") == "wrap_with_set_grad_enabled" and other.args[0]:
            raise TraceError("from_torch: enable_grad() inside no_grad() is not taken over")


def decomposed(exported: Any) -> Any:
    """The program in functional ops: those that have a handler here stay as they are."""
    table = torch_name("torch.export.default_decompositions")()
    for op in list(table):
        handler = HANDLERS.get(overload(op))
        if handler is not None and not handler.refused:
            table.pop(op)
    with warnings.catch_warnings(), _marked(exported.graph_module):
        warnings.simplefilter("ignore")
        return exported.run_decompositions(table)
