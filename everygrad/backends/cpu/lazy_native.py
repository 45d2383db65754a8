"""Loads LLVM, and the modules of compiled kernels, when the first kernel is needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from everygrad.compiler.expr import Program
from everygrad.core.protocols import Compiled

if TYPE_CHECKING:
    from everygrad.compiler.ir import Graph


@cache
def _render() -> Any:
    return import_module(
        "everygrad.backends.cpu.kernels.elementwise"
    )  # llvmlite takes 0.1 s to import


def is_loaded() -> bool:
    """Whether LLVM is loaded, so that a kernel costs no more than its compilation."""
    return "everygrad.backends.cpu.llvm.compiler" in sys.modules


@cache
def supports(program: Program) -> bool:
    """Whether `run` supports the program."""
    return bool(_render().supports(program))


@cache
def kernel(module: str, name: str) -> Any:
    """One of the kernels of a module here, by its op's name."""
    return import_module(f"everygrad.backends.cpu.{module}").KERNELS[name]


@cache
def convolution() -> Any:
    """The module for convolutions."""
    return import_module("everygrad.backends.cpu.conv.convolution")


@cache
def warm_up() -> None:
    """Load LLVM and start it."""
    import_module("everygrad.backends.cpu.graph.replay").engine()


def compiled(graph: Graph, donated: Any) -> Compiled:
    """A graph, planned and compiled."""
    return import_module("everygrad.backends.cpu.graph.replay").compiled(graph, donated)


@cache
def eager_matmul() -> Any:
    """The module for large matrix products."""
    return import_module("everygrad.backends.cpu.gemm.eager_matmul")


@cache
def philox_llvm() -> Any:
    """The module for large arrays of random bits."""
    return import_module("everygrad.backends.cpu.kernels.philox_llvm")


@cache
def sparse_interp() -> Any:
    """The module for weighted sums along an axis."""
    return import_module("everygrad.backends.cpu.kernels.sparse_interp")


def contiguous_copy(array: Any) -> Any:
    """A contiguous copy of an array; None where NumPy copies it as fast."""
    copy_index = import_module("everygrad.backends.cpu.kernels.copy_index")
    run_work = import_module("everygrad.backends.cpu.kernels.run_work")
    source = run_work.layout_of(array)
    if array.dtype.kind == "c" or not copy_index.is_transposed(source.shape, source.strides):
        return None
    return run_work.copied(copy_index.copy, array)


def run(program: Program, arrays: Sequence[Any], out: Any) -> None:
    """Compute the program over `arrays`, broadcast to the shape of `out`."""
    _render().run(program, arrays, out)
