"""gradcheck itself: it passes what is right, and names what is wrong."""

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, DtypeError, FunctionError, GradientError, ShapeError

RNG = np.random.default_rng(0)


def real(*shape: int) -> eg.Tensor:
    return eg.tensor(RNG.uniform(0.3, 1.7, shape))


def cplx(*shape: int) -> eg.Tensor:
    return eg.tensor(RNG.uniform(0.3, 1.7, shape) + 1j * RNG.uniform(0.3, 1.7, shape))


class Square(eg.Function):
    """Right in every way."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def vjp(g, out, x):
        return 2 * x * g

    @staticmethod
    def jvp(tangents, out, x):
        return 2 * x * tangents[0]


class WrongVjp(Square):
    @staticmethod
    def vjp(g, out, x):
        return 2.1 * x * g


class WrongJvp(Square):
    @staticmethod
    def jvp(tangents, out, x):
        return 2.1 * x * tangents[0]


class WrongSecond(Square):
    """Its first derivative has the right value, but is a constant to the second pass."""

    @staticmethod
    def vjp(g, out, x):
        return 2 * x.detach() * g


class NoJvp(Square):
    jvp = None


@pytest.mark.parametrize("check", [eg.gradcheck, eg.gradgradcheck])
def test_right_functions_pass(check) -> None:
    w = real(3, 2)
    assert check(lambda x: eg.tanh(x @ w), real(2, 3))
    assert check(lambda x, w: eg.softmax(x @ w), (real(2, 3), w))
    assert check(lambda x: (x * x, eg.exp(x).sum()), [real(3)])
    assert check(lambda x: x.sum(), real())
    assert check(lambda x: x * 2, eg.zeros((0, 3), dtype=eg.float64))
    assert check(Square.apply, real(3))
    assert check(lambda x: eg.checkpoint(lambda v: eg.sin(v) * v, x), real(2))


@pytest.mark.parametrize("check", [eg.gradcheck, eg.gradgradcheck])
def test_complex_functions_pass(check) -> None:
    assert check(lambda z: z * z * z, cplx(2))
    assert check(lambda z: eg.exp(z) * eg.conj(z), cplx(2))
    assert check(eg.abs, cplx(2))
    assert check(lambda z: (eg.real(z * z), eg.imag(z) * eg.real(z)), cplx(2))
    assert check(lambda z, x: z * x, (cplx(2), real(2)))


def test_nested_containers_and_other_arguments() -> None:
    def f(params, power, nothing):
        assert nothing is None
        return {"out": params["w"] ** power + params["rest"][0], "count": eg.arange(3)}

    assert eg.gradcheck(f, ({"w": real(3), "rest": [real(3)]}, 3, None))
    with pytest.raises(GradientError, match=r"input 1 at \[0, 'w'\] \(shape \(3,\)\)"):
        eg.gradcheck(lambda p: WrongVjp.apply(p["w"]) + p["a"], ({"w": real(3), "a": real(3)},))


def test_only_what_requires_grad_is_checked() -> None:
    x, y = real(2), real(2)
    y.requires_grad_()
    f = lambda x, y: WrongVjp.apply(x) + y  # noqa: E731
    assert eg.gradcheck(f, (x, y))
    with pytest.raises(GradientError, match="input 0"):
        eg.gradcheck(f, (x, y.detach()))


def test_outputs_that_do_not_depend_on_an_input() -> None:
    c = real(2)
    assert eg.gradcheck(lambda x, y: (x * 2, y.sum(), c), (real(2), real(3)))
    assert eg.gradgradcheck(lambda x, y: (x * 2, y.sum(), c), (real(2), real(3)))


def test_inputs_are_left_alone() -> None:
    x = real(3).requires_grad_()
    before, payload = x.tolist(), x._data
    assert eg.gradcheck(lambda x: x * x, x)
    assert x._data is payload
    assert x.tolist() == before
    assert x.grad is None


def test_it_works_where_nothing_is_recorded() -> None:
    with eg.no_grad():
        assert eg.gradcheck(eg.exp, real(2))
        with pytest.raises(GradientError, match="reverse mode"):
            eg.gradcheck(WrongVjp.apply, real(2))
    with eg.inference_mode(), pytest.raises(GradientError, match=r"inference_mode\(\); leave it"):
        eg.gradcheck(eg.exp, real(2))


def test_wrong_reverse_mode_is_named() -> None:
    x = eg.tensor(np.array([[1.0, 2.0, 4.0]]))
    with pytest.raises(GradientError) as caught:
        eg.gradcheck(lambda a, b: (a, WrongVjp.apply(b)), (x, x))
    assert str(caught.value) == (
        "gradcheck: reverse mode disagrees with differences: derivative of output 1 (shape (1, 3)) "
        "at (0, 2) with respect to input 1 (shape (1, 3)) at (0, 2): reverse mode gives 8.4, "
        "differences give 8; they differ by 0.4, allowed is atol=1e-05 + rtol=0.001 * 8 = 0.00801"
    )
    assert eg.gradcheck(WrongVjp.apply, x, raise_exception=False) is False
    assert eg.gradcheck(WrongVjp.apply, x, rtol=0.1)


def test_wrong_forward_mode_is_named() -> None:
    with pytest.raises(GradientError, match="forward mode disagrees with differences"):
        eg.gradcheck(WrongJvp.apply, real(2))
    assert eg.gradcheck(WrongJvp.apply, real(2), check_forward=False)
    with pytest.raises(FunctionError, match="check_forward=False checks reverse mode alone"):
        eg.gradcheck(NoJvp.apply, real(2))
    assert eg.gradcheck(NoJvp.apply, real(2), check_forward=False)


def test_wrong_second_derivative_is_named() -> None:
    assert eg.gradcheck(WrongSecond.apply, real(2))
    with pytest.raises(
        GradientError, match=r"gradgradcheck: reverse .* the gradient of input 0 .* to input 0"
    ):
        eg.gradgradcheck(WrongSecond.apply, real(2))
    assert not eg.gradgradcheck(WrongSecond.apply, real(2), raise_exception=False)


def test_wrong_complex_derivative_is_named() -> None:
    class NotConjugated(eg.Function):  # PyTorch's convention wants conj(2 z) g
        @staticmethod
        def forward(z):
            return z * z

        @staticmethod
        def vjp(g, out, z):
            return 2 * z * g

    with pytest.raises(GradientError, match=r"at \(0,\), (real|imaginary) part with respect to"):
        eg.gradcheck(NotConjugated.apply, cplx(1), check_forward=False)


def test_a_nan_is_not_agreement() -> None:
    class Nan(Square):
        @staticmethod
        def vjp(g, out, x):
            return g * float("nan")

    with pytest.raises(GradientError, match="reverse mode gives nan"):
        eg.gradcheck(Nan.apply, real(2))


def test_functions_that_are_not_deterministic_are_refused() -> None:
    with pytest.raises(GradientError, match=r"different results for the same inputs.* Generator"):
        eg.gradcheck(eg.dropout, real(20))
    assert not eg.gradcheck(eg.dropout, real(20), raise_exception=False)
    assert eg.gradcheck(lambda x: eg.dropout(x, generator=eg.Generator(3)), real(20))
    calls = []

    def grows(x):
        calls.append(x)
        return eg.concat([x] * len(calls))

    with pytest.raises(GradientError, match=r"shapes \[\(2,\)\] and \[\(4,\)\]"):
        eg.gradcheck(grows, real(2))


def test_a_backward_that_is_not_deterministic_is_refused() -> None:
    class Random(Square):
        @staticmethod
        def vjp(g, out, x):
            return 2 * x * g * (1 + 1e-7 * eg.rand(x.shape, dtype=eg.float64))

    with pytest.raises(GradientError, match="backward gives different results for the same"):
        eg.gradcheck(Random.apply, real(3))


def test_a_shape_that_depends_on_values_is_refused() -> None:
    with pytest.raises(GradientError, match="it must not depend on values"):
        eg.gradcheck(lambda x: x[x <= 1.0], eg.tensor(np.array([1.0])), check_forward=False)


def test_what_differences_cannot_judge_is_refused() -> None:
    x = real(2)
    with pytest.raises(DtypeError, match=r"input 1 is float32, .*astype\(eg.float64\)"):
        eg.gradcheck(lambda a, b: a + b, (x, x.astype(eg.float32)))
    with pytest.raises(DtypeError, match=r"is complex64, .*astype\(eg.complex128\)"):
        eg.gradcheck(lambda z: z, cplx(1).astype(eg.complex64))
    with pytest.raises(DtypeError, match="output 0 is float32, too coarse"):
        eg.gradcheck(lambda x: x.astype(eg.float32), x)
    with pytest.raises(ArgumentError, match="none of the inputs is a floating-point tensor"):
        eg.gradcheck(lambda x: x, eg.arange(3))
    with pytest.raises(ArgumentError, match="must return tensors, output 0 is int"):
        eg.gradcheck(lambda x: 3, x)
    with pytest.raises(GradientError, match="returned bool, which has no derivative"):
        eg.gradcheck(lambda x: x > 1, x)
    with pytest.raises(ArgumentError, match="takes a function, got Tensor"):
        eg.gradcheck(x, x)


def test_gradients_to_start_from() -> None:
    x, g = real(3), real(3)
    assert eg.gradgradcheck(lambda x: x**3, x, g)
    assert eg.gradgradcheck(lambda x: (x**3, x.sum()), x, [g, real()])
    with pytest.raises(ArgumentError, match="2 grad_outputs for 1 outputs"):
        eg.gradgradcheck(lambda x: x**3, x, [g, g])
    with pytest.raises(ShapeError, match=r"grad_output 0 is float64\[2\], output 0 is float64\[3"):
        eg.gradgradcheck(lambda x: x**3, x, real(2))
