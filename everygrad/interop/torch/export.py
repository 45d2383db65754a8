"""torch.export, made to give ops that this library has, kept whole where they are one op here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from everygrad.errors import EverygradError, TraceError
from everygrad.interop.torch.aten.table import HANDLERS
from everygrad.interop.torch.graph import overload
from everygrad.interop.torch.stopped import marked
from everygrad.interop.torch.versions import torch_name


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


def decomposed(exported: Any) -> Any:
    """The program in functional ops: those that have a handler here stay as they are."""
    table = torch_name("torch.export.default_decompositions")()
    for op in list(table):
        handler = HANDLERS.get(overload(op))
        if handler is not None and not handler.refused:
            table.pop(op)
    with warnings.catch_warnings(), marked(exported):
        warnings.simplefilter("ignore")
        return exported.run_decompositions(table)
