"""Derivatives of functions: grad, vjp, jvp, jacobian, hessian, over nested containers of tensors.

At the top, reverse mode uses the ordinary graph. Inside vmap or jvp it gets a level of its own
(`Level`), so that each transformation sees only its own graph and any nesting comes out right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

from everygrad.autograd.engine import Pass
from everygrad.autograd.graph import Leaf, Node
from everygrad.autograd.modes import enable_grad, in_inference_mode, is_grad_enabled
from everygrad.autograd.transform_scope import (
    INTERPRETED,
    Place,
    Transform,
    check_in_force,
    inside,
    rolled_back,
    user_place,
    within,
)
from everygrad.autograd.transforms.forward_mode import Dual, part_of
from everygrad.autograd.transforms.vmap import along_directions
from everygrad.autograd.trees import flatten, leaves_of, map_leaves, unflatten
from everygrad.core.op import Op
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, Wrapped, shared, wrap
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, GradientError, ShapeError
from everygrad.ops.python.conversion import IDENTITY
from everygrad.ops.python.creation import eye, ones_like, zeros_like


class Level(Wrapped):
    """A tensor of the level below, seen from inside a `grad` within other transformations."""

    __slots__ = ("place", "transform", "value")
    transparent = True

    def __init__(self, transform: Transform, value: Tensor, place: Place) -> None:
        self.level = transform.level
        self.transform = transform
        self.value = value
        self.place = place

    @property
    def inner(self) -> Tensor:
        return self.value

    def left(self) -> Tensor | None:
        return self.value

    @property
    def shape(self) -> Shape:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value._data.dtype

    @property
    def device(self) -> str:
        return self.value.device

    def interpret(self, op: Op, inputs: list[Tensor], params: dict[str, Any]) -> Any:
        transform = self.transform
        if transform.over:
            check_in_force(self, f"{op.name}: ")
        out = apply(op, *(below(t, transform) for t in inputs), **params)
        return Level(transform, out, user_place(INTERPRETED))

    def hold(self, t: Tensor) -> Tensor:
        """`t` from further out, with its graph, as a value of this level."""
        return wrap(Level(self.transform, t, self.place))


def below(t: Tensor, transform: Transform) -> Tensor:
    """`t` without the wrapping of `transform`."""
    payload = t._data
    return payload.value if isinstance(payload, Level) and payload.transform is transform else t


def _level_of(transform: Transform | None) -> AbstractContextManager[None]:
    """Inside others a level of its own; at the top there is none."""
    return nullcontext() if transform is None else within(transform)


def _checked(op: str, leaves: list[Any]) -> list[Tensor]:
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"{op}: derivatives are taken with respect to Tensors, got {type(leaf).__name__}"
            )
        if not leaf.dtype.is_differentiable:
            raise DtypeError(f"{op}: {leaf.dtype} has no derivative; cast it with astype() first")
    return leaves


def _check_results(op: str, outs: list[Any]) -> None:
    # in a function of its own: a loop's variable would hold the last result, which must be gone
    # before a transformation looks for what lives on
    for o in outs:
        if not isinstance(o, Tensor):
            raise ArgumentError(f"{op}: the function must return tensors, got {type(o).__name__}")


class Recorded:
    """A function's result together with what is needed to pull gradients back through it."""

    def __init__(
        self,
        op: str,
        f: Callable[..., Any],
        leaves: list[Any],
        tree: Any,
        has_aux: bool = False,
    ) -> None:
        self.inputs = _checked(op, leaves)
        if in_inference_mode():
            raise GradientError(
                f"{op}: nothing is recorded inside inference_mode(); leave it first"
            )
        # under no_grad the results are constants to those outside
        self.attached = is_grad_enabled()
        self.transform: Transform | None = None
        if (around := inside()) is not None:
            self.transform = Transform(op)
            around.inner.append(self.transform)
        self.aux: Any = None
        with rolled_back(self.transform), _level_of(self.transform), enable_grad():
            fresh = [self.enter(x) for x in leaves]
            self.places = [t._node for t in fresh]  # a name may be given another value inside
            out = f(*unflatten(tree, fresh))
            del fresh
            if has_aux:
                out, aux = out
                self.aux = map_leaves(self.value_outside, aux)
                del aux
            outs, self.out_tree = flatten(out)
            _check_results(op, outs)
            self.outs = [wrap(shared(o), o._node) for o in outs]
            del out, outs
            if self.transform is not None:
                self.transform.settle()

    def enter(self, x: Tensor) -> Tensor:
        """x as a fresh place in the graph to differentiate at."""
        if self.transform is not None:
            t = wrap(Level(self.transform, x, user_place()))
            t._node = Leaf(t, self.transform.level)
            return t
        if x._node is not None and self.attached:
            return apply(IDENTITY, x)
        t = wrap(shared(x))
        t._node = Leaf(t, 0)
        return t

    def leave(self, t: Tensor) -> Tensor:
        """A result as the world outside sees it."""
        t = below(t, self.transform) if self.transform is not None else t
        return t if self.attached else t.detach()

    def value_outside(self, t: Any) -> Any:
        """A result cut loose from this recording, but not from graphs further out."""
        if not isinstance(t, Tensor):
            return t
        if self.transform is not None:
            return self.leave(t)
        return t if t._node is not None and self.reaches_out([t]) else t.detach()

    def values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Results cut loose from this recording, but not from graphs further out."""
        return [self.value_outside(t) for t in tensors]

    def reaches_out(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a graph recorded outside is behind these results."""
        if not self.attached:
            return False
        mine = set(self.places)
        seen: set[Node] = set()
        todo = [t._node for t in tensors if t._node is not None]
        for node in todo:
            for parent in node.parents:
                if parent is not None and parent not in seen:
                    seen.add(parent)
                    todo.append(parent)
            if node.is_leaf and node not in mine:
                return True
        return False

    def pull(self, seeds: list[Tensor | None], retain: bool) -> list[Tensor]:
        """The gradient of each input, zeros where the outputs do not depend on it."""
        roots = [
            (o._node, s)
            for o, s in zip(self.outs, seeds, strict=True)
            if o._node is not None and s is not None
        ]
        targets = [node for node in self.places if node is not None]
        found: dict[Node, Any] = {}
        if roots:
            outside = self.transform is None and (
                self.reaches_out(self.outs) or (self.attached and _traced(seeds))
            )
            work = Pass(
                roots,
                retain_graph=retain or outside,
                create_graph=outside,
                targets=targets,
                accumulate=False,
                keep_mode=self.transform is not None,
            )
            work.run()
            found = work.captured
        grads = [found.get(node) for node in targets]
        return [
            zeros_like(self.leave(x)) if g is None else self.leave(g)
            for x, g in zip(self.inputs, grads, strict=True)
        ]


def _traced(seeds: list[Tensor | None]) -> bool:
    return any(s is not None and s._node is not None for s in seeds)


def _one_number(op: str, recorded: Recorded) -> None:
    if len(recorded.outs) != 1 or recorded.outs[0].size != 1:
        shown = [o.shape for o in recorded.outs]
        raise GradientError(
            f"{op}: the function must return one number, it returned shapes {shown}; "
            f"use vjp or jacobian for more"
        )
    if recorded.outs[0].dtype.is_complex:
        raise GradientError(f"{op}: the function returned {recorded.outs[0].dtype}; take real()")


def _chosen(op: str, args: tuple[Any, ...], argnums: int | Sequence[int]) -> Any:
    """The chosen arguments as a tuple, and a function that puts new ones in their places."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise ArgumentError(
                f"{op}: argnums {n}, but there are {len(args)} positional arguments"
            )

    def put(new: Sequence[Any]) -> list[Any]:
        full = list(args)
        for n, value in zip(numbers, new, strict=True):
            full[n] = value
        return full

    return tuple(args[n] for n in numbers), put


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function giving f's value and its gradient with respect to the chosen arguments.

    >>> import everygrad as eg
    >>> eg.value_and_grad(lambda x: (x * x).sum())(eg.tensor([1.0, 2.0]))
    (tensor(5.), tensor([2., 4.]))
    """

    @wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        chosen, put = _chosen("grad", args, argnums)
        leaves, tree = flatten(chosen)
        recorded = Recorded("grad", lambda *new: f(*put(new), **kwargs), leaves, tree, has_aux)
        _one_number("grad", recorded)
        (out,) = recorded.outs
        grads = recorded.pull([ones_like(out)], retain=False)
        tree_of = unflatten(tree, grads)
        gradient = tree_of[0] if isinstance(argnums, int) else tree_of
        (value,) = recorded.values([out])
        return ((value, recorded.aux) if has_aux else value), gradient

    return run


def grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradient of f, a function of nested containers of tensors that returns one number.

    >>> import everygrad as eg
    >>> eg.grad(eg.grad(lambda x: x**3))(eg.tensor(2.0))
    tensor(12.)
    """
    both = value_and_grad(f, argnums, has_aux)

    @wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return run


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """f's value and a function that pulls a gradient of the output back to the inputs.

    >>> import everygrad as eg
    >>> out, pull = eg.vjp(lambda x: x * x, eg.tensor([1.0, 2.0]))
    >>> pull(eg.ones((2,)))
    (tensor([2., 4.]),)
    """
    leaves, tree = flatten(primals)
    recorded = Recorded("vjp", f, leaves, tree)
    value = unflatten(recorded.out_tree, recorded.values(recorded.outs))

    def pull(gradient: Any) -> Any:
        seeds, seed_tree = flatten(gradient)
        if seed_tree != recorded.out_tree:
            raise ArgumentError(f"vjp: the gradient {seed_tree} must match {recorded.out_tree}")
        for s, o in zip(seeds, recorded.outs, strict=True):
            if not isinstance(s, Tensor) or s.shape != o.shape or s.dtype is not o.dtype:
                got = f"{s.dtype}{list(s.shape)}" if isinstance(s, Tensor) else type(s).__name__
                raise ShapeError(f"vjp: a gradient {got} for an output {o.dtype}{list(o.shape)}")
        return unflatten(tree, recorded.pull(seeds, retain=True))

    return value, pull


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """f's value and the directional derivative along `tangents`, in one forward pass.

    >>> import everygrad as eg
    >>> eg.jvp(lambda x: x * x, (eg.tensor(3.0),), (eg.tensor(1.0),))
    (tensor(9.), tensor(6.))
    """
    leaves, tree = flatten(tuple(primals))
    moves, move_tree = flatten(tuple(tangents))
    if tree != move_tree:
        raise ArgumentError(f"jvp: tangents {move_tree} must match primals {tree}")
    _checked("jvp", leaves)
    for x, t in zip(leaves, moves, strict=True):
        if not isinstance(t, Tensor) or t.shape != x.shape or t.dtype is not x.dtype:
            got = f"{t.dtype}{list(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
            raise ShapeError(f"jvp: a tangent {got} for an input {x.dtype}{list(x.shape)}")
    transform = Transform("jvp")
    with rolled_back(transform), within(transform):
        place = user_place()
        duals = [wrap(Dual(transform, x, t, place)) for x, t in zip(leaves, moves, strict=True)]
        out = f(*unflatten(tree, duals))
        outs, out_tree = flatten(out)
        _check_results("jvp", outs)
        parts = [part_of(o, transform) for o in outs]
        values = [wrap(shared(p), p._node) for p, _ in parts]
        slopes = [zeros_like(p) if t is None else t for p, t in parts]
        del duals, out, outs, parts
        transform.settle()
    transform.end()
    return unflatten(out_tree, values), unflatten(out_tree, slopes)


def _basis(x: Tensor) -> Tensor:
    """Every unit tensor of x's shape, along a new first axis."""
    return eye(x.size, dtype=x.dtype, device=x.device).reshape((x.size, *x.shape))


def jacobian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """All derivatives of f by reverse mode: output shape followed by input shape.

    >>> import everygrad as eg
    >>> eg.jacobian(lambda x: x * x)(eg.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        chosen, put = _chosen("jacobian", args, argnums)
        leaves, tree = flatten(chosen)
        recorded = Recorded("jacobian", lambda *new: f(*put(new), **kwargs), leaves, tree)

        def rows(k: int) -> list[Tensor]:
            out = recorded.outs[k]

            def pull(seed: Tensor) -> tuple[Tensor, ...]:
                seeds: list[Tensor | None] = [None] * len(recorded.outs)
                seeds[k] = seed
                return tuple(recorded.pull(seeds, retain=True))

            blocks = along_directions(pull, _basis(out), "jacobian")
            return [
                b.reshape((*out.shape, *x.shape))
                for b, x in zip(blocks, recorded.inputs, strict=True)
            ]

        def one(k: int) -> Any:
            full = unflatten(tree, rows(k))
            return full[0] if isinstance(argnums, int) else full

        return unflatten(recorded.out_tree, [one(k) for k in range(len(recorded.outs))])

    return run


def jacfwd(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """All derivatives of f by forward mode: output shape followed by input shape.

    Of containers it gives containers: f's, with that of the arguments in place of each tensor.
    """

    @wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        chosen, put = _chosen("jacfwd", args, argnums)
        leaves, tree = flatten(chosen)
        if not _checked("jacfwd", leaves):
            raise ArgumentError("jacfwd: there is no tensor among the chosen arguments")
        trees: list[Any] = []  # of f's result, the same each time

        def columns(k: int) -> list[Tensor]:
            x = leaves[k]

            def push(t: Tensor) -> Any:
                moves = [t if i == k else zeros_like(other) for i, other in enumerate(leaves)]
                slopes = jvp(lambda *new: f(*put(new), **kwargs), chosen, unflatten(tree, moves))
                return slopes[1]

            found, out_tree = flatten(along_directions(push, _basis(x), "jacfwd", out_axes=-1))
            trees.append(out_tree)
            return [c.reshape((*c.shape[:-1], *x.shape)) for c in found]

        def one(blocks: Sequence[Tensor]) -> Any:
            full = unflatten(tree, list(blocks))
            return full[0] if isinstance(argnums, int) else full

        rows = zip(*(columns(k) for k in range(len(leaves))), strict=True)
        made = [one(blocks) for blocks in rows]
        return unflatten(trees[0], made)

    return run


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """All second derivatives of f, a function that returns one number; of containers of tensors, a
    container of containers.

    >>> import everygrad as eg
    >>> eg.hessian(lambda x: (x**3).sum())(eg.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(grad(f, argnums), argnums)


def hvp(f: Callable[..., Any], primals: Sequence[Any], vectors: Sequence[Any]) -> tuple[Any, Any]:
    """f's value and its Hessian times `vectors`, without building the Hessian.

    >>> import everygrad as eg
    >>> eg.hvp(lambda x: (x**3).sum(), (eg.tensor([1.0, 2.0]),), (eg.ones((2,)),))
    (tensor(9.), (tensor([ 6., 12.]),))
    """
    leaves, tree = flatten(tuple(primals))
    moves, move_tree = flatten(tuple(vectors))
    if tree != move_tree:
        raise ArgumentError(f"hvp: vectors {move_tree} must match primals {tree}")
    values: list[Tensor] = []

    def along(*new: Any) -> Tensor:
        value, slopes = value_and_grad(f, tuple(range(len(new))))(*new)
        values.append(value)
        parts = [(g * v).sum() for g, v in zip(leaves_of(slopes), moves, strict=True)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    recorded = Recorded("hvp", along, leaves, tree)
    found = recorded.pull([ones_like(recorded.outs[0])], retain=False)
    return recorded.values(values)[0], unflatten(tree, found)
