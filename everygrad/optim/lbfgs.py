"""L-BFGS, with a line search for the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Unpack

from everygrad.autograd.engine import of_all
from everygrad.autograd.modes import enable_grad, no_grad
from everygrad.core.context import tracing
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError, TraceError
from everygrad.ops.linalg.matmul import vecdot
from everygrad.ops.python.creation import tensor, zeros
from everygrad.ops.shape.joining import concat
from everygrad.optim.group import Group
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import put

_WOLFE = "strong_wolfe"
_CURVATURE = 1e-10  # of a step, below which it teaches nothing about the Hessian
_FLAT = ("d", "prev_flat_grad")  # vectors of all parameters' elements in the state
_LISTS = ("old_dirs", "old_stps")


class LBFGS(Optimizer):
    """Quasi-Newton steps by the last `history_size` gradients; `step` needs a closure.

    max_iter          iterations of a step, each with at least one call of the closure
    max_eval          the most calls of the closure in a step; 1.25 * max_iter if None
    tolerance_grad    a step ends where no element of the gradient is larger
    tolerance_change  it ends where the parameters or the loss change by less
    line_search_fn    "strong_wolfe", or None for steps of length `lr`

    There is one group of parameters, on one device. The closure may be compiled (`eg.jit`); the
    step itself asks for values, so it cannot be.

    >>> import everygrad as eg
    >>> x = eg.tensor([3.0, -4.0], requires_grad=True)
    >>> opt = eg.optim.LBFGS([x], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = ((x - 1) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> opt.step(closure).item()
    29.0
    >>> eg.allclose(x.detach(), eg.ones((2,)))
    True
    """

    elementwise = False
    separate = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
            "master_weights": False,
        }
        super().__init__(params, settings, **switches)

    def check_switches(self, given: Mapping[str, Any]) -> None:
        super().check_switches(given)
        if given.get("differentiable"):
            raise ArgumentError(
                "LBFGS: differentiable=True: its line search decides by values, which has no "
                "derivative; use another optimiser, or differentiate the point it ends at"
            )

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """The one group that there may be."""
        if self.param_groups:
            raise ArgumentError("LBFGS: takes one group of parameters; give them all in one list")
        super().add_param_group(param_group)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "tolerance_grad", "tolerance_change")
        for name in ("max_iter", "max_eval", "history_size"):
            value = group[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"LBFGS: {name} must be a positive integer, got {value!r}")
        if group["line_search_fn"] not in (None, _WOLFE):
            raise ArgumentError(
                f'LBFGS: line_search_fn must be None or "{_WOLFE}", got {group["line_search_fn"]!r}'
            )

    def _step(
        self,
        closure: Callable[[], Any] | None = None,
        found_inf: Tensor | None = None,
        grad_scale: Tensor | None = None,
    ) -> Any:
        if closure is None:
            raise ArgumentError("LBFGS.step: needs a closure that computes loss and gradients")
        if found_inf is not None or grad_scale is not None:
            raise ArgumentError("LBFGS.step: cannot be scaled; train in float32 or bfloat16")
        if tracing.get() is not None:
            raise TraceError(
                "jit: LBFGS.step looks at values to decide what to do next; compile the closure "
                "and call step outside: opt.step(eg.jit(closure))"
            )
        with no_grad():
            return _Descent(self, closure).run()

    def _restored(
        self, p: Tensor, held: Mapping[str, Any], group: Group, known: dict[Any, Tensor]
    ) -> dict[str, Any]:
        size = sum(q.size for q in group["params"])

        def vector(name: str, value: Any) -> Tensor:
            if tuple(value.shape) != (size,):
                raise ShapeError(
                    f"load_state_dict: {name} has shape {tuple(value.shape)}, the parameters "
                    f"have {size} elements"
                )
            return tensor(value, p.dtype, p.device)

        found: dict[str, Any] = {}
        for name, value in held.items():
            if name in _FLAT and value is not None:
                found[name] = vector(name, value)
            elif name in _LISTS:
                found[name] = [vector(name, v) for v in value]
            elif name == "ro":
                found[name] = [tensor(v, p.dtype, p.device) for v in value]
            elif name != "al":  # PyTorch's room for an intermediate result
                found[name] = _number(value)
        return found


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


class Point(NamedTuple):
    """A point on the line of the search: how far it is, and the loss, gradient and slope there."""

    t: float
    loss: float
    grad: Tensor
    slope: float


class _Descent:
    """One step: iterations that end where nothing more is to be gained."""

    def __init__(self, opt: LBFGS, closure: Callable[[], Any]) -> None:
        group = opt.param_groups[0]
        self.params: list[Tensor] = list(group["params"])
        self.group = group
        self.closure = closure
        self.state = opt.state_of(self.params[0])
        self.lr = float(_number(group["lr"]))
        self.evaluations = 0

    def evaluate(self) -> tuple[Any, float, Tensor]:
        """The loss as the closure gives it, as a number, and the gradient as one vector."""
        with enable_grad():
            given = self.closure()
        if isinstance(given, Tensor):  # the gradients may be means over ranks: the loss as well
            given = of_all(self.params, given)
        self.evaluations += 1
        grads = [
            zeros((p.size,), p.dtype, p.device) if p.grad is None else p.grad.reshape((p.size,))
            for p in self.params
        ]
        return given, float(given), concat(grads).detach()

    def move(self, t: float, d: Tensor) -> None:
        """Every parameter t * d further."""
        begin = 0
        for p in self.params:
            put(p, p + d[begin : begin + p.size].reshape(p.shape) * t)
            begin += p.size

    def run(self) -> Any:
        state, group = self.state, self.group
        given, loss, grad = self.evaluate()
        if not _largest(grad) <= group["tolerance_grad"]:
            memory = _Memory(state, group["history_size"])
            t = state.get("t")
            for i in range(1, group["max_iter"] + 1):
                iteration = state.get("n_iter", 0) + 1
                state["n_iter"] = iteration
                d = memory.direction(grad, t, first=iteration == 1)
                before = loss
                t = self.lr
                if iteration == 1:
                    t *= min(1.0, 1.0 / float(abs(grad).sum()))
                slope = float(vecdot(grad, d))
                if slope > -group["tolerance_change"]:
                    break
                t, loss, grad = self.advance(Point(t, loss, grad, slope), d, last=i == self.most)
                if i == self.most or self.evaluations >= group["max_eval"]:
                    break
                if _largest(grad) <= group["tolerance_grad"]:
                    break
                least = group["tolerance_change"]
                if _largest(d) * abs(t) <= least or abs(loss - before) < least:
                    break
            memory.store(state)
            state["t"], state["prev_loss"] = t, before
        state["func_evals"] = state.get("func_evals", 0) + self.evaluations
        return given

    @property
    def most(self) -> int:
        most: int = self.group["max_iter"]
        return most

    def advance(self, at: Point, d: Tensor, last: bool) -> tuple[float, float, Tensor]:
        """Walk along d: how far it went, and the loss and gradient there."""
        if self.group["line_search_fn"] is None:
            self.move(at.t, d)
            if last:  # nobody asks for them
                return at.t, at.loss, at.grad
            _, loss, grad = self.evaluate()
            return at.t, loss, grad
        start = [p.detach() for p in self.params]

        def there(t: float) -> Point:
            self.move(t, d)
            _, loss, grad = self.evaluate()
            for p, value in zip(self.params, start, strict=True):
                put(p, value)
            return Point(t, loss, grad, float(vecdot(grad, d)))

        budget = self.group["max_eval"] - self.evaluations
        least = self.group["tolerance_change"] / _largest(d)
        found = strong_wolfe(there, at._replace(t=0.0), at.t, budget, least)
        self.move(found.t, d)
        return found.t, found.loss, found.grad


class _Memory:
    """The last steps and what the gradient did along them: an approximation of the Hessian."""

    def __init__(self, state: Any, size: int) -> None:
        self.size = size
        self.grad: Tensor | None = state.get("prev_flat_grad")
        self.d: Tensor | None = state.get("d")
        self.changes: list[Tensor] = list(state.get("old_dirs") or [])  # of the gradient
        self.steps: list[Tensor] = list(state.get("old_stps") or [])
        self.inverse: list[Tensor] = list(state.get("ro") or [])  # 1 / (change . step)
        self.scale: Any = state.get("H_diag", 1.0)

    def direction(self, grad: Tensor, t: float | None, first: bool) -> Tensor:
        """Where to go from here, the last step having been t along `self.d`."""
        if first:
            self.changes, self.steps, self.inverse, self.scale = [], [], [], 1.0
            d: Tensor = -grad
        else:
            self.learn(grad, t)
            d = self.newton(grad)
        self.grad, self.d = grad, d
        return d

    def learn(self, grad: Tensor, t: float | None) -> None:
        assert self.grad is not None
        assert self.d is not None
        assert t is not None
        change, step = grad - self.grad, self.d * t
        along = vecdot(change, step)
        if not float(along) > _CURVATURE:
            return
        for held, new in (
            (self.changes, change),
            (self.steps, step),
            (self.inverse, 1.0 / along),
        ):
            held.append(new)
            del held[: -self.size]
        self.scale = along / vecdot(change, change)

    def newton(self, grad: Tensor) -> Tensor:
        """The inverse Hessian times -grad, by the two loops over the history."""
        d: Tensor = -grad
        shares: list[Tensor] = []
        for change, step, inverse in reversed(self.history()):
            shares.append(vecdot(step, d) * inverse)
            d = d - change * shares[-1]
        d = d * self.scale
        for (change, step, inverse), share in zip(self.history(), reversed(shares), strict=True):
            d = d + step * (share - vecdot(change, d) * inverse)
        return d

    def history(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        return list(zip(self.changes, self.steps, self.inverse, strict=True))

    def store(self, state: Any) -> None:
        state["d"], state["prev_flat_grad"], state["H_diag"] = self.d, self.grad, self.scale
        state["old_dirs"], state["old_stps"], state["ro"] = self.changes, self.steps, self.inverse


def _largest(x: Tensor) -> float:
    return float(abs(x).max())


# --- the line search -----------------------------------------------------------------------------


def strong_wolfe(
    there: Callable[[float], Point],
    start: Point,
    t: float,
    budget: int,
    least: float,
    c1: float = 1e-4,
    c2: float = 0.9,
) -> Point:
    """A point whose loss fell by at least c1 of what the slope said, and whose slope is at most c2
    of what it was: by brackets and cubic interpolation, in about `budget` evaluations.

    there  evaluates the point at a distance from the start
    least  the width of a bracket that is not worth dividing
    """

    def too_high(at: Point) -> bool:
        return at.loss > start.loss + c1 * at.t * start.slope

    def flat(at: Point) -> bool:
        return abs(at.slope) <= -c2 * start.slope

    before, at = start, there(t)
    used = 0
    while used < budget:  # walk on until a minimum lies behind
        if too_high(at) or (used > 1 and at.loss >= before.loss):
            break
        if flat(at):
            return at
        if at.slope >= 0:
            break
        bounds = (at.t + 0.01 * (at.t - before.t), at.t * 10)
        before, at = at, there(cubic_minimum(before, at, bounds))
        used += 1
    else:
        before = start
    low, high = (before, at) if before.loss <= at.loss else (at, before)
    # PyTorch's search starts where the bracket's ends stand in the order they were found
    first, second = before, at
    stuck = False
    while used < budget and abs(second.t - first.t) >= least:
        left, right = min(first.t, second.t), max(first.t, second.t)
        t = cubic_minimum(first, second, (left, right))
        t, stuck = _inside(t, left, right, stuck)
        at = there(t)
        used += 1
        low_is_first = low is first
        if too_high(at) or at.loss >= low.loss:
            high = at
            first, second = (low, high) if low_is_first else (high, low)
            low, high = (first, second) if first.loss <= second.loss else (second, first)
            continue
        if flat(at):
            return at
        if at.slope * (high.t - low.t) >= 0:
            high = low
        low = at
        first, second = (low, high) if low_is_first else (high, low)
    return low


def _inside(t: float, left: float, right: float, stuck: bool) -> tuple[float, bool]:
    """t, moved away from an end of the bracket that it keeps close to; and whether it was close."""
    margin = 0.1 * (right - left)
    if min(right - t, t - left) >= margin:
        return t, False
    if not stuck and left < t < right:
        return t, True
    return (right - margin if abs(t - right) < abs(t - left) else left + margin), False


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float]) -> float:
    """Where the cubic through two points and their slopes is least, within bounds."""
    low, high = bounds
    if a.t > b.t:
        a, b = b, a
    if a.t == b.t:
        return (low + high) / 2
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    below = b.slope - a.slope + 2 * d2
    if not below:
        return (low + high) / 2
    t = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / below)
    return min(max(t, low), high)
