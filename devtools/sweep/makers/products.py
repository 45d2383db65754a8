"""Matrix products: every layout, batches, vectors, einsum."""

from __future__ import annotations

import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem

MOST_PRODUCTS = 1 << 24  # multiply-adds of one case


def _sizes(d: Draw) -> tuple[int, int, int]:
    """m, k, n: around numbers of multiply-adds, of elements of an operand, of the result."""
    kind = d.pick(("products", "products", "operand", "result"))
    if kind == "products":
        m, k, n = d.shape(3, min(MOST_PRODUCTS, 64 * d.elements()))
        return m, k, n
    a, b = d.shape(2)
    c = d.size(max(1, min(2000, MOST_PRODUCTS // max(1, a * b))))
    return (c, a, b) if kind == "operand" else (a, c, b)


def matmul(d: Draw) -> Problem:
    m, k, n = _sizes(d)
    dtype = d.dtype()
    return Problem(
        (d.floats((m, k), dtype), d.floats((k, n), dtype)),
        eg.matmul,
        torch.matmul,
        "sums",
        dtype=dtype,
    )


def transposed(d: Draw) -> Problem:
    """Products of transposed matrices, as gradients and linear layers have them."""
    m, k, n = _sizes(d)
    dtype, left, right = d.dtype(), d.chance(0.5), d.chance(0.5)
    a = d.floats((k, m) if left else (m, k), dtype)
    b = d.floats((n, k) if right else (k, n), dtype)

    def ours(x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
        return (x.mT if left else x) @ (y.mT if right else y)

    return Problem((a, b), ours, ours, "sums", dtype=dtype)


def batched(d: Draw) -> Problem:
    """Batches, either side broadcast, layouts of any kind."""
    batch = d.shape(d.pick((1, 1, 2)), d.pick((2, 6, 40, 300)))
    m, k, n = d.shape(3, max(8, min(MOST_PRODUCTS, 16 * d.elements()) // max(1, batch[0])))
    dtype = d.dtype()
    first = batch if d.chance(0.7) else tuple(1 for _ in batch)
    second = batch if d.chance(0.6) else () if d.chance(0.5) else tuple(1 for _ in batch)
    return Problem(
        (d.floats((*first, m, k), dtype), d.floats((*second, k, n), dtype)),
        eg.matmul,
        torch.matmul,
        "sums",
        dtype=dtype,
    )


def vectors(d: Draw) -> Problem:
    """Matrix times vector, vector times matrix, vector times vector."""
    kind, dtype = d.pick(("mv", "vm", "vv")), d.dtype()
    m, k = d.shape(2)
    first = (m, k) if kind == "mv" else (k,)
    second = (k, m) if kind == "vm" else (k,)
    return Problem(
        (d.floats(first, dtype), d.floats(second, dtype)),
        eg.matmul,
        torch.matmul,
        "sums",
        dtype=dtype,
    )


def linear(d: Draw) -> Problem:
    """x w^T + b, with what often follows."""
    lead = d.shape(d.pick((1, 1, 2)), max(1, min(d.elements(), 1 << 12)))
    k, n = d.shape(2, max(4, MOST_PRODUCTS // 16 // max(1, lead[0])) if d.chance(0.1) else 1 << 12)
    dtype, bias = d.dtype(), d.chance(0.6)
    after = d.pick(("", "", "relu", "square"))
    if after == "relu" and dtype in ("float16", "bfloat16"):
        after = ""  # which side of zero a rounded sum is on is rounding's to say
    inputs = [d.floats((*lead, k), dtype), d.floats((n, k), dtype)]
    if bias:
        inputs.append(d.floats((n,), dtype, layout=False))

    def ours(x: eg.Tensor, w: eg.Tensor, b: eg.Tensor | None = None) -> eg.Tensor:
        out = eg.nn.functional.linear(x, w, b)
        return getattr(eg, after)(out) if after else out

    def theirs(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.nn.functional.linear(x, w, b)
        return getattr(torch, after)(out) if after else out

    return Problem(inputs, ours, theirs, "values" if after else "sums", dtype=dtype)


def long_sums(d: Draw) -> Problem:
    """Sums so long that they are cut, in small batches of small results."""
    batch = d.pick(((), (), (2,), (3,), (4,), (5,), (2, 2)))
    most = d.pick((5000, 5000, 60_000))  # so long that the last stretch is a few terms
    k = d.between(900, most) if d.chance(0.5) else d.size(most, 900)
    if d.chance(0.3):  # about as many stretches as each has terms: the last has hardly any
        depth = d.pick((43, 64, 85, 128))
        k = depth * (depth + d.between(-3, 1)) + d.between(-3, 4)
    m, n = d.shape(2, max(1, MOST_PRODUCTS // (k * 4)))
    dtype = d.dtype()
    return Problem(
        (d.floats((*batch, m, k), dtype), d.floats((*batch, k, n), dtype)),
        eg.matmul,
        torch.matmul,
        "sums",
        dtype=dtype,
    )


def integers(d: Draw) -> Problem:
    """Products of integers are exact, or wrap."""
    kind = d.pick(("int8", "int32", "int64", "uint8"))
    m, k, n = d.shape(3, min(1 << 20, 64 * d.elements()))
    # the last: sums that float64 does not have
    top = d.pick((10, 100, 1 << 20, 1 << 26)) if kind in ("int32", "int64") else 10
    low = 0 if kind == "uint8" else -top
    inputs = [d.integers(s, low, top, kind, layout=True) for s in ((m, k), (k, n))]
    return Problem(inputs, eg.matmul, torch.matmul, "exact")


EQUATIONS = (
    "ij,kj->ik",
    "ij,ik->jk",
    "bij,bkj->bik",
    "bij,bik->bjk",
    "bhid,bhjd->bhij",
    "bihd,bjhd->bhij",
    "ij,ij->i",
    "i,j->ij",
    "bij,jk->ibk",
)


def einsum(d: Draw) -> Problem:
    equation, dtype = d.pick(EQUATIONS), d.dtype()
    letters = sorted({c for c in equation if c.isalpha()})
    sizes = dict(zip(letters, d.shape(len(letters), 16 * d.elements(1 << 16)), strict=True))
    given, _ = equation.split("->")
    inputs = [d.floats([sizes[c] for c in part], dtype) for part in given.split(",")]
    return Problem(
        inputs,
        lambda *x: eg.einsum(equation, *x),
        lambda *x: torch.einsum(equation, *x),
        "sums",
        dtype=dtype,
    )


SECTION = OpSection(
    "products",
    (
        "blas",
        "choose_kernel",
        "cooperative_matrix",
        "cublaslt",
        "eager_matmul",
        "gemm",
        "gemm_tile",
        "gemv",
        "half_tile",
        "matmul",
        "matmul_conv",
        "operand_reads",
        "padding",
        "registry",
        "row_dots",
    ),
    {
        "matmul": (3, matmul),
        "transposed": (3, transposed),
        "batched": (3, batched),
        "vectors": (1, vectors),
        "linear": (2, linear),
        "einsum": (1, einsum),
        "long sums": (1, long_sums),
        "integers": (0.5, integers),
    },
    weight=2.0,
)
