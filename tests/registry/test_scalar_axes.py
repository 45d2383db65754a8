"""Axis 0 and -1 of a 0-d tensor, in every function that takes an axis, beside PyTorch.

PyTorch takes a 0-d tensor for a row of one element where an op goes along one axis; what needs an
axis to cut, count or join is refused, there and here. A function that takes an axis and is in none
of the tables fails the first test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.errors import EverygradError

torch.set_num_threads(1)
Call = Callable[..., Any]  # of a library, a 0-d tensor, an axis, an index and a source

# called as f(x, axis) in both libraries
ALIKE = """softmax log_softmax cumsum cumprod logcumsumexp cummax cummin argsort mode sort median
nanmedian max min sum mean prod all any amax amin argmax argmin count_nonzero logsumexp nansum
nanmean squeeze unsqueeze"""
CASES: dict[str, Call] = {
    "aminmax": lambda lib, x, d, i, v: lib.aminmax(x, dim=d),
    "cosine_similarity": lambda lib, x, d, i, v: lib.nn.functional.cosine_similarity(x, v, dim=d),
    "flatten": lambda lib, x, d, i, v: lib.flatten(x, d, d),
    "flip": lambda lib, x, d, i, v: x.flip(d),
    "gather": lambda lib, x, d, i, v: x.gather(d, i),
    "gumbel_softmax": lambda lib, x, d, i, v: lib.nn.functional.gumbel_softmax(x, dim=d),
    "hard": lambda lib, x, d, i, v: lib.nn.functional.gumbel_softmax(x, hard=True, dim=d),
    "index_add": lambda lib, x, d, i, v: x.index_add(d, i, v),
    "index_copy": lambda lib, x, d, i, v: x.index_copy(d, i, v),
    "index_fill": lambda lib, x, d, i, v: x.index_fill(d, i, v.detach()),
    "index_reduce": lambda lib, x, d, i, v: x.index_reduce(d, i, v, "prod"),
    "index_select": lambda lib, x, d, i, v: x.index_select(d, i),
    "kthvalue": lambda lib, x, d, i, v: lib.kthvalue(x, 1, d),
    "moveaxis": lambda lib, x, d, i, v: lib.moveaxis(x, d, d),
    "movedim": lambda lib, x, d, i, v: lib.movedim(x, d, d),
    "nanquantile": lambda lib, x, d, i, v: lib.nanquantile(x, 0.5, d),
    "norm": lambda lib, x, d, i, v: lib.norm(x, 2, d),
    "linalg.norm": lambda lib, x, d, i, v: lib.linalg.norm(x, dim=d),
    "linalg.vector_norm": lambda lib, x, d, i, v: lib.linalg.vector_norm(x, dim=d),
    "normalize": lambda lib, x, d, i, v: lib.nn.functional.normalize(x, dim=d),
    "quantile": lambda lib, x, d, i, v: lib.quantile(x, 0.5, d),
    "scatter": lambda lib, x, d, i, v: x.scatter(d, i, v.reshape(i.shape)),
    "number": lambda lib, x, d, i, v: x.scatter(d, i, 3.0),
    "scatter_add": lambda lib, x, d, i, v: x.scatter_add(d, i, v.reshape(i.shape)),
    "scatter_reduce": lambda lib, x, d, i, v: x.scatter_reduce(d, i, v.reshape(i.shape), "sum"),
    "softmin": lambda lib, x, d, i, v: lib.nn.functional.softmin(x, d),
    "method": lambda lib, x, d, i, v: x.softmax(d).sort(d),
    "special.softmax": lambda lib, x, d, i, v: lib.special.softmax(x, d),
    "special.log_softmax": lambda lib, x, d, i, v: lib.special.log_softmax(x, d),
    "special.logsumexp": lambda lib, x, d, i, v: lib.special.logsumexp(x, d),
    "std": lambda lib, x, d, i, v: lib.std(x, dim=d, correction=0),
    "std_mean": lambda lib, x, d, i, v: lib.std_mean(x, dim=d, correction=0),
    "stack": lambda lib, x, d, i, v: lib.stack([x, v], d),
    "swapaxes": lambda lib, x, d, i, v: lib.swapaxes(x, d, d),
    "swapdims": lambda lib, x, d, i, v: lib.swapdims(x, d, d),
    "topk": lambda lib, x, d, i, v: lib.topk(x, 1, d),
    "transpose": lambda lib, x, d, i, v: lib.transpose(x, d, d),
    "unfold": lambda lib, x, d, i, v: x.unfold(d, 1, 1),
    "empty": lambda lib, x, d, i, v: x.unfold(d, 0, 1),
    "var": lambda lib, x, d, i, v: lib.var(x, dim=d, correction=0),
    "var_mean": lambda lib, x, d, i, v: lib.var_mean(x, dim=d, correction=0),
    "linalg.vecdot": lambda lib, x, d, i, v: lib.linalg.vecdot(x, v, dim=d),
}
# ours alone, and what of PyTorch's says the same
OURS: dict[str, tuple[Call, Call]] = {
    "cumulative_prod": (lambda lib, x, d, i, v: lib.cumulative_prod(x, d), lambda x, d: x),
    "cumulative_sum": (lambda lib, x, d, i, v: lib.cumulative_sum(x, d), lambda x, d: x),
    "nanmax": (lambda lib, x, d, i, v: lib.nanmax(x, d), torch.amax),
    "nanmin": (lambda lib, x, d, i, v: lib.nanmin(x, d), torch.amin),
    "standardize": (lambda lib, x, d, i, v: lib.standardize(x, d), lambda x, d: x * 0),
    "take": (lambda lib, x, d, i, v: lib.take(x, i, d), lambda x, d: x),
}
SAME = {  # under another name
    "expand_dims": "unsqueeze", "product": "prod", "vecdot": "linalg.vecdot",
}  # fmt: skip
CUTS = "there is no axis to cut, join or count along"
PAIRS_OF_AXES = "two axes, or all of them"
REFUSED: dict[str, tuple[Call, str]] = {
    "cat": (lambda lib, x, d: lib.cat([x], d), CUTS),
    "chunk": (lambda lib, x, d: lib.chunk(x, 1, d), CUTS),
    "cumulative_trapezoid": (lambda lib, x, d: lib.cumulative_trapezoid(x, dim=d), CUTS),
    "diagonal": (lambda lib, x, d: lib.diagonal(x, 0, d, d), PAIRS_OF_AXES),
    "diff": (lambda lib, x, d: lib.diff(x, 1, d), CUTS),
    "fft.fft": (lambda lib, x, d: lib.fft.fft(x, dim=d), "a transform of one point is a mistake"),
    "glu": (lambda lib, x, d: lib.nn.functional.glu(x, d), "one element has no halves"),
    "gradient": (lambda lib, x, d: lib.gradient(x, dim=d), CUTS),
    "linalg.cross": (lambda lib, x, d: lib.linalg.cross(x, x, dim=d), "needs three elements"),
    "narrow": (lambda lib, x, d: lib.narrow(x, d, 0, 1), CUTS),
    "renorm": (lambda lib, x, d: lib.renorm(x, 2.0, d, 1.0), "norms of slices: none to compare"),
    "repeat_interleave": (lambda lib, x, d: lib.repeat_interleave(x, 3, d), CUTS),
    "roll": (lambda lib, x, d: lib.roll(x, 1, d), CUTS),
    "rot90": (lambda lib, x, d: lib.rot90(x, 1, (d, d)), PAIRS_OF_AXES),
    "select": (lambda lib, x, d: lib.select(x, d, 0), CUTS),
    "select_scatter": (lambda lib, x, d: lib.select_scatter(x, x, d, 0), CUTS),
    "slice_scatter": (lambda lib, x, d: lib.slice_scatter(x, x, d), CUTS),
    "split": (lambda lib, x, d: lib.split(x, 1, d), CUTS),
    "take_along_dim": (lambda lib, x, d: lib.take_along_dim(x, x.long() * 0, d), CUTS),
    "tensor_split": (lambda lib, x, d: lib.tensor_split(x, 1, d), CUTS),
    "tensordot": (lambda lib, x, d: lib.tensordot(x, x, ([d], [d])), CUTS),
    "trapezoid": (lambda lib, x, d: lib.trapezoid(x, dim=d), CUTS),
    "unbind": (lambda lib, x, d: lib.unbind(x, d), CUTS),
    "unflatten": (lambda lib, x, d: lib.unflatten(x, d, (1, 1)), CUTS),
    "unique": (lambda lib, x, d: lib.unique(x, dim=d), CUTS),
    "unique_consecutive": (lambda lib, x, d: lib.unique_consecutive(x, dim=d), CUTS),
}
NOT_OF_ONE_AXIS = {
    PAIRS_OF_AXES: """diag_embed frobenius_norm nuclear_norm permute permute_dims linalg.tensorsolve
        linalg.matrix_norm""",
    "PyTorch has no such function, or refuses it": "categorical permutation take_along_axis repeat",
    "as fft.fft": """fft.fft2 fft.fftn fft.fftshift fft.hfft fft.hfft2 fft.hfftn fft.ifft fft.ifft2
        fft.ifftn fft.ifftshift fft.ihfft fft.ihfft2 fft.ihfftn fft.irfft fft.irfft2 fft.irfftn
        fft.rfft fft.rfft2 fft.rfftn""",
    "other names of what is listed": """cross concat concatenate narrow_copy split_with_sizes trapz
        unsafe_chunk unsafe_split unsafe_split_with_sizes unstack linalg.tensordot windows""",
}
WORDS = {"axis", "axes", "dim", "dims", "axis1", "start_axis", "dim0", "destination"}


def test_every_function_with_an_axis_is_known() -> None:
    known = {*ALIKE.split(), *CASES, *OURS, *SAME, *REFUSED}
    known.update(name for names in NOT_OF_ONE_AXIS.values() for name in names.split())
    missing = []
    for prefix, space in (
        ("", eg), ("linalg.", eg.linalg), ("fft.", eg.fft), ("special.", eg.special),
        ("", eg.nn.functional),
    ):  # fmt: skip
        for name in dir(space):
            function = getattr(space, name)
            if name[0] == "_" or not inspect.isfunction(function):
                continue
            if WORDS & set(inspect.signature(function).parameters) and prefix + name not in known:
                missing.append(prefix + name)
    assert not missing


def cases() -> Iterator[tuple[str, Call, Call]]:
    for name in ALIKE.split():
        yield name, *(2 * [lambda lib, x, d, i, v, name=name: getattr(lib, name)(x, d)])
    for name, both in CASES.items():
        yield name, both, both
    for name, (ours, theirs) in OURS.items():
        yield name, ours, lambda lib, x, d, i, v, theirs=theirs: theirs(x, d)


def flat(out: Any) -> list[Any]:
    return [out] if hasattr(out, "shape") else list(out)


def torch_result(theirs: Call, axis: int, index: Any) -> tuple[list[Any], float]:
    """Values, and the gradient of the sum of those that have one."""
    x = torch.tensor(2.5, requires_grad=True)
    found = flat(theirs(torch, x, axis, torch.tensor(index), torch.tensor(3.0)))
    total = sum(t.sum() for t in found if t.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    return [t.detach().numpy() for t in found], 0.0 if x.grad is None else float(x.grad)


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")  # PyTorch's
@pytest.mark.parametrize(("axis", "index"), [(0, 0), (-1, [0])])
def test_a_scalar_is_a_row_of_one(axis: int, index: Any, device: str) -> None:
    """Values and shapes, eager and in one compiled function, and gradients."""
    names = [name for name, _, _ in cases() if not (name == "take" and index)]
    at, source = eg.tensor(index, device=device), eg.tensor(3.0, device=device)
    theirs = {name: torch_result(call, axis, index) for name, _, call in cases()}

    def run(x: Any, only: str | None = None) -> dict[str, list[Any]]:
        wanted = [c for c in cases() if c[0] in names and only in (None, c[0])]
        return {name: flat(ours(eg, x, axis, at, source)) for name, ours, _ in wanted}

    compiled = eg.jit(run)
    for function in (run, compiled, compiled):
        for name, outs in function(eg.tensor(2.5, device=device)).items():
            values = theirs[name][0]
            assert [o.shape for o in outs] == [v.shape for v in values], name
            for o, v in zip(outs, values, strict=True):
                np.testing.assert_allclose(o.numpy(), v, rtol=1e-5, err_msg=name)
    for name in names:
        x = eg.tensor(2.5, device=device, requires_grad=True)
        total = sum(o.sum() for o in run(x, name)[name] if o.requires_grad)
        if isinstance(total, eg.Tensor):
            total.backward()
        got = 0.0 if x.grad is None else x.grad.item()
        assert got == pytest.approx(theirs[name][1], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_an_axis_is_refused(name: str) -> None:
    call, _ = REFUSED[name]
    for axis in (0, -1):
        with pytest.raises((RuntimeError, IndexError)):
            call(torch, torch.tensor(2.5), axis)
        with pytest.raises(EverygradError):
            call(eg, eg.tensor(2.5), axis)


def test_other_axes_of_a_scalar_are_refused() -> None:
    x, at, source = eg.tensor(2.5), eg.tensor(0), eg.tensor(3.0)
    for _, ours, _ in cases():
        for axis in (1, -2):
            with pytest.raises(EverygradError):
                ours(eg, x, axis, at, source)
