"""Products that end in what follows them: a bias, an activation, its derivative, sums of columns.

cuBLASLt does these while results of a product are in registers, where a kernel of our own would
read them from memory again. A product that ends in gelu leaves gelu's input (`aux`) behind its
result where backward needs it; so do sums. What is found here is weighed in bytes that need not be
moved, against what an epilogue costs (`COSTS`), and only what cuBLASLt has an algorithm for is
chosen.

    relu(x @ w + b)                        relu_bias
    gelu_tanh(x @ w + b)                   gelu_bias, or gelu_aux_bias where backward follows
    gelu_tanh.d0(g @ v, input), its sum    dgelu, or dgelu_bgrad
    x @ w + b, for a kernel to read        bias
    g^T @ x, and the sum of g              bgrad_a; x^T @ g and the sum of g: bgrad_b

Not relu's derivative: cuBLASLt lets gradients pass where relu's input is 0, or drops them where it
is NaN, and takes longer for it than a kernel of our own. Gelu's is NaN for inputs beyond 1e19, as
PyTorch's is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

from everygrad.backends.cuda.driver.cublaslt import BIAS_ALIGNMENT
from everygrad.backends.cuda.gemm.matmul import (
    WITH_EPILOGUES,
    MatrixOperand,
    ResultSlice,
    problem_with,
    results,
)
from everygrad.backends.cuda.graph.rewriting import Internal
from everygrad.backends.group_sums import fusable
from everygrad.compile import views
from everygrad.compile.ir import Graph, Value, in_order, reachable
from everygrad.compile.views import view_of
from everygrad.core.shapes import Shape, size_of

# What an epilogue adds to the time of a bare product, of halves and of float32: in bytes that our
# kernels move meanwhile (3 TB/s on the H200 where this was measured), for each element of the
# result; of bgrad_a and bgrad_b, for each element that is summed. Gelu of float32 is never chosen:
# cuBLASLt's is right to 1e-6 only.
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

_ACTIVATIONS = {"relu": "relu", "gelu_tanh": "gelu"}  # cuBLASLt's gelu is the one with tanh
_DERIVATIVE = "gelu_tanh.d0"  # of a gradient and gelu's input


def _cost(epilogue: str, v: Value) -> float:
    return COSTS[epilogue][v.dtype.itemsize > 2]


def _kernel(v: Value, matrices: int) -> float:
    """What a kernel costs for each element of v that reads and writes so many arrays like v."""
    return matrices * v.dtype.itemsize + LAUNCH / v.size


class Product(NamedTuple):
    """A product as one of matrices (m, k) and (k, n). `x` may have more axes, all rows; `y` may be
    stored transposed, as a layer's weight is."""

    value: Value
    x: Value
    y: Value
    transposed: bool
    left: MatrixOperand
    right: MatrixOperand


class Ending(NamedTuple):
    """A product with what follows it, which takes the place of the last value it computes."""

    product: Product
    epilogue: str
    bias: Value | None = None
    aux_of: Value | None = None  # the value whose product left what this one reads
    before: Value | None = None  # gelu's input, which is left
    sums: Value | None = None


class Option(NamedTuple):
    """Endings that belong together, and what they cost more than what they are to replace."""

    cost: float
    endings: dict[Value, Ending]


class Finder:
    """Looks a graph over for what pays, and is served."""

    def __init__(self, dev: Any, graph: Graph) -> None:
        self.lt, self.tf32 = dev.gpu.driver.lt, dev.tf32
        self.live = list(in_order(reachable(graph.outputs)))
        self.outputs = {*graph.outputs}
        self.users: dict[Value, list[Value]] = {}
        for v in self.live:
            for a in {*v.args}:
                self.users.setdefault(a, []).append(v)
        self.found: dict[Value, Ending] = {}
        self.taken: set[Value] = set()  # products that have their ending

    def run(self) -> dict[Value, Ending]:
        for v in self.live:
            if v.name in _ACTIVATIONS and v.kind == "elementwise":
                self.activation(v)
        for v in self.live:
            if v.name == "add":
                self.bias(v)
        done = {e.sums for e in self.found.values()}
        for v in self.live:
            if v.name == "sum" and v not in done:
                self.sums(v)
        return self.found

    def accept(self, option: Option) -> None:
        self.found |= option.endings
        self.taken |= {e.product.value for e in option.endings.values()}

    # --- what reads a value ----------------------------------------------------------------------

    def readers(self, v: Value) -> Iterator[Value]:
        """What computes with v, behind moves too."""
        for u in self.users.get(v, []):
            if u.kind == "movement":
                yield from self.readers(u)
            else:
                yield u

    def is_output(self, v: Value) -> bool:
        moved = [u for u in self.users.get(v, []) if u.kind == "movement"]
        return v in self.outputs or any(self.is_output(u) for u in moved)

    def is_stored(self, v: Value) -> bool:
        """Whether v lies in memory however values are grouped."""
        return self.is_output(v) or any(not fusable(u) for u in self.readers(v))

    def is_read_by(self, v: Value, *known: Value) -> bool:
        """Whether nothing else reads v."""
        return v not in self.outputs and {*self.users.get(v, [])} <= {*known}

    # --- products --------------------------------------------------------------------------------

    def product(self, v: Value) -> Product | None:
        """v as a product that may have an ending."""
        if v.name not in ("linear", "matmul") or v.dtype not in WITH_EPILOGUES or v in self.taken:
            return None
        x, y = v.args
        if len(y.shape) != 2 or not v.size or not x.size or v.dtype is not x.dtype:
            return None
        transposed = v.name == "linear"
        left = _operand(x, _rows(x))
        right = _operand(y, y.shape)
        if left is None or right is None:
            return None
        return Product(v, x, y, transposed, left, _transposed(right) if transposed else right)

    def serves(self, p: Product, epilogue: str) -> bool:
        problem = problem_with(epilogue, p.value.dtype, p.left, p.right, self.tf32)
        return problem is not None and self.lt.serves(problem)

    def with_bias(self, v: Value) -> tuple[Product, Value | None] | None:
        """v as a product, with a bias or without, of which nothing else is read."""
        p = self.product(v)
        if p is not None:
            return p, None
        if v.name != "add":
            return None
        for first, bias in (v.args, v.args[::-1]):
            p = self.product(first)
            if p is not None and self.is_read_by(first, v) and self.is_bias(bias, v):
                return p, bias
        return None

    def is_bias(self, b: Value, v: Value) -> bool:
        """Whether b is one number for each column, where cuBLASLt can read it."""
        view = view_of(b)
        lies = view.strides == (1,) and view.offset * b.dtype.itemsize % BIAS_ALIGNMENT == 0
        return b.shape == v.shape[-1:] and b.dtype is v.dtype and lies and _is_array(view.base)

    # --- activations -----------------------------------------------------------------------------

    def activation(self, v: Value) -> None:
        """relu or gelu of a product, and derivatives that read what it leaves."""
        (before,) = v.args
        kind = _ACTIVATIONS[v.name]
        found = self.with_bias(before)
        derivatives = [
            u
            for u in self.users[before]
            if kind == "gelu" and u.name == _DERIVATIVE and u.args[0] is not before
        ]
        alone = self.is_read_by(before, v, *derivatives)
        if found is None or not alone or not self.is_stored(v) or v.dtype is not before.dtype:
            return
        product, bias = found
        ending = Ending(product, kind if bias is None else f"{kind}_bias", bias)
        best = self.kept(v, ending, derivatives) if derivatives else self.plain(v, ending)
        if best.cost < 0:
            self.accept(best)

    def plain(self, v: Value, ending: Ending) -> Option:
        """In place of a kernel that reads the product and writes v."""
        served = self.serves(ending.product, ending.epilogue)
        cost = _cost(ending.epilogue, v) - _kernel(v, 2)
        return Option(cost, {v: ending}) if served else _NEVER

    def kept(self, v: Value, ending: Ending, derivatives: Sequence[Value]) -> Option:
        """The same, and derivatives that read what is left. A derivative that is computed by a
        kernel reads it too, if no row of it is longer than v's."""
        name = "gelu_aux" if ending.bias is None else "gelu_aux_bias"
        (before,) = v.args
        chosen = [o for o in (self.derivative(d, v) for d in derivatives) if o.cost < 0]
        as_input = results(name, *_rows(v), v.dtype).aux.size == v.size
        all_served = len(chosen) == len(derivatives) or (chosen and as_input)
        if not all_served or self.is_output(v):  # the user would hold what is left, too
            return _NEVER
        cost, endings = self.plain(v, ending._replace(epilogue=name, before=before))
        for option in chosen:
            cost += option.cost
            endings = endings | option.endings
        return Option(cost, endings)

    def derivative(self, d: Value, v: Value) -> Option:
        """In place of a kernel that reads a product's result and gelu's input, and writes d. Sums
        of d cost nothing there."""
        g = d.args[0]
        p = self.product(g)
        alike = g.shape == v.shape == d.shape and g.dtype is d.dtype is v.dtype
        if p is None or not alike or not self.is_read_by(g, d) or not self.is_stored(d):
            return _NEVER
        sums = [u for u in self.users[d] if u.name == "sum" and _sums_rows(u)]
        apart = _cost("dgelu", d) + sum(self.cost_of_sums(s) for s in sums)
        options = [Option(apart, {d: Ending(p, "dgelu", aux_of=v)})]
        for s in sums if self.may_hold(sums, d) else ():
            ending = Ending(p, "dgelu_bgrad", aux_of=v, sums=s)
            options.append(Option(_cost("dgelu_bgrad", d), {d: ending}))
        options = [o for o in options if self.serves(p, o.endings[d].epilogue)]
        cost, endings = min(options, key=lambda option: option.cost, default=_NEVER)
        return Option(cost - _kernel(d, 3), endings)

    # --- a bias alone ----------------------------------------------------------------------------

    def bias(self, v: Value) -> None:
        """A sum that no group of values would compute on the way."""
        found = self.with_bias(v)
        if found is None or found[1] is None or any(fusable(u) for u in self.readers(v)):
            return
        product, bias = found
        option = self.plain(v, Ending(product, "bias", bias))
        if option.cost < 0:
            self.accept(option)

    # --- sums of an operand ----------------------------------------------------------------------

    def sums(self, s: Value) -> None:
        """Sums of what a kernel has made, by a product that reads it."""
        base = view_of(s.args[0]).base
        option = None if fusable(base) and base not in self.found else self.beside(s)
        if option is not None:
            self.accept(option)

    def cost_of_sums(self, s: Value) -> float:
        """Of each element that is summed: beside a product, or by a kernel."""
        option = self.beside(s)
        return _kernel(s.args[0], 1) if option is None else option.cost

    def may_hold(self, sums: Sequence[Value], product: Value) -> bool:
        """Whether sums may lie behind a product: sums that the user keeps would hold it, too."""
        return self.is_output(product) or not any(self.is_output(s) for s in sums)

    def beside(self, s: Value) -> Option | None:
        """Sums by a product that reads what is summed, where that pays."""
        (v,) = s.args
        rows = _operand(v, _rows(v)) if _sums_rows(s) else None
        if rows is None:
            return None
        base = view_of(v).base
        for u in self.readers(base):
            p = self.product(u)
            later = any(view_of(a).base.number > s.number for a in u.args)
            if p is None or later or not self.may_hold([s], u):  # later: it may be made of s
                continue
            sides = (
                ("bgrad_a", p.x, p.left == _transposed(rows)),
                ("bgrad_b", p.y, p.right == rows),
            )
            for name, side, alike in sides:
                same = alike and view_of(side).base is base
                cost = _cost(name, v)
                if same and cost < _kernel(v, 1) and self.serves(p, name):
                    return Option(cost, {u: Ending(p, name, sums=s)})
        return None


_NEVER = Option(inf, {})


def _rows(v: Value) -> tuple[int, int]:
    """The shape of v as a matrix, all axes but the last one its rows."""
    return size_of(v.shape[:-1]), v.shape[-1]


def _sums_rows(s: Value) -> bool:
    """Whether s has one sum for each place along the last axis."""
    (v,) = s.args
    over = tuple(range(len(v.shape) - 1))
    return bool(over) and (*s.params["axes"],) == over and s.shape == v.shape[-1:] and v.size > 0


def _is_array(base: Value) -> bool:
    """Whether a value is in memory, element by element."""
    return base.kind != "full"


def _operand(v: Value, shape: Shape) -> MatrixOperand | None:
    """v as a matrix where it lies; None where it must be copied for that."""
    view = view_of(v)
    strides = views.reshape(view.shape, view.strides, shape)
    if strides is None or not _is_array(view.base):
        return None
    return MatrixOperand(shape, strides, view.offset * v.dtype.itemsize)


def _transposed(a: MatrixOperand) -> MatrixOperand:
    return MatrixOperand(a.shape[::-1], a.strides[::-1], a.address)


# --- the new graph -------------------------------------------------------------------------------


class Move(NamedTuple):
    """A layout move, as graphs know it by its name."""

    name: str
    shape: Callable[..., Shape]
    family: str = "movement"


_RESHAPE = Move("reshape", lambda old, shape: shape)
_SLICE = Move("slice", lambda old, slices: tuple(n for _, n, _ in slices))
_PERMUTE = Move("permute_dims", lambda old, axes: tuple(old[a] for a in axes))


def _ending_result(x: Any, y: Any, *others: Any, epilogue: str) -> tuple[Shape, Any]:
    sizes = (x.shape[0], y.shape[1])
    where = results(epilogue, *sizes, x.dtype)
    return (sizes if where.is_one else (where.size,)), x.dtype


ENDING = Internal("product_ending", _ending_result)


class Builder:
    """The graph with its endings in place of what they compute."""

    def __init__(self, old: Graph, endings: dict[Value, Ending]) -> None:
        self.old = old
        self.graph = Graph()
        self.endings = endings
        self.made: dict[Value, Value] = {}
        self.calls: dict[Value, Value] = {}  # by the value that an ending takes the place of
        self.owners: dict[Value, Value] = {}  # side results: whose ending leaves them
        self.gone: set[Value] = set()
        for v, ending in endings.items():
            self.gone |= {ending.product.value, *_between(v, ending)} - {v}
            sides = (ending.before, ending.sums)
            self.owners |= {side: v for side in sides if side is not None}

    def run(self) -> Graph:
        self.made = {v: self.graph.input(v.shape, v.dtype, v.where) for v in self.old.inputs}
        for v in in_order(reachable(self.old.outputs)):
            if v not in self.made and v not in self.gone and v not in self.owners:
                self.made[v] = self.rebuilt(v)
        self.graph.outputs = [self.get(v) for v in self.old.outputs]
        return self.graph

    def get(self, v: Value) -> Value:
        """v in the new graph. Side results come with their owner, which may come later in the old
        graph, but not what it reads."""
        if v not in self.made and v in self.owners:
            self.made[v] = self.side(v)
        if v not in self.made:
            self.made[v] = self.rebuilt(v)
        return self.made[v]

    def rebuilt(self, v: Value) -> Value:
        if v.kind == "full":
            return self.graph.full(v.shape, v.params["value"], v.dtype)
        if v.kind == "constant":
            return self.graph.constant(v.params["array"], v.dtype)
        if v in self.endings:
            return self.shaped(self.piece(v, "product"), v.shape)
        return self.graph.call(v.op, [self.get(a) for a in v.args], v.params, v.where, v.generation)

    def side(self, v: Value) -> Value:
        owner = self.owners[v]
        name = "sums" if self.endings[owner].sums is v else "aux"
        return self.shaped(self.piece(owner, name), v.shape)

    def call(self, v: Value) -> Value:
        """The product that ends in v."""
        if v not in self.calls:
            p, epilogue, bias, aux_of = self.endings[v][:4]
            x, y = self.shaped(self.get(p.x), p.left.shape), self.get(p.y)
            args = [x, self.graph.call(_PERMUTE, [y], {"axes": (1, 0)}) if p.transposed else y]
            args += [] if bias is None else [self.get(bias)]
            args += [] if aux_of is None else [self.piece(aux_of, "aux")]
            params = {"epilogue": epilogue}
            self.calls[v] = self.graph.call(ENDING, args, params, v.where, v.generation)
        return self.calls[v]

    def piece(self, v: Value, name: str) -> Value:
        """A result of the product that ends in v."""
        call, p = self.call(v), self.endings[v].product
        where = results(self.endings[v].epilogue, p.left.shape[0], p.right.shape[1], v.dtype)
        if where.is_one:
            return call
        piece: ResultSlice = getattr(where, name)
        return self.graph.call(_SLICE, [call], {"slices": ((piece.at, piece.size, 1),)})

    def shaped(self, v: Value, shape: Shape) -> Value:
        return v if v.shape == shape else self.graph.call(_RESHAPE, [v], {"shape": shape})


def _between(v: Value, ending: Ending) -> set[Value]:
    """What is computed between a product and the last value of its ending."""
    product = ending.product.value
    return {a for a in v.args if a is not product and product in a.args and a.kind == "elementwise"}


def with_epilogues(dev: Any, graph: Graph) -> Graph:
    """The same outputs, by products that do what follows them where that pays."""
    if dev.gpu.driver.lt is None:
        return graph
    endings = Finder(dev, graph).run()
    return Builder(graph, endings).run() if endings else graph
