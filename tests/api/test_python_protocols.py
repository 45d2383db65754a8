"""Tensors where Python, NumPy and Matplotlib expect arrays: copies, None, divmod, reductions by
NumPy's functions, indices with tuples, axes of 0-d tensors, complex variances, containers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, AxisError, GradientError, ShapeError

X = np.random.default_rng(0).normal(size=(3, 4))


# --- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_copies_have_names_of_their_own(copier: Callable[[Any], Any]) -> None:
    x = eg.tensor(X)
    y = copier(x)
    y[0] = 0.0
    x[1] = 1.0
    np.testing.assert_array_equal(y.numpy()[0], 0.0)
    np.testing.assert_array_equal(y.numpy()[1], X[1])
    leaf = eg.tensor(X, requires_grad=True)
    made = copier(leaf)
    assert made.requires_grad
    assert made.is_leaf
    assert made is not leaf
    (made * 2.0).sum().backward()
    assert leaf.grad is None
    layer = eg.nn.Linear(2, 2)
    weight = copier(layer.weight)
    assert isinstance(weight, eg.nn.Parameter)
    assert weight is not layer.weight


def test_a_copy_of_a_result_is_connected_and_a_deep_one_refused() -> None:
    x = eg.tensor(X, requires_grad=True)
    copy.copy(x * 3.0).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.full(X.shape, 3.0))
    with pytest.raises(GradientError, match="deepcopy"):
        copy.deepcopy(x * 3.0)
    np.testing.assert_array_equal(eg.jit(lambda t: copy.copy(t) + 1.0)(eg.tensor(X)).numpy(), X + 1)


def test_matplotlib_draws_tensors() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x = eg.linspace(0, 6, 20)
    y = eg.sin(x)
    figure, axes = plt.subplots()
    (line,) = axes.plot(x, y)
    np.testing.assert_array_equal(line.get_ydata(), y.numpy())
    (line,) = axes.plot(y)
    np.testing.assert_array_equal(line.get_ydata(), y.numpy())
    axes.scatter(x, y, c=y)
    axes.hist(y)
    axes.bar(x, y)
    axes.fill_between(x, y)
    axes.errorbar(x, y, yerr=abs(y))
    axes.imshow(y.reshape(4, 5))
    axes.contourf(y.reshape(4, 5))
    figure.canvas.draw()
    plt.close(figure)


# --- operators -----------------------------------------------------------------------------------


def test_nothing_equals_none() -> None:
    x = eg.tensor(X)
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert (x == None) is False  # noqa: E711
    assert eg.jit(lambda t: t if t == None else t * 2.0)(x)[0, 0].item() == X[0, 0] * 2  # noqa: E711
    with pytest.raises(eg.errors.DtypeError, match="equal: takes tensors and numbers"):
        eg.equal(x, None)
    assert (x == x).all()


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "float32", "float64"])
def test_divmod_is_numpys(dtype: str) -> None:
    a = np.array([7, 5, 3, 100], dtype)
    b = np.array([2, 3, 5, 7], dtype)
    for left, right in ((eg.tensor(a), eg.tensor(b)), (eg.tensor(a), 3), (50, eg.tensor(b)),
                        (eg.tensor(a), b)):  # fmt: skip
        whole, rest = divmod(left, right)
        plain = [v.numpy() if isinstance(v, eg.Tensor) else v for v in (left, right)]
        want = np.divmod(*plain)
        np.testing.assert_array_equal(whole.numpy(), want[0])
        np.testing.assert_array_equal(rest.numpy(), want[1])
        assert whole.dtype.name == rest.dtype.name == dtype


# --- NumPy's reductions --------------------------------------------------------------------------

REDUCTIONS = [np.sum, np.prod, np.mean, np.var, np.std, np.max, np.amax, np.min, np.amin, np.ptp,
              np.all, np.any, np.argmax, np.argmin, np.count_nonzero]  # fmt: skip
OPTIONS: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": -1}, {"axis": 1, "keepdims": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("function", REDUCTIONS, ids=lambda f: f.__name__)
def test_numpys_reductions_of_tensors(function: Any, options: dict[str, Any]) -> None:
    x = eg.tensor(X)
    got = function(x, **options)
    assert isinstance(got, eg.Tensor)
    np.testing.assert_allclose(got.numpy(), function(X, **options), rtol=1e-12)
    if function in (np.sum, np.mean, np.var, np.max):
        w = eg.tensor(X, requires_grad=True)
        function(w, **options).sum().backward()
        assert w.grad is not None


def test_options_of_numpys_reductions() -> None:
    x = eg.tensor(X)
    np.testing.assert_allclose(np.var(x, ddof=1).numpy(), np.var(X, ddof=1), rtol=1e-12)
    assert np.sum(x, dtype=np.float32).dtype is eg.float32
    assert np.mean(x, dtype=np.float32).dtype is eg.float32
    with pytest.raises(ArgumentError, match="takes no where"):
        np.sum(x, where=X > 0)
    out = np.zeros(4)
    np.sum(x, axis=0, out=out)
    np.testing.assert_allclose(out, X.sum(axis=0), rtol=1e-12)
    assert np.shape(x) == (3, 4)
    np.testing.assert_array_equal(np.sort(x), np.sort(X))
    np.testing.assert_array_equal(np.concatenate([x, X]), np.concatenate([X, X]))


METHODS: list[tuple[Any, tuple[Any, ...]]] = [
    (np.cumsum, ()), (np.cumsum, (1,)), (np.cumprod, ()), (np.cumprod, (0,)), (np.real, ()),
    (np.imag, ()), (np.take, ([3, 0],)), (np.take, ([1, 0], 0)), (np.repeat, (2,)),
    (np.squeeze, ()), (np.diagonal, ()), (np.trace, ())]  # fmt: skip
ORDERED: list[tuple[Any, tuple[Any, ...]]] = [
    (np.clip, (0.0, 1.0)), (np.argsort, ()), (np.median, ()), (np.round, (1,))]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "args", "given"),
    [(f, args, X) for f, args in METHODS + ORDERED] + [(f, args, X * 1j) for f, args in METHODS],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_numpys_functions_that_call_methods(function: Any, args: Any, given: Any) -> None:
    """NumPy calls a method with all of its own arguments, `out=None` among them."""
    got, want = function(eg.tensor(given), *args), function(given, *args)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-12)
    assert np.shape(got) == np.shape(want)


# --- indices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [((0, 2),), (0, (1, 3)), ((0, 1), (2, 3)), (..., (1, 0)), (((0, 1), (2, 0)),), ((),),
     ((True, False, True),), ([0, 1], (1, 2)), (slice(None), ((0,), (3,)))],
    ids=str,
)  # fmt: skip
def test_tuples_inside_an_index_are_lists(index: Any) -> None:
    x = eg.tensor(X)
    np.testing.assert_array_equal(x[index].numpy(), X[index])
    if index != ((True, False, True),):  # a mask, whose result has an unknown size
        np.testing.assert_array_equal(eg.jit(lambda t: t[index])(x).numpy(), X[index])
    y, want = x.clone(), X.copy()
    y[index] = 7.0
    want[index] = 7.0
    np.testing.assert_array_equal(y.numpy(), want)


def test_ragged_lists_in_an_index_are_refused() -> None:
    with pytest.raises(ShapeError, match="getitem: a list in an index is ragged"):
        eg.tensor(X)[[[0, 1], [2]]]


BIG = (1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 80)


@pytest.mark.parametrize("step", [s * n for n in BIG for s in (1, -1)])
def test_steps_of_any_size(step: int, device: str) -> None:
    x = eg.tensor(X.astype(np.float32), device=device)
    for index in ((slice(None, None, step),), (slice(1, None, step), slice(None, 2, step))):
        want = X.astype(np.float32)[index]
        for take in (lambda t, i=index: t[i], eg.jit(lambda t, i=index: t[i])):
            np.testing.assert_array_equal(take(x).to("cpu").numpy(), want)
        y = x.clone()
        y[index] = 7.0
        assert (y.to("cpu").numpy() == 7.0).sum() == want.size


# --- axes of 0-d tensors -------------------------------------------------------------------------

SINGLE = ["sum", "prod", "mean", "max", "min", "var", "std", "any", "all", "argmax", "argmin",
          "amax", "amin", "logsumexp", "count_nonzero", "nansum", "nanmean",
          "norm", "median"]  # fmt: skip


@pytest.mark.parametrize("axis", [0, -1, (0,), None])
@pytest.mark.parametrize("name", SINGLE)
def test_a_number_has_one_element_along_its_axis(name: str, axis: Any, device: str) -> None:
    """As in NumPy and PyTorch: of a 0-d tensor, axis 0 and -1 are taken by every reduction."""
    if name in ("argmax", "argmin") and isinstance(axis, tuple):
        axis = axis[0]  # they take one axis only
    x = eg.tensor(2.5, device=device)
    function = getattr(eg, name)
    want = function(x.reshape(1), axis=0)
    got = function(x, axis=axis)
    assert got.shape == ()
    assert got.item() == want.item()
    assert eg.jit(lambda t: function(t, axis=axis))(x).item() == want.item()
    for bad in (1, -2):
        with pytest.raises(AxisError):
            function(x, axis=bad)


# --- complex variances ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1, "correction": 1}], ids=str)
def test_variances_of_complex_tensors_are_real(name: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    z = X + 1j * np.random.default_rng(1).normal(size=X.shape)
    t = eg.tensor(z, requires_grad=True)
    function = getattr(eg, name)
    out = function(t, **options)
    assert out.dtype is eg.float64
    numpys = {"ddof" if k == "correction" else k: v for k, v in options.items()}
    np.testing.assert_allclose(out.detach().numpy(), getattr(np, name)(z, **numpys), rtol=1e-12)
    out.sum().backward()
    other = torch.tensor(z, requires_grad=True)
    theirs = {"correction": 0, **{"dim" if k == "axis" else k: v for k, v in options.items()}}
    off = other - other.mean(dim=theirs.get("dim"), keepdim=True)
    count = off.numel() if "dim" not in theirs else off.shape[theirs["dim"]]
    squares = (off.abs() ** 2).sum(dim=theirs.get("dim")) / (count - theirs["correction"])
    (squares if name == "var" else squares.sqrt()).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        eg.jit(lambda t: function(t, **options))(t.detach()).numpy(), out.detach().numpy(),
        rtol=1e-12,
    )  # fmt: skip


# --- derivatives of containers -------------------------------------------------------------------

PARAMS = {"w": X[0], "b": np.array(0.5), "more": [X[1, :2]]}


def made() -> Any:
    return {"w": eg.tensor(PARAMS["w"]), "b": eg.tensor(PARAMS["b"]),
            "more": [eg.tensor(PARAMS["more"][0])]}  # fmt: skip


def loss(p: Any) -> Any:
    return (p["w"] ** 3).sum() * p["b"] ** 2 + (p["more"][0] * p["w"][:2]).sum() * p["b"]


def outputs(p: Any) -> Any:
    return {"a": p["w"] * p["b"], "c": (p["more"][0].sum(), p["b"] ** 3)}


def flat(p: Any) -> Any:
    return eg.concat([p["w"], p["b"].reshape(1), p["more"][0]])


def unflat(v: Any) -> Any:
    return {"w": v[:4], "b": v[4], "more": [v[5:]]}


def test_hessian_of_a_dict_of_parameters() -> None:
    p = made()
    got = eg.hessian(loss)(p)
    whole = eg.hessian(lambda v: loss(unflat(v)))(flat(p)).numpy()
    rows = {"w": slice(0, 4), "b": 4, "more": slice(5, 7)}

    def block(name: str) -> Any:
        return (lambda h: h[0]) if name == "more" else (lambda h: h)

    for a, i in rows.items():
        for b, j in rows.items():
            found = block(b)(block(a)(got[a])[b])
            np.testing.assert_allclose(found.numpy(), whole[i, j], rtol=1e-10, atol=1e-12)


def test_jacfwd_is_jacobian_also_of_containers() -> None:
    p = made()
    for f in (outputs, loss, lambda p: p["w"]):
        forward, backward = eg.jacfwd(f)(p), eg.jacobian(f)(p)
        a, b = (eg.autograd.trees.leaves_of(t) for t in (forward, backward))
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-10, atol=1e-12)
    x, y = eg.tensor(X[0]), eg.tensor(X[1])
    both = eg.jacfwd(lambda x, y: x * y, argnums=(0, 1))(x, y)
    np.testing.assert_allclose(both[0].numpy(), np.diag(X[1]))
    np.testing.assert_allclose(both[1].numpy(), np.diag(X[0]))
    with pytest.raises(ArgumentError, match="no tensor"):
        eg.jacfwd(lambda p: eg.ones(2))({})


def test_aux_keeps_no_graph() -> None:
    x = eg.tensor(X)

    def f(x: Any) -> Any:
        return (x * x).sum(), {"twice": x * 2.0, "name": "f", "n": 3, "list": [x.sum()]}

    for gradient, aux in (
        eg.grad(f, has_aux=True)(x),
        (eg.value_and_grad(f, has_aux=True)(x)[1], eg.value_and_grad(f, has_aux=True)(x)[0][1]),
    ):
        np.testing.assert_allclose(gradient.numpy(), 2 * X)
        assert not aux["twice"].requires_grad
        assert not aux["list"][0].requires_grad
        assert (aux["name"], aux["n"]) == ("f", 3)
        np.testing.assert_allclose(aux["twice"].numpy(), 2 * X)
    compiled = eg.jit(eg.grad(lambda x: ((x * x).sum(), x * 2.0), has_aux=True))
    np.testing.assert_allclose(compiled(x)[1].numpy(), 2 * X)
    # a graph from outside stays: that one is not f's
    w = eg.tensor(X, requires_grad=True)
    _, aux = eg.grad(lambda x: ((x * w).sum(), x * w), has_aux=True)(x)
    aux.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), X)
    # inside other transformations it is a value of theirs
    _, aux = eg.vmap(eg.grad(lambda x: ((x * x).sum(), x * 3.0), has_aux=True))(x)
    np.testing.assert_allclose(aux.numpy(), 3 * X)
    inner = eg.grad(lambda x: eg.grad(lambda y: ((y**3).sum(), y * y), has_aux=True)(x)[1].sum())
    np.testing.assert_allclose(inner(x).numpy(), 2 * X)
