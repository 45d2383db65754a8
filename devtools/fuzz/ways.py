"""The ways to run one program, each against another that must give the same.

A way takes a case and yields what to compare: got, wanted, and whether every bit must be equal.
Results are copied to NumPy at once, so that a later call cannot change what an earlier one gave.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from devtools.fuzz.surroundings import amid
from everygrad._jit.jit import jit
from everygrad.autograd.modes import no_grad
from everygrad.autograd.transforms.checkpoint import checkpoint
from everygrad.autograd.transforms.functional import grad, jvp, vjp
from everygrad.autograd.transforms.vmap import vmap
from everygrad.backends.thread_pool import num_threads, set_num_threads
from everygrad.core.tensor import Tensor
from everygrad.ops.elementwise.math import cos
from everygrad.ops.python.creation import arange, ones_like, tensor, zeros, zeros_like
from everygrad.ops.shape.joining import stack
from everygrad.optim import SGD

Arrays = list[Any]
Function = Callable[..., Any]
NARROW = ("webgpu",)  # devices without float64
SLOPE, BEND, VALUE = 2, 3, 1  # how often rounding is magnified: order of derivative plus one


class Pair(NamedTuple):
    """Two results that must agree."""

    what: str
    got: Arrays
    want: Arrays
    order: int = VALUE
    exact: bool = False


Way = Callable[["Case"], Iterator[Pair]]


def arrays(tensors: Any) -> Arrays:
    """Copies of the values."""
    if isinstance(tensors, Tensor):
        tensors = [tensors]
    return [np.array(t.detach().numpy()) for t in tensors]


class Case:
    """A function of tensors that returns a list of tensors, and arguments for it.

    `moved` gives the same on another device.
    """

    def __init__(
        self,
        f: Function,
        args: Sequence[Tensor],
        moved: Callable[[str], Case] | None = None,
        device: str = "cpu",
    ) -> None:
        self.f = f
        self.args = list(args)
        self.moved = moved
        self.device = device
        self.wide = "float32" if device in NARROW else "float64"
        self.places = [i for i, a in enumerate(args) if a.dtype.is_float]
        self.floats = [self.args[i] for i in self.places]

    def of_floats(self, f: Function) -> Function:
        """f as a function of the floating arguments alone."""

        def run(*floats: Tensor) -> Any:
            given = list(self.args)
            for place, x in zip(self.places, floats, strict=True):
                given[place] = x
            return f(*given)

        return run

    def loss(self, f: Function | None = None) -> Function:
        """A number that weighs every element of every floating result differently."""
        run = self.of_floats(f or self.f)

        def total(*floats: Tensor) -> Tensor:
            out = zeros((), self.wide, self.device)
            for k, o in enumerate(run(*floats)):
                if o.dtype.is_float and o.size:
                    places = arange(o.size, dtype=self.wide, device=self.device).reshape(o.shape)
                    out = out + (o * cos(places + k).astype(o.dtype)).sum().astype(self.wide)
            return out

        return total

    def grad(self, f: Function | None = None) -> Function:
        return grad(self.loss(f), tuple(range(len(self.floats))))

    def bend(self) -> Function:
        """The gradient of the sum of the squares of the gradient."""
        slope = self.grad()

        def squares(*floats: Tensor) -> Tensor:
            total = zeros((), dtype="float64")
            for g in slope(*floats):
                total = total + (g * g).sum().astype("float64")
            return total

        return grad(squares, tuple(range(len(self.floats))))

    def nearby(self, share: float = 1e-3) -> list[Tensor]:
        """Arguments a little smaller."""
        return [a * (1 - share) if a.dtype.is_float else a for a in self.args]

    def leaves(self) -> list[Tensor]:
        """The floating arguments as leaves of their own."""
        return [x.detach().requires_grad_() for x in self.floats]


def on_threads(count: int, f: Function, args: Sequence[Tensor]) -> Arrays:
    before = num_threads()
    set_num_threads(count)
    try:
        return arrays(f(*args))
    finally:
        set_num_threads(before)


def compiled(f: Function, args: Sequence[Tensor], order: int) -> Iterator[Pair]:
    """jit(f) against f: traced, replayed, on other numbers of threads."""
    want = arrays(f(*args))
    jitted = jit(f)
    out = jitted(*args)
    first = arrays(out)
    yield Pair("traced", first, want, order)
    yield Pair("replayed", arrays(jitted(*args)), first, order, exact=True)
    for count in (1, 2):
        what = f"replayed on {count} threads"
        yield Pair(what, on_threads(count, jitted, args), first, order, exact=True)
    yield Pair("the first result, later", arrays(out), first, order, exact=True)


def eager(case: Case) -> Iterator[Pair]:
    """The program itself: it runs, twice alike, and changes no argument."""
    before = arrays(case.args)
    first = arrays(case.f(*case.args))
    yield Pair("again", arrays(case.f(*case.args)), first, exact=True)
    yield Pair("the arguments, after", arrays(case.args), before, exact=True)


def values(case: Case) -> Iterator[Pair]:
    """jit of the program."""
    yield from compiled(case.f, case.args, VALUE)
    jitted = jit(case.f)
    jitted(*case.args)
    near = case.nearby()
    yield Pair("replayed on other values", arrays(jitted(*near)), arrays(case.f(*near)))


def gradient(case: Case) -> Iterator[Pair]:
    """jit of the gradient."""
    yield from compiled(case.grad(), case.floats, SLOPE)


def through(case: Case) -> Iterator[Pair]:
    """The gradient of a jitted function, as a loss and with several results."""
    want = arrays(case.grad()(*case.floats))
    yield Pair("grad of jit", arrays(case.grad(jit(case.f))(*case.floats)), want, SLOPE)
    jitted = jit(case.f)
    for what in ("vjp of jit, traced", "vjp of jit, replayed"):
        yield Pair(what, pulled(case, jitted), pulled(case, case.f), SLOPE)
    for x in (leaves := case.leaves()):
        x.requires_grad_()
    loss = jit(case.loss())
    if (out := loss(*leaves)).requires_grad:
        out.backward()
        yield Pair("backward of jit", filled(leaves), want, SLOPE)


def filled(leaves: Sequence[Tensor]) -> Arrays:
    """Gradients, zeros where there is none."""
    return arrays([zeros_like(x) if x.grad is None else x.grad for x in leaves])


def pulled(case: Case, f: Function) -> Arrays:
    """Ones pulled back from every floating result."""
    run = case.of_floats(f)
    out, pull = vjp(lambda *xs: [o for o in run(*xs) if o.dtype.is_float], *case.floats)
    return arrays(pull([ones_like(o) for o in out]))


def second(case: Case) -> Iterator[Pair]:
    """The second order, jitted."""
    yield from compiled(case.bend(), case.floats, BEND)


def checkpointed(case: Case) -> Iterator[Pair]:
    """The program checkpointed, eagerly and jitted, once and inside itself."""

    def again(*args: Tensor) -> Any:
        return checkpoint(case.f, *args)

    def twice(*args: Tensor) -> Any:
        return checkpoint(again, *args)

    want = arrays(case.grad()(*case.floats))
    yield Pair("values", arrays(again(*case.args)), arrays(case.f(*case.args)))
    yield Pair("gradients", arrays(case.grad(again)(*case.floats)), want, SLOPE)
    yield Pair("nested", arrays(case.grad(twice)(*case.floats)), want, SLOPE)
    jitted = jit(case.grad(again))
    for what in ("jitted", "jitted, replayed"):
        yield Pair(what, arrays(jitted(*case.floats)), want, SLOPE)


def workers(case: Case) -> Iterator[Pair]:
    """backward on two threads: the same bits."""
    found = []
    for count in (1, 2):
        leaves = case.leaves()
        out = case.loss()(*leaves)
        if not out.requires_grad:
            return
        out.backward(workers=count)
        found.append(filled(leaves))
    yield Pair("workers=2", found[1], found[0], SLOPE, exact=True)
    yield Pair("grad", found[0], arrays(case.grad()(*case.floats)), SLOPE)


def forward(case: Case) -> Iterator[Pair]:
    """Forward mode is the transpose of reverse mode, and compiles."""
    if not case.floats:
        return
    run = case.loss()
    rng = np.random.default_rng(0)
    moves = [tensor(rng.uniform(-1, 1, x.shape), dtype=x.dtype) for x in case.floats]
    value, slope = jvp(run, tuple(case.floats), tuple(moves))
    grads = arrays(case.grad()(*case.floats))
    pairs = zip(grads, arrays(moves), strict=True)
    inner = sum(np.sum(g.astype(np.float64) * u.astype(np.float64)) for g, u in pairs)
    yield Pair("value", arrays(value), arrays(run(*case.floats)))
    yield Pair("jvp and vjp", arrays(slope), [np.asarray(inner)], SLOPE)
    outs = jvp(case.of_floats(case.f), tuple(case.floats), tuple(moves))

    def both(*xs: Tensor) -> Any:
        return jvp(case.of_floats(case.f), xs, tuple(moves))

    jitted = jit(both)
    for what in ("jit of jvp", "jit of jvp, replayed"):
        got = jitted(*case.floats)
        for g, w in zip(got, outs, strict=True):
            yield Pair(what, arrays(g), arrays(w), SLOPE)


def mapped(case: Case) -> Iterator[Pair]:
    """vmap over a batch of two against a loop, eagerly and jitted; and of the gradient."""
    if not case.floats:
        return
    near = [x * 0.999 for x in case.floats]
    batch = [stack([a, b]) for a, b in zip(case.floats, near, strict=True)]
    for what, f, order in (
        ("values", case.of_floats(case.f), VALUE),
        ("grads", case.grad(), SLOPE),
    ):
        one, two = arrays(f(*case.floats)), arrays(f(*near))
        want = [np.stack(p) for p in zip(one, two, strict=True)]
        yield Pair(what, arrays(vmap(f)(*batch)), want, order)
        yield Pair(f"{what}, jitted", arrays(jit(vmap(f))(*batch)), want, order)


def steps(case: Case, compile: bool, make: Callable[[list[Tensor]], Any]) -> Arrays:
    """Parameters, results and old values after three steps of descent inside one function."""
    params = case.leaves()
    loss = case.loss()
    optimizer = make(params)

    def step() -> Any:
        for p in params:
            p.grad = None
        out = loss(*params)
        if out.requires_grad:
            out.backward()
        if optimizer is not None:
            optimizer.step()
            return out
        with no_grad():
            for p in params:
                if p.grad is not None:
                    p -= 0.01 * p.grad
        return [out, *(p.detach() for p in params)]

    run = jit(step) if compile else step
    seen: list[Tensor] = []
    for _ in range(3):
        seen += [p.detach() for p in params]
        out = run()
        seen += [out] if isinstance(out, Tensor) else out
    return arrays([*seen, *params])


def descent(case: Case) -> Iterator[Pair]:
    """Training steps inside jit, by hand and by an optimiser with state."""
    if not case.floats:
        return
    for what, make in (
        ("by hand", lambda params: None),
        ("SGD", lambda params: SGD(params, lr=0.01, momentum=0.9)),
    ):
        yield Pair(what, steps(case, True, make), steps(case, False, make), SLOPE)


def assigned(case: Case) -> Iterator[Pair]:
    """A function that gives its arguments other values, jitted and not."""

    def changing(*args: Tensor) -> Any:
        out = case.f(*args)
        for a in args:
            if a.dtype.is_float:
                a *= 0.5
        return [*out, *case.f(*args)]

    found = []
    for run in (changing, jit(changing)):
        given = [a.clone() for a in case.args]
        before = [a.detach() for a in given]
        made: Arrays = []
        for _ in range(2):  # copied each time: a result may be an argument itself
            made += arrays(run(*given))
        found.append([*made, *arrays([*given, *before])])
    yield Pair("results and arguments", found[1], found[0])


def inside(case: Case) -> Iterator[Pair]:
    """A jitted function inside other transformations, and inside another jitted one."""
    jitted = jit(case.f)
    whole = jit(lambda *args: jitted(*args))
    want = arrays(case.f(*case.args))
    yield Pair("jit of jit", arrays(whole(*case.args)), want)
    with no_grad():
        yield Pair("under no_grad", arrays(jitted(*case.args)), want)
    if not case.floats:
        return
    slopes = arrays(case.grad()(*case.floats))
    again = case.grad(lambda *args: checkpoint(jitted, *args))
    yield Pair("checkpoint of jit", arrays(again(*case.floats)), slopes, SLOPE)
    yield Pair("jit of grad of jit", arrays(jit(case.grad(jitted))(*case.floats)), slopes, SLOPE)
    moves = tuple(ones_like(x) for x in case.floats)
    along = [jvp(case.of_floats(f), tuple(case.floats), moves) for f in (jitted, case.f)]
    for got, wanted in zip(*along, strict=True):
        yield Pair("jvp of jit", arrays(got), arrays(wanted), SLOPE)
    batch = [stack([x, x]) for x in case.floats]
    many = [arrays(vmap(case.of_floats(f))(*batch)) for f in (jitted, case.f)]
    yield Pair("vmap of jit", many[0], many[1])


def surrounded(case: Case) -> Iterator[Pair]:
    """The program amid Python objects that change between calls."""
    seed = zlib.crc32(b"".join(a.tobytes() for a in arrays(case.args)))
    run, changes = amid(case.f, seed)
    jitted = jit(run)
    what = "at first"
    for _ in range(6):
        yield Pair(what, arrays(jitted(*case.args)), arrays(run(*case.args)))
        what = next(changes)


def printed(case: Case) -> Iterator[Pair]:
    """The compiler's own check holds, and what it says of the program can be printed."""
    jit(case.f, verify=True)(*case.args)  # raises where a kernel differs from its op
    text = str(jit(case.f).lower(*case.args))
    yield Pair("lower()", [np.asarray(bool(text))], [np.asarray(True)], exact=True)


def elsewhere(device: str) -> Way:
    """The program and its gradient on another device, against the CPU."""

    def way(case: Case) -> Iterator[Pair]:
        assert case.moved is not None, "this way needs a program, not only its function"
        there = case.moved(device)
        want = arrays(case.f(*case.args))
        yield Pair("eager", arrays(there.f(*there.args)), want)
        jitted = jit(there.f)
        yield Pair("traced", arrays(jitted(*there.args)), want)
        yield Pair("replayed", arrays(jitted(*there.args)), want)
        slopes = arrays(case.grad()(*case.floats))
        yield Pair("gradient", arrays(there.grad()(*there.floats)), slopes, SLOPE)

    return way


WAYS: dict[str, Way] = {
    "eager": eager,
    "jit": values,
    "jit-grad": gradient,
    "grad-jit": through,
    "second": second,
    "checkpoint": checkpointed,
    "workers": workers,
    "jvp": forward,
    "vmap": mapped,
    "sgd": descent,
    "assign": assigned,
    "inside": inside,
    "surroundings": surrounded,
    "lower": printed,
}
DEVICES: dict[str, Way] = {name: elsewhere(name) for name in ("webgpu", "cuda")}
