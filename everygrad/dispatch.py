"""The dispatcher: every op on tensors goes through here.

`apply` runs an op on payloads, whatever they are, and records a Node when a derivative may be asked
for. `unary` and `binary` make the fast path for small CPU tensors, the hottest code there is: they
read what the common case has without checking first, and leave everything else to `apply`. What a
kernel raises is never taken for a sign that the fast path does not serve.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
from numpy import ndarray

from everygrad import dtypes
from everygrad.amp.policy import cast_to, converted, policy, uncast
from everygrad.autograd.graph import MarkedNode, Node
from everygrad.autograd.modes import CAREFUL, anomaly_enabled, no_grad, recording
from everygrad.autograd.saved_tensor_hooks import recorder
from everygrad.backends import base
from everygrad.compiler.expr import Expr
from everygrad.core import fast_calls
from everygrad.core.context import fast_limit, intercepted, profiling, tracing, watcher
from everygrad.core.op import ElementwiseOp, Op
from everygrad.core.operand_names import ABSENT, in_one_word, missing_operand, power, scaled
from everygrad.core.tensor import Tensor, Wrapped, wrap
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError, DeviceError, DtypeError, EverygradError

# NumPy warns of overflow and of division by zero; tensors carry inf and NaN instead, as GPUs do.
# Where a filter turns warnings into errors, the fast path sends the op to the slow one.
# Theirs alone: what else is worth a warning is heard.
warnings.filterwarnings(
    "ignore",
    r"(overflow|underflow|divide by zero|invalid value) encountered",
    RuntimeWarning,
    r"everygrad\.",
)

CPU = base.get("cpu")
F32 = np.dtype(np.float32)
F64 = np.dtype(np.float64)
_NOTHING = (None, None, None)
_KEEP_Y = (False, False, True)  # the commonest: x * constant, x / constant
_REAL_NUMBERS = (float, int)
_EXACT = 1 << 24  # up to which integers are exact in float32
_PACKAGE = __name__.split(".")[0] + "."
_PYTHON_NUMBERS = (bool, int, float, complex)
_PLAIN = (dtypes.float32, dtypes.float64)
_UNWIDENING = (int, float)  # never of a higher kind than a tensor of floats
_NUMBERS = (*_PYTHON_NUMBERS, np.generic)


def backend_of(op: str, payloads: list[Any]) -> base.Backend:
    """The one backend all payloads live on."""
    first = "cpu"
    for i, p in enumerate(payloads):
        name = "cpu" if type(p) is ndarray else p.device
        if not i:
            first = name
        elif name != first:
            names = {"cpu" if type(p) is ndarray else p.device for p in payloads}
            raise DeviceError(
                f"{op}: inputs are on different devices ({', '.join(sorted(names))}); "
                f"move them with to()"
            )
    return base.get(first)


def execute(op: Op, inputs: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
    """The payload of `op` on `inputs`: by a transformation if one wraps them, else by a backend."""
    watched = intercepted()
    if watched and (tracer := tracing.get()) is not None:
        inputs = tracer.lift(inputs)
        if tracer.owns(inputs):
            return tracer.call(op, inputs, params)
    payloads = [t._data for t in inputs]
    for payload in payloads:
        if type(payload) is not ndarray:
            break
    else:
        kernel = CPU.kernels.get(op.name)
        if kernel is None or watched:
            return _run_on(CPU, op, payloads, params)
        try:
            out = kernel(*payloads, **params)
        except (MemoryError, RuntimeWarning):  # the backend has an answer to both
            out = CPU.run(op, payloads, params)
        if out is NotImplemented:  # the definition serves what the kernel does not
            return op.portable(*inputs, **params)._data
        return np.asarray(out) if isinstance(out, np.generic) else out  # 0-d results are arrays too
    wrapped = [p for p in payloads if isinstance(p, Wrapped)]
    if wrapped:
        top = max(wrapped, key=lambda p: (p.level, p.is_shard))
        return top.interpret(op, [inner(t, top.level) for t in inputs], params)
    return _run_on(backend_of(op.name, payloads), op, payloads, params)


def _run_on(backend: base.Backend, op: Op, payloads: list[Any], params: dict[str, Any]) -> Any:
    if op.family != "kernel" or op.name in backend.kernels:
        if intercepted() and (profiler := profiling.get()) is not None:
            out = profiler.run(backend, op, payloads, params)
        else:
            out = backend.run(op, payloads, params)
        if out is not NotImplemented:
            return out
    return op.portable(*(wrap(p) for p in payloads), **params)._data


def inner(t: Tensor, level: int) -> Tensor:
    """`t` as a transformation of `level` sees it: without the graph recorded further in."""
    node = t._node
    return t if node is None or node.level < level else wrap(t._data)


def user_line(
    known: dict[tuple[int, int], tuple[CodeType, str]] | None = None, above: int = 1
) -> str:
    """The file and line of the innermost caller outside this package. `known` keeps them by
    instruction for who asks often: finding a line reads the function's table from its start.
    `above`: how many callers are of this package in any case."""
    frame = sys._getframe(above)
    while frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        before = frame.f_back
        if before is None:
            break
        frame = before
    code = frame.f_code
    if known is None:
        return f"{code.co_filename}:{frame.f_lineno}"
    place = (id(code), frame.f_lasti)
    found = known.get(place)
    if found is None:  # with the code, whose id is nobody else's as long as it is held
        found = known[place] = (code, f"{code.co_filename}:{frame.f_lineno}")
    return found[1]


def record(op: Op, inputs: tuple[Tensor, ...], payload: Any, params: dict[str, Any]) -> Tensor:
    """The result as a Tensor, with a Node if any input's derivative may be asked for."""
    for t in inputs:
        if t._node is not None:
            break
    else:
        return wrap(payload)
    mode = recording()
    if not mode or op.constant:
        return wrap(payload)
    if type(payload) is ndarray or not isinstance(payload, Wrapped):
        parents = tuple([t._node for t in inputs])
    else:  # what was recorded further out belongs to the tensors inside the payload
        level = payload.level
        nodes = [t._node for t in inputs]
        if level:
            nodes = [n if n is not None and n.level >= level else None for n in nodes]
            if not any(nodes):
                return wrap(payload)
        parents = tuple(nodes)
    if mode == CAREFUL:
        where = user_line() if anomaly_enabled() else None
        node: Node = MarkedNode(max(p.level for p in parents if p is not None), where)
    else:
        node = Node()
    node.op = op
    node.parents = parents
    node.params = params
    node.shape = payload.shape
    node.hooks = None
    saved = op.save(parents, payload, inputs)
    node.saved = saved
    if mode == CAREFUL and (watcher := recorder.get()) is not None:
        node.hooks = {}  # keeps the node off the engine's shortest path
        node.saved = watcher.saving(node, saved, inputs)
    return wrap(payload, node)


def apply(op: Op, *inputs: Tensor, **params: Any) -> Tensor:
    """`op` on tensors that are already of the dtypes, and with the parameters, that it takes."""
    global _native_apply
    if _native_apply is not None:
        try:
            if (t := _native_apply(op, inputs, params)) is not None:
                return t
        except EverygradError:
            raise
        except (ValueError, TypeError, IndexError):
            op.explain(inputs, params)
            raise
    elif _heat.is_hot():
        _native_apply = fast_calls.apply(CPU.kernels, record)
    watched = intercepted()
    if watched:
        if (chosen := policy()) is not None and not op.is_users:
            with uncast():  # what it is made of keeps the dtypes chosen here
                return apply(op, *converted(op.name, inputs, chosen), **params)
        if (tracer := tracing.get()) is not None:
            inputs = tracer.lift(inputs)
        if (around := recorder.get()) is not None and around.follows(op, inputs):
            followed: Tensor = around.run(op, inputs, params)
            return followed
    if op.composed and recording() and any(t._node is not None for t in inputs):
        return op.portable(*inputs, **params)
    try:
        payload = execute(op, inputs, params)
    except EverygradError:
        raise
    except (ValueError, TypeError, IndexError):
        op.explain(inputs, params)  # raises a named error if the inputs are at fault
        raise
    out = record(op, inputs, payload, params)
    if watched and (look := watcher.get()) is not None:
        look(op, inputs, out)
    return out


_native_apply: Callable[..., Tensor | None] | None = None
_heat = fast_calls.Heat()


def update(op: Op, t: Tensor, *others: Tensor, **params: Any) -> None:
    """Give `t` the value op(t, *others), outside any graph; in place where nobody can tell.

    A tensor that is a leaf stays one.
    """
    plain = type(t._data) is ndarray and all(type(o._data) is ndarray for o in others)
    if plain and op.family == "elementwise" and not intercepted():
        given = [o._data for o in others]
        payload = CPU.rewrite(op, t, given, params)
        if payload is None:
            payload = CPU.run(op, [t._data, *given], params)
        t.rebind(payload, t._node)
        return
    if op.family == "elementwise" and not intercepted() and hasattr(t._data, "direct"):
        payloads = [t._data, *[o._data for o in others]]
        if len(set(map(type, payloads))) == 1:  # a device's, and nothing around them
            t.rebind(backend_of(op.name, payloads).run(op, payloads, params), t._node)
            return
    with no_grad():
        t.rebind(apply(op, t, *others, **params)._data, t._node)


def refuse_masked(value: Any) -> None:
    """A mask would be dropped, and what it hides computed with."""
    if type(value) is not ndarray and hasattr(value, "mask") and hasattr(value, "filled"):
        raise ArgumentError(
            "tensors have no masks, and a masked array would lose its own: pass x.filled(value), "
            "or the data and the mask as two arrays"
        )


def as_tensor(value: Any, like: Tensor, dtype: DType | None = None) -> Tensor:
    """A number or NumPy array as a tensor on the device of `like`."""
    if (
        type(value) is float
        and type(like._data) is ndarray
        and dtype in _PLAIN
        and not intercepted()
    ):
        return wrap(np.asarray(value, dtype.np))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PYTHON_NUMBERS):
        dtype = dtype or dtypes.of_scalar(value, like.dtype)
        return wrap(base.get(like.device).full((), value, dtype))
    refuse_masked(value)
    array = np.array(value)
    return wrap(base.get(like.device).from_numpy(array.astype(dtypes.as_dtype(array.dtype).np)))


def operands(
    op: str, *values: Any, floating: bool = False, ends_in: str = ""
) -> tuple[Tensor, ...]:
    """Tensors of one dtype from tensors, NumPy arrays and Python numbers (which never widen).
    `ends_in`: the op whose precision holds, where `op` is the name of a function around it."""
    common: DType | None
    if isinstance(first := values[0], Tensor) and not intercepted():  # nearly always: as they are
        common = first.dtype
        if common.is_differentiable or not floating:
            given = []
            for v in values:
                if isinstance(v, Tensor) and v.dtype is common:
                    given.append(v)
                elif type(v) in _UNWIDENING and common.is_differentiable:
                    given.append(as_tensor(v, first, common))
                else:
                    break
            else:
                return tuple(given)
    tensors = [v for v in values if isinstance(v, Tensor)]
    numbers = [v for v in values if _is_number(v)]
    others = [v for v in values if not isinstance(v, Tensor) and not _is_number(v)]
    anchor = tensors[0] if tensors else wrap(np.zeros((), np.float32))
    for v in others:
        if not isinstance(v, ndarray):
            raise DtypeError(f"{op}: takes tensors and numbers, got {type(v).__name__} {v!r}"[:300])
        tensors.append(as_tensor(v, anchor))
    common = None
    for t in tensors:
        common = t.dtype if common is None else dtypes.promote(common, t.dtype, op)
    for n in numbers:
        common = dtypes.of_scalar(n.item() if isinstance(n, np.generic) else n, common)
    assert common is not None
    if floating and not common.is_differentiable:
        common = dtypes.DEFAULT_FLOAT
    if intercepted() and (chosen := policy()) is not None:
        common = cast_to(ends_in or op, common, anchor.device, chosen)
    arrays = iter(tensors[len(tensors) - len(others) :])
    made = []
    for v in values:
        if isinstance(v, Tensor):
            t = v
        else:
            t = as_tensor(v, anchor, common) if _is_number(v) else next(arrays)
        made.append(t if t.dtype is common else t.astype(common))
    return tuple(made)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS)


def computed(op: Op, payloads: list[Any]) -> Any:
    """The payload of an elementwise op on payloads, outside any graph."""
    out = None
    if not intercepted():
        if type(payloads[0]) is ndarray:
            if payloads[0].size > fast_limit():
                out = CPU.direct(op, *payloads)
        elif len(payloads) <= 3 and hasattr(payloads[0], "direct"):
            out = payloads[0].direct(op, *payloads)
    return execute(op, tuple([wrap(p) for p in payloads]), {}) if out is None else out


def _number(op: ElementwiseOp, payload: Any, value: float) -> Tensor | None:
    """A number beside a float payload of the CPU, or of a device that keeps numbers; None beside
    any other."""
    if type(value) is int:
        if not -_EXACT <= value <= _EXACT:
            return None
        value = float(value)
    if type(payload) is ndarray:
        dtype = payload.dtype
        plain = (dtype is F32 or dtype is F64) and dtype in op.floats
        return wrap(np.asarray(value, dtype)) if plain else None
    keep = getattr(payload, "number", None)
    return None if keep is None or payload.dtype not in op.floats else wrap(keep(value))


def _as_array(out: Any) -> Any:
    """NumPy's 0-d results as arrays; payloads of devices as they are."""
    return np.asarray(out) if isinstance(out, np.generic) else out


def unary(op: ElementwiseOp) -> Callable[[Any], Any]:
    """The function of an elementwise op of one input."""
    fast32: Any
    fast64: Any
    keep_x, keep_out = op.keeps[1], op.keeps[0]
    constant = op.constant
    native: Any = None
    heat = fast_calls.Heat()

    def call(x: Any = ABSENT, input: Any = None) -> Any:
        nonlocal native
        if input is not None:
            return call(in_one_word(op.name, "x", x, "input", input))
        if native is not None:
            try:
                if (t := native(x)) is not None:
                    return t
            except RuntimeWarning:  # raised by a filter: `apply` computes without warnings
                return slow(x)
        try:
            a = x._data
            size = a.size
            parent = x._node
        except AttributeError:  # no tensor, or a payload that the fast path is not for
            return slow(x)
        if size > fast_limit():
            # the shortest way a device knows, unless something must see every op
            if intercepted():
                return slow(x)
            if type(a) is not ndarray:
                out = a.direct(op, a)
            else:
                out = CPU.direct(op, a) if a.dtype in op.floats else None
            if out is None:
                return slow(x)
        else:
            dtype = a.dtype
            try:
                if dtype is F32:
                    out = fast32(a)
                elif dtype is F64:
                    out = fast64(a)
                else:
                    return slow(x)
            except RuntimeWarning:
                return slow(x)
            if native is None and heat.is_hot():
                native = fast_calls.forward(op)
        if type(out) is not ndarray:
            out = _as_array(out)
        t = Tensor()
        t._data = out
        t._source = None
        if parent is None or constant or not (mode := recording()):
            t._node = None
            return t
        if mode == CAREFUL:
            return record(op, (x,), out, {})
        node = t._node = Node()
        node.op = op
        node.parents = (parent,)
        node.saved = (out if keep_out else None, a if keep_x else None)
        node.params = None
        node.shape = out.shape
        node.hooks = None
        return t

    def first_call(a: Any) -> Any:
        nonlocal fast32, fast64
        if a.dtype not in op.floats:
            op.promote(wrap(a))  # raises: the op takes no floats
        fast32, fast64 = op.numpy_function(F32), op.numpy_function(F64)
        return (fast32 if a.dtype is F32 else fast64)(a)

    fast32 = fast64 = first_call

    def slow(x: Any) -> Any:
        if isinstance(x, Expr):
            return op.body(x)
        if isinstance(x, Tensor) and x._data.dtype in op.floats:  # as it is
            return apply(op, x)
        if x is ABSENT:
            raise missing_operand(op.name, "x")
        return apply(op, *op.promote(x))

    return call


def binary(op: ElementwiseOp, beside_none: bool | None = None) -> Callable[[Any, Any], Any]:
    """The function of an elementwise op of two inputs. `beside_none` is what a comparison with None
    gives, as an operator: it is never a number's equal."""
    fast32: Any
    fast64: Any
    # which of out, x, y to keep when x, y or both want a gradient; None for none of them
    x_keeps, y_keeps, both_keep = (
        _KEEP_Y if keep == _KEEP_Y else keep for keep in op.keep_table[1:]
    )
    constant = op.constant
    native: Any = None
    heat = fast_calls.Heat()

    def call(
        x: Any = ABSENT,
        y: Any = ABSENT,
        input: Any = None,
        other: Any = None,
        alpha: Any = None,
        exponent: Any = None,
    ) -> Any:
        nonlocal native
        if input is not None or other is not None or alpha is not None or exponent is not None:
            x = x if input is None else in_one_word(op.name, "x", x, "input", input)
            y = y if other is None else in_one_word(op.name, "y", y, "other", other)
            y = y if exponent is None else power(op, y, exponent)
            return call(x, y if alpha is None else scaled(op, y, alpha))
        if native is not None:
            try:
                if (t := native(x, y)) is not None:
                    return t
            except RuntimeWarning:  # raised by a filter: `apply` computes without warnings
                return slow(x, y)
            except ValueError:
                op.explain((x, y), {})  # raises if the shapes do not broadcast
                raise
        try:
            a = x._data
            b = y._data
            a_size = a.size
            b_size = b.size
            px = x._node
            py = y._node
        except AttributeError:  # no tensor, or a payload that the fast path is not for
            return slow(x, y)
        dtype = a.dtype
        if dtype is not b.dtype:
            return slow(x, y)
        limit = fast_limit()
        if a_size > limit or b_size > limit:
            if limit < 0 or ((type(a) is ndarray or op.checks_integers) and dtype not in op.floats):
                return slow(x, y)
            # the shortest way a device knows
            out = CPU.direct(op, a, b) if type(a) is ndarray else a.direct(op, a, b)
            if out is None:
                return slow(x, y)
        else:
            try:
                if dtype is F32:
                    out = fast32(a, b)
                elif dtype is F64:
                    out = fast64(a, b)
                else:
                    return slow(x, y)
            except RuntimeWarning:
                return slow(x, y)
            except ValueError:
                op.explain((x, y), {})
                raise
            if native is None and heat.is_hot():
                native = fast_calls.forward(op)
        if type(out) is not ndarray:
            out = _as_array(out)
        t = Tensor()
        t._data = out
        t._source = None
        if (px is None and py is None) or constant or not (mode := recording()):
            t._node = None
            return t
        if mode == CAREFUL:
            return record(op, (x, y), out, {})
        node = t._node = Node()
        node.op = op
        node.parents = (px, py)
        keep = x_keeps if py is None else y_keeps if px is None else both_keep
        if keep is _KEEP_Y:
            node.saved = (None, None, b)
        elif keep is None:
            node.saved = _NOTHING
        else:
            node.saved = (
                out if keep[0] else None,
                a if keep[1] else None,
                b if keep[2] else None,
            )
        node.params = None
        node.shape = out.shape
        node.hooks = None
        return t

    def first_call(a: Any, b: Any) -> Any:
        nonlocal fast32, fast64
        if a.dtype not in op.floats:
            op.promote(wrap(a), wrap(b))  # raises: the op takes no floats
        fast32, fast64 = op.numpy_function(F32), op.numpy_function(F64)
        return (fast32 if a.dtype is F32 else fast64)(a, b)

    fast32 = fast64 = first_call

    def slow(x: Any, y: Any) -> Any:
        if isinstance(x, Expr) or isinstance(y, Expr):
            return op.body(x, y)
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            dtype = x._data.dtype
            if dtype is y._data.dtype and dtype in op.floats:  # as they are
                return apply(op, x, y)
        if type(y) in _REAL_NUMBERS and isinstance(x, Tensor) and fast_limit() >= 0:
            if (given := _number(op, x._data, y)) is not None:
                return call(x, given)
        elif type(x) in _REAL_NUMBERS and isinstance(y, Tensor) and fast_limit() >= 0:
            if (given := _number(op, y._data, x)) is not None:
                return call(given, y)
        elif y is None and beside_none is not None:
            return beside_none
        if x is ABSENT or y is ABSENT:
            raise missing_operand(op.name, "x" if x is ABSENT else "y")
        if not (intercepted() and policy() is not None):  # what `promote` would make of them
            if type(y) in _UNWIDENING and isinstance(x, Tensor) and x._data.dtype in op.floats:
                return apply(op, x, as_tensor(y, x, x.dtype))
            if type(x) in _UNWIDENING and isinstance(y, Tensor) and y._data.dtype in op.floats:
                return apply(op, as_tensor(x, y, y.dtype), y)
        return apply(op, *op.promote(x, y))

    return call
