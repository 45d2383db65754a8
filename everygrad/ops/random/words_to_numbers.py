"""Random words as numbers: what one element of a draw is, given its 32 or 64 random bits.

Each is one elementwise op, so that a draw is the bits and one pass over them, eager too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.dtypes import DType
from everygrad.ops.elementwise.basic import sqrt
from everygrad.ops.elementwise.math import cos, log
from everygrad.ops.record.families import Elementwise
from everygrad.ops.record.spec import register, sample

_KEPT = {dtypes.float32: 24, dtypes.float16: 11, dtypes.bfloat16: 8}  # bits that a dtype holds


class OfWords(Elementwise):
    """Numbers of the dtype that is asked for, made of uint32."""

    def out_dtype(self, inputs: Sequence[DType], params: dict[str, Any]) -> DType:
        wanted: DType = params["dtype"]
        return wanted

    def __call__(self, words: Sequence[Tensor], dtype: DType) -> Tensor:
        return apply(self, *words, dtype=dtype)


def _unit(word: Any, *, dtype: DType) -> Any:
    kept = _KEPT[dtype]
    return (word >> (32 - kept)).cast(dtypes.float32) * 2.0**-kept


def _unit_wide(high: Any, low: Any, *, dtype: DType) -> Any:
    upper = (high >> 5).cast(dtypes.float64) * 67108864.0
    return (upper + (low >> 6).cast(dtypes.float64)) * 2.0**-53


def polar(u: Any, v: Any) -> Any:
    """Box and Muller's normal number of two uniform ones, of tensors too."""
    return sqrt(-2.0 * log(1.0 - u)) * cos(v * (2.0 * math.pi))  # 1 - u is never 0


def _normal(x: Any, y: Any, *, dtype: DType) -> Any:
    return polar(_unit(x, dtype=dtypes.float32), _unit(y, dtype=dtypes.float32))


def _integer(word: Any, count: Any, low: Any, *, dtype: DType) -> Any:
    scaled = (word.cast(dtypes.uint64) * count.cast(dtypes.uint64)) >> 32
    return scaled.cast(dtypes.int64) + low.cast(dtypes.int64)


# uniform in [0, 1); in (0, 1), as fine near 0 as 32 bits make it; normal; integers from `low` on
UNIT = OfWords("u32_to_uniform", _unit)
UNIT_WIDE = OfWords("u64_to_wide_uniform", _unit_wide)  # no record: not every device has float64
FINE = OfWords("u64_to_uniform", lambda word, *, dtype: (word.cast(dtype) + 0.5) * 2.0**-32)
NORMAL = OfWords("normal_of_words", _normal)
INTEGER = OfWords("integer_of_words", _integer)


def _samples(dtypes_: Sequence[str], count: int, *more: Any) -> Any:
    """Words, the smallest and the largest among them, and the dtype to make of them."""

    def make() -> Any:
        rng = np.random.default_rng(0)
        for name in dtypes_:
            words = [rng.integers(0, 2**32, 6, np.uint32) for _ in range(count)]
            for k, w in enumerate(words):
                w[k], w[-1] = 0, 2**32 - 1
            yield sample(*words, *more, name)

    return make


def _enter(op: OfWords, reference: str, samples: Any, **notes: Any) -> None:
    def function(*given: Any) -> Tensor:
        *words, name = given
        return op(words, dtypes.as_dtype(name))

    register(
        op,
        function,
        reference=f"tests.support.references.random:{reference}",
        namespace="internal",
        samples=samples,
        **notes,
    )


_enter(UNIT, "unit", _samples(("float32", "float16", "bfloat16"), 1), coarse=True)
_enter(FINE, "fine_unit", _samples(("float32",), 1))
_enter(NORMAL, "normal", _samples(("float32", "float16"), 2), coarse=True)
_enter(
    INTEGER,
    "integer_from",
    _samples(("int64", "int32"), 1, np.array(1000, np.uint64), np.array(-3, np.int64)),
)
