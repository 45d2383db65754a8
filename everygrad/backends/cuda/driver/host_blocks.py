"""Memory of the host that the GPU reads by itself: a loader's shared memory, batch after batch.

Other memory is copied into pinned memory first, by one thread, which for batches of 100 MB takes
longer than the transfer. To register a block costs more than such a copy, so that is done with one
that comes a second time: workers use theirs again and again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from everygrad.backends.cuda.driver.gpu import Gpu


class HostBytes(NamedTuple):
    """Pinned bytes: their address, and what holds them."""

    ptr: int
    holder: Any


class HostBlocks:
    """The blocks that the driver has pinned where they are. `gpu.lock` is held around calls."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._registered: WeakKeyDictionary[Any, bool | None] = WeakKeyDictionary()  # None: once
        self._gone: deque[Any] = deque()  # filled by blocks as they go, in any thread

    def pinned(self, data: Any) -> HostBytes | None:
        """These bytes, where the GPU can read them as they lie."""
        self.settle()
        block = _block_of(data)
        if block is None:
            return None
        if block not in self._registered:
            self._registered[block] = None
        elif self._registered[block] is None:
            self._registered[block] = self._gpu.driver.register(block.address, block.size)
            if self._registered[block]:
                block.keeper = self._gone
        if not self._registered[block]:
            return None
        return HostBytes(data.__array_interface__["data"][0], data)

    def settle(self) -> None:
        """Unmap blocks that nobody holds: uploads that read them held them until they were done."""
        while self._gone:
            address, size, unmap = self._gone.popleft()
            self._gpu.driver.unregister(address)
            unmap(address, size)


def _block_of(data: Any) -> Any:
    """The block that an array lies in, if it is one that lives longer than a batch."""
    while isinstance(data, np.ndarray):
        data = data.base
    return getattr(data, "host_block", None)
