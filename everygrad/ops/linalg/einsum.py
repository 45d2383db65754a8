"""Products of many tensors: tensordot, einsum, kron. Each pair is multiplied by one matmul."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from everygrad.core import shapes
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.record import samples as s
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.shape.diagonals import diagonal

# --- two tensors ---------------------------------------------------------------------------------


def _axes_pair(axes: Any, x: Tensor, y: Tensor) -> tuple[Shape, Shape]:
    """The axes of each tensor that are summed over, from what tensordot is given."""
    if isinstance(axes, Sequence) and len(axes) == 2:
        first, second = (a if isinstance(a, Iterable) else (a,) for a in axes)
        return (
            shapes.axis_tuple(tuple(first), x.ndim, "tensordot"),
            shapes.axis_tuple(tuple(second), y.ndim, "tensordot"),
        )
    count = shapes.as_int(axes, "tensordot", "axes, if not a pair of tuples,")
    if not 0 <= count <= min(x.ndim, y.ndim):
        raise ArgumentError(
            f"tensordot: axes {count} of tensors with {x.ndim} and {y.ndim} dimensions"
        )
    return tuple(range(x.ndim - count, x.ndim)), tuple(range(count))


@composite(
    methods=(),
    kinds="numeric",
    reference=lambda x, y, axes=2: np.tensordot(x, y, axes),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(3, 2, seed=1), axes=1),
            sample(s.real(2, 3), s.real(2, 3, seed=1)),
            sample(s.real(2, 3), s.real(2, 1, seed=1), axes=((-2,), (0,))),
            sample(s.real(2), s.real(2, seed=1), axes=0),
        )
    ),
    refuses=(
        refuse(ShapeError, "tensordot: sizes 3 and 2", s.real(2, 3), s.real(2, 3), axes=1),
        refuse(ArgumentError, "tensordot: 1 axes and 2 axes", s.real(2, 2), s.real(2, 2),
               axes=((0,), (0, 1))),
        refuse(DtypeError, "does not take bool", s.booleans(2), s.booleans(2), axes=1),
    ),
)  # fmt: skip
def tensordot(x1: Tensor, x2: Tensor, *, axes: Any = 2) -> Tensor:
    """The sum of products over pairs of axes: the last of x1 with the first of x2, as many as
    `axes` says, or those in two tuples."""
    x, y = operands("tensordot", x1, x2)
    first, second = _axes_pair(axes, x, y)
    if len(first) != len(second):
        raise ArgumentError(f"tensordot: {len(first)} axes and {len(second)} axes do not pair up")
    for a, b in zip(first, second, strict=True):
        if x.shape[a] != y.shape[b]:
            raise ShapeError(
                f"tensordot: sizes {x.shape[a]} and {y.shape[b]} of axes {a} and {b} differ: "
                f"{x.shape} with {y.shape}"
            )
    kept_x = [a for a in range(x.ndim) if a not in first]
    kept_y = [b for b in range(y.ndim) if b not in second]
    shape = (*(x.shape[a] for a in kept_x), *(y.shape[b] for b in kept_y))
    inner = shapes.size_of(tuple(x.shape[a] for a in first))
    rows = shapes.size_of(tuple(x.shape[a] for a in kept_x))
    columns = shapes.size_of(tuple(y.shape[b] for b in kept_y))
    left = x.permute_dims((*kept_x, *first)).reshape((rows, inner))
    right = y.permute_dims((*second, *kept_y)).reshape((inner, columns))
    return matmul(left, right).reshape(shape)


@composite(
    methods=(),
    kinds="numeric",
    reference=np.kron,
    samples=lambda: iter(
        (sample(s.real(2, 2), s.real(1, 3, seed=1)), sample(s.real(2), s.real(2, 2, seed=1)))
    ),
    refuses=(refuse(DtypeError, "multiply: does not take bool", s.booleans(2), s.booleans(2)),),
)
def kron(x: Tensor, y: Tensor) -> Tensor:
    """Every element of x times all of y, as blocks: the Kronecker product."""
    x, y = operands("kron", x, y)
    rank = max(x.ndim, y.ndim)
    a, b = ((1,) * (rank - t.ndim) + t.shape for t in (x, y))
    spread = x.reshape(tuple(n for size in a for n in (size, 1)))
    blocks = y.reshape(tuple(n for size in b for n in (1, size)))
    return (spread * blocks).reshape(tuple(m * n for m, n in zip(a, b, strict=True)))


# --- einsum --------------------------------------------------------------------------------------

Term = tuple[str, ...]  # a letter for each axis; those of an ellipsis are numbers


@lru_cache(maxsize=1024)
def _parsed(equation: str, ranks: tuple[int, ...]) -> tuple[tuple[Term, ...], Term]:
    """The letters of each operand and of the result."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    words = left.split(",")
    if len(words) != len(ranks):
        raise ArgumentError(
            f"einsum: {equation!r} names {len(words)} operands, {len(ranks)} are given"
        )
    terms = tuple(_term(w, rank, equation) for w, rank in zip(words, ranks, strict=True))
    seen = [letter for term in terms for letter in term]
    hidden = sorted({v for v in seen if not v.isalpha()}, key=int)
    if not arrow:  # the letters that stand once, in order
        return terms, (*hidden, *sorted(v for v in {*seen} if v.isalpha() and seen.count(v) == 1))
    _check_letters(right.replace("...", ""), equation)
    before, dots, after = right.partition("...")
    if hidden and not dots:
        out = (*before,)
    else:
        out = (*before, *(hidden if dots else ()), *after)
    for letter in out:
        if out.count(letter) > 1:
            raise ArgumentError(f"einsum: {equation!r} names {letter!r} twice in the result")
        if letter not in seen:
            raise ArgumentError(
                f"einsum: {letter!r} of the result of {equation!r} is in no operand"
            )
    return terms, out


def _check_letters(word: str, equation: str) -> None:
    odd = [c for c in word if not (c.isascii() and c.isalpha())]
    if odd:
        raise ArgumentError(f"einsum: {odd[0]!r} in {equation!r} is not a letter")


def _term(word: str, rank: int, equation: str) -> Term:
    """An operand's letters; the axes under an ellipsis are numbered from the last, 0, backwards as
    negative numbers, so that they line up on the right."""
    before, dots, after = word.partition("...")
    _check_letters(before + after, equation)
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise ShapeError(
            f"einsum: {word!r} of {equation!r} does not fit an operand of {rank} dimensions"
        )
    return (*before, *(str(i - hidden) for i in range(hidden)), *after)


def _sizes(equation: str, terms: Sequence[Term], given: Sequence[Tensor]) -> dict[str, int]:
    """The size of each letter; axes of size 1 broadcast."""
    sizes: dict[str, int] = {}
    for term, x in zip(terms, given, strict=True):
        for letter, n in zip(term, x.shape, strict=True):
            known = sizes.get(letter, 1)
            if known != n and 1 not in (known, n):
                raise ShapeError(
                    f"einsum: {letter!r} of {equation!r} has sizes {known} and {n}: operands of "
                    + " and ".join(str(t.shape) for t in given)
                )
            sizes[letter] = n if known == 1 else known
    return sizes


def _without_repeats(x: Tensor, term: Term) -> tuple[Tensor, Term]:
    """Letters that stand twice in one operand are its diagonal."""
    while len({*term}) < len(term):
        letter = next(v for v in term if term.count(v) > 1)
        i = term.index(letter)
        j = term.index(letter, i + 1)
        if x.shape[i] != x.shape[j]:
            raise ShapeError(f"einsum: {letter!r} stands for two sizes of {x.shape}")
        x = diagonal(x, 0, i, j)
        term = (*(v for k, v in enumerate(term) if k not in (i, j)), letter)
    return x, term


def _summed(x: Tensor, term: Term, needed: Iterable[str]) -> tuple[Tensor, Term]:
    """Without the letters that nothing else needs."""
    gone = tuple(i for i, v in enumerate(term) if v not in needed)
    if not gone:
        return x, term
    kept = tuple(v for v in term if v in needed)
    return x.sum(axis=gone, dtype=x.dtype), kept


def _arranged(x: Tensor, order: Shape, shape: Shape) -> Tensor:
    """The axes in another order, then another shape; as it is where both are what it has."""
    if order != tuple(range(len(order))):
        x = x.permute_dims(order)
    return x if x.shape == shape else x.reshape(shape)


def _pair(x: Tensor, a: Term, y: Tensor, b: Term, needed: frozenset[str]) -> tuple[Tensor, Term]:
    """One matmul: letters of both that are needed count matrices, of both that are not are summed
    over, and the others are rows and columns. Without letters to sum over, one multiplication."""
    x, a = _summed(x, a, needed | {*b})
    y, b = _summed(y, b, needed | {*a})
    x, a = _matched(x, a, y, b)
    y, b = _matched(y, b, x, a)
    batch = tuple(v for v in a if v in b and v in needed)
    inner = tuple(v for v in a if v in b and v not in needed)
    left, right = tuple(v for v in a if v not in b), tuple(v for v in b if v not in a)
    sizes = dict((*zip(a, x.shape, strict=True), *zip(b, y.shape, strict=True)))

    def grouped(t: Tensor, term: Term, *groups: Term) -> Tensor:
        parts = (shapes.size_of(tuple(sizes[v] for v in g)) for g in groups)
        order = tuple(term.index(v) for g in (batch, *groups) for v in g)
        return _arranged(t, order, (*(sizes[v] for v in batch), *parts))

    first, second = grouped(x, a, left, inner), grouped(y, b, inner, right)
    out = matmul(first, second) if inner else first * second
    made = (*batch, *left, *right)
    return _arranged(out, tuple(range(out.ndim)), tuple(sizes[v] for v in made)), made


def _matched(x: Tensor, a: Term, y: Tensor, b: Term) -> tuple[Tensor, Term]:
    """x without axes of size 1 that broadcast against larger ones of y."""
    sizes = dict(zip(b, y.shape, strict=True))
    gone = tuple(
        i for i, (v, n) in enumerate(zip(a, x.shape, strict=True)) if n == 1 != sizes.get(v, 1)
    )
    if not gone:
        return x, a
    return x.squeeze(gone), tuple(v for i, v in enumerate(a) if i not in gone)


# --- the order of contraction --------------------------------------------------------------------

_OPTIMAL = 5  # operands up to which every order is looked at


def _cost(a: frozenset[str], b: frozenset[str], sizes: dict[str, int]) -> int:
    """Multiply-adds of one pair."""
    return shapes.size_of(tuple(sizes[v] for v in a | b))


def _joined(
    sets: Sequence[frozenset[str]], i: int, j: int, out: frozenset[str]
) -> tuple[frozenset[str], list[frozenset[str]]]:
    """What is left of a pair once it is multiplied, and the others."""
    rest = [t for k, t in enumerate(sets) if k not in (i, j)]
    needed = out.union(*rest)
    return (sets[i] | sets[j]) & needed, rest


Path = tuple[tuple[int, int], ...]


def _optimal(
    sets: Sequence[frozenset[str]], out: frozenset[str], sizes: dict[str, int]
) -> tuple[int, Path]:
    """The cheapest of all orders."""
    if len(sets) < 2:
        return 0, ()
    best: tuple[int, Path] | None = None
    for i, j in combinations(range(len(sets)), 2):
        made, rest = _joined(sets, i, j, out)
        cost = _cost(sets[i], sets[j], sizes)
        if best is not None and cost >= best[0]:
            continue
        more, path = _optimal([*rest, made], out, sizes)
        if best is None or cost + more < best[0]:
            best = cost + more, ((i, j), *path)
    assert best is not None
    return best


def _greedy(sets: Sequence[frozenset[str]], out: frozenset[str], sizes: dict[str, int]) -> Path:
    """Again and again the pair that makes memory grow least; of equal ones, the cheapest."""
    path: list[tuple[int, int]] = []
    sets = list(sets)
    while len(sets) > 1:

        def growth(pair: tuple[int, int], sets: Sequence[frozenset[str]] = sets) -> Any:
            a, b = (sets[k] for k in pair)
            made, _ = _joined(sets, *pair, out)
            gone = _cost(a, a, sizes) + _cost(b, b, sizes)
            return _cost(made, made, sizes) - gone, _cost(a, b, sizes)

        best = min(combinations(range(len(sets)), 2), key=growth)
        made, rest = _joined(sets, *best, out)
        sets = [*rest, made]
        path.append(best)
    return tuple(path)


def contraction_path(terms: Sequence[Term], out: Term, sizes: dict[str, int]) -> Path:
    """Which two operands to multiply next; their product goes to the end of the list."""
    sets = [frozenset(t) for t in terms]
    if len(sets) <= _OPTIMAL:
        return _optimal(sets, frozenset(out), sizes)[1]
    return _greedy(sets, frozenset(out), sizes)


@lru_cache(maxsize=1024)
def _path(terms: tuple[Term, ...], out: Term, sizes: tuple[tuple[str, int], ...]) -> Path:
    return contraction_path(terms, out, dict(sizes))


@composite(
    methods=(),
    kinds="numeric",
    reference="tests.support.references.linalg:einsum",
    samples=lambda: iter(
        (
            sample("ij,jk->ik", s.real(2, 3), s.real(3, 2, seed=1)),
            sample("ii", s.real(3, 3)),
            sample("...i,j,i->j...", s.real(2, 3), s.real(2, seed=1), s.real(3, seed=2)),
            sample("ab,cb->a", s.real(2, 2), s.real(3, 2, seed=1)),
        )
    ),
    refuses=(
        refuse(ArgumentError, "einsum: 'ij,jk->ik' names 2 operands, 1", "ij,jk->ik", s.real(2, 2)),
        refuse(ShapeError, "'ij' of 'ij->i' does not fit an operand of 1", "ij->i", s.real(2)),
        refuse(ShapeError, "'j' of .* has sizes 3 and 2", "ij,jk", s.real(2, 3), s.real(2, 2)),
        refuse(ArgumentError, "'k' of the result .* is in no operand", "ij->k", s.real(2, 2)),
    ),
)
def einsum(equation: str, *operands_: Tensor | Sequence[Tensor]) -> Tensor:
    """The sum of products that the equation says, in Einstein's convention: "bij,bjk->bik". Letters
    that are not in the result are summed over, "..." stands for any axes, which broadcast. Several
    operands, which may be one list, are multiplied two at a time, in the cheapest order for few, a
    good one for many."""
    if len(operands_) == 1 and isinstance(operands_[0], list | tuple):
        operands_ = tuple(operands_[0])
    if not isinstance(equation, str):
        raise ArgumentError(f"einsum: the equation comes first, got {type(equation).__name__}")
    given = list(operands("einsum", *operands_)) if operands_ else []
    terms, out = _parsed(equation, tuple(x.ndim for x in given))
    sizes = _sizes(equation, terms, given)
    pairs = [_without_repeats(x, t) for x, t in zip(given, terms, strict=True)]
    for i, j in _path(tuple(t for _, t in pairs), out, tuple(sizes.items())):
        (x, a), (y, b) = pairs[i], pairs[j]
        pairs = [p for k, p in enumerate(pairs) if k not in (i, j)]
        needed = frozenset(out).union(*(t for _, t in pairs))
        pairs.append(_pair(x, a, y, b, needed))
    x, term = _summed(*pairs[0], out)
    x = _arranged(x, tuple(term.index(v) for v in out), tuple(x.shape[term.index(v)] for v in out))
    shape = tuple(sizes[v] for v in out)
    return x.broadcast_to(shape)
