"""Matrix products with epilogues: a bias, an activation, its derivative, sums of columns.

cuBLASLt computes these while results of a product are in registers, where a kernel of our own would
read them from memory again. A product with a gelu epilogue stores gelu's input (`aux`) behind its
result where backward needs it; sums are stored there too. A candidate is accepted if the bytes that
need not be moved outweigh the cost of the epilogue (`COSTS`), and if cuBLASLt has an algorithm.

    relu(x @ w + b)                        relu_bias
    gelu_tanh(x @ w + b)                   gelu_bias, or gelu_aux_bias where backward follows
    gelu_tanh.d0(g @ v, input), its sum    dgelu, or dgelu_bgrad; the input is an aux of this
                                           graph, or a matrix in memory that another one saved
    x @ w + b, for a kernel to read        bias
    g^T @ x, and the sum of g              bgrad_a; x^T @ g and the sum of g: bgrad_b

Relu's derivative is not among them: cuBLASLt passes gradients where relu's input is 0, or drops
them where it is NaN, and is slower than a kernel of our own. Gelu's is NaN for inputs beyond 1e19,
as PyTorch's is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.backends.cuda.driver.cublaslt import BIAS_ALIGNMENT, aux_step
from everygrad.backends.cuda.gemm.matmul import (
    WITH_EPILOGUES,
    MatrixOperand,
    ResultSlice,
    problem_with,
    results,
)
from everygrad.backends.cuda.graph.rewriting import BackendOp
from everygrad.compiler.facts import Gemm, Move, OpFacts
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from everygrad.compiler.rewrite import Rewriter
from everygrad.compiler.schedule import fusable
from everygrad.compiler.views import view_of
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import reshape_strides

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

# What an epilogue adds to the time of a bare product, of halves and of float32: in bytes that our
# kernels move meanwhile (3 TB/s on the H200 where this was measured), for each element of the
# result; of bgrad_a and bgrad_b, for each element that is summed. Gelu of float32 is never chosen:
# cuBLASLt's is accurate to 1e-6 only.
COSTS = {
    "bias": (0.8, 0.1),
    "relu": (0.2, 0.3),
    "relu_bias": (0.9, 0.3),
    "gelu": (0.8, inf),
    "gelu_bias": (1.6, inf),
    "gelu_aux": (2.8, inf),
    "gelu_aux_bias": (2.8, inf),
    "dgelu": (3.0, inf),
    "dgelu_bgrad": (23.0, inf),
    "bgrad_a": (3.0, 7.0),
    "bgrad_b": (3.0, 7.0),
}
LAUNCH = 8 << 20  # bytes that are moved while a kernel starts and ends

_ACTIVATIONS = ("relu", "gelu")  # epilogues that are ops; cuBLASLt's gelu is the one with tanh
_WITH_AUX = ("gelu",)  # those whose derivative reads what the product stored


def _cost(epilogue: str, v: Value) -> float:
    return COSTS[epilogue][v.dtype.itemsize > 2]


def _kernel(v: Value, matrices: int) -> float:
    """The cost, for each element of v, of a kernel that reads and writes so many arrays like v."""
    return matrices * v.dtype.itemsize + LAUNCH / v.size


class GemmNode(NamedTuple):
    """A product of matrices (m, k) and (k, n). `x` may have more axes, all of them rows; `y` may be
    stored transposed, as a layer's weight is."""

    value: Value
    x: Value
    y: Value
    transposed: bool
    left: MatrixOperand
    right: MatrixOperand


class GemmEpilogue(NamedTuple):
    """A product with its epilogue, which replaces the last value that it computes."""

    product: GemmNode
    epilogue: str
    bias: Value | None = None
    aux_of: Value | None = None  # the value whose product stored the aux that this one reads
    before: Value | None = None  # gelu's input, which is stored as aux
    sums: Value | None = None
    saved: Value | None = None  # the aux that this one reads, where it is a matrix in memory


class Candidate(NamedTuple):
    """Epilogues to accept or refuse as one, and their cost less that of what they replace."""

    cost: float
    epilogues: dict[Value, GemmEpilogue]


class EpilogueFinder:
    """Finds the epilogues in a graph that pay and that cuBLASLt supports."""

    def __init__(self, dev: Cuda, graph: Graph) -> None:
        self.lt, self.tf32 = dev.gpu.driver.lt, dev.tf32
        self.live = list(in_order(reachable(graph.outputs)))
        self.outputs = {*graph.outputs}
        self.users: dict[Value, list[Value]] = {}
        for v in self.live:
            for a in {*v.args}:
                self.users.setdefault(a, []).append(v)
        self.found: dict[Value, GemmEpilogue] = {}
        self.taken: set[Value] = set()  # products that have an epilogue

    def run(self) -> dict[Value, GemmEpilogue]:
        for v in self.live:
            if v.facts.epilogue in _ACTIVATIONS:
                self.activation(v)
        for v in self.live:
            if v not in self.found and _is_derivative(v):
                self.derivative_of_saved(v)
        for v in self.live:
            if v.facts.intrinsic() == "add":
                self.bias(v)
        done = {e.sums for e in self.found.values()}
        for v in self.live:
            if v.facts.is_sum and v not in done:
                self.sums(v)
        return self.found

    def accept(self, candidate: Candidate) -> None:
        self.found |= candidate.epilogues
        self.taken |= {e.product.value for e in candidate.epilogues.values()}

    # --- what reads a value ----------------------------------------------------------------------

    def readers(self, v: Value) -> Iterator[Value]:
        """What computes with v, directly or through views."""
        for u in self.users.get(v, []):
            if u.kind == "movement":
                yield from self.readers(u)
            else:
                yield u

    def is_output(self, v: Value) -> bool:
        moved = [u for u in self.users.get(v, []) if u.kind == "movement"]
        return v in self.outputs or any(self.is_output(u) for u in moved)

    def is_stored(self, v: Value) -> bool:
        """Whether v is stored in memory however values are fused."""
        return self.is_output(v) or any(not fusable(u) for u in self.readers(v))

    def shaped_users(self, v: Value) -> Iterator[Value]:
        """What reads v as it is or in another shape."""
        for u in self.users.get(v, []):
            if u.move is Move.RESHAPE:
                yield from self.shaped_users(u)
            else:
                yield u

    def is_read_by(self, v: Value, *known: Value) -> bool:
        """Whether nothing else reads v."""
        return not self.is_output(v) and {*self.shaped_users(v)} <= {*known}

    # --- products --------------------------------------------------------------------------------

    def product(self, v: Value) -> GemmNode | None:
        """v as a product that can have an epilogue."""
        gemm = v.facts.gemm
        if gemm is None or v.dtype not in WITH_EPILOGUES or v in self.taken:
            return None
        x, y = v.args
        if len(y.shape) != 2 or not v.size or not x.size or v.dtype is not x.dtype:
            return None
        transposed = gemm is Gemm.TRANSPOSED
        left = _operand(x, _rows(x))
        right = _operand(y, y.shape)
        if left is None or right is None:
            return None
        return GemmNode(v, x, y, transposed, left, _transposed(right) if transposed else right)

    def serves(self, p: GemmNode, epilogue: str) -> bool:
        problem = problem_with(epilogue, p.value.dtype, p.left, p.right, self.tf32)
        return problem is not None and self.lt.serves(problem)

    def with_bias(self, v: Value) -> tuple[GemmNode, Value | None] | None:
        """v as a product, with a bias or without, whose parts nothing else reads."""
        p = self.product(v)
        if p is not None:
            return p, None
        if v.facts.intrinsic() != "add":
            return None
        for first, bias in (v.args, v.args[::-1]):
            p = self.product(first)
            if p is not None and self.is_read_by(first, v) and self.is_bias(bias, v):
                return p, bias
        return None

    def is_bias(self, b: Value, v: Value) -> bool:
        """Whether b has one number for each column, at an address that cuBLASLt can read."""
        view = view_of(b)
        readable = view.strides == (1,) and view.offset * b.dtype.itemsize % BIAS_ALIGNMENT == 0
        return b.shape == v.shape[-1:] and b.dtype is v.dtype and readable and _is_array(view.base)

    # --- activations -----------------------------------------------------------------------------

    def activation(self, v: Value) -> None:
        """relu or gelu of a product, and derivatives that read its aux."""
        (given,) = v.args
        before = _unshaped(given)
        epilogue = v.facts.epilogue
        found = self.with_bias(before)
        derivatives = [
            u
            for u in self.users[given]
            if epilogue in _WITH_AUX and u.facts.derivative_of is v.op and u.args[0] is not given
        ]
        if found is None or not self.is_stored(v) or v.dtype is not before.dtype:
            return
        product, bias = found
        fused = GemmEpilogue(product, epilogue if bias is None else f"{epilogue}_bias", bias)
        best = _NEVER
        if self.is_read_by(before, v, *derivatives):
            best = self.with_aux(v, fused, derivatives) if derivatives else self.plain(v, fused)
        elif epilogue in _WITH_AUX and self.is_output(before) and self.is_output(v):
            best = self.with_aux_returned(v, fused)
        if best.cost < 0:
            self.accept(best)

    def with_aux_returned(self, v: Value, fused: GemmEpilogue) -> Candidate:
        """The same, where both are returned: a forward pass whose backward is another graph."""
        name = "gelu_aux" if fused.bias is None else "gelu_aux_bias"
        if results(name, *_rows(v), v.dtype).aux.size != v.size:
            return _NEVER
        before = _unshaped(v.args[0])
        return self.plain(v, fused._replace(epilogue=name, before=before))

    def plain(self, v: Value, fused: GemmEpilogue) -> Candidate:
        """Replace a kernel that reads the product and writes v."""
        served = self.serves(fused.product, fused.epilogue)
        cost = _cost(fused.epilogue, v) - _kernel(v, 2)
        return Candidate(cost, {v: fused}) if served else _NEVER

    def with_aux(self, v: Value, fused: GemmEpilogue, derivatives: Sequence[Value]) -> Candidate:
        """The same, with derivatives that read the aux. A kernel that computes a derivative can
        read it too, if its rows are not padded."""
        name = "gelu_aux" if fused.bias is None else "gelu_aux_bias"
        before = _unshaped(v.args[0])
        chosen = [o for o in (self.derivative(d, v) for d in derivatives) if o.cost < 0]
        as_input = results(name, *_rows(v), v.dtype).aux.size == v.size
        all_served = len(chosen) == len(derivatives) or (chosen and as_input)
        if not all_served or self.is_output(v):  # the user would hold the aux, too
            return _NEVER
        cost, epilogues = self.plain(v, fused._replace(epilogue=name, before=before))
        for candidate in chosen:
            cost += candidate.cost
            epilogues = epilogues | candidate.epilogues
        return Candidate(cost, epilogues)

    def derivative(self, d: Value, v: Value) -> Candidate:
        """Replace a kernel that reads a product's result and gelu's input, and writes d."""
        alike = v.shape == d.shape and d.dtype is v.dtype
        return self.by_product(d, aux_of=v) if alike else _NEVER

    def derivative_of_saved(self, d: Value) -> None:
        """The same, where gelu's input is a matrix in memory: its forward pass is another graph."""
        saved = _unshaped(d.args[1])
        if not saved.shape or not d.shape:
            return
        operand = _operand(saved, _rows(saved))
        step = aux_step("dgelu", d.shape[-1])
        if operand is None or operand.strides != (step, 1) or operand.address % BIAS_ALIGNMENT:
            return
        base = view_of(saved).base
        if saved.dtype is d.dtype and saved.size == d.size and not fusable(base):
            candidate = self.by_product(d, saved=saved)
            if candidate.cost < 0:
                self.accept(candidate)

    def by_product(self, d: Value, **aux: Value) -> Candidate:
        """d by the epilogue of the product that is its gradient. Sums of d cost nothing there."""
        g = _unshaped(d.args[0])
        p = self.product(g)
        alike = _rows(g) == _rows(d) and g.dtype is d.dtype
        if p is None or not alike or not self.is_read_by(g, d) or not self.is_stored(d):
            return _NEVER
        sums = [u for u in self.shaped_users(d) if u.facts.is_sum and _sums_rows(u)]
        apart = _cost("dgelu", d) + sum(self.cost_of_sums(s) for s in sums)
        candidates = [Candidate(apart, {d: GemmEpilogue(p, "dgelu", **aux)})]
        for s in sums if self.may_hold(sums, d) else ():
            fused = GemmEpilogue(p, "dgelu_bgrad", sums=s, **aux)
            candidates.append(Candidate(_cost("dgelu_bgrad", d), {d: fused}))
        candidates = [o for o in candidates if self.serves(p, o.epilogues[d].epilogue)]
        cost, epilogues = min(candidates, key=lambda candidate: candidate.cost, default=_NEVER)
        return Candidate(cost - _kernel(d, 3), epilogues)

    # --- a bias only -----------------------------------------------------------------------------

    def bias(self, v: Value) -> None:
        """A bias that no fused group would add on the way."""
        found = self.with_bias(v)
        if found is None or found[1] is None or any(fusable(u) for u in self.readers(v)):
            return
        product, bias = found
        candidate = self.plain(v, GemmEpilogue(product, "bias", bias))
        if candidate.cost < 0:
            self.accept(candidate)

    # --- sums of an operand ----------------------------------------------------------------------

    def sums(self, s: Value) -> None:
        """Sums of a kernel's result, computed by a product that reads it."""
        base = view_of(s.args[0]).base
        candidate = None if fusable(base) and base not in self.found else self.sums_by_product(s)
        if candidate is not None:
            self.accept(candidate)

    def cost_of_sums(self, s: Value) -> float:
        """The cost for each summed element: by a product's epilogue, or by a kernel."""
        candidate = self.sums_by_product(s)
        return _kernel(s.args[0], 1) if candidate is None else candidate.cost

    def may_hold(self, sums: Sequence[Value], product: Value) -> bool:
        """Whether sums may be stored behind a product, which they would keep alive with them."""
        return self.is_output(product) or not any(self.is_output(s) for s in sums)

    def sums_by_product(self, s: Value) -> Candidate | None:
        """Sums by the epilogue of a product that reads the summed value, where that pays."""
        (v,) = s.args
        rows = _operand(v, _rows(v)) if _sums_rows(s) else None
        if rows is None:
            return None
        base = view_of(v).base
        for u in self.readers(base):
            p = self.product(u)
            later = any(view_of(a).base.number > s.number for a in u.args)
            if p is None or later or not self.may_hold([s], u):  # later: it may depend on s
                continue
            sides = (
                ("bgrad_a", p.x, p.left == _transposed(rows)),
                ("bgrad_b", p.y, p.right == rows),
            )
            for name, side, alike in sides:
                same = alike and view_of(side).base is base
                cost = _cost(name, v)
                if same and cost < _kernel(v, 1) and self.serves(p, name):
                    return Candidate(cost, {u: GemmEpilogue(p, name, sums=s)})
        return None


_NEVER = Candidate(inf, {})


def _rows(v: Value) -> tuple[int, int]:
    """The shape of v as a matrix: all axes but the last are its rows."""
    return size_of(v.shape[:-1]), v.shape[-1]


def _unshaped(v: Value) -> Value:
    """What a value is before it is given other shapes."""
    while v.move is Move.RESHAPE:
        (v,) = v.args
    return v


def _is_derivative(v: Value) -> bool:
    """Whether v is g times the derivative of an activation whose aux a product can read."""
    return getattr(v.facts.derivative_of, "epilogue", None) in _WITH_AUX and len(v.args) == 2


def _sums_rows(s: Value) -> bool:
    """Whether s has one sum for each index of the last axis."""
    (v,) = s.args
    over = tuple(range(len(v.shape) - 1))
    return bool(over) and (*s.params["axes"],) == over and s.shape == v.shape[-1:] and v.size > 0


def _is_array(base: Value) -> bool:
    """Whether a value has all its elements in memory."""
    return base.kind != "full"


def _operand(v: Value, shape: Shape) -> MatrixOperand | None:
    """v as a matrix in place; None where it must be copied for that."""
    view = view_of(v)
    strides = reshape_strides(view.shape, view.strides, shape)
    if strides is None or not _is_array(view.base):
        return None
    return MatrixOperand(shape, strides, view.offset * v.dtype.itemsize)


def _transposed(a: MatrixOperand) -> MatrixOperand:
    return MatrixOperand(a.shape[::-1], a.strides[::-1], a.address)


# --- the new graph -------------------------------------------------------------------------------


class LayoutOp(OpFacts):
    """A movement, as much of its record as a graph needs."""

    family = "movement"
    rearranges = True

    def __init__(self, move: Move, shape: Callable[..., Shape]) -> None:
        self.name = move.value
        self.move = move
        self.shape = shape


_RESHAPE = LayoutOp(Move.RESHAPE, lambda old, shape: shape)
_SLICE = LayoutOp(Move.SLICE, lambda old, slices: tuple(n for _, n, _ in slices))
_PERMUTE = LayoutOp(Move.PERMUTE, lambda old, axes: tuple(old[a] for a in axes))


def _epilogue_result(x: Any, y: Any, *others: Any, epilogue: str) -> tuple[Shape, Any]:
    sizes = (x.shape[0], y.shape[1])
    where = results(epilogue, *sizes, x.dtype)
    return (sizes if where.is_one else (where.size,)), x.dtype


MATMUL_EPILOGUE = BackendOp("matmul_epilogue", _epilogue_result)


class EpilogueBuilder(Rewriter):
    """Builds the graph with epilogues in place of what they compute."""

    def __init__(self, epilogues: dict[Value, GemmEpilogue]) -> None:
        super().__init__()
        self.epilogues = epilogues
        self.calls: dict[Value, Value] = {}  # by the value that an epilogue replaces
        self.owners: dict[Value, Value] = {}  # side results: by whose epilogue they are stored
        self.gone: set[Value] = set()
        for v, fused in epilogues.items():
            self.gone |= {fused.product.value, *_between(v, fused)} - {v}
            sides = (fused.before, fused.sums)
            self.owners |= {side: v for side in sides if side is not None}

    def is_late(self, v: Value) -> bool:
        """Side results are made with their owner. The owner may come later in the old graph; what
        it reads does not."""
        return v in self.gone or v in self.owners

    def rebuilt(self, v: Value) -> Value:
        if v in self.owners:
            return self.side(v)
        if v in self.epilogues:
            return self.shaped(self.result(v, "product"), v.shape)
        return super().rebuilt(v)

    def side(self, v: Value) -> Value:
        owner = self.owners[v]
        name = "sums" if self.epilogues[owner].sums is v else "aux"
        return self.shaped(self.result(owner, name), v.shape)

    def call(self, v: Value) -> Value:
        """The product whose epilogue computes v."""
        if v not in self.calls:
            p, epilogue, bias, aux_of, _, _, saved = self.epilogues[v]
            x, y = self.shaped(self.get(p.x), p.left.shape), self.get(p.y)
            args = [x, self.graph.call(_PERMUTE, [y], {"axes": (1, 0)}) if p.transposed else y]
            args += [] if bias is None else [self.get(bias)]
            args += [] if aux_of is None else [self.result(aux_of, "aux")]
            args += [] if saved is None else [self.get(saved)]
            params = {"epilogue": epilogue}
            self.calls[v] = self.graph.call(MATMUL_EPILOGUE, args, params, v.where, v.generation)
        return self.calls[v]

    def result(self, v: Value, name: str) -> Value:
        """A result of the product whose epilogue computes v."""
        call, p = self.call(v), self.epilogues[v].product
        where = results(self.epilogues[v].epilogue, p.left.shape[0], p.right.shape[1], v.dtype)
        if where.is_one:
            return call
        part: ResultSlice = getattr(where, name)
        return self.graph.call(_SLICE, [call], {"slices": ((part.at, part.size, 1),)})

    def shaped(self, v: Value, shape: Shape) -> Value:
        return v if v.shape == shape else self.graph.call(_RESHAPE, [v], {"shape": shape})


def _between(v: Value, fused: GemmEpilogue) -> set[Value]:
    """The values between a product and the last value of its epilogue."""
    product = fused.product.value
    found: set[Value] = set()
    for a in v.args:
        source = _unshaped(a)
        if source is product or (source.kind == "elementwise" and product in source.args):
            found.add(source)
            while a is not source:
                found.add(a)
                (a,) = a.args
    return found - {product}


def with_epilogues(dev: Cuda, graph: Graph) -> Graph:
    """The same outputs, with epilogues fused into products where that pays."""
    if dev.gpu.driver.lt is None:
        return graph
    epilogues = EpilogueFinder(dev, graph).run()
    return EpilogueBuilder(epilogues).run(graph) if epilogues else graph
