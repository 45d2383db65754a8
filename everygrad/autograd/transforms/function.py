"""Functions with derivatives of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad.autograd.modes import no_grad
from everygrad.autograd.transforms.vmap import vmap
from everygrad.core.shapes import Shape, size_of
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, user_line
from everygrad.errors import FunctionError
from everygrad.ops.python.creation import zeros_like
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import REGISTRY, held
from everygrad.ops.shape.joining import concat


class Function:
    """A differentiable function defined by its forward computation and its derivative.

    Write three static methods in tensor ops, then call `apply`:

      forward(*inputs, **params)            the result, or a tuple of results
      vjp(g, out, *inputs, **params)        one gradient for each input, None for zero
      jvp(tangents, out, *inputs, **params) the tangent of the result; only for forward mode

    Nothing inside `forward` is recorded. `vjp` is, where a higher derivative asks for it.

    >>> import everygrad as eg
    >>> class Cube(eg.Function):
    ...     @staticmethod
    ...     def forward(x):
    ...         return x * x * x
    ...     @staticmethod
    ...     def vjp(g, out, x):
    ...         return 3 * x * x * g
    >>> x = eg.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    _op: ClassVar[_FunctionOp]

    @staticmethod
    def forward(*inputs: Any, **params: Any) -> Any:
        raise FunctionError("Function: define forward(*inputs, **params)")

    @staticmethod
    def vjp(g: Any, out: Any, *inputs: Any, **params: Any) -> Any:
        raise FunctionError("Function: define vjp(g, out, *inputs, **params)")

    jvp: ClassVar[Any] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "backward"):
            raise FunctionError(
                f"{cls.__name__}: defines PyTorch's backward(ctx, g); here it is "
                f"vjp(g, out, *inputs), and forward has no ctx: nothing need be saved"
            )

    @classmethod
    def apply(cls, *inputs: Any, **params: Any) -> Any:
        """The function on tensors; keyword arguments are handed through as they are."""
        for i, x in enumerate(inputs):
            if not isinstance(x, Tensor):
                raise FunctionError(
                    f"{cls.__name__}: input {i} is {type(x).__name__}; inputs are Tensors, "
                    f"pass everything else by keyword"
                )
        # a name of ours would call our kernel instead
        name = f"{cls.__name__} (Function)" if cls.__name__ in REGISTRY else cls.__name__
        op = _FunctionOp(name, cls.forward, cls.vjp, cls.jvp, params, len(inputs))
        packed = apply(op, *inputs)
        # integers have no derivative: the graph ends here, as it does at a cast
        return op.unpack(packed if packed.dtype.is_differentiable else packed.detach())


class _FunctionOp(Kernel):
    """One call. Several results travel as one vector, so every transformation handles them."""

    is_users = True

    def __init__(
        self, name: str, forward: Any, vjp: Any, jvp: Any, extra: dict[str, Any], count: int
    ) -> None:
        super().__init__(name, self.run, ("xs",), (lambda g: g,))
        self.forward = forward
        self.user_vjp = vjp
        self.user_jvp = jvp
        self.extra = extra
        self.count = count
        self.where = user_line()
        self.shapes: list[Shape] | None = None  # of the results; None while there is one only

    def run(self, *inputs: Tensor) -> Tensor:
        with no_grad():
            out = self.forward(*inputs, **self.extra)
        if isinstance(out, Tensor):
            return out
        return self.pack(list(out) if isinstance(out, list | tuple) else [out])

    def pack(self, outs: list[Any]) -> Tensor:
        if not outs or not all(isinstance(o, Tensor) for o in outs):
            kinds = ", ".join(type(o).__name__ for o in outs)
            raise FunctionError(f"{self.name}: forward must return Tensors, got ({kinds})")
        if any(o.dtype is not outs[0].dtype for o in outs):
            kinds = ", ".join(str(o.dtype) for o in outs)
            raise FunctionError(f"{self.name}: results of different dtypes ({kinds}); use one")
        self.shapes = [o.shape for o in outs]
        return concat([o.reshape(-1) for o in outs])

    def unpack(self, packed: Tensor) -> Any:
        if self.shapes is None:
            return packed
        outs, at = [], 0
        for shape in self.shapes:
            n = size_of(shape)
            outs.append(packed[at : at + n].reshape(shape))
            at += n
        return tuple(outs)

    def save(
        self, parents: Sequence[Any], payload: Any, inputs: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        return (payload, *(t._data for t in held(payload, parents, inputs)))

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        out, *inputs = self.restore(node, create_graph)
        try:
            grads = self.user_vjp(self.unpack(g), self.unpack(out), *inputs, **self.extra)
        except FunctionError:
            raise
        except Exception as error:
            raise FunctionError(
                f"{self.name}, called at {self.where}: its vjp raised "
                f"{type(error).__name__}: {error}"
            ) from error
        grads = list(grads) if isinstance(grads, list | tuple) else [grads]
        self.check_count(grads, inputs)
        for i, (gradient, x) in enumerate(zip(grads, inputs, strict=True)):
            self.check(f"gradient {i}", gradient, x, "input")
        return [
            zeros_like(x) if gradient is None and parent is not None else gradient
            for gradient, x, parent in zip(grads, inputs, node.parents, strict=True)
        ]

    def check_count(self, grads: Sequence[Any], inputs: Sequence[Any]) -> None:
        if len(grads) != len(inputs):
            raise FunctionError(
                f"{self.name}: vjp returned {len(grads)} gradients for {len(inputs)} inputs"
            )

    def check(self, what: str, got: Any, like: Tensor, role: str) -> None:
        if got is None:
            return
        if not isinstance(got, Tensor):
            raise FunctionError(
                f"{self.name}: {what} is {type(got).__name__}, not a Tensor (or None for zero)"
            )
        if got.shape != like.shape or got.dtype is not like.dtype or got.device != like.device:
            raise FunctionError(
                f"{self.name}: {what} is {got.dtype}{list(got.shape)} on {got.device}, "
                f"its {role} is {like.dtype}{list(like.shape)} on {like.device}"
            )

    def jvp(self, out: Tensor, inputs: Any, tangents: Any, params: dict[str, Any]) -> Tensor | None:
        if all(t is None for t in tangents):
            return None
        if self.user_jvp is None:
            raise FunctionError(f"{self.name}: forward mode needs a jvp, and none is defined")
        moves = [zeros_like(x) if t is None else t for x, t in zip(inputs, tangents, strict=True)]
        made = self.user_jvp(tuple(moves), self.unpack(out), *inputs, **self.extra)
        return self.packed_tangents(made, self.unpack(out))

    def packed_tangents(self, made: Any, outs: Any) -> Tensor | None:
        """What jvp returned, checked, as the one vector that stands for all results."""
        if self.shapes is None:
            self.check("the tangent", made, outs, "result")
            return made
        tangents = list(made) if isinstance(made, list | tuple) else [made]
        if len(tangents) != len(outs):
            raise FunctionError(
                f"{self.name}: jvp returned {len(tangents)} tangents for {len(outs)} results"
            )
        for i, (t, o) in enumerate(zip(tangents, outs, strict=True)):
            self.check(f"tangent {i}", t, o, "result")
        full = [zeros_like(o) if t is None else t for t, o in zip(tangents, outs, strict=True)]
        return concat([t.reshape(-1) for t in full])

    def batched(
        self, values: Sequence[Tensor], flags: Sequence[bool], size: int, params: dict[str, Any]
    ) -> Tensor:
        """The same function for each example: its forward, vjp and jvp mapped over the batch."""
        axes = tuple(0 if has else None for has in flags)
        extra = self.extra

        def forward(*xs: Tensor) -> Any:
            return vmap(lambda *one: self.run(*one), axes)(*xs)

        def pull(g: Tensor, out: Tensor, *xs: Tensor) -> Any:
            def one(g: Tensor, out: Tensor, *x: Tensor) -> Any:
                grads = self.user_vjp(self.unpack(g), self.unpack(out), *x, **extra)
                grads = grads if isinstance(grads, list | tuple) else (grads,)
                self.check_count(grads, x)
                return tuple(
                    zeros_like(v) if t is None else t for t, v in zip(grads, x, strict=True)
                )

            grads = vmap(one, (0, 0, *axes))(g, out, *xs)
            return tuple(t if has else t.sum(axis=0) for t, has in zip(grads, flags, strict=True))

        def push(moves: Any, out: Tensor, *xs: Tensor) -> Any:
            def one(out: Tensor, *rest: Tensor) -> Any:
                half = len(rest) // 2
                outs = self.unpack(out)
                made = self.user_jvp(rest[half:], outs, *rest[:half], **extra)
                moved = self.packed_tangents(made, outs)
                return zeros_like(out) if moved is None else moved

            return vmap(one, (0, *axes, *axes))(out, *xs, *moves)

        inner = _FunctionOp(
            self.name, forward, pull, push if self.user_jvp else None, {}, self.count
        )
        return apply(inner, *values)
