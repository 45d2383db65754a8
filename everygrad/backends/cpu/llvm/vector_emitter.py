"""Emits LLVM IR with explicit loops and vectors, for convolutions, pooling, scans and sorts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from everygrad.backends.cpu.llvm.compiler import Emitter, Value, engine
from everygrad.backends.cpu.llvm.work import Step
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType

Int = Value | int  # an i64: a constant of the generator, or a value at run time

OUT, FIRST, SECOND, SCRATCH = range(4)  # the arguments of every step
# bytes of the images of one tile that fit the nearest cache
NEAR = edge(__name__, "NEAR", 24 << 10, "bytes")


class VectorUnit(NamedTuple):
    """The vector unit: elements per vector, vector registers, whether lanes can be masked."""

    lanes: int
    registers: int
    masks: bool


def machine(dtype: DType) -> VectorUnit:
    """The vectors of this processor."""
    features = engine().features
    if features.get("avx512f") and features.get("avx512vl"):
        return VectorUnit(64 // dtype.itemsize, 32, True)
    width = 32 if features.get("avx2") else 16
    return VectorUnit(width // dtype.itemsize, 16, False)


def has_bf16_dots() -> bool:
    """Whether this processor has dot products of bfloat16 pairs, in vectors of 512 bits."""
    has = engine().features.get
    return all(has(name) for name in ("avx512bf16", "avx512bw", "avx512vl"))


def _align(type_: str) -> int:
    """Bytes to which elements of a type, or of a vector of it, are aligned."""
    return 2 if "i16" in type_ else 4 if "float" in type_ else 8


class Loop:
    """A loop being written: its index, the carried values, and their next values."""

    def __init__(self, index: Int, values: Sequence[Value]) -> None:
        self.index = index
        self.values = list(values)
        self.next = list(values)


class VectorEmitter(Emitter):
    """Writes a step: loops, vectors of one type, and integers that are folded where known."""

    def __init__(self, dtype: DType, lanes: int) -> None:
        super().__init__()
        self.element = {2: "i16", 4: "float", 8: "double"}[dtype.itemsize]  # 16 bits: only moved
        self.lanes = lanes
        self.vector = f"<{lanes} x {self.element}>"
        self.mask = f"<{lanes} x i1>"
        self.suffix = f"v{lanes}{'i' if dtype.itemsize == 2 else 'f'}{dtype.bits}"
        self.zero = Value(self.vector, "zeroinitializer")
        self.globals: list[str] = []
        self._block = "entry"
        self._labels = 0

    # --- integers

    def add(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if b == 0:
            return a
        return b if a == 0 else self.op("add", self.i64(a), self.i64(b))

    def sub(self, a: Int, b: int) -> Int:
        return self.add(a, -b)

    def minus(self, a: Int, b: Int) -> Int:
        if isinstance(b, int):
            return self.add(a, -b)
        return self.op("sub", self.i64(a), b)

    def mul(self, a: Int, b: int) -> Int:
        if isinstance(a, int) or b == 0:
            return a * b if isinstance(a, int) else 0
        return a if b == 1 else self.op("mul", a, self.i64(b))

    def divmod(self, a: Int, b: int) -> tuple[Int, Int]:
        """Of integers that are not negative."""
        if isinstance(a, int) or b == 1:
            return divmod(a, b) if isinstance(a, int) else (a, 0)
        return self.op("udiv", a, self.i64(b)), self.op("urem", a, self.i64(b))

    def least(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.call("llvm.smin.i64", "i64", self.i64(a), self.i64(b))

    def i64(self, a: Int) -> Value:
        return Value("i64", str(a)) if isinstance(a, int) else a

    def compare_ints(self, predicate: str, a: Int, b: Int) -> Value:
        return self.compare(predicate, self.i64(a), self.i64(b))

    def share(self, index: Int, shares: int, count: int) -> tuple[Int, Int]:
        """The range of [0, count) that belongs to share `index`."""
        if shares == 1:
            return 0, count
        low, _ = self.divmod(self.mul(index, count), shares)
        high, _ = self.divmod(self.mul(self.add(index, 1), count), shares)
        return low, high

    def bounded(self, index: Int, step: int, end: int) -> Int:
        """Where tile `index` of size `step` begins: the last one moves back to end at `end`."""
        first = self.mul(index, step)
        return first if end % step == 0 else self.least(first, end - step)

    def repeated(self, index: Int, step: int, end: int) -> Int:
        """How many positions of a `bounded` tile the tile before it covers too: a kernel that
        accumulates in memory must not write them again."""
        if end % step == 0:
            return 0
        over = self.sub(self.mul(index, step), end - step)
        return self.call("llvm.smax.i64", "i64", self.i64(over), Value("i64", "0"))

    # --- memory

    def argument(self, index: int, offset: int = 0) -> Value:
        """An argument of the step, `offset` elements on."""
        at = self.emit("ptr", f"getelementptr ptr, ptr %args, i64 {index}")
        return self.at(self.emit("ptr", f"load ptr, ptr {at.name}"), offset)

    def at(self, base: Value, offset: Int, type_: str = "") -> Value:
        """The address `offset` elements on."""
        if offset == 0:
            return base
        kind = type_ or self.element
        offset = self.i64(offset)
        return self.emit("ptr", f"getelementptr {kind}, ptr {base.name}, i64 {offset.name}")

    def table(self, values: Sequence[int], type_: str = "i64") -> Value:
        """Constants to index when the code runs."""
        name = f"@table{len(self.globals)}"
        items = ", ".join(f"{type_} {v}" for v in values)
        self.globals.append(f"{name} = private constant [{len(values)} x {type_}] [{items}]")
        return Value("ptr", name)

    def lookup(self, table: Value, index: Int, type_: str = "i64") -> Value:
        return self.load(self.at(table, index, type_), type_)

    def load(self, address: Value, type_: str = "") -> Value:
        """By default a vector."""
        kind = type_ or self.vector
        aligned = "" if kind.startswith("i") else f", align {_align(kind)}"
        return self.emit(kind, f"load {kind}, ptr {address.name}{aligned}")

    def store(self, value: Value, address: Value) -> None:
        align = _align(value.type)
        self.lines.append(f"  store {value.type} {value.name}, ptr {address.name}, align {align}")

    def prefetch(self, address: Value) -> None:
        """Prefetches a cache line; any address is valid."""
        self.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        given = f"ptr {address.name}, i32 0, i32 2, i32 1"
        self.lines.append(f"  call void @llvm.prefetch.p0({given})")

    def load_where(self, address: Value, mask: Value, of: VectorEmitter | None = None) -> Value:
        """A vector, zero where the mask is not set; nothing is read there. `of`: the emitter whose
        vectors are meant, if not this one's."""
        of = of or self
        align = Value("i32", str(_align(of.element)))
        name = f"llvm.masked.load.{of.suffix}.p0"
        return self.call(name, of.vector, address, align, mask, of.zero)

    def evens(self, address: Value, low: Value, high: Value) -> Value:
        """Every other element of two vectors, read where the masks are set: far faster than a
        gather."""
        two = self.load_where(address, low), self.load_where(self.at(address, self.lanes), high)
        return self.shuffle(*two, range(0, 2 * self.lanes, 2))

    def load_lanes(self, address: Value, which: range) -> Value:
        """These lanes of a vector, zeros in the others; nothing is read there."""
        if len(which) == self.lanes:
            return self.load(address)
        return self.load_where(address, self.these_lanes(which)) if len(which) else self.zero

    def gather(self, address: Value, index: Value, mask: Value) -> Value:
        """The elements at `index` from `address` on, zero where the mask is not set."""
        ptrs = f"<{self.lanes} x ptr>"
        align = Value("i32", str(_align(self.element)))
        wide = f"getelementptr {self.element}, ptr {address.name}, {index.type} {index.name}"
        name = f"llvm.masked.gather.{self.suffix}.v{self.lanes}p0"
        return self.call(name, self.vector, self.emit(ptrs, wide), align, mask, self.zero)

    def store_where(self, value: Value, address: Value, mask: Value) -> None:
        align = _align(value.type)
        kind = "f" if "float" in value.type or "double" in value.type else "i"
        bits = 8 * align
        name = f"llvm.masked.store.v{self.lanes}{kind}{bits}.p0"
        self.declarations.add(f"declare void @{name}({value.type}, ptr, i32, {mask.type})")
        given = f"{value.type} {value.name}, ptr {address.name}, i32 {align}"
        self.lines.append(f"  call void @{name}({given}, {mask.type} {mask.name})")

    # --- vectors

    def splat(self, value: Value, type_: str = "") -> Value:
        """A vector of one number."""
        kind = type_ or self.vector
        one = self.emit(kind, f"insertelement {kind} poison, {value.type} {value.name}, i64 0")
        many = f"shufflevector {kind} {one.name}, {kind} poison"
        return self.emit(kind, f"{many}, <{self.lanes} x i32> zeroinitializer")

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Selects lanes of a and b, numbered through both; -1 leaves a lane undefined."""
        which = ", ".join("i32 poison" if p < 0 else f"i32 {p}" for p in lanes)
        both = f"{a.type} {a.name}, {b.type} {b.name}"
        return self.emit(a.type, f"shufflevector {both}, <{len(lanes)} x i32> <{which}>")

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the processor has fused multiply-add."""
        return self.call(f"llvm.fmuladd.{self.suffix}", self.vector, a, b, c)

    def lane_numbers(self, step: int = 1, type_: str = "i64") -> Value:
        items = ", ".join(f"{type_} {step * k}" for k in range(self.lanes))
        return Value(f"<{self.lanes} x {type_}>", f"<{items}>")

    def constants(self, values: Sequence[int], type_: str = "i64") -> Value:
        items = ", ".join(f"{type_} {v}" for v in values)
        return Value(f"<{self.lanes} x {type_}>", f"<{items}>")

    def each_below(self, numbers: Sequence[int], first: Int, end: Int) -> Value:
        """The mask of the lanes whose numbers, with `first` added, are in [0, end)."""
        kind = f"<{self.lanes} x i64>"
        moved = self.op("add", self.splat(self.i64(first), kind), self.constants(numbers))
        bound = self.splat(self.i64(end), kind)
        return self.emit(self.mask, f"icmp ult {kind} {moved.name}, {bound.name}")

    def below(self, first: Int, end: Int, step: int = 1) -> Value:
        """The mask of the lanes whose numbers, from `first` on by `step`, are in [0, end)."""
        kind = f"<{self.lanes} x i64>"
        numbers = self.lane_numbers(step)
        if first != 0:
            numbers = self.op("add", self.splat(self.i64(first), kind), numbers)
        bound = self.splat(self.i64(end), kind)
        return self.emit(self.mask, f"icmp ult {kind} {numbers.name}, {bound.name}")

    def these_lanes(self, which: range) -> Value:
        items = ", ".join(f"i1 {int(k in which)}" for k in range(self.lanes))
        return Value(self.mask, f"<{items}>")

    def first_lanes(self, count: int) -> Value:
        return self.these_lanes(range(count))

    def none_if(self, condition: Value, mask: Value) -> Value:
        none = f"{self.mask} zeroinitializer, {self.mask} {mask.name}"
        return self.emit(self.mask, f"select i1 {condition.name}, {none}")

    # --- control

    def _label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self._block = name

    @contextmanager
    def loop(self, start: Int, end: Int, carried: Sequence[Value] = ()) -> Iterator[Loop]:
        """A loop over [start, end). Afterwards its `values` are the final carried values."""
        if isinstance(start, int) and isinstance(end, int) and end == start + 1:
            loop = Loop(start, carried)
            yield loop
            loop.values = loop.next
            return
        k = self._labels
        self._labels += 1
        before, head, body, done = self._block, f"head{k}", f"body{k}", f"done{k}"
        index = Value("i64", f"%i{k}")
        loop = Loop(index, [Value(v.type, f"%c{k}.{j}") for j, v in enumerate(carried)])
        self.lines.append(f"  br label %{head}")
        self._label(head)
        mark = len(self.lines)
        more = self.compare_ints("slt", index, end)
        self.lines.append(f"  br i1 {more.name}, label %{body}, label %{done}")
        self._label(body)
        yield loop
        self.lines.append(f"  %n{k} = add nsw i64 %i{k}, 1")
        self.lines.append(f"  br label %{head}")
        back = self._block
        turns = [(index, self.i64(start), Value("i64", f"%n{k}"))]
        turns += list(zip(loop.values, carried, loop.next, strict=True))
        self.lines[mark:mark] = [
            f"  {v.name} = phi {v.type} [ {a.name}, %{before} ], [ {b.name}, %{back} ]"
            for v, a, b in turns
        ]
        self._label(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Code written inside runs if the condition holds; it yields no values."""
        k = self._labels
        self._labels += 1
        self.lines.append(f"  br i1 {condition.name}, label %then{k}, label %fi{k}")
        self._label(f"then{k}")
        yield
        self.lines.append(f"  br label %fi{k}")
        self._label(f"fi{k}")

    def step(self, blocks: int) -> Step:
        head = f"define void @step(i64 %lo, i64 %hi, ptr %args) {engine().attributes} {{"
        parts = [*sorted(self.declarations), *self.globals, head, "entry:", *self.lines]
        return Step("\n".join([*parts, "  ret void", "}", ""]), blocks, vectorise=False)

    @property
    def blocks(self) -> tuple[Value, Value]:
        """The range of blocks a call does."""
        return Value("i64", "%lo"), Value("i64", "%hi")


class Image(NamedTuple):
    """The layout of images: an argument, the first element, and strides in elements."""

    argument: int
    offset: int
    batch: int
    channel: int
    pitch: int  # from one row to the next


def positions_of(size: tuple[int, int], pitch: int) -> int:
    """How many positions there are, counting the gaps between rows."""
    return (size[0] - 1) * pitch + size[1]
