"""What values make impossible is refused by name, on every device: on the CPU at once, on a GPU
when a value is next read, eagerly and inside jit, once, and the device goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.errors import ArgumentError, EverygradError, GradientError, OutOfRangeError
from everygrad.ops.linalg.checks import ensure
from tests.conftest import DEVICES

EYE = np.eye(3, dtype=np.float32)
STEPS = np.diag(np.array([3.0, 2.0, 1.0], np.float32))
ZERO = np.zeros((3, 3), np.float32)
NAN = np.full((3, 3), np.nan, np.float32)


def on(array: Any, device: str) -> eg.Tensor:
    values = np.asarray(array)
    return eg.tensor(
        values.astype(np.float32) if values.dtype.kind == "f" else values, device=device
    )


def read(out: Any) -> list[Any]:
    """All results, on the host."""
    return [t.detach().numpy() for t in (out if isinstance(out, tuple) else (out,))]


def refused(error: type[EverygradError], message: str, work: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message):
        read(work())


# --- derivatives that do not exist ---------------------------------------------------------------


def vectors(x: eg.Tensor) -> eg.Tensor:
    return eg.linalg.svd(x, full_matrices=False)[0].sum()


DERIVATIVES: dict[str, tuple[str, Callable[[Any], Any], Any]] = {
    "svd": ("svd: equal singular values leave their singular vectors", vectors, EYE),
    "eigh": (
        "eigh: equal eigenvalues leave their eigenvectors",
        lambda x: eg.linalg.eigh(x)[1].sum(),
        EYE,
    ),
    "svd, complete": (
        "svd: the vectors that full_matrices=True adds",
        lambda x: eg.linalg.svd(x[:, :2])[0].sum(),
        STEPS,
    ),
    "qr": (
        "qr: columns that are not independent",
        lambda x: eg.linalg.qr(x)[0].sum(),
        ZERO + 1,
    ),
    "qr, complete": (
        'qr: the columns that mode="complete" adds',
        lambda x: eg.linalg.qr(x[:, :2], mode="complete")[0].sum(),
        STEPS,
    ),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_derivative_that_does_not_exist_is_refused(
    name: str, compiled: bool, device: str
) -> None:
    message, fn, matrix = DERIVATIVES[name]
    work = eg.grad(fn)
    work = eg.jit(work) if compiled else work
    x, good = on(matrix, device), on(STEPS + 0.1 * EYE[::-1], device)
    for _ in range(4):  # a replay is captured at the second call, and handed over at the third
        refused(GradientError, message, lambda: work(x))
        read(x + 1)  # nothing is raised twice, and the device goes on
    if "complete" not in name:
        for _ in range(2):
            assert np.isfinite(read(work(good))[0]).all()


def test_backward_is_refused_too(device: str) -> None:
    x = on(EYE, device).requires_grad_()

    def gradient() -> Any:
        vectors(x).backward()
        return x.grad

    refused(GradientError, "svd: equal singular values", gradient)
    read(x)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_forward_mode_batches_and_second_derivatives(compiled: bool, device: str) -> None:
    wrap: Any = eg.jit if compiled else lambda f: f
    message = "svd: equal singular values"
    x, good = on(EYE, device), on(STEPS, device)
    forward = wrap(lambda x: eg.jvp(vectors, (x,), (eg.ones_like(x),))[1])
    batch = wrap(eg.vmap(eg.grad(vectors)))
    second = wrap(eg.grad(lambda x: (eg.grad(vectors)(x) ** 2).sum()))
    for work, bad, fine in (
        (forward, x, good),
        (batch, eg.stack([good, x]), eg.stack([good, good])),
        (second, x, good),
    ):
        refused(GradientError, message, lambda work=work, bad=bad: work(bad))  # type: ignore[misc]
        assert np.isfinite(read(work(fine))[0]).all()


def test_what_does_not_depend_on_the_choice_is_not_refused(device: str) -> None:
    """The values of equal singular values, and projections on their space."""
    x = on(EYE, device)
    np.testing.assert_allclose(read(eg.grad(lambda x: eg.linalg.svdvals(x).sum())(x))[0], EYE)
    read(eg.jit(eg.grad(lambda x: eg.linalg.svdvals(x).sum()))(x))


# --- values that ops refuse ----------------------------------------------------------------------

VALUES: dict[str, tuple[str, Callable[[Any], Any], Any, Any]] = {
    "cholesky": (
        "cholesky: a matrix is not positive definite",
        eg.linalg.cholesky,
        np.stack([EYE, -EYE]),
        np.stack([EYE, STEPS]),
    ),
    "solve": (
        "solve: a matrix is singular",
        lambda x: eg.linalg.solve(x, x[..., :1]),
        np.stack([EYE, ZERO]),
        np.stack([EYE, STEPS]),
    ),
    "inv": ("inv: a matrix is singular", eg.linalg.inv, ZERO, STEPS),
    "solve_triangular": (
        "solve_triangular: a matrix is singular",
        lambda x: eg.linalg.solve_triangular(x, x, upper=True),
        np.diag(np.array([1.0, 0.0, 1.0], np.float32)),
        STEPS,
    ),
    "eigh": ("eigh: the iteration does not converge", eg.linalg.eigh, NAN, STEPS),
    "svd": ("svd: the iteration does not converge", eg.linalg.svd, NAN, STEPS),
    "matrix_exp": ("matrix_exp: the input has a NaN", eg.linalg.matrix_exp, NAN, STEPS),
    "pow": (
        "pow: an integer to a negative power",
        lambda y: eg.full(y.shape, 3, dtype="int32", device=y.device) ** y,
        np.array([2, -1, 0], np.int32),
        np.array([2, 1, 0], np.int32),
    ),
    "reflected pow": (
        "pow: an integer to a negative power",
        lambda y: 2**y,
        np.array([[-9]]),
        np.array([[9]]),
    ),
    **{
        f"multinomial, {what}": (
            "multinomial: each row of probs must be finite",
            lambda x, again=replacement: eg.multinomial(x, 2, again),
            np.array([[1.0, 2.0, 0.0], [1.0, 0.0, 0.0]]) * np.array([[1.0], [by]]) + more,
            np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]]),
        )
        for what, by, more, replacement in (
            ("all 0", 0.0, 0.0, False),
            ("all 0, with replacement", 0.0, 0.0, True),
            ("negative", -1.0, 0.0, True),
            ("NaN", np.nan, 0.0, False),
            ("inf", 1.0, np.inf, True),
        )
    },
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", VALUES)
def test_values_that_an_op_refuses(name: str, compiled: bool, device: str) -> None:
    message, fn, bad, good = VALUES[name]
    work = eg.jit(fn) if compiled else fn
    for _ in range(3):
        refused(ArgumentError, message, lambda: work(on(bad, device)))
        assert all(np.isfinite(a).all() for a in read(work(on(good, device))))


def test_nan_in_a_system_of_equations_is_no_singular_matrix(device: str) -> None:
    assert not np.isfinite(read(eg.linalg.solve(on(NAN, device), on(EYE, device)))[0]).any()


# --- how a device tells --------------------------------------------------------------------------


GPUS = [d for d in DEVICES if d.startswith(("webgpu", "cuda"))]


def bad(device: str, what: str = "not so") -> eg.Tensor:
    """A value that was refused, not yet read."""
    return ensure(on([1.0, 2.0], device), on([True, False], device), what)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_refused_value_is_nan_until_it_is_read(gpu: str) -> None:
    """And whatever is read next raises, once."""
    x = bad(gpu)
    y = on([5.0], gpu)
    refused(GradientError, "^not so$", lambda: y)
    np.testing.assert_array_equal(read(x)[0], [1.0, np.nan])


@pytest.mark.parametrize("gpu", GPUS)
def test_synchronising_raises(gpu: str) -> None:
    bad(gpu)
    with pytest.raises(GradientError, match="not so"):
        base.get(gpu).synchronize()
    base.get(gpu).synchronize()


@pytest.mark.parametrize("gpu", GPUS)
def test_reads_that_were_begun_together_raise_once(gpu: str) -> None:
    a, b = bad(gpu), on([7.0], gpu)
    first = a.numpy_later()
    ensure(b, on([True], gpu), "fine")
    second = b.numpy_later()
    with pytest.raises(GradientError, match="not so"):
        first.result()
    assert second.result().tolist() == [7.0]


@pytest.mark.parametrize("gpu", GPUS)
def test_the_first_of_several_is_named_and_a_later_one_again(gpu: str) -> None:
    x = on([1.0, 2.0], gpu)
    a = bad(gpu, "first")
    b = eg.take(x, on([9], gpu), axis=0)
    refused(GradientError, "^first$", lambda: (a, b))
    read(x)
    refused(OutOfRangeError, "take: index 9", lambda: eg.take(x, on([9], gpu), axis=0))
    refused(GradientError, "^second$", lambda: bad(gpu, "second"))


@pytest.mark.parametrize("gpu", GPUS)
def test_nothing_waits(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused derivative is computed without a read."""
    work = eg.jit(eg.grad(vectors))
    x = on(EYE, gpu)
    refused(GradientError, "svd", lambda: work(x))

    def no(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a copy to the host")

    backend: Any = base.get(gpu)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "to_numpy", no)
        patch.setattr(backend, "read_later", no)
        made = [work(x), eg.grad(vectors)(x)]
        picked = x[on([0, 2], gpu)]
    refused(GradientError, "svd", lambda: tuple(made))
    np.testing.assert_array_equal(read(picked)[0], EYE[[0, 2]])


def test_a_refused_step_on_the_cpu_changes_nothing() -> None:
    """Under jit too: the parameter keeps its value."""
    w = eg.tensor(EYE.copy(), requires_grad=True)

    def step(scale: eg.Tensor) -> eg.Tensor:
        w.grad = None
        loss = vectors(w * scale)
        loss.backward()
        assert w.grad is not None
        with eg.no_grad():
            w.__isub__(w.grad)
        return loss

    work = eg.jit(step)
    for _ in range(3):
        refused(GradientError, "svd: equal singular values", lambda: work(eg.ones(())))
        np.testing.assert_array_equal(read(w)[0], EYE)
