"""Multi-tensor updates: an optimiser's rule over all its parameters, in few launches.

A rule is a list of changes, each an elementwise op that gives one of its arrays a new value. The
kernel applies them in turn to elements in registers, so each tensor is read and written once; its
argument is a table of many parameters, among which the blocks are divided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad.backends.cuda.array import ALIGNED, CudaArray, layout_of
from everygrad.backends.cuda.driver.gpu import Gpu
from everygrad.backends.cuda.driver.memory import Storage
from everygrad.backends.cuda.source.c_types import LAYOUTS
from everygrad.backends.cuda.source.render import body
from everygrad.backends.cuda.source.writer import BLOCK, KernelText, WrittenKernel
from everygrad.compiler.thresholds import edge
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.protocols import UpdateRule
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import is_row_major
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

_MAX_ARGUMENT_BYTES = 4096  # of a launch, on every GPU
# elements of a parameter for one block
_CHUNK = edge(__name__, "_CHUNK", 1 << 13, "elements")
_BYTES = 16  # of one load or store


class UpdateForm(NamedTuple):
    """What a kernel's text depends on: a rule, and the dtypes and kinds of its arrays."""

    rule: UpdateRule
    dtypes: tuple[DType, ...]
    single: tuple[bool, ...]  # whether an array is one number for all elements

    @property
    def written(self) -> tuple[int, ...]:
        """The arrays that get new values."""
        return tuple(sorted({change.places[0] for change in self.rule.changes}))

    @property
    def pointers(self) -> int:
        return len(self.dtypes) + len(self.written)

    @property
    def most(self) -> int:
        """The most parameters in one table, which has the addresses, size and first block of
        each."""
        return _MAX_ARGUMENT_BYTES // (8 * (self.pointers + 2))

    def capacity(self, count: int) -> int:
        """The entries of a table for so many parameters: a power of two, so that few kernels
        suffice."""
        return min(1 << (count - 1).bit_length(), self.most)


class ParameterUpdate(NamedTuple):
    """One parameter: its number, and its arrays before the update."""

    number: int
    arrays: list[CudaArray]


# --- the kernel ----------------------------------------------------------------------------------


def _element(form: UpdateForm) -> list[str]:
    """The changes of one element, in registers x0, x1..."""
    lines = []
    for change in form.rule.changes:
        places = change.places
        program = change.op.program([form.dtypes[k] for k in places], change.params)
        given = {i: f"x{k}" for i, k in enumerate(places)}
        lay = LAYOUTS[form.dtypes[places[0]]]
        rounded = lay.load.format(lay.store.format("result"))  # as the next op would read it
        inner = [*body(program, given, "result"), f"x{places[0]} = {rounded};"]
        lines += ["{", *(f"  {line}" for line in inner), "}"]
    return lines


def _loop(form: UpdateForm, vector: int) -> list[str]:
    """The elements from `e` on, `vector` at a time."""
    full = [k for k, single in enumerate(form.single) if not single]
    lines = []
    for k in full:
        kind = f"Pack<{LAYOUTS[form.dtypes[k]].memory}, {vector}>"
        lines.append(f"{kind} y{k} = *({kind}*)(a{k} + e);")
    lines += ["#pragma unroll", f"for (int j = 0; j < {vector}; ++j) {{"]
    for k in full:
        lay = LAYOUTS[form.dtypes[k]]
        lines.append(f"  {lay.register} x{k} = {lay.load.format(f'y{k}.v[j]')};")
    lines += [f"  {line}" for line in _element(form)]
    for k in form.written:
        lines.append(f"  y{k}.v[j] = {LAYOUTS[form.dtypes[k]].store.format(f'x{k}')};")
    lines.append("}")
    for k in form.written:
        kind = f"Pack<{LAYOUTS[form.dtypes[k]].memory}, {vector}>"
        lines.append(f"*({kind}*)(o{k} + e) = y{k};")
    return [f"  {line}" for line in lines]


def _lines(form: UpdateForm, capacity: int) -> list[str]:
    """The kernel's body. It reads the table in place, never through a pointer."""
    width = max(d.itemsize for d, one in zip(form.dtypes, form.single, strict=True) if not one)
    vector = _BYTES // width
    lines = [
        "int k = 0;  // whose block this is",
        f"for (int step = {1 << capacity.bit_length() - 1}; step; step >>= 1)",
        f"  if (k + step < {capacity} && table.first[k + step] <= (i64)blockIdx.x) k += step;",
        f"const i64 begin = ((i64)blockIdx.x - table.first[k]) * {_CHUNK};",
        "const i64 size = table.size[k];",
        f"const i64 end = begin + {_CHUNK} < size ? begin + {_CHUNK} : size;",
    ]
    names = [*(f"a{k}" for k in range(len(form.dtypes))), *(f"o{k}" for k in form.written)]
    whose = [*form.dtypes, *(form.dtypes[k] for k in form.written)]
    for i, (name, dtype) in enumerate(zip(names, whose, strict=True)):
        memory = LAYOUTS[dtype].memory
        lines.append(f"{memory}* {name} = ({memory}*)table.at[k * {form.pointers} + {i}];")
    for k, single in enumerate(form.single):
        if single:
            lay = LAYOUTS[form.dtypes[k]]
            lines.append(f"const {lay.register} x{k} = {lay.load.format(f'a{k}[0]')};")
    step = BLOCK * vector
    lines += [
        f"for (i64 e = begin + threadIdx.x * {vector}; e + {vector} <= end; e += {step}) {{",
        *_loop(form, vector),
        "}",
    ]
    if vector > 1:
        lines += [
            f"for (i64 e = end - (end - begin) % {vector} + threadIdx.x; e < end; e += {BLOCK}) {{",
            *_loop(form, 1),
            "}",
        ]
    return lines


def _write(form: UpdateForm, sizes: Sequence[int]) -> WrittenKernel:
    """The kernel for parameters of these sizes; its pointers are those of each in turn."""
    capacity = form.capacity(len(sizes))
    sizes = [*sizes, *[0] * (capacity - len(sizes))]
    blocks = [-(-size // _CHUNK) for size in sizes]
    first = [sum(blocks[:k]) for k in range(capacity)]  # of an empty entry: after all others
    text = "\n".join(f"  {line}" for line in _lines(form, capacity))
    table = (
        f"{{ u64 at[{capacity * form.pointers}]; i64 size[{capacity}]; i64 first[{capacity}]; }}"
    )
    title = form.rule.changes[-1].op.name.replace(".", "_")
    digest = hashlib.sha256(f"{table}{text}".encode()).hexdigest()[:12]
    name = f"multi_tensor_{title}_{digest}"
    source = (
        f"struct Table_{digest} {table};\n"
        f'extern "C" __global__ void __launch_bounds__({BLOCK})\n'
        f"{name}(const Table_{digest} table) {{\n{text}\n}}\n"
    )
    numbers = (*sizes, *first)
    grid = (sum(blocks), 1, 1)
    return WrittenKernel(
        KernelText(name, source), capacity * form.pointers, numbers, True, grid, BLOCK
    )


# --- when it applies -----------------------------------------------------------------------------


def _is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether elements are dense in memory, in any order of the axes."""
    axes = sorted(range(len(shape)), key=lambda a: -strides[a])
    return is_row_major(tuple(shape[a] for a in axes), tuple(strides[a] for a in axes))


def _same_strides(a: CudaArray, b: CudaArray) -> bool:
    """Whether corresponding elements have the same offset in both."""
    steps = zip(a.shape, a.strides, b.strides, strict=True)
    return all(n == 1 or s == t for n, s, t in steps)


def _form(rule: UpdateRule, arrays: Sequence[CudaArray]) -> UpdateForm | None:
    """The kernel form of a rule on arrays of these layouts; None where it must run op by op. Its
    ops do not change dtypes."""
    first = arrays[rule.changes[0].places[0]]
    single = tuple(not a.shape and bool(first.shape) for a in arrays)
    made = UpdateForm(rule, tuple(FROM_NP[a.dtype] for a in arrays), single)
    for k, a in enumerate(arrays):
        if a.storage is None or (single[k] and k in made.written):
            return None
        if single[k]:
            continue
        if a.shape != first.shape or a.ptr % ALIGNED or not _same_strides(a, first):
            return None
    if not _is_dense(first.shape, first.strides):
        return None
    return None if any(d.is_complex for d in made.dtypes) else made


def rewrite(
    dev: Cuda, rule: UpdateRule, given: Sequence[list[Any]]
) -> list[dict[int, CudaArray] | None]:
    """Apply a rule to the payloads of each parameter: the new arrays of each by their places in the
    rule, or None where it must run op by op."""
    made: list[dict[int, CudaArray] | None] = [None] * len(given)
    jobs: dict[UpdateForm, list[ParameterUpdate]] = {}
    for number, arrays in enumerate(given):
        if any(type(a) is not CudaArray or a.device != dev.device for a in arrays):
            continue
        key = ("multi_tensor", rule, *[a.layout or layout_of(a) for a in arrays])
        form = dev.plans[key] if key in dev.plans else dev.keep(key, _form(rule, arrays))
        if form is not None:
            jobs.setdefault(form, []).append(ParameterUpdate(number, arrays))
    for form, some in jobs.items():
        for start in range(0, len(some), form.most):
            _launch(dev, form, some[start : start + form.most], made)
    return made


def _launch(
    dev: Cuda,
    form: UpdateForm,
    jobs: Sequence[ParameterUpdate],
    made: list[dict[int, CudaArray] | None],
) -> None:
    """One kernel for so many parameters; `made` gets their new arrays, by number."""
    gpu = dev.gpu
    written, sizes = form.written, []
    pointers: list[int] = []
    for number, arrays in jobs:
        pointers += [a.ptr for a in arrays]
        outs = made[number] = {k: _target(gpu, arrays, k) for k in written}
        pointers += [a.ptr for a in outs.values()]
        sizes.append(size_of(arrays[written[0]].shape))
    kernel = dev.planned(("multi_tensor", form, *sizes), lambda: _write(form, sizes))
    empty = (form.capacity(len(jobs)) - len(jobs)) * form.pointers
    gpu.launch(kernel, *pointers, *[0] * empty)


def _target(gpu: Gpu, arrays: list[CudaArray], k: int) -> CudaArray:
    """The array for a new value: in the old one's memory where nothing else can see that. It is a
    new array in either case, so that holders of the old one notice that the value changed."""
    old = arrays[k]
    if refcount(old) <= _TENSOR_ONLY and old.is_sole_owner:
        storage = old.storage
    else:
        storage = gpu.memory.take(size_of(old.shape) * old.dtype.itemsize)
    made = CudaArray(old.device, old.shape, old.dtype, storage, 0, old.strides)
    made.layout = old.layout
    return made


def _tensor_only() -> int:
    """The refcount of an array that only a tensor holds, as `_target` sees it."""

    class Holder:
        _data: Any

    t = Holder()
    t._data = CudaArray("cuda", (), np.dtype(np.float32), Storage(None, None, 0, 0))
    arrays = [t._data]

    def look(arrays: list[CudaArray]) -> int:
        old = arrays[0]
        return refcount(old)

    return look(arrays)


_TENSOR_ONLY = calibrated(_tensor_only())
