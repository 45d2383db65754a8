"""Derivatives against central differences: the referee for ops and for functions of your own.

A complex number counts as two real ones, its real and its imaginary part. Differences, reverse mode
and forward mode then each give one real Jacobian, and PyTorch's convention says that the three are
equal: the gradient of a real L is dL/dRe z + i dL/dIm z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.autograd.api import grad
from everygrad.autograd.modes import enable_grad, in_inference_mode
from everygrad.autograd.transforms.functional import jvp, vjp
from everygrad.autograd.trees import flatten, leaves_of, paths_of, unflatten
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, FunctionError, GradientError, ShapeError
from everygrad.ops.python.creation import tensor

Array = np.ndarray[Any, np.dtype[Any]]
_DOUBLE = (dtypes.float64, dtypes.complex128)


@dataclass(frozen=True)
class _Value:
    """An input or output: how messages call it, and its numbers."""

    label: str
    array: Array
    device: str = "cpu"

    @property
    def parts(self) -> int:
        return 2 if self.array.dtype.kind == "c" else 1

    def leaf(self, array: Array | None = None, requires_grad: bool = True) -> Tensor:
        """A tensor with these numbers, or with others in their place."""
        values = self.array if array is None else array
        return tensor(values, device=self.device, requires_grad=requires_grad)

    def unit(self, i: int, scale: float = 1.0) -> Array:
        """Zeros but for the i-th real number, which is `scale`."""
        made: Array = np.zeros(self.array.size, self.array.dtype)
        made.view(np.float64)[i] = scale
        return made.reshape(self.array.shape)

    @property
    def reals(self) -> int:
        """How many real numbers it is made of."""
        return self.array.size * self.parts

    def place(self, i: int) -> str:
        """The i-th real number, in words."""
        at = tuple(int(n) for n in np.unravel_index(i // self.parts, self.array.shape))
        part = "" if self.parts == 1 else (", real part", ", imaginary part")[i % 2]
        return f"{at}{part}"

    def __str__(self) -> str:
        return f"{self.label} (shape {self.array.shape})"


@dataclass(frozen=True)
class _Case:
    """What is checked: a function of tensors that gives the outputs that have derivatives."""

    name: str
    run: Callable[[Sequence[Tensor]], list[Tensor]]
    inputs: list[_Value]
    out_label: Callable[[int], str]
    eps: float
    atol: float
    rtol: float

    def outputs(self, tensors: Sequence[Tensor]) -> list[_Value]:
        return [_Value(self.out_label(k), _numbers(t)) for k, t in enumerate(self.run(tensors))]


def gradcheck(
    f: Callable[..., Any],
    inputs: Any,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    check_forward: bool = True,
    raise_exception: bool = True,
) -> bool:
    """True if the derivatives of f at `inputs` agree with central differences.

    inputs           a tensor, or a sequence of arguments (tensors, nested containers of them, or
                     anything else); those that require grad are checked, or all floating ones if
                     none does; float64 or complex128
    eps              the step of the differences
    atol, rtol       |derivative - difference| must be at most atol + rtol * |difference|
    check_forward    compare forward mode too
    raise_exception  a wrong derivative raises GradientError; False returns False instead

    >>> import everygrad as eg
    >>> x = eg.tensor([0.5, 2.0], dtype=eg.float64)
    >>> eg.gradcheck(lambda x: eg.exp(x).sum(), x)
    True
    """
    f_flat, values, _ = _prepared("gradcheck", f, inputs)
    case = _Case("gradcheck", f_flat, values, lambda k: f"output {k}", eps, atol, rtol)
    return _verdict(case, check_forward, raise_exception)


def gradgradcheck(
    f: Callable[..., Any],
    inputs: Any,
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    check_forward: bool = True,
    raise_exception: bool = True,
) -> bool:
    """True if the second derivatives of f at `inputs` agree with differences of the first ones.

    grad_outputs  where the first pass starts, one for each differentiable output; some fixed
                  numbers if not given. The derivative with respect to them is checked as well.
    The rest is as in `gradcheck`.

    >>> import everygrad as eg
    >>> x = eg.tensor([0.5, 2.0], dtype=eg.float64)
    >>> eg.gradgradcheck(lambda x: eg.exp(x).sum(), x)
    True
    """
    name = "gradgradcheck"
    f_flat, values, labels = _prepared(name, f, inputs)
    with enable_grad():
        outs = f_flat([v.leaf() for v in values])
    seeds = _seeds(name, outs, grad_outputs)

    def gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
        xs, gs = tensors[: len(values)], tensors[len(values) :]
        _, pull = vjp(lambda *new: tuple(f_flat(new)), *xs)
        return list(pull(tuple(gs)))

    def label(k: int) -> str:
        return f"the gradient of {labels[k]}"

    case = _Case(name, gradients, [*values, *seeds], label, eps, atol, rtol)
    return _verdict(case, check_forward, raise_exception)


def _prepared(
    name: str, f: Callable[..., Any], inputs: Any
) -> tuple[Callable[[Sequence[Tensor]], list[Tensor]], list[_Value], list[str]]:
    """f as a function of the checked tensors alone, their values, and what to call them."""
    if not callable(f):
        raise ArgumentError(f"{name}: takes a function, got {type(f).__name__}")
    if in_inference_mode():
        raise GradientError(f"{name}: nothing is recorded inside inference_mode(); leave it first")
    args: Any = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    leaves: list[Any]
    leaves, tree = flatten(args, none_is_leaf=True)
    paths = paths_of(args, none_is_leaf=True)
    chosen = _chosen(name, leaves)
    # a flat sequence needs the number only
    labels = [
        f"input {i}" if len(paths[i]) == 1 else f"input {i} at {list(paths[i])}" for i in chosen
    ]
    values = [
        _Value(label, _numbers(leaves[i]), leaves[i].device)
        for label, i in zip(labels, chosen, strict=True)
    ]

    def f_flat(tensors: Sequence[Tensor]) -> list[Tensor]:
        full = list(leaves)
        for i, t in zip(chosen, tensors, strict=True):
            full[i] = t
        out = f(*unflatten(tree, full))
        return _differentiable(name, leaves_of(out, none_is_leaf=True))

    return f_flat, values, labels


def _chosen(name: str, leaves: list[Any]) -> list[int]:
    """The numbers of the inputs to check."""
    floating = [
        i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.dtype.is_differentiable
    ]
    chosen = [i for i in floating if leaves[i].requires_grad] or floating
    if not chosen:
        raise ArgumentError(f"{name}: none of the inputs is a floating-point tensor")
    for i in chosen:
        if leaves[i].dtype not in _DOUBLE:
            wanted = dtypes.complex_of(dtypes.float64) if leaves[i].dtype.is_complex else "float64"
            raise DtypeError(
                f"{name}: input {i} is {leaves[i].dtype}, too coarse for differences; "
                f"cast it with astype(eg.{wanted})"
            )
    return chosen


def _differentiable(name: str, outs: list[Any]) -> list[Tensor]:
    """The outputs that can have a derivative; refuses what differences cannot judge."""
    for k, out in enumerate(outs):
        if not isinstance(out, Tensor):
            kind = type(out).__name__
            raise ArgumentError(f"{name}: the function must return tensors, output {k} is {kind}")
        if out.dtype.is_differentiable and out.dtype not in _DOUBLE:
            raise DtypeError(
                f"{name}: output {k} is {out.dtype}, too coarse for differences; "
                f"let the function keep the dtype of its inputs"
            )
    kept = [out for out in outs if out.dtype.is_differentiable]
    if not kept:
        kinds = ", ".join(str(out.dtype) for out in outs) or "nothing"
        raise GradientError(f"{name}: the function returned {kinds}, which has no derivative")
    return kept


def _seeds(name: str, outs: list[Tensor], given: Any) -> list[_Value]:
    """Gradients to start from: those given, or numbers that are the same every time."""
    if given is None:
        rng = np.random.default_rng(0)
        drawn = [rng.uniform(-1, 1, (2, *out.shape)) for out in outs]
        arrays = [
            d[0] + 1j * d[1] if out.dtype.is_complex else d[0]
            for d, out in zip(drawn, outs, strict=True)
        ]
    else:
        tensors = [given] if isinstance(given, Tensor) else list(given)
        if len(tensors) != len(outs):
            raise ArgumentError(f"{name}: {len(tensors)} grad_outputs for {len(outs)} outputs")
        for k, (g, out) in enumerate(zip(tensors, outs, strict=True)):
            if g.shape != out.shape or g.dtype is not out.dtype:
                raise ShapeError(
                    f"{name}: grad_output {k} is {g.dtype}{list(g.shape)}, "
                    f"output {k} is {out.dtype}{list(out.shape)}"
                )
        arrays = [_numbers(g) for g in tensors]
    return [
        _Value(f"grad_output {k}", a, out.device)
        for k, (a, out) in enumerate(zip(arrays, outs, strict=True))
    ]


def _numbers(x: Tensor) -> Array:
    return np.asarray(x.detach().to("cpu").numpy())


def _verdict(case: _Case, check_forward: bool, raise_exception: bool) -> bool:
    try:
        with enable_grad():
            _check(case, check_forward)
    except GradientError:
        if raise_exception:
            raise
        return False
    return True


def _check(case: _Case, check_forward: bool) -> None:
    leaves = [v.leaf() for v in case.inputs]
    outs = case.run(leaves)
    outputs = [_Value(case.out_label(k), _numbers(t)) for k, t in enumerate(outs)]
    again = case.outputs([v.leaf() for v in case.inputs])
    _same(case, outputs, again, "the function gives different results for the same inputs")
    numeric = _by_differences(case, outputs)
    for k, out in enumerate(outputs):
        reverse = _by_reverse(case, leaves, outs[k], out)
        for j, x in enumerate(case.inputs):
            _compare(case, "reverse mode", out, x, numeric[k][j], reverse[j])
    if check_forward:
        forward = _by_forward(case, outputs)
        for k, out in enumerate(outputs):
            for j, x in enumerate(case.inputs):
                _compare(case, "forward mode", out, x, numeric[k][j], forward[k][j])


def _same(case: _Case, first: list[_Value], second: list[_Value], what: str) -> None:
    cure = "random numbers must be the same in every call: make the Generator inside the function"
    if [v.array.shape for v in first] != [v.array.shape for v in second]:
        shown = " and ".join(str([v.array.shape for v in row]) for row in (first, second))
        raise GradientError(f"{case.name}: {what}: shapes {shown}; {cure}")
    for a, b in zip(first, second, strict=True):
        if not np.array_equal(a.array, b.array, equal_nan=True):
            i = int(np.argmax(_reals(a.array) != _reals(b.array)))
            raise GradientError(
                f"{case.name}: {what}: {a} is {_reals(a.array)[i]:.9g} and then "
                f"{_reals(b.array)[i]:.9g} at {a.place(i)}; {cure}"
            )


def _reals(array: Array) -> Array:
    """All real numbers an array is made of, in a row."""
    flat: Array = np.ascontiguousarray(array).reshape(-1).view(np.float64)
    return flat


def _empty(case: _Case, outputs: list[_Value]) -> list[list[Array]]:
    """For each output and input a Jacobian of zeros."""
    return [[np.zeros((out.reals, x.reals)) for x in case.inputs] for out in outputs]


def _by_differences(case: _Case, outputs: list[_Value]) -> list[list[Array]]:
    found = _empty(case, outputs)
    for j, x in enumerate(case.inputs):
        for i in range(x.reals):
            ends = []
            for step in (case.eps, -case.eps):
                tensors = [v.leaf() for v in case.inputs]
                tensors[j] = x.leaf(x.array + x.unit(i, step))
                ends.append(case.outputs(tensors))
            for k, (up, down) in enumerate(zip(*ends, strict=True)):
                if up.array.shape != outputs[k].array.shape:
                    raise GradientError(
                        f"{case.name}: {outputs[k]} has shape {up.array.shape} when "
                        f"{x.label} changes by {case.eps:g}; it must not depend on values"
                    )
                found[k][j][:, i] = (_reals(up.array) - _reals(down.array)) / (2 * case.eps)
    return found


def _by_reverse(case: _Case, leaves: list[Tensor], root: Tensor, out: _Value) -> list[Array]:
    """The Jacobian of one output for each input, one row from each backward pass."""
    found = [np.zeros((out.reals, x.reals)) for x in case.inputs]
    if not root.requires_grad:
        return found

    def pull(seed: Array) -> list[_Value]:
        g = tensor(seed, device=root.device)
        grads = grad(root, leaves, g, retain_graph=True, allow_unused=True)
        return [_gradient(case, x, t) for x, t in zip(case.inputs, grads, strict=True)]

    for i in range(out.reals):
        for j, row in enumerate(pull(out.unit(i))):
            found[j][i] = _reals(row.array)
    ones = np.ones_like(out.array)
    _same(case, pull(ones), pull(ones), "backward gives different results for the same gradient")
    return found


def _gradient(case: _Case, x: _Value, g: Tensor | None) -> _Value:
    label = f"the gradient of {x.label}"
    if g is None:
        return _Value(label, np.zeros_like(x.array))
    array = _numbers(g)
    if array.shape != x.array.shape or array.dtype != x.array.dtype:
        raise GradientError(
            f"{case.name}: {label} is {array.dtype}{list(array.shape)}, "
            f"the input is {x.array.dtype}{list(x.array.shape)}"
        )
    return _Value(label, array)


def _by_forward(case: _Case, outputs: list[_Value]) -> list[list[Array]]:
    found = _empty(case, outputs)
    primals = [v.leaf(requires_grad=False) for v in case.inputs]
    for j, x in enumerate(case.inputs):
        for i in range(x.reals):
            tangents = [v.leaf(np.zeros_like(v.array), requires_grad=False) for v in case.inputs]
            tangents[j] = x.leaf(x.unit(i), requires_grad=False)
            try:
                _, slopes = jvp(lambda *xs: tuple(case.run(xs)), primals, tangents)
            except FunctionError as error:
                raise FunctionError(
                    f"{error}; check_forward=False checks reverse mode alone"
                ) from error
            for k, slope in enumerate(slopes):
                found[k][j][:, i] = _reals(_numbers(slope))
    return found


def _compare(
    case: _Case, mode: str, out: _Value, x: _Value, numeric: Array, derived: Array
) -> None:
    """Refuse a Jacobian that differs, naming the place where it does so most."""
    if not numeric.size:
        return
    allowed = case.atol + case.rtol * np.abs(numeric)
    off = np.abs(derived - numeric)
    if (off <= allowed).all():  # false for NaN on either side
        return
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off - allowed)))
    row, column = divmod(worst, x.reals)
    n, d = float(numeric[row, column]), float(derived[row, column])
    raise GradientError(
        f"{case.name}: {mode} disagrees with differences: derivative of {out} at "
        f"{out.place(row)} with respect to {x} at {x.place(column)}: {mode} gives {d:.9g}, "
        f"differences give {n:.9g}; they differ by {abs(d - n):.3g}, allowed is "
        f"atol={case.atol:g} + rtol={case.rtol:g} * {abs(n):.3g} = {allowed[row, column]:.3g}"
    )
