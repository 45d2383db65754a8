"""Makers: each adds a call of one kind to a program, with arguments that fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from devtools.fuzz import layers
from devtools.fuzz.generate import Builder, Rejected
from devtools.fuzz.guards import COMPARISONS
from devtools.fuzz.program import Ref
from devtools.fuzz.sampled import elementwise, from_sample
from everygrad.core.shapes import Shape, size_of
from everygrad.core.tensor import Tensor
from everygrad.ops.record.spec import REGISTRY


class Domain(NamedTuple):
    """What an op's samples say of an input: the kind of its dtype, and its range."""

    kind: str
    low: float
    high: float


@cache
def domains(name: str) -> tuple[Domain, ...]:
    """The inputs of an elementwise op."""
    samples = list(REGISTRY[name].samples())
    made = []
    for i in range(len(REGISTRY[name].inputs)):
        arrays = [s.args[i] for s in samples if isinstance(s.args[i], np.ndarray)]
        full = [a for a in arrays if a.size]
        numbers = np.concatenate([np.real(a).reshape(-1).astype(float) for a in full])
        numbers = numbers[np.isfinite(numbers)]
        made.append(Domain(full[0].dtype.kind, float(numbers.min()), float(numbers.max())))
    return tuple(made)


def _kind(t: Tensor) -> str:
    return "f" if t.dtype.is_float else "b" if str(t.dtype) == "bool" else "i"


def _fitting(b: Builder, domain: Domain, fits: Callable[[Tensor], bool]) -> Ref:
    """A value of the domain, squashed if needed, or a new one."""
    x = b.pick(lambda t: _kind(t) == domain.kind and fits(t))
    return b.within(x, domain.low, domain.high) if domain.kind == "f" else x


def _fresh(b: Builder, domain: Domain, shape: Shape) -> Ref:
    dtype = {"f": b.dtype, "i": "int64", "b": "bool"}[domain.kind]
    high = domain.high + (1 if domain.kind == "i" else 0)
    return b.input(shape, dtype, domain.low, high)


def _beside(b: Builder, shape: Shape) -> Shape:
    """A shape that broadcasts with `shape`."""
    cut = b.rng.randrange(len(shape) + 1) if b.rng.random() < 0.5 else 0
    return tuple(1 if b.rng.random() < 0.3 else n for n in shape[cut:])


def _broadcasts(shape: Shape) -> Callable[[Tensor], bool]:
    def fits(t: Tensor) -> bool:
        try:
            return size_of(np.broadcast_shapes(t.shape, shape)) <= 100_000
        except ValueError:
            return False

    return fits


def _number(b: Builder, domain: Domain) -> Any:
    """A number of the domain; 0 and 1, which rules of algebra know, now and then."""
    if domain.kind == "b":
        return b.rng.random() < 0.5
    choices = [n for n in (0.0, 1.0, 2.0, -1.0) if domain.low <= n <= domain.high]
    if choices and b.rng.random() < 0.3:
        found = b.rng.choice(choices)
    else:
        found = round(b.rng.uniform(domain.low, domain.high), 2)
    return int(found) if domain.kind == "i" else found


def unary(b: Builder) -> Ref:
    name = b.rng.choice(elementwise(1))
    (domain,) = domains(name)
    try:
        x = _fitting(b, domain, lambda t: True)
    except Rejected:
        if domain.kind == "f":
            raise
        x = _fresh(b, domain, b.shape())
    return b.add(name, x)


def binary(b: Builder) -> Ref:
    name = b.rng.choice((*elementwise(2), "add", "multiply", "subtract", "multiply", "divide"))
    dx, dy = domains(name)
    try:
        x = _fitting(b, dx, lambda t: True)
    except Rejected:
        x = _fresh(b, dx, b.shape())
    shape = b.of(x).shape
    roll = b.rng.random()
    if roll < 0.15:
        return b.add(name, x, _number(b, dy))
    try:
        if roll > 0.8:
            raise Rejected
        y = _fitting(b, dy, _broadcasts(shape))
    except Rejected:
        y = _fresh(b, dy, _beside(b, shape))
    if dx == dy and b.rng.random() < 0.3:
        x, y = y, x
    return b.add(name, x, y)


def condition(b: Builder, shape: Shape) -> Ref:
    """A bool value that broadcasts with `shape`."""
    try:
        return b.pick(lambda t: str(t.dtype) == "bool" and _broadcasts(shape)(t))
    except Rejected:
        pass
    if b.rng.random() < 0.5:
        x = b.pick(lambda t: t.dtype.is_float and _broadcasts(shape)(t))
        return b.add(b.rng.choice(COMPARISONS), x, round(b.rng.uniform(-1, 1), 3))
    return b.input(_beside(b, shape), "bool")


def where(b: Builder) -> Ref:
    x = b.floating()
    shape = b.of(x).shape
    y: Any = 0.5
    if b.rng.random() < 0.7:
        y = b.pick(lambda t: t.dtype.is_float and _broadcasts(shape)(t))
    return b.add("where", condition(b, shape), x, y)


def clamp(b: Builder) -> Ref:
    low, high = round(b.rng.uniform(-0.9, 0), 2), round(b.rng.uniform(0, 0.9), 2)
    given: dict[str, Any] = b.rng.choice(({"min": low}, {"max": high}, {"min": low, "max": high}))
    return b.add("clamp", b.floating(), **given)


def astype(b: Builder) -> Ref:
    x = b.pick()
    targets = ["float32", "float32" if b.narrow else "float64", "int64", "bool"]
    if b.dtype == "float64" and _kind(b.of(x)) == "f":
        targets = ["float64", "float64", "int64", "bool", "float32"]
    return b.add("astype", x, b.rng.choice(targets))


# --- reductions --------------------------------------------------------------------------------

# those met more often stand here more often
SMALL_MOVES = ("flip", "roll", "expand_dims", "swapaxes", "moveaxis", "flatten", "squeeze")
REDUCTIONS = ("sum", "sum", "mean", "mean", "max", "min", "var", "std", "logsumexp", "prod")


def axes(b: Builder, ndim: int) -> Any:
    """None, one axis (also from the end) or several."""
    if not ndim or b.rng.random() < 0.2:
        return None
    count = b.rng.choice((1, 1, 1, 2, ndim))
    chosen = sorted(b.rng.sample(range(ndim), min(count, ndim)))
    chosen = [a - ndim if b.rng.random() < 0.3 else a for a in chosen]
    return chosen[0] if len(chosen) == 1 else tuple(chosen)


def reduction(b: Builder) -> Ref:
    name = b.rng.choice(REDUCTIONS)
    x = b.floating()
    if name == "prod" and b.of(x).size > 64:
        raise Rejected
    kwargs: dict[str, Any] = {"axis": axes(b, b.of(x).ndim)}
    if b.rng.random() < 0.4:
        kwargs["keepdims"] = True
    return b.add(name, x, **kwargs)


def against_rows(b: Builder) -> Ref:
    """A value and its own reduction, as softmax and layer norm are made of them."""
    x = b.floating(least=1, nonempty=True)
    name = b.rng.choice(("sum", "mean", "max", "min", "logsumexp", "var"))
    axis = -1 if b.rng.random() < 0.6 else axes(b, b.of(x).ndim)
    row = b.add(name, x, axis=axis, keepdims=True)
    if b.rng.random() < 0.3:
        row = b.add(b.rng.choice(("tanh", "sigmoid", "square", "sin")), row)
    wide = b.add(b.rng.choice(("exp", "sin", "sigmoid")), x) if b.rng.random() < 0.4 else x
    return b.add(b.rng.choice(("subtract", "multiply", "add")), wide, row)


def whole_reduction(b: Builder) -> Ref:
    """Of integers and bools, or to them."""
    name = b.rng.choice(("any", "all", "argmax", "argmin", "sum", "max", "min", "prod"))
    kinds = {"any": "b", "all": "b", "argmax": "fi", "argmin": "fi"}.get(name, "i")
    x = b.pick(lambda t: _kind(t) in kinds and t.size > 0 and (name != "prod" or t.size < 20))
    axis = axes(b, b.of(x).ndim)
    if name.startswith("arg") and isinstance(axis, tuple):
        axis = axis[0]
    return b.add(name, x, axis=axis, keepdims=b.rng.random() < 0.3)


# --- movement ------------------------------------------------------------------------------------


def _factors(b: Builder, size: int) -> Shape:
    """Sizes whose product is `size`."""
    left = size
    found: list[int] = []
    while left > 1 and len(found) < 3:
        divisors = [d for d in range(2, min(left, 64) + 1) if left % d == 0] or [left]
        found.append(b.rng.choice(divisors))
        left //= found[-1]
    found = [*found, left] if left != 1 or not found else found
    if b.rng.random() < 0.3:
        found.insert(b.rng.randrange(len(found) + 1), 1)
    b.rng.shuffle(found)
    return tuple(found)


def reshape(b: Builder) -> Ref:
    x = b.floating()
    shape = list(_factors(b, b.of(x).size)) if b.of(x).size else [0, 3]
    if b.of(x).size and shape and b.rng.random() < 0.2:
        shape[b.rng.randrange(len(shape))] = -1
    return b.add("reshape", x, tuple(shape))


def permute(b: Builder) -> Ref:
    x = b.floating(least=2)
    order = list(range(b.of(x).ndim))
    b.rng.shuffle(order)
    return b.add("permute_dims", x, tuple(order))


def broadcast(b: Builder) -> Ref:
    x = b.floating()
    shape = tuple(b.rng.choice(b.sizes) if n == 1 else n for n in b.of(x).shape)
    if b.rng.random() < 0.5:
        shape = (b.rng.choice((1, 2, 3)), *shape)
    return b.add("broadcast_to", x, shape)


def _one_slice(b: Builder, n: int) -> Any:
    roll = b.rng.random()
    if roll < 0.2 and n:
        return b.rng.randrange(-n, n)
    if roll < 0.5:
        return slice(None)
    step = b.rng.choice((None, None, 2, 3, -1, -2))
    ends = sorted(b.rng.randrange(n + 1) for _ in range(2))
    low, high = ends if step is None or step > 0 else reversed(ends)
    return slice(low, high if step is None or step > 0 or high else None, step)


def index(b: Builder, shape: Shape) -> Any:
    """A basic index."""
    parts = [_one_slice(b, n) for n in shape[: b.rng.randrange(1, len(shape) + 1)]]
    if b.rng.random() < 0.15:
        parts.insert(b.rng.randrange(len(parts) + 1), None)
    if b.rng.random() < 0.15:
        parts.insert(0, Ellipsis) if len(parts) < len(shape) else parts.append(Ellipsis)
    return tuple(parts) if len(parts) > 1 else parts[0]


def getitem(b: Builder) -> Ref:
    x = b.floating(least=1)
    shape = b.of(x).shape
    if shape[0] and b.rng.random() < 0.25:
        places = b.input(b.shape(0, 2), "int64", -shape[0], shape[0])
        return b.add("getitem", x, (places, *(_one_slice(b, n) for n in shape[1:2])))
    return b.add("getitem", x, index(b, shape))


def small_move(b: Builder) -> Ref:
    """One of the moves that take an axis or two."""
    x = b.floating(least=1)
    ndim = b.of(x).ndim
    axis = b.rng.randrange(-ndim, ndim)
    name = b.rng.choice(SMALL_MOVES)
    if name == "roll":
        return b.add("roll", x, b.rng.randrange(-4, 5), axis=axis)
    if name in ("swapaxes", "moveaxis"):
        return b.add(name, x, axis, b.rng.randrange(ndim))
    if name == "flatten":
        start = b.rng.randrange(ndim)
        return b.add("flatten", x, start, b.rng.randrange(start, ndim))
    return b.add(name, x, axis=axis)


def triangle(b: Builder) -> Ref:
    return b.add(b.rng.choice(("tril", "triu")), b.floating(least=2), k=b.rng.randrange(-2, 3))


def pad(b: Builder) -> Ref:
    x = b.floating(least=1)
    widths = tuple((b.rng.randrange(3), b.rng.randrange(3)) for _ in b.of(x).shape)
    value = b.rng.choice((0.0, 0.0, 0.5))
    return b.add("pad", x, widths, value=value)


def concat(b: Builder) -> Ref:
    x = b.floating(least=1)
    shape, dtype = b.of(x).shape, b.of(x).dtype
    axis = b.rng.randrange(len(shape))

    def fits(t: Tensor) -> bool:
        same = t.ndim == len(shape) and t.dtype is dtype
        return same and t.shape[:axis] + t.shape[axis + 1 :] == shape[:axis] + shape[axis + 1 :]

    parts = [x, *(b.pick(fits) for _ in range(b.rng.choice((1, 1, 2))))]
    b.rng.shuffle(parts)
    return b.add("concat", parts, axis=axis)


def stack(b: Builder) -> Ref:
    x = b.floating()
    shape, dtype = b.of(x).shape, b.of(x).dtype
    parts = [x, *(b.pick(lambda t: t.shape == shape and t.dtype is dtype) for _ in range(2))]
    return b.add("stack", parts, axis=b.rng.randrange(-1, len(shape) + 1))


def split(b: Builder) -> Ref:
    x = b.floating(least=1)
    shape = b.of(x).shape
    axis = b.rng.randrange(len(shape))
    cut = b.rng.randrange(shape[axis] + 1)
    return b.add("split", x, [cut, shape[axis] - cut], axis=axis, pick=b.rng.randrange(2))


# --- names that get other values, constants ---------------------------------------------


def computed(b: Builder) -> Ref:
    """A floating value that a step computed: a leaf cannot be assigned to, nor can its aliases."""
    names = {*elementwise(1), *elementwise(2), "where", "matmul"} - {"positive", "astype"}
    sure = {s.number for s in b.steps if s.op in names}
    found = [n for n in sure if b.values[n].dtype.is_float]
    if not found:
        raise Rejected
    return Ref(b.rng.choice(sorted(found)))


def assign(b: Builder) -> Ref:
    x = computed(b)
    t = b.of(x)
    if not t.ndim:
        raise Rejected
    at = index(b, t.shape)
    part = t[at].shape

    def fits(v: Tensor) -> bool:
        return v.dtype is t.dtype and v.ndim <= len(part) and _becomes(v.shape, part)

    value: Any = 0.25 if b.rng.random() < 0.2 else b.pick(fits)
    return b.add("setitem", x, value, index=at)


def _becomes(shape: Shape, target: Shape) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def update(b: Builder) -> Ref:
    x = computed(b)
    t = b.of(x)
    y = b.pick(lambda v: v.dtype is t.dtype and _becomes(v.shape, t.shape))
    return b.add(b.rng.choice(("iadd", "isub", "imul")), x, y)


def creation(b: Builder) -> Ref:
    """A constant made inside the program, and what is done with it."""
    x = b.floating()
    shape, dtype = b.of(x).shape, str(b.of(x).dtype)
    name = b.rng.choice(("full", "full", "arange", "eye"))
    if name == "full":
        made = b.add("full", _beside(b, shape), b.rng.choice((0.0, 1.0, -1.0, 0.5)), dtype=dtype)
    elif name == "arange" and shape and shape[-1]:
        if shape[-1] > 60:
            raise Rejected
        made = b.add("arange", shape[-1], dtype=dtype)
    elif name == "eye" and shape:
        made = b.add("eye", shape[-1], dtype=dtype)
    else:
        raise Rejected
    return b.add(b.rng.choice(("add", "multiply", "subtract")), x, made)


MAKERS: dict[str, tuple[float, Callable[[Builder], Any]]] = {
    "unary": (4, unary),
    "binary": (5, binary),
    "where": (1, where),
    "clamp": (0.4, clamp),
    "astype": (0.7, astype),
    "reduction": (3, reduction),
    "against_rows": (1.5, against_rows),
    "whole_reduction": (0.7, whole_reduction),
    "reshape": (1, reshape),
    "permute": (1, permute),
    "broadcast": (0.7, broadcast),
    "getitem": (1, getitem),
    "small_move": (1, small_move),
    "triangle": (0.3, triangle),
    "pad": (0.5, pad),
    "concat": (0.7, concat),
    "stack": (0.4, stack),
    "split": (0.4, split),
    "matmul": (1.2, layers.matmul),
    "linear": (0.7, layers.linear),
    "conv2d": (0.5, layers.conv2d),
    "pool": (0.4, layers.pool),
    "rows": (1.2, layers.rows),
    "losses": (0.5, layers.losses),
    "attention": (0.3, layers.attention),
    "picks": (1, layers.picks),
    "assign": (0.6, assign),
    "update": (0.6, update),
    "creation": (0.5, creation),
    "sample": (3, from_sample),
}
