"""What a device can do, and where to find it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Protocol

from everygrad.config import config
from everygrad.errors import DeviceError
from everygrad.shapes import Shape


class Array(Protocol):
    """The least a payload tells about itself."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> Any:
        """The NumPy dtype of its elements."""


class Backend:
    """One device: it turns op records into results and moves data in and out.

    `run` is given elementwise ops, reductions and layout moves, which it works out from what the op
    record says, and those kernels it knows by name (`kernels`). A kernel it does not know never
    reaches it: the door uses the op's portable definition, made of the others.
    """

    name: str
    kernels: dict[str, Callable[..., Any]]

    def run(self, op: Any, arrays: list[Any], params: dict[str, Any]) -> Any:
        """The result of `op` as a payload of this device."""
        raise NotImplementedError

    def rewrite(self, op: Any, t: Any, others: list[Any], params: dict[str, Any]) -> Any:
        """The payload of op(t, *others) in the memory of tensor `t`, or None: a backend may always
        decline, and must where anyone but `t` can see that memory."""
        return None

    def warm_up(self) -> None:
        """Load what compiling needs: a function is about to be compiled here, perhaps."""

    def compile(self, graph: Any, donated: Any) -> Any:
        """Something that computes the graph's outputs again and again: `put` inputs and `run`, or
        `run_on` them all. `donated` pairs inputs with outputs that are to take their place.
        """
        raise DeviceError(f"jit: the device {self.name!r} has no compiler; use the CPU")

    def from_numpy(self, array: Any) -> Any:
        """A payload with the values of a NumPy array, which the caller promises not to change."""
        raise NotImplementedError

    def to_numpy(self, array: Any) -> Any:
        """The values as a NumPy array, not to be written to."""
        raise NotImplementedError

    def full(self, shape: Shape, value: Any, dtype: Any) -> Any:
        """A payload filled with one value."""
        raise NotImplementedError

    def arange(self, start: Any, count: int, step: Any, dtype: Any) -> Any:
        """start, start + step, ... as a payload."""
        raise NotImplementedError


# The tracer that sees every op of this context, if any: see tracing/trace.py. Looked at only while
# config.fast_limit is below 0, which the tracer sees to.
tracing: ContextVar[Any] = ContextVar("everygrad_tracing", default=None)


@contextmanager
def untraced() -> Iterator[None]:
    """Nothing inside is traced: for state that a function makes when it first runs."""
    token = tracing.set(None)
    try:
        yield
    finally:
        tracing.reset(token)


_MODULES = {
    "cpu": "everygrad.backends.cpu.device",
    "null": "everygrad.backends.null.device",
    "webgpu": "everygrad.backends.webgpu.device",
}
_OPEN: dict[str, Backend] = {}
COMING = {
    "cuda": "the CUDA backend is not in this version yet",
}


def get(name: str) -> Backend:
    """The backend called `name`, opened on first use."""
    found = _OPEN.get(name)
    if found is None:
        kind = name.split(":")[0] if isinstance(name, str) else name
        if kind not in _MODULES or (kind != name and kind != "webgpu"):
            why = COMING.get(kind, f"known devices are {', '.join(_MODULES)}")
            raise DeviceError(f"device {name!r} is not available: {why}")
        module = import_module(_MODULES[kind])
        found = _OPEN[name] = module.open_device(name) if kind == "webgpu" else module.open_device()
    if config.fast_limit < 0 and (tracer := tracing.get()) is not None:
        return tracer.backend(found)
    return found
