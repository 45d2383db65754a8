"""Running a Python function on tensors without values, and writing down what it does.

A `Traced` payload stands for an array. The tracer sees every op through `dispatch`, and
every tensor from outside that an op touches: such a tensor becomes an input, and the tracer keeps a
stand-in for it, a Tensor with a traced payload. The tensor itself is never written to: other
threads go on using it. Since a Tensor's value changes in one method only, which asks the tracer, a
stand-in that holds another payload at the end was given a new value, and is an output too; so is a
gradient that the tracer holds for a tensor.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from types import CodeType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy import ndarray

from everygrad._jit.guards import Count, Guard, Kept, OwnVariable
from everygrad.autograd.graph import Leaf
from everygrad.autograd.modes import transform_depth
from everygrad.backends import base
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.ir import Graph, Value, index_bound
from everygrad.core.context import tracing
from everygrad.core.op import Op
from everygrad.core.ownership import refcount
from everygrad.core.protocols import Layout
from everygrad.core.scopes import Setting
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, Wrapped, wrap
from everygrad.dispatch import backend_of, user_line
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import DeviceError, TraceError
from everygrad.ops.record.spec import REGISTRY

_generations = itertools.count(1)


class Elsewhere(Exception):  # noqa: N818  # control flow: seen by `jit` alone
    """The function uses a tensor of another transformation: it must run as part of that one."""


class Traced(Wrapped):
    """A payload without a value: a place in a graph, and the device it would be on."""

    __slots__ = ("at", "tracer", "value")
    plain = True

    def __init__(self, tracer: Tracer, value: Value, device: str) -> None:
        self.level = 0
        self.tracer = tracer
        self.value = value
        self.at = device

    @property
    def inner(self) -> Tensor:
        raise TraceError(f"a value is needed at {user_line()}, where only shapes are known")

    def stopped(self) -> Any:
        return self

    @property
    def shape(self) -> Shape:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value.dtype.np

    @property
    def device(self) -> str:
        return self.at

    def interpret(self, op: Op, inputs: list[Tensor], params: dict[str, Any]) -> Any:
        return self.tracer.call(op, inputs, params)


class Capture(NamedTuple):
    """A tensor from outside, and its stand-in with the payload and node it had at first.

    `owner` is the tensor whose `.grad` it is, if it was reached as one. `alias` is a tensor
    captured before that had the same payload, and serves for both while they share one.
    """

    tensor: Tensor
    traced: Any  # a Traced, or what a placed tensor has around one
    owner: Tensor | None
    alias: Tensor | None
    inside: Any  # the node it has at the beginning of the trace
    stand_in: Tensor


class Touch:
    """A tensor whose `.grad` was read or set: what it had before, and what it has in the trace.

    `seen`: that one was looked at, so that the trace holds only where there is (or is not) one.
    """

    def __init__(self, tensor: Tensor, grad: Tensor | None, seen: bool) -> None:
        self.tensor = tensor
        self.grad = self.now = grad
        self.seen = seen


def is_array(payload: Any) -> bool:
    """Whether a payload is a backend's array, not what a transformation put around one."""
    return type(payload) is ndarray or not isinstance(payload, Wrapped)


def part_of(payload: Any) -> Any:
    """A payload as graphs know it: of a tensor placed on a mesh, its part on this rank."""
    return payload.inner._data if isinstance(payload, Wrapped) and payload.is_shard else payload


def layout_of(payload: Any) -> Layout | None:
    """What a placed tensor's payload is beside its part on this rank; None of any other."""
    return payload.layout if isinstance(payload, Wrapped) else None


def device_of(payload: Any) -> str:
    return "cpu" if type(payload) is ndarray else payload.device


class Tracer:
    """One trace."""

    def __init__(self) -> None:
        self.around = copy_context()
        self.variables: set[ContextVar[Any]] = set()  # of that context, which were read
        self.depth = transform_depth()  # what is wrapped up to here was wrapped outside
        self.devices: set[str] = set()  # of the tensors from outside
        self.graph = Graph()
        self.captures: list[Capture] = []
        self.stand_ins: dict[int, Tensor] = {}  # by the ids of their tensors
        self.by_payload: dict[int, Capture] = {}
        self.touched: dict[int, Touch] = {}
        self.modules: dict[int, tuple[Any, Any]] = {}  # those called, and their fingerprints
        self.shared_grads: list[tuple[Tensor, Tensor]] = []  # tensors with one .grad between them
        self.guards: list[Guard] = []  # of things that count their changes
        self.last_acts: list[tuple[Any, Callable[[], Any]]] = []  # in Python, after each call
        self.refused: TraceError | None = None  # for a value, whoever caught it
        self.moves: set[str] = set()  # devices that the function moves tensors to
        self.remade: set[int] = set()  # the ids of tensors, see `remakes`
        self.grads: dict[int, Tensor] = {}  # by id of a gradient tensor: whose it is
        self.payloads: list[weakref.ref[Traced]] = []  # a WeakSet takes longer than the op
        self.lines: dict[tuple[int, int], tuple[CodeType, str]] = {}  # see `user_line`
        self.generation = 0
        self.checks: dict[Value, Value] = {}  # of indices: the latest check of each
        self.latest_call: Value | None = None  # of an op that communicates
        self.proxies: dict[str, _Backend] = {}

    # --- the context -----------------------------------------------------------------------------

    def active(self) -> Setting:
        """Every op of this context is traced."""
        return Setting(tracing, self, watches=True)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Ops inside are computed again even if they were before: a checkpoint saves memory."""
        before, self.generation = self.generation, next(_generations)
        try:
            yield
        finally:
            self.generation = before

    def backend(self, real: Any) -> Any:
        """What stands for a backend while this trace is on."""
        name = getattr(real, "device", real.name)
        found = self.proxies.get(name)
        if found is None:
            found = self.proxies[name] = _Backend(self, real, name)
        return found

    @property
    def device(self) -> str:
        """Where the function runs: on the CPU, unless a tensor from outside is elsewhere."""
        others = sorted(self.devices - {"cpu"})
        if len(others) > 1:
            raise DeviceError(f"jit: tensors on {' and '.join(others)}; a call runs on one device")
        found = others[0] if others else "cpu"
        if self.moves - {found}:
            raise DeviceError(
                f"jit: the function runs on {found} and moves a tensor to "
                f"{', '.join(sorted(self.moves - {found}))}; return it and move it outside"
            )
        return found

    # --- tensors from outside --------------------------------------------------------------------

    def traced(self, value: Value, device: str) -> Traced:
        made = Traced(self, value, device)
        self.payloads.append(weakref.ref(made))
        return made

    def lift(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensors as ops of this trace take them: those from outside become inputs."""
        for t in tensors:
            payload = t._data
            if type(payload) is not Traced or payload.tracer is not self:
                return tuple([self.inside(t) for t in tensors])
        return tuple(tensors)

    def owns(self, tensors: Sequence[Tensor]) -> bool:
        """Whether lifted tensors are of this trace alone, with no transformation around them."""
        for t in tensors:
            if type(t._data) is not Traced:
                return False
        return len(tensors) > 0

    def inside(self, t: Tensor) -> Tensor:
        payload = part_of(t._data)
        if is_array(payload):
            found = self.stand_ins.get(id(t))
            return self.capture(t) if found is None else found
        if not isinstance(payload, Traced):
            if payload.level <= self.depth:
                raise Elsewhere
        elif payload.tracer is not self:
            raise TraceError(
                f"a tensor made at {payload.value.where} inside a jitted function was kept "
                f"beyond its call and has no value; return it from the function instead"
            )
        return t

    def stand_in(self, t: Tensor) -> Tensor:
        """Who holds the value and node of `t` in this trace."""
        return self.stand_ins.get(id(t), t)

    def capture(self, t: Tensor) -> Tensor:
        if t._node is not None and not t._node.is_leaf:
            raise TraceError(
                f"jit: the tensor of shape {t.shape} used at {user_line()} is the result of ops "
                f"recorded outside the function; pass it as an argument, or use detach()"
            )
        array, owner = t._data, self.grads.get(id(t))
        alias = self.by_payload.get(id(array))
        if alias is not None and t._node is None and owner is None:
            return self.standing_in(t, alias.traced, None, None, alias.tensor).stand_in
        made = self.standing_in(t, self.input(array, user_line()), t._node, owner)
        if t._node is None and owner is None:
            self.by_payload[id(array)] = made
        return made.stand_in

    def standing_in(
        self,
        t: Tensor,
        traced: Any,
        node: Any,
        owner: Tensor | None = None,
        alias: Tensor | None = None,
    ) -> Capture:
        made = Capture(t, traced, owner, alias, node, wrap(traced, node))
        self.captures.append(made)
        self.stand_ins[id(t)] = made.stand_in
        return made

    def rebinding(self, t: Tensor, payload: Any) -> Tensor:
        """Who is to be given this payload in place of `t`: a tensor from outside keeps its own."""
        held = getattr(t, "_data", None)
        if held is None or not is_array(part_of(held)):  # just being made, or made inside
            return t
        if layout_of(payload) != layout_of(held):
            raise TraceError(
                f"jit: a tensor from outside, {held.dtype}{list(held.shape)}, is given a value of "
                f"other placements at {user_line()}; reshard the value, or do that outside"
            )
        if payload.shape != held.shape or payload.dtype != held.dtype:
            raise TraceError(
                f"jit: a tensor from outside, {held.dtype}{list(held.shape)}, is given a value "
                f"{payload.dtype}{list(payload.shape)} at {user_line()}; do that outside"
            )
        return self.inside(t)

    def capture_argument(self, t: Tensor) -> None:
        """An argument: a place to differentiate at, whatever graph is behind it outside."""
        if id(t) in self.stand_ins:  # given twice
            return
        node = t._node
        if node is not None and not node.is_leaf:
            node = Leaf(t, transform_depth())
        self.standing_in(t, self.input(t._data, "an argument"), node)

    def input(self, payload: Any, where: str) -> Any:
        """A new input of the graph, for a payload like this one."""
        array, layout = part_of(payload), layout_of(payload)
        device = device_of(array)
        self.devices.add(device)
        made = self.traced(self.graph.input(array.shape, FROM_NP[array.dtype], where), device)
        return made if layout is None else layout.around(wrap(made))

    def grad(self, t: Tensor) -> Tensor | None:
        """The gradient of `t`, which is looked at."""
        touch = self.touch(t, seen=True)
        return getattr(t, "_grad", None) if touch is None else touch.now

    def set_grad(self, t: Tensor, g: Tensor | None) -> None:
        touch = self.touch(t, seen=False)
        if touch is None:
            t._grad = g
        else:
            touch.now = g

    def touch(self, t: Tensor, seen: bool) -> Touch | None:
        """What is known of the gradient of `t`, which is about to be read (seen) or set; None for a
        tensor made inside."""
        found = self.touched.get(id(t))
        if found is None and not isinstance(part_of(getattr(t, "_data", None)), Traced):
            grad = getattr(t, "_grad", None)
            found = self.touched[id(t)] = Touch(t, grad, seen)
            if grad is not None:
                other = self.grads.setdefault(id(grad), t)
                if other is not t:
                    self.shared_grads.append((t, other))
        return found

    def met(self, module: Any) -> None:
        """A module is about to run: what it does depends on its attributes and hooks."""
        attributes = id(vars(module))  # which a compiled module shares with what it was made of
        if attributes in self.modules:
            return
        one = next(iter(module.parameters()), None)
        if one is None or not isinstance(one._data, Traced):  # or it was made inside, for one call
            self.modules[attributes] = (module, module.fingerprint())

    def depends(self, *things: Any) -> None:
        """The function takes for granted what the `changes` of these things count."""
        self.guards += [Count("changes", thing, thing.changes) for thing in things]

    def depends_on_item(self, held: Any, key: Any, item: Any, text: str) -> None:
        """The function takes for granted that held[key] is this very item, and its `changes`."""
        self.guards.append(Kept(text, held, item, key))
        self.depends(item)

    def depends_on_variable(self, var: ContextVar[Any]) -> None:
        """The function takes for granted what a variable of the context, which has a default, is,
        unless it set it."""
        outside = self.around.run(var.get)
        if var not in self.variables and var.get() is outside:
            self.variables.add(var)
            self.guards.append(OwnVariable(f"{var.name}.get()", var, outside))

    def remakes(self, t: Tensor) -> None:
        """`t` is given a value that can be made again from others: a call that raises may leave
        it half written."""
        self.remade.add(id(t))

    def after(self, owner: Any, act: Callable[[], Any]) -> None:
        """Each call of the compiled function ends with `act()`, in Python, for `owner`."""
        self.last_acts.append((owner, act))

    def acts_after(self, owner: Any) -> bool:
        """Whether something is to be done for `owner` at the end of each call."""
        return any(held is owner for held, _ in self.last_acts)

    def check_modules(self) -> None:
        """Refuse a function that changes a module in a way that a replay would not."""
        for module, before in self.modules.values():
            after = module.fingerprint()
            if after != before:
                names = [k for k in vars(module) if not k.startswith("_")]
                old: dict[str, Any] = dict(x for x in before if type(x) is tuple)
                new: dict[str, Any] = dict(x for x in after if type(x) is tuple)
                changed = [k for k in names if old.get(k) != new.get(k)]
                if any(not isinstance(getattr(module, k), Tensor) for k in changed):
                    raise TraceError(
                        f"jit: {type(module).__name__}.{', '.join(changed)} is changed inside the "
                        f"function, which a replay would not do; keep what changes in a tensor "
                        f"buffer, or change it outside"
                    )

    # --- ops -------------------------------------------------------------------------------------

    def call(self, op: Op, inputs: Sequence[Tensor], params: dict[str, Any]) -> Any:
        """The payload of an op on traced tensors."""
        inputs = self.lift(inputs)
        if op.transfers:
            (t,) = inputs
            self.moves.add(params["device"])
            return self.traced(t._data.value, params["device"])
        device = inputs[0]._data.device
        for t in inputs:
            if t._data.device != device:
                backend_of(op.name, [t._data for t in inputs])  # refuses them
        if op.communicates:
            return self.communicating(op, inputs[0]._data, params)
        if op.family == "kernel" and self.expands(op, inputs, params, device):
            plain = [wrap(t._data) for t in self.checked(op, inputs, params, device)]
            return op.portable(*plain, **params)._data
        if op.index_input is not None:
            inputs = self.checked(op, inputs, params, device)
        values = [t._data.value for t in inputs]
        made = self.graph.call(op, values, params, user_line(self.lines, 3), self.generation)
        return self.traced(made, device)

    def communicating(self, op: Op, x: Any, params: dict[str, Any]) -> Traced:
        """A call that waits for the one before it: the order is that of the program, and what none
        uses is done all the same, since the last one is an output of the graph."""
        if not base.get(x.device).communicates:
            raise TraceError(
                f"{op.name}: {x.device} has no collectives in compiled functions; call it outside"
            )
        before = [] if self.latest_call is None else [self.latest_call]
        made = self.graph.call(op, [x.value, *before], params, user_line(), self.generation)
        self.latest_call = made
        return self.traced(made, x.device)

    def expands(
        self, op: Op, inputs: Sequence[Tensor], params: dict[str, Any], device: str
    ) -> bool:
        """Whether the parts of a kernel are better seen than its whole."""
        backend = base.get(device)
        if op.result is None or op.name not in backend.kernels:
            return True
        if not backend.serves(op, [t._data.value for t in inputs], params):
            return True
        return op.one_hot_if_single and inputs[1].shape[params["axis"]] == 1

    def checked(
        self, op: Op, inputs: Sequence[Tensor], params: dict[str, Any], device: str
    ) -> list[Tensor]:
        """The inputs, with a check of the indices among them."""
        made = list(inputs)
        at = op.index_input
        if at is not None:
            index = made[at]._data.value
            size = inputs[0].shape[params["axis"]]
            value = self.within(index, size)
            if value is None:
                facts = {"size": size, "what": f"{op.name}: index"}
                value = self.graph.call(REGISTRY["check_range"], [index], facts, user_line())
                self.checks[index] = value
            if value is not index:
                made[at] = wrap(self.traced(value, device))
        return made

    def within(self, index: Value, size: int) -> Value | None:
        """The index, made of what was checked already; None where some of it was not. Who uses it
        takes the checked values, so that no check is dropped that it relies on."""
        for known in (index, self.checks.get(index, index)):
            if index_bound(known) <= size:
                return known
        if not index.facts.rearranges:
            return None
        args = [self.within(a, size) for a in index.args]
        known_args = [a for a in args if a is not None]
        return self.called(index, known_args) if len(known_args) == len(args) else None

    def called(self, v: Value, args: list[Value]) -> Value:
        """The same call of other arguments."""
        if all(a is b for a, b in zip(v.args, args, strict=True)):
            return v
        return self.graph.call(v.op, args, v.params, v.where, v.generation)

    # --- the end ---------------------------------------------------------------------------------

    def value_of(self, t: Tensor) -> Value:
        value: Value = part_of(self.inside(t)._data).value
        return value

    def rebound(self) -> list[tuple[Capture, Any, Any]]:
        """The tensors from outside that were given a new value, with that value and its node."""
        now = [(c, c.stand_in._data, c.stand_in._node) for c in self.captures]
        return [(c, p, n) for c, p, n in now if p is not c.traced or n is not c.inside]

    def rewind(self) -> None:
        """All tensors from outside have the values again that they had at the beginning."""
        for c in self.captures:
            c.stand_in._data, c.stand_in._node = c.traced, c.inside

    def new_grads(self) -> list[tuple[Touch, Tensor | None]]:
        """The gradients that the function made; they may come from outside: an argument, say."""
        touched = [t for t in self.touched.values() if t.now is not t.grad]
        return [(t, None if t.now is None else self.inside(t.now)) for t in touched]

    def forget(self) -> None:
        """The trace is over: only what something outside holds is held from here on."""
        self.captures, self.touched, self.by_payload, self.stand_ins = [], {}, {}, {}

    def alive(self) -> set[Traced]:
        """The payloads of this trace that something holds."""
        return {p for r in self.payloads if (p := r()) is not None}

    def escaped(self) -> list[tuple[Tensor, Value]]:
        """Tensors made inside that something outside still holds: new state, such as an
        optimiser's, or a mistake."""
        if all(r() is None for r in self.payloads):
            return []
        gc.collect(0)  # a cycle nobody holds keeps nothing; what was made inside is young
        alive = self.alive()
        if not alive:
            return []
        found = [t for t in gc.get_objects(generation=1) if _holds(t, alive)]
        held = Counter(id(t._data) for t in found)
        if any(held[p] != count - _ALONE for p, count in _references(alive).items()):
            alive.clear()
            found.clear()
            gc.collect()  # something else holds one: look everywhere
            alive = self.alive()
            found = [t for t in gc.get_referrers(*alive) if _holds(t, alive)] if alive else []
        return [(t, t._data.value) for t in found]


def _holds(thing: Any, payloads: set[Traced]) -> bool:
    return isinstance(thing, Tensor) and type(thing._data) is Traced and thing._data in payloads


def _references(things: set[Any]) -> dict[int, int]:
    return {id(thing): refcount(thing) for thing in things}


_ALONE = _references({object()}).popitem()[1]  # of what is in the set and nowhere else


_CPU = base.get("cpu")


class _Backend(base.Backend):
    """What creation functions get while a function is traced."""

    def __init__(self, tracer: Tracer, real: Any, device: str) -> None:
        self.tracer = tracer
        self.real = real
        self.device = device
        self.name = real.name
        self.kernels = real.kernels
        self.numbers: dict[Any, Value] = {}
        self.communicates, self.overlaps = real.communicates, real.overlaps

    def serves(self, op: OpFacts, given: Sequence[Any], params: dict[str, Any]) -> bool:
        return bool(self.real.serves(op, given, params))

    def run(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> Any:
        return self.tracer.call(cast("Op", op), [wrap(a) for a in arrays], params)

    def from_numpy(self, array: Any) -> Any:
        array = np.asarray(array)
        value = self.tracer.graph.constant(array, FROM_NP[array.dtype])
        return self.tracer.traced(value, self.device)

    def to_numpy(self, array: Any) -> Any:
        raise TraceError(
            f"a value is read at {user_line()}, inside a jitted function, where only shapes are "
            f"known; return the tensor, or use where() in place of a Python condition"
        )

    def full(self, shape: Shape, value: Any, dtype: DType) -> Any:
        key = (tuple(shape), type(value), repr(value), dtype)  # 0.0 and -0.0 are different
        found = self.numbers.get(key)
        if found is None:
            number = _CPU.full((), value, dtype).item()  # refuses what does not fit
            found = self.tracer.graph.full(tuple(shape), number, dtype)
            if type(value) in (int, float):  # whose texts say all
                self.numbers[key] = found
        return self.tracer.traced(found, self.device)

    def arange(self, start: Any, count: int, step: Any, dtype: DType) -> Any:
        array = _CPU.arange(start, count, step, dtype)
        return self.tracer.traced(self.tracer.graph.constant(array, dtype), self.device)
