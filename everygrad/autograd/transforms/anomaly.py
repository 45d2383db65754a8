"""Finding where a NaN comes from, in the forward computation."""

from __future__ import annotations

from everygrad.autograd.modes import _Mode
from everygrad.core.context import watcher
from everygrad.core.op import Op
from everygrad.core.scopes import Settings
from everygrad.core.tensor import Tensor, Wrapped
from everygrad.dispatch import user_line
from everygrad.errors import AnomalyError


def _has_nan(x: Tensor) -> bool:
    if isinstance(x._data, Wrapped) or not x.dtype.is_differentiable or x.device == "null":
        return False
    return bool((x != x).any())


def _check(op: Op, inputs: tuple[Tensor, ...], out: Tensor) -> None:
    before = watcher.get()
    try:
        watcher.set(None)  # the check itself is made of ops
        if not _has_nan(out) or any(_has_nan(x) for x in inputs):
            return
    finally:
        watcher.set(before)
    shown = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
    raise AnomalyError(
        f"find_nan: {op.name} made a NaN out of inputs without one ({shown}), at {user_line()}"
    )


class find_nan(_Mode):  # noqa: N801  # as the modes are named
    """Within the block, the first op that makes a NaN from inputs without one raises AnomalyError
    naming the op, the shapes and the user's line. Slow: every result is looked at.

    >>> import everygrad as eg
    >>> with eg.find_nan():  # doctest: +ELLIPSIS
    ...     eg.log(eg.tensor([1.0, -1.0]))
    Traceback (most recent call last):
        ...
    everygrad.errors.AnomalyError: find_nan: log made a NaN out of inputs without one ...
    """

    watches = True

    def settings(self) -> Settings:
        return ((watcher, _check),)
