"""Launches recorded instead of made: what eager mode would launch, on placeholder memory.

A recorder is a device like the real one whose arrays have virtual addresses. What was launched on
them can be run later, with real addresses in their place.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.attention import flash
from everygrad.backends.cuda.driver.cublaslt import GemmPlan
from everygrad.backends.cuda.driver.gpu import Command, Gpu, Kernel, PendingKernel
from everygrad.backends.cuda.driver.memory import Storage
from everygrad.backends.cuda.source.writer import WrittenKernel
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda
    from everygrad.backends.cuda.driver.gpu import Gpu

    class RecordingCuda(Cuda):
        """What `recorder` makes. At run time its class is Cuda: it is a copy of a device."""

        gpu: Recorder
        constants: list[CudaArray]


VIRTUAL_BASE = 1 << 46  # the first virtual address: no device has memory there
ALIGN = 512  # bytes; of a virtual address, as of the pool's


class Placeholders:
    """Placeholder memory: consecutive virtual addresses without memory behind them."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.starts: list[int] = []
        self.sizes: list[int] = []
        self._next = VIRTUAL_BASE

    def take(self, size: int) -> Storage:
        ptr = self._next
        self.starts.append(ptr)
        self.sizes.append(size)
        self._next += -(-size // ALIGN) * ALIGN
        return Storage(self.gpu, None, ptr, size)

    def holds(self, address: int) -> bool:
        """Whether an address is a placeholder's."""
        return VIRTUAL_BASE <= address < self._next

    def find(self, address: int) -> int:
        """The number of the placeholder that an address lies in."""
        return bisect_right(self.starts, address) - 1


class Recorder(Gpu):
    """A GPU that records launches instead of making them. Other threads compile the kernels, and
    `wait_for_kernels` waits for those."""

    def __init__(self, real: Gpu) -> None:
        super().__init__(real.name, real.driver)
        self.real = real
        self.placeholders = Placeholders(self)
        self.memory = self.placeholders  # type: ignore[assignment]  # takes as Memory does
        self.commands: list[Command] = []
        self.checks = False
        self._functions = real._functions

    def prepare(self, written: WrittenKernel) -> Kernel:
        """A kernel that is compiled while recording goes on."""
        if written.text.name not in self._functions:
            self.cache_kernel(written, PendingKernel(self.driver.begin(written.text)))
        return super().prepare(written)

    def postpone(self, written: WrittenKernel) -> Kernel:
        """A kernel that is not compiled yet: it may become part of another."""
        return Kernel(None, written)

    def unload(self) -> None:
        """Another thread may be recording a graph: the real device does it, under its lock."""

    def wait_for_kernels(self, steps: Sequence[Step]) -> None:
        """Wait for the kernels of all steps; raises what the compiler found."""
        for step in steps:
            if isinstance(step.what, Kernel):
                self.ready(step.what)
            for argument in step.arguments:
                if isinstance(argument, PendingKernel):
                    argument.function  # noqa: B018  # waits

    def launch(self, kernel: Kernel, *pointers: int) -> None:
        self.commands.append(Command(kernel, pointers))

    def call(self, function: Any, *arguments: Any) -> None:
        self.commands.append(Command(function, arguments))

    def faults(self) -> int:
        self.checks = True
        return self.real.faults()

    def check_number(self, *check: Any) -> int:
        return self.real.check_number(*check)

    def read(self, storage: Storage, start: int, size: int) -> Any:
        raise DeviceError("jit on cuda: an op reads a value to decide what to do; run it eagerly")


def recorder(dev: Cuda) -> RecordingCuda:
    """A device like `dev` that records. It shares its kernels; constants are real arrays, which it
    holds in `constants`."""
    made = cast("RecordingCuda", copy(dev))
    made.gpu = Recorder(dev.gpu)
    made.kernels = {name: partial(p.func, made) for name, p in dev.kernels.items()}
    made.constants = []

    def holding(make: Any) -> Any:
        def hold(*args: Any) -> CudaArray:
            found: CudaArray = make(*args)
            made.constants.append(found)
            return found

        return hold

    for name in ("from_numpy", "full", "arange", "intern"):
        setattr(made, name, holding(getattr(dev, name)))
    return made


class Relocation(NamedTuple):
    """An address in a command: which argument, which placeholder, and the offset into it."""

    at: int
    slot: int
    offset: int


class Step(NamedTuple):
    """A command, and where real addresses go in its arguments."""

    what: Any
    arguments: tuple[Any, ...]
    relocations: tuple[Relocation, ...]
    words: tuple[
        tuple[int, tuple[Relocation, ...]], ...
    ]  # by argument: addresses inside a structure

    @property
    def title(self) -> str:
        """Its name in lists: the kernel's, or the product that a library computes."""
        if isinstance(self.what, Kernel):
            return self.what.name
        first = self.arguments[0] if self.arguments else None
        if isinstance(first, GemmPlan):
            return str(first.problem)
        calls = [a for a in self.arguments if isinstance(a, flash.FlashLaunch)]
        return calls[0].title if calls else str(getattr(self.what, "__name__", self.what))

    @property
    def slots(self) -> set[int]:
        inside = {p.slot for _, relocations in self.words for p in relocations}
        return {p.slot for p in self.relocations} | inside

    def filled(self, addresses: Sequence[int]) -> list[Any]:
        """The arguments, with real addresses by slot."""
        made = list(self.arguments)
        for at, slot, offset in self.relocations:
            made[at] = addresses[slot] + offset
        for at, relocations in self.words:
            params = type(made[at].params).from_buffer_copy(made[at].params)
            words = _words(params)
            for word, slot, offset in relocations:
                words[word] = addresses[slot] + offset
            flash.remap(params)
            made[at] = made[at]._replace(params=params)
        return made


def _words(params: ctypes.Structure) -> Any:
    """The addresses in a structure as 64-bit words, to read and to write. What follows them is
    never an address, even where two neighbouring sizes look like one."""
    plain = getattr(params, "plain", params)  # maps of the copy engine are made anew
    return (ctypes.c_uint64 * flash.ADDRESSES).from_buffer(plain)


def steps_of(gpu: Recorder) -> list[Step]:
    """The recorded commands as steps, with the addresses in them found."""
    placeholders = gpu.placeholders

    def relocation(at: int, address: int) -> Relocation:
        slot = placeholders.find(address)
        return Relocation(at, slot, address - placeholders.starts[slot])

    made = []
    for what, arguments in gpu.commands:
        relocations, words = [], []
        for i, a in enumerate(arguments):
            if isinstance(a, int) and placeholders.holds(a):
                relocations.append(relocation(i, a))
            elif isinstance(a, flash.FlashLaunch):
                found = [
                    relocation(k, w)
                    for k, w in enumerate(_words(a.params))
                    if placeholders.holds(w)
                ]
                words.append((i, tuple(found)))
        made.append(Step(what, arguments, tuple(relocations), tuple(words)))
    return made
