"""The fast path of dispatch as native code: what the path in Python gives, to the bit, and no
reference more or less."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.core import fast_calls
from everygrad.core.context import fast_limit
from everygrad.dispatch import binary, unary
from everygrad.errors import GradientError, ShapeError
from everygrad.ops.record.families import Elementwise
from everygrad.ops.record.partials import fast_vjp
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import BY_FAMILY

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
