"""One step of a recurrent cell, of both parts of its gates: see `ops.nn.recurrent_step`.

Every element of a state is made by itself, so rows are shared by the threads; backward computes the
gates again, which takes less time than keeping them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from everygrad.backends.cpu.gemm.recurrent import GATES, STATES, RowWriter
from everygrad.backends.cpu.kernels import single_op
from everygrad.backends.cpu.kernels.half_conversions import converted, widened
from everygrad.backends.cpu.kernels.run_work import functions_of
from everygrad.backends.cpu.llvm.compiler import Value as Reg
from everygrad.backends.cpu.llvm.work import Work
from everygrad.backends.cpu.runtime import native_threads
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.core.shapes import Shape
from everygrad.dtypes import FROM_NP, DType

# forward: the states; gx, gh, the state before


def _lstm_gates(k: RowWriter, gx: int, gh: int) -> tuple[Reg, Reg, Reg, Reg]:
    i, f, g, o = (k.plus(k.load(gx, p), k.load(gh, p)) for p in range(4))
    return k.sigmoid(i), k.sigmoid(f), k.number("tanh", g), k.sigmoid(o)


def _lstm(k: RowWriter) -> None:
    i, f, g, o = _lstm_gates(k, 2, 3)
    c = k.plus(k.times(f, k.load(4)), k.times(i, g))
    k.store(k.times(o, k.number("tanh", c)), 0)
    k.store(c, 1)


def _gru_gates(k: RowWriter, gx: int, gh: int) -> tuple[Reg, Reg, Reg, Reg]:
    r, z = (k.sigmoid(k.plus(k.load(gx, p), k.load(gh, p))) for p in range(2))
    hn = k.load(gh, 2)
    return r, z, k.number("tanh", k.plus(k.load(gx, 2), k.times(r, hn))), hn


def _gru(k: RowWriter) -> None:
    _, z, n, _ = _gru_gates(k, 1, 2)
    k.store(k.plus(n, k.times(z, k.number("sub", k.load(3), n))), 0)


# backward: the gradients of gx, of gh where they differ, of the state before; those of the states;
# gx, gh, the state before


def _lstm_back(k: RowWriter) -> None:
    i, f, g, o = _lstm_gates(k, 4, 5)
    before, gh = k.load(6), k.load(2)
    t = k.number("tanh", k.plus(k.times(f, before), k.times(i, g)))
    dc = k.plus(k.load(3), k.times(gh, o, k.tanh_slope(t)))
    k.store(k.times(dc, g, k.sigmoid_slope(i)), 0, 0)
    k.store(k.times(dc, before, k.sigmoid_slope(f)), 0, 1)
    k.store(k.times(dc, i, k.tanh_slope(g)), 0, 2)
    k.store(k.times(gh, t, k.sigmoid_slope(o)), 0, 3)
    k.store(k.times(dc, f), 1)


def _gru_back(k: RowWriter) -> None:
    r, z, n, hn = _gru_gates(k, 4, 5)
    g, before = k.load(3), k.load(6)
    dn = k.times(g, k.number("sub", k.constant(1.0), z), k.tanh_slope(n))
    dr = k.times(dn, hn, k.sigmoid_slope(r))
    dz = k.times(g, k.number("sub", before, n), k.sigmoid_slope(z))
    for part, value in enumerate((dr, dz, dn)):
        k.store(value, 0, part)
    for part, value in enumerate((dr, dz, k.times(dn, r))):
        k.store(value, 1, part)
    k.store(k.times(g, z), 2)


_FORWARD: dict[str, Callable[[RowWriter], None]] = {"lstm": _lstm, "gru": _gru}
_BACKWARD: dict[str, Callable[[RowWriter], None]] = {"lstm": _lstm_back, "gru": _gru_back}


@lru_cache(maxsize=256)
def _work(mode: str, dtype: DType, n: int, hidden: int, widths: Shape, back: bool) -> Work:
    """`widths`: of the rows of the results and the inputs, in hidden sizes."""
    body = (_BACKWARD if back else _FORWARD)[mode]
    strides = tuple(hidden * width for width in widths)
    return Work((RowWriter(dtype, hidden, strides).step(n, body),))


def _run(mode: str, back: bool, made: Shape, given: Shape, arrays: tuple[Any, ...]) -> Any:
    """All results, one behind the other. `made`, `given`: the widths of the rows of each result and
    input, in hidden sizes."""
    asked = arrays[-1].dtype
    arrays = single_op.as_contiguous(*map(widened, arrays))
    state = arrays[-1]
    (n, hidden), dtype = state.shape, state.dtype
    out = empty((sum(made) * n * hidden,), dtype)
    if not out.size:
        return converted(out, asked)
    one = n * hidden * out.itemsize
    at = address_of(out)
    places = []
    for width in made:
        places.append(at)
        at += width * one
    for array in arrays:
        at = address_of(array)
        if back and array is arrays[0]:  # the gradients of all states
            places += [at + k * one for k in range(STATES[mode])]
        else:
            places.append(at)
    step = _work(mode, FROM_NP[dtype], n, hidden, (*made, *given), back).steps
    args = (ctypes.c_void_p * len(places))(*places)
    compiled = functions_of(step)
    native_threads.parallel(compiled.addresses[0], n, ctypes.addressof(args))
    return converted(out, asked)


def rnn_step(gx: Any, gh: Any, state: Any, mode: str) -> Any:
    gates, count = GATES[mode], STATES[mode]
    out = _run(mode, False, (1,) * count, (gates, gates, 1), (gx, gh, state))
    return out.reshape(count * state.shape[0], state.shape[1])


def rnn_step_grads(g: Any, gx: Any, gh: Any, state: Any, mode: str) -> Any:
    gates, count = GATES[mode], STATES[mode]
    made = (4, 1) if mode == "lstm" else (3, 3, 1)
    return _run(mode, True, made, (*(1,) * count, gates, gates, 1), (g, gx, gh, state))


KERNELS: dict[str, Callable[..., Any]] = {"rnn_step": rnn_step, "rnn_step_grads": rnn_step_grads}
