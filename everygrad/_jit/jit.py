"""`eg.jit`: a function traced once for each kind of call, compiled, and replayed from then on."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from enum import Enum
from functools import partial, update_wrapper
from typing import Any

import numpy as np
from numpy import ndarray

from everygrad._jit.buffers import Buffer, BufferFunction, compile_buffers
from everygrad._jit.entry import Entry
from everygrad._jit.inspection import has_attributes, keeps_own_guards
from everygrad._jit.lowered import Lowered
from everygrad._jit.record import trace
from everygrad._jit.trace import Elsewhere, device_of, is_array, part_of
from everygrad._jit.verify import interpreted, values_of
from everygrad.amp.policy import policy
from everygrad.autograd.modes import recording
from everygrad.autograd.saved_tensor_hooks import recorder
from everygrad.autograd.trees import flatten, leaves_of
from everygrad.backends import base
from everygrad.backends.code_cache import code_cache
from everygrad.compiler.memory import Memory
from everygrad.core.config import config
from everygrad.core.context import intercepted, tracing, watcher
from everygrad.core.shapes import as_shape
from everygrad.core.tensor import Tensor
from everygrad.dtypes import DType, as_dtype
from everygrad.errors import ArgumentError, CompileError, EverygradError, OutOfMemoryError

log = logging.getLogger("everygrad.jit")
MOST_ENTRIES = 64  # kinds of call that one function is kept compiled for
_FALLBACKS = (None, "eager")


class Jitted:
    """A compiled function; made by `jit`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        verify: bool = False,
        fallback: str | None = None,
    ) -> None:
        fn = _uncompiled(fn)
        if not callable(fn):
            raise ArgumentError(f"jit: takes a function, got {type(fn).__name__}")
        if fallback not in _FALLBACKS:
            raise ArgumentError(f'jit: fallback must be None or "eager", got {fallback!r}')
        update_wrapper(self, fn)
        self.fn = self.uncompiled = fn
        self.verify = verify
        self.fallback = fallback
        self.entries: dict[Any, list[Entry]] = {}
        self.latest: Entry | None = None
        self.count = 0
        self.warned = False  # of many kinds of call: once
        base.get("cpu").warm_up()  # now, so that the first call need not

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return Bound(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recorder.get() is not None or (intercepted() and _watched()):
            # inside a checkpoint or find_nan, which see every op, or another trace: part of that
            return self.fn(*args, **kwargs)
        leaves: Sequence[Any] = args
        tree: Any = len(args)  # stands for the structure where there is none
        if kwargs or not all(isinstance(a, Tensor) for a in args):
            leaves, tree = flatten((args, kwargs))
        cast = policy() if intercepted() else None
        signature: list[Any] = [tree, recording(), cast, config.matmul_precision]
        tensors: list[Tensor] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                array = leaf._data
                if not is_array(array):
                    if not is_array(part_of(array)):  # inside another transformation: op by op
                        return self.fn(*args, **kwargs)
                    signature.append(array.layout)
                tensors.append(leaf)
                place = "cpu" if type(array) is ndarray else array.device
                signature += (array.shape, array.dtype, place, leaf._node is None)
            else:
                signature.append(_static(leaf))
        if len(tensors) > 1 and len({id(t) for t in tensors}) < len(tensors):
            first = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
            signature.append(tuple(first[id(t)] for t in tensors))
        key = tuple(signature)
        entry = None
        for entry in self.entries.get(key, ()):
            if entry.misfit(tensors) is None:
                self.latest = entry
                return entry.call(leaves, tensors)
        del entry  # what it computes in is freed before its successor runs
        return self.first_call(key, tensors, (args, kwargs))

    def first_call(self, key: Any, tensors: list[Tensor], given: Any) -> Any:
        args, kwargs = given
        leaves, tree = flatten(given)
        try:
            collects = gc.isenabled()
            try:  # compiling makes many objects and little garbage: looking takes a fifth of it
                gc.disable()
                entry = self.compile(key, leaves, tree, tensors)
            finally:
                if collects:
                    gc.enable()
        except Elsewhere:
            return self.fn(*args, **kwargs)
        except CompileError:
            if self.fallback != "eager":
                raise
            log.warning("jit: %s falls back to eager", self.fn, exc_info=True)
            return self.fn(*args, **kwargs)
        self.latest = entry
        return entry.call(leaves, tensors)

    def compile(self, key: Any, leaves: list[Any], tree: Any, tensors: list[Tensor]) -> Entry:
        known = self.entries.setdefault(key, [])
        if known:
            log.info("jit: %s is traced again: %s", self.fn, known[-1].misfit(tensors))
        elif len(self.entries) > 1:
            log.info("jit: %s is traced for a new kind of call", self.fn)
        # state may be made once more where it was thrown away, not without any reason at each call
        again = any(e.escaped and e.record.guards.changed() is None for e in known)
        record, escaped = trace(self.fn, leaves, tree, escapes=True)
        if escaped and again:
            record, escaped = trace(self.fn, leaves, tree, escapes=False)
        pinned = tensors if record.read_arguments or _closes_over(self.fn, tensors) else None
        try:
            entry = Entry(record, self.fn, tree, self.verify, bool(escaped), pinned)
            entry.note_hooks(tensors)
        except EverygradError:
            raise
        except RecursionError:
            raise
        except MemoryError as error:
            raise OutOfMemoryError(
                f"jit: no memory for what the function computes: {error}"
            ) from None
        except Exception as error:
            raise CompileError(
                f"jit: the compiler failed on {getattr(self.fn, '__qualname__', self.fn)}: "
                f"{type(error).__name__}: {error}; please report it with the output of "
                f"eg.jit(f).lower(...), or use jit(fallback='eager')"
            ) from error
        fitting = [e for e in known if not (e.used and (e.escaped or e.record.once))]
        self.count += 1 + len(fitting) - len(known)
        known[:] = [*fitting, entry]
        if self.count > MOST_ENTRIES:
            if not self.warned:
                self.warned = True
                log.warning(
                    "jit: %s was compiled %d times; older code is dropped, here and from now on",
                    self.fn,
                    self.count,
                )
            oldest = next(iter(self.entries))
            self.count -= len(self.entries.pop(oldest))
        code_cache.add(entry, entry.nbytes(), partial(_drop, weakref.ref(self), key))
        return entry

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted:
        return Jitted(deepcopy(self.fn, memo), self.verify, self.fallback)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """What the compiler makes of a call with these arguments, as text; nothing is run."""
        leaves, tree = flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        record, escaped = trace(self.fn, leaves, tree, escapes=True)
        if escaped:  # state that the function made: it must be what a call would have made it
            arrays = values_of([_input(s, tensors) for s in record.origins])
            made = [t for t in record.targets if t.new]
            values = [record.graph.outputs[t.output or 0] for t in made]
            known = interpreted(record.graph, arrays, values)
            for target, value in zip(made, values, strict=True):
                assert target.tensor is not None
                place, payload = device_of(target.tensor._data), known[value]
                if place != "cpu":
                    payload = base.get(place).from_numpy(payload)
                target.tensor.rebind(payload, None)
        return Lowered(record, self.fn)

    def on_buffers(
        self, inputs: Sequence[Buffer | tuple[Any, Any]], device: str = "cpu"
    ) -> BufferFunction:
        """The function compiled for a flat list of buffers, given as (shape, dtype), whose memory
        belongs to somebody else: call the result with the addresses of C-contiguous inputs and of a
        buffer for each result, which it says in `results`. Such a call makes no tensor, and looks
        at nothing that the function read when it was traced.

        >>> import everygrad as eg, numpy as np
        >>> f = eg.jit(lambda x, y: (x + y, x * 1.0)).on_buffers([((2,), "float32")] * 2)
        >>> x, y, out, same = np.float32([[1, 2], [3, 4], [0, 0], [0, 0]])
        >>> f([x.ctypes.data, y.ctypes.data], [out.ctypes.data, same.ctypes.data])
        >>> out, f.aliases  # result 1 holds what input 0 holds
        (array([4., 6.], dtype=float32), {1: 0})
        """
        given = [Buffer(as_shape(s, "on_buffers"), as_dtype(d)) for s, d in inputs]
        return compile_buffers(lambda xs: leaves_of(self.fn(*xs)), given, device)

    def memory(self) -> Memory:
        """The memory plan of the latest call."""
        if self.latest is None:
            raise ArgumentError("jit: memory() before the first call: there is no plan yet")
        return self.latest.replay.memory()

    def clear(self) -> None:
        """Forget everything compiled."""
        self.entries.clear()
        self.latest = None
        self.count = 0


def _drop(owner: weakref.ref[Jitted], key: Any, entry: Entry) -> None:
    """Forget an entry that was not used for long; a call that is running on it goes on."""
    jitted = owner()
    known = [] if jitted is None else jitted.entries.get(key, [])
    if jitted is not None and entry in known:
        known.remove(entry)
        jitted.count -= 1
        if not known:
            jitted.entries.pop(key, None)
        if jitted.latest is entry:
            jitted.latest = None


class Bound:
    """A jitted method of one object."""

    def __init__(self, jitted: Jitted, instance: Any) -> None:
        self.jitted = jitted
        self.instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.jitted(self.instance, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self.jitted.lower(self.instance, *args, **kwargs)

    def memory(self) -> Any:
        return self.jitted.memory()


def _input(origin: Any, tensors: Sequence[Tensor]) -> Any:
    """The array an input would have."""
    t = origin.tensor if origin.argument is None else tensors[origin.argument]
    return part_of((t.grad if origin.grad else t)._data)


def _uncompiled(fn: Any) -> Any:
    """The function that a compiled one, or a compiled module, was made of. Not by an attribute of
    its own: functools.wraps copies those, and eg.grad(eg.jit(f)) is not f."""
    made = fn if isinstance(fn, Jitted) else getattr(type(fn), "jitted", None)
    return made.fn if isinstance(made, Jitted) else fn


def _watched() -> bool:
    return tracing.get() is not None or watcher.get() is not None


def _static(leaf: Any) -> Any:
    """A Python value as part of the key: plain ones by value, 1, 1.0 and True apart, 0.0 and -0.0
    too; others by identity, and kept alive by it."""
    if isinstance(leaf, slice | range):
        return (type(leaf), *map(_static, (leaf.start, leaf.stop, leaf.step)))
    if type(leaf) is frozenset:
        return (frozenset, frozenset(map(_static, leaf)))
    if isinstance(leaf, np.generic) and not isinstance(leaf, np.void):
        return (leaf.dtype, leaf.tobytes())
    if has_attributes(leaf):  # of a kind of number that has attributes of its own, they count too
        return _Same(leaf)
    if isinstance(leaf, float | complex):
        return (type(leaf), repr(leaf))
    if isinstance(leaf, np.ndarray | set | bytearray):
        raise ArgumentError(
            f"jit: an argument is a {type(leaf).__name__}, whose content may change unseen; "
            f"make it a tensor with eg.tensor(), or a tuple"
        )
    plain = leaf is None or isinstance(leaf, int | str | bytes | DType | Enum)
    return (type(leaf), leaf) if plain else _Same(leaf)


class _Same:
    """Equal to itself around the same object only."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def _closes_over(fn: Callable[..., Any], tensors: Sequence[Tensor]) -> bool:
    """Whether a function holds one of its arguments itself, directly or in a module."""
    wanted = {id(t) for t in tensors}
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        parameters = getattr(held, "parameters", None) if keeps_own_guards(held) else None
        found = [held, *parameters()] if callable(parameters) else [held]
        if any(id(t) in wanted for t in found):
            return True
    return False


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    verify: bool = False,
    fallback: str | None = None,
) -> Any:
    """fn, compiled on its first call for each combination of shapes, dtypes and Python values.

    Tensors it closes over (parameters, optimiser state) are read anew at each call, and what it
    gives them is written back, so that a whole training step compiles unchanged. Python numbers
    are constants of the compiled code.

    A module becomes a module: its parameters, mode, attributes and `repr` are those of the one that
    was given.

    verify    check every op at each call by NumPy alone, and name the first that is wrong
    fallback  "eager": run uncompiled, with a warning, where the compiler itself fails

    >>> import everygrad as eg
    >>> f = eg.jit(lambda x: (x * x).sum())
    >>> f(eg.tensor([1.0, 2.0]))
    tensor(5.)
    """
    if fn is None:
        return lambda real: jit(real, verify=verify, fallback=fallback)
    made = Jitted(fn, verify, fallback)
    as_module = getattr(type(made.fn), "compiled", None)  # nn.Module's: a module stays one
    return made if as_module is None else as_module(made.fn, made)


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: Any = None,
    disable: bool = False,
) -> Any:
    """`jit` under PyTorch's name. A function is always one graph, compiled anew for new shapes and
    for each device by its own compiler, so that the other arguments choose nothing; `disable` gives
    the function as it is.

    >>> import everygrad as eg
    >>> eg.compile(lambda x: x * 2, mode="max-autotune")(eg.tensor([1.0])).tolist()
    [2.0]
    """
    if dynamic:
        raise ArgumentError("compile: shapes are constants of compiled code; leave out dynamic")
    if model is None:
        return lambda real: compile(real, disable=disable)
    return model if disable else jit(model)
