"""Sizes that change: what a function traced at several sizes has in common.

The function is traced once for each of three sizes. A number that is the same in all traces is a
constant; one that differs is a `Dim`, which must be found again in the sizes of the inputs (`n`,
`3 * n + 1`, `n * m`, ...), or the function cannot be written with a symbolic axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad.compiler.ir import Value
from everygrad.dtypes import FROM_NP

TRACES = 3
_LARGEST_FACTOR = 1 << 20
_MOST_ATOMS = 24  # products of three are tried of this many


class Mismatch(Exception):  # noqa: N818  # seen by `save_onnx` alone, which says it to the user
    """The traces differ in more than sizes, or a size cannot be expressed; `where` says it."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = where


class Dim:
    """A size, by its value in each trace. It has no value as a number: nothing can take it for a
    constant by mistake."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        self.values = tuple(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and other.values == self.values

    def __hash__(self) -> int:
        return hash(self.values)

    def __repr__(self) -> str:
        return "/".join(map(str, self.values))

    def __add__(self, other: Size) -> Size:
        return size_of([a + b for a, b in zip(self.values, _spread(other), strict=True)])

    __radd__ = __add__

    def __mul__(self, other: Size) -> Size:
        return size_of([a * b for a, b in zip(self.values, _spread(other), strict=True)])

    __rmul__ = __mul__

    def __sub__(self, other: Size) -> Size:
        return size_of([a - b for a, b in zip(self.values, _spread(other), strict=True)])

    def __rsub__(self, other: Size) -> Size:
        return size_of([b - a for a, b in zip(self.values, _spread(other), strict=True)])


Size = int | Dim


class Number(NamedTuple):
    """A floating-point constant that differs from trace to trace: 1 / n, say."""

    values: tuple[float, ...]


def _spread(size: Size) -> tuple[int, ...]:
    return size.values if isinstance(size, Dim) else (size,) * TRACES


def size_of(values: Sequence[int]) -> Size:
    """A number where all values are equal."""
    return int(values[0]) if len(set(values)) == 1 else Dim(values)


def is_static(thing: Any) -> bool:
    """Whether nothing in a parameter changes."""
    if isinstance(thing, Dim | Number):
        return False
    return all(map(is_static, thing)) if isinstance(thing, tuple | list) else True


# --- the traces as one ---------------------------------------------------------------------------


class Merged:
    """Several traces of one function, followed from their outputs in step, as one graph."""

    def __init__(self) -> None:
        self.made: dict[tuple[Value, ...], Value] = {}
        self.readers: dict[tuple[Value, ...], str] = {}  # the line that first reads a leaf

    def input(self, group: tuple[Value, ...]) -> Value:
        """An input that all traces have."""
        self.made[group] = self.joined(group, "input")
        return self.made[group]

    def value(self, group: tuple[Value, ...]) -> Value:
        """What stands for one value of each trace."""
        todo = [(group, False)]
        while todo:
            now, ready = todo.pop()
            if now in self.made:
                continue
            if ready or not now[0].args:
                self.made[now] = self.joined(now)
            else:
                todo.append((now, True))
                todo += [(g, False) for g in self.arguments(now)]
                for g in self.arguments(now):
                    self.readers.setdefault(g, now[0].where)
        return self.made[group]

    def arguments(self, group: tuple[Value, ...]) -> list[tuple[Value, ...]]:
        if len({len(v.args) for v in group}) > 1:
            raise _differ(group)
        return list(zip(*(v.args for v in group), strict=True))

    def joined(self, group: tuple[Value, ...], name: str = "") -> Value:
        first = group[0]
        if len({(v.kind, name or v.name, v.dtype) for v in group}) > 1:
            raise _differ(group)
        if first.kind == "input" and not name:
            raise Mismatch("it takes different tensors at different sizes", _place(group))
        if any(len(v.shape) != len(first.shape) for v in group):
            raise _differ(group)
        shape = tuple(size_of(sizes) for sizes in zip(*(v.shape for v in group), strict=True))
        args = tuple(self.made[g] for g in self.arguments(group))
        if first.kind == "constant":
            params = _constant(group, self.readers.get(group, "its results"))
        elif any(v.params.keys() != first.params.keys() for v in group):
            raise _differ(group)
        else:
            params = {k: _merged([v.params[k] for v in group], group) for k in first.params}
        sizes: Any = shape  # a Dim is no number, on purpose
        return Value(
            first.kind, first.name, first.op, args, params, sizes, first.dtype, first.number,
            first.where,
        )  # fmt: skip


def _differ(group: Sequence[Value]) -> Mismatch:
    kinds = " and ".join(dict.fromkeys(f"{v.name} {v.type}" for v in group))
    return Mismatch(f"it does different things at different sizes ({kinds})", _place(group))


def _place(group: Sequence[Value]) -> str:
    return next((v.where for v in group if v.where), "a constant")


def _merged(found: list[Any], group: Sequence[Value]) -> Any:
    """One parameter of all traces."""
    first = found[0]
    if all(type(f) is int for f in found):
        return size_of(found)
    if all(type(f) is float for f in found):
        same = len({repr(f) for f in found}) == 1  # of NaN and signed zeros too
        return first if same else Number(tuple(found))
    if isinstance(first, tuple):
        if any(type(f) is not type(first) or len(f) != len(first) for f in found):
            raise _differ(group)
        parts = [_merged(list(p), group) for p in zip(*found, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if any(f is not first and f != first for f in found):
        raise _differ(group)
    return first


class Progression(NamedTuple):
    """start, start + step, ...: what `arange` of a size that changes is."""

    start: Any
    step: Any
    length: Size


def _constant(group: Sequence[Value], where: str) -> dict[str, Any]:
    arrays = [v.params["array"] for v in group]
    first = arrays[0]
    if all(a.shape == first.shape and a.tobytes() == first.tobytes() for a in arrays):
        return {"array": first}
    if first.ndim == 1 and FROM_NP[first.dtype].kind in ("int", "uint", "float"):
        found = [_progression(a) for a in arrays]
        if all(f is not None for f in found):
            starts, steps = {f[0] for f in found if f}, {f[1] for f in found if f}
            if len(starts) == 1 and len(steps) == 1:
                length = size_of([len(a) for a in arrays])
                return {"range": Progression(starts.pop(), steps.pop(), length)}
    raise Mismatch(
        "a constant array differs from size to size and is no arange; make it of the inputs",
        where,
    )


def _progression(array: Any) -> tuple[Any, Any] | None:
    if len(array) < 2:
        return None
    wide = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    step = wide[1] - wide[0]
    again = wide[0] + step * np.arange(len(array))
    return (wide[0].item(), step.item()) if np.array_equal(again, wide) else None


# --- sizes found again ---------------------------------------------------------------------------


class Term(NamedTuple):
    """(the product of `atoms`) * factor // divisor + offset; atoms are numbers of known sizes."""

    atoms: tuple[int, ...]
    factor: int = 1
    divisor: int = 1
    offset: int = 0
    added: int | None = None  # one more known size, added
    subtracted: int | None = None


def expressed(wanted: Dim, known: Sequence[tuple[int, ...]]) -> Term | None:
    """A size in terms of known ones, given by their values in each trace; the simplest that fits
    all traces."""
    return next(_terms(wanted.values, known), None)


def _terms(wanted: tuple[int, ...], known: Sequence[tuple[int, ...]]) -> Iterator[Term]:
    for i, values in enumerate(known):
        if values == wanted:
            yield Term((i,))
    few = range(min(len(known), _MOST_ATOMS))
    for count in (1, 2, 3):
        for chosen in itertools.combinations_with_replacement(few, count):
            product = [int(np.prod(vs)) for vs in zip(*(known[i] for i in chosen), strict=True)]
            found = _linear(wanted, product)
            if found is not None:
                yield Term(chosen, *found)
    for i, j in itertools.permutations(few, 2):
        for sign in (1, -1):
            sums = [a + sign * b for a, b in zip(known[i], known[j], strict=True)]
            rest = {w - s for w, s in zip(wanted, sums, strict=True)}
            if len(rest) == 1:
                other = {"added": j} if sign > 0 else {"subtracted": j}
                yield Term((i,), offset=rest.pop(), **other)


def _linear(wanted: Sequence[int], given: Sequence[int]) -> tuple[int, int, int] | None:
    """(factor, divisor, offset) that fit every trace."""
    pairs = list(zip(given, wanted, strict=True))
    g0, w0 = pairs[0]
    g1, w1 = next((p for p in pairs if p[0] != g0), pairs[0])
    if g0 == g1 or w0 == w1:
        return None
    rise, run = w1 - w0, g1 - g0
    if rise % run == 0:
        factor = rise // run
        offset = w0 - factor * g0
        if abs(factor) < _LARGEST_FACTOR and all(w == factor * g + offset for g, w in pairs):
            return factor, 1, offset
    elif run % rise == 0 and run // rise > 1:
        divisor = run // rise
        if all(g % divisor == 0 and w == g // divisor for g, w in pairs):
            return 1, divisor, 0
    return None


def of_number(number: Number, tolerance: float) -> tuple[str, Size] | None:
    """A floating-point constant as a function of an integer: "", "reciprocal", "sqrt", "rsqrt"."""
    values = number.values
    if any(not np.isfinite(v) or v <= 0 for v in values):
        return None
    inverse = [1.0 / v for v in values]
    ways = {
        "": list(values),
        "reciprocal": inverse,
        "sqrt": [v * v for v in values],
        "rsqrt": [v * v for v in inverse],
    }
    for how, found in ways.items():
        near = [round(f) for f in found]
        if all(abs(f - n) <= tolerance * n for f, n in zip(found, near, strict=True)):
            return how, size_of(near)
    return None
