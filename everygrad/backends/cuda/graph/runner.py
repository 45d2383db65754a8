"""The memory of a compiled function, and the CUDA graphs made for its addresses.

A call reads its inputs in place and allocates its results, so addresses may differ from call to
call. The first call with a set of addresses launches one by one, the second is captured, later ones
are one graph launch, or one for each of several `segments`. An input whose address changes is
copied to a static buffer; tiny results are copied out in one copy; large ones are double-buffered,
so that what the user holds is never overwritten; donated inputs are updated in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from itertools import accumulate
from operator import call, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad.backends.cuda.array import ALIGNED, CudaArray
from everygrad.backends.cuda.driver.capture import Captured, copy, timed
from everygrad.backends.cuda.driver.cublaslt import GemmPlan
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.driver.gpu import Kernel
from everygrad.backends.cuda.driver.memory import Storage
from everygrad.backends.cuda.graph.recording import ALIGN, Step
from everygrad.backends.cuda.graph.segments import SegmentedGraph, is_hosted
from everygrad.backends.cuda.kernels import copy_kernels
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.shapes import size_of
from everygrad.core.strides import row_major
from everygrad.errors import EverygradError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

_TINY = 1 << 10  # bytes of a result that is copied out with others
_COPIED = 1 << 24  # bytes up to which an input whose address changes is copied
_PATIENCE = 2  # address changes after which an input is no longer expected to stay
_GRAPHS = 4  # sets of addresses whose graphs are cached
_TARGET = 5  # index of the argument that is the address of a product's result
_NO_CALL: Callable[[], Any] = int  # native, without effect
_RING = 2  # buffers of a large result: what the user holds, and what is written next


Prepare = Callable[[list[Any]], Callable[[], None]]


def _nothing() -> None:
    """Commit nothing."""


class RunPlan(NamedTuple):
    """The steps, and the memory of each slot."""

    steps: list[Step]
    inputs: list[int]  # slots; -1: nothing to read
    input_sizes: list[int]
    outputs: dict[int, int]  # sizes
    results: list[tuple[int, CudaArray]]  # slots (-1: a constant) and views of what is in them
    offsets: dict[int, int]  # in the arena
    arena: int
    donations: dict[int, int]  # by input: the output that may take its memory
    slots: int


class Runner:
    """Runs a plan."""

    def __init__(self, dev: Cuda, plan: RunPlan) -> None:
        self.dev, self.gpu = dev, dev.gpu
        self.plan = plan
        self.addresses = [0] * plan.slots
        self.changed = set(range(len(plan.inputs)))  # inputs that were put since the last call
        self.seen: dict[Any, Captured | SegmentedGraph | None] = {}  # by addresses
        self.hosted = any(map(is_hosted, plan.steps))  # more than one graph
        self.places: dict[int, tuple[int, int]] = {}  # by input: address, changes of it
        self.static: dict[int, Storage] = {}  # by input: the buffer it is copied to
        self.converted: dict[int, CudaArray] = {}  # inputs that had to be made contiguous
        self.ring: dict[int, list[Storage]] = {}
        in_place = set(plan.donations.values())
        self.tiny = {s: n for s, n in plan.outputs.items() if n <= _TINY}
        self.large = {s: n for s, n in plan.outputs.items() if n > _TINY}
        self.double_buffered = {s for s in self.large if s not in in_place}
        self.tiny_donations = {s: i for i, s in plan.donations.items() if s in self.tiny}
        outside = [*(s for s in plan.inputs if s >= 0), *self.large, *self.tiny_donations]
        self.outside: Callable[[list[int]], Any] = (  # what their addresses are
            itemgetter(*outside) if outside else lambda addresses: ()
        )
        numbers: dict[int, int] = {}  # one value, one array
        self.order = [numbers.setdefault(id(a), len(numbers)) for _, a in plan.results]
        self.distinct = [*{id(array): (slot, array) for slot, array in plan.results}.values()]
        self.memory: list[Storage] = []
        self.tuned = isinstance(self.gpu.driver, DryDriver)

    def allocate(self) -> None:
        """Allocate the memory that every call uses."""
        sizes = [-(-n // ALIGN) * ALIGN for n in self.tiny.values()]
        starts = [0, *accumulate(sizes)]
        self.tiny_at = dict(zip(self.tiny, starts, strict=False))
        arena = self.gpu.memory.take(max(1, self.plan.arena))
        tiny = self.gpu.memory.take(max(1, starts[-1]))
        for slot, offset in self.plan.offsets.items():
            self.addresses[slot] = arena.ptr + offset
        for slot, offset in self.tiny_at.items():
            self.addresses[slot] = tiny.ptr + offset
        self.memory = [arena, tiny]
        self.tiny_bytes = starts[-1]

    def run(
        self,
        arrays: Sequence[Any],
        given: dict[int, Any],
        prepare: Prepare | None = None,
        around: Any = None,
        bare: bool = False,
    ) -> tuple[list[Any], BaseException | None]:
        """The results, or `bare` where they lie: storages and addresses, which cost less to make.

        `given` has memory for outputs that need none of their own, by slot. `prepare` turns the
        results into a native call to make once all is launched; `around(steps, work)`, where given,
        runs each step on its own."""
        if not self.memory:
            self.allocate()
        for i in self.changed:
            if self.plan.inputs[i] >= 0:
                self.put_input(i, arrays[i])
        # an input that is updated in place makes its copy stale
        self.changed = {i for i in self.static if i in self.plan.donations}
        copies = self.take_copies(given)
        outputs = copies | self.put_outputs(given.keys() | copies.keys())
        for slot, held in {**given, **outputs}.items():
            self.addresses[slot] = held.ptr
        if not self.tuned:
            self.tune(outputs.keys() - copies.keys())
        small = None
        if not self.tiny.keys() <= given.keys() | outputs.keys():
            small = self.gpu.memory.take(self.tiny_bytes)
        made: list[Any]
        if bare:
            made = [self.place(slot, a, arrays, outputs, small) for slot, a in self.distinct]
        else:
            held = given.get  # most results of a training step are written over what was there
            made = [
                held(slot) or self.result(slot, array, arrays, outputs, small)
                for slot, array in self.distinct
            ]
        results = [made[k] for k in self.order]
        commit = _nothing if prepare is None else prepare(results)
        if around is not None:
            for i, step in enumerate(self.plan.steps):
                around(range(i, i + 1), partial(self.launch_step, step))
            self.copy_small(small)
            commit()
            return results, None
        launched: list[Any] = []  # filled by the native call of the last launch
        interrupted = None
        try:
            self.launch(launched, set(given))
            self.copy_small(small)
        except BaseException as error:
            if not launched:
                raise
            interrupted = error
            self.copy_small(small)  # perhaps again, which changes nothing
        commit()
        return results, interrupted

    def copy_small(self, small: Storage | None) -> None:
        """Copy tiny results to where the user sees them."""
        if small is not None:
            self.copy(small.ptr, self.memory[1].ptr, self.tiny_bytes)

    def tune(self, new: Set[int]) -> None:
        """Find the fastest algorithm for each product that writes into the arena, before the arena
        holds anything, or into a result with `new` memory, by slot."""
        self.tuned = True
        driver = self.gpu.driver
        timer = partial(timed, driver)
        for step in self.plan.steps:
            product = step.arguments[0] if step.arguments else None
            if not isinstance(product, GemmPlan) or product.tuned:
                continue
            out = {p.slot for p in step.relocations if p.at == _TARGET}
            if out <= self.plan.offsets.keys() | new:
                driver.enter()
                _, *arguments = step.filled(self.addresses)
                driver.lt.tune(product, driver.name, timer, *arguments)

    # --- inputs ----------------------------------------------------------------------------------

    def put_input(self, i: int, given: Any) -> None:
        """Let input i be read in place, or copy it to its static buffer."""
        array = self.as_contiguous(given)
        if array is not given:
            self.converted[i] = array
        else:
            self.converted.pop(i, None)
        slot, size = self.plan.inputs[i], self.plan.input_sizes[i]
        before, moved = self.places.get(i, (array.ptr, 0))
        moved += before != array.ptr
        self.places[i] = (array.ptr, moved)
        patience, most = (_PATIENCE, _TINY) if i in self.plan.donations else (0, _COPIED)
        if moved > patience and size <= most and i not in self.static:
            self.static[i] = self.gpu.memory.take(size)
        storage = self.static.get(i)
        if storage is None:
            self.addresses[slot] = array.ptr
        else:
            self.copy_input(storage.ptr, array, size)
            self.addresses[slot] = storage.ptr

    def as_contiguous(self, array: Any) -> CudaArray:
        """An input as its kernels expect it: contiguous, at an aligned address."""
        if isinstance(array, np.ndarray):  # a small tensor of the CPU, such as a random state
            array = self.dev.from_numpy(array)
        found: CudaArray = copy_kernels.contiguous(self.dev, array)
        if not found.ptr % ALIGNED:  # what kernels and libraries load at once, not the pool's
            return found
        size = size_of(found.shape) * found.dtype.itemsize
        moved = CudaArray(found.device, found.shape, found.dtype, self.gpu.memory.take(size))
        self.copy_input(moved.ptr, found, size)
        return moved

    def copy_input(self, target: int, array: CudaArray, size: int) -> None:
        """Copy a contiguous input, as far as its memory goes: of another library's strided memory
        the last row may be short, and nothing reads what it lacks."""
        storage = array.storage
        assert storage is not None
        there = storage.size - array.offset * array.dtype.itemsize
        self.copy(target, array.ptr, min(size, there))

    # --- outputs ---------------------------------------------------------------------------------

    def take_copies(self, given: dict[int, Any]) -> dict[int, Storage]:
        """Memory of inputs that had to be made contiguous, such as zeros that are one element: for
        the large outputs that may take it. Nobody else sees it, and the next call copies again."""
        found: dict[int, Storage] = {}
        for i, slot in self.plan.donations.items():
            copy = self.converted.get(i)
            if copy is None or copy.storage is None or slot not in self.large or slot in given:
                continue
            if self.addresses[self.plan.inputs[i]] == copy.storage.ptr:  # it is what is read
                found[slot] = copy.storage
                self.changed.add(i)
                del self.converted[i]
        return found

    def put_outputs(self, given: Set[int]) -> dict[int, Storage]:
        """The memory of each large result of this call that is not given."""
        made: dict[int, Storage] = {}
        for slot in self.tiny_donations.keys() - given:
            if self.tiny_donations[slot] in self.static:
                # its address changes: copied in, and out with the others
                self.addresses[slot] = self.memory[1].ptr + self.tiny_at[slot]
            else:
                made[slot] = self.gpu.memory.take(self.tiny[slot])
        for slot in self.large.keys() - given:
            size = self.large[slot]
            made[slot] = (
                self.free_buffer(slot, size)
                if slot in self.double_buffered
                else self.gpu.memory.take(size)
            )
        return made

    def free_buffer(self, slot: int, size: int) -> Storage:
        """Memory that nobody else holds: an earlier call's, or newly allocated."""
        ring = self.ring.setdefault(slot, [])
        for i in range(len(ring)):
            if refcount(ring[i]) <= _RING_ONLY:
                return ring[i]
        made: Storage = self.gpu.memory.take(size)
        ring.append(made)
        if len(ring) > _RING:
            del ring[0]
        return made

    def may_write(self, slot: int, array: CudaArray) -> bool:
        """Whether nobody but an array, and perhaps the ring of its slot, sees its memory."""
        storage = array.storage
        if storage is None or array.offset or array.strides != row_major(array.shape):
            return False
        if storage.size < self.large[slot] or storage.ptr % ALIGN:
            return False
        known = sum(storage is held for held in self.ring.get(slot, ()))
        return refcount(storage) <= _SOLE_ARRAY + known

    def result(
        self,
        slot: int,
        array: CudaArray,
        arrays: Sequence[Any],
        outputs: dict[int, Storage],
        small: Storage | None,
    ) -> CudaArray:
        """A result on the memory of this call; constants stay where they are."""
        if slot < 0:
            return array
        storage, ptr = self.place(slot, array, arrays, outputs, small)
        assert storage is not None
        offset = (ptr - storage.ptr) // array.dtype.itemsize
        return CudaArray(array.device, array.shape, array.dtype, storage, offset, array.strides)

    def place(
        self,
        slot: int,
        array: CudaArray,
        arrays: Sequence[Any],
        outputs: dict[int, Storage],
        small: Storage | None,
    ) -> tuple[Storage | None, int]:
        """Where a result lies in this call: its storage (None: it is empty), and its address."""
        if slot < 0:
            return array.storage, array.ptr
        offset = array.offset * array.dtype.itemsize
        storage = outputs.get(slot)
        if storage is not None:
            return storage, storage.ptr + offset
        if slot in self.tiny:
            assert small is not None
            return small, small.ptr + self.tiny_at[slot] + offset
        i = self.plan.inputs.index(slot)
        source: CudaArray = self.converted.get(i) or arrays[i]
        return source.storage, source.ptr + offset

    # --- launching -------------------------------------------------------------------------------

    def launch(self, launched: list[Any], given: set[int]) -> None:
        """All launches: one by one for new addresses, else as one graph. The last of them adds to
        `launched`: until then nothing has changed that anyone sees (the `given` slots)."""
        key = self.outside(self.addresses)
        found = self.seen.get(key)
        if found is not None:
            found.launch(launched)
            return
        again = key in self.seen and not isinstance(self.gpu.driver, DryDriver)
        if not again:
            self.launch_to_the_end(launched, given)
        else:
            found = self.captured(launched)
        self.seen.pop(key, None)
        self.seen[key] = found
        if len(self.seen) > _GRAPHS:
            del self.seen[next(iter(self.seen))]

    def captured(self, launched: list[Any]) -> Captured | SegmentedGraph:
        """The launches on the addresses of this call, captured as one graph or several, and run."""
        capture = partial(Captured, self.gpu.driver)
        if self.hosted:
            return SegmentedGraph(
                self.plan.steps, capture, self.launch_step, self.addresses, launched
            )
        found = capture(self.launch_steps)
        found.launch(launched)
        return found

    def launch_to_the_end(self, launched: list[Any], given: set[int]) -> None:
        """One by one. What a signal handler raises after memory that somebody sees may have been
        written is raised at the end: a step is done wholly or not at all."""
        steps = self.plan.steps
        first = next((k for k, step in enumerate(steps) if step.slots & given), len(steps))
        done: list[Any] = []  # one for each step, added by its launch
        try:
            self.launch_rest(done, launched)
        except BaseException as error:
            if launched or len(done) <= first or isinstance(error, EverygradError):
                raise
            self.launch_rest(done, launched)
            raise

    def launch_rest(self, done: list[Any], launched: list[Any]) -> None:
        """The steps that are not `done`. The native call of the last one adds to `launched`:
        behind it there is no place where a signal handler finds the one without the other."""
        steps = self.plan.steps
        for step in steps[len(done) : -1]:
            self.launch_step(step, done)
        if steps:
            self.launch_step(steps[-1], done, (partial(launched.append, None),))
        else:
            launched.append(None)

    def launch_steps(self) -> None:
        for step in self.plan.steps:
            self.launch_step(step)

    def launch_step(
        self,
        step: Step,
        done: list[Any] | None = None,
        notes: tuple[Callable[[], None], ...] = (),
    ) -> None:
        """One launch, on the addresses of this call; added to `done`, and told to `notes`, by the
        same native call. (A library call may be repeated: it overwrites nothing that it reads.)"""
        driver, what = self.gpu.driver, step.what
        arguments = step.filled(self.addresses)
        done = [] if done is None else done
        if isinstance(what, Kernel):
            self.gpu.ready(what)
            what.put(what.buffer, 0, *arguments)
            before = len(done)
            calls = map(call, (what.fire, *notes))
            try:
                done.extend(calls)
            except Exception as error:
                if len(done) > before:  # a handler's
                    raise
                driver.recover(what, error)
                done.extend(map(call, (_NO_CALL, *notes)))
        else:
            driver.enter()
            what(*arguments)
            done.extend(map(call, (_NO_CALL, *notes)))

    def copy(self, target: int, source: int, size: int) -> None:
        driver = self.gpu.driver
        if isinstance(driver, DryDriver):
            driver.copy_from(driver, target, source, size)
        else:
            copy(driver, target, source, size)


def _ring_only() -> int:
    """The refcount of a storage that only a ring holds, as `free_buffer` sees it."""
    ring = [Storage(None, None, 0, 0)]
    i = 0
    return refcount(ring[i])


def _sole_array() -> int:
    """The refcount of a storage that only an array holds, as `may_write` sees it."""
    array = CudaArray("cuda", (), np.dtype(np.float32), Storage(None, None, 0, 0))
    storage = array.storage
    return refcount(storage)


_RING_ONLY = calibrated(_ring_only())
_SOLE_ARRAY = calibrated(_sole_array())
