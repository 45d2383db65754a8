"""A function that is found in two places takes the same arguments in both."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F

# what a place may take besides: it makes no difference, or is of that place alone
BESIDES = {"inplace", "names", "generator"}


def parameters(function: Any) -> dict[str, Any]:
    """Names and defaults; of a method too the tensor is the first."""
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.name not in BESIDES}


def pairs() -> list[tuple[str, Any, Any]]:
    """Every name that stands in two places, with the functions there."""
    found = []
    for part in (F, eg.linalg, eg.fft, eg.special):
        for name in dir(part):
            ours = getattr(eg, name, None) if name[0] != "_" and name in eg.__all__ else None
            theirs = getattr(part, name)
            if inspect.isfunction(ours) and inspect.isfunction(theirs):
                found.append((f"{part.__name__}.{name}", ours, theirs))
    for name in eg.__all__:
        method = vars(eg.Tensor).get(name)
        if inspect.isfunction(method) and inspect.isfunction(getattr(eg, name)):
            found.append((f"Tensor.{name}", getattr(eg, name), method))
    return found


# two things of one name, as the Array API and PyTorch have them
OTHER_THINGS = {
    "everygrad.special.beta": "a function of two numbers; eg.beta draws from a distribution",
    "everygrad.linalg.diagonal": "of the last two axes; eg.diagonal of the first two",
    "everygrad.linalg.norm": "of vectors or of matrices, by ord; eg.norm of all elements, by p",
    "everygrad.linalg.vander": "of batches; eg.vander is NumPy's",
}


def test_there_are_many() -> None:
    names = {name for name, *_ in pairs()}
    assert len(names) > 250
    wanted = ("pad", "softplus", "gelu", "embedding", "unfold")
    assert {f"everygrad.nn.functional.{n}" for n in wanted} <= names
    assert {f"Tensor.{n}" for n in ("pad", "softplus", "gelu", "unfold")} <= names


@pytest.mark.parametrize(("name", "ours", "theirs"), pairs())
def test_signatures_are_one(name: str, ours: Any, theirs: Any) -> None:
    a, b = parameters(ours), parameters(theirs)
    if name in OTHER_THINGS:
        assert a != b
    else:
        assert list(a.items()) == list(b.items())


def test_the_five_compute_one_thing(device: str) -> None:
    x = eg.tensor(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4) - 12.0).to(device)
    table, index = eg.randn((4, 3)).to(device), eg.tensor([[0, 3], [2, 2]]).to(device)
    images = x.reshape((1, 2, 3, 4))
    for calls in (
        [f(x, (1, 2), "reflect") for f in (eg.pad, eg.Tensor.pad, F.pad)],
        [f(x, (1, 2, 0, 1), value=2.0) for f in (eg.pad, eg.Tensor.pad, F.pad)],
        [f(x, approximate="tanh") for f in (eg.gelu, eg.Tensor.gelu, F.gelu)],
        [f(x, 2.0, 10.0) for f in (eg.softplus, eg.Tensor.softplus, F.softplus)],
        [f(index, table, 2) for f in (eg.embedding, F.embedding)],
        [f(x, axis=2, size=2, step=2) for f in (eg.unfold, eg.Tensor.unfold, F.unfold)],
        [f(images, kernel_size=2, padding=1) for f in (eg.unfold, eg.Tensor.unfold, F.unfold)],
        [f(images, 2, padding=1) for f in (eg.unfold, eg.Tensor.unfold, F.unfold)],
        [f(images, (2, 1), 1, 1, 2) for f in (eg.unfold, eg.Tensor.unfold, F.unfold)],
    ):
        first, *others = [c.numpy() for c in calls]
        assert others
        for other in others:
            np.testing.assert_array_equal(first, other)


def test_unfold_of_pytorch_programs() -> None:
    x = np.arange(48.0, dtype=np.float32).reshape(1, 2, 4, 6)
    ours, theirs = eg.tensor(x), torch.tensor(x)
    for places, names in (
        ((2,), {}),
        ((2,), {"stride": 2}),
        (((2, 3),), {"padding": 1}),
        (((2, 3), 1, 1), {}),
        (([2, 3], 1, 1, 2), {}),
        ((), {"kernel_size": 2, "dilation": 2}),
    ):
        wanted = torch.nn.functional.unfold(theirs, *places, **names).numpy()
        np.testing.assert_array_equal(F.unfold(ours, *places, **names).numpy(), wanted)
    np.testing.assert_array_equal(ours.unfold(3, 2, 2).numpy(), theirs.unfold(3, 2, 2).numpy())
    windows = theirs.unfold(dimension=3, size=2, step=1).numpy()
    np.testing.assert_array_equal(ours.unfold(dimension=3, size=2, step=1).numpy(), windows)
    for places in ((2, 1), (2, 1, 1), (2, 1, 1, 2)):
        with pytest.raises(ArgumentError, match="by name, as kernel_size=2"):
            F.unfold(ours, *places)
    for wrong in ({"stride": 2}, {"padding": 1}):
        with pytest.raises(ArgumentError, match="give kernel_size=2 by name, or windows a step"):
            ours.unfold(2, 2, **wrong)
    with pytest.raises(ArgumentError, match="dilation is given twice, as 1 and 2"):
        ours.unfold((2, 2), 1, dilation=2)
    with pytest.raises(ArgumentError, match="not both"):
        ours.unfold(2, 2, kernel_size=2)
