"""Elementwise kernels: a scalar program over arrays that broadcast.

Results have the axis order of the largest input, so that permuted arrays stay permuted for free.
Where the innermost axis allows, a thread computes 16 bytes of results at a time, with vector loads
and stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everygrad.backends.cuda.source.c_types import LAYOUTS
from everygrad.backends.cuda.source.render import body, used_inputs
from everygrad.backends.cuda.source.writer import (
    BLOCK,
    KernelWriter,
    WrittenKernel,
    extent,
    is_wide,
)
from everygrad.compiler.expr import Program
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import collapse, row_major
from everygrad.dtypes import DType

_BYTES = edge(__name__, "_BYTES", 16, "size")  # of one load or store
_WAVES = edge(__name__, "_WAVES", 32, "count")  # blocks for each multiprocessor, at most


class LoopNest(NamedTuple):
    """The loops of a kernel: collapsed axes, and each operand's strides along them."""

    shape: Shape
    strides: tuple[Shape, ...]
    out: Shape  # the result's strides along the axes of the call


def _order(shape: Shape, strides: Sequence[Shape]) -> list[int]:
    """The axes from the outermost in memory to the innermost, by the first operand that is as
    large as the result."""
    axes = list(range(len(shape)))
    for steps in strides:
        if all(s or n == 1 for n, s in zip(shape, steps, strict=True)):
            return sorted(axes, key=lambda a: -abs(steps[a]) if shape[a] != 1 else 0)
    return axes


def loop_nest(shape: Shape, strides: Sequence[Shape], ordered: bool = False) -> LoopNest:
    """The loops over operands with these strides along `shape`; `ordered`: the result must be
    contiguous."""
    axes = list(range(len(shape))) if ordered else _order(shape, strides)
    permuted = tuple(shape[a] for a in axes)
    steps = row_major(permuted)
    out = [0] * len(shape)
    for a, s in zip(axes, steps, strict=True):
        out[a] = s
    sizes, small = collapse(permuted, [*(tuple(s[a] for a in axes) for s in strides), steps])
    return LoopNest(sizes, tuple(small[:-1]), tuple(out))


def _vector(at: LoopNest, sizes: Sequence[int], places: Sequence[int]) -> int:
    """The vector width: how many elements a thread takes at once. `sizes` are bytes of an element
    of each operand and the result, `places` the operands' addresses modulo 16."""
    inner = at.shape[-1]
    count = _BYTES // max(sizes)
    while count > 1:
        fits = inner % count == 0 or len(at.shape) == 1
        for steps, size, place in zip(at.strides, sizes, places, strict=False):
            if steps[-1] == 0:
                continue
            if steps[-1] != 1 or place % (count * size) or any(s % count for s in steps[:-1]):
                fits = False
        if fits:
            break
        count //= 2
    return count


def grid(groups: int, multiprocessors: int) -> int:
    """The number of blocks for so many threads' worth of work."""
    return max(1, min(-(-groups // BLOCK), multiprocessors * _WAVES))


def write(
    name: str,
    program: Program,
    given: Sequence[DType],
    at: LoopNest,
    places: Sequence[int],
    multiprocessors: int,
) -> WrittenKernel:
    """The kernel; its pointers are those of the inputs that the program uses, then the result's."""
    used = used_inputs(program)
    at = at._replace(strides=tuple(at.strides[k] for k in used))
    sizes = [*(given[k].itemsize for k in used), program.dtype.itemsize]
    vector = _vector(at, sizes, [places[k] for k in used])
    total = size_of(at.shape)
    w = KernelWriter(name, is_wide(total, *(extent(at.shape, s) for s in at.strides)))
    for k in used:
        w.pointer(LAYOUTS[given[k]].memory, f"a{k}")
    lay = LAYOUTS[program.dtype]
    w.pointer(lay.memory, "out", written=True)
    w.thread()
    count = w.number(total // vector, "count")
    arguments = ", ".join(f"{LAYOUTS[given[k]].register} x{k}" for k in used)
    w.add(f"auto one = [&]({arguments}) -> {lay.memory} {{")
    w.add(*(f"  {line}" for line in body(program, {k: f"x{k}" for k in used}, "result")))
    w.add(f"  return {lay.store.format('result')};", "};")
    single = {k for k, steps in zip(used, at.strides, strict=True) if not any(steps)}
    for k in sorted(single):
        register = LAYOUTS[given[k]].register
        w.add(f"const {register} s{k} = {LAYOUTS[given[k]].load.format(f'a{k}[0]')};")
    w.add(f"for ({w.index} e = thread; e < {count}; e += threads) {{")
    if vector == 1:
        _scalar_loop(w, given, used, at, single)
    else:
        _vector_loop(w, given, used, at, single, vector, lay.memory)
    w.add("}")
    if total % vector:
        _rest(w, given, used, single, total, vector)
    return w.finish(grid(total // vector, multiprocessors))


def _scalar_loop(
    w: KernelWriter, given: Sequence[DType], used: Sequence[int], at: LoopNest, single: set[int]
) -> None:
    lines, names = w.split("e", at.shape, "i")
    w.add(*(f"  {line}" for line in lines))
    values = []
    for k, steps in zip(used, at.strides, strict=True):
        place = f"a{k}[{w.address(names, steps)}]"
        values.append(f"s{k}" if k in single else LAYOUTS[given[k]].load.format(place))
    w.add(f"  out[e] = one({', '.join(values)});")


def _vector_loop(
    w: KernelWriter,
    given: Sequence[DType],
    used: Sequence[int],
    at: LoopNest,
    single: set[int],
    vector: int,
    memory: str,
) -> None:
    inner = at.shape[-1] // vector
    lines, names = w.split("e", (*at.shape[:-1], inner), "i")
    w.add(*(f"  {line}" for line in lines))
    values = []
    for k, steps in zip(used, at.strides, strict=True):
        lay = LAYOUTS[given[k]]
        if k in single:
            values.append(f"s{k}")
            continue
        if steps[-1] == 0:
            place = f"a{k}[{w.address(names, steps)}]"
            w.add(f"  const {lay.register} y{k} = {lay.load.format(place)};")
            values.append(f"y{k}")
            continue
        packs = (*(s // vector for s in steps[:-1]), 1)
        kind = f"Pack<{lay.memory}, {vector}>"
        w.add(f"  const {kind} y{k} = ((const {kind}*)a{k})[{w.address(names, packs)}];")
        values.append(lay.load.format(f"y{k}.v[j]"))
    kind = f"Pack<{memory}, {vector}>"
    w.add(
        f"  {kind} r;",
        "#pragma unroll",
        f"  for (int j = 0; j < {vector}; ++j) r.v[j] = one({', '.join(values)});",
        f"  (({kind}*)out)[e] = r;",
    )


def _rest(
    w: KernelWriter,
    given: Sequence[DType],
    used: Sequence[int],
    single: set[int],
    total: int,
    vector: int,
) -> None:
    """The remainder, fewer elements than a thread takes at once."""
    values = [f"s{k}" if k in single else LAYOUTS[given[k]].load.format(f"a{k}[e]") for k in used]
    end = w.number(total, "end")
    first = w.number(total // vector * vector, "first")
    w.add(
        f"for ({w.index} e = {first} + thread; e < {end}; e += threads)",
        f"  out[e] = one({', '.join(values)});",
    )
