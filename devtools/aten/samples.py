"""PyTorch's own samples of its ops, traced to graphs of ATen overloads."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest import TestCase

import torch
from functorch.compile import aot_function, make_boxed_func
from torch._decomp import core_aten_decompositions
from torch.utils import _pytree as pytree

from devtools.aten.checking import Log, NodeByNode

# PyTorch's samples stand in a file that imports its own tests' base class from a package that need
# not be installed; nothing of it is used here.
if find_spec("expecttest") is None:
    sys.modules["expecttest"] = ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = TestCase  # type: ignore[attr-defined]
from torch.testing._internal.common_methods_invocations import op_db

FORWARD = (torch.float64, torch.float32, torch.int64)
BACKWARD = (torch.float64,)
CORE = core_aten_decompositions()
# Ops whose results no graph can hold, or whose samples call Python back.
LEFT_OUT = {
    "allclose": "gives a Python bool",
    "equal": "gives a Python bool",
    "item": "gives a Python number",
    "tolist": "gives a Python list",
    "chalf": "complex32 is no dtype here",
    "as_strided.partial_views": "reads memory beyond the tensor it is given",
}


def samples(name: str, dtype: torch.dtype, count: int, grad: bool = False) -> Iterator[Any]:
    """(label, function, tensors) for some samples of the ops of that name."""
    for op in op_db:
        if op.full_name != name or dtype not in op.supported_dtypes("cpu"):
            continue
        if grad and not op.supports_autograd:
            continue
        found = op.sample_inputs("cpu", dtype, requires_grad=grad)
        for i, sample in enumerate(itertools.islice(found, count)):
            given = (sample.input, sample.args, sample.kwargs)
            leaves, tree = pytree.tree_flatten(given)
            at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            if not at or any(leaves[i].layout is not torch.strided for i in at):
                continue
            tensors = [leaves[i] for i in at]
            yield f"{name} {dtype} {i}", _closed(op, leaves, at, tree), tensors


def _closed(op: Any, leaves: list[Any], at: list[int], tree: Any) -> Callable[..., Any]:
    """The op as a function of the tensors among its arguments."""

    def call(*tensors: torch.Tensor) -> Any:
        given = list(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            given[i] = tensor
        x, args, kwargs = pytree.tree_unflatten(given, tree)
        found = op(x, *args, **kwargs)
        leaves_out = pytree.tree_leaves(found)
        return [f for f in leaves_out if isinstance(f, torch.Tensor)]

    return call


def check_graphs(
    log: Log, function: Callable[..., Any], tensors: Sequence[torch.Tensor], core: bool = True
) -> None:
    """Trace a function, and its derivative if tensors require one, as aot_autograd does, and
    compare each node of both graphs."""

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(lambda *given: NodeByNode(graph, log).run(*given))

    leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    compiled = aot_function(function, compiler, compiler, decompositions=CORE if core else {})
    outs = [o for o in compiled(*leaves) if o.requires_grad]
    wanted = [t for t in leaves if t.requires_grad]
    if outs and wanted:
        generator = torch.Generator().manual_seed(0)
        seeds = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outs]
        torch.autograd.grad(outs, wanted, seeds, allow_unused=True)


def names() -> list[str]:
    """All ops PyTorch has samples of."""
    return sorted({op.full_name for op in op_db} - LEFT_OUT.keys())


def check(log: Log, name: str, count: int, backward: bool, core: bool, dtypes: Any = None) -> None:
    """Some samples of one op, for each dtype; what PyTorch itself cannot trace is counted."""
    for dtype in dtypes or (BACKWARD if backward else FORWARD):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            try:
                found = list(samples(name, dtype, count, backward))
            except Exception as error:  # an op's own samples may need what this build lacks
                log.untraced[f"{name}: {type(error).__name__}"] += 1
                continue
            for label, function, tensors in found:
                log.sample = label + (" backward" if backward else "") + ("" if core else " whole")
                try:
                    check_graphs(log, function, tensors, core)
                except Exception as error:  # PyTorch's own: ours are noted where they happen
                    log.untraced[f"{name}: {type(error).__name__}"] += 1
