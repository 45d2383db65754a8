"""One compiled kind of call: where inputs are read, how it runs, who gets the outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import attrgetter, call, is_
from typing import Any, cast
from weakref import getweakrefcount

import numpy as np
from numpy import ndarray

from everygrad._jit.gradient import attach
from everygrad._jit.host_subgraph import split
from everygrad._jit.lowered import described
from everygrad._jit.pipeline import aligned, compiled, donations_of
from everygrad._jit.record import Record, Target
from everygrad._jit.trace import device_of, is_array, layout_of, part_of
from everygrad._jit.verify import check
from everygrad.autograd.trees import unflatten
from everygrad.backends import base
from everygrad.backends.cpu.runtime.pool import are_sole_owners, is_sole_owner
from everygrad.core.config import config
from everygrad.core.context import intercepted, profiling
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.scopes import drain
from everygrad.core.tensor import Tensor, wrap
from everygrad.errors import TraceError

_AN_ENTRY = 1 << 15  # bytes of an entry's own objects
MOST_ARENAS = 16  # entries that are kept, whatever memory they compute in
_DATA, _GRAD = repeat("_data"), repeat("_grad")
_payload, _storage = attrgetter("_data"), attrgetter("storage")


class Entry:
    """A record, compiled."""

    def __init__(
        self,
        record: Record,
        fn: Callable[..., Any],
        tree: Any,
        verify: bool,
        escaped: bool,
        pinned: Sequence[Tensor] | None,
    ) -> None:
        self.record = record
        self.pinned = pinned  # arguments that must be these very tensors
        self.tree = tree  # of the arguments
        self.fn = fn
        self.name = getattr(fn, "__qualname__", type(fn).__name__)
        self.escaped = escaped
        self.used = False
        self.recent = True  # used since somebody looked for what to drop
        graph, self.host = split(record)
        apart = () if self.host is None else self.host.outputs
        donated = [(i, k) for i, k in donations_of(record) if k not in apart]
        remade = [t.output for t in record.targets if t.remade and t.output is not None]
        self.replay = compiled(graph, record.device, donated, remade)
        self.backward: Any = None
        self.verify = verify
        self.origins = record.origins
        self.outside = [
            (i, s.tensor, s.tensor._node is None)
            for i, s in enumerate(record.origins)
            if s.tensor is not None and not s.grad
        ]
        self.hooks = [(t, _hooks(t)) for _, t, plain in self.outside if not plain]
        self.modules_seen = -1
        self.known = {id(t) for _, t, _ in self.outside}
        self.others = [(i, s) for i, s in enumerate(record.origins) if s.tensor is None or s.grad]
        self.facts = [(v.shape, v.dtype.np) for v in record.graph.inputs]
        self.devices = {i: device_of(t._data) for i, t, _ in self.outside}
        self.targets = record.targets
        read = {id(s.tensor) for s in record.origins if s.grad}
        own = self.replay.own_memory()
        self.elsewhere = record.device != "cpu"
        self.replaced = [  # gradients that the function never looks at, and makes anew: a slot each
            (t.tensor, own[t.output])
            for t in self.targets
            if t.grad
            and not t.same
            and t.tensor is not None
            and id(t.tensor) not in read
            and t.output in own
        ]
        # Where ranks communicate, gradients come one by one, each from a call that may fail: when
        # the first one comes the former ones go, or all would lie here twice.
        communicates = any(v.facts.communicates for v in record.graph.values)
        outgoing = [
            t
            for t in self.targets
            if t.grad and not t.same and t.tensor is not None and id(t.tensor) not in read
        ]
        self.dropped = [t.tensor for t in outgoing if communicates and not self.elsewhere]
        self.releasing = cast(Any, self.replay)  # where gradients are dropped, the CPU's: it can
        if self.dropped:
            made = [t.output for t in outgoing if t.output is not None]
            self.releasing.release_at = self.releasing.first_run_of(made)
        self.sort_targets()
        possible = self.replay.donated()
        self.donations = [
            (*possible[t.output], t.tensor)  # a slot, the number of the input, whose memory it is
            for t in self.targets
            if t.tensor is not None
            and not t.grad
            and t.output in possible
            # a number is often one array for many, as the steps that parameters have come to are
            and (self.elsewhere or record.graph.outputs[t.output].size > 1)
        ]
        self.donors = [tensor for _, _, tensor in self.donations]
        self.pooled: list[int] = []  # of donors: those whose arrays lie in blocks of others
        self.whole = False  # whether the arrays that donors share with the replay fill their memory
        changed = {id(t.tensor) for t in self.targets if t.tensor is not None and not t.grad}
        here = self.donated_inputs = {number for _, number, _ in self.donations}
        changing = [(i, t) for i, t, _ in self.outside if id(t) in changed]
        self.always_changing = [(i, t) for i, t in changing if i not in here]
        self.changing = changing

    def sort_targets(self) -> None:
        """Who gets which output; what is not as simple is looked at in each call."""
        values = [t for t in self.targets if self.is_simple(t) and not t.grad]
        grads = [t for t in self.targets if self.is_simple(t) and t.grad]
        self.value_owners: list[Any] = [t.tensor for t in values]
        self.value_outputs: list[Any] = [t.output for t in values]
        self.grad_owners: list[Any] = [t.tensor for t in grads]
        self.grad_outputs: list[Any] = [t.output for t in grads]
        self.other_targets = [t for t in self.targets if not self.is_simple(t)]

    def note_hooks(self, tensors: Sequence[Tensor]) -> None:
        """The hooks of arguments must stay as they are."""
        self.argument_hooks = [_hooks(t) for t in tensors]

    def nbytes(self) -> int:
        """About what the entry takes. Of a large arena a part: a few of them are kept in any case,
        or a training step and its validation would take turns in being compiled."""
        return _AN_ENTRY + self.replay.held_bytes(config.code_bytes // MOST_ARENAS)

    # --- does it fit -----------------------------------------------------------------------------

    def misfit(self, tensors: Sequence[Tensor]) -> str | None:
        """What is not as it was when traced. A payload seen before is not looked at again."""
        if self.used and (self.escaped or self.record.once):
            return "it made new state in its first call"
        if self.pinned is not None and any(
            a is not b for a, b in zip(tensors, self.pinned, strict=True)
        ):
            return "an argument was also used from outside, and is another one now"
        if self.targets and any(id(t) in self.known for t in tensors):
            return "an argument is also used from outside"
        if (changed := self.record.guards.changed()) is not None:
            return changed
        if self.argument_hooks != [_hooks(t) for t in tensors]:
            return "a hook was added to an argument, or removed"
        seen = self.replay.arrays
        for i, t, plain in self.outside:
            if t._data is not seen[i] and not self.suits(i, t._data):
                shape, dtype = self.facts[i]
                return f"a tensor from outside is no longer {dtype}{list(shape)}"
            if (t._node is None) is not plain:
                return "a tensor from outside requires grad now, or no longer does"
        for i, origin in self.others:
            if origin.grad:
                grad = getattr(_whose(origin, tensors), "_grad", None)
                if grad is None or not self.suits(i, grad._data):
                    return "a gradient it read is gone, or another one"
        for guard in self.record.grad_guards:
            if (getattr(_whose(guard, tensors), "_grad", None) is not None) is not guard.there:
                return "a gradient is there that was not, or is gone"
        for t, alias in self.record.aliases:
            if t._data is not alias._data or t._node is not None:
                return "two tensors from outside no longer share one value"
        for a, b in self.record.shared_grads:
            if getattr(a, "_grad", None) is not getattr(b, "_grad", None):
                return "two tensors no longer share one gradient"
        for t, hooks in self.hooks:
            if _hooks(t) != hooks:
                return "a hook was added to a tensor, or removed"
        return self.module_misfit() if self.record.modules else None

    def module_misfit(self) -> str | None:
        """A module that is not as it was; looked for only when some module has changed."""
        modules = self.record.modules
        now = modules[0][0].changes
        if now != self.modules_seen:
            for module, fingerprint in modules:
                if module.fingerprint() != fingerprint:
                    return f"{type(module).__name__} was changed (an attribute, a hook, train())"
            self.modules_seen = now
        return None

    def suits(self, i: int, array: Any) -> bool:
        """Whether an array can be input i."""
        shape, dtype = self.facts[i]
        if type(array) is not ndarray:
            if layout_of(array) != self.origins[i].layout:
                return False
            array = part_of(array)
        elif self.origins[i].layout is not None:
            return False
        if not is_array(array) or array.shape != shape or array.dtype != dtype:
            return False
        return i not in self.devices or device_of(array) == self.devices[i]

    # --- a call ----------------------------------------------------------------------------------

    def gather(self, tensors: Sequence[Tensor]) -> None:
        """Put the inputs where the replay reads them."""
        replay = self.replay
        arrays = replay.arrays
        for i, t, _ in self.outside:
            array = t._data
            if array is not arrays[i]:
                if not self.suits(i, array):
                    raise TraceError("jit: a tensor was changed by another thread; call it again")
                self.whole = self.whole and i not in self.donated_inputs
                replay.put(i, aligned(part_of(array)))
        for i, origin in self.others:
            found: Any = _whose(origin, tensors)
            replay.put(i, aligned(part_of((found.grad if origin.grad else found)._data)))

    def call(self, leaves: Sequence[Any], tensors: Sequence[Tensor]) -> Any:
        """The results for these arguments, of which `tensors` are the tensors."""
        record, replay = self.record, self.replay
        with replay.lock:
            if replay.running:
                raise TraceError("jit: called again, by a signal handler or __del__, while it runs")
            replay.running = True
            try:
                outputs, interrupted = self.run(tensors)
            finally:
                replay.running = False
        self.used = self.recent = True
        for act in record.last_acts:
            act()
        if interrupted is not None:
            raise interrupted
        results = [wrap(a) for a in self.placed(outputs)[: record.results]]
        if record.gradients is not None:
            attach(self, leaves, tensors, results, outputs)
        return unflatten(record.tree, results)

    def placed(self, outputs: list[Any]) -> list[Any]:
        """The outputs as payloads: those that are parts of placed tensors as such."""
        if not self.record.layouts:
            return outputs
        made = list(outputs)
        for number, layout in self.record.layouts.items():
            made[number] = layout.around(wrap(made[number]))
        return made

    def run(self, tensors: Sequence[Tensor]) -> tuple[list[Any], BaseException | None]:
        """The outputs, all tensors given their new values; and what a signal handler raised while
        they were computed, such as Ctrl-C. A step is done wholly or not at all."""
        replay = self.replay
        self.gather(tensors)
        states = () if self.host is None else self.host.run(replay.arrays)
        profiler = profiling.get() if intercepted() else None
        if not self.targets and not self.verify and profiler is None:
            outputs, interrupted = replay.run({})
        else:
            outputs, interrupted = self.run_step(tensors, states, profiler)
        for i, _ in self.others:  # arguments are not kept
            replay.arrays[i] = None
        return outputs, interrupted

    def run_step(
        self, tensors: Sequence[Tensor], states: Sequence[Any], profiler: Any
    ) -> tuple[list[Any], BaseException | None]:
        """The same for what gives tensors new values, or is looked at."""
        record, replay = self.record, self.replay
        # where results are looked at before they are given to anyone, inputs must still be there
        apart = self.verify or profiler is not None or (self.elsewhere and self.fetches(tensors))
        given = self.donated_memory() if self.donations and not apart else {}
        owners: list[Tensor] = []  # of gradients that are hidden meanwhile
        grads: list[Tensor | None] = []
        restore = partial(drain, map(setattr, owners, _GRAD, grads))
        prepare = partial(self.commit, tensors, states, owners.clear)
        try:
            self.hide_gradients(owners, grads, {} if apart else given)
            if self.dropped and not apart:
                self.releasing.release = partial(self.drop_gradients, owners, grads)
            if not apart:
                made = replay.run(given, prepare)
                self.drop_former_values(len(given) < len(self.donations))
                return made
            interrupted = None
            if profiler is not None:
                shown = partial(described, replay, record.graph, record.device)
                outputs = profiler.replay(self.name, shown, record.device, replay)
            else:
                outputs, interrupted = replay.run(given)
            commit = prepare(outputs)
            if self.verify:
                check(record.graph, record.device, replay.arrays, outputs)
            commit()
            self.drop_former_values(True)
            return outputs, interrupted
        finally:
            restore()  # nobody, if the results were put in their places
            if self.dropped:
                self.releasing.release = None

    def drop_former_values(self, of_all: bool) -> None:
        """Keep no input whose tensor has a new value elsewhere; `of_all`: even of those whose
        memory may take the new one."""
        arrays = self.replay.arrays
        for i, t in self.changing if of_all else self.always_changing:
            if arrays[i] is not t._data:
                arrays[i] = None

    def fetches(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a tensor of the CPU gets what another device computes."""
        near = () if self.host is None else self.host.outputs
        return ndarray in map(type, map(_payload, self.value_owners)) or any(
            not t.grad and t.output not in near and type(_whose(t, tensors)._data) is ndarray
            for t in self.other_targets
        )

    def hide_gradients(
        self, owners: list[Tensor], grads: list[Tensor | None], given: dict[int, Any]
    ) -> None:
        """Take away the gradients that are made anew, as zero_grad does, so that no other thread
        sees them change: their memory is given to the new ones."""
        for t, slot in self.replaced:
            g = getattr(t, "_grad", None)
            grads.append(g)
            owners.append(t)
            t._grad = None
            if slot >= 0 and g is not None and is_array(g._data) and _only_hidden(g):
                array = g._data
                if self.replay.may_write(slot, array):
                    given[slot] = array

    def drop_gradients(self, owners: list[Tensor], grads: list[Tensor | None]) -> None:
        """Take away for good the gradients that are made anew: a call that fails leaves none."""
        forget = map(call, (owners.clear, grads.clear))
        drain(chain(forget, map(setattr, self.dropped, _GRAD, repeat(None))))

    def commit(
        self,
        tensors: Sequence[Tensor],
        states: Sequence[Any],
        last: Callable[[], None],
        outputs: list[Any],
    ) -> Callable[[], None]:
        """One native call that gives every tensor its new value, and then makes a last one."""
        if self.host is not None:
            for k, array in zip(self.host.outputs, states, strict=True):
                outputs[k] = array
        outputs = self.placed(outputs)
        if self.elsewhere and ndarray in map(type, map(_payload, self.value_owners)):
            self.sort_targets()  # one was moved here since
        changes = [
            map(setattr, self.value_owners, _DATA, map(outputs.__getitem__, self.value_outputs)),
            map(setattr, self.grad_owners, _GRAD, [wrap(outputs[k]) for k in self.grad_outputs]),
        ]
        if self.other_targets:
            found = [self.change(target, tensors, outputs) for target in self.other_targets]
            changes.append(map(setattr, *zip(*found, strict=True)))
        if self.elsewhere:  # payloads whose finalisers are Python: they go when all is done
            before = [*map(_payload, self.value_owners)]
            before += [getattr(t, "_grad", None) for t in self.grad_owners]
            return partial(drain, chain(*changes, map(call, (last,)), before))
        return partial(drain, chain(*changes, map(call, (last,))))

    def donated_memory(self) -> dict[int, Any]:
        """The memory of inputs that nobody but the tensor to be given a new value can see."""
        found: dict[int, Any] = {}
        if _others_may_look():
            return found
        arrays = self.replay.arrays
        if self.whole and (all_of_them := self.donated_together(arrays)) is not None:
            return all_of_them
        for slot, number, tensor in self.donations:
            array = tensor._data
            if array is arrays[number] and _ours_alone(array):
                found[slot] = array
        kinds = {type(array) is ndarray for array in found.values()}
        self.whole = len(found) == len(self.donations) and kinds != {True, False}
        if self.whole and kinds == {True}:
            given = enumerate(found.values())
            self.pooled = [k for k, array in given if array.base is not None]
        return found

    def donated_together(self, arrays: Sequence[Any]) -> dict[int, Any] | None:
        """The same where nothing has changed since it was all of them: a training step has four
        hundred, and a few native calls look at them. None: look at each."""
        slots, numbers, _ = zip(*self.donations, strict=True)
        payloads = [*map(_payload, self.donors)]
        if not all(map(is_, payloads, map(arrays.__getitem__, numbers))):
            return None
        if max(map(refcount, payloads)) > _KNOWN_TOGETHER or any(map(getweakrefcount, payloads)):
            return None
        if type(payloads[0]) is ndarray:
            if self.pooled and not are_sole_owners([payloads[k] for k in self.pooled]):
                return None
        else:
            storages = [*map(_storage, payloads)]
            if max(map(refcount, storages)) > _KNOWN_STORAGE:
                return None
        return dict(zip(slots, payloads, strict=True))

    def backward_replay(self) -> Any:
        """The compiled derivative."""
        gradients = self.record.gradients
        if self.backward is None and gradients is not None:
            self.backward = compiled(gradients.graph, self.record.device)
        return self.backward

    def is_simple(self, target: Target) -> bool:
        """Whether a tensor from outside, and on the device, gets an output as it is."""
        t = target.tensor
        if t is None or target.output is None or target.same:
            return False
        return target.grad or not self.elsewhere or type(t._data) is not ndarray

    def change(self, target: Target, tensors: Sequence[Tensor], outputs: Sequence[Any]) -> Any:
        """Whose attribute gets which value."""
        t = _whose(target, tensors)
        payload = None if target.output is None else outputs[target.output]
        if not target.grad:
            if type(t._data) is ndarray and type(payload) is not ndarray:  # made from the device's
                payload = base.get(self.record.device).to_numpy(payload)
            return t, "_data", payload
        if payload is None:
            return t, "_grad", None
        if target.same and t.grad is not None:
            return t.grad, "_data", payload
        return t, "_grad", wrap(payload)


def _whose(what: Any, tensors: Sequence[Tensor]) -> Tensor:
    """The tensor that an origin, a target or a guard is about."""
    t: Tensor = what.tensor if what.argument is None else tensors[what.argument]
    return t


def _hooks(t: Tensor) -> tuple[int, ...]:
    node = t._node
    return tuple(node.hooks) if node is not None and node.hooks else ()


def _others_may_look() -> bool:
    """Whether other threads run Python, who could take a value while it is being overwritten. Our
    own do not: what communicates or loads for us, the other ranks of a simulated mesh, which share
    no tensors, as processes do not, and who waits for these (`run_local`). Nor does what keeps
    wgpu's devices and progress bars going."""
    if threading.active_count() == 1:
        return False
    here = threading.current_thread()
    waiting = getattr(here, "awaited_by", None)
    return any(
        t is not here
        and t is not waiting
        and not t.name.startswith("everygrad")
        and not type(t).__module__.startswith(("wgpu.", "tqdm."))
        for t in threading.enumerate()
    )


def _ours_alone(array: Any) -> bool:
    """Whether only the tensor, the replay's list of inputs and our own names know the array."""
    if type(array) is not ndarray:
        return refcount(array) <= _KNOWN and not getweakrefcount(array) and array.is_sole_owner
    alone = refcount(array) <= _KNOWN and is_sole_owner(array)
    return alone and array.flags.writeable and not getweakrefcount(array)


def _only_hidden(g: Tensor) -> bool:
    """Whether only a list of hidden gradients knows a gradient, and only it its array."""
    array = g._data
    known = refcount(g) <= _KNOWN_HIDDEN and refcount(array) <= _KNOWN_HIDDEN_ARRAY
    return known and not getweakrefcount(array)


def _known_hidden() -> tuple[int, int]:
    """What refcount says of a gradient, and of its array, that one list holds."""

    class Holder:
        _data: Any

    def look(g: Any) -> tuple[int, int]:
        array = g._data
        return refcount(g), refcount(array)

    t = Holder()
    t._data = np.empty(1)
    grads = [t]
    del t
    g = grads[0]
    return look(g)


def _known() -> int:
    """What refcount says of an array held by a tensor and by a replay's list of inputs."""

    class Holder:
        _data: Any

    t = Holder()
    t._data = np.empty(1)
    inputs = [t._data]

    def look() -> int:
        array = t._data
        return inner(array) if array is inputs[0] else 0

    def inner(array: Any) -> int:
        return refcount(array)

    return look()


def _known_together() -> tuple[int, int]:
    """What refcount says of an array, and of its storage, where both are looked at in lists."""

    class Holder:
        _data: Any
        storage: Any

    t, array = Holder(), Holder()
    t._data, array.storage = array, np.empty(1)
    del array
    inputs = [t._data]
    assert inputs
    payloads = [*map(_payload, [t])]
    storages = [*map(_storage, payloads)]
    return max(map(refcount, payloads)), max(map(refcount, storages))


_KNOWN = calibrated(_known())
_KNOWN_TOGETHER, _KNOWN_STORAGE = map(calibrated, _known_together())
_KNOWN_HIDDEN, _KNOWN_HIDDEN_ARRAY = map(calibrated, _known_hidden())
