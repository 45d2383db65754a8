"""What the public test suite of the Array API draws, and other tests here do not.

Each of these was found by drawing as that suite does, some hundred times for each of its tests.
"""

from __future__ import annotations

import cmath
import itertools
import math

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, ShapeError
from tests.support.checks import is_narrow


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_full_keeps_the_sign_of_zero(shape: tuple[int, ...], device: str) -> None:
    """Eagerly and compiled; zeros stay zeros of the positive sign."""
    for dtype in (eg.float32,) if is_narrow(device) else (eg.float32, eg.float64, eg.float16):
        for value, sign in ((-0.0, True), (0.0, False), (0, False), (False, False)):
            kept = eg.full(shape, value, dtype, device)
            traced = eg.jit(lambda v=value, d=dtype: eg.full(shape, v, d, device))()
            for out in (kept, traced, eg.full_like(eg.ones(shape, dtype, device), value)):
                assert eg.signbit(out).to("cpu").numpy().tolist() == np.full(shape, sign).tolist()


def test_full_keeps_the_signs_of_complex_zeros() -> None:
    for signs in itertools.product((0.0, -0.0), repeat=2):
        out = eg.full((2,), complex(*signs), eg.complex128)
        for part, sign in zip((eg.real(out), eg.imag(out)), signs, strict=True):
            assert eg.signbit(part).tolist() == [math.copysign(1, sign) < 0] * 2


@pytest.mark.parametrize("name", ["int64", "uint64"])
def test_linspace_meets_integer_ends(name: str) -> None:
    """float64 has 53 bits; both ends have 64."""
    dtype = getattr(eg, name)
    info = eg.iinfo(dtype)
    odd = 2**53 + 1
    for start, stop in ((0, odd), (odd, odd), (info.min, info.max), (info.max, info.min)):
        for num in (1, 2, 5):
            out = eg.linspace(start, stop, num, dtype=dtype).tolist()
            assert out[0] == start
            assert num == 1 or out[-1] == stop
            open_ended = eg.linspace(start, stop, num, dtype=dtype, endpoint=False).tolist()
            assert open_ended == eg.linspace(start, stop, num + 1, dtype=dtype).tolist()[:-1]
    assert eg.linspace(0, 1, 0, dtype=dtype).shape == (0,)
    for wrong in (2**64, -(2**63) - 1, float("nan")):
        with pytest.raises(ArgumentError, match=f"linspace: .* does not fit into {name}"):
            eg.linspace(0, wrong, 3, dtype=dtype)


def test_vecdot_broadcasts_all_axes_but_its_own(device: str) -> None:
    """A size of 1 along the axis is another size, as the standard has it."""
    a, b = (np.arange(n, dtype=np.float32) for n in (6, 3))
    x, y = eg.asarray(a.reshape(2, 1, 3), device=device), eg.asarray(b.reshape(1, 3), device=device)
    want = np.vecdot(a.reshape(2, 1, 3), b.reshape(1, 3))
    np.testing.assert_allclose(eg.vecdot(x, y).to("cpu").numpy(), want)
    across = eg.linalg.vecdot(x, y, axis=-2).to("cpu").numpy()
    np.testing.assert_allclose(across, a.reshape(2, 3) * b)
    for left, right in (((1,), (3,)), ((3,), (1,)), ((0,), (1,)), ((2, 3), (1,))):
        with pytest.raises(ShapeError, match="vecdot: along axis -1 x has"):
            eg.vecdot(eg.ones(left, device=device), eg.ones(right, device=device))


def test_tensors_of_one_number_stand_for_it() -> None:
    """As an end of a slice, in `cmath`, and as what iterating gives."""
    x, counts = eg.arange(6), eg.asarray([1, 2, 3], dtype=eg.uint8)
    start: eg.Tensor | int = 0
    for i, count in enumerate(counts):
        end = start + count
        assert x[start:end].tolist() == list(range(6))[i * (i + 1) // 2 :][: i + 1]
        start = end
    for dtype in (eg.int8, eg.uint64, eg.float32, eg.complex128):
        one = eg.ones((), dtype=dtype)
        assert cmath.isfinite(one)
        assert cmath.isclose(one, 1)
