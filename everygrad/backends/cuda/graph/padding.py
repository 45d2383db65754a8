"""Matrix products whose rows are padded, so that tensor cores can read and write them.

cuBLASLt has fast kernels only for matrices whose rows begin at multiples of 16 bytes. A vocabulary
of 50,257 bfloat16 words has none that do: such a product takes four to seven times as long. Here
the operands are copied into matrices with padded rows, once for all products that read them, and
the result is a slice of a padded one, which others read by its strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.gemm.matmul import matrix_layout
from everygrad.backends.cuda.graph.epilogues import LAUNCH
from everygrad.compiler.facts import Gemm
from everygrad.compiler.ir import Graph, Value, reachable
from everygrad.compiler.rewrite import Rewriter
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import view_of
from everygrad.core.context import records
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import reshape_strides

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

ALIGNMENT = edge(__name__, "ALIGNMENT", 16, "size")  # bytes that a row must be a multiple of
# operations of an unaligned product during which its operands could be copied, for each byte that
# is read or written: 140 TFLOP/s instead of 700, beside 3 TB/s (H200)
OPERATIONS = 60


class Stored(NamedTuple):
    """An operand as it lies in memory, which may be transposed."""

    value: Value
    shape: Shape  # of its rows in memory
    rows: str  # which sizes of the product its rows and its columns are
    columns: str
    reach: tuple[int, int]  # elements from row to row, and before the first one
    transposed: bool
    is_base: bool  # whether it is all of the value that it is a view of


class Padding(NamedTuple):
    """A product (m, k) @ (k, n), and its sizes as they are padded."""

    left: Stored
    right: Stored
    sizes: dict[str, int]
    padded: dict[str, int]
    multiple: int  # elements that an aligned row is a multiple of

    def shape(self, side: Stored) -> Shape:
        """Of an operand's rows in memory, once they are padded."""
        return self.padded[side.rows], self.padded[side.columns]

    def is_copied(self, side: Stored) -> bool:
        unaligned = any(n % self.multiple for n in side.reach)
        return unaligned or self.shape(side) != side.shape


class PaddingRewriter(Rewriter):
    """Products with padded rows, where the copies that this takes are faster than the rest."""

    def __init__(self, old: Graph, tf32: bool) -> None:
        super().__init__()
        self.tf32 = tf32
        self.returned = {view_of(v).base for v in old.outputs}
        self.found = 0

    def replacement(self, v: Value, args: list[Value]) -> Value | None:
        padding = self.padding(v, args)
        if padding is None or not self.pays(v, padding):
            return None
        self.found += 1
        left = self.operand(padding, padding.left, "m")
        right = self.operand(padding, padding.right, "k")
        op = records.by_name["matmul"]
        made = self.graph.call(op, [left, right], {}, v.where, v.generation)
        rows, columns = padding.sizes["m"], padding.sizes["n"]
        if made.shape != (rows, columns):
            made = self.moved("slice", made, slices=((0, rows, 1), (0, columns, 1)))
            if v in self.returned and columns != padding.padded["n"]:
                made = self.copied(made, made.shape)
        return self.reshaped(made, v.shape)

    def moved(self, name: str, x: Value, **params: Any) -> Value:
        return self.graph.call(records.by_name[name], [x], params)

    def reshaped(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.moved("reshape", x, shape=shape)

    def copied(self, x: Value, shape: Shape) -> Value:
        """A contiguous copy, with zeros behind it up to `shape`."""
        return self.moved("unslice", x, shape=shape, slices=tuple((0, n, 1) for n in x.shape))

    # --- which products --------------------------------------------------------------------------

    def padding(self, v: Value, args: Sequence[Value]) -> Padding | None:
        """A product with rows that are not aligned, and what it is padded to."""
        if v.facts.gemm is None or not self.is_for_tensor_cores(v, args):
            return None
        x, y = args
        rows = size_of(x.shape[:-1])
        left = self.stored(x, (rows, x.shape[-1]), ("m", "k"))
        names = ("n", "k") if v.facts.gemm is Gemm.TRANSPOSED else ("k", "n")
        right = self.stored(y, y.shape, names)
        if left is None or right is None:
            return None
        n = v.shape[-1]
        sizes = {"m": rows, "k": x.shape[-1], "n": n}
        multiple = ALIGNMENT // v.dtype.itemsize
        padded = dict(sizes)
        for size, step in (
            (left.columns, left.reach[0]),
            (right.columns, right.reach[0]),
            ("n", n),
        ):
            if step % multiple:
                padded[size] = -(-sizes[size] // multiple) * multiple
        made = Padding(left, right, sizes, padded, multiple)
        return made if padded != sizes or made.is_copied(left) or made.is_copied(right) else None

    def is_for_tensor_cores(self, v: Value, args: Sequence[Value]) -> bool:
        if v.dtype.itemsize != 2 and not (v.dtype is dtypes.float32 and self.tf32):
            return False
        x, y = args
        alike = x.dtype is y.dtype is v.dtype
        return alike and v.dtype.is_differentiable and len(y.shape) == 2 and x.size * y.size > 0

    def stored(self, a: Value, shape: Shape, names: tuple[str, str]) -> Stored | None:
        view = view_of(a)
        strides = reshape_strides(view.shape, view.strides, shape)
        if view.base.kind == "full":
            return None
        layout = None if strides is None else matrix_layout(shape, strides)
        if layout is None:  # copied anyway, and contiguous then
            return Stored(a, shape, *names, (shape[1], 0), False, False)
        if layout.transposed:
            shape, names = shape[::-1], names[::-1]
        is_base = view.base.size == size_of(shape) and layout.step == shape[1]
        reach = (layout.step, view.offset)
        return Stored(a, shape, *names, reach, layout.transposed, is_base)

    def pays(self, v: Value, p: Padding) -> bool:
        """Whether the copies take less time than an unaligned product loses."""
        operations = 2 * p.sizes["m"] * p.sizes["n"] * p.sizes["k"]
        copied = [side.value for side in (p.left, p.right) if p.is_copied(side)]
        if v in self.returned and p.padded["n"] != p.sizes["n"]:  # made contiguous again
            copied.append(v)
        moved = sum(2 * a.nbytes + LAUNCH for a in copied)
        return operations > OPERATIONS * moved

    # --- padded operands -------------------------------------------------------------------------

    def operand(self, p: Padding, side: Stored, first: str) -> Value:
        """An operand with zeros behind its rows and columns, its axes as the product wants them."""
        made = self.in_memory(side)
        if p.is_copied(side):
            made = self.copied(made, p.shape(side))
        return made if side.rows == first else self.moved("permute_dims", made, axes=(1, 0))

    def in_memory(self, side: Stored) -> Value:
        """The matrix of an operand's rows in memory. Where that is all of a base, it is made of the
        base alone: products that read it in other ways then share its copy."""
        if side.is_base:
            return self.reshaped(view_of(side.value).base, side.shape)
        if not side.transposed:
            return self.reshaped(side.value, side.shape)
        made = self.reshaped(side.value, side.shape[::-1])
        return self.moved("permute_dims", made, axes=(1, 0))


def with_padding(dev: Cuda, graph: Graph) -> Graph:
    """The same outputs, by products with padded rows where this pays; the graph itself where none
    does."""
    if not any(v.facts.gemm is not None for v in reachable(graph.outputs)):
        return graph
    rewriter = PaddingRewriter(graph, dev.tf32)
    made = rewriter.run(graph)
    return made if rewriter.found else graph
