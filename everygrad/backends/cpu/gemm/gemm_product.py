"""Which matrix product: sizes, strides and element types, with batches merged where they can be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everygrad.backends.cpu.gemm.gemm_tile import TileEmitter, VectorRegisters
from everygrad.backends.cpu.gemm.half_tile import HALVES, PAIR, PairEmitter, WideningEmitter
from everygrad.backends.cpu.llvm.work import ArrayLayout
from everygrad.dtypes import DType, bfloat16, float32, float64
from everygrad.errors import ArgumentError


class Batch(NamedTuple):
    """One batch dimension: its size, and the strides of a, b and out."""

    size: int
    a: int
    b: int
    out: int


class Product(NamedTuple):
    """out[..., i, j] = sum over k of a[..., i, k] b[..., k, j]; strides as
    (along i or k, k or j); bases: for a, b and out, which argument, and the offset in it.

    Sums have `dtype`, a and b `stored`, out `made`. k counts steps of the sum: terms, or `pairs` of
    them, of which there are `terms`.
    """

    dtype: DType
    stored: DType
    made: DType
    pairs: bool
    terms: int
    m: int
    k: int
    n: int
    a: tuple[int, int]
    b: tuple[int, int]
    out_row: int
    batch: tuple[Batch, ...]
    bases: tuple[tuple[int, int], ...]

    @property
    def entries(self) -> int:
        """How many products the batch holds."""
        total = 1
        for dim in self.batch:
            total *= dim.size
        return total

    @property
    def is_half(self) -> bool:
        """Whether a and b hold 16-bit floats."""
        return self.stored is not self.dtype

    @property
    def each(self) -> int:
        """Terms of one step."""
        return PAIR if self.pairs else 1

    @property
    def whole(self) -> int:
        """Steps that have all their terms."""
        return self.terms // self.each

    def emitter(self, target: VectorRegisters) -> TileEmitter:
        """The emitter for its tiles and panels."""
        if not self.is_half:
            return TileEmitter(self.dtype, target)
        if not self.pairs:
            return WideningEmitter(self.stored, self.made, target)
        return PairEmitter(self.made, target, self.terms)


def product_of(
    a: ArrayLayout, b: ArrayLayout, out: ArrayLayout, args: tuple[int, int, int], has_dots: bool
) -> Product:
    """The product of these layouts, which are numbers `args` of the arguments; `has_dots`: the
    processor has dot products of bfloat16 pairs."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    if a.dtype not in (*HALVES, float32, float64) or not a.dtype == b.dtype == out.dtype:
        raise ArgumentError(f"matmul: no code for {a.dtype} @ {b.dtype} -> {out.dtype}")
    if b.shape[-2] != k or out.shape != (*a.shape[:-2], m, n) or a.shape[:-2] != b.shape[:-2]:
        raise ArgumentError(f"matmul: {a.shape} @ {b.shape} does not make {out.shape}")
    if n > 1 and out.size and out.strides[-1] != 1:
        raise ArgumentError(f"matmul: rows of out must be contiguous, not {out.strides}")
    dims = zip(a.shape[:-2], a.strides[:-2], b.strides[:-2], out.strides[:-2], strict=True)
    batch = _merged(Batch(*dim) for dim in dims)
    pairs = a.dtype is bfloat16 and has_dots
    whole = Product(
        float32 if a.dtype in HALVES else a.dtype,
        a.dtype,
        out.dtype,
        pairs,
        k,
        m,
        -(-k // PAIR) if pairs else k,
        n,
        (a.strides[-2], a.strides[-1]),
        (b.strides[-2], b.strides[-1]),
        out.strides[-2],
        batch,
        ((args[0], a.offset), (args[1], b.offset), (args[2], out.offset)),
    )
    return _swapped(_tall(whole))


def _merged(dims: Iterable[Batch]) -> tuple[Batch, ...]:
    """Drops dimensions of size 1 and merges neighbours whose strides allow it."""
    made: list[Batch] = []
    for dim in dims:
        if dim.size == 1:
            continue
        last = made[-1] if made else None
        if last is not None and last[1:] == tuple(dim.size * s for s in dim[1:]):
            made[-1] = dim._replace(size=last.size * dim.size)
        else:
            made.append(dim)
    return tuple(made)


def _tall(p: Product) -> Product:
    """A stack of matrices times one matrix is one tall product."""
    if not p.batch or p.batch[-1].b != 0:
        return p
    last = p.batch[-1]
    if p.m == 1:
        p = p._replace(a=(last.a, p.a[1]), out_row=last.out)
    elif last.a != p.m * p.a[0] or last.out != p.m * p.out_row:
        return p
    return p._replace(m=p.m * last.size, batch=p.batch[:-1])


def _swapped(p: Product) -> Product:
    """A matrix times a column as a row times the transpose, so that the result fills vectors."""
    if p.n > 1 or p.m == 1 or p.out_row != 1:
        return p
    return p._replace(
        m=1,
        n=p.m,
        a=(p.b[1], p.b[0]),
        b=(p.a[1], p.a[0]),
        out_row=p.m,
        batch=tuple(Batch(d.size, d.b, d.a, d.out) for d in p.batch),
        bases=(p.bases[1], p.bases[0], p.bases[2]),
    )
