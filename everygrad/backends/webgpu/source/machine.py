"""The numbers of an adapter, as lowerings ask for them."""

from __future__ import annotations

from everygrad import dtypes
from everygrad.codegen.machine import Machine

WORKGROUP = 256


def machine_of(shared_bytes: int, is_software: bool) -> Machine:
    """The numbers of an adapter."""
    return Machine(
        threads=WORKGROUP,
        wide_float=dtypes.float32,
        narrow_index=dtypes.uint32,
        narrow=1 << 31,
        wide_index=None,
        parallel=1 if is_software else 1 << 16,
        shared_bytes=shared_bytes,
        padded=True,
    )
