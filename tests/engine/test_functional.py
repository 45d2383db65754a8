"""Derivatives of functions, vmap, and any nesting of them, held against torch.func."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.errors import (
    ArgumentError,
    AxisError,
    DtypeError,
    GradientError,
    ShapeError,
    TraceError,
)

# torch.func compiles its own helpers in a way it warns about
pytestmark = [
    pytest.mark.needs("float64"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


def constant(values: Any, device: str = "cpu") -> Any:
    return eg.tensor(values, dtype="float64", device=device)


def leaf(values: Any, device: str = "cpu") -> Any:
    return eg.tensor(values, dtype="float64", device=device, requires_grad=True)


def values(x: Any) -> Any:
    return x.detach().to("cpu").numpy()


def close(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    wanted = values(want) if isinstance(want, eg.Tensor) else np.asarray(want)
    assert values(got).shape == wanted.shape
    np.testing.assert_allclose(values(got), wanted, rtol=tolerance, atol=tolerance)


# --- grad and value_and_grad ---------------------------------------------------------------------


def test_grad_argnums(device: str) -> None:
    def f(x: Any, y: Any, k: int = 1) -> Any:
        return (x * x * y).sum() * k

    x, y = constant([1.0, 2.0], device), constant([3.0, 4.0], device)
    close(eg.grad(f)(x, y), [6.0, 16.0])
    close(eg.grad(f, argnums=1)(x, y, k=2), [2.0, 8.0])
    close(eg.grad(f, argnums=-1)(x, y), [1.0, 4.0])
    gx, gy = eg.grad(f, argnums=(0, 1))(x, y)
    close(gx, [6.0, 16.0])
    close(gy, [1.0, 4.0])
    (only,) = eg.grad(f, argnums=(1,))(x, y)
    close(only, [1.0, 4.0])
    assert not gx.requires_grad
    assert eg.grad(f).__name__ == "f"


def test_grad_nested_containers(device: str) -> None:
    params = {
        "layers": [(constant([1.0], device), constant([2.0], device))],
        "head": {"w": constant([[3.0]], device)},
    }

    def loss(p: Any, x: Any) -> Any:
        a, b = p["layers"][0]
        return ((a * x + b) @ p["head"]["w"]).sum()

    value, grads = eg.value_and_grad(loss)(params, constant([5.0], device))
    assert value.item() == 21.0
    assert set(grads) == {"layers", "head"}
    assert isinstance(grads["layers"][0], tuple)
    assert grads["layers"][0][0].item() == 15.0
    assert grads["head"]["w"].tolist() == [[7.0]]


def test_grad_has_aux(device: str) -> None:
    def f(x: Any) -> Any:
        return (x * x).sum(), {"seen": x * 2, "note": "text"}

    x = constant([1.0, 2.0], device)
    g, aux = eg.grad(f, has_aux=True)(x)
    close(g, [2.0, 4.0])
    assert aux["note"] == "text"
    (value, aux), g = eg.value_and_grad(f, has_aux=True)(x)
    assert value.item() == 5.0
    close(aux["seen"], [2.0, 4.0])


def test_grad_of_something_unused_is_zero(device: str) -> None:
    gx, gy = eg.grad(lambda x, y: x * x, (0, 1))(
        constant(3.0, device), constant([1.0, 2.0], device)
    )
    assert gx.item() == 6.0
    assert gy.tolist() == [0.0, 0.0]
    assert eg.grad(lambda x: eg.ones((), dtype="float64"))(constant(3.0, device)).item() == 0.0


def test_grad_leaves_no_trace(device: str) -> None:
    x = leaf([2.0], device)
    eg.grad(lambda v: (v * v).sum())(x)
    assert x.grad is None
    y = constant([2.0], device)
    eg.grad(lambda v: (v * v).sum())(y)
    assert not y.requires_grad


def test_grad_of_captured_tensors(device: str) -> None:
    """What a closure holds gets its gradient through the result."""
    w = leaf([2.0, 3.0], device)
    x = constant([1.0, 1.0], device)
    g = eg.grad(lambda v: (v**3 * w).sum())(x)
    assert g.requires_grad
    close(g, [6.0, 9.0])
    g.sum().backward()
    close(w.grad, [3.0, 3.0])
    value, _ = eg.value_and_grad(lambda v: (v * w).sum())(x)
    (got,) = eg.autograd.grad(value, w)
    close(got, [1.0, 1.0])
    _, slope = eg.jvp(lambda v: v * w, (x,), (x * 2,))
    (got,) = eg.autograd.grad(slope.sum(), w)
    close(got, [2.0, 2.0])
    mapped = eg.vmap(lambda v: v * w)(constant([[1.0, 2.0]], device))
    (got,) = eg.autograd.grad(mapped.sum(), w)
    close(got, [1.0, 2.0])


def test_grad_under_no_grad_is_right_and_constant(device: str) -> None:
    w = leaf([2.0], device)
    with eg.no_grad():
        g = eg.grad(lambda v: (v**3 * w).sum())(w)
        value, h = eg.value_and_grad(lambda v: eg.grad(lambda u: (u**3).sum())(v).sum())(w)
        mapped = eg.vmap(eg.grad(lambda v: (v * v * w).sum()))(w.reshape(1, 1))
    assert g.item() == 24.0
    assert h.item() == 12.0
    assert mapped.item() == 8.0
    assert not any(t.requires_grad for t in (g, value, h, mapped))


def test_no_grad_inside_is_respected(device: str) -> None:
    def f(x: Any) -> Any:
        with eg.no_grad():
            fixed = x * 10
        return (fixed * x).sum()

    x = constant([2.0], device)
    assert eg.grad(f)(x).item() == 20.0
    assert eg.vmap(eg.grad(f))(x.reshape(1, 1)).item() == 20.0


def test_detach_inside(device: str) -> None:
    f = lambda x: (x.detach() * x).sum()  # noqa: E731
    x = constant([3.0], device)
    assert eg.grad(f)(x).item() == 3.0
    assert eg.grad(lambda v: eg.grad(f)(v).sum())(x).item() == 0.0


def test_detach_inside_cuts_every_level(device: str) -> None:
    f = lambda x: (x.detach() * x).sum()  # noqa: E731
    x = constant([3.0], device)
    found = [
        eg.jvp(f, (x,), (x * 0 + 1,))[1].item(),
        eg.hessian(f)(x).item(),
        eg.vmap(eg.grad(lambda v: eg.grad(f)(v).sum()))(x.reshape(1, 1)).item(),
    ]
    assert found == [3.0, 0.0, 0.0]


# --- vjp, jvp, jacobian, hessian -----------------------------------------------------------------


def test_vjp(device: str) -> None:
    x, y = constant([1.0, 2.0], device), constant([3.0, 4.0], device)
    out, pull = eg.vjp(lambda a, b: {"p": a * b, "q": a.sum()}, x, y)
    close(out["p"], [3.0, 8.0])
    assert not out["p"].requires_grad
    one = constant(1.0, device)
    for _ in range(2):  # it may be pulled again
        gx, gy = pull({"p": constant([1.0, 10.0], device), "q": one})
        close(gx, [4.0, 41.0])
        close(gy, [1.0, 20.0])


def test_jvp(device: str) -> None:
    x, y = constant([1.0, 2.0], device), constant([3.0, 4.0], device)
    out, slope = eg.jvp(lambda a, b: (a * b, b), (x, y), (x, y * 0))
    close(out[0], [3.0, 8.0])
    close(slope[0], [3.0, 8.0])
    close(slope[1], [0.0, 0.0])
    out, slope = eg.jvp(lambda d: d["a"] ** 2, ({"a": x},), ({"a": y},))
    close(slope, [6.0, 16.0])
    _, slope = eg.jvp(lambda v: (v > 1).astype("float64"), (x,), (y,))
    close(slope, [0.0, 0.0])


SMOOTH: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda m, x: m.sin(x) * x,
    "matrix": lambda m, x: m.tanh(x @ x.reshape(3, 2)) @ x * 0.3,
    "softmax": lambda m, x: m.softmax(x, -1) * m.exp(x * 0.2),
    "reduction": lambda m, x: (x * x).sum() * x + x.mean(),
    "indexing": lambda m, x: x[:, [2, 0, 0]] * x[0],
}


@pytest.mark.parametrize("name", SMOOTH)
def test_jacobians_and_hessians_like_torch(device: str, name: str) -> None:
    f = SMOOTH[name]
    a = np.random.default_rng(0).uniform(-1, 1, (2, 3))
    x, t = constant(a, device), torch.tensor(a)
    want = torch.func.jacrev(lambda v: f(torch, v))(t).numpy()
    close(eg.jacobian(lambda v: f(eg, v))(x), want)
    close(eg.jacfwd(lambda v: f(eg, v))(x), want)
    want = torch.func.hessian(lambda v: f(torch, v).sum())(t).numpy()
    scalar = lambda v: f(eg, v).sum()  # noqa: E731
    close(eg.hessian(scalar)(x), want)
    close(eg.jacobian(eg.grad(scalar))(x), want)
    close(eg.jacobian(eg.jacfwd(scalar))(x), want)
    close(eg.jacfwd(eg.jacfwd(scalar))(x), want)
    v = np.random.default_rng(1).uniform(-1, 1, (2, 3))
    value, (product,) = eg.hvp(scalar, (x,), (constant(v, device),))
    assert value.item() == pytest.approx(scalar(x).item())
    close(product, np.tensordot(want, v, 2))


def test_jacobian_containers_and_argnums(device: str) -> None:
    def f(p: Any, y: Any) -> Any:
        return {"s": p["a"] * y, "t": (p["b"] * y).sum()}

    p = {"a": constant([1.0, 2.0], device), "b": constant([3.0, 4.0], device)}
    y = constant([5.0, 6.0], device)
    j = eg.jacobian(f)(p, y)
    close(j["s"]["a"], np.diag([5.0, 6.0]))
    close(j["s"]["b"], np.zeros((2, 2)))
    close(j["t"]["b"], [5.0, 6.0])
    both = eg.jacobian(f, argnums=(0, 1))(p, y)
    close(both["s"][1], np.diag([1.0, 2.0]))
    close(eg.jacfwd(f, argnums=1)(p, y)["t"], [3.0, 4.0])


def test_hvp_over_containers(device: str) -> None:
    p = {"a": constant([1.0, 2.0], device), "b": constant(3.0, device)}
    v = {"a": constant([1.0, 0.0], device), "b": constant(1.0, device)}
    value, (hv,) = eg.hvp(lambda q: (q["a"] ** 2 * q["b"]).sum(), (p,), (v,))
    assert value.item() == 15.0
    close(hv["a"], [2 * 3 + 2 * 1, 4.0])
    close(hv["b"], 2.0)


# --- vmap ----------------------------------------------------------------------------------------


def test_vmap_axes(device: str) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2)
    x, y = constant(a, device), constant(b, device)
    close(eg.vmap(lambda u, v: u + v, (0, 1))(x, y), a + b.T)
    close(eg.vmap(lambda u, v: u + v, (1, 0), 1)(x, y), a + b.T)
    close(eg.vmap(lambda u, v: u @ v, (0, None))(x, y), a @ b)
    close(eg.vmap(lambda u: u.sum(), -1)(x), a.sum(axis=0))
    close(eg.vmap(lambda u, s: u * s, (0, None))(x, 2.0), a * 2)
    out = eg.vmap(lambda u: {"same": u, "last": u}, out_axes={"same": 0, "last": -1})(x)
    close(out["same"], a)
    close(out["last"], a.T)
    close(eg.vmap(lambda u: eg.ones((2,), dtype="float64"))(x), np.ones((2, 2)))
    one = eg.vmap(lambda u: (u, eg.ones((1,), dtype="float64")), out_axes=(0, None))(x)[1]
    assert one.shape == (1,)


def test_vmap_over_containers(device: str) -> None:
    batch = {"x": constant(np.ones((4, 2)), device), "y": [constant(np.arange(4.0), device)]}
    close(eg.vmap(lambda d: d["x"].sum() * d["y"][0])(batch), np.arange(4.0) * 2)
    close(
        eg.vmap(lambda d, k: d["x"].sum() * d["y"][0] + k, ({"x": 0, "y": None}, None))(
            {"x": batch["x"], "y": [constant(3.0, device)]}, constant(1.0, device)
        ),
        np.full(4, 7.0),
    )


def test_vmap_nested(device: str) -> None:
    a, b = np.arange(3.0), np.arange(4.0)
    outer = eg.vmap(lambda u: eg.vmap(lambda v: u * v + u)(constant(b, device)))(
        constant(a, device)
    )
    close(outer, a[:, None] * b + a[:, None])
    grid = np.arange(24.0).reshape(2, 3, 4)
    close(eg.vmap(eg.vmap(lambda r: r.sum(), 1), 1)(constant(grid, device)), grid.sum(0))


def test_vmap_randomness(device: str) -> None:
    x = constant(np.ones((5, 100)), device)
    with pytest.raises(ArgumentError, match=r'say what is meant with vmap\(..., randomness="same"'):
        eg.vmap(lambda v: eg.dropout(v))(x)
    same = values(eg.vmap(lambda v: eg.dropout(v), randomness="same")(x))
    assert (same == same[0]).all()
    different = values(eg.vmap(lambda v: eg.dropout(v), randomness="different")(x))
    assert len({row.tobytes() for row in different}) == 5
    eg.manual_seed(1)
    one = values(eg.vmap(lambda v: v * eg.rand(v.shape, device=device), randomness="different")(x))
    eg.manual_seed(1)
    two = values(eg.vmap(lambda v: v * eg.rand(v.shape, device=device), randomness="different")(x))
    assert one.tobytes() == two.tobytes()
    eg.vmap(lambda v: v * 2)(x)  # and nothing is left over after an error
    assert eg.rand((2,)).shape == (2,)
    scaled = eg.vmap(lambda v: v * eg.rand((), device=device), randomness="same")
    nested = eg.vmap(lambda r: scaled(r), randomness="different")
    rows = values(nested(x))
    assert (rows == rows[:, :1]).all()
    assert len(set(rows[:, 0].tolist())) == 5
    with pytest.raises(ArgumentError, match='randomness must be "error", "same" or "different"'):
        eg.vmap(lambda v: v, randomness="some")


def test_vmap_per_example_gradients(device: str) -> None:
    w = constant(np.arange(6.0).reshape(3, 2), device)
    xs = constant(np.random.default_rng(0).normal(size=(4, 3)), device)
    ys = eg.tensor([0, 1, 1, 0], device=device)
    loss = lambda w, x, y: eg.cross_entropy(x @ w, y)  # noqa: E731
    got = eg.vmap(eg.grad(loss), (None, 0, 0))(w, xs, ys)
    want = eg.stack([eg.grad(loss)(w, xs[i], ys[i]) for i in range(4)])
    close(got, want)


# --- nesting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Library:
    """The same transformations by two names."""

    m: Any
    grad: Any
    vmap: Any
    jvp: Any
    reverse: Any
    forward: Any


OURS = Library(eg, eg.grad, eg.vmap, eg.jvp, eg.jacobian, eg.jacfwd)
THEIRS = Library(
    torch, torch.func.grad, torch.func.vmap, torch.func.jvp, torch.func.jacrev, torch.func.jacfwd
)


def contracted(j: Any, x: Any) -> Any:
    return j.reshape((*x.shape, -1)).sum(-1)


# each keeps the shape; tangents depend on x, so that a confused perturbation would show
MOVES: dict[str, Callable[[Library, Any], Any]] = {
    "grad": lambda lib, f: lambda x: lib.grad(lambda u: (f(u) * lib.m.sin(x * u)).sum())(x),
    "vmap": lambda lib, f: lambda x: lib.vmap(f)(x) if len(x.shape) else f(x),
    "jvp": lambda lib, f: lambda x: lib.jvp(lambda u: f(u) * x, (x,), (lib.m.cos(x),))[1],
    "jacobian": lambda lib, f: lambda x: contracted(lib.reverse(lambda u: f(u) * x)(x), x),
    "jacfwd": lambda lib, f: lambda x: contracted(lib.forward(lambda u: f(u) * x)(x), x),
}
NESTINGS = [
    chosen
    for depth in (1, 2, 3)
    for chosen in itertools.product(MOVES, repeat=depth)
    if chosen.count("vmap") < 3
]


def nested(lib: Library, chosen: tuple[str, ...], c: Any) -> Any:
    def f(x: Any) -> Any:
        return lib.m.sin(x) * x * c.sum() + (x * x).sum() * lib.m.exp(x * 0.1)

    for name in reversed(chosen):
        f = MOVES[name](lib, f)
    return f


@pytest.mark.parametrize("first", MOVES)
def test_any_nesting_is_what_torch_says(device: str, first: str) -> None:
    a = np.random.default_rng(3).uniform(-1, 1, (2, 2))
    for chosen in [c for c in NESTINGS if c[0] == first]:
        c, tc = leaf([0.4, 0.7], device), torch.tensor([0.4, 0.7], dtype=torch.float64)
        tc.requires_grad_()
        out = nested(OURS, chosen, c)(constant(a, device))
        want = nested(THEIRS, chosen, tc)(torch.tensor(a))
        print(chosen)  # shown if it fails
        close(out, want.detach().numpy(), 1e-9)
        (g,) = eg.autograd.grad(out.sum(), c)  # and out of it all to what was captured
        (tg,) = torch.autograd.grad(want.sum(), tc)
        close(g, tg.numpy(), 1e-9)


def test_perturbations_are_not_confused(device: str) -> None:
    """d/dx (x * d/dy (x + y)) is 1, not 2 (Siskind and Pearlmutter)."""
    one, two = constant(1.0, device), constant(2.0, device)
    d = lambda f, x: eg.jvp(f, (x,), (eg.ones_like(x),))[1]  # noqa: E731
    assert d(lambda x: x * d(lambda y: x + y, one), one).item() == 1.0
    assert eg.grad(lambda x: x * eg.grad(lambda y: x + y)(one))(one).item() == 1.0
    assert d(lambda x: x * eg.grad(lambda y: x + y)(one), one).item() == 1.0
    assert eg.grad(lambda x: x * d(lambda y: x + y, one))(one).item() == 1.0
    assert d(lambda x: d(lambda y: x * y * y, x), two).item() == 2 * 2.0 + 2.0 * 0 + 2 * 2.0
    assert eg.grad(lambda x: eg.grad(lambda y: x * y * y)(x))(two).item() == 8.0
    deep = lambda x: d(lambda y: d(lambda z: x * y * z, x + y), x * x)  # noqa: E731
    assert d(deep, two).item() == 1.0


def test_vjp_pulled_inside_other_transformations(device: str) -> None:
    x = constant([0.3, 0.4], device)
    _, pull = eg.vjp(lambda v: eg.sin(v) * v, x)
    j = eg.vmap(lambda s: pull(s)[0])(constant(np.eye(2), device))
    close(j, eg.jacobian(lambda v: eg.sin(v) * v)(x))
    _, slope = eg.jvp(lambda s: pull(s)[0], (x,), (constant([1.0, 0.0], device),))
    close(slope, values(j)[0])
    g = eg.grad(lambda s: (pull(s)[0] ** 2).sum())(x)
    close(g, 2 * values(j) @ (values(j).T @ values(x)))


def test_anomaly_mode_and_transformations(device: str) -> None:
    with eg.detect_anomaly():
        x = constant([0.3, 0.4], device)
        close(eg.hessian(lambda v: eg.sin(v).sum())(x), np.diag(-np.sin([0.3, 0.4])))
        close(eg.vmap(eg.grad(eg.sin))(x), np.cos([0.3, 0.4]))


def test_modes_are_restored_after_errors(device: str) -> None:
    x = constant([[1.0, 2.0]], device)

    def fails(v: Any) -> Any:
        raise KeyError("mine")

    for call in (
        lambda: eg.vmap(fails)(x), lambda: eg.jvp(fails, (x,), (x,)), lambda: eg.grad(fails)(x),
        lambda: eg.vmap(eg.grad(fails))(x), lambda: eg.jacobian(fails)(x),
        lambda: eg.hessian(fails)(x), lambda: eg.hvp(fails, (x,), (x,)),
    ):  # fmt: skip
        with pytest.raises(KeyError, match="mine"):
            call()
    assert eg.grad(lambda v: (v * v).sum())(x).tolist() == [[2.0, 4.0]]
    y = leaf([1.0], device)
    assert type((y * 2)._node).__name__ == "Node"  # the fast path again, not the careful one


# --- refusals ------------------------------------------------------------------------------------

X = eg.ones((2, 3), dtype="float64")
REFUSED = {
    "grad of many": (GradientError,
                     r"grad: the function must return one number, it returned shapes "
                     r"\[\(2, 3\)\]", lambda: eg.grad(lambda v: v)(X)),
    "grad of a pair": (GradientError, "must return one number",
                       lambda: eg.grad(lambda v: (v.sum(), v.sum()))(X)),
    "grad of a float": (ArgumentError, "grad: the function must return tensors, got float",
                        lambda: eg.grad(lambda v: 3.0)(X)),
    "grad at a float": (ArgumentError, "with respect to Tensors, got float",
                        lambda: eg.grad(lambda v: v)(3.0)),
    "grad at integers": (DtypeError, "grad: int64 has no derivative; cast it with astype",
                         lambda: eg.grad(lambda v: v.sum())(eg.tensor([1, 2]))),
    "grad complex": (GradientError, "returned complex128; take real",
                     lambda: eg.grad(lambda v: (v * 1j).sum())(X)),
    "argnums": (ArgumentError, "grad: argnums 2, but there are 1 positional arguments",
                lambda: eg.grad(lambda v: v.sum(), 2)(X)),
    "vjp shape": (ShapeError, r"vjp: a gradient float64\[2\] for an output float64\[2, 3\]",
                  lambda: eg.vjp(lambda v: v, X)[1](X[:, 0])),
    "vjp dtype": (ShapeError, r"vjp: a gradient float32\[2, 3\] for an output float64",
                  lambda: eg.vjp(lambda v: v, X)[1](X.astype("float32"))),
    "vjp tree": (ArgumentError, "vjp: the gradient .* must match",
                 lambda: eg.vjp(lambda v: (v, v), X)[1](X)),
    "jvp shape": (ShapeError, r"jvp: a tangent float64\[2\] for an input float64\[2, 3\]",
                  lambda: eg.jvp(lambda v: v, (X,), (X[:, 0],))),
    "jvp count": (ArgumentError, "jvp: tangents .* must match primals",
                  lambda: eg.jvp(lambda v: v, (X,), (X, X))),
    "jvp integers": (DtypeError, "jvp: int64 has no derivative",
                     lambda: eg.jvp(lambda v: v, (eg.tensor(1),), (eg.tensor(1),))),
    "jvp returns": (ArgumentError, "jvp: the function must return tensors, got str",
                    lambda: eg.jvp(lambda v: "x", (X,), (X,))),
    "hvp count": (ArgumentError, "hvp: vectors .* must match", lambda: eg.hvp(eg.sum, (X,), ())),
    "vmap sizes": (ShapeError, r"different sizes: 2 in \(2, 3\), 3 in \(3, 2\)",
                   lambda: eg.vmap(lambda a, b: a)(X, X.reshape(3, 2))),
    "vmap axis": (AxisError, r"vmap: in_axes 2 is out of range for an input of \(2, 3\)",
                  lambda: eg.vmap(lambda a: a, 2)(X)),
    "vmap scalar": (AxisError, "in_axes 0 is out of range", lambda: eg.vmap(eg.sin)(X.sum())),
    "vmap nothing": (ArgumentError, "nothing to map over", lambda: eg.vmap(eg.sin, None)(X)),
    "vmap tree": (ArgumentError, "vmap: in_axes does not match the arguments",
                  lambda: eg.vmap(lambda a, b: a, (0,))(X, X)),
    "vmap out_axes": (AxisError, "vmap: axis 4 is out of range",
                      lambda: eg.vmap(lambda a: a, 0, 4)(X)),
    "vmap out_axes None": (ArgumentError, "out_axes is None for a result that differs by example",
                           lambda: eg.vmap(lambda a: a, 0, None)(X)),
    "vmap returns": (ArgumentError, "vmap: the function must return tensors, got int",
                     lambda: eg.vmap(lambda a: 1)(X)),
    "vmap item": (TraceError, "not known inside jit, vmap",
                  lambda: eg.vmap(lambda a: a * a.sum().item())(X)),
    "vmap if": (TraceError, "not known inside",
                lambda: eg.vmap(lambda a: a if a.sum() > 0 else -a)(X)),
    "vmap mask": (TraceError, r"use where\(\) instead", lambda: eg.vmap(lambda a: a[a > 0])(X)),
    "vmap shapes": (ShapeError, "cannot broadcast",
                    lambda: eg.vmap(lambda a: a + eg.ones((2,), dtype="float64"))(X)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    error, message, run = REFUSED[name]
    with pytest.raises(error, match=message):
        run()
    assert eg.is_grad_enabled()
    assert eg.vmap(lambda a: a * 2)(X).tolist() == (X * 2).tolist()
