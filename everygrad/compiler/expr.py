"""Scalar expressions: what a kernel does to one element.

An op's body is a Python function of `Expr`s. Calling it once gives a tree of about fifty intrinsics
without dtypes; `lower` types it for given inputs into a `Program`, a printable straight line of
instructions. Every renderer (NumPy, LLVM, WGSL, CUDA C++) is a loop over that line.

>>> x, y = Expr.inputs(2)
>>> print(lower(x * y + 1, [dtypes.float32, dtypes.float32]))
%0: float32 = input 0
%1: float32 = input 1
%2: float32 = mul %0 %1
%3: float32 = const 1.0
%4: float32 = add %2 %3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError

# name -> (number of arguments, what the result's dtype is)
INTRINSICS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "pow", "floordiv", "mod", "atan2"), (2, "same")),
    # max and min give NaN when either side is NaN
    **dict.fromkeys(("max", "min"), (2, "same")),
    **dict.fromkeys(("neg", "sign", "floor", "ceil", "trunc", "round", "sqrt"), (1, "same")),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "erf"), (1, "same")),
    "ndtr": (1, "same"),  # the share of a standard normal below x
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), (1, "same")),
    **dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), (1, "same")),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), (2, "bool")),
    **dict.fromkeys(("isnan", "isinf"), (1, "bool")),
    **dict.fromkeys(("and", "or", "xor", "shl", "shr"), (2, "same")),
    # a float's bits as an integer of its width, and back; integers are their own bits
    "bits": (1, "bits"),
    "unbits": (1, "float"),
    "mulhi": (2, "same"),  # the high half of an unsigned product; Philox is made of it
    "not": (1, "same"),
    "conj": (1, "same"),
    **dict.fromkeys(("abs", "real", "imag", "angle"), (1, "real")),
    "select": (3, "branches"),
}

# those that are more than a few instructions, as a rule
FUNCTIONS = frozenset((
    "pow", "atan2", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "erf", "ndtr",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
))  # fmt: skip


MOST_SHORT = 4  # intrinsics of an expression that is computed as fast as its result is read


class Expr:
    """One scalar value: an input, a constant, a cast, or an intrinsic of other expressions."""

    __slots__ = ("args", "fn", "value")

    def __init__(self, fn: str, args: tuple[Expr, ...] = (), value: Any = None) -> None:
        self.fn = fn
        self.args = args
        self.value = value  # input: its number; const: the Python number; cast: the DType

    @staticmethod
    def inputs(count: int) -> list[Expr]:
        """The arguments a body is called with."""
        return [Expr("input", (), i) for i in range(count)]

    def cast(self, dtype: DType) -> Expr:
        """This value converted to `dtype`."""
        return Expr("cast", (self,), dtype)

    def __repr__(self) -> str:
        if self.fn in ("input", "const"):
            return f"x{self.value}" if self.fn == "input" else repr(self.value)
        shown = ", ".join(map(repr, self.args))
        return f"{self.fn}({shown})" if self.fn != "cast" else f"{self.value}({shown})"

    def __add__(self, other: Any) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Any) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return call("div", other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return call("floordiv", self, other)

    def __mod__(self, other: Any) -> Expr:
        return call("mod", self, other)

    def __pow__(self, other: Any) -> Expr:
        return call("pow", self, other)

    def __rpow__(self, other: Any) -> Expr:
        return call("pow", other, self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __invert__(self) -> Expr:
        return call("not", self)

    def __and__(self, other: Any) -> Expr:
        return call("and", self, other)

    def __or__(self, other: Any) -> Expr:
        return call("or", self, other)

    def __xor__(self, other: Any) -> Expr:
        return call("xor", self, other)

    def __rshift__(self, other: Any) -> Expr:
        return call("shr", self, other)

    def __lt__(self, other: Any) -> Expr:
        return call("lt", self, other)

    def __le__(self, other: Any) -> Expr:
        return call("le", self, other)

    def __gt__(self, other: Any) -> Expr:
        return call("gt", self, other)

    def __ge__(self, other: Any) -> Expr:
        return call("ge", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]  # builds, as < does
        return call("eq", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]  # builds, as < does
        return call("ne", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("a scalar expression has no value while it is being built; use where()")


class ByPrecision(float):
    """A constant that is another number in float64: where a body says how many digits there are."""

    wide: float

    def __new__(cls, narrow: float, wide: float) -> ByPrecision:
        made = super().__new__(cls, narrow)
        made.wide = wide
        return made


def as_expr(value: Any) -> Expr:
    """An expression as it is; a Python number as a constant."""
    return value if isinstance(value, Expr) else Expr("const", (), value)


def call(fn: str, *args: Any) -> Expr:
    """The intrinsic `fn` of `args`."""
    arity, _ = INTRINSICS[fn]
    if len(args) != arity:
        raise ArgumentError(f"{fn} takes {arity} arguments, got {len(args)}")
    return Expr(fn, tuple(map(as_expr, args)))


def is_short(root: Any) -> bool:
    """Whether an expression is computed about as fast as its result is read from memory: a few
    intrinsics, none of which is a function.

    >>> x, y = Expr.inputs(2)
    >>> is_short(x * y + 1), is_short(call("exp", x))
    (True, False)
    """
    seen: set[int] = set()
    todo = [root] if isinstance(root, Expr) else []
    for e in todo:
        if id(e) not in seen and e.fn not in ("input", "const"):
            seen.add(id(e))
            todo += e.args
    found = {e.fn for e in todo if id(e) in seen}
    return len(seen) <= MOST_SHORT and not found & FUNCTIONS


class Inst(NamedTuple):
    """One instruction of a Program; `args` are the numbers of earlier instructions."""

    fn: str
    dtype: DType
    args: tuple[int, ...]
    value: Any = None

    def __str__(self) -> str:
        shown = [self.fn, *(f"%{a}" for a in self.args)]
        if self.fn in ("input", "const"):
            shown.append(str(self.value))
        return f"{self.dtype} = {' '.join(shown)}"


class Program(NamedTuple):
    """A typed body: instructions in order; the last one is the result."""

    insts: tuple[Inst, ...]

    @property
    def dtype(self) -> DType:
        return self.insts[-1].dtype

    def __str__(self) -> str:
        return "\n".join(f"%{i}: {inst}" for i, inst in enumerate(self.insts))


_HALF = (dtypes.float16, dtypes.bfloat16)
_BITS = {dtypes.float32: dtypes.int32, dtypes.float64: dtypes.int64}
_UNBITS = {bits: real for real, bits in _BITS.items()}


def _result(rule: str, dtype: DType) -> DType:
    """The dtype of an intrinsic's result, by its rule in INTRINSICS and its arguments' dtype."""
    if rule == "bool":
        return dtypes.bool_
    if rule == "real":
        return dtypes.real_of(dtype)
    if rule == "bits":
        return _BITS.get(dtype, dtype)
    return _UNBITS[dtype] if rule == "float" else dtype


class _Lowering:
    """Types one tree. Equal subtrees become one instruction; half floats become float32."""

    def __init__(self, inputs: Sequence[DType]) -> None:
        self.inputs = inputs
        self.insts: list[Inst] = []
        self.known: dict[tuple[Any, ...], int] = {}
        self.memo: dict[int, int | None] = {}
        # what constants are that meet nothing else: the branches of a condition, beside float64
        floats = {dtypes.real_of(d) for d in inputs if d.kind in ("float", "complex")}
        self.widest = dtypes.float64 if dtypes.float64 in floats else None

    def emit(self, fn: str, dtype: DType, args: tuple[int, ...] = (), value: Any = None) -> int:
        key = (fn, dtype, args, repr(value))  # repr: 0.0 and -0.0 are different constants
        if key not in self.known:
            self.known[key] = len(self.insts)
            self.insts.append(Inst(fn, dtype, args, value))
        return self.known[key]

    def constant(self, value: Any, dtype: DType) -> int:
        convert = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}
        if dtype is dtypes.float64 and isinstance(value, ByPrecision):
            value = value.wide
        if dtype is dtypes.bfloat16:  # what is made of it rounds twice
            value = dtypes.rounded(value, dtype)
        return self.emit("const", dtype, (), convert[dtype.kind](value))

    def convert(self, at: int, dtype: DType) -> int:
        return at if self.insts[at].dtype is dtype else self.emit("cast", dtype, (at,))

    def leaf(self, e: Expr) -> int | None:
        if e.fn == "const":
            return None  # takes the dtype of what it meets
        dtype = self.inputs[e.value]
        at = self.emit("input", dtype, (), e.value)
        return self.convert(at, dtypes.float32) if dtype in _HALF else at

    def settle(self, args: Sequence[Expr], ats: Sequence[int | None]) -> list[int]:
        """The arguments in one dtype: constants follow the others."""
        common: DType | None = None
        for at in ats:
            if at is not None:
                found = self.insts[at].dtype
                common = found if common is None else dtypes.promote(common, found)
        if common is None and any(isinstance(e.value, float) for e in args):
            common = self.widest
        for e, at in zip(args, ats, strict=True):
            if at is None:
                common = dtypes.of_scalar(e.value, common)
        assert common is not None
        return [
            self.constant(e.value, common) if at is None else self.convert(at, common)
            for e, at in zip(args, ats, strict=True)
        ]

    def visit(self, e: Expr) -> int | None:
        if e.fn in ("input", "const"):
            return self.leaf(e)
        ats = [self.memo[id(a)] for a in e.args]
        if e.fn == "cast":
            if ats[0] is None:
                return self.constant(e.args[0].value, e.value)
            return self.convert(ats[0], e.value)
        if e.fn == "select":
            (cond,) = self.settle(e.args[:1], ats[:1])
            yes, no = self.settle(e.args[1:], ats[1:])
            return self.emit("select", self.insts[yes].dtype, (cond, yes, no))
        args = self.settle(e.args, ats)
        dtype = self.insts[args[0]].dtype
        rule = INTRINSICS[e.fn][1]
        return self.emit(e.fn, _result(rule, dtype), tuple(args))

    def run(self, root: Expr) -> None:
        stack = [(root, False)]
        while stack:
            e, ready = stack.pop()
            if id(e) in self.memo:
                continue
            if ready or not e.args:
                self.memo[id(e)] = self.visit(e)
            else:
                stack.append((e, True))
                stack.extend((a, False) for a in reversed(e.args))


def lower(root: Expr, inputs: Sequence[DType], out: DType | None = None) -> Program:
    """`root` typed for inputs of the given dtypes, ending in a value of dtype `out` if given."""
    lowering = _Lowering(inputs)
    lowering.run(root)
    at = lowering.memo[id(root)]
    if at is None:
        at = lowering.constant(root.value, out or dtypes.of_scalar(root.value))
    numbers = [d for d in inputs if d is not dtypes.bool_]  # conditions do not decide the dtype
    if out is None and numbers and all(d in _HALF for d in numbers):
        out = numbers[0] if lowering.insts[at].dtype is dtypes.float32 else None
    if out is not None:
        at = lowering.convert(at, out)
    if at != len(lowering.insts) - 1:  # the result was computed early: name it last
        lowering.insts.append(Inst("cast", lowering.insts[at].dtype, (at,)))
    return Program(tuple(lowering.insts))


def trace(body: Callable[..., Any], count: int, **params: Any) -> Expr:
    """Call `body` on `count` symbolic inputs."""
    return as_expr(body(*Expr.inputs(count), **params))
