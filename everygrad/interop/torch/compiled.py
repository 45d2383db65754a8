"""A graph of ATen ops with known sizes, compiled, as a function of PyTorch's tensors.

The tensors stay PyTorch's: inputs are read where they lie, results are computed into memory that
PyTorch made. A result that PyTorch's ops define as a view of an input is returned as PyTorch's own
view of it, which has its version counter; every other result has memory of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from everygrad import dtypes
from everygrad._jit.buffers import Buffer, BufferFunction, compile_buffers
from everygrad.backends import base
from everygrad.core.tensor import Tensor
from everygrad.interop.torch import cuda
from everygrad.interop.torch.graph import DTYPES, Program
from everygrad.interop.torch.layouts import Layout, layout_of
from everygrad.ops.random.generators import Generator, scoped_generator

# PyTorch's own quickest way to make a tensor; its public one takes twice as long
_empty: Callable[..., torch.Tensor] = getattr(
    getattr(torch._C._dynamo, "guards", None), "_empty_strided_cpu", None
) or (lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype))

_STATE = Buffer((4,), dtypes.uint32)  # of a random generator


class View(NamedTuple):
    """A result that shows elements of a tensor; `start` counts from that tensor's first element."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    def of(self, t: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(t, self.size, self.stride, t.storage_offset() + self.start)


class Made(NamedTuple):
    """A computed value that gets memory in each call."""

    node: Node
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout
    exact: bool  # False: PyTorch's strides leave gaps, and the buffer is copied to such memory

    def allocate(self) -> torch.Tensor:
        return _empty(self.size, self.stride, self.dtype)


class CompiledGraph:
    """Compiles a graph whose nodes all have handlers and known sizes; call it with a list of the
    values of its placeholders, which is emptied (`torch.compile`'s boxed calls)."""

    def __init__(self, module: GraphModule, device: str) -> None:
        self._boxed_call = True  # an instance's: wrappers copy those alone
        self.program = Program(module)
        # as tensors name it: "cuda" where PyTorch says "cuda:0"
        self.device = getattr(base.get(device), "device", device)
        nodes = list(module.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        self.held = [operator.attrgetter(n.target)(module) for n in nodes if n.op == "get_attr"]
        self.held_names = [n.name for n in nodes if n.op == "get_attr"]
        # an input that nothing reads may be no tensor when it comes: tokens are None
        self.tensors = [
            i
            for i, n in enumerate(self.placeholders)
            if isinstance(n.meta["val"], torch.Tensor) and any(u.op != "output" for u in n.users)
        ]
        values = [self.placeholders[i].meta["val"] for i in self.tensors]
        self.layouts = [input_layout(v) for v in (*values, *self.held)]
        self.copied = [
            i for i, layout in zip(self.tensors, self.layouts, strict=False) if layout is None
        ]
        self.random = any(is_random(n) for n in nodes)
        self.made: list[Made] = []
        outputs: Any = nodes[-1].args[0]
        self.single = not isinstance(outputs, (tuple, list))
        self.results = self.sort_results((outputs,) if self.single else outputs)
        self.direct = not self.single and list(outputs) == [m.node for m in self.made]
        self.spread = [k for k, m in enumerate(self.made) if not m.exact]
        self.function = self.compile([*values, *self.held])
        self.kept = [_readable(t) for t in self.held]
        self.kept_at = [t.data_ptr() for t in self.kept]
        if self.device != "cpu":
            self.on_gpu = cuda.CudaCall(self.function, self.device, self.made)
        self.plain = len(self.tensors) == len(self.placeholders) and not self.copied

    # --- compiling -------------------------------------------------------------------------------

    def sort_results(self, outputs: Sequence[Any]) -> list[Callable[[list[Any], list[Any]], Any]]:
        """For each result, how it is found among the arguments of a call and what was made."""
        numbers = {n: i for i, n in enumerate(self.placeholders)}
        held = dict(zip(self.held_names, self.held, strict=True))
        made: dict[Node, int] = {}

        def found(out: Any) -> Callable[[list[Any], list[Any]], Any]:
            if not isinstance(out, Node):
                return lambda args, new: out
            root = viewed(out)
            view = None if root is out else view_between(root, out)
            if root in numbers:
                i = numbers[root]
                if view is None:
                    return lambda args, new: args[i]
                return lambda args, new: view.of(args[i])
            if root.op == "get_attr":
                tensor = held[root.name]
                return lambda args, new: tensor if view is None else view.of(tensor)
            if root not in made:
                made[root] = len(self.made)
                self.made.append(made_from(root))
            k = made[root]
            if view is None:
                return lambda args, new: new[k]
            return lambda args, new: view.of(new[k])

        return [found(out) for out in outputs]

    def compile(self, values: Sequence[torch.Tensor]) -> BufferFunction:
        """The program, compiled for buffers like these tensors."""
        buffers = [
            Buffer(tuple(v.shape) if layout is None else layout.buffer, DTYPES[v.dtype])
            for v, layout in zip(values, self.layouts, strict=True)
        ]
        if self.random:
            buffers.append(_STATE)
        self.program.outputs = [m.node for m in self.made]
        return compile_buffers(self.run, buffers, self.device)

    def run(self, buffers: list[Tensor]) -> list[Tensor]:
        """The graph on our own tensors, one for each buffer; runs while it is traced."""
        state = buffers.pop() if self.random else None
        tensors = [
            b if layout is None else layout.restored(b)
            for b, layout in zip(buffers, self.layouts, strict=True)
        ]
        count = len(self.tensors)
        given: list[Any] = [n.meta["val"] for n in self.placeholders]
        for i, t in zip(self.tensors, tensors[:count], strict=True):
            given[i] = t
        held = dict(zip(self.held_names, tensors[count:], strict=True))
        if state is None:
            made = self.program(given, held, self.device)
        else:
            with scoped_generator(_Drawing(state)):
                made = self.program(given, held, self.device)
        return [m.layout.arranged(t) for m, t in zip(self.made, made, strict=True)]

    # --- a call ----------------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> list[Any]:
        given = args if self.plain else [args[i] for i in self.tensors]
        if self.copied:
            given = list(given)
            for i in self.copied:
                at = self.tensors.index(i)
                given[at] = _readable(args[i])
        state = torch.empty(2, dtype=torch.int64).random_() if self.random else None
        if self.device != "cpu":
            inputs = [*given, *self.kept]
            new = self.on_gpu(inputs, state)
        else:
            addresses = [t.data_ptr() for t in given]
            addresses += self.kept_at
            if state is not None:
                addresses.append(state.data_ptr())
            new = [_empty(m.size, m.stride, m.dtype) for m in self.made]
            self.function(addresses, [t.data_ptr() for t in new])
        for k in self.spread:
            new[k] = spread(new[k], self.made[k].node.meta["val"])
        out = new if self.direct else [find(args, new) for find in self.results]
        args.clear()
        return out


class _Drawing(Generator):
    """A generator whose state is an input of the compiled function."""

    def __init__(self, state: Tensor) -> None:
        self.state = state


def _readable(t: torch.Tensor) -> torch.Tensor:
    """A tensor in C order, without lazy conjugation or negation."""
    return t.resolve_conj().resolve_neg().contiguous()


def input_layout(t: torch.Tensor) -> Layout | None:
    """The buffer that a tensor lies in; None: it must be copied in each call."""
    if t.is_conj() or t.is_neg():
        return None
    return layout_of(tuple(t.shape), t.stride())


def made_from(node: Node) -> Made:
    value = node.meta["val"]
    size, stride = tuple(value.shape), tuple(value.stride())
    layout = layout_of(size, stride)
    if layout is not None and layout.dense:
        return Made(node, size, stride, value.dtype, layout, True)
    plain = Layout(size, size, tuple(range(len(size))), True)
    row_major = torch.empty(size, device="meta").stride()
    return Made(node, size, row_major, value.dtype, plain, False)


def spread(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The same values in memory with the strides of another tensor."""
    out = torch.empty_strided(like.shape, like.stride(), dtype=t.dtype, device=t.device)
    if any(n > 1 and not s for n, s in zip(out.shape, out.stride(), strict=True)):
        first = tuple(slice(None) if s else slice(1) for s in out.stride())
        out[first].copy_(t[first])
        return out
    return out.copy_(t)


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def viewed(node: Node) -> Node:
    """The node that a chain of views begins at, by what the ops' schemas say of aliases; a view in
    another dtype begins a chain of its own."""
    here = node
    while here.op == "call_function":
        source = _source(here)
        if source is None:
            return here
        mine, theirs = here.meta["val"], source.meta["val"]
        if not isinstance(theirs, torch.Tensor) or mine.dtype != theirs.dtype:
            return here
        if (mine.is_conj(), mine.is_neg()) != (theirs.is_conj(), theirs.is_neg()):
            return here
        here = source
    return here


def _source(node: Node) -> Node | None:
    """What a node's result is a view of."""
    if node.target is operator.getitem:
        several = node.args[0]
        return _source(several) if isinstance(several, Node) else None
    schema = getattr(node.target, "_schema", None)
    if schema is None or len(schema.returns) != 1 or not node.args:
        return None
    alias = schema.returns[0].alias_info
    first = schema.arguments[0].alias_info
    if alias is None or first is None or alias.is_write or not isinstance(node.args[0], Node):
        return None
    return node.args[0]


def view_between(root: Node, node: Node) -> View | None:
    """How a node's result shows the root's elements; None: as they are."""
    base, value = root.meta["val"], node.meta["val"]
    start = int(value.storage_offset()) - int(base.storage_offset())
    size, stride = tuple(value.shape), tuple(value.stride())
    if start == 0 and size == tuple(base.shape) and stride == tuple(base.stride()):
        return None
    return View(size, stride, start)
