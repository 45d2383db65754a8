"""PyTorch's and NumPy's names that work: each computes what PyTorch computes, eagerly and compiled.

One row a name: the arguments, arrays standing for tensors. A name is called as a function, and as a
method if it is one, of both libraries.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from devtools.torch_lists import absent, names_of
from everygrad.core import torch_names
from everygrad.errors import ArgumentError

pytestmark = [
    pytest.mark.needs("float64"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),  # PyTorch's of what it calls deprecated
]

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4))
V, W = RNG.standard_normal(4), RNG.standard_normal(4)
CUBE, OTHER = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 4, 5))
SQUARE = RNG.standard_normal((3, 3)) + 3 * np.eye(3)
SPD = SQUARE @ SQUARE.T
FACTOR = np.linalg.cholesky(SPD)
INTS = np.array([[12, -18, 7], [0, 5, 30]])
MORE = np.array([[8, 27, 14], [6, -5, 0]])
UNIT = RNG.uniform(0.1, 0.9, (3, 4))
INDEX = np.array([[0, 2, 1, 1], [2, 0, 0, 3], [1, 1, 3, 0]])
ROWS = np.array([0, 2])
MASK = X > 0
COMPLEX = X + 1j * Y
RUNS = np.array([3.0, 3.0, 1.0, 1.0, 1.0, 3.0])

# name -> calls: positional arguments, and keywords in a dict at the end
CALLS: dict[str, list[tuple[Any, ...]]] = {
    **{n: [(X,)] for n in ("absolute", "neg", "fix", "sgn", "numel", "t", "fliplr", "flipud")},
    **{n: [(X,)] for n in ("conj_physical", "resolve_conj", "resolve_neg", "i0")},
    **{n: [(X,)] for n in ("is_complex", "is_floating_point", "is_signed", "is_conj", "is_neg")},
    **{n: [(UNIT,)] for n in ("arccos", "arcsin", "arctan", "arctanh", "arcsinh", "logit")},
    **{n: [(UNIT,)] for n in ("digamma", "lgamma", "erfc", "erfinv", "isposinf", "isneginf")},
    **{n: [(X, Y)] for n in ("eq", "ne", "lt", "le", "gt", "ge", "mul", "sub", "true_divide")},
    **{n: [(X, Y)] for n in ("arctan2", "dist", "is_same_size", "logaddexp2", "rsub")},
    **{n: [(V, W)] for n in ("ger", "dot", "vdot", "inner")},
    **{n: [(SQUARE,)] for n in ("det", "inverse", "matrix_exp", "pinverse", "trace")},
    **{n: [(INTS, MORE)] for n in ("gcd", "lcm")},
    **{n: [(X, 1, True), (CUBE, 0, False)] for n in ("prod", "nansum")},
    **{n: [(X, 1, True), (INTS, {"dtype": "float64"})] for n in ("sum", "mean")},
    "einsum": [("ij,kj->ik", [X, Y]), ("ij->j", [X])],
    "flip": [(CUBE, (0, 1)), (CUBE, [2])],
    "addbmm": [(X[:, :3] @ np.ones((3, 5)), CUBE, OTHER, {"alpha": 0.5})],
    "addmm": [(np.ones((3, 3)), X, Y.T, {"beta": 2.0, "alpha": 0.5}), (np.ones(3), X, Y.T)],
    "addmv": [(np.ones(3), X, V), (np.ones(3), X, V, {"beta": 0.0})],
    "addr": [(np.ones((4, 4)), V, W, {"beta": 3.0})],
    "adjoint": [(COMPLEX,), (CUBE,)],
    "arccosh": [(1 + UNIT,)],
    "baddbmm": [(np.ones((2, 3, 5)), CUBE, OTHER)],
    "bitwise_not": [(INTS,), (MASK,)],
    "bmm": [(CUBE, OTHER)],
    "cat": [([X, Y],), ([X, Y], 1), ([X, Y], {"dim": -1})],
    "chain_matmul": [(X, Y.T, X)],
    "cholesky": [(SPD,)],
    "cholesky_inverse": [(FACTOR,)],
    "cholesky_solve": [(X[:, :2], FACTOR)],
    "clamp_max": [(X, 0.3)],
    "clamp_min": [(X, 0.3)],
    "column_stack": [([V, W],), ([X, Y],)],
    "combinations": [(V,), (V, {"r": 3}), (V, {"with_replacement": True})],
    "complex": [(X, Y)],
    "concatenate": [([X, Y], {"dim": 1})],
    "cross": [(SQUARE, SPD, {"dim": 1}), (SQUARE, SPD)],
    "cumulative_trapezoid": [(X,), (X, {"dx": 0.5, "dim": 0}), (X, np.sort(V))],
    "diagflat": [(X,), (V, {"offset": 1})],
    "diagonal_scatter": [(X, V[:3]), (X, V[:2], {"offset": -1}), (CUBE, OTHER[0, :, :2])],
    "div": [(X, Y), (X, Y, {"rounding_mode": "trunc"}), (INTS, 7, {"rounding_mode": "trunc"})],
    "dsplit": [(CUBE, 2)],
    "float_power": [(UNIT, 2), (UNIT, Y)],
    "frexp": [(np.array([0.0, 1.0, -3.7, 1e-310, 5e300, 0.5, np.inf]),)],
    "frobenius_norm": [(X, {"dim": (0, 1)})],
    "gradient": [(X,), (X, {"spacing": 0.5, "dim": 1, "edge_order": 2})],
    "histc": [(X, {"bins": 5, "min": -1.0, "max": 1.0}), (X, {"bins": 4})],
    "hsplit": [(X, 2), (V, [1, 3])],
    "igamma": [(UNIT, UNIT.T.reshape(3, 4))],
    "igammac": [(UNIT, UNIT.T.reshape(3, 4))],
    "index_put": [(X, (ROWS, np.array([1, 3])), V[:2]), (X, (ROWS,), V, {"accumulate": True})],
    "index_reduce": [(X, 0, ROWS, Y[:2], "amax"), (X, 1, ROWS, Y[:, :2], "prod")],
    "is_nonzero": [(np.array([2.0]),)],
    "is_tensor": [(X,)],
    "isreal": [(COMPLEX,), (X,)],
    "ldexp": [(X, np.array([1, -2, 0, 3])), (COMPLEX, COMPLEX)],
    "logdet": [(SPD,)],
    "matrix_power": [(SQUARE, 3)],
    "mm": [(X, Y.T)],
    "mode": [(RUNS,), (INTS % 3, {"dim": 0}), (INTS % 3, 1, True)],
    "movedim": [(CUBE, 0, 2)],
    "mv": [(X, V)],
    "mvlgamma": [(UNIT + 3, 2)],
    "narrow": [(X, 1, 1, 2), (X, 0, -2, 1)],
    "nuclear_norm": [(X, {"dim": (0, 1)})],
    "permute": [(CUBE, (2, 0, 1))],
    "polar": [(UNIT, X)],
    "range": [(1.0, 4.0, 0.5)],
    "renorm": [(X, 2, 0, 1.0)],
    "row_stack": [([X, Y],)],
    "scatter_reduce": [
        (X, 1, INDEX, Y, how, {"include_self": own})
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ],
    "select": [(X, 1, 2)],
    "select_scatter": [(X, V, 0, 1), (X, V[:3], 1, -1)],
    "slice_scatter": [(X, Y[:2], {"dim": 0, "start": 1}), (X, Y[:, :2], 1, 0, 4, 2)],
    "slogdet": [(SQUARE,)],
    "split_with_sizes": [(X, [1, 3], {"dim": 1}), (X, [1, 2])],
    "sub": [(X, Y, {"alpha": 2})],
    "swapdims": [(CUBE, 0, -1)],
    "take_along_dim": [(X, INDEX, {"dim": 1}), (X, INDEX)],
    "transpose": [(CUBE, 0, 2), (CUBE, {"dim0": 1, "dim1": -1})],
    "trapz": [(X,), (X, {"dim": 0})],
    "unique_consecutive": [(RUNS, {"return_inverse": True, "return_counts": True})],
    "unravel_index": [(np.array([0, 5, 11]), (3, 4))],
    "unsqueeze": [(X, 0), (X, {"dim": -1})],
    "view_as_complex": [(np.stack([X, Y], -1),)],
    "view_as_real": [(COMPLEX,)],
    "vsplit": [(X, [1])],
}
# the taught name in PyTorch's words, or in its order
SPELLED: dict[str, list[tuple[Any, ...]]] = {
    **{
        n: [(X, {"dim": 1}), (X, {"dim": 0, "keepdim": True}), (X, 1)]
        for n in ("sum", "mean", "max", "min", "argmax", "argmin", "median", "nanmedian", "amax")
    },
    **{n: [(X, {"dim": 1}), (X, {"dim": 0, "unbiased": False})] for n in ("std", "var")},
    **{
        n: [
            (X,),
            (X, 1),
            (X, {"dim": 1}),
            (X, {"dim": 0, "correction": 0}),
            (X, {"unbiased": False}),
        ]
        for n in ("std_mean", "var_mean")
    },
    **{n: [(MASK, {"dim": 1}), (MASK, {"dim": 0, "keepdim": True})] for n in ("all", "any")},
    **{n: [(X, {"dim": 1}), (X, 0)] for n in ("cumsum", "cumprod", "cummax", "logcumsumexp")},
    **{n: [(X, {"dim": 1, "dtype": "float64"}), (X, 0)] for n in ("softmax", "log_softmax")},
    "maximum": [(X, Y)],
    "chunk": [(X, 2, {"dim": 1})],
    "diagonal": [(CUBE, {"dim1": 0, "dim2": 2})],
    "expand": [(V, 3, 4)],
    "flatten": [(CUBE, {"start_dim": 1})],
    "flip": [(X, {"dims": (0, 1)})],
    "gather": [(X, 1, INDEX), (X, {"dim": 0, "index": INDEX % 3})],
    "index_add": [(X, 0, ROWS, Y[:2]), (X, {"dim": 1, "index": ROWS, "source": Y[:, :2]})],
    "index_copy": [(X, 0, ROWS, Y[:2])],
    "index_fill": [(X, 0, ROWS, 3.0)],
    "index_select": [(X, 1, ROWS), (X, {"dim": 0, "index": ROWS})],
    "logsumexp": [(X, {"dim": (0, 1), "keepdim": True})],
    "masked_fill": [(X, MASK, 2.0)],
    "norm": [(X, {"p": 1, "dim": 1})],
    "repeat_interleave": [(X, 2, {"dim": 1})],
    "roll": [(X, {"shifts": 1, "dims": 0})],
    "scatter": [
        (X, 1, INDEX[:, :1], Y[:, :1]),
        (X, 1, INDEX, 2.0, {"reduce": "multiply"}),
        (X, {"dim": 1, "index": INDEX, "value": 2.0}),
    ],
    "scatter_add": [(X, 1, INDEX, Y), (X, {"dim": 1, "index": INDEX, "src": Y})],
    "sort": [(X, {"dim": 0}), (X, 1, True), (X, {"dim": -1, "descending": True})],
    "split": [(X, 2, {"dim": 1})],
    "squeeze": [(X[:, :1], {"dim": 1}), (X, {"dim": 1})],
    "stack": [([X, Y], {"dim": 1})],
    "tensordot": [(X, Y, {"dims": 2})],
    "tile": [(X, (2, 1))],
    "topk": [(X, 2, {"dim": 0})],
    "tril": [(X, {"diagonal": -1})],
    "triu": [(X, {"diagonal": 1})],
    "unbind": [(X, {"dim": 1})],
    "unflatten": [(CUBE, 2, (2, 2)), (CUBE, {"dim": -1, "sizes": (2, 2)})],
}
METHODS: dict[str, list[tuple[Any, ...]]] = {
    **{n: [(X,)] for n in ("double", "float", "half", "bfloat16", "long", "int", "short", "bool")},
    **{n: [(X,)] for n in ("cdouble", "cfloat", "char", "contiguous", "cpu", "dim")},
    **{n: [(X,)] for n in ("element_size", "nelement", "ndimension", "is_contiguous", "stride")},
    **{n: [(CUBE,)] for n in ("size", "storage_offset", "get_device", "is_shared", "is_pinned")},
    "expand_as": [(V, X)],
    "flip": [(CUBE, 0, 1), (CUBE, 2)],
    "tile": [(X, 2, 1), (X, 2), (X, (3, 1, 2))],
    "new_full": [(X, (2, 3), 5.0)],
    "new_ones": [(X, 2, 3), (X, (2, 3))],
    "new_tensor": [(X, [1.0, 2.0])],
    "new_zeros": [(X, 2, 3), (X, (4,))],
    "permute": [(CUBE, 2, 0, 1)],
    "polygamma": [(UNIT, 2)],
    "repeat": [(X, 2, 1)],
    "reshape_as": [(X, CUBE[0].T)],
    "sum_to_size": [(X, 1, 4)],
    "type_as": [(INTS, X)],
    "view": [(X, 2, 6), (X, -1), (X, (4, 3))],
    "view_as": [(X, CUBE[0].T)],
    "where": [(X, MASK, Y)],
}
PROPERTIES = ("H", "mH", "is_cpu", "is_cuda", "is_sparse", "itemsize", "nbytes", "is_quantized")


def rows(*tables: dict[str, list[tuple[Any, ...]]]) -> list[Any]:
    """Each call with its name."""
    return [
        pytest.param(name, call, id=f"{name}-{i}")
        for table in tables
        for name, calls in table.items()
        for i, call in enumerate(calls)
    ]


def given(call: tuple[Any, ...], make: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of one library: arrays become its tensors."""

    def made(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return make(value)
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [make(v) for v in value]
        if isinstance(value, tuple) and value and isinstance(value[0], np.ndarray):
            return tuple(make(v) for v in value)
        return value

    named = call[-1] if isinstance(call[-1], dict) else {}
    plain = call[:-1] if isinstance(call[-1], dict) else call
    return [made(v) for v in plain], {k: made(v) for k, v in named.items()}


def same(ours: Any, theirs: Any) -> None:
    """Tensors by value, shape and kind of dtype, tuples by element, the rest by equality."""
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, eg.Tensor)
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
        want = theirs.detach().resolve_conj()
        want = want.float() if theirs.dtype is torch.bfloat16 else want
        got = ours.detach().numpy().astype(want.numpy().dtype)
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-10, atol=1e-12)
        assert ours.shape == tuple(theirs.shape)
    elif isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    else:
        assert ours == theirs


def torch_dtype(named: dict[str, Any]) -> dict[str, Any]:
    return {k: getattr(torch, v) if k == "dtype" else v for k, v in named.items()}


BY_VALUES = ("is_nonzero", "unique_consecutive", "histc")


@pytest.mark.parametrize(("name", "call"), rows(CALLS, SPELLED))
def test_functions_are_pytorchs(name: str, call: tuple[Any, ...]) -> None:
    args, named = given(call, torch.tensor)
    theirs = getattr(torch, name) if hasattr(torch, name) else getattr(torch.Tensor, name)
    want = theirs(*args, **torch_dtype(named))
    args, named = given(call, eg.tensor)
    function = getattr(eg, name)
    same(function(*args, **named), want)
    if not isinstance(want, bool | int) and name not in BY_VALUES:
        same(eg.jit(lambda *a: function(*a, **named))(*args), want)


def method_rows() -> list[Any]:
    """The calls whose name is a method of both libraries, of a tensor."""
    return [
        row
        for row in rows(CALLS, SPELLED, METHODS)
        if hasattr(torch.Tensor, row.values[0]) and isinstance(row.values[1][0], np.ndarray)
        if row.values[0] not in ("size", "tensordot")
    ]


def test_methods_of_both_are_many() -> None:
    assert len(method_rows()) > 200


@pytest.mark.parametrize(("name", "call"), method_rows())
def test_methods_are_pytorchs(name: str, call: tuple[Any, ...]) -> None:
    args, named = given(call, torch.tensor)
    want = getattr(args[0], name)(*args[1:], **torch_dtype(named))
    args, named = given(call, eg.tensor)
    same(getattr(args[0], name)(*args[1:], **named), want)


def test_gradients_go_through() -> None:
    """What is made of ops has their derivatives: those of PyTorch."""
    checked = 0
    for name in ("max", "sort", "median", "mode", "addmm", "slice_scatter", "logdet", "index_put"):
        call = (CALLS.get(name) or SPELLED[name])[0]
        grads = []
        for library, make in ((eg, eg.tensor), (torch, torch.tensor)):
            args, named = given(call, make)
            args[0].requires_grad_()
            out = getattr(library, name)(*args, **named)
            out = out[0] if isinstance(out, tuple) else out
            (out * out).sum().backward()
            grads.append(args[0].grad.numpy())
        np.testing.assert_allclose(*grads, rtol=1e-9, atol=1e-12)
        checked += 1
    assert checked == 8


def test_linalg_and_special() -> None:
    cases = [
        ("linalg", "norm", (X,)),
        ("linalg", "norm", (X, 1, 1)),
        ("linalg", "norm", (X, "nuc")),
        ("linalg", "norm", (CUBE, {"ord": 2, "dim": (1, 2), "keepdim": True})),
        ("linalg", "vector_norm", (X, 3, 1)),
        ("linalg", "vector_norm", (X, {"ord": 1, "dim": 0, "keepdim": True})),
        ("linalg", "vander", (V, {"N": 3})),
        ("linalg", "tensorinv", (SPD.reshape(3, 3, 1), 1)),
        ("linalg", "tensorsolve", (np.kron(SPD, np.eye(2)).reshape(2, 3, 6), X[:2, :3])),
        ("linalg", "inv_ex", (np.stack([SPD, SQUARE]),)),
        ("linalg", "solve_ex", (SPD, X)),
        ("linalg", "cross", (SQUARE, SPD, {"dim": 0})),
        ("special", "multigammaln", (UNIT + 3, 3)),
        ("special", "softmax", (X, {"dim": 0})),
        ("special", "logsumexp", (X, {"dim": 0})),
        *(("special", f"bessel_{n}", (UNIT,)) for n in ("j0", "j1", "y0", "y1")),
        *(("special", f"modified_bessel_{n}", (UNIT,)) for n in ("i0", "i1")),
        *(("special", n, (UNIT,)) for n in ("exp2", "expm1", "log1p", "round")),
        *(("special", f"chebyshev_polynomial_{k}", (UNIT, 3)) for k in "vw"),
        *(("special", f"shifted_chebyshev_polynomial_{k}", (UNIT, 3)) for k in "tuvw"),
        ("special", "spherical_bessel_j0", (UNIT,)),
        ("fft", "fft", (X, 6, 0, "ortho")),
        ("fft", "fft", (X, {"dim": 0})),
        ("fft", "fftn", (X, {"dim": (0,)})),
    ]
    for part, name, call in cases:
        args, named = given(call, torch.tensor)
        want = getattr(getattr(torch, part), name)(*args, **named)
        args, named = given(call, eg.tensor)
        got = getattr(getattr(eg, part), name)(*args, **named)
        if isinstance(want, torch.Tensor) and want.is_complex():
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-12)
        else:
            same(got, tuple(want) if isinstance(want, tuple) else want)
    assert len(cases) > 30
    singular = eg.tensor(np.stack([np.diag([1.0, 0.0, 2.0]), SPD]))
    for call in (eg.linalg.lu_factor_ex, eg.linalg.inv_ex):
        assert call(singular).info.tolist() == [2, 0]


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_are_pytorchs(name: str) -> None:
    same(getattr(eg.tensor(X), name), getattr(torch.tensor(X), name))


def test_every_name_of_the_tables_is_there() -> None:
    x = eg.tensor(X)
    own = {n for names in torch_names.OWN_METHODS.values() for n in names}
    for name in {*torch_names.SAME_METHODS, *own, *torch_names.OWN_PROPERTIES}:
        assert hasattr(eg.Tensor, name), name
        assert name in dir(x)
    functions = {n for names in torch_names.OWN_FUNCTIONS.values() for n in names}
    for name in {*torch_names.SAME_FUNCTIONS, *functions}:
        assert name in dir(eg)
        assert getattr(eg, name) is not None
        assert name not in eg.__all__  # the taught name is one
    assert len(functions) + len(own) > 150


def test_the_taught_name_is_what_an_alias_is() -> None:
    assert eg.cat is eg.concat
    assert eg.Tensor.view is eg.Tensor.reshape
    assert eg.Tensor.mul is eg.Tensor.multiply
    assert eg.float is eg.float32
    assert eg.inverse is eg.linalg.inv or inspect.unwrap(eg.inverse) is inspect.unwrap(
        eg.linalg.inv
    )


def test_two_names_of_one_parameter_are_refused() -> None:
    x = eg.tensor(X)
    for call in (
        lambda: x.sum(0, dim=1),
        lambda: x.sum(axis=0, dim=1),
        lambda: eg.argmax(x, axis=0, dim=1),
        lambda: eg.concat([x, x], axis=0, dim=1),
        lambda: x.max(1, axis=0),
    ):
        with pytest.raises(ArgumentError, match=r"same parameter|not both"):
            call()
    for wrong in (lambda: x.sum(dimm=1), lambda: eg.argmax(x, dimm=1), lambda: x.max(dimm=1)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'dimm'"):
            wrong()
    with pytest.raises(ArgumentError, match="values never change, out= has no meaning"):
        eg.sum(x, dim=0, out=x)


# PyTorch's words for the tensors of elementwise ops, and its factor of sums and differences
SPELLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "input": ("exp", {"input": X}),
    "input, other": ("add", {"input": X, "other": Y}),
    "an alias": ("mul", {"input": X, "other": Y}),
    "a comparison": ("ge", {"input": X, "other": 0.5}),
    "alpha": ("add", {"input": X, "other": Y, "alpha": 2.5}),
    "alpha of a number": ("add", {"input": X, "other": 3, "alpha": 2}),
    "alpha of integers": ("subtract", {"input": INTS, "other": MORE, "alpha": 2}),
    "alpha and broadcasting": ("sub", {"input": X, "other": V, "alpha": -1}),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_elementwise_ops_by_pytorchs_words(case: str) -> None:
    name, given = SPELLINGS[case]
    arrays = {k: v for k, v in given.items() if isinstance(v, np.ndarray)}
    ours = given | {k: eg.tensor(v) for k, v in arrays.items()}
    expected = getattr(torch, name)(**given | {k: torch.tensor(v) for k, v in arrays.items()})
    for call in (getattr(eg, name), eg.jit(lambda **named: getattr(eg, name)(**named))):
        np.testing.assert_allclose(call(**ours).numpy(), expected.numpy(), rtol=1e-12)


def test_alpha_has_a_derivative_and_is_a_method() -> None:
    x, y = eg.tensor(X, requires_grad=True), eg.tensor(Y, requires_grad=True)
    (x.add(y, alpha=3) + x.subtract(y, alpha=0.5)).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert np.unique(x.grad.numpy()).tolist() == [2.0]
    assert np.unique(y.grad.numpy()).tolist() == [2.5]


WRONG_WORDS = {
    "twice": (lambda x: eg.add(x, x, input=x), ArgumentError, "input and x are the same parameter"),
    "three": (lambda x: eg.multiply(x, x, x), ArgumentError, "the same parameter"),
    "two of one": (lambda x: eg.exp(x, x), ArgumentError, "the same parameter"),
    "no second": (lambda x: eg.add(x), TypeError, "missing a required argument: 'y'"),
    "no first": (lambda x: eg.add(other=x), TypeError, "missing a required argument: 'x'"),
    "nothing": (lambda x: eg.exp(), TypeError, "missing a required argument: 'x'"),
    "alpha alone": (lambda x: eg.add(x, alpha=2), TypeError, "missing a required argument: 'y'"),
    "alpha elsewhere": (lambda x: eg.multiply(x, x, alpha=2), TypeError, "alpha= is for add"),
}


@pytest.mark.parametrize("case", WRONG_WORDS)
def test_words_that_do_not_fit_are_refused(case: str) -> None:
    call, kind, message = WRONG_WORDS[case]
    with pytest.raises(kind, match=message):
        call(eg.tensor(X))


def test_a_dtype_may_stand_where_a_device_does() -> None:
    for name in ("float64", eg.float64):
        assert eg.tensor(X, dtype="float32").to(name).dtype == eg.float64
        assert eg.nn.Linear(2, 3).to(name).weight.dtype == eg.float64
    both = eg.nn.Linear(2, 3).to("cpu", "float64")
    assert (both.weight.device, both.weight.dtype) == ("cpu", eg.float64)
    with pytest.raises(eg.errors.DeviceError, match="'float65' is not available"):
        eg.nn.Linear(2, 3).to("float65")
    with pytest.raises(eg.errors.DtypeError, match="parameters must be floating point"):
        eg.nn.Linear(2, 3).to("int64")


def test_tensordot_takes_a_number_of_axes() -> None:
    x, y = eg.tensor(CUBE), eg.tensor(OTHER.transpose(1, 0, 2))
    for count in (0, 1):
        expected = torch.tensordot(
            torch.tensor(CUBE), torch.tensor(OTHER.transpose(1, 0, 2)), count
        )
        for found in (eg.tensordot(x, y, count), eg.tensordot(x, y, dims=count)):
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_max_by_its_spellings() -> None:
    """axis= is the Array API's tensor; an axis by position or dim= is PyTorch's pair."""
    x = eg.tensor(X)
    values, indices = x.max(1)
    assert x.max(axis=1).tolist() == values.tolist() == x.max(dim=1).values.tolist()
    assert indices.tolist() == x.argmax(axis=1).tolist()
    assert eg.max(x, eg.tensor(Y)).tolist() == eg.maximum(x, eg.tensor(Y)).tolist()
    assert isinstance(x.sort(axis=1), eg.Tensor)


def test_sizes_are_numbers_and_calls() -> None:
    x = eg.zeros(2, 3)
    assert x.size == 6
    assert isinstance(x.size, int)
    assert x.size() == x.shape == (2, 3)
    assert x.size(-1) == x.size(dim=1) == 3
    with pytest.raises(IndexError, match="size: axis 2 is out of range"):
        x.size(2)
    counted = eg.jit(lambda t: t * t.size + t.size(0))
    assert counted(eg.ones((2, 3))).sum().item() == 48.0


def test_switches_and_devices() -> None:
    assert eg.device("cuda", 1) == "cuda:1"
    assert (eg.device("cuda:1").type, eg.device("cuda:1").index) == ("cuda", 1)
    assert eg.zeros(2, device=eg.device("cpu")).device == "cpu"
    assert (eg.zeros(2).device.type, eg.zeros(2).device.index) == ("cpu", None)
    assert json.loads(json.dumps({eg.zeros(2).device: eg.zeros(2).device})) == {"cpu": "cpu"}
    assert (eg.float16.is_floating_point, eg.int8.is_floating_point) == (True, False)
    assert eg.cuda.is_available() in (True, False)
    assert not eg.is_autocast_enabled()
    with eg.amp.autocast(device_type="cpu", dtype=eg.bfloat16):
        assert eg.is_autocast_enabled("cpu")
        assert (eg.ones(2, 2) @ eg.ones(2, 2)).dtype is eg.bfloat16
    assert eg.amp.GradScaler is eg.optim.GradScaler

    @eg.no_grad()
    def doubled(x: Any) -> Any:
        return x * 2

    assert not doubled(eg.ones(2, requires_grad=True)).requires_grad
    assert eg.compile(lambda x: x * 2, mode="max-autotune")(eg.ones(2)).tolist() == [2.0, 2.0]
    state = eg.get_rng_state()
    first = eg.rand(3).tolist()
    eg.set_rng_state(state)
    assert eg.rand(3).tolist() == first
    assert sorted(eg.randperm(5).tolist()) == [0, 1, 2, 3, 4]
    assert eg.randint(3, (100,)).max().item() == 2
    assert eg.randint(0, 3, size=(4,)).shape == eg.randint(3, size=(4,)).shape == (4,)


def test_missing_names_answer_with_the_nearest() -> None:
    for part, wrong, near in (
        (eg, "cumsom", "cumsum"),
        (eg, "softmx", "softmax"),
        (eg.linalg, "eigvalss", "eigvals"),
        (eg.fft, "rffft", "rfft"),
        (eg.special, "digama", "digamma"),
        (eg.autograd, "gradd", "grad"),
        (eg.cuda, "is_availabel", "is_available"),
        (eg.tools, "profil", "profile"),
        (eg.io, "load_latst", "load_latest"),
        (eg.data.transforms, "RandomCropp", "RandomCrop"),
        (eg.distributed, "all_reduc", "all_reduce"),
        (eg.distributions.constraints, "positiv", "positive"),
        (eg.distributions.transforms, "ExpTransfrom", "ExpTransform"),
        (eg.nn.utils.rnn, "pad_sequnce", "pad_sequence"),
        (eg.nn.utils.parametrize, "is_parametrised", "is_parametrized"),
        (eg.nn.utils.parametrizations, "weight_nrom", "weight_norm"),
        (eg.nn.utils.prune, "l1_unstructurd", "l1_unstructured"),
        (eg.nn.utils.stateless, "functional_cal", "functional_call"),
        (eg.training.metrics, "Acuracy", "Accuracy"),
    ):
        with pytest.raises(
            AttributeError, match=rf"has no '{wrong}'; the nearest (is|are) .*{near}"
        ):
            getattr(part, wrong)
    with pytest.raises(AttributeError, match=r"everygrad has no 'zzzzqq'$"):
        _ = eg.zzzzqq
    assert not hasattr(eg, "__wrapped__")


def test_dir_lists_what_works() -> None:
    x = eg.tensor(X)
    listed = dir(x)
    assert {"view", "sum", "reshape", "is_cuda"} <= set(listed)
    assert not {"zero_", "add_", "data_ptr", "grad_fn"} & set(listed)
    broken = [name for name in listed if not hasattr(x, name)]
    assert broken == []


@pytest.mark.parametrize("part", ["torch.linalg", "torch.special", "torch.fft"])
def test_at_most_a_tenth_is_absent(part: str) -> None:
    names = names_of(part)
    lacking = absent(part)
    assert len(names) > 20
    assert len(lacking) <= len(names) / 10
    for name in lacking:
        module = getattr(eg, part.removeprefix("torch."))
        with pytest.raises(AttributeError, match=re.escape(f"has no '{name}'; in place of")):
            getattr(module, name)
