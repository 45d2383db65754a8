"""The dtypes, and what two of them make together.

A `DType` is a name with facts; NumPy's dtype objects appear only as `DType.np`, so that a backend
without NumPy arrays can use the same table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from everygrad.errors import ArgumentError, DtypeError


class DType:
    """One element type. There is exactly one object for each; compare with `is` or `==`."""

    __slots__ = ("bits", "itemsize", "kind", "name", "np")

    def __init__(self, name: str, kind: str, np_type: Any) -> None:
        self.name = name
        self.kind = kind  # "bool", "int", "uint", "float", "complex"
        self.np: np.dtype[Any] = np.dtype(np_type)
        self.itemsize: int = self.np.itemsize
        self.bits: int = 8 * self.itemsize

    def __repr__(self) -> str:
        return f"everygrad.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """What NumPy asks for: `np.zeros(3, dtype=x.dtype)` takes ours as one of its own."""
        return self.np

    @property
    def is_float(self) -> bool:
        """Real floating point."""
        return self.kind == "float"

    @property
    def is_floating_point(self) -> bool:
        """`is_float` in PyTorch's word."""
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned; bool is not an integer."""
        return self.kind in ("int", "uint")

    @property
    def is_differentiable(self) -> bool:
        return self.kind in ("float", "complex")


bool_ = DType("bool", "bool", np.bool_)
int8 = DType("int8", "int", np.int8)
int16 = DType("int16", "int", np.int16)
int32 = DType("int32", "int", np.int32)
int64 = DType("int64", "int", np.int64)
uint8 = DType("uint8", "uint", np.uint8)
uint16 = DType("uint16", "uint", np.uint16)
uint32 = DType("uint32", "uint", np.uint32)
uint64 = DType("uint64", "uint", np.uint64)
float16 = DType("float16", "float", np.float16)
bfloat16 = DType("bfloat16", "float", ml_dtypes.bfloat16)
float32 = DType("float32", "float", np.float32)
float64 = DType("float64", "float", np.float64)
complex64 = DType("complex64", "complex", np.complex64)
complex128 = DType("complex128", "complex", np.complex128)

ALL = (
    bool_,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    bfloat16,
    float32,
    float64,
    complex64,
    complex128,
)
FLOATS = (float16, bfloat16, float32, float64)
COMPLEX = (complex64, complex128)
INTEGERS = tuple(d for d in ALL if d.is_integer)

DEFAULT_FLOAT = float32
DEFAULT_INT = int64
DEFAULT_COMPLEX = complex64

BY_NAME = {d.name: d for d in ALL}
FROM_NP: dict[Any, DType] = {d.np: d for d in ALL}
_OF_NUMBER = {bool: bool_, int: DEFAULT_INT, float: DEFAULT_FLOAT, complex: DEFAULT_COMPLEX}
_OF_TYPE = {bool: bool_, int: int64, float: float64, complex: complex128}
_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def names_dtype(spec: Any) -> bool:
    """Whether this is a dtype, or a dtype's name: what stands where a device may stand too.

    >>> names_dtype("float64"), names_dtype("cpu")
    (True, False)
    """
    return isinstance(spec, DType) or (isinstance(spec, str) and spec in BY_NAME)


def as_dtype(spec: Any) -> DType:
    """The `DType` meant by a DType, a name, a NumPy dtype or a Python type.

    Python's types mean what they mean to NumPy and PyTorch: `float` is float64 and `complex` is
    complex128, which is what Python computes in, so that `x.astype(float)` never narrows. Numbers
    are another matter: 1.5 has no width of its own, and `eg.tensor(1.5)` is of the default dtype,
    float32. Where a device has no float64 (WebGPU), `float` is refused as "float64" is.

    >>> as_dtype("float16"), as_dtype(int), as_dtype(np.uint8)
    (everygrad.float16, everygrad.int64, everygrad.uint8)
    >>> as_dtype(float), as_dtype("float"), of_scalar(1.5)
    (everygrad.float64, everygrad.float64, everygrad.float32)
    """
    if isinstance(spec, DType):
        return spec
    found = _OF_TYPE.get(spec) if isinstance(spec, type) else None
    if found is None and isinstance(spec, str):
        found = BY_NAME.get(spec)
    if found is None and spec is not None:  # np.dtype(None) is float64
        try:
            found = FROM_NP.get(np.dtype(spec))
        except TypeError:
            found = None
    if found is None:
        names = ", ".join(BY_NAME)
        # a call such as zeros(2, 3), which PyTorch has
        cure = "; several sizes are one tuple: (2, 3)" if isinstance(spec, int) else ""
        raise DtypeError(f"{spec!r} is not a dtype everygrad has{cure}; it has {names}")
    return found


def _promote_within(a: DType, b: DType) -> DType | None:
    """Promotion of two different dtypes of one rank; None where there is no common type."""
    if {a.kind, b.kind} == {"int", "uint"}:
        signed, unsigned = (a, b) if a.kind == "int" else (b, a)
        bits = max(signed.bits, 2 * unsigned.bits)
        return BY_NAME.get(f"int{bits}")
    if a.bits == b.bits:  # float16 with bfloat16
        return float32
    return a if a.bits > b.bits else b


def promote(a: DType, b: DType, op: str = "promotion") -> DType:
    """The dtype that holds both: the Array API's table in a kind, the higher kind between kinds.

    >>> promote(int8, uint8), promote(float16, bfloat16), promote(int64, float16)
    (everygrad.int16, everygrad.float32, everygrad.float16)
    """
    if a is b:
        return a
    rank_a, rank_b = _RANK[a.kind], _RANK[b.kind]
    if rank_a == rank_b:
        found = _promote_within(a, b)
        if found is None:
            raise DtypeError(f"{op}: no dtype holds both {a} and {b}; cast one with astype()")
        return found
    low, high = (a, b) if rank_a < rank_b else (b, a)
    if high.is_complex and low is float64:
        return complex128
    return high


def of_scalar(value: Any, beside: DType | None = None) -> DType:
    """The dtype a Python number takes, alone or beside a tensor of dtype `beside`.

    A number never widens a tensor of its own kind or a higher one.
    """
    kind = type(value)  # or of a class derived from a number's, such as a tensor's size
    alone = _OF_NUMBER.get(kind) or next(_OF_NUMBER[k] for k in kind.__mro__ if k in _OF_NUMBER)
    if beside is None or _RANK[alone.kind] > _RANK[beside.kind]:
        if beside is float64 and alone is complex64:
            return complex128
        return alone
    return beside


def real_of(dtype: DType) -> DType:
    """The dtype of the real part.

    >>> real_of(complex128)
    everygrad.float64
    """
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """The complex dtype whose parts are `dtype`."""
    return complex128 if dtype in (float64, complex128) else complex64


def accumulator(dtype: DType) -> DType:
    """What sums of `dtype` are kept in: half floats in float32, small integers in 64 bits."""
    if dtype in (float16, bfloat16):
        return float32
    if dtype.kind == "uint":
        return uint64
    return int64 if dtype.kind in ("int", "bool") else dtype


# --- the Array API's functions about dtypes ------------------------------------------------------

KINDS: dict[str, tuple[str, ...]] = {  # the standard's names, in ours
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}


class FloatInfo(NamedTuple):
    """The limits of a floating-point dtype; of a complex one, those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerInfo(NamedTuple):
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def _of(value: Any) -> DType:
    """The dtype meant by a dtype or by an array of one."""
    return as_dtype(getattr(value, "dtype", value))


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating-point dtype, or of a tensor's; of a complex one, its parts' limits.

    >>> finfo(float32).eps == 2.0**-23, finfo(complex128).dtype
    (True, everygrad.float64)
    """
    given = _of(type)
    if not given.is_differentiable:
        raise DtypeError(f"finfo: {given} is not a floating-point dtype; use iinfo")
    dtype = real_of(given)
    facts: Any = ml_dtypes.finfo(dtype.np)  # type: ignore[no-untyped-call]  # it knows bfloat16 too
    eps, smallest = float(facts.eps), float(facts.smallest_normal)
    return FloatInfo(dtype.bits, eps, float(facts.max), float(facts.min), smallest, dtype)


def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer dtype, or of a tensor's.

    >>> iinfo(int8).min, iinfo(uint16).max
    (-128, 65535)
    """
    dtype = _of(type)
    if not dtype.is_integer:
        raise DtypeError(f"iinfo: {dtype} is not an integer dtype; use finfo")
    facts = np.iinfo(dtype.np)
    return IntegerInfo(dtype.bits, int(facts.max), int(facts.min), dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is `kind`: a dtype, one of the standard's kinds, or any of a tuple of those.

    >>> isdtype(float16, "real floating"), isdtype(int8, ("bool", uint8))
    (True, False)
    """
    own = as_dtype(dtype)
    if isinstance(kind, tuple):
        found = [isdtype(own, k) for k in kind]  # all of them: a wrong one is never passed over
        return any(found)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ArgumentError(f"isdtype: {kind!r} is not a kind; they are {', '.join(KINDS)}")
        return own.kind in KINDS[kind]
    if not isinstance(kind, DType):
        raise DtypeError(f"isdtype: a kind is a dtype, a string or a tuple of them, got {kind!r}")
    return own is kind


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex | np.generic)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that an op on these makes: tensors, dtypes and Python numbers.

    Numbers never widen a dtype of their own kind.

    >>> result_type(int8, uint8), result_type(float16, 2.5), result_type(int32, 2.5)
    (everygrad.int16, everygrad.float16, everygrad.float32)
    """
    if not arrays_and_dtypes:
        raise ArgumentError("result_type: needs a tensor or a dtype at least")
    common: DType | None = None
    numbers = [v for v in arrays_and_dtypes if _is_number(v)]
    for value in arrays_and_dtypes:
        if not _is_number(value):
            own = _of(value)
            common = own if common is None else promote(common, own, "result_type")
    for number in numbers:
        common = of_scalar(number.item() if isinstance(number, np.generic) else number, common)
    assert common is not None
    return common


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion turns `from_`, a dtype or a tensor, into `to`.

    >>> can_cast(int8, int16), can_cast(float64, float32), can_cast(uint64, int64)
    (True, False, False)
    """
    source, wanted = _of(from_), as_dtype(to)
    try:
        return promote(source, wanted) is wanted
    except DtypeError:  # no dtype holds both
        return False


def rounded(values: Any, dtype: DType) -> Any:
    """A number or NumPy array as an array of a floating `dtype`, each element rounded once.

    ml_dtypes goes from float64 and integers to bfloat16 through float32, which rounds twice. A
    float32 whose last bit says "inexact" (rounded to odd) can be rounded again.

    >>> float(rounded(1 + 2**-8, bfloat16)), float(rounded(1 + 2**-8 + 2**-40, bfloat16))
    (1.0, 1.0078125)
    """
    array = np.asarray(values)
    if array.dtype == object:  # Python's integers beyond 64 bits
        array = array.astype(np.float64)
    if dtype is not bfloat16 or array.dtype.itemsize < 4 or array.dtype == np.float32:
        return array.astype(dtype.np, copy=False)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        inside = (array < 1 << 53) & (array >= 0 if array.dtype.kind == "u" else array > -1 << 53)
        odd = (array >> 11) | ((array & 0x7FF) != 0).astype(array.dtype)
        array = np.where(inside, array.astype(np.float64), odd.astype(np.float64) * 2048.0)
    wide = array.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        near = wide.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32) - (abs(back) > abs(wide)).astype(np.uint32)
    return (bits | ((back != wide) & (wide == wide))).view(np.float32).astype(dtype.np)
