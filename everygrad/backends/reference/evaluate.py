"""One op on NumPy arrays: its result by the reference, and whether another result can be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.backends.reference import (
    copy_index,
    factor_gradients,
    linalg,
    matmul_conv,
    recurrent,
    rows,
)
from everygrad.backends.reference.elementwise import body
from everygrad.backends.reference.tolerance import (
    Accuracy,
    Difference,
    Expected,
    Way,
    difference,
    rounded,
)
from everygrad.compiler.facts import OpFacts
from everygrad.dtypes import FROM_NP
from everygrad.errors import CompileError

EXACT = Accuracy()
WAYS: dict[str, Way] = {
    **copy_index.WAYS,
    **rows.WAYS,
    **recurrent.WAYS,
    **linalg.WAYS,
    **factor_gradients.WAYS,
    **matmul_conv.TRANSFORMS,
}


def is_known(op: OpFacts) -> bool:
    """Whether there is a way to compute an op: by its body, by how it combines, or by its name."""
    if op.family in ("elementwise", "reduction"):
        return True
    return op.name in WAYS or op.name in matmul_conv.ROUNDED or op.name in linalg.CLAIMS


def expected(
    op: OpFacts,
    arrays: Sequence[Any],
    params: dict[str, Any],
    errors: Sequence[Any] | None = None,
    accuracy: Accuracy = EXACT,
) -> Expected:
    """What an op gives; `errors` are what its inputs may be off by, where it is elementwise."""
    with np.errstate(all="ignore"):
        if op.family == "elementwise":
            program = op.program([FROM_NP[a.dtype] for a in arrays], params)
            return body(program, arrays, errors or [0.0] * len(arrays), accuracy)
        if op.family == "reduction":
            return copy_index.reduce(arrays[0], op.combine, op.mean, **params)
        if op.name in matmul_conv.ROUNDED:
            return matmul_conv.ROUNDED[op.name](*arrays, **params, accuracy=accuracy)
        if op.name not in WAYS:
            raise CompileError(f"reference: there is no way to compute {op.name} by NumPy alone")
        return WAYS[op.name](*arrays, **params)


def evaluate(op: OpFacts, arrays: Sequence[Any], params: dict[str, Any], dtype: Any) -> Any:
    """The result of an op in its dtype; of several that are right, one."""
    if op.name in linalg.CHOSEN:
        with np.errstate(all="ignore"):
            return rounded(linalg.chosen(op.name, arrays, params), dtype)
    return rounded(expected(op, arrays, params).value, dtype)


def fault(
    op: OpFacts,
    arrays: Sequence[Any],
    params: dict[str, Any],
    got: Any,
    errors: Sequence[Any] | None = None,
    accuracy: Accuracy = EXACT,
) -> Difference | None:
    """The element of a result that cannot be right, given the inputs; None if all can."""
    if op.name in linalg.CLAIMS:
        return linalg.broken(op.name, got, arrays, params)
    return difference(got, expected(op, arrays, params, errors, accuracy), accuracy)
