"""Epilogues of a compiled function's products: biases and activations that follow them.

An elementwise group over exactly a product's elements, if nothing else uses the product, becomes
its epilogue: the sums go through it in registers, and never through memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from everygrad.backends.strided_views import permute_dims
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.conv import convolution
from everygrad.backends.webgpu.gemm.choose_kernel import Product, run_with, takes_epilogue
from everygrad.backends.webgpu.gemm.operand_reads import matrices
from everygrad.backends.webgpu.gemm.result_writes import Epilogue
from everygrad.backends.webgpu.source.render import body, constant
from everygrad.backends.webgpu.source.word_layout import layout, load
from everygrad.compiler.groups import Group, Load, Member, Number
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import LoopNest, nest_of
from everygrad.compiler.views import is_whole, view_of

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

# by the op's name: the products that can have an epilogue
PRODUCTS: dict[str, Callable[..., Product | None]] = {
    "matmul": matrices,
    "linear": lambda dev, x, w: matrices(dev, x, permute_dims(dev, w, (1, 0))),
    "conv2d": convolution.convolution,
    "conv2d_input": convolution.input_gradient,
    "conv2d_weight": convolution.weight_gradient,
}
_NAME = re.compile(r"\bt(\d+)\b")
_ROUNDED = {"float16": "half_round({})", "bfloat16": "brain_round({})"}


# --- which groups follow which products ----------------------------------------------------------


def links(groups: Sequence[Group], outputs: Iterable[Value]) -> dict[Group, Value]:
    """By group: the product whose epilogue it may be. Nothing else uses the product, so it can wait
    until everything that the group reads is computed."""
    users: dict[Value, set[Group | None]] = {view_of(v).base: {None} for v in outputs}
    for group in groups:
        for used in _used(group):
            users.setdefault(used, set()).add(group)
    made: dict[Group, Value] = {}
    for v in (group.opaque for group in groups):
        if v is None or v.name not in PRODUCTS or len(users.get(v, ())) != 1:
            continue
        (user,) = users[v]
        if user is not None and user.opaque is None and _is_elementwise_over(user, v):
            made[user] = v  # the last one, if there are several: the others are read from memory
    return made


def _used(group: Group) -> set[Value]:
    """The values that a group reads from memory."""
    if group.opaque is not None:
        return {view_of(a).base for a in group.opaque.args}
    return {r.value for m in group.members.values() for r in m.refs if isinstance(r, Load)}


def _is_elementwise_over(group: Group, v: Value) -> bool:
    """Whether the group is elementwise, and reads v's elements in order."""
    if group.size != v.size:
        return False
    for m in group.members.values():
        if m.role != "full" or m.value.op.indexed_load:
            return False
        for r in m.refs:
            of_v = isinstance(r, Load) and r.value is v
            if of_v and not is_whole(r.shape, r.strides, r.offset):
                return False
    return True


# --- their source --------------------------------------------------------------------------------


class EpilogueWriter:
    """Writes the values in `wanted` of a group that follows the product v. The buffers it reads
    are numbered from `first` on."""

    def __init__(self, group: Group, v: Value, wanted: Sequence[Value], first: int) -> None:
        self.v = v
        self.wanted = wanted
        self.first = first
        self.members = list(group.members.values())
        self.nest: LoopNest = nest_of(group)
        loads = [r for m in self.members for r in m.refs if isinstance(r, Load)]
        self.loads = list(dict.fromkeys(r for r in loads if r.value is not v))
        self.inputs = list(dict.fromkeys(r.value for r in self.loads))
        self.names: dict[Any, str] = {r: "sum" for r in loads if r.value is v}

    def epilogue(self) -> Epilogue:
        for k, m in enumerate(self.members):
            self.names[m.value] = f"m{k}"
        registers = [layout(v.dtype).register for v in self.wanted]
        fields = ", ".join(f"r{q}: {register}" for q, register in enumerate(registers))
        rounded = _ROUNDED.get(str(self.v.dtype), "{}").format("value")
        lines = [f"struct Results {{ {fields} }}", "fn results(e: u32, value: f32) -> Results {"]
        lines += [f"  let sum = {rounded};", *self.coordinates()]
        for n, r in enumerate(self.loads):
            lines += self.loaded(n, r)
        for k, m in enumerate(self.members):
            lines += self.member(k, m)
        results = ", ".join(self.names[v] for v in self.wanted)
        lines.append(f"  return Results({results});\n}}\n")
        return Epilogue("\n".join(lines), len(self.inputs), tuple(v.dtype for v in self.wanted))

    def coordinates(self) -> list[str]:
        """i0, i1, ...: the coordinates of element e, if an operand needs them."""
        full = self.nest.full
        if all(self.nest.loads[r]._replace(offset=0) == full for r in self.loads):
            return []
        sizes = (*self.nest.rows, *self.nest.columns)
        lines = ["  var rest = e;"]
        for k in range(len(sizes) - 1, 0, -1):
            lines.append(f"  let i{k} = rest % {sizes[k]}u;\n  rest = rest / {sizes[k]}u;")
        return [*lines, "  let i0 = rest;"]

    def loaded(self, n: int, r: Load) -> list[str]:
        access = self.nest.loads[r]
        terms = [f"{access.offset}u"]
        if access._replace(offset=0) == self.nest.full:
            terms.append("e")
        else:  # a negative stride wraps around, and so does the sum, to the right value
            steps = enumerate((*access.rows, *access.columns))
            terms += [f"i{k} * {step % (1 << 32)}u" for k, step in steps if step]
        dtype = r.value.dtype
        value = load(dtype, f"a{self.first + self.inputs.index(r.value)}", f"p{n}")
        self.names[r] = f"x{n}"
        register = layout(dtype).register
        return [f"  let p{n} = {' + '.join(terms)};", f"  let x{n}: {register} = {value};"]

    def member(self, k: int, m: Member) -> list[str]:
        v = m.value
        given = {
            i: constant(r.value, arg.dtype) if isinstance(r, Number) else self.names[r]
            for i, (r, arg) in enumerate(zip(m.refs, v.args, strict=True))
        }
        program = v.op.program([a.dtype for a in v.args], v.params)
        lines = [_NAME.sub(rf"m{k}t\1", line) for line in body(program, given, f"raw{k}")]
        value = _ROUNDED.get(str(v.dtype), "{}").format(f"raw{k}")
        return [*lines, f"  let m{k}: {layout(v.dtype).register} = {value};"]


def run_with_epilogue(
    dev: WebGPU,
    v: Value,
    arrays: Sequence[WebGPUArray],
    group: Group,
    stored: set[Value],
    base: Callable[[Value], WebGPUArray],
) -> dict[Value, WebGPUArray] | None:
    """The group's stored values, computed by the kernel of the product v of `arrays`; None where
    that is not possible. `base` gives the array of a value that is computed already."""
    product = PRODUCTS[v.name](dev, *arrays, **v.params)
    if product is None:
        return None
    wanted = [m for m in group.members if m in stored]
    writer = EpilogueWriter(group, v, wanted, len(product.operands.words))
    epilogue = writer.epilogue()
    if not takes_epilogue(dev, product, epilogue):
        return None
    inputs = [base(value).storage for value in writer.inputs]
    names = dict.fromkeys((v.name, *(m.name for m in group.members)))
    made = run_with(dev, product._replace(name=" ".join(names)), epilogue, inputs)
    return {
        value: WebGPUArray(dev.device, value.shape, value.dtype.np, out.storage)
        for value, out in zip(wanted, made, strict=True)
    }
