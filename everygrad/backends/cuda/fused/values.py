"""The values of a fused kernel: loads, members' bodies, and which of them later passes reuse.

A thread takes `vector` neighbouring elements of a row at a time. Vector loads and stores stand
outside the loop over these elements, everything else inside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.source.c_types import HALVES, LAYOUTS
from everygrad.backends.cuda.source.kernel_render import combined
from everygrad.backends.cuda.source.render import body, cast, constant
from everygrad.backends.cuda.source.writer import KernelWriter, is_wide
from everygrad.codegen.groups.group_sums import accumulator_dtype
from everygrad.compiler.accumulate import identity
from everygrad.compiler.groups import Load, Member, Number
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import StridedAccess
from everygrad.compiler.schedule import progression
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of

_BYTES = 16  # of one load or store
_LOW = re.compile(r"\b(normcdf|exp)\(")
# elements that a thread retains from one pass to the next, prefetched ones included
_MAX_RETAINED = edge(__name__, "_MAX_RETAINED", 64, "size")


class KernelTask(NamedTuple):
    """What a kernel computes: `wanted` of the group's members. `rows` and `columns` are the sizes
    of the loops, `accesses` say which element each load reads, `kinds` what each final is.
    `pieces`: into how many rows one was split. `exact`: values that must have the same bits
    wherever they are computed. `rounded`: functions that nobody sees with more than 16 bits."""

    members: dict[Value, Member]
    wanted: list[Value]
    rows: Shape
    columns: Shape
    accesses: dict[Load, StridedAccess]
    kinds: dict[Value, str]
    pieces: int = 1
    exact: Set[Value] = frozenset()
    rounded: Set[Value] = frozenset()

    @property
    def row_count(self) -> int:
        return size_of(self.rows)

    @property
    def length(self) -> int:
        return size_of(self.columns)


class AliasingWriter(KernelWriter):
    """Results may alias operands, so no pointer is __restrict__."""

    def pointer(self, type: str, name: str, written: bool = False) -> str:
        self._pointers.append(f"{'' if written else 'const '}{type}* {name}")
        return name


def vector_of(task: KernelTask, flat: bool) -> int:
    """How many neighbours a thread takes at once: 16 bytes of the widest array that is read or
    written whole, if the row length divides."""
    last, whole = task.columns[-1], task.row_count * task.length
    sizes = [v.dtype.itemsize for v in task.wanted if task.members[v].role == "full"]
    sizes += [r.value.dtype.itemsize for r in task.accesses if r.value.size == whole]
    count = _BYTES // max(sizes, default=4)
    ends_anywhere = flat and len(task.columns) == 1
    while count > 1 and last % count and not (ends_anywhere and last > count):
        count //= 2
    return count


def split(index: str, sizes: Shape, prefix: str, kind: str) -> tuple[list[str], list[str]]:
    """Lines that split a linear index in C order into coordinates, and the coordinates' names."""
    word = "u64" if kind == "i64" else "u32"
    names = [f"{prefix}{k}" for k in range(len(sizes))]
    lines, rest = [], index
    for k in range(len(sizes) - 1, 0, -1):
        lines.append(f"const {kind} {names[k]} = ({kind})(({word})({rest}) % {sizes[k]}u);")
        lines.append(f"const {kind} {prefix}q{k} = ({kind})(({word})({rest}) / {sizes[k]}u);")
        rest = f"{prefix}q{k}"
    if sizes:
        lines.append(f"const {kind} {names[0]} = {rest};")
    return lines, names


def total(names: Sequence[str], strides: Shape) -> str:
    """The sum of coordinates times strides."""
    terms = [n if s == 1 else f"{n} * {s}" for n, s in zip(names, strides, strict=True) if s]
    return " + ".join(terms) or "0"


class Accumulator(NamedTuple):
    """How a reduction combines its terms."""

    value: Value
    total: Any  # the dtype of the accumulator
    kind: str
    start: str
    divisor: int  # of a mean, or 0

    def combine(self, a: str, b: str) -> str:
        return combined(self.value.op.combine, self.total, a, b)

    def load(self, value: str, source: Any) -> str:
        return f"({cast(value, source, self.total)})"

    def finalize(self, value: str) -> str:
        """The result from the complete sum, rounded as a store would."""
        if self.divisor:
            part = LAYOUTS[dtypes.real_of(self.total)].register
            times = f"* ({part})({1 / self.divisor!r})"
            value = f"({value} {times if self.total.is_complex else f'/ ({part}){self.divisor}'})"
        return cast(value, self.total, self.value.dtype)


def accumulator_of(m: Member) -> Accumulator:
    v = m.value
    dtype = accumulator_dtype(v.args[0].dtype)
    start = constant(identity(v.op.combine, dtype), dtype)
    count = size_of(m.shape) // v.size if v.op.mean else 0
    return Accumulator(v, dtype, LAYOUTS[dtype].register, start, count)


class LoadOperand:
    """A load, and how the loops address it."""

    def __init__(self, number: int, load: Load, access: StridedAccess, vector: int) -> None:
        self.number = number
        self.load = load
        self.access = access
        self.lay = LAYOUTS[load.value.dtype]
        self.progression = progression(load)
        self.step = access.columns[-1] if access.columns else 0
        self.is_of_row = not any(access.columns) and load.step is None
        others = (*access.rows, *access.columns[:-1], access.offset)
        aligned = all(s % vector == 0 for s in others)
        in_order = self.step == 1 and aligned and load.step is None
        self.is_pack = vector > 1 and in_order and self.progression is None

    def element(self, source: str, place: str) -> str:
        """The element at an offset as a register; a progression is computed, not read."""
        if self.progression is None:
            return self.lay.load.format(f"{source}[{place}]")
        start, step = self.progression
        kind = self.lay.register
        return f"({kind})(({self.lay.word})({kind})({place}) * {step}u + ({self.lay.word}){start})"


class Values:
    """Writes loads and members. `held`: each thread retains its elements of a row from one pass to
    the next, in arrays of `held` times `vector` elements."""

    def __init__(self, task: KernelTask, vector: int, held: int = 0) -> None:
        self.task = task
        self.members = task.members
        self.vector = vector
        self.held = held
        self.numbers = {v: k for k, v in enumerate(task.members)}
        loads = dict.fromkeys(
            r for m in task.members.values() for r in m.refs if isinstance(r, Load)
        )
        self.inputs = list(dict.fromkeys(r.value for r in loads if progression(r) is None))
        self.operands = {
            r: LoadOperand(n, r, task.accesses[r], vector) for n, r in enumerate(loads)
        }
        sizes = [_reach(task, o) for o in self.operands.values()]
        self.index = "i64" if is_wide(task.row_count * task.length, *sizes) else "i32"
        self.of_row: dict[Any, str] = {}
        self.retain: set[Any] = set()
        self.computed: dict[Any, int] = {}  # by reference: the pass that computed it
        self.prefetched: list[Load] = []  # read in the first pass for a later one
        self.counting: set[Value] = set()
        self._begin()

    def _begin(self) -> None:
        self.known: dict[Any, str] = {}
        self.outer: list[str] = []
        self.inner: list[str] = []
        self.at_pass = 0
        self.loaded: set[int] = set()  # numbers of operands that `outer` reads
        self.never: Set[Value] = frozenset()  # comparisons that are false for all elements at hand

    # --- rows ------------------------------------------------------------------------------------

    def row_lines(self, row: str) -> list[str]:
        """Where the row begins in each operand, and the values that a row has one of."""
        lines, names = split(row, self.task.rows, "r", self.index)
        for r, o in self.operands.items():
            offset = f" + {o.access.offset}" if o.access.offset else ""
            lines.append(f"const {self.index} b{o.number} = {total(names, o.access.rows)}{offset};")
            if o.is_of_row:
                value = o.element(self.source(r), f"b{o.number}")
                lines.append(f"const {o.lay.register} x{o.number} = {value};")
                self.of_row[r] = f"x{o.number}"
        return lines

    def source(self, r: Load) -> str:
        """The name of the pointer to what a load reads."""
        return f"a{self.inputs.index(r.value)}" if r.value in self.inputs else ""

    def row_member(self, v: Value) -> list[str]:
        """A value of the row."""
        self._begin()
        self.of_row[v] = self._member(v)
        return self.inner

    # --- elements --------------------------------------------------------------------------------

    def plan(self, passes: Sequence[Sequence[Any]]) -> None:
        """Find what later passes reuse; `passes` have the references each begins with."""
        first: dict[Any, int] = {}
        for k, roots in enumerate(passes):
            todo, seen = list(roots), set(roots)
            for r in todo:
                if isinstance(r, Number) or self.is_of_row(r):
                    continue
                if first.setdefault(r, k) < k:
                    self.retain.add(r)
                    continue
                for other in self.made_of(r):
                    if other not in seen:
                        seen.add(other)
                        todo.append(other)
        self._plan_prefetch([r for r, k in first.items() if k and isinstance(r, Load)])

    def _plan_prefetch(self, later: Sequence[Load]) -> None:
        """Prefetch what later passes read while rows are reduced, if registers allow."""
        each = self.held * self.vector
        for r in later:
            if each and self.operands[r].is_pack and (len(self.retain) + 1) * each <= _MAX_RETAINED:
                self.prefetched.append(r)
                self.retain.add(r)

    def is_of_row(self, r: Any) -> bool:
        if isinstance(r, Load):
            return self.operands[r].is_of_row
        return self.members[r].role in ("row", "reduce")

    def made_of(self, r: Any) -> Sequence[Any]:
        if isinstance(r, Load):
            return ()
        refs = self.members[r].refs
        return refs[1:] if r.op.indexed_load else refs

    def start_pass(self, k: int) -> None:
        """From here on, `outer` and `inner` collect the lines of pass k."""
        self._begin()
        self.at_pass = k

    def get(self, ref: Any, arg: Value) -> str:
        """A reference's value at the current element."""
        if isinstance(ref, Number):
            return constant(ref.value, arg.dtype)
        if ref in self.of_row:
            return self.of_row[ref]
        found = self.known.get(ref)
        if found is None:
            before = self.held and ref in self.retain and self.computed.get(ref, 99) < self.at_pass
            if before:
                return f"{self.retained_name(ref)}[h * {self.vector} + j]"
            found = self._read(ref) if isinstance(ref, Load) else self._member(ref)
            self.known[ref] = found
            if self.held and ref in self.retain:
                self.computed.setdefault(ref, self.at_pass)
                self.inner.append(f"{self.retained_name(ref)}[h * {self.vector} + j] = {found};")
        return found

    def missing_retained(self, k: int) -> list[Any]:
        """What pass k must retain and the lines so far do not compute: where elements are written
        in two branches, both must retain it."""
        retained = [r for r, at in self.computed.items() if at == k and r in self.retain]
        return [r for r in retained if r not in self.known] if self.held and self.never else []

    def retained_name(self, ref: Any) -> str:
        if isinstance(ref, Load):
            return f"kx{self.operands[ref].number}"
        return f"km{self.numbers[ref]}"

    def retained_arrays(self) -> list[str]:
        """The arrays that elements are retained in."""
        if not self.held:
            return []
        size = self.held * self.vector
        return sorted(
            f"{LAYOUTS[(r.value if isinstance(r, Load) else r).dtype].register} "
            f"{self.retained_name(r)}[{size}];"
            for r in self.retain
        )

    def column_lines(self) -> list[str]:
        """The coordinates of the first element at hand, `c`."""
        return split("c", self.task.columns, "c", self.index)[0]

    def _column(self, o: LoadOperand) -> str:
        names = [f"c{k}" for k in range(len(self.task.columns))]
        return f"b{o.number} + {total(names, o.access.columns)}"

    def _read(self, r: Load) -> str:
        o = self.operands[r]
        source, n = self.source(r), o.number
        if o.is_pack:
            kind = f"Pack<{o.lay.memory}, {self.vector}>"
            place = f"({source} + {self._column(o)})"
            self._once(n, f"const {kind} y{n} = *(const {kind}*){place};")
            value = o.lay.load.format(f"y{n}.v[j]")
        elif o.step == 0 or self.vector == 1:
            found = o.element(source, self._column(o))
            self._once(n, f"const {o.lay.register} y{n} = {found};")
            value = f"y{n}"
        else:
            value = o.element(source, f"{self._column(o)} + j * {o.step}")
        self.inner.append(f"const {o.lay.register} x{n} = {value};")
        return f"x{n}"

    def _once(self, n: int, line: str) -> None:
        if n not in self.loaded:
            self.loaded.add(n)
            self.outer.append(line)

    # --- one-hot comparisons ---------------------------------------------------------------------

    def one_hot_test(self) -> str:
        """A test whether the row's index is among the elements at hand: a one-hot comparison is
        then made once for all of them, not element by element. Empty where there is none."""
        found = {v: self._one_hot_condition(v) for v in self.known if isinstance(v, Value)}
        wanted = next((w for w in found.values() if w), "")
        self.counting = {v for v, w in found.items() if w == wanted}
        return wanted

    def _one_hot_condition(self, v: Value) -> str:
        m = self.members[v]
        if m.role != "full" or v.op.intrinsic() != "eq":
            return ""
        for index, counted in (m.refs, m.refs[::-1]):
            o = self.operands.get(counted)
            if o is None or o.progression is None or index not in self.of_row:
                continue
            start, step = o.progression
            access = o.access
            if step == 1 and access.columns == (1,) and not any(access.rows):
                first = f"(i64)c + {start + access.offset}"
                return f"(u64)((i64){self.of_row[index]} - ({first})) < {self.vector}u"
        return ""

    def restart(self, never: Set[Value] = frozenset()) -> None:
        """Write the elements a second time; there, these comparisons are false."""
        self.known, self.inner = {}, []
        self.never = never

    def is_zero_term(self, m: Member) -> bool:
        """Whether a sum's term is 0, because the element is not the chosen one."""
        chosen = self._chosen(m.refs[0])
        return m.value.op.combine == "add" and isinstance(chosen, Number) and chosen.value == 0

    def _chosen(self, ref: Any) -> Any:
        """What a selection by a comparison that is false gives."""
        if isinstance(ref, Value) and ref.op.selects and self.never:
            condition, _, other = self.members[ref].refs
            if condition in self.never and ref.args[2].dtype is ref.dtype:
                return self._chosen(other)
        return ref

    def _member(self, v: Value) -> str:
        m, name = self.members[v], f"m{self.numbers[v]}"
        if v in self.never:
            return "false"
        if (other := self._chosen(v)) is not v:
            return self.get(other, v)
        register = LAYOUTS[v.dtype].register
        if v.op.indexed_load:
            self._gather(m, name)
            return name
        inputs = {i: self.get(r, a) for i, (r, a) in enumerate(zip(m.refs, v.args, strict=True))}
        program = v.op.program([a.dtype for a in v.args], v.params)
        lines = body(program, inputs, "result", v in self.task.exact)
        made = "result"
        if v.dtype in HALVES:  # rounded as a store would round it
            made = cast("result", dtypes.float32, v.dtype)
        if v in self.task.rounded or (v.dtype in HALVES and v.op.coarse_halves):
            lines = [_LOW.sub(r"\1_low(", line) for line in lines]
        self.inner.append(f"{register} {name}; {{")
        self.inner += [f"  {line}" for line in lines]
        self.inner.append(f"  {name} = {made}; }}")
        return name

    def _gather(self, m: Member, name: str) -> None:
        """The element at an index; a bad index, which a check reports, reads element 0."""
        r, where = m.refs
        o, v = self.operands[r], m.value
        index = self.get(where, v.args[1])
        size = v.args[0].shape[v.params["axis"]]
        move = f" + j * {o.step}" if o.step and self.vector > 1 and m.role == "full" else ""
        place = self._column(o) if m.role == "full" else f"b{o.number}"
        source = self.source(r)
        self.inner.append(f"i64 at_{name} = (i64){index};")
        self.inner.append(f"if (at_{name} < 0 || at_{name} >= {size}) at_{name} = 0;")
        found = f"{source}[{place}{move} + at_{name} * {r.step}]"
        self.inner.append(f"const {o.lay.register} {name} = {o.lay.load.format(found)};")


def stored(v: Value, value: str) -> str:
    """A member as it is stored; what is already rounded is not rounded again."""
    if v.dtype is dtypes.bfloat16:
        return f"brain_top({value})"
    return LAYOUTS[v.dtype].store.format(value)


def _reach(task: KernelTask, o: LoadOperand) -> int:
    """How far an operand's elements lie from its first."""
    pairs = zip((*task.rows, *task.columns), (*o.access.rows, *o.access.columns), strict=True)
    return o.access.offset + sum((n - 1) * abs(s) for n, s in pairs)
