"""Mixed precision: which ops run in a half dtype, which in float32, while `autocast` is on.

What an op runs in is a fact of its record: "low" where multiplications bound it, and sums are kept
in float32 anyway; "float32" where a half dtype loses too much, because values overflow or many
small numbers are added up. Dispatch casts the inputs of such an op by ordinary `astype` ops, and
then runs it with the setting off: what the op is made of, its tangent and its batched form keep the
dtypes that were chosen. A backward pass runs with the setting off too, so it uses the dtypes of
forward, and a cast's own derivative brings each gradient back to its parameter's dtype.

Nothing is paid while no block is open: dispatch looks only while ops are intercepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any

from everygrad import dtypes
from everygrad.autograd.modes import _Mode
from everygrad.backends.base import kind_of
from everygrad.core.context import intercepted, records
from everygrad.core.op import Op
from everygrad.core.scopes import Setting, Settings
from everygrad.core.tensor import Tensor
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError, DtypeError

HALVES = (dtypes.bfloat16, dtypes.float16)
_EVERYWHERE = "*"  # the device kinds that no setting names

Policy = tuple[tuple[str, DType | None], ...]  # the low dtype by kind of device; None: leave alone

_policy: ContextVar[Policy | None] = ContextVar("everygrad_autocast", default=None)
policy = _policy.get


def low_dtype(chosen: Policy, device: str) -> DType | None:
    """The half dtype in force on a device, None where there is none."""
    known = dict(chosen)
    return known.get(kind_of(device), known.get(_EVERYWHERE))


def cast_to(name: str, dtype: DType, device: str, chosen: Policy) -> DType:
    """The dtype in which an op takes an input of `dtype`. float64, complex numbers and integers
    stay what they are."""
    op = records.by_name.get(name)
    precision = "" if op is None else op.precision
    low = low_dtype(chosen, device) if precision else None
    if low is None or not (dtype is dtypes.float32 or dtype in HALVES):
        return dtype
    return low if precision == "low" else dtypes.float32


def converted(name: str, inputs: Sequence[Any], chosen: Policy) -> list[Any]:
    """The tensors among the inputs of an op in the dtype it runs in."""
    made = []
    for t in inputs:
        if isinstance(t, Tensor):
            dtype = cast_to(name, t.dtype, t.device, chosen)
            t = t if t.dtype is dtype else t.astype(dtype)
        made.append(t)
    return made


def whole(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the table names, as one op: its parts do not choose again."""

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if intercepted() and (chosen := policy()) is not None:
            with uncast():
                named = dict(zip(kwargs, converted(name, [*kwargs.values()], chosen), strict=True))
                return fn(*converted(name, args, chosen), **named)
        return fn(*args, **kwargs)

    return call


class uncast(_Mode):  # noqa: N801  # a context manager, read as a phrase
    """Ops inside run in the dtypes of their inputs, whatever is set outside."""

    _settings = ((_policy, None),)


def under(chosen: Policy | None) -> Setting:
    """A setting that held before holds again: for work that is done a second time."""
    return Setting(_policy, chosen, watches=True)


class autocast(_Mode):  # noqa: N801  # PyTorch's name
    """Inside, matrix products and convolutions run in a half dtype; what would lose too much by it
    (softmax, norms, losses, sums) runs in float32; all else in the widest dtype of its inputs.

    A context manager, and a decorator. Gradients arrive in each parameter's own dtype, and backward
    may run inside or outside. Blocks nest; one for a `device` leaves the others as they are, and
    `enabled=False` switches it off. docs/mixed-precision.md has the table.

    >>> import everygrad as eg
    >>> x = eg.ones((2, 2))
    >>> with eg.autocast():
    ...     print((x @ x).dtype, eg.exp(x @ x).dtype)
    bfloat16 float32
    """

    def __init__(
        self,
        device: str | None = None,
        dtype: Any = None,
        enabled: bool = True,
        *,
        device_type: str | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        """`device_type` is PyTorch's name for `device`; nothing is cached, so that `cache_enabled`
        chooses nothing."""
        super().__init__()
        if device_type is not None:
            if device is not None:
                raise ArgumentError("autocast: device and device_type are the same; give one")
            device = device_type
        dtype = dtypes.bfloat16 if dtype is None else dtype
        if not (device is None or isinstance(device, str)):
            raise ArgumentError(
                f"autocast: device must be a name such as 'cuda', or None for all of them, "
                f"got {type(device).__name__}; decorate with @eg.autocast()"
            )
        self.kind = _EVERYWHERE if device is None else kind_of(device)
        self.dtype = dtypes.as_dtype(dtype)
        self.enabled = self.watches = bool(enabled)
        if self.dtype not in HALVES:
            raise DtypeError(
                f"autocast: dtype must be bfloat16 or float16, got {self.dtype}; for full "
                f"precision use enabled=False"
            )

    def settings(self) -> Settings:
        before: Mapping[str, DType | None] = {}
        if self.kind != _EVERYWHERE:
            before = dict(policy() or ())
        known = {**before, self.kind: self.dtype if self.enabled else None}
        anything = any(dtype is not None for dtype in known.values())
        chosen: Policy | None = tuple(sorted(known.items(), key=_by_kind)) if anything else None
        return ((_policy, chosen),)


def _by_kind(item: tuple[str, DType | None]) -> str:
    return item[0]


def table(ops: Iterable[Op]) -> str:
    """The table of docs/mixed-precision.md."""
    by_precision: dict[str, list[str]] = {"low": [], "float32": [], "": []}
    for op in ops:
        by_precision[op.precision] += [op.name, *op.entry_points]
    lines = ["| runs in | ops |", "| --- | --- |"]
    for title, precision in (("the low dtype", "low"), ("float32", "float32")):
        names = " ".join(f"`{n}`" for n in sorted(by_precision[precision]))
        lines.append(f"| {title} | {names} |")
    lines.append(
        f"| the widest dtype of its inputs | all {len(by_precision[''])} others, such as `add`, "
        f"`gelu`, `maximum`, `concat`, `where` |"
    )
    return "\n".join(lines) + "\n"
