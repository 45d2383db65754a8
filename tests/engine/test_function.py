"""Functions with derivatives of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import FreedGraphError, FunctionError, GradientError, ShapeError

pytestmark = pytest.mark.needs("float64")


def leaf(values: Any, device: str = "cpu") -> Any:
    return eg.tensor(values, dtype="float64", device=device, requires_grad=True)


def constant(values: Any, device: str = "cpu") -> Any:
    return eg.tensor(values, dtype="float64", device=device)


def values(x: Any) -> Any:
    return x.detach().to("cpu").numpy()


def close(got: Any, want: Any) -> None:
    wanted = values(want) if isinstance(want, eg.Tensor) else want
    np.testing.assert_allclose(values(got), wanted, rtol=1e-12, atol=1e-12)


class Cube(eg.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * x * x

    @staticmethod
    def vjp(g: Any, out: Any, x: Any) -> Any:
        return 3 * x * x * g

    @staticmethod
    def jvp(tangents: Any, out: Any, x: Any) -> Any:
        return 3 * x * x * tangents[0]


class Polar(eg.Function):
    """Two results of different shapes from two inputs and a parameter."""

    @staticmethod
    def forward(r: Any, angle: Any, scale: float = 1.0) -> Any:
        return r * eg.cos(angle) * scale, (r * eg.sin(angle)).sum(axis=0)

    @staticmethod
    def vjp(g: Any, out: Any, r: Any, angle: Any, scale: float = 1.0) -> Any:
        gx, gy = g
        x, _ = out
        return (
            gx * eg.cos(angle) * scale + gy * eg.sin(angle),
            -gx * r * eg.sin(angle) * scale + gy * (x / scale),
        )

    @staticmethod
    def jvp(tangents: Any, out: Any, r: Any, angle: Any, scale: float = 1.0) -> Any:
        tr, ta = tangents
        first = (tr * eg.cos(angle) - r * eg.sin(angle) * ta) * scale
        return first, (tr * eg.sin(angle) + r * eg.cos(angle) * ta).sum(axis=0)


def cube(x: Any) -> Any:
    return x**3


def polar(r: Any, angle: Any, scale: float = 1.0) -> Any:
    return r * eg.cos(angle) * scale, (r * eg.sin(angle)).sum(axis=0)


# --- use -----------------------------------------------------------------------------------------


def test_first_order(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    out = Cube.apply(x)
    assert values(out).tolist() == [1.0, 8.0]
    out.sum().backward()
    assert values(x.grad).tolist() == [3.0, 12.0]
    assert not Cube.apply(constant([1.0], device)).requires_grad
    with eg.no_grad():
        assert not Cube.apply(x).requires_grad


def test_forward_is_not_recorded_and_vjp_only_if_asked(device: str) -> None:
    modes: list[tuple[str, bool]] = []

    class Looks(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            modes.append(("forward", eg.is_grad_enabled()))
            assert not x.requires_grad
            return x * 2

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            modes.append(("vjp", eg.is_grad_enabled()))
            return g * 2

    x = leaf([1.0], device)
    y = Looks.apply(x)
    y.backward(retain_graph=True)
    y.backward(create_graph=True)
    assert modes == [("forward", False), ("vjp", False), ("vjp", True)]


def test_parameters_and_several_results(device: str) -> None:
    for f in (lambda *a, **k: Polar.apply(*a, **k), polar):
        r, angle = leaf([1.0, 2.0], device), leaf([0.3, 0.4], device)
        x, y = f(r, angle, scale=3.0)
        assert x.shape == (2,)
        assert y.shape == ()
        ((x * x).sum() + y).backward()
        close(r.grad, [18 * np.cos(0.3) ** 2 + np.sin(0.3), 36 * np.cos(0.4) ** 2 + np.sin(0.4)])
        assert angle.grad is not None


def test_one_result_of_several_is_enough(device: str) -> None:
    for which in (0, 1):
        r, angle = leaf([1.0, 2.0], device), leaf([0.3, 0.4], device)
        s, b = leaf([1.0, 2.0], device), leaf([0.3, 0.4], device)
        Polar.apply(r, angle)[which].sum().backward()
        polar(s, b)[which].sum().backward()
        close(r.grad, s.grad)
        close(angle.grad, b.grad)


def test_none_is_zero(device: str) -> None:
    class First(eg.Function):
        @staticmethod
        def forward(x: Any, y: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(g: Any, out: Any, x: Any, y: Any) -> Any:
            return g * 2, None

    x, y = leaf([1.0], device), leaf([1.0], device)
    First.apply(x, y).backward()
    assert x.grad.item() == 2.0
    assert y.grad.item() == 0.0


def test_integer_inputs_and_results(device: str) -> None:
    class Pick(eg.Function):
        @staticmethod
        def forward(x: Any, index: Any) -> Any:
            return x.take(index)

        @staticmethod
        def vjp(g: Any, out: Any, x: Any, index: Any) -> Any:
            return eg.zeros_like(x).index_add(index, g), None

    class Floor(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x.astype("int64")

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            raise AssertionError("never asked")

    x = leaf([1.0, 2.0, 3.0], device)
    Pick.apply(x, eg.tensor([2, 2, 0], device=device)).sum().backward()
    assert values(x.grad).tolist() == [1.0, 0.0, 2.0]
    assert not Floor.apply(x).requires_grad


def test_named_like_one_of_our_ops(device: str) -> None:
    class softmax(eg.Function):  # noqa: N801
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            return g * 20

    x = leaf([1.0, 2.0], device)
    out = softmax.apply(x)
    assert values(out).tolist() == [2.0, 4.0]
    out.sum().backward()
    assert values(x.grad).tolist() == [20.0, 20.0]


def test_a_tuple_of_one_stays_a_tuple(device: str) -> None:
    class One(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return (x * 2,)

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            return g[0] * 2

    x = leaf([1.0], device)
    (out,) = One.apply(x)
    out.backward()
    assert x.grad.item() == 2.0


def test_forward_cannot_change_its_inputs(device: str) -> None:
    class Rude(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            x += 1
            return x

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            return g

    x = leaf([1.0], device)
    assert Rude.apply(x).item() == 2.0
    assert x.item() == 1.0


def test_graph_is_used_up(device: str) -> None:
    out = Cube.apply(leaf([1.0], device))
    out.backward()
    with pytest.raises(FreedGraphError, match="<Cube"):
        out.backward()


# --- higher order and transformations ------------------------------------------------------------


def test_second_and_third_order(device: str) -> None:
    x = leaf(2.0, device)
    (g,) = eg.autograd.grad(Cube.apply(x), x, create_graph=True)
    (h,) = eg.autograd.grad(g, x, create_graph=True)
    (k,) = eg.autograd.grad(h, x)
    assert (g.item(), h.item(), k.item()) == (12.0, 12.0, 6.0)


def test_second_order_through_the_result(device: str) -> None:
    """A vjp written with `out`: the result is a function of the input there, not a constant."""

    class Exp(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return eg.exp(x)

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            return g * out

    x = leaf(0.5, device)
    y = Exp.apply(x)
    for _ in range(3):
        (y,) = eg.autograd.grad(y, x, create_graph=True)
        assert y.item() == pytest.approx(np.exp(0.5))


def _both_of(f: Any) -> Any:
    return lambda r, angle: (lambda p: p[0].sum() * p[1] + (p[0] ** 2).sum())(f(r, angle))


TRANSFORMS = {
    "grad": lambda f, c: eg.grad(lambda v: c(v).sum()),
    "grad grad": lambda f, c: eg.grad(lambda v: eg.grad(lambda u: c(u).sum())(v).sum()),
    "jvp": lambda f, c: lambda v: eg.jvp(c, (v,), (v * 2,))[1],
    "jvp jvp": lambda f, c: lambda v: eg.jvp(lambda u: eg.jvp(c, (u,), (u,))[1], (v,), (v,))[1],
    "jvp grad": lambda f, c: lambda v: eg.jvp(eg.grad(lambda u: c(u).sum()), (v,), (v,))[1],
    "grad jvp": lambda f, c: eg.grad(lambda v: eg.jvp(c, (v,), (v,))[1].sum()),
    "vmap": lambda f, c: eg.vmap(c),
    "vmap grad": lambda f, c: eg.vmap(eg.grad(lambda v: c(v).sum())),
    "grad vmap": lambda f, c: eg.grad(lambda v: eg.vmap(c)(v).sum()),
    "vmap vmap": lambda f, c: eg.vmap(eg.vmap(c)),
    "vmap jvp": lambda f, c: eg.vmap(lambda v: eg.jvp(c, (v,), (v,))[1]),
    "jvp vmap": lambda f, c: lambda v: eg.jvp(eg.vmap(c), (v,), (v,))[1],
    "jacobian": lambda f, c: eg.jacobian(c),
    "jacfwd": lambda f, c: eg.jacfwd(c),
    "hessian": lambda f, c: eg.hessian(lambda v: c(v).sum()),
    "polar grad": lambda f, c: lambda v: eg.grad(_both_of(f), 1)(v[0], v[1]),
    "polar hessian": lambda f, c: lambda v: eg.hessian(_both_of(f), 1)(v[0], v[1]),
    "polar vmap": lambda f, c: lambda v: eg.vmap(f)(v, v * 2)[0],
    "polar vmap one side": lambda f, c: lambda v: eg.vmap(f, (None, 0))(v[0], v)[1],
    "polar vmap grad": lambda f, c: lambda v: eg.vmap(eg.grad(_both_of(f)), (0, None))(v, v[1]),
    "polar grad vmap one side": lambda f, c: lambda v: eg.grad(
        lambda r: eg.vmap(f, (None, 0))(r, v)[0].sum()
    )(v[0]),
    "polar vmap jvp": lambda f, c: lambda v: eg.vmap(
        lambda u: eg.jvp(f, (u, v[0]), (u, u))[1][1]
    )(v),
    "polar jvp vmap": lambda f, c: lambda v: eg.jvp(
        eg.vmap(f, (0, None)), (v, v[0]), (v, v[1])
    )[1][0],
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_transformations(device: str, name: str) -> None:
    """As the same function made of our own ops."""
    x = constant([[0.5, 1.0], [1.5, 2.0]], device)
    transform = TRANSFORMS[name]
    close(transform(Polar.apply, Cube.apply)(x), transform(polar, cube)(x))


def test_forward_mode_needs_a_jvp(device: str) -> None:
    class NoJvp(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            return g * 2

    x = constant([1.0], device)
    with pytest.raises(FunctionError, match="NoJvp: forward mode needs a jvp, and none is defined"):
        eg.jvp(NoJvp.apply, (x,), (x,))
    assert eg.grad(lambda v: NoJvp.apply(v).sum())(x).item() == 2.0


# --- refusals ------------------------------------------------------------------------------------


def custom(forward: Any = None, vjp: Any = None, jvp: Any = None) -> Any:
    made = {"forward": staticmethod(forward or (lambda x, y: x * y))}
    if vjp is not None:
        made["vjp"] = staticmethod(vjp)
    if jvp is not None:
        made["jvp"] = staticmethod(jvp)
    return type("Custom", (eg.Function,), made)


@pytest.mark.parametrize(
    ("vjp", "message"),
    [
        (lambda g, out, x, y: g, "Custom: vjp returned 1 gradients for 2 inputs"),
        (lambda g, out, x, y: (g, g, g), "Custom: vjp returned 3 gradients for 2 inputs"),
        (lambda g, out, x, y: (), "Custom: vjp returned 0 gradients for 2 inputs"),
        (
            lambda g, out, x, y: (g, g.sum()),
            r"Custom: gradient 1 is float64\[\] on cpu, its input is float64\[2\] on cpu",
        ),
        (lambda g, out, x, y: (g.reshape(1, 2), g), r"gradient 0 is float64\[1, 2\]"),
        (lambda g, out, x, y: (g.astype("float32"), g), r"gradient 0 is float32\[2\]"),
        (lambda g, out, x, y: (g.astype("int64"), g), r"gradient 0 is int64\[2\]"),
        (lambda g, out, x, y: (eg.ones((2,), "float64", "null"), g), r"float64\[2\] on null, its"),
        (lambda g, out, x, y: (g, 1.0), "Custom: gradient 1 is float, not a Tensor"),
        (lambda g, out, x, y: (g, np.ones(2)), "Custom: gradient 1 is ndarray, not a Tensor"),
        (lambda g, out, x, y: 1 / 0, "its vjp raised ZeroDivisionError: division by zero"),
        (None, r"define vjp\(g, out, \*inputs, \*\*params\)"),
    ],
)
@pytest.mark.parametrize("workers", [1, 4])
def test_wrong_vjp(vjp: Any, message: str, workers: int) -> None:
    x, y, other = leaf([1.0, 2.0]), leaf([3.0, 4.0]), leaf([1.0, 1.0])
    root = (custom(vjp=vjp).apply(x, y) + other).sum()
    with pytest.raises(FunctionError, match=message) as caught:
        root.backward(workers=workers)
    assert str(caught.value).startswith("backward of Custom")
    assert x.grad is y.grad is other.grad is None


def test_an_error_in_vjp_names_the_call() -> None:
    def vjp(g: Any, out: Any, x: Any, y: Any) -> Any:
        return g @ g.reshape(1, 2), None

    x = leaf([1.0, 2.0])
    out = custom(vjp=vjp).apply(x, x)  # this line
    with open(__file__) as source:
        (line,) = [i for i, text in enumerate(source, 1) if text.endswith("# this line\n")]
    with pytest.raises(FunctionError) as caught:
        out.sum().backward()
    assert f"called at {__file__}:{line}" in str(caught.value)
    assert "ShapeError: matmul: (2,) @ (1, 2)" in str(caught.value)
    assert isinstance(caught.value.__cause__.__cause__, ShapeError)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda x, y: None, r"Custom: forward must return Tensors, got \(NoneType\)"),
        (lambda x, y: 3.0, r"forward must return Tensors, got \(float\)"),
        (lambda x, y: (x, 1), r"forward must return Tensors, got \(Tensor, int\)"),
        (lambda x, y: (), r"forward must return Tensors, got \(\)"),
        (
            lambda x, y: (x, x.astype("float32")),
            r"of different dtypes \(float64, float32\); use one",
        ),
    ],
)
def test_wrong_forward(forward: Any, message: str) -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(FunctionError, match=message):
        custom(forward).apply(x, x)


def test_errors_in_forward_are_the_users_own() -> None:
    def forward(x: Any, y: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        custom(forward).apply(leaf([1.0]), leaf([1.0]))
    with pytest.raises(FunctionError, match=r"define forward\(\*inputs, \*\*params\)"):
        eg.Function.apply(leaf([1.0]))


def test_inputs_are_tensors() -> None:
    with pytest.raises(FunctionError, match="Custom: input 1 is float; inputs are Tensors, pass"):
        custom().apply(leaf([1.0]), 2.0)


@pytest.mark.parametrize(
    ("jvp", "message"),
    [
        (lambda t, out, x, y: t[0], "jvp returned 1 tangents for 2 results"),
        (lambda t, out, x, y: (t[0],) * 3, "jvp returned 3 tangents for 2 results"),
        (
            lambda t, out, x, y: (t[0], t[0]),
            r"tangent 1 is float64\[2\] on cpu, its result is float",
        ),
        (lambda t, out, x, y: (2.0, t[0].sum()), "tangent 0 is float, not a Tensor"),
    ],
)
def test_wrong_jvp(jvp: Any, message: str) -> None:
    made = custom(lambda x, y: (x * y, y.sum()), jvp=jvp)
    x = constant([1.0, 2.0])
    with pytest.raises(FunctionError, match=f"Custom: {message}"):
        eg.jvp(made.apply, (x, x), (x, x))
    with pytest.raises(FunctionError, match="Custom: "):
        eg.jvp(eg.vmap(made.apply), (x.reshape(1, 2),) * 2, (x.reshape(1, 2),) * 2)


def test_none_tangents_are_zero() -> None:
    made = custom(lambda x, y: (x * y, y.sum()), jvp=lambda t, out, x, y: (None, t[1].sum()))
    x = constant([1.0, 2.0])
    _, (first, second) = eg.jvp(made.apply, (x, x), (x, x))
    assert first.tolist() == [0.0, 0.0]
    assert second.item() == 3.0


def test_wrong_vjp_inside_vmap() -> None:
    x = constant([[1.0, 2.0]])
    short = custom(vjp=lambda g, out, x, y: g)
    with pytest.raises(GradientError, match="vjp returned 1 gradients for 2 inputs"):
        eg.vmap(eg.grad(lambda v: short.apply(v, v).sum()))(x)
    with pytest.raises(GradientError, match="vjp returned 1 gradients for 2 inputs"):
        eg.grad(lambda v: eg.vmap(short.apply)(v, v).sum())(x)


def test_captured_inputs_get_their_gradient_through_everything(device: str) -> None:
    """vmap of grad, with an input from outside that requires grad itself."""

    class Times(eg.Function):
        @staticmethod
        def forward(x: Any, w: Any) -> Any:
            return x * x * w

        @staticmethod
        def vjp(g: Any, out: Any, x: Any, w: Any) -> Any:
            return g * 2 * x * w, g * x * x

    x, w = constant([[1.0, 2.0], [3.0, 4.0]], device), leaf([5.0, 6.0], device)
    out = eg.vmap(eg.grad(lambda v: Times.apply(v, w).sum()))(x)
    close(out, values(x) * 2 * [5.0, 6.0])
    out.sum().backward()
    close(w.grad, [8.0, 12.0])
