"""The numbers of an adapter, as lowerings ask for them."""

from __future__ import annotations

from collections.abc import Callable

from everygrad import dtypes
from everygrad.codegen.machine import Machine
from everygrad.compiler.fuse import are_few
from everygrad.compiler.thresholds import edge

WORKGROUP = 256
# elements of a row that is shared by workgroups, where there are fewer rows than so many
LONG = edge(__name__, "LONG", 1 << 14, "size")
MANY = edge(__name__, "MANY", 256, "size")


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


def splits_rows(machine: Machine, is_single: bool = False) -> Callable[[int, int], bool]:
    """Whether several workgroups share each of so many rows of so many elements; `is_single`: of an
    op that runs by itself, where nothing else would be read again for it. Mesa's software adapter
    silently ends all loops of a thread after 65535 iterations in total."""
    most = 1 << 62 if machine.is_simulated else MANY if is_single else 0

    def is_split(rows: int, row: int) -> bool:
        return are_few(rows, row) or (row >= LONG and rows < most)

    return is_split
