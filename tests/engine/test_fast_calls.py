"""The fast path of dispatch as native code: what the path in Python gives, to the bit, and no
reference more or less."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dispatch
from everygrad.core import fast_calls
from everygrad.core.context import fast_limit
from everygrad.dispatch import binary, unary
from everygrad.errors import EverygradError, GradientError, ShapeError
from everygrad.ops.record.families import Elementwise
from everygrad.ops.record.partials import fast_vjp
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import (
    BY_FAMILY,
    call,
    few_samples_of,
    function_of,
    leaves_of,
    map_sample,
    to_tensor,
)

# the native code is called from here, not from the package, whose warnings are filtered
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
DTYPES = ("float32", "float64")
SHAPES = {1: [((3, 4),), ((),), ((0, 3),), ((2, 1, 5),)]}
SHAPES[2] = [(s, s) for (s,) in SHAPES[1]] + [((3, 4), (4,)), ((), (3,)), ((2, 1), (1, 3))]


def _record(name: str) -> Elementwise:
    op = REGISTRY[name]
    assert isinstance(op, Elementwise)
    return op


MADE = [
    name
    for name in BY_FAMILY["elementwise"]
    if len(REGISTRY[name].inputs) <= 2
    and hasattr(REGISTRY[name].function, "__signature__")
    and np.dtype("float32") in _record(name).floats
]
DERIVATIVES = [name for name in MADE if "vjp" in vars(REGISTRY[name])]


def _python(op: Elementwise) -> Any:
    """The function of an op before it is hot."""
    return unary(op) if len(op.inputs) == 1 else binary(op)


def _inputs(shapes: Any, dtype: str, wants: int = 0) -> list[eg.Tensor]:
    rng = np.random.default_rng(0)
    made = [eg.tensor(rng.uniform(0.1, 0.9, s).astype(dtype)) for s in shapes]
    for i, x in enumerate(made):
        x.requires_grad_(bool(wants >> i & 1))
    return made


def _same(got: Any, want: Any) -> None:
    """Equal arrays, to the bit but for NaN's, or the same object."""
    if not isinstance(want, np.ndarray):
        assert got is want
        return
    assert type(got) is np.ndarray
    assert got.dtype is want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got) | (got != got), np.signbit(want) | (want != want))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MADE)
def test_results_and_nodes(name: str, dtype: str) -> None:
    op = _record(name)
    native, python = fast_calls.forward(op), _python(op)
    assert native is not None
    for shapes in SHAPES[len(op.inputs)]:
        for wants in range(2 ** len(op.inputs)):
            xs = _inputs(shapes, dtype, 0 if op.constant else wants)
            got, want = native(*xs), python(*xs)
            _same(got._data, want._data)
            assert type(got) is eg.Tensor
            assert got._source is None
            assert got.grad is None
            if want._node is None:
                assert got._node is None
                continue
            assert type(got._node) is type(want._node)
            for slot in ("op", "parents", "params", "shape", "hooks"):
                assert getattr(got._node, slot) == getattr(want._node, slot), slot
            for saved, wanted in zip(got._node.saved, want._node.saved, strict=True):
                if wanted is want._data:
                    assert saved is got._data
                else:
                    assert saved is wanted
            with eg.no_grad():
                assert native(*xs)._node is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name: str, dtype: str) -> None:
    op = _record(name)
    if any(rule is None for rule in op.rules):
        pytest.skip("an input without a derivative")
    for part in op.partials:
        part.compile()
    python = fast_vjp(op)
    native = fast_calls.backward([part.native() for part in op.partials], python)
    if native is None:
        assert any(len(part.needs) > 2 for part in op.partials)
        return
    rng = np.random.default_rng(1)
    for shapes in SHAPES[len(op.inputs)]:
        for wants in range(1, 2 ** len(op.inputs)):
            node = _python(op)(*_inputs(shapes, dtype, wants))._node
            g = eg.tensor(rng.standard_normal(node.shape).astype(dtype))
            got, want = native(node, g, False), python(node, g, False)
            for one, other in zip(got, want, strict=True):
                if other is None or other is g:
                    assert one is other
                else:
                    _same(one._data, other._data)
                    assert one._node is None
                    assert one._source is None
            again = native(node, g, True), python(node, g, True)  # which is left to Python
            for one, other in zip(*again, strict=True):
                _same(getattr(one, "_data", None), getattr(other, "_data", None))


def test_what_is_left_to_python() -> None:
    native = fast_calls.forward(_record("multiply"))
    assert native is not None
    x, wide = eg.ones((2, 3)), eg.ones((2, 3), dtype="float64")
    large = eg.ones((fast_limit() + 1,))
    made = eg.Tensor()  # as yet without a payload
    for given in [(x, 2.0), (2.0, x), (x, None), (x, wide), (large, large), (x, x.numpy()), (x,),
                  (x, x, x), (x, x.astype("int32")), (made, x), (x, made)]:  # fmt: skip
        assert native(*given) is None
    with eg.detect_anomaly():
        assert native(x, x) is not None  # nothing is recorded
        x.requires_grad_()
        assert native(x, x) is None
    with eg.autocast(dtype="bfloat16"):
        assert native(x, x) is None
    eg.vmap(lambda row: [native(row, row)] and row)(x)
    strided = eg.ones((3, 2)).T
    _same(native(strided, x)._data, (strided * x)._data)
    kept = eg.nn.Parameter(eg.ones((2, 3)))
    assert native(kept, x)._node.parents == (kept._node, x._node)


class _Broken:
    def __init__(self, error: Any) -> None:
        self.error = error

    def __call__(self, *args: Any) -> Any:
        raise self.error("a bug inside a kernel")


@pytest.mark.parametrize("error", [TypeError, ValueError, KeyError, KeyboardInterrupt])
def test_errors_are_seen_once(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    op = _record("sin")
    op.partials[0].compile()
    monkeypatch.setattr(op, "numpy_function", lambda dtype: _Broken(error))
    monkeypatch.setattr(op.partials[0].fused, "numpy_function", lambda *a, **k: _Broken(error))
    x = eg.ones((3,)).requires_grad_()
    node = eg.sin(x)._node
    native = fast_calls.forward(op)
    back = fast_calls.backward([op.partials[0].native()], fast_vjp(op))
    assert native is not None
    assert back is not None
    with pytest.raises(error, match="a bug inside a kernel"):
        native(x)
    with pytest.raises(error, match="a bug inside a kernel"):
        back(node, x, False)


def test_warnings_that_a_filter_raises() -> None:
    op = _record("log")
    function, x = _hot(op), eg.tensor([0.0, -1.0]).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = function(x)
        out.sum().backward()
    assert str(out.tolist()) == "[-inf, nan]"
    assert x.grad is not None
    assert x.grad.tolist() == [np.inf, -1.0]


def _hot(op: Elementwise) -> Any:
    """A function of the op that has been called so often that native code serves it."""
    function = _python(op)
    x = eg.tensor([0.5])
    for _ in range(fast_calls.LOADED_MANY + 1):
        function(*[x] * len(op.inputs))
    return function


def test_a_hot_function_is_the_same() -> None:
    eg.jit(lambda x: x + 1)(eg.ones(3))  # LLVM is loaded
    multiply = _hot(_record("multiply"))
    x, y = eg.ones((2, 3)).requires_grad_(), eg.full((3,), 2.0)
    assert multiply(x, 3).tolist() == [[3.0] * 3] * 2
    assert multiply(x, other=y).tolist() == [[2.0] * 3] * 2
    with pytest.raises(ShapeError, match=r"multiply: .*\(2, 3\).*\(4,\)"):
        multiply(x, eg.ones((4,)))
    with pytest.raises(TypeError, match="missing a required argument"):
        multiply(x)
    (multiply(x, multiply(x, y)) * x).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.full((2, 3), 6.0))
    out = multiply(x, x)
    out.sum().backward()
    with pytest.raises(GradientError):
        out.sum().backward()


@pytest.mark.parametrize("name", ["multiply", "add", "tanh", "divide", "less"])
def test_references(name: str) -> None:
    """Objects are held as often after many calls as before, whatever the calls come to."""
    op = _record(name)
    native = fast_calls.forward(op)
    assert native is not None
    back: Any = None
    if not op.constant:
        for part in op.partials:
            part.compile()
        back = fast_calls.backward([part.native() for part in op.partials], fast_vjp(op))
    count = len(op.inputs)
    x = eg.full((3, 4), 0.5).requires_grad_(not op.constant)
    row, wrong, g = eg.full((4,), 0.5), eg.ones((5,)), eg.ones((3, 4))
    watched = [x, x._data, x._node, row, row._data, wrong._data, g, g._data, op, native, back, None,
               False, x._data.dtype, eg.Tensor, ()]  # fmt: skip

    def calls() -> None:
        for _ in range(300):
            out = native(*[x] * count)
            native(*[row] * count)
            if back is not None:
                back(out._node, g, False)
                out._node.saved = None
            if count == 2:
                native(x, row)
                native(x, 2.0)
                with pytest.raises(ValueError, match="broadcast"):
                    native(x, wrong)

    calls()
    before = [sys.getrefcount(held) for held in watched]
    calls()
    after = [sys.getrefcount(held) for held in watched]
    assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True)), (before, after)


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_rows(name: str, dtype: str) -> None:
    function = getattr(eg, name)
    rng = np.random.default_rng(0)
    shapes = ((5,), (3, 7), (2, 3, 4), (1, 1, 2, 1, 3), (0, 3))
    cases = [rng.standard_normal(s).astype(dtype) for s in shapes]
    cases += [cases[1].T, cases[1][:, ::2], rng.standard_normal((40, 500)).astype(dtype)]

    def results() -> list[Any]:
        found = []
        for a in cases:
            for axis in (-1, a.ndim - 1, 0):
                x = eg.tensor(a).requires_grad_()
                out = function(x, axis=axis)
                (g,) = eg.autograd.grad(out, x, eg.tensor(a), create_graph=a.ndim == 2)
                found += [out.detach().numpy(), g.detach().numpy(), function(x.detach(), axis)]
        return found

    before = results()
    x = eg.ones((2, 3), dtype=dtype).requires_grad_()
    for _ in range(fast_calls.LOADED_MANY + 9):  # from now on native
        function(x)
    for got, want in zip(results(), before, strict=True):
        _same(getattr(got, "_data", got), getattr(want, "_data", want))
    with eg.detect_anomaly():
        assert function(x)._node.where is not None
    assert eg.vmap(function)(x).shape == (2, 3)
    node = function(x)._node
    (g,) = eg.autograd.grad(function(x), x, x.detach(), retain_graph=True)
    assert node.op.name == name
    assert g.shape == (2, 3)
    for axis in (True, 2, -3, 1.0):
        with pytest.raises((EverygradError, TypeError)):
            function(x, axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [1e-5, 0.25])
def test_scaled_rows(eps: float, dtype: str) -> None:
    rng = np.random.default_rng(0)
    sets = [(rng.standard_normal(s).astype(dtype), *rng.standard_normal((2, s[-1])).astype(dtype))
            for s in ((5,), (3, 7), (2, 3, 4), (30, 600))]  # fmt: skip
    sets += [(sets[1][0][:, ::2], sets[1][1][:4], sets[1][2][::2])]

    def results() -> list[Any]:
        found = []
        for arrays in sets:
            for wants in range(8):
                xs = [eg.tensor(a) for a in arrays]
                for i, x in enumerate(xs):
                    x.requires_grad_(bool(wants >> i & 1))
                out = eg.layer_norm(xs[0], (arrays[0].shape[-1],), xs[1], xs[2], eps)
                found.append(out.detach().numpy())
                leaves = [x for x in xs if x.requires_grad]
                if leaves:
                    grads = eg.autograd.grad(out, leaves, eg.tensor(arrays[0]))
                    found += [g.numpy() for g in grads]
        return found

    before = results()
    x, w = eg.ones((2, 3), dtype=dtype).requires_grad_(), eg.ones((3,), dtype=dtype)
    for _ in range(fast_calls.LOADED_MANY + 9):
        eg.layer_norm(x, (3,), w, w, eps)
    for got, want in zip(results(), before, strict=True):
        _same(got, want)
    for shape, weight, bias in (((4,), w, w), ((3,), eg.ones((4,)), w), ((3,), w, eg.ones((2, 3)))):
        with pytest.raises(ShapeError):
            eg.layer_norm(x, shape, weight, bias, eps)
    mixed = eg.layer_norm(x, (3,), w, None, eps)
    assert mixed.shape == (2, 3)


# --- any op --------------------------------------------------------------------------------------

WITH_KERNELS = [
    name
    for family in ("kernel", "reduction", "movement")
    for name in BY_FAMILY[family]
    if name in dispatch.CPU.kernels and name != "to"
]


def _of_samples(op: Any) -> list[Any]:
    """The payloads and the nodes that an op's samples lead to, and the gradients."""
    found: list[Any] = []
    for sample in few_samples_of(op, "cpu"):
        made = map_sample(sample, to_tensor("cpu"))
        for x in leaves_of(made):
            x.requires_grad_(x.dtype.is_differentiable)
        eg.manual_seed(3)
        outs = call(function_of(op), made)
        for out in outs:
            node = out._node
            found += [out._data, node and (node.op.name, str(node.params), node.shape)]
            found += [None if node is None else [p and p.shape for p in node.parents]]
            if node is not None:
                found += [v for v in node.saved if isinstance(v, np.ndarray)]
        loss = [out.abs().sum() for out in outs if out.requires_grad]
        if loss:
            sum(loss[1:], loss[0]).backward()
            found += [None if x.grad is None else x.grad._data for x in leaves_of(made)]
    return found


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = REGISTRY[name]
    monkeypatch.setattr(dispatch, "_native_apply", None)
    monkeypatch.setattr(dispatch, "_heat", fast_calls.Heat())
    want = _of_samples(op)
    native = fast_calls.apply(dispatch.CPU.kernels, dispatch.record)
    monkeypatch.setattr(dispatch, "_native_apply", native)
    got = _of_samples(op)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if isinstance(b, np.ndarray):
            assert a.dtype is b.dtype
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b


def test_apply_counts_its_references(monkeypatch: pytest.MonkeyPatch) -> None:
    native = fast_calls.apply(dispatch.CPU.kernels, dispatch.record)
    assert native is not None
    x, y = eg.ones((3, 4)).requires_grad_(), eg.ones((4, 2))
    matmul, add, wrong = REGISTRY["matmul"], REGISTRY["add"], eg.ones((3, 2))
    given, bad, params = (x, y), (x, wrong), {"axes": (0,), "keepdims": False}
    kernel = dispatch.CPU.kernels["matmul"]
    watched = [x, x._data, x._node, y, y._data, wrong._data, matmul, add, kernel, given, params,
               None, True, False, NotImplemented, "matmul", eg.Tensor]  # fmt: skip

    def calls() -> None:
        for _ in range(300):
            assert native(matmul, given, {})._node.saved is not None
            native(REGISTRY["sum"], (x,), params)
            assert native(add, given, {}) is None  # it has no kernel
            assert native(matmul, (x, 2.0), {}) is None
            assert native(matmul, (), {}) is None
            with pytest.raises(ValueError, match="matmul"):
                native(matmul, bad, {})
            with pytest.raises(TypeError):
                native(matmul, given, {"axis": 0})

    calls()
    before = [sys.getrefcount(held) for held in watched]
    calls()
    after = [sys.getrefcount(held) for held in watched]
    assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True)), (before, after)
    with eg.no_grad():
        assert native(matmul, given, {})._node is None
    with eg.detect_anomaly():
        assert native(matmul, given, {}) is None
    with eg.autocast(dtype="bfloat16"):
        assert native(matmul, given, {}) is None
    monkeypatch.setitem(dispatch.CPU.kernels, "matmul", lambda x, y: NotImplemented)
    assert native(matmul, given, {}) is None
