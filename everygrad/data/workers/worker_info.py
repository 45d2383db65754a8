"""What a worker knows about itself."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple


class WorkerInfo(NamedTuple):
    """A worker of a DataLoader, as `get_worker_info()` describes it in that worker."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


class _Here(threading.local):
    info: WorkerInfo | None = None
    pass_seed: int | None = None  # of the pass under way, the same in all workers


here = _Here()


def get_worker_info() -> WorkerInfo | None:
    """The worker in which this is called, or None outside of one.

    >>> import everygrad as eg
    >>> eg.data.get_worker_info() is None
    True
    """
    return here.info
