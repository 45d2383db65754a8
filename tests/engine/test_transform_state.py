"""State and transformations: what is changed or kept inside vmap, jvp and grad.

A tensor from outside that a function changes is afterwards what a loop of plain calls makes of it,
or untouched, and the call was refused by name. A tensor kept from inside says who made it.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad.core.tensor import Wrapped
from everygrad.errors import TraceError


class Counter(nn.Module):
    """Counts its calls in a buffer that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", eg.zeros((), "int64"))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return eg.tanh(x) * 2


class Replaced(nn.Module):
    """Gives its buffer another tensor, and changes a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", eg.zeros((3,)))
        self.register_buffer("parts", eg.zeros((3,)))

    def forward(self, x: Any) -> Any:
        now = x.reshape((-1, 3)).mean(axis=0).detach()
        self.mean = self.mean * 0.5 + now * 0.5
        self.parts[1:] = now[1:]
        return eg.sin(x) - self.mean


class Loaded(nn.Module):
    """Fills its parameter the first time it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(eg.zeros((3,)))

    def forward(self, x: Any) -> Any:
        with eg.no_grad():
            self.scale[:] = x.reshape((-1, 3)).mean(axis=0).detach() + 1
        return x * self.scale.detach()


def norm(kind: Any, dims: int, **options: Any) -> tuple[Callable[[], Any], tuple[int, ...]]:
    shape = (2, 3, *(2,) * dims)
    return lambda: kind(3, **options), shape


# a module and the shape of one input
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "BatchNorm1d": norm(nn.BatchNorm1d, 0),
    "BatchNorm1d, average": norm(nn.BatchNorm1d, 1, momentum=None),
    "BatchNorm2d": norm(nn.BatchNorm2d, 2),
    "BatchNorm3d": norm(nn.BatchNorm3d, 3),
    "BatchNorm1d, no statistics": norm(nn.BatchNorm1d, 0, track_running_stats=False),
    "BatchNorm1d, evaluation": (lambda: nn.BatchNorm1d(3).eval(), (2, 3)),
    "InstanceNorm1d": norm(nn.InstanceNorm1d, 1, track_running_stats=True),
    "InstanceNorm2d": norm(nn.InstanceNorm2d, 2, track_running_stats=True),
    "InstanceNorm3d": norm(nn.InstanceNorm3d, 3, track_running_stats=True),
    "BCELoss": (lambda: _pair(nn.BCEWithLogitsLoss(pos_weight=eg.ones((3,)))), (2, 3)),
    "Counter": (Counter, (2, 3)),
    "Replaced": (Replaced, (2, 3)),
    "Loaded": (Loaded, (2, 3)),
    "in a Sequential": (lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), (2, 3)),
}


def _pair(loss: Any) -> Any:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = loss

        def forward(self, x: Any) -> Any:
            return self.loss(x, eg.ones(x.shape))

    return Pair()


def number(f: Any) -> Any:
    return lambda v: (f(v) ** 2).sum()


def each(f: Any, xs: Any) -> None:
    for i in range(xs.shape[0]):
        f(xs[i])


def once(f: Any, xs: Any) -> None:
    f(xs[0])


# a transformation of f on a batch of inputs, and the plain calls it stands for
TRANSFORMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], None]]] = {
    "vmap": (lambda f, xs: eg.vmap(f)(xs), each),
    "vmap, jitted": (lambda f, xs: eg.jit(eg.vmap(f))(xs), each),
    "vmap of one": (lambda f, xs: eg.vmap(f)(xs[:1]), once),
    "vmap of grad": (lambda f, xs: eg.vmap(eg.grad(number(f)))(xs), each),
    "vmap of jvp": (lambda f, xs: eg.vmap(lambda v: eg.jvp(f, (v,), (v,))[1])(xs), each),
    "vmap of jacfwd": (lambda f, xs: eg.vmap(eg.jacfwd(number(f)))(xs), each),
    "vmap of hessian": (lambda f, xs: eg.vmap(eg.hessian(number(f)))(xs), each),
    "vmap of checkpoint": (lambda f, xs: eg.vmap(lambda v: eg.checkpoint(f, v))(xs), each),
    "vmap of something else": (
        lambda f, xs: eg.vmap(lambda v: f(eg.ones(v.shape)).sum() + v)(xs),
        lambda f, xs: each(lambda v: f(eg.ones(v.shape)), xs),
    ),
    "grad of vmap": (lambda f, xs: eg.grad(lambda v: eg.vmap(number(f))(v).sum())(xs), each),
    "jvp of vmap": (lambda f, xs: eg.jvp(eg.vmap(f), (xs,), (xs,)), each),
    "grad": (lambda f, xs: eg.grad(number(f))(xs[0]), once),
    "grad of grad": (
        lambda f, xs: eg.grad(lambda v: (eg.grad(number(f))(v) ** 2).sum())(xs[0]),
        once,
    ),
    "vjp": (lambda f, xs: eg.vjp(f, xs[0]), once),
    "jvp": (lambda f, xs: eg.jvp(f, (xs[0],), (xs[0],)), once),
    "jvp, jitted": (lambda f, xs: eg.jit(lambda v: eg.jvp(f, (v,), (v,)))(xs[0]), once),
    "jvp of grad": (lambda f, xs: eg.jvp(eg.grad(number(f)), (xs[0],), (xs[0],)), once),
    "jvp of jvp": (
        lambda f, xs: eg.jvp(lambda v: eg.jvp(f, (v,), (v,))[1], (xs[0],), (xs[0],)),
        once,
    ),
    "jacobian": (lambda f, xs: eg.jacobian(f)(xs[0]), once),
    "jacfwd": (lambda f, xs: eg.jacfwd(f)(xs[0]), once),
    "hessian": (lambda f, xs: eg.hessian(number(f))(xs[0]), once),
    "hvp": (lambda f, xs: eg.hvp(number(f), (xs[0],), (xs[0],)), once),
    "checkpoint": (lambda f, xs: eg.checkpoint(f, xs[0]), once),
}


def state(module: Any) -> dict[str, Any]:
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}


def is_plain(t: Any) -> bool:
    return not isinstance(t._data, Wrapped) and (t._node is None or t._node.level == 0)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("layer", LAYERS)
def test_state_is_the_loops_or_untouched(layer: str, name: str) -> None:
    make, shape = LAYERS[layer]
    transform, plainly = TRANSFORMS[name]
    eg.manual_seed(0)
    module = make()
    xs = eg.randn((4, *shape))
    held = state(module)
    before = {k: t.numpy().copy() if not t.requires_grad else t.detach().numpy().copy()
              for k, t in held.items()}  # fmt: skip
    payloads = {k: t._data for k, t in held.items()}
    eg.manual_seed(0)
    twin = make()
    for t, value in zip(state(twin).values(), before.values(), strict=True):
        with eg.no_grad():
            t[...] = eg.tensor(value)
    plainly(twin, xs)
    refused: TraceError | None = None
    try:
        transform(module, xs)
    except TraceError as error:
        refused = error
    after = state(module)
    for k, t in after.items():
        assert is_plain(t), f"{k} holds {t!r}"
        if refused is not None:
            assert t is held[k]
            assert t._data is payloads[k], f"{k} was changed"
        else:
            want = state(twin)[k].detach().numpy()
            np.testing.assert_allclose(t.detach().numpy(), want, 1e-5, 1e-6, err_msg=k)
    changed = any(not np.array_equal(t.detach().numpy(), before[k]) for k, t in state(twin).items())
    if refused is not None:
        assert changed, f"refused, though nothing is changed: {refused}"
        wanted = rf"vmap: \w+\.\w+, of shape \(.*\), is outside .* at {re.escape(__file__)}:\d+; "
        assert re.match(wanted, str(refused)), refused
    else:  # what stands for many calls is never taken for one
        assert plainly is once or not changed
    module(xs[0])  # and it works as before


def test_a_value_with_a_derivative_is_refused_and_detached_is_taken() -> None:
    for inside, name in ((lambda f, x: eg.jvp(f, (x,), (x,)), "jvp"),
                         (lambda f, x: eg.jacfwd(f)(x), "jvp"),
                         (lambda f, x: eg.jvp(eg.grad(f), (x,), (x,)), "grad")):  # fmt: skip
        total = eg.zeros((3,))
        before = total._data

        def keeps(v: Any, total: Any = total) -> Any:
            total += v * 2
            return (v * v).sum()

        def cuts(v: Any, total: Any = total) -> Any:
            total += v.detach() * 2
            return (v * v).sum()

        with pytest.raises(TraceError, match=rf"{name}: .*derivative inside {name} only.*detach"):
            inside(keeps, eg.ones((3,)))
        assert total._data is before
        inside(cuts, eg.ones((3,)))
        assert total.tolist() == [2.0, 2.0, 2.0]


def test_gradients_written_inside() -> None:
    w = eg.tensor([1.0, 2.0], requires_grad=True)

    def sets(v: Any) -> Any:
        w.grad = v * 2
        return v

    def adds(v: Any) -> Any:
        (w * 3).sum().backward()
        return v

    with pytest.raises(TraceError, match=r"vmap: a tensor with its \.grad, of shape \(2,\)"):
        eg.vmap(sets)(eg.ones((3, 2)))
    assert w.grad is None
    with pytest.raises(TraceError, match="once for each of the 3 examples"):
        eg.vmap(adds)(eg.ones((3, 2)))
    assert w.grad is None
    eg.jvp(adds, (eg.ones((2,)),), (eg.ones((2,)),))
    assert w.grad is not None
    assert w.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("name", ["vmap", "jvp", "vmap of grad", "jacfwd", "jvp of grad"])
def test_an_exception_inside_leaves_everything_as_it_was(name: str) -> None:
    bn, counter = nn.BatchNorm1d(3), Counter()
    w = eg.tensor([1.0], requires_grad=True)
    eg.manual_seed(3)
    want = eg.default_generator.get_state().tolist()

    def f(v: Any) -> Any:
        out = counter(bn(v))
        w.grad = eg.ones((1,))
        bn.running_var = bn.running_var * 2
        bn.weight = nn.Parameter(eg.zeros((3,)))
        counter.calls.requires_grad = False
        raise KeyError("mine")
        return out

    held = [(m, k, t, t._data) for m in (bn, counter) for k, t in state(m).items()]
    with pytest.raises(KeyError, match="mine"):
        TRANSFORMS[name][0](f, eg.randn((4, 2, 3), generator=eg.Generator(1)))
    for module, k, t, payload in held:
        assert state(module)[k] is t
        assert t._data is payload
    assert w.grad is None
    assert eg.default_generator.get_state().tolist() == want


# --- what works -----------------------------------------------------------------------------------


def test_tensors_made_inside_may_be_changed() -> None:
    xs = eg.tensor(np.arange(6.0).reshape(3, 2))

    def f(v: Any) -> Any:
        total = eg.zeros((2,))
        total += v
        total[0] = v[1]
        count = eg.zeros((2,))
        count += 1
        cycle: list[Any] = [total, count]
        cycle.append(cycle)  # only the collector frees it
        return total, count, count * 1

    def g(v: Any) -> Any:
        return eg.grad(lambda u: (f(u * u)[0] * u).sum())(v)

    gc.disable()
    try:
        out, count, again = eg.vmap(f, out_axes=(0, None, 0))(xs)
        per_example = eg.vmap(g)(xs)
        eg.jvp(g, (xs[0],), (xs[0],))
    finally:
        gc.enable()
    assert out.tolist() == [[1.0, 1.0], [3.0, 3.0], [5.0, 5.0]]
    assert count.tolist() == [1.0, 1.0]
    assert again.shape == (3, 2)
    want = [[x[1] ** 2, 2 * x[1] * x[0] + 3 * x[1] ** 2] for x in xs.tolist()]
    np.testing.assert_allclose(per_example.numpy(), want)


def test_the_whole_heap_is_walked_only_for_a_refusal() -> None:
    """A cycle that the function left is young: looking for it does not take what the heap takes."""
    walked: list[int] = []
    buffer = eg.zeros(())

    def note(phase: str, info: dict[str, int]) -> None:
        walked.extend([info["generation"]] if phase == "start" else [])

    def inside(x: Any) -> Any:
        total = eg.zeros(())
        total += x.sum()
        cycle: list[Any] = [total]
        cycle.append(cycle)
        return total * 2.0

    def outside(x: Any) -> Any:
        buffer[...] = x.sum()
        return x

    gc.collect()
    gc.disable()
    gc.callbacks.append(note)
    try:
        assert eg.vmap(inside)(eg.ones((3, 2))).tolist() == [4.0, 4.0, 4.0]
        assert walked == [0]
        with pytest.raises(TraceError, match="differs by example"):
            eg.vmap(outside)(eg.ones((3, 2)))
        assert walked[-1] == 2
    finally:
        gc.callbacks.remove(note)
        gc.enable()


def test_constants_and_modules_may_be_made_inside_and_kept() -> None:
    kept: dict[str, Any] = {}

    def f(v: Any) -> Any:
        if not kept:
            kept["layer"] = nn.Linear(2, 2)
            kept["mask"] = eg.ones((2,)) * 3
        return kept["layer"](v) * kept["mask"]

    eg.jvp(f, (eg.ones((2,)),), (eg.ones((2,)),))
    assert kept["mask"].tolist() == [3.0, 3.0]
    assert all(is_plain(p) for p in kept["layer"].parameters())
    eg.vmap(f)(eg.ones((3, 2))).sum().backward()
    assert kept["layer"].weight.grad.shape == (2, 2)
    kept.clear()
    eg.vmap(f, randomness="same")(eg.ones((3, 2)))
    assert all(is_plain(p) for p in kept["layer"].parameters())


def test_random_numbers_move_their_generator_once() -> None:
    mine = eg.Generator(5)
    for mode in ("same", "different"):
        before = mine.get_state().tolist()
        eg.vmap(lambda v: v + eg.rand((2,), generator=mine), randomness=mode)(eg.ones((3, 2)))
        assert mine.get_state().tolist() != before


def test_auxiliary_results_of_nested_grads() -> None:
    xs = eg.tensor(np.arange(1.0, 7.0).reshape(3, 2))

    def f(v: Any) -> Any:
        h = v * v
        h += 1
        return h.sum(), {"h": h, "name": "mine"}

    slope, aux = eg.vmap(lambda v: (lambda g, a: (g, a["h"]))(*eg.grad(f, has_aux=True)(v)))(xs)
    assert slope.tolist() == (xs * 2).tolist()
    assert aux.tolist() == (xs * xs + 1).tolist()
    (_, aux), slope = eg.value_and_grad(f, has_aux=True)(xs[0])
    assert aux["name"] == "mine"
    assert not aux["h"].requires_grad


def test_an_argument_changed_inside_grad_keeps_its_place() -> None:
    """The gradient is the one at the argument, not at what its name stood for at the end."""

    def f(v: Any) -> Any:
        v *= 3
        return (v * v).sum()

    x = eg.tensor([1.0, 2.0], requires_grad=True)
    assert eg.grad(f)(x * 1).tolist() == [18.0, 36.0]


# --- what escapes ---------------------------------------------------------------------------------


def keeping(name: str) -> tuple[Any, int]:
    """A tensor kept from inside a transformation, and the line that made it."""
    kept: list[Any] = []

    def f(v: Any) -> Any:
        kept.append(eg.exp(v) * 2)
        return eg.sin(v)

    line = f.__code__.co_firstlineno + 1
    TRANSFORMS[name][0](f, eg.ones((4, 3)))
    return kept[0], line


ESCAPES = ["vmap", "jvp", "vmap of grad", "vmap of jvp", "jvp of grad", "jacfwd", "hessian",
           "jvp of jvp", "grad of vmap", "vmap of checkpoint"]  # fmt: skip

USES: dict[str, Callable[[Any], Any]] = {
    "an op": lambda t: eg.tanh(t),
    "two of them": lambda t: t * t,
    "with a plain one": lambda t: eg.ones((3,)) + t,
    "a sum": lambda t: t.sum(),
    "an index": lambda t: t[0],
    "a product": lambda t: t @ eg.ones((3, 3)),
    "numpy": lambda t: t.detach().numpy(),
    "tolist": lambda t: t.detach().tolist(),
    "float": lambda t: float(t.detach()[0]),
    "bool": lambda t: bool((t > 0).all()),
    "jit, given": lambda t: eg.jit(lambda v: v * 2)(t),
    "jit, captured": lambda t: eg.jit(lambda v: v * t)(eg.ones((3,))),
    "another vmap": lambda t: eg.vmap(lambda v: v * t)(eg.ones((4, 3))),
    "another jvp": lambda t: eg.jvp(lambda v: v * t, (eg.ones((3,)),), (eg.ones((3,)),)),
    "another grad": lambda t: eg.grad(lambda v: (v * t).sum())(eg.ones((3,))),
    "a vmap over it": lambda t: eg.vmap(eg.exp)(t),
    "to": lambda t: t.astype("float64"),
    "an assignment": lambda t: eg.zeros((3,)).__iadd__(t),
    "backward": lambda t: (t * eg.ones((3,), requires_grad=True)).sum().backward(),
}  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
def test_what_escapes_names_itself(name: str) -> None:
    t, line = keeping(name)
    words = "|".join({"jvp", "grad", "jacfwd", "vmap"})
    wanted = rf"made at {re.escape(__file__)}:{line} inside ({words}) was kept beyond its call"
    for use, run in USES.items():
        if use in ("numpy", "tolist", "float") and "vmap" not in name:
            # a jvp has values below its tangents: detach() of one is that value
            np.testing.assert_allclose(run(t), (2 * np.exp(np.ones(3)))[0], 1e-6)
        else:
            with pytest.raises(TraceError, match=wanted):
                run(t)
    assert t.shape == (3,)
    assert re.search(wanted, repr(t))
    assert re.search(wanted, f"{t}")


def test_inside_it_is_as_before() -> None:
    """A payload is in force while its transformation is, and where a checkpoint computes again."""
    xs = eg.tensor(np.linspace(0.1, 1, 6).reshape(3, 2))

    def f(v: Any) -> Any:
        h = eg.exp(v)
        assert "kept beyond" not in repr(h)
        with pytest.raises(TraceError, match="values are not known inside jit, vmap"):
            h.detach().numpy()
        return eg.checkpoint(lambda u: eg.tanh(u * h), v)

    got = eg.grad(lambda v: eg.vmap(f)(v).sum())(xs)
    want = eg.grad(lambda v: eg.tanh(v * eg.exp(v)).sum())(xs)
    np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-6)


@pytest.mark.parametrize("jit", [lambda f: f, eg.jit], ids=["eager", "jitted"])
def test_a_result_may_be_changed_in_place(jit: Any) -> None:
    """A tensor made inside, changed in place and returned is the function's own."""

    def f(x: Any) -> Any:
        y = x * 2.0
        y *= y
        return [y]

    x = eg.tensor([1.5])
    value, slope = jit(lambda x: eg.jvp(f, (x,), (eg.ones_like(x),)))(x)
    assert (value[0].item(), slope[0].item()) == (9.0, 12.0)
    mapped = jit(eg.vmap(eg.grad(lambda x: f(x)[0].sum())))(eg.tensor([[1.5], [2.0]]))
    assert mapped.tolist() == [[12.0], [16.0]]
