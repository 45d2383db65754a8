"""Finding where a NaN comes from, in the forward computation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everygrad.autograd.decorating import manager
from everygrad.autograd.watching import watcher
from everygrad.config import config
from everygrad.dispatch import user_line
from everygrad.errors import AnomalyError
from everygrad.tensor import Tensor, Wrapped


def _has_nan(x: Tensor) -> bool:
    if isinstance(x._data, Wrapped) or not x.dtype.is_differentiable or x.device == "null":
        return False
    return bool((x != x).any())


def _check(op: Any, inputs: tuple[Tensor, ...], out: Tensor) -> None:
    token = watcher.set(None)  # the check itself is made of ops
    try:
        if not _has_nan(out) or any(_has_nan(x) for x in inputs):
            return
    finally:
        watcher.reset(token)
    shown = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
    raise AnomalyError(
        f"find_nan: {op.name} made a NaN out of inputs without one ({shown}), at {user_line()}"
    )


@manager
def find_nan() -> Iterator[None]:
    """Within the block, the first op that makes a NaN from inputs without one raises AnomalyError
    naming the op, the shapes and the user's line. Slow: every result is looked at.

    >>> import everygrad as eg
    >>> with eg.find_nan():  # doctest: +ELLIPSIS
    ...     eg.log(eg.tensor([1.0, -1.0]))
    Traceback (most recent call last):
        ...
    everygrad.errors.AnomalyError: find_nan: log made a NaN out of inputs without one ...
    """
    token = watcher.set(_check)
    config.watch(+1)
    try:
        yield
    finally:
        config.watch(-1)
        watcher.reset(token)
