"""WGSL of a fused group: one thread for each element, every member a few lines.

Shapes and strides are constants of the text. Results of whole words are stored by one kernel;
a result that packs several elements into a word (bools, 8 and 16 bits) has a kernel of its own,
which computes what it needs again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from everygrad.backends.webgpu.layout import layout, load, store, thread_count
from everygrad.backends.webgpu.render import MAIN, THREAD, body, cast, constant, with_library
from everygrad.compile.fuse import Group, Load, Member, Number
from everygrad.compile.ir import Value
from everygrad.compile.walk import Place, Walk, walk
from everygrad.dtypes import int64

_NAME = re.compile(r"\bt(\d+)\b")
_ROUNDED = ("float16", "bfloat16")


class Kernel(NamedTuple):
    """One dispatch of a group: its text, what it binds, how many threads it takes."""

    source: str
    inputs: list[Value]
    outputs: list[Value]
    threads: int


class Writer:
    """Writes the kernels of one group for the values in `wanted`."""

    def __init__(self, group: Group, wanted: list[Value]) -> None:
        self.group = group
        self.walk: Walk = walk(group)
        self.wanted = wanted
        self.members = self.needed()
        loads = [r for m in self.members for r in m.refs if isinstance(r, Load)]
        self.inputs = list(dict.fromkeys(r.value for r in loads))
        self.loads = list(dict.fromkeys(r for r in loads if r.step is None))

    def needed(self) -> list[Member]:
        """The members that the wanted values are made of, in order."""
        todo, seen = list(self.wanted), set(self.wanted)
        for v in todo:
            for r in self.group.members[v].refs:
                if isinstance(r, Value) and r not in seen:
                    seen.add(r)
                    todo.append(r)
        return [m for v, m in self.group.members.items() if v in seen]

    # --- addresses -------------------------------------------------------------------------------

    def coordinates(self) -> list[str]:
        """i0, i1, ...: where element e is along rows and columns."""
        sizes = (*self.walk.rows, *self.walk.columns)
        lines = ["  var r = e;"]
        for k in range(len(sizes) - 1, 0, -1):
            lines.append(f"  let i{k} = i32(r % {sizes[k]}u);\n  r = r / {sizes[k]}u;")
        lines.append("  let i0 = i32(r);")
        return lines

    def address(self, place: Place) -> str:
        terms = [str(place.offset)]
        terms += [f"i{k} * {step}" for k, step in enumerate((*place.rows, *place.columns)) if step]
        return f"u32({' + '.join(terms)})"

    # --- values ----------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """Every member as a name."""
        names: dict[object, str] = {}
        made = self.coordinates()
        for n, r in enumerate(self.loads):
            dtype = r.value.dtype
            made.append(f"  let p{n} = {self.address(self.walk.loads[r])};")
            value = load(dtype, f"a{self.inputs.index(r.value)}", f"p{n}")
            made.append(f"  let x{n}: {layout(dtype).register} = {value};")
            names[r] = f"x{n}"
        for k, m in enumerate(self.members):
            made += self.member(k, m, names)
            names[m.value] = f"m{k}"
        return made

    def member(self, k: int, m: Member, names: dict[object, str]) -> list[str]:
        v = m.value
        if v.name == "take":
            return self.picked(k, m, names)
        inputs = {}
        for i, (r, arg) in enumerate(zip(m.refs, v.args, strict=True)):
            inputs[i] = constant(r.value, arg.dtype) if isinstance(r, Number) else names[r]
        program = v.op.program([a.dtype for a in v.args], v.params)
        text = [_NAME.sub(rf"m{k}t\1", line) for line in body(program, inputs, f"raw{k}")]
        value = f"raw{k}"
        if str(v.dtype) in _ROUNDED:  # rounded as memory would round it
            value = _rounded(v, value)
        return [*text, f"  let m{k}: {layout(v.dtype).register} = {value};"]

    def picked(self, k: int, m: Member, names: dict[object, str]) -> list[str]:
        """The element an index names."""
        r, where = m.refs
        index = names[where]
        whole = cast(index, m.value.args[1].dtype, int64) + ".x"
        at = f"u32(i32({self.address(self.walk.loads[r])}) + i32({whole}) * {r.step})"
        value = load(r.value.dtype, f"a{self.inputs.index(r.value)}", f"q{k}")
        register = layout(r.value.dtype).register
        return [f"  let q{k} = {at};", f"  let m{k}: {register} = {value};"]

    # --- kernels ---------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        count = self.group.size
        first = layout(self.wanted[0].dtype)
        names = {m.value: f"m{k}" for k, m in enumerate(self.members)}
        if first.per_word > 1:
            (v,) = self.wanted
            text = (
                f"fn element(e: u32) -> {first.register} {{\n"
                + "\n".join(self.lines())
                + f"\n  return {names[v]};\n}}\n"
                + MAIN
                + THREAD
                + store(v.dtype, f"{count}u")
                + "}\n"
            )
            return Kernel(self.framed(text), self.inputs, self.wanted, thread_count(v.dtype, count))
        stores = []
        for q, v in enumerate(self.wanted):
            name, lay = names[v], layout(v.dtype)
            out = "out" if q == 0 else f"out{q}"
            if lay.words == 2:
                stores.append(f"  {out}[2u * e] = {name}.x;\n  {out}[2u * e + 1u] = {name}.y;")
            else:
                stores.append(f"  {out}[e] = {lay.bits.format(v=name)};")
        head = MAIN + THREAD + f"  let e = t;\n  if (e >= {count}u) {{ return; }}\n"
        text = head + "\n".join((*self.lines(), *stores)) + "\n}\n"
        return Kernel(self.framed(text), self.inputs, self.wanted, count)

    def framed(self, text: str) -> str:
        """Bindings: what is read, what is written, and a uniform that says nothing."""
        lines = [
            f"@group(0) @binding({i}) var<storage, read> a{i}: array<u32>;\n"
            for i in range(len(self.inputs))
        ]
        for q in range(len(self.wanted)):
            name = "out" if q == 0 else f"out{q}"
            at = len(self.inputs) + q
            lines.append(f"@group(0) @binding({at}) var<storage, read_write> {name}: array<u32>;\n")
        lines.append("struct Params { v: array<vec4<u32>, 1> }\n")
        at = len(self.inputs) + len(self.wanted)
        lines.append(f"@group(0) @binding({at}) var<uniform> P: Params;\n")
        return "".join(lines) + with_library(text)


def _rounded(v: Value, value: str) -> str:
    return f"half_round({value})" if str(v.dtype) == "float16" else f"brain_round({value})"


def kernels(group: Group, stored: set[Value], most_buffers: int) -> list[Kernel]:
    """The kernels of a group, none with more buffers than the device binds."""
    wanted = [v for v in group.members if v in stored]
    whole = [v for v in wanted if layout(v.dtype).per_word == 1]
    parts = [[v] for v in wanted if layout(v.dtype).per_word > 1]
    while whole:
        count = len(whole)
        while count > 1 and len(Writer(group, whole[:count]).inputs) + count > most_buffers:
            count -= 1
        parts.insert(0, whole[:count])
        whole = whole[count:]
    return [Writer(group, part).kernel() for part in parts]
