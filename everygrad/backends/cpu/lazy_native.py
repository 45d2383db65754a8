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


# by identity: hashing a program takes longer than asking of it; an entry keeps its program alive
_supported: dict[int, tuple[Program, bool]] = {}
_MOST = 4096  # programs that are remembered


def supports(program: Program) -> bool:
    """Whether `run` supports the program."""
    found = _supported.get(id(program))
    if found is None:
        if len(_supported) >= _MOST:
            _supported.clear()
        found = _supported[id(program)] = (program, bool(_render().supports(program)))
    return found[1]


@cache
def kernel(module: str, name: str) -> Any:
    """One of the kernels of a module here, by its op's name."""
    return import_module(f"everygrad.backends.cpu.{module}").KERNELS[name]


@cache
def fast_calls() -> Any:
    """The module for the fast path of dispatch as native code; None where there is none."""
    if not import_module("everygrad.backends.cpu.llvm.cpython").is_available():
        return None
    return import_module("everygrad.backends.cpu.runtime.fast_calls")


@cache
def dlpack_calls() -> Any:
    """The module for DLPack as native code; None where there is none."""
    if not import_module("everygrad.backends.cpu.llvm.cpython").is_available():
        return None
    return import_module("everygrad.backends.cpu.runtime.dlpack_calls")


def small_rows(name: str, eps: float | None = None) -> Any:
    """The kernel of an op on the rows of small arrays, which gives None where it does not serve."""
    return import_module("everygrad.backends.cpu.fused.row_kernels").small_rows(name, eps)


def norm_gradients(g: Any, x: Any, weight: Any, eps: float) -> Any:
    """The gradients of layer_norm along the last axis, by one kernel; None where there are none."""
    rows = import_module("everygrad.backends.cpu.fused.row_kernels")
    return rows.scaled_standardize_gradients(g, x, weight, eps)


def rms_gradients(g: Any, x: Any, weight: Any, eps: float) -> Any:
    """The gradients of rms_norm along the last axis, by one kernel; None where there are none."""
    rows = import_module("everygrad.backends.cpu.fused.row_kernels")
    return rows.scaled_rms_gradients(g, x, weight, eps)


@cache
def convolution() -> Any:
    """The module for convolutions."""
    return import_module("everygrad.backends.cpu.conv.convolution")


@cache
def pair_convolution() -> Any:
    """The module for convolutions by dot products of pairs."""
    return import_module("everygrad.backends.cpu.conv.pair_convolution")


@cache
def warm_up() -> None:
    """Load LLVM and start it."""
    import_module("everygrad.backends.cpu.graph.replay").engine()


def compiled(graph: Graph, donated: Any, remade: Any = ()) -> Compiled:
    """A graph, planned and compiled."""
    replay = import_module("everygrad.backends.cpu.graph.replay")
    made: Compiled = replay.compiled(graph, donated, remade)
    return made


@cache
def lapack_loop() -> Any:
    """The module for LAPACK's routines on many small matrices."""
    return import_module("everygrad.backends.cpu.solver.lapack_loop")


@cache
def fourier_plan() -> Any:
    """The module for Fourier transforms by native code."""
    return import_module("everygrad.backends.cpu.solver.fourier_plan")


@cache
def native_gradients() -> Any:
    """The module for the gradients of small factorisations."""
    return import_module("everygrad.backends.cpu.solver.native_gradients")


@cache
def native_factors() -> Any:
    """The module for factorisations of small matrices."""
    return import_module("everygrad.backends.cpu.solver.native_factors")


@cache
def native_lstsq() -> Any:
    """The module for least squares of few matrices."""
    return import_module("everygrad.backends.cpu.solver.native_lstsq")


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


def flat(program: Program) -> Any:
    """A function of contiguous arrays of one shape, and of numbers, in a sequence, that gives the
    program's result; of any others it gives None."""
    return _render().kernel(program).flat


def run(program: Program, arrays: Sequence[Any], out: Any) -> None:
    """Compute the program over `arrays`, broadcast to the shape of `out`."""
    _render().run(program, arrays, out)
