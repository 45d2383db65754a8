"""A cuDNN of Python: it notes how problems are described, and solves them by PyTorch on the host's
memory, which is where the device "cuda:dry" has its arrays."""

from __future__ import annotations

import ctypes
import re
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from everygrad.backends.cuda.driver.cudnn import _SIGNATURES

_ELEMENTS: dict[int, Any] = {1: ctypes.c_int32, 3: ctypes.c_int64, 4: ctypes.c_float,
                             5: ctypes.c_double, 7: ctypes.c_int32, 8: ctypes.c_int32}  # fmt: skip
_DTYPES = {0: np.float32, 1: np.float64}
SHAPE, STRIDES, NUMBER, ALIGNMENT, DTYPE = 902, 903, 906, 900, 901
OPERATIONS = {10: ("forward", 704, 703, 705, 702), 12: ("input", 710, 709, 711, 708),
              11: ("weight", 716, 715, 717, 714)}  # fmt: skip


class Engine(NamedTuple):
    """What the heuristic names."""

    notes: tuple[int, ...] = ()
    workspace: int = 0
    status: int = 0  # of making a plan with it


class Descriptor:
    """Attributes as they were set, by name."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.values: dict[int, list[Any]] = {}
        self.types: dict[int, int] = {}
        self.engine = Engine()
        self.final = False


class FakeCudnn:
    """The library. `engines` are named by the first heuristic, `others` by the second."""

    def __init__(
        self, engines: tuple[Engine, ...] = (Engine(),), others: tuple[Engine, ...] = ()
    ) -> None:
        self.named = {3: engines, 2: others}
        self.made: dict[int, Descriptor] = {}
        self.dropped: set[int] = set()
        self.executed: list[tuple[Descriptor, Descriptor]] = []
        self.status: dict[str, int] = {}  # by function: what it answers
        for name in (*_SIGNATURES, "cudnnGetVersion"):
            setattr(self, name, partial(self.call, name))

    def call(self, name: str, *args: Any) -> Any:
        if name in self.status:
            return self.status[name]
        plain = re.sub("([A-Z])", r"_\1", name.removeprefix("cudnn").removeprefix("Backend"))
        return getattr(self, f"do{plain.lower()}")(*args)

    @property
    def alive(self) -> list[Descriptor]:
        return [d for k, d in self.made.items() if k not in self.dropped]

    def of_kind(self, kind: int) -> list[Descriptor]:
        return [d for d in self.made.values() if d.kind == kind]

    # --- the functions ---------------------------------------------------------------------------

    def do_get_version(self) -> int:
        return 91900

    def do_create(self, place: int) -> int:
        ctypes.c_void_p.from_address(place).value = 77
        return 0

    def do_set_stream(self, handle: int, stream: int) -> int:
        assert handle == 77
        return 0

    def do_get_error_string(self, status: int) -> bytes:
        return f"STATUS_{status}".encode()

    def do_get_last_error_string(self, place: int, size: int) -> None:
        text = b"what cuDNN says"[: size - 1]
        ctypes.memmove(place, text + b"\0", len(text) + 1)

    def do_create_descriptor(self, kind: int, place: int) -> int:
        number = 1000 + len(self.made)
        self.made[number] = Descriptor(kind)
        ctypes.c_void_p.from_address(place).value = number
        return 0

    def do_destroy_descriptor(self, number: int) -> int:
        assert number not in self.dropped, "dropped twice"
        self.dropped.add(number)
        return 0

    def do_set_attribute(self, number: int, name: int, type_: int, count: int, place: int) -> int:
        descriptor = self.made[number]
        assert not descriptor.final
        assert number not in self.dropped
        element = _ELEMENTS.get(type_, ctypes.c_void_p)
        values = list((element * count).from_address(place))
        descriptor.values[name], descriptor.types[name] = values, type_
        if type_ == 15:
            assert all(self.made[v].final and v not in self.dropped for v in values)
        return 0

    def do_finalize(self, number: int) -> int:
        descriptor = self.made[number]
        descriptor.final = True
        if descriptor.kind == 5:
            return self.made[descriptor.values[401][0]].engine.status
        return 0

    def do_get_attribute(
        self, number: int, name: int, type_: int, capacity: int, count: int, place: int | None
    ) -> int:
        descriptor = self.made[number]
        found: list[int] = {202: self._results, 300: self._engine, 1303: self._notes,
                            402: self._workspace}[name](descriptor, place)  # fmt: skip
        ctypes.c_int64.from_address(count).value = len(found)
        if place is not None and name in (1303, 402):
            element = ctypes.c_int32 if name == 1303 else ctypes.c_int64
            (element * capacity).from_address(place)[: len(found)] = found
        return 0

    def _results(self, descriptor: Descriptor, place: int | None) -> list[int]:
        engines = self.named[descriptor.values[200][0]]
        if place is not None:
            targets = (ctypes.c_void_p * len(engines)).from_address(place)
            for number, engine in zip(targets, engines, strict=True):
                config = self.made[number or 0]
                config.engine, config.final = engine, True
                config.values[201] = descriptor.values[201]
        return [0] * len(engines)

    def _engine(self, descriptor: Descriptor, place: int | None) -> list[int]:
        assert place is not None
        number = ctypes.c_void_p.from_address(place).value
        self.made[number or 0].engine = descriptor.engine
        return [0]

    def _notes(self, descriptor: Descriptor, place: int | None) -> list[int]:
        return list(descriptor.engine.notes)

    def _workspace(self, descriptor: Descriptor, place: int | None) -> list[int]:
        return [self.made[descriptor.values[401][0]].engine.workspace]

    def do_execute(self, handle: int, plan: int, pack: int) -> int:
        assert handle == 77
        assert not {plan, pack} & self.dropped
        self.executed.append((self.made[plan], self.made[pack]))
        config = self.made[self.made[plan].values[401][0]]
        graph = self.made[config.values[201][0]]
        addresses = dict(zip(*(self.made[pack].values[k] for k in (1000, 1001)), strict=True))
        self.solve(self.made[graph.values[801][0]], addresses)
        return 0

    # --- arithmetic ------------------------------------------------------------------------------

    def solve(self, operation: Descriptor, addresses: dict[int, int]) -> None:
        kind, *names = OPERATIONS[operation.kind]
        x, w, y, convolution = (self.made[operation.values[n][0]] for n in names)
        tensors = [_tensor(t, addresses[t.values[NUMBER][0]]) for t in (x, w, y)]
        options = [convolution.values[n] for n in (103, 105, 102)]
        assert convolution.values[104] == convolution.values[105]
        groups = tensors[0].shape[1] // tensors[1].shape[1]
        tensors["xwy".index({"forward": "y", "input": "x", "weight": "w"}[kind])][:] = _result(
            kind, *tensors, options, groups
        )


def _tensor(descriptor: Descriptor, address: int) -> torch.Tensor:
    shape, strides = descriptor.values[SHAPE], descriptor.values[STRIDES]
    dtype = np.dtype(_DTYPES[descriptor.values[DTYPE][0]])
    size = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * dtype.itemsize
    flat = np.frombuffer((ctypes.c_char * size).from_address(address), dtype)
    return torch.from_numpy(flat).as_strided(shape, strides)


def _result(
    kind: str, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, options: list[Any], groups: int
) -> torch.Tensor:
    fn = F.conv2d if x.ndim == 4 else F.conv3d
    with torch.enable_grad():
        a, b = (t.detach().clone().requires_grad_() for t in (x, w))
        out = fn(a, b, None, *map(tuple, options), groups=groups)
        assert out.shape == y.shape
        if kind == "forward":
            return out.detach()
        return torch.autograd.grad(out, a if kind == "input" else b, y.clone())[0]
