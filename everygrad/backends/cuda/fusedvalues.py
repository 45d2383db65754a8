"""The values of a fused kernel: loads, members' bodies, and which of them later passes use again.

A thread takes `vector` neighbouring elements of a row at a time. What is read or written as a whole
stands outside the loop over these elements, everything else inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.layout import HALVES, LAYOUTS, accumulator
from everygrad.backends.cuda.reducing import combined, identity
from everygrad.backends.cuda.render import body, cast, constant
from everygrad.backends.cuda.writer import is_wide
from everygrad.compile.fuse import Group, Load, Member, Number
from everygrad.compile.ir import Value
from everygrad.compile.walk import Place
from everygrad.shapes import Shape, size_of


class Task(NamedTuple):
    """What a kernel is to do: `wanted` of the group's members. `rows` and `columns` are the sizes
    of the axes walked, `places` say where loads are; `kinds` what each final is. `pieces`: into how
    many rows one was cut."""

    members: dict[Value, Member]
    wanted: list[Value]
    rows: Shape
    columns: Shape
    places: dict[Load, Place]
    kinds: dict[Value, str]
    pieces: int = 1

    @property
    def row_count(self) -> int:
        return size_of(self.rows)

    @property
    def length(self) -> int:
        return size_of(self.columns)


def needed(group: Group, wanted: Sequence[Value]) -> dict[Value, Member]:
    """The members that the wanted values are made of, in order."""
    todo, seen = list(wanted), set(wanted)
    for v in todo:
        for r in group.members[v].refs:
            if isinstance(r, Value) and r not in seen:
                seen.add(r)
                todo.append(r)
    return {v: m for v, m in group.members.items() if v in seen}


def split(index: str, sizes: Shape, prefix: str, kind: str) -> tuple[list[str], list[str]]:
    """Lines that split a place in C order into coordinates, and these coordinates' names."""
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


class Fold(NamedTuple):
    """How a reduction's terms come together."""

    value: Value
    total: Any  # the dtype of the sum
    kind: str
    start: str
    divisor: int  # of a mean, or 0

    def join(self, a: str, b: str) -> str:
        return combined(self.value.op.combine, self.total, a, b)

    def enter(self, value: str, source: Any) -> str:
        return f"({cast(value, source, self.total)})"

    def leave(self, value: str) -> str:
        """The result from the whole sum, rounded as memory would."""
        if self.divisor:
            part = LAYOUTS[dtypes.real_of(self.total)].register
            times = f"* ({part})({1 / self.divisor!r})"
            value = f"({value} {times if self.total.is_complex else f'/ ({part}){self.divisor}'})"
        return cast(value, self.total, self.value.dtype)


def fold_of(m: Member) -> Fold:
    v = m.value
    dtype = accumulator(v.dtype)
    start = constant(identity(v.op.combine, dtype), dtype)
    count = size_of(m.shape) // v.size if v.op.mean else 0
    return Fold(v, dtype, LAYOUTS[dtype].register, start, count)


class Operand:
    """A load in a walk."""

    def __init__(self, number: int, load: Load, place: Place, vector: int) -> None:
        self.number = number
        self.load = load
        self.place = place
        self.lay = LAYOUTS[load.value.dtype]
        self.step = place.columns[-1] if place.columns else 0
        self.is_of_row = not any(place.columns) and load.step is None
        others = (*place.rows, *place.columns[:-1], place.offset)
        aligned = all(s % vector == 0 for s in others)
        self.is_pack = vector > 1 and self.step == 1 and aligned and load.step is None


class Values:
    """Writes loads and members. `held`: each thread keeps its elements of a row from one pass to
    the next, in arrays of `held` times `vector` elements."""

    def __init__(self, task: Task, vector: int, held: int = 0) -> None:
        self.task = task
        self.members = task.members
        self.vector = vector
        self.held = held
        self.numbers = {v: k for k, v in enumerate(task.members)}
        loads = dict.fromkeys(
            r for m in task.members.values() for r in m.refs if isinstance(r, Load)
        )
        self.inputs = list(dict.fromkeys(r.value for r in loads))
        self.operands = {r: Operand(n, r, task.places[r], vector) for n, r in enumerate(loads)}
        sizes = [_reach(task, o) for o in self.operands.values()]
        self.index = "i64" if is_wide(task.row_count * task.length, *sizes) else "i32"
        self.of_row: dict[Any, str] = {}
        self.keep: set[Any] = set()
        self.computed: dict[Any, int] = {}  # by reference: the pass that computed it
        self._begin()

    def _begin(self) -> None:
        self.known: dict[Any, str] = {}
        self.outer: list[str] = []
        self.inner: list[str] = []
        self.at_pass = 0

    # --- rows ------------------------------------------------------------------------------------

    def row_lines(self, row: str) -> list[str]:
        """Where the row begins in each operand, and what it has one element of."""
        lines, names = split(row, self.task.rows, "r", self.index)
        for r, o in self.operands.items():
            offset = f" + {o.place.offset}" if o.place.offset else ""
            lines.append(f"const {self.index} b{o.number} = {total(names, o.place.rows)}{offset};")
            if o.is_of_row:
                source = f"a{self.inputs.index(r.value)}[b{o.number}]"
                lines.append(f"const {o.lay.register} x{o.number} = {o.lay.load.format(source)};")
                self.of_row[r] = f"x{o.number}"
        return lines

    def row_member(self, v: Value) -> list[str]:
        """A value of the row."""
        self._begin()
        self.of_row[v] = self._member(v)
        return self.inner

    # --- elements --------------------------------------------------------------------------------

    def plan(self, passes: Sequence[Sequence[Any]]) -> None:
        """Find what later passes use again; `passes` have the references each begins with."""
        first: dict[Any, int] = {}
        for k, roots in enumerate(passes):
            todo, seen = list(roots), set(roots)
            for r in todo:
                if isinstance(r, Number) or self.is_of_row(r):
                    continue
                if first.setdefault(r, k) < k:
                    self.keep.add(r)
                    continue
                for other in self.made_of(r):
                    if other not in seen:
                        seen.add(other)
                        todo.append(other)

    def is_of_row(self, r: Any) -> bool:
        if isinstance(r, Load):
            return self.operands[r].is_of_row
        return self.members[r].role in ("row", "reduce")

    def made_of(self, r: Any) -> Sequence[Any]:
        if isinstance(r, Load):
            return ()
        refs = self.members[r].refs
        return refs[1:] if r.name == "take" else refs

    def start_pass(self, k: int) -> None:
        """From here on, `outer` and `inner` collect the lines of pass k."""
        self._begin()
        self.at_pass = k

    def get(self, ref: Any, arg: Value) -> str:
        """A reference's value at the element that the loops are at."""
        if isinstance(ref, Number):
            return constant(ref.value, arg.dtype)
        if ref in self.of_row:
            return self.of_row[ref]
        found = self.known.get(ref)
        if found is None:
            before = self.held and ref in self.keep and self.computed.get(ref, 99) < self.at_pass
            if before:
                return f"{self.kept(ref)}[h * {self.vector} + j]"
            found = self._read(ref) if isinstance(ref, Load) else self._member(ref)
            self.known[ref] = found
            if self.held and ref in self.keep:
                self.computed.setdefault(ref, self.at_pass)
                self.inner.append(f"{self.kept(ref)}[h * {self.vector} + j] = {found};")
        return found

    def kept(self, ref: Any) -> str:
        if isinstance(ref, Load):
            return f"kx{self.operands[ref].number}"
        return f"km{self.numbers[ref]}"

    def kept_lines(self) -> list[str]:
        """The arrays that elements are kept in."""
        if not self.held:
            return []
        size = self.held * self.vector
        return sorted(
            f"{LAYOUTS[(r.value if isinstance(r, Load) else r).dtype].register} "
            f"{self.kept(r)}[{size}];"
            for r in self.keep
        )

    def column_lines(self) -> list[str]:
        """The coordinates of the first element at hand, `c`."""
        return split("c", self.task.columns, "c", self.index)[0]

    def _column(self, o: Operand) -> str:
        names = [f"c{k}" for k in range(len(self.task.columns))]
        return f"b{o.number} + {total(names, o.place.columns)}"

    def _read(self, r: Load) -> str:
        o = self.operands[r]
        source, n = f"a{self.inputs.index(r.value)}", o.number
        if o.is_pack:
            kind = f"Pack<{o.lay.memory}, {self.vector}>"
            place = f"({source} + {self._column(o)})"
            self.outer.append(f"const {kind} y{n} = *(const {kind}*){place};")
            value = o.lay.load.format(f"y{n}.v[j]")
        elif o.step == 0 or self.vector == 1:
            place = o.lay.load.format(f"{source}[{self._column(o)}]")
            self.outer.append(f"const {o.lay.register} y{n} = {place};")
            value = f"y{n}"
        else:
            value = o.lay.load.format(f"{source}[{self._column(o)} + j * {o.step}]")
        self.inner.append(f"const {o.lay.register} x{n} = {value};")
        return f"x{n}"

    def _member(self, v: Value) -> str:
        m, name = self.members[v], f"m{self.numbers[v]}"
        register = LAYOUTS[v.dtype].register
        if v.name == "take":
            self._picked(m, name)
            return name
        inputs = {i: self.get(r, a) for i, (r, a) in enumerate(zip(m.refs, v.args, strict=True))}
        program = v.op.program([a.dtype for a in v.args], v.params)
        lines = body(program, inputs, "result")
        made = "result"
        if v.dtype in HALVES:  # rounded as memory would round it
            made = cast("result", dtypes.float32, v.dtype)
        self.inner.append(f"{register} {name}; {{")
        self.inner += [f"  {line}" for line in lines]
        self.inner.append(f"  {name} = {made}; }}")
        return name

    def _picked(self, m: Member, name: str) -> None:
        """The element an index names; a bad index, of which the check behind it tells, is 0."""
        r, where = m.refs
        o, v = self.operands[r], m.value
        index = self.get(where, v.args[1])
        size = v.args[0].shape[v.params["axis"]]
        move = f" + j * {o.step}" if o.step and self.vector > 1 and m.role == "full" else ""
        place = self._column(o) if m.role == "full" else f"b{o.number}"
        source = f"a{self.inputs.index(r.value)}"
        self.inner.append(f"i64 at_{name} = (i64){index};")
        self.inner.append(f"if (at_{name} < 0 || at_{name} >= {size}) at_{name} = 0;")
        found = f"{source}[{place}{move} + at_{name} * {r.step}]"
        self.inner.append(f"const {o.lay.register} {name} = {o.lay.load.format(found)};")


def _reach(task: Task, o: Operand) -> int:
    """How far an operand's elements lie from its first."""
    pairs = zip((*task.rows, *task.columns), (*o.place.rows, *o.place.columns), strict=True)
    return o.place.offset + sum((n - 1) * abs(s) for n, s in pairs)
