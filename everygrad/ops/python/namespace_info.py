"""What the namespace says of itself: the Array API's `__array_namespace_info__`."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends import base
from everygrad.dtypes import DType
from everygrad.errors import DeviceError, DtypeError

# Devices that have all the standard asks for. WebGPU has neither float64 nor complex128: it
# is there for whoever names it, but is not among those that portable code may try one by one.
_COMPLETE = ("cpu", "cuda")
_BEYOND = (dtypes.float16, dtypes.bfloat16)  # dtypes that the standard does not know
_MOST_AXES = 64  # NumPy's limit, and so the CPU's


def _is_there(device: str) -> bool:
    try:
        base.get(device)
    except DeviceError:
        return False
    return True


def _has(device: str, dtype: DType) -> bool:
    """Whether the device takes this dtype."""
    try:
        base.get(device).from_numpy(np.zeros((1,), dtype.np))
    except DtypeError:
        return False
    return True


class __array_namespace_info__:  # noqa: N801  # the Array API's name
    """Facts about the namespace, each a method.

    >>> import everygrad as eg
    >>> eg.__array_namespace_info__().default_dtypes()["real floating"]
    everygrad.float32
    """

    def capabilities(self) -> dict[str, Any]:
        """What the standard leaves open: both kinds of results whose size depends on values are
        there, in eager mode."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": _MOST_AXES,
        }

    def default_device(self) -> str:
        """Where tensors are made if nothing else is said."""
        return "cpu"

    def devices(self) -> list[str]:
        """The devices of this machine that have every dtype of the standard."""
        return [device for device in _COMPLETE if _is_there(device)]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes that Python numbers become; the same on every device."""
        base.get(device or "cpu")
        return {
            "real floating": dtypes.DEFAULT_FLOAT,
            "complex floating": dtypes.DEFAULT_COMPLEX,
            "integral": dtypes.DEFAULT_INT,
            "indexing": dtypes.DEFAULT_INT,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes of this kind that the device has, by name."""
        known = [d for d in dtypes.ALL if d not in _BEYOND]
        chosen = [d for d in known if kind is None or dtypes.isdtype(d, kind)]
        return {d.name: d for d in chosen if _has(device or "cpu", d)}
