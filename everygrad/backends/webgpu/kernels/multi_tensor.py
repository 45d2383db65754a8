"""Multi-tensor updates: an optimiser's rule over all its parameters, in few launches.

A rule is a list of changes, each an elementwise op that gives one of its arrays a new value. The
kernel applies them in turn to elements in registers, so each tensor is read and written once. Every
parameter has a range of workgroups, and as many parameters share a kernel as the device binds
buffers for. A value that nobody else can see is written over: its buffer is bound once, for
writing, and read from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.driver.gpu import WORKGROUP, Gpu
from everygrad.backends.webgpu.driver.memory import Block
from everygrad.backends.webgpu.kernels.copy_kernels import copied
from everygrad.backends.webgpu.source.render import MAIN, body, cast, slot, with_library
from everygrad.backends.webgpu.source.word_layout import byte_size, layout
from everygrad.compiler.thresholds import edge
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.protocols import UpdateRule
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_VECTOR = 4  # elements of a thread
# buffers that one kernel binds, whatever the device allows
MOST_BUFFERS = edge(__name__, "MOST_BUFFERS", 96, "count")
_ITEMS = {4: "vec4<u32>", 2: "vec2<u32>"}  # of a buffer, by the bytes of an element: four elements
_FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


class UpdateForm(NamedTuple):
    """What a kernel does to one parameter: a rule, and the dtypes and kinds of its arrays."""

    rule: UpdateRule
    dtypes: tuple[DType, ...]
    single: tuple[bool, ...]  # whether an array is one number for all elements

    @property
    def written(self) -> tuple[int, ...]:
        """The arrays that get new values."""
        return tuple(sorted({change.places[0] for change in self.rule.changes}))


# --- the kernel ----------------------------------------------------------------------------------


def _element(form: UpdateForm) -> str:
    """`change`: the new values of one element, as a function of its old ones."""
    registers = [layout(d).register for d in form.dtypes]
    names = ", ".join(f"y{k}: {register}" for k, register in enumerate(registers))
    fields = ", ".join(f"v{k}: {registers[k]}" for k in form.written)
    lines = [f"struct Changed {{ {fields} }}", f"fn change({names}) -> Changed {{"]
    lines += [f"  var x{k} = y{k};" for k in range(len(registers))]
    for op, places, params in ((c.op, c.places, c.params) for c in form.rule.changes):
        program = op.program([form.dtypes[k] for k in places], params)
        inner = body(program, {i: f"x{k}" for i, k in enumerate(places)}, "result")
        # rounded, as the next op would read it from memory
        rounded = cast("result", dtypes.float32, form.dtypes[places[0]])
        lines += ["  {", *inner, f"  x{places[0]} = {rounded};", "  }"]
    lines.append(f"  return Changed({', '.join(f'x{k}' for k in form.written)});")
    return "\n".join([*lines, "}"]) + "\n"


def _read(dtype: DType, buffer: str, at: str, place: int) -> str:
    """Element `place` of the four at item `at` of a buffer."""
    if dtype is dtypes.float32:
        return f"bitcast<f32>({buffer}[{at}].{'xyzw'[place]})"
    word = f"{buffer}[{at}].{'xy'[place // 2]}"
    low = f"({word} >> 16u)" if place % 2 else f"({word} & 65535u)"
    return f"half_f({low})" if dtype is dtypes.float16 else f"bits_f({low} << 16u)"


def _write(dtype: DType, values: Sequence[str]) -> str:
    """Four elements as the item of a buffer."""
    bits = [f"({layout(dtype).bits.format(v=v)})" for v in values]
    if dtype is dtypes.float32:
        return f"vec4<u32>({', '.join(bits)})"
    return f"vec2<u32>({bits[0]} | ({bits[1]} << 16u), {bits[2]} | ({bits[3]} << 16u))"


class Places(NamedTuple):
    """The names of a parameter's buffers in a kernel: where its arrays are read, and where new
    values are written."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def _branch(form: UpdateForm, places: Places, number: int, last: bool) -> str:
    """One parameter: the workgroups from slot `2 * number` of the uniform on, and its elements."""
    first, size = slot(2 * number), slot(2 * number + 1)
    end = "" if last else f" && all < {slot(2 * number + 2)}"
    lines = [
        f"  if (all >= {first}{end}) {{",
        f"  let t = (all - {first}) * {WORKGROUP}u + l;",
        f"  if (t * {_VECTOR}u < {size}) {{",
    ]
    for k, single in enumerate(form.single):
        if single:
            lines.append(f"  let s{k} = {_read(form.dtypes[k], places.reads[k], '0', 0)};")
    for j in range(_VECTOR):
        given = [
            f"s{k}" if one else _read(form.dtypes[k], places.reads[k], "t", j)
            for k, one in enumerate(form.single)
        ]
        lines.append(f"  let r{j} = change({', '.join(given)});")
    for k, buffer in zip(form.written, places.writes, strict=True):
        item = _write(form.dtypes[k], [f"r{j}.v{k}" for j in range(_VECTOR)])
        lines.append(f"  {buffer}[t] = {item};")
    return "\n".join([*lines, "  }", "  }"]) + "\n"


@lru_cache(maxsize=1024)
def _source(
    form: UpdateForm,
    parameters: tuple[Places, ...],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> str:
    """The kernel for so many parameters; `inputs` and `outputs` are the items of its buffers."""
    head = "".join(
        f"@group(0) @binding({i}) var<storage, read> a{i}: array<{item}>;\n"
        for i, item in enumerate(inputs)
    )
    head += "".join(
        f"@group(0) @binding({len(inputs) + i}) var<storage, read_write> o{i}: array<{item}>;\n"
        for i, item in enumerate(outputs)
    )
    head += f"struct Params {{ v: array<vec4<u32>, {-(-2 * len(parameters) // 4)}> }}\n"
    head += f"@group(0) @binding({len(inputs) + len(outputs)}) var<uniform> P: Params;\n"
    text = _element(form) + MAIN + "  let all = w.y * g.x + w.x;\n"
    for n, places in enumerate(parameters):
        text += _branch(form, places, n, n == len(parameters) - 1)
    return head + with_library(text + "}\n")


# --- a launch ------------------------------------------------------------------------------------


class Launch:
    """Parameters that share a kernel, and the buffers it binds."""

    def __init__(self, form: UpdateForm) -> None:
        self.form = form
        self.reads: dict[tuple[int, str], Block] = {}  # by block and item, in the order bound
        self.writes: list[tuple[Block, str]] = []
        self.places: list[Places] = []
        self.sizes: list[int] = []

    def bindings(self, arrays: Sequence[WebGPUArray], outs: dict[int, WebGPUArray]) -> int:
        """How many buffers there are with one more parameter."""
        more = {key for key, _ in self._read_from(arrays, outs)} - self.reads.keys()
        return len(self.reads) + len(more) + len(self.writes) + len(outs)

    def add(self, arrays: Sequence[WebGPUArray], outs: dict[int, WebGPUArray]) -> None:
        form = self.form
        writes = {}
        for k, out in outs.items():
            writes[k] = f"o{len(self.writes)}"
            self.writes.append((_block(out), _ITEMS[form.dtypes[k].itemsize]))
        for key, block in self._read_from(arrays, outs):
            self.reads.setdefault(key, block)
        order = {key: n for n, key in enumerate(self.reads)}
        reads = tuple(
            writes[k] if _is_written_over(a, outs.get(k)) else f"a{order[self._key(k, a)]}"
            for k, a in enumerate(arrays)
        )
        self.places.append(Places(reads, tuple(writes.values())))
        self.sizes.append(size_of(arrays[form.written[0]].shape))

    def _key(self, k: int, a: WebGPUArray) -> tuple[int, str]:
        return _block(a).number, _ITEMS[self.form.dtypes[k].itemsize]

    def _read_from(
        self, arrays: Sequence[WebGPUArray], outs: dict[int, WebGPUArray]
    ) -> list[tuple[tuple[int, str], Block]]:
        """The buffers that are only read."""
        return [
            (self._key(k, a), _block(a))
            for k, a in enumerate(arrays)
            if not _is_written_over(a, outs.get(k))
        ]

    def record(self, gpu: Gpu) -> None:
        inputs = tuple(item for _, item in self.reads)
        outputs = tuple(item for _, item in self.writes)
        source = _source(self.form, tuple(self.places), inputs, outputs)
        params, groups = [], 0
        for size in self.sizes:
            params += [groups, size]
            groups += -(-size // (_VECTOR * WORKGROUP))
        name = f"multi_tensor {self.form.rule.changes[-1].op.name}"
        kernel = gpu.prepare(name, source, len(inputs), len(outputs), params, groups)
        gpu.record(kernel, [*self.reads.values(), *(block for block, _ in self.writes)])


def _block(a: WebGPUArray) -> Block:
    assert a.storage is not None
    return a.storage.block


def _is_written_over(a: WebGPUArray, out: WebGPUArray | None) -> bool:
    return out is not None and out.storage is a.storage


# --- when it applies -----------------------------------------------------------------------------


def _form(dev: WebGPU, rule: UpdateRule, arrays: Sequence[WebGPUArray]) -> UpdateForm | None:
    """The kernel form of a rule on these arrays; None where it must run op by op: where buffers are
    empty or larger than a binding, or the rule computes with something else than floats."""
    first = arrays[rule.changes[0].places[0]]
    single = tuple(not a.shape and bool(first.shape) for a in arrays)
    made = UpdateForm(rule, tuple(FROM_NP[a.dtype] for a in arrays), single)
    for k, a in enumerate(arrays):
        if a.storage is None or a.storage.gpu is not dev.gpu or made.dtypes[k] not in _FLOATS:
            return None
        if a.storage.block.size > dev.gpu.limits.binding_size:
            return None
        if a.shape != first.shape if not single[k] else k in made.written:
            return None
    return made


def rewrite(
    dev: WebGPU, rule: UpdateRule, given: Sequence[list[Any]]
) -> list[dict[int, WebGPUArray] | None]:
    """Apply a rule to the payloads of each parameter: the new arrays of each by their places in the
    rule, or None where it must run op by op."""
    made: list[dict[int, WebGPUArray] | None] = [None] * len(given)
    most = min(dev.gpu.limits.storage_buffers, MOST_BUFFERS)
    launches: dict[UpdateForm, Launch] = {}
    for number, arrays in enumerate(given):
        if any(type(a) is not WebGPUArray for a in arrays):
            continue
        form = _form(dev, rule, arrays)
        if form is None:
            continue
        for k in range(len(arrays)):
            if arrays[k].offset or not arrays[k].is_contiguous:
                arrays[k] = copied(dev, arrays[k]).with_known_order()
        outs = {k: _target(dev, arrays, k) for k in form.written}
        launch = launches.setdefault(form, Launch(form))
        if launch.places and launch.bindings(arrays, outs) > most:
            launch.record(dev.gpu)
            launch = launches[form] = Launch(form)
        if launch.bindings(arrays, outs) > most:  # even alone
            continue
        launch.add(arrays, outs)
        made[number] = outs
    for launch in launches.values():
        if launch.places:
            launch.record(dev.gpu)
    return made


def _target(dev: WebGPU, arrays: list[Any], k: int) -> WebGPUArray:
    """The array for a new value: in the old one's memory where nothing else can see that. It is a
    new array in either case, so that holders of the old one notice that the value changed."""
    old = arrays[k]
    if refcount(old) <= _TENSOR_ONLY and old.is_sole_owner:
        storage = old.storage
    else:
        storage = dev.gpu.pool.take(byte_size(FROM_NP[old.dtype], size_of(old.shape)))
    return WebGPUArray(old.device, old.shape, old.dtype, storage)


def _tensor_only() -> int:
    """The refcount of an array that only a tensor holds, as `_target` sees it."""

    class Holder:
        _data: Any

    t = Holder()
    held: Any = object()
    t._data = WebGPUArray("webgpu", (), np.dtype(np.float32), held)
    arrays = [t._data]

    def look(arrays: list[Any]) -> int:
        old = arrays[0]
        return refcount(old)

    return look(arrays)


_TENSOR_ONLY = calibrated(_tensor_only())
