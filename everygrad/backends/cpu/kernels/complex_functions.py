"""Complex functions for which NumPy's lose digits or differ from the Array API standard.

NumPy's `log1p` takes the logarithm of |1 + z|, in which a small z is lost; its `expm1` multiplies
infinities by zero; its `sign` takes an infinity beside a NaN for a direction; its division goes
through a reciprocal, which overflows where the divisor is subnormal.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def div(x: Any, y: Any) -> Any:
    """x / y, also for a subnormal y."""
    out = np.divide(x, y)
    if np.isfinite(out).all():
        return out
    limits = np.finfo(out.dtype)
    small = np.maximum(np.abs(np.real(y)), np.abs(np.imag(y))) < limits.smallest_normal
    scale = np.where(small, limits.dtype.type(2.0 ** (limits.nmant + 1)), limits.dtype.type(1))
    return np.divide(_scaled(x, scale), _scaled(y, scale))


def log1p(z: Any) -> Any:
    """log(1 + z), to the last digits of both parts near z = 0."""
    out = np.log1p(z)
    x, y = (part.astype(np.float64) for part in (np.real(z), np.imag(z)))
    distance = np.hypot(x + 1, y)
    near = (distance > 0.5) & (distance < 3)  # elsewhere the logarithm is not small
    x, y = np.where(near, x, 0), np.where(near, y, 0)
    size = 0.5 * np.log1p(x * (2 + x) + y * y)  # (1 + x)^2 + y^2, less 1
    return _from_parts(np.where(near, size, np.real(out)), np.imag(out), z.dtype)


def expm1(z: Any) -> Any:
    """expm1 of a complex number; exp(z) - 1 at 0 and where either is not finite."""
    out = np.expm1(z)
    usual = (z != 0) & np.isfinite(z) & np.isfinite(out)
    return np.where(usual, out, np.exp(z) - z.dtype.type(1))


def sign(z: Any) -> Any:
    """z / |z|, 0 at 0, NaN in both parts where z has one."""
    return np.where(np.isnan(z), z.dtype.type(complex(np.nan, np.nan)), np.sign(z))


def _scaled(z: Any, scale: Any) -> Any:
    """z times a real number, part by part, so that infinities stay as they are."""
    return _from_parts(np.real(z) * scale, np.imag(z) * scale, z.dtype)


def _from_parts(real: Any, imag: Any, dtype: Any) -> Any:
    """The numbers with these parts; real + 1j * imag would lose signs and infinities."""
    out = np.empty(np.shape(real), dtype)
    out.real, out.imag = real, imag
    return out
