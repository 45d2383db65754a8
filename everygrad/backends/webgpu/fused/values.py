"""The values of a fused kernel, each written when it is first needed: loads, and members' bodies.

A name is that of a row (`m3`) or of one element that a lane holds (`m3_5`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from everygrad.backends.webgpu.fused.operands import FusedOperand, total, vec4_type
from everygrad.backends.webgpu.source.render import body, cast, constant
from everygrad.backends.webgpu.source.word_layout import layout, load
from everygrad.compiler.groups import Load, Member, Number
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import StridedAccess
from everygrad.core.shapes import Shape
from everygrad.dtypes import int64

_NAME = re.compile(r"\bt(\d+)\b")
_LET = re.compile(r"  let (\w+): (.+?) = (.*);")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_ROUNDED = {"float16": "half_round({})", "bfloat16": "brain_round({})"}


class Values:
    """Writes values into `lines`."""

    def __init__(
        self,
        members: dict[Value, Member],
        accesses: dict[Load, StridedAccess],
        sizes: tuple[Shape, Shape],
        vector: int,
    ) -> None:
        self.members = members
        self.vector = vector
        self.numbers = {v: k for k, v in enumerate(members)}
        loads = dict.fromkeys(r for m in members.values() for r in m.refs if isinstance(r, Load))
        self.inputs = list(dict.fromkeys(r.value for r in loads))
        self.operands = {
            r: FusedOperand(n, r, accesses[r], sizes, vector) for n, r in enumerate(loads)
        }
        self.lines: list[str] = []
        self.of_row: dict[Any, str] = {}
        self.of_element: dict[Any, str] = {}
        self.vec4_inputs = self._find_vec4_inputs()
        self.elsewhere: dict[
            Value, str
        ] = {}  # inputs that are read from the buffer a result is written to

    def _find_vec4_inputs(self) -> set[Value]:
        """The inputs that are read as vec4: every load of such an input must allow it."""
        indices = {m.refs[0]: m.refs[1] for m in self.members.values() if m.value.op.indexed_load}
        others = {
            r.value
            for r, o in self.operands.items()
            if not o.is_vec4(r.step is not None and self.is_steady(indices[r]))
        }
        return {v for v in self.inputs if v not in others}

    def is_steady(self, ref: Any) -> bool:
        """Whether the columns of one take share this value; members are not followed."""
        if isinstance(ref, Load):
            return self.operands[ref].is_steady or self.operands[ref].is_of_row
        return isinstance(ref, Number) or self.members[ref].role in ("row", "reduce")

    def buffer(self, v: Value) -> str:
        """The name of the buffer that an input is read from."""
        return self.elsewhere.get(v) or f"a{self.inputs.index(v)}"

    def bindings(self) -> list[str]:
        """The type of the items of each input's buffer."""
        return [vec4_type(v.dtype) if v in self.vec4_inputs else "u32" for v in self.inputs]

    # --- rows ------------------------------------------------------------------------------------

    def begin_row(self) -> None:
        """Define where the row begins in each operand, and load operands with one element a row."""
        self.of_row, self.of_element = {}, {}
        for r, o in self.operands.items():
            self.lines.append(f"  let b{o.n} = {o.base()};")
            if o.is_of_row:
                self.of_row[r] = self._element(o, f"x{o.n}", f"b{o.n}")

    def row_value(self, v: Value) -> None:
        self.of_row[v] = self._member(v, None)

    # --- elements --------------------------------------------------------------------------------

    def get(self, ref: Any, arg: Value, u: int | None) -> str:
        """A reference's value at element u of those a lane holds, or of the row."""
        if isinstance(ref, Number):
            return constant(ref.value, arg.dtype)
        if ref in self.of_row:
            return self.of_row[ref]
        if (ref, u) not in self.of_element:
            made = self._read(ref, u or 0) if isinstance(ref, Load) else self._member(ref, u)
            self.of_element[ref, u] = made
        return self.of_element[ref, u]

    def _element(self, o: FusedOperand, name: str, at: str) -> str:
        """Load one element at the address that `at` names."""
        value = load(o.dtype, self.buffer(o.load.value), at)
        self.lines.append(f"  let {name}: {layout(o.dtype).register} = {value};")
        return name

    def _read(self, r: Load, u: int) -> str:
        o, (take, part) = self.operands[r], divmod(u, self.vector)
        if r.value in self.vec4_inputs:
            return self._vec4_component(
                o, f"{o.n}_{take}", part, [f"b{o.n}", *o.column(f"c{take}")]
            )
        if o.is_steady and part:
            return self.get(r, r.value, u - part)
        return self._element(o, f"x{o.n}_{u}", self._address(o, take, part, f"{o.n}_{u}"))

    def _address(self, o: FusedOperand, take: int, part: int, name: str, more: str = "") -> str:
        """Define the address of an element, and return its name."""
        index = f"c{take}" if o.has_one_stride or not part else f"(c{take} + {part}u)"
        parts = [f"b{o.n}", *o.column(index), *([more] if more else [])]
        shift = part * o.step if o.has_one_stride else 0
        self.lines.append(f"  let p{name} = {total(parts, shift)};")
        return f"p{name}"

    def _vec4_component(self, o: FusedOperand, name: str, part: int, address: list[str]) -> str:
        """One component of a vec4 load, which is shared by all four."""
        loaded = self.of_element.get(name)
        if loaded is None:
            loaded = self.of_element[name] = f"q{name}"
            buffer = self.buffer(o.load.value)
            at = f"({total(address)})"
            words = {
                1: f"vec2<u32>({buffer}[{at} >> 2u], 0u)",
                2: f"{buffer}[{at} >> 2u]",
                4: f"{buffer}[{at} >> 2u]",
            }
            if o.dtype.itemsize == 8:
                self.lines.append(f"  let h{name} = {at} >> 1u;")
                halves = [f"{buffer}[h{name}]", f"{buffer}[h{name} + 1u]"]
                shown = ", ".join(f"{h}.{p}" for h in halves for p in "xyzw")
                self.lines.append(f"  var q{name} = array<u32, 8>({shown});")
            else:
                self.lines.append(f"  let q{name} = {words[o.dtype.itemsize]};")
        value = load(o.dtype, loaded, f"{part}u")
        self.lines.append(f"  let x{name}_{part}: {layout(o.dtype).register} = {value};")
        return f"x{name}_{part}"

    def _member(self, v: Value, u: int | None) -> str:
        m, name = self.members[v], f"m{self.numbers[v]}" + ("" if u is None else f"_{u}")
        if v.op.indexed_load:
            return self._picked(m, name, u)
        inputs = {i: self.get(r, a, u) for i, (r, a) in enumerate(zip(m.refs, v.args, strict=True))}
        program = v.op.program([a.dtype for a in v.args], v.params)
        lines = body(program, inputs, f"{name}raw")
        self._once([_NAME.sub(rf"{name}t\1", line) for line in lines], u)
        # rounded as memory would round it
        value = _ROUNDED.get(str(v.dtype), "{}").format(f"{name}raw")
        self.lines.append(f"  let {name}: {layout(v.dtype).register} = {value};")
        return name

    def _once(self, lines: Sequence[str], u: int | None) -> None:
        """Add lines that each define a value; one that was computed before reuses its name."""
        known = self.of_row if u is None else self.of_element
        names: dict[str, str] = {}
        for line in lines[:-1]:
            found = _LET.fullmatch(line)
            assert found is not None, line
            name, register, text = found.groups()
            text = _WORD.sub(lambda w: names.get(w[0], w[0]), text)
            if _WORD.fullmatch(text) and not text[0].isdigit():
                names[name] = text  # an alias
                continue
            key = (register, text)
            if key in known:
                names[name] = known[key]
                continue
            known[key] = name
            self.lines.append(f"  let {name}: {register} = {text};")
        self.lines.append(_WORD.sub(lambda w: names.get(w[0], w[0]), lines[-1]))

    def _picked(self, m: Member, name: str, u: int | None) -> str:
        """Load the element that an index selects."""
        r, where = m.refs
        o, (take, part) = self.operands[r], divmod(u or 0, self.vector)
        if u is not None and r.value in self.vec4_inputs:  # one index for all of the take
            index = self.get(where, m.value.args[1], u - part)
            parts = [f"b{o.n}", *o.column(f"c{take}"), self._far(r, index, m)]
            return self._vec4_component(o, f"{name.split('_')[0]}_{take}", part, parts)
        index = self.get(where, m.value.args[1], u)
        return self._element(o, name, self._address(o, take, part, name, self._far(r, index, m)))

    def _far(self, r: Load, index: str, m: Member) -> str:
        """The offset of an index; it is within bounds, so its low word is enough."""
        whole = cast(index, m.value.args[1].dtype, int64)
        return f"({whole}).x * {(r.step or 0) % (1 << 32)}u"
