"""Large eager ops run on the compiler's kernels; transposed operands go through tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg

LARGE_OPS = {
    "sum": lambda x: (x.sum(), np.sum(x.numpy(), dtype=np.float64)),
    "rows": lambda x: (x.sum(axis=1), x.numpy().sum(1)),
    "columns": lambda x: (x.sum(axis=0, keepdims=True), x.numpy().sum(0, keepdims=True)),
    "no axes": lambda x: (x.sum(axis=()), x.numpy()),
    "mean": lambda x: (x.mean(axis=1), x.numpy().mean(1)),
    "max": lambda x: (x.max(axis=(0, 1)), x.numpy().max()),
    "min": lambda x: (x.min(axis=0), x.numpy().min(0)),
    "any": lambda x: ((x > 3.9).any(axis=1), (x.numpy() > 3.9).any(1)),
    "concat": lambda x: (eg.concat([x, x], axis=1), np.concatenate([x.numpy()] * 2, 1)),
    "pad": lambda x: (eg.pad(x, ((1, 0), (2, 3))), np.pad(x.numpy(), ((1, 0), (2, 3)))),
    "take": lambda x: (x.take(eg.tensor([5, 0, 5] * 400)), x.numpy()[[5, 0, 5] * 400]),
    "transposed": lambda x: (x.T.reshape(-1), x.numpy().T.reshape(-1)),
    "strided": lambda x: (x[::2].sum(axis=1), x.numpy()[::2].sum(1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("name", LARGE_OPS)
def test_large_eager_ops_are_compiled_and_right(name: str, dtype: str) -> None:
    x = (eg.randn((600, 500)) * 3.0).astype(dtype)
    if name == "mean" and dtype == "int32":
        x = x.astype("float32")
    got, want = LARGE_OPS[name](x)
    tolerance = {"bfloat16": 1e-2, "float32": 1e-5}.get(dtype, 1e-12)
    want = np.asarray(want).astype(np.float64)
    scale = max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(
        got.astype("float64").numpy(), want, rtol=tolerance, atol=tolerance * scale * 10
    )
    again = LARGE_OPS[name](x)[0]
    assert (again == got).all(), "the same bits at every call"


def test_large_eager_sums_are_the_compiled_ones() -> None:
    """The same kernel: the same bits."""
    x = eg.randn((700, 801))
    for axis in (None, 0, 1):
        assert (x.sum(axis=axis) == eg.jit(lambda x, a=axis: x.sum(axis=a))(x)).all()


def test_large_take_checks_its_index() -> None:
    x = eg.randn((600, 500))
    with pytest.raises(IndexError, match="take: index 600 is out of range"):
        x.take(eg.tensor([0, 600] * 300))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "bool", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((130, 140), (1, 0)), ((33, 700), (1, 0)), ((2100, 8), (1, 0)), ((5, 77, 93), (2, 1, 0)),
        ((5, 77, 93), (0, 2, 1)), ((3, 40, 9, 31), (0, 3, 1, 2)), ((64, 9, 65), (2, 0, 1)),
    ],
)  # fmt: skip
def test_transposed_operands(shape: Any, axes: Any, dtype: str) -> None:
    """Tiles, and the remainder at their edges."""
    x = eg.tensor(np.arange(np.prod(shape)).reshape(shape) % 251, dtype)
    want = x.numpy().transpose(axes)
    moved = eg.jit(lambda x: x.permute_dims(axes).reshape(-1))(x)
    assert (moved.numpy() == want.reshape(-1)).all()
    both = eg.jit(lambda x, y: eg.where(y, x.permute_dims(axes), x.permute_dims(axes)))
    assert (both(x, eg.ones(want.shape, dtype="bool")).numpy() == want).all()
