"""The values of a fused kernel, each written when it is first needed: loads, and members' bodies.

A reference has one value for a row, or one for each element that a lane holds: `u` counts these
through its vectors. An operation on the same registers as an earlier one is that one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.codegen.groups.group_threads import ThreadMapping
from everygrad.codegen.kernel import Buffer, Builder, register_of
from everygrad.compiler.expr import Expr, as_expr, call
from everygrad.compiler.groups import Load, Member, Number
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import StridedAccess
from everygrad.compiler.schedule import Passes, is_below_maximum, progression
from everygrad.core.shapes import Shape
from everygrad.core.strides import collapse
from everygrad.dtypes import DType


class Task(NamedTuple):
    """What a kernel computes: `passes.wanted` of a group's members, by threads that `mapping`
    assigns. `sizes` are those of the axes that make up rows and columns, `kinds` says what each
    final is, `exact` values have the same bits wherever they are computed, `stores` are the results
    that are not stored in order."""

    passes: Passes
    mapping: ThreadMapping
    sizes: tuple[Shape, Shape]
    accesses: dict[Load, StridedAccess]
    kinds: dict[Value, str]
    exact: Set[Value] = frozenset()
    stores: Mapping[Value, StridedAccess] = MappingProxyType({})

    @property
    def members(self) -> dict[Value, Member]:
        return self.passes.members

    @property
    def wanted(self) -> Sequence[Value]:
        return self.passes.wanted

    def inputs(self) -> list[Value]:
        """The values that are read."""
        loads = [r for m in self.members.values() for r in m.refs if isinstance(r, Load)]
        return list(dict.fromkeys(r.value for r in loads if progression(r) is None))


Terms = list[tuple[Expr, int, Expr]]  # coordinates, with the signs and the sizes of their strides


class Axis(NamedTuple):
    """An axis that an address grows along: `behind` elements lie behind one step of it."""

    size: int
    behind: int
    step: int
    is_first: bool
    is_last: bool


def axes_of(sizes: Shape, strides: Shape) -> tuple[Axis, ...]:
    """The axes along which an address grows at an index that counts through axes of these sizes,
    from the innermost on."""
    sizes, (steps,) = collapse(sizes, [strides])
    made, behind, last = [], 1, len(sizes) - 1
    for k in reversed(range(len(sizes))):
        if steps[k]:
            made.append(Axis(sizes[k], behind, steps[k], k == 0, k == last))
        behind *= sizes[k]
    return tuple(made)


def address(first: Any, terms: Terms) -> Expr:
    """The sum. What is subtracted comes last: an index is unsigned."""
    found = as_expr(first)
    for at, sign, step in sorted(terms, key=lambda term: term[1] < 0):
        if at.fn == step.fn == "const":
            moved = as_expr(at.value * step.value)
        else:
            moved = at if step.fn == "const" and step.value == 1 else at * step
        if found.fn == "const" and not found.value and sign > 0:
            found = moved
        else:
            found = found + moved if sign > 0 else found - moved
    return found


class Operand:
    """A load of a kernel whose lanes take `vector` columns at a time."""

    def __init__(
        self, number: int, load: Load, access: StridedAccess, sizes: tuple[Shape, Shape],
        vector: int,
    ) -> None:  # fmt: skip
        self.number = number
        self.load = load
        self.access = access
        self.rows, self.columns = sizes
        self.vector = vector
        self.progression = progression(load)
        self.axes = {
            "rows": axes_of(self.rows, access.rows),
            "columns": axes_of(self.columns, access.columns),
        }
        self.sizes, (self.steps,) = collapse(self.columns, [access.columns])
        # whether the columns of one take are the last stride apart
        is_whole = len(self.sizes) == 1 or self.sizes[-1] % vector == 0
        self.has_one_stride = vector == 1 or is_whole
        self.step = self.steps[-1]
        self.base: Expr = as_expr(0)

    @property
    def is_of_row(self) -> bool:
        """Whether all columns have the same element."""
        return self.load.step is None and not any(self.access.columns)

    @property
    def is_steady(self) -> bool:
        """Whether the columns of one take have the same element."""
        return self.has_one_stride and self.step == 0

    def is_vector(self, steady_index: bool) -> bool:
        """Whether a take is contiguous elements that start at a multiple of their number."""
        n = self.vector
        if n == 1 or not self.has_one_stride or self.step != 1 or self.progression is not None:
            return False
        if self.load.step is not None and (self.load.step % n or not steady_index):
            return False
        over = (axis.step for axis in self.axes["rows"])
        first = self.load.value.params.get("first", 0)  # of memory that others may have allocated
        return not any(s % n for s in (*self.steps[:-1], *over, self.access.offset, first))

    def form(self) -> Hashable:
        """What the text of its loads says besides sizes."""
        axes = [
            [(_form_of(a.step), a.is_first, a.is_last) for a in found]
            for found in self.axes.values()
        ]
        load = (self.load.value.dtype, self.load.step, bool(self.access.offset), self.progression)
        return (*load, *map(tuple, axes), self.has_one_stride, _form_of(self.step))

    def named_sizes(self) -> dict[Hashable, int]:
        """Its sizes by name."""
        made: dict[Hashable, int] = {("offset", self.number): self.access.offset}
        for which, axes in self.axes.items():
            for k, axis in enumerate(axes):
                name = (which, self.number, k)
                made[name, "size"], made[name, "behind"] = axis.size, axis.behind
                made[name, "step"] = abs(axis.step)
        return made

    def begin_row(self, row: Expr, b: Builder) -> None:
        """Define the address at which the row begins."""
        first = self.access.offset and b.size(self.access.offset, ("offset", self.number))
        self.base = b.let(address(first, self.terms(b, "rows", row)))

    def terms(self, b: Builder, which: str, index: Expr) -> Terms:
        """What an address grows by at the index of a row or column. Divisions, which are expensive,
        appear only where the strides require them."""
        made = []
        for k, axis in enumerate(self.axes[which]):
            name, at = (which, self.number, k), index
            if not axis.is_last:
                at = b.let(call("floordiv", at, b.size(axis.behind, (name, "behind"))))
            if not axis.is_first:
                at = b.let(call("mod", at, b.size(axis.size, (name, "size"))))
            made.append((at, axis.step, self.distance(b, axis.step, name)))
        return made

    def distance(self, b: Builder, step: int, name: Hashable) -> Expr:
        return as_expr(1) if abs(step) == 1 else b.size(abs(step), (name, "step"))

    def next_to(self, b: Builder, part: int) -> Terms:
        """How much farther than the first element of a take another one is."""
        if not part or not self.step:
            return []
        return [
            (as_expr(part), self.step, self.distance(b, self.step, ("columns", self.number, 0)))
        ]


def _form_of(step: int) -> int:
    """What a text says of a stride: whether it is 0 or 1, and its sign."""
    return step if abs(step) < 2 else 2 if step > 0 else -2


def operands_of(task: Task) -> dict[Load, Operand]:
    """The loads of a kernel."""
    loads = dict.fromkeys(r for m in task.members.values() for r in m.refs if _is_load(r))
    vector = task.mapping.vector
    return {r: Operand(n, r, task.accesses[r], task.sizes, vector) for n, r in enumerate(loads)}


def stores_of(task: Task) -> dict[Value, Operand]:
    """Results that are not stored in order, as if they were loaded."""
    return {
        v: store_operand(v, at, task.sizes, task.mapping.vector, -1 - n)
        for n, (v, at) in enumerate(task.stores.items())
    }


def store_operand(
    v: Value, at: StridedAccess, sizes: tuple[Shape, Shape], vector: int, number: int = -1
) -> Operand:
    return Operand(number, Load(v, v.shape, (), 0), at, sizes, vector)


def vector_operands(task: Task, operands: dict[Load, Operand]) -> set[Load]:
    """The operands that are read as vectors."""

    def is_steady(ref: Any) -> bool:
        """Whether the columns of one take share this value; members are not followed."""
        if isinstance(ref, Load):
            return operands[ref].is_steady or operands[ref].is_of_row
        return isinstance(ref, Number) or task.members[ref].role in ("row", "reduce")

    indices = {m.refs[0]: m.refs[1] for m in task.members.values() if m.value.op.indexed_load}
    return {
        r for r, o in operands.items() if o.is_vector(r.step is not None and is_steady(indices[r]))
    }


class Values:
    """Writes values. `columns` are the registers that hold the first column of each take; `last`:
    the last column, where a vector may reach beyond it."""

    def __init__(
        self, b: Builder, task: Task, buffers: dict[Value, Buffer], operands: dict[Load, Operand]
    ) -> None:
        self.b, self.task, self.buffers, self.operands = b, task, buffers, operands
        self.members = task.members
        self.vector = task.mapping.vector
        self.of_row: dict[Any, Expr] = {}
        self.of_element: dict[Any, Expr] = {}
        self.columns: list[Expr] = []
        self.last: Expr | None = None

    # --- rows ------------------------------------------------------------------------------------

    def begin_row(self, row: Expr) -> None:
        """Define where the row begins in each operand, and load operands with one element a row."""
        self.of_row, self.of_element = {}, {}
        self.vectors = vector_operands(self.task, self.operands)
        for r, o in self.operands.items():
            o.begin_row(row, self.b)
            if o.is_of_row:
                self.of_row[r] = self.element(o, o.base)

    def row_value(self, v: Value) -> None:
        self.of_row[v] = self.member(v, None)

    # --- elements --------------------------------------------------------------------------------

    def get(self, ref: Any, arg: Value, u: int | None) -> Expr:
        """A reference's value at element u of those a lane holds, or of the row."""
        if isinstance(ref, Number):
            return number(ref.value, arg.dtype)
        if ref in self.of_row:
            return self.of_row[ref]
        key = (ref, u)
        if key not in self.of_element:
            made = self.read(ref, u or 0) if isinstance(ref, Load) else self.member(ref, u)
            self.of_element[key] = made
        return self.of_element[key]

    def fetch(self, loads: Sequence[Load], takes: Sequence[int]) -> None:
        """Read the elements of these takes now."""
        for r in loads:
            if r.step is None and r not in self.of_row:
                for take in takes:
                    for part in range(self.vector):
                        self.get(r, r.value, take * self.vector + part)

    def element(self, o: Operand, at: Expr) -> Expr:
        """One element of an operand; that of a range is computed."""
        if o.progression is None:
            return self.b.load(self.buffers[o.load.value], at)
        start, step = o.progression
        return self.b.let(at.cast(o.load.value.dtype) * step + start, o.load.value.dtype)

    def read(self, r: Load, u: int) -> Expr:
        o, (take, part) = self.operands[r], divmod(u, self.vector)
        if r in self.vectors:
            return self.vector_part(o, ("vector", r, take), take, u, [])
        if o.is_steady and part:
            return self.get(r, r.value, u - part)
        return self.element(o, self.place(o, take, part))

    def place(self, o: Operand, take: int, part: int, *more: tuple[Expr, int, Expr]) -> Expr:
        """The address of one element of a take."""
        if self.last is None and (o.has_one_stride or not part):
            key = ("take", o.load, take)
            start = self.of_element.get(key)
            if start is None:
                start = self.b.let(address(o.base, o.terms(self.b, "columns", self.columns[take])))
                self.of_element[key] = start
            return address(start, [*o.next_to(self.b, part), *more])
        column = self.columns[take]
        if part or self.last is not None:
            column = column + part
        if self.last is not None:
            column = call("min", column, self.last)
        return address(o.base, [*o.terms(self.b, "columns", self.b.let(column)), *more])

    def vector_part(self, o: Operand, key: Any, take: int, u: int, more: Terms) -> Expr:
        """One element of a vector, which is loaded once for all."""
        if key not in self.of_element:
            at = address(o.base, [*o.terms(self.b, "columns", self.columns[take]), *more])
            found = self.b.load_vector(self.buffers[o.load.value], at, self.vector)
            self.of_element[key] = at
            self.of_element.update(((key, part), e) for part, e in enumerate(found))
        return self.of_element[key, u % self.vector]

    def member(self, v: Value, u: int | None) -> Expr:
        m = self.members[v]
        if v.op.indexed_load:
            return self.picked(m, u)
        args = [self.get(r, a, u) for r, a in zip(m.refs, v.args, strict=True)]
        return self.computed(v, args, self.of_row if u is None else self.of_element)

    def computed(self, v: Value, args: Sequence[Expr], known: dict[Any, Expr]) -> Expr:
        """The op's body on these, each operation once."""
        precision = "exact" if v in self.task.exact else ""
        if v.op.coarse_halves and v.dtype in _HALVES and not precision:
            precision = "coarse"
        if not precision and v not in self.task.wanted and is_below_maximum(v):
            precision = "low"
        insts = v.op.program([a.dtype for a in v.args], v.params).insts
        made: list[Expr] = []
        for inst in insts:
            if inst.fn == "input":
                made.append(args[inst.value])
                continue
            if inst.fn == "const":
                made.append(number(inst.value, inst.dtype))
                continue
            parts = [made[a] for a in inst.args]
            if inst.fn == "cast" and _is_free(insts[inst.args[0]].dtype, inst.dtype):
                made.append(parts[0])  # halves are computed with as float32
                continue
            key = (inst.fn, inst.dtype, precision, *map(_key, parts))
            if key not in known:
                e = Expr(inst.fn, tuple(parts), inst.dtype if inst.fn == "cast" else None)
                known[key] = self.b.let_rounded(e, inst.dtype, precision)
            made.append(known[key])
        if made[-1].fn != "input" or self.b.dtype_of(made[-1]) is not v.dtype:
            return self.b.let(made[-1], v.dtype)
        return made[-1]

    def picked(self, m: Member, u: int | None) -> Expr:
        """Load the element that an index selects. A bad index, which a check reports, selects the
        last one."""
        r, where = m.refs
        o, (take, part) = self.operands[r], divmod(u or 0, self.vector)
        is_vector = u is not None and r in self.vectors  # one index for all of the take
        index = self.get(where, m.value.args[1], (u or 0) - part if is_vector else u)
        size = m.value.args[0].shape[m.value.params["axis"]]
        key = ("index", _key(index), size)
        known = self.of_row if u is None else self.of_element
        if key not in known:
            known[key] = self.b.let(call("min", index.cast(self.b.index), size - 1))
        far = (known[key], r.step or 0, as_expr(abs(r.step or 0)))
        if is_vector:
            assert u is not None
            return self.vector_part(o, ("vector", m.value, take), take, u, [far])
        if u is None:
            return self.element(o, address(o.base, [far]))
        return self.element(o, self.place(o, take, part, far))


_HALVES = (dtypes.float16, dtypes.bfloat16)


def _is_load(ref: Any) -> bool:
    return isinstance(ref, Load)


def _is_free(source: DType, target: DType) -> bool:
    return source is target or (source in _HALVES and target is dtypes.float32)


def _key(e: Expr) -> Any:
    """What tells registers and numbers apart."""
    if e.fn == "input":
        return register_of(e)
    return (repr(e.args[0].value), str(e.value)) if e.fn == "cast" else repr(e.value)


def number(value: Any, dtype: DType) -> Expr:
    """A constant of this dtype."""
    return as_expr(value).cast(dtype)
