"""A write to a view is refused or visible, never lost: for every op that gives a view, on every
device, eager and compiled, recorded or not. `VIEWS` is what the README says names share."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.core.tensor import held_source
from everygrad.errors import ViewError
from everygrad.ops.record.spec import REGISTRY, Sample
from tests.support.checks import (
    WITH_SAMPLES,
    call,
    few_samples_of,
    fitted,
    function_of,
    map_sample,
    samples_of,
    to_tensor,
    values,
)

# ops whose results are views of their first input (of each, where they take several)
VIEWS = {
    *("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_to", "chunk"),
    *("diag", "diagonal", "expand", "expand_dims", "flatten", "flip", "getitem"),
    *("linalg_diagonal", "matrix_transpose", "moveaxis", "permute_dims", "ravel", "reshape"),
    *("rot90", "slice", "split", "squeeze", "swapaxes", "tensor_split", "unbind", "unflatten"),
    *("unfold", "unstack"),
}
# and ways that are no ops of the registry
WAYS: dict[str, Callable[[Any], Any]] = {
    "row": lambda x: x[0],
    "row of rows": lambda x: x[0][1],
    "slice": lambda x: x[1:, ::2],
    "whole": lambda x: x[...],
    "new axis": lambda x: x[None, :, 0],
    "view of a view": lambda x: x.reshape(-1)[2:].reshape(2, -1),
    "same shape": lambda x: x.reshape(x.shape),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "detach": lambda x: x.detach(),
    "detached row": lambda x: x.detach()[1],
    "iteration": lambda x: next(iter(x)),
    "meshgrid": lambda x: eg.meshgrid(x[0], x[1])[0],
    "einsum": lambda x: eg.einsum("ij->ji", x),
    "einsum of nothing": lambda x: eg.einsum("ij->ij", x),
    "Flatten": lambda x: eg.nn.Flatten(0)(x),
    "view_as_complex": lambda x: eg.view_as_complex(x.reshape(6, 2)),
    "view_as_real": lambda x: eg.view_as_real(eg.view_as_complex(x.reshape(6, 2))),
}


def augment(y: Any) -> None:
    y += 7.0


def augment_attribute(y: Any) -> None:
    class Keeper:
        part = y

    Keeper.part *= 7.0


def augment_item(y: Any) -> None:
    held = [y]
    held[0] -= 7.0


AUGMENTED = {"+=": augment, "attribute": augment_attribute, "held item": augment_item}
WRITES: dict[str, Callable[[Any], Any]] = {
    **AUGMENTED,
    "all": lambda y: operator.setitem(y, ..., 7.0),
    "mask": lambda y: operator.setitem(y, y == y, 7.0),
    "init": lambda y: eg.nn.init.constant_(y, 7.0),
}
INSIDE_JIT = {name: write for name, write in WRITES.items() if name != "mask"}


def made(device: str, shape: tuple[int, ...] = (3, 4)) -> Any:
    array = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    return eg.tensor(fitted(array, device), device=device)


def own(y: Any) -> Any:
    """An independent copy of the value, on the CPU."""
    return np.array(values(y))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("way", WAYS)
def test_a_view_of_a_tensor_in_use_refuses(way: str, write: str, device: str) -> None:
    x = made(device)
    before = own(x)
    y = WAYS[way](x)
    seen = own(y)
    with pytest.raises(ViewError, match="is a view of a tensor"):
        WRITES[write](y)
    np.testing.assert_array_equal(own(x), before)
    np.testing.assert_array_equal(own(y), seen)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("way", WAYS)
def test_a_view_that_alone_is_left_takes_writes(way: str, write: str, device: str) -> None:
    y = WAYS[way](made(device))
    WRITES[write](y)
    was = values(WAYS[way](made("cpu")))
    want = {"+=": was + 7.0, "attribute": was * 7.0, "held item": was - 7.0}
    np.testing.assert_array_equal(own(y), want.get(write, np.full(y.shape, 7.0)))


@pytest.mark.parametrize("write", INSIDE_JIT)
@pytest.mark.parametrize("way", WAYS)
def test_inside_jit_as_in_eager_mode(way: str, write: str, device: str) -> None:
    def lost(x: Any) -> Any:
        y = WAYS[way](x)
        INSIDE_JIT[write](y)
        return x, y

    def kept(x: Any) -> Any:
        y = WAYS[way](x * 1.0)
        INSIDE_JIT[write](y)
        return y

    x = made(device)
    before = own(x)
    with pytest.raises(ViewError, match="is a view of a tensor"):
        eg.jit(lost)(x)
    np.testing.assert_array_equal(own(x), before)
    np.testing.assert_array_equal(own(eg.jit(kept)(x)), own(kept(x)))


@pytest.mark.parametrize("way", WAYS)
def test_recorded_views_refuse_too(way: str, device: str) -> None:
    x = made(device).requires_grad_()
    y = x * 2.0
    part = WAYS[way](y)
    with pytest.raises(ViewError):
        part[...] = 7.0
    loss = (part * part).sum()
    if "detach" in way:
        assert not loss.requires_grad
        return
    del y
    part[...] = part * 3.0  # nobody else has what it was a view of
    eg.real(part).sum().backward()
    touched = own(x.grad) != 0
    assert touched.any()
    repeats = 4.0 if way == "meshgrid" else 1.0
    np.testing.assert_array_equal(own(x.grad)[touched], 6.0 * repeats)


def _results(name: str, sample: Sample, device: str) -> tuple[list[Any], list[Any]]:
    given: list[Any] = []

    def tensor(array: Any) -> Any:
        given.append(to_tensor(device)(array))
        return given[-1]

    return given, call(function_of(REGISTRY[name]), map_sample(sample, tensor))


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_every_view_of_the_registry_refuses(name: str, device: str) -> None:
    refused = 0
    for sample in samples_of(REGISTRY[name], device):
        given, outs = _results(name, sample, device)
        before = [own(x) for x in given]
        for y in outs:
            if held_source(y) is None:  # an index of values, a matrix made of its diagonal
                assert name in ("getitem", "diag") or any(y is x for x in given)
                continue
            for write in WRITES.values():
                with pytest.raises(ViewError):
                    write(y)
            refused += 1
        assert all(np.array_equal(own(x), b) for x, b in zip(given, before, strict=True))
    assert refused


@pytest.mark.parametrize("name", sorted({*WITH_SAMPLES} - VIEWS))
def test_every_other_result_takes_writes(name: str, device: str) -> None:
    """What is no view is a value of its own: a write is visible there, and nowhere else."""
    for sample in few_samples_of(REGISTRY[name], device):
        given, outs = _results(name, sample, device)
        before = [own(x) for x in given]
        for y in outs:
            if not isinstance(y, eg.Tensor) or any(y is x for x in given):
                continue
            assert held_source(y) is None, name
            y[...] = y == y if y.dtype is eg.bool else 1
            assert (own(y) == 1).all()
        for x, b in zip(given, before, strict=True):
            np.testing.assert_array_equal(own(x), b)


def test_augmented_assignment_to_items_works(device: str) -> None:
    """`x[i] += v` asks a view for its sum first, and then writes it: NumPy says what comes out."""
    x, a = made(device), own(made(device))
    for t in (x, a):
        t[0] += 1
        t[0, 1] *= 2
        t[1:3] -= 3
        t[:, 0] /= 2
        t[...] += 1
        t[t > 5] += 0.5
        t[[0, 2]] *= 2
        t[1] = operator.iadd(t[1], 2.0)  # what array-api-extra's at() does
    np.testing.assert_allclose(own(x), a, rtol=1e-6)

    def inside(t: Any) -> Any:
        t = t * 1.0
        t[0] += 1
        t[1:3] *= t[0:2]
        t[:, 1] -= 2
        return t

    np.testing.assert_allclose(own(eg.jit(inside)(x)), own(inside(x)), rtol=1e-6)


def test_an_augmented_name_is_refused_with_the_forms_that_work(device: str) -> None:
    x = made(device)
    for row in x:
        with pytest.raises(ViewError, match=r"__iadd__.*x\[i\] \+= v.*y = y \+ v"):
            row += 1
    with pytest.raises(ViewError):
        x[0][1] += 1  # writes an item of x[0]
    y = x[0]
    y = y + 1
    y += 1
    np.testing.assert_array_equal(own(x), own(made(device)))


def test_the_forms_of_the_issue(device: str) -> None:
    x = made(device)
    with pytest.raises(ViewError, match=r"x\[0, 1\] = 5 for x\[0\]\[1\] = 5"):
        x[0][1] = 5
    with pytest.raises(ViewError, match=r"\(12,\) is a view of a tensor \(3, 4\)"):
        x.reshape(-1)[0] = 42
    for row in x:
        with pytest.raises(ViewError):
            row[:] = 3
    x[0, 1] = 5
    assert own(x)[0, 1] == 5


def test_rows_of_what_only_the_loop_holds_take_writes(device: str) -> None:
    kept = []
    for row in made(device) * 2.0:
        row[0] = -1.0
        kept.append(row)
    want = own(made("cpu")) * 2.0
    want[:, 0] = -1.0
    np.testing.assert_array_equal(np.stack([own(row) for row in kept]), want)
    x = made(device)
    for row in x.reshape(4, 3):  # only the loop holds this view, but it is one of x
        with pytest.raises(ViewError):
            row[0] = -1.0


def test_copies_are_nobodys_views(device: str) -> None:
    x = made(device)
    for y in (x.clone(), eg.tensor(x), eg.asarray(x, copy=True), x.astype(x.dtype), x.to(device),
              x[0:2].clone(), eg.tile(x, (1, 1)), eg.roll(x, 0), eg.concat([x]), +x,
              eg.interpolate(x[None], size=4)):  # fmt: skip
        y[0] = -1.0
        assert (own(y)[0] == -1).all()
    np.testing.assert_array_equal(own(x), own(made(device)))


def test_a_write_to_the_source_leaves_its_views_as_they_are(device: str) -> None:
    """Nothing you hold changes under you, and a view stays a view of the name it was made of."""
    x = made(device)
    row = x[0]
    x[0, 0] = 100.0
    assert own(row)[0] == 1.0
    assert own(x)[0, 0] == 100.0
    with pytest.raises(ViewError):
        row[0] = 2.0


def test_gradients_are_nobodys_views() -> None:
    """`.grad` can be scaled, whatever rule it came from and whoever else keeps a gradient."""
    x = made("cpu").requires_grad_()
    y = x.reshape(-1)
    y.retain_grad()
    g = eg.ones((12,), dtype="float64")
    y.backward(g)
    assert x.grad is not None
    assert y.grad is not None
    x.grad[0] = 5.0
    x.grad *= 2.0
    y.grad += 1.0
    assert [own(t).flat[0] for t in (x.grad, y.grad, g)] == [10.0, 2.0, 1.0]
    (again,) = eg.vjp(lambda t: t.reshape(-1), made("cpu"))[1](g)
    again[0] = 5.0
    assert own(g)[0] == 1.0


def test_a_leaf_is_a_variable_of_its_own(device: str) -> None:
    x = made(device)
    w = x.detach().requires_grad_()
    (w * w).sum().backward()
    with eg.no_grad():
        w -= 0.5 * w.grad
        w[0] = 7.0
    assert own(w)[:2].tolist() == [[7.0] * 4, [0.0] * 4]
    np.testing.assert_array_equal(own(x), own(made(device)))


def test_a_long_chain_of_views_keeps_nothing() -> None:
    x = made("cpu")
    y = x.T
    for _ in range(10_000):
        y = y.T
    links, link = 0, y._source
    while link is not None:
        links, link = links + 1, link[1]
    assert links <= 3
    with pytest.raises(ViewError):
        y[0] = 1.0
    del x
    y[0] = 1.0


def test_garbage_holds_nothing() -> None:
    """A source that only a cycle of unreachable objects holds is in nobody's hands."""
    x = made("cpu")
    y = x.reshape(-1)
    cycle: list[Any] = [x]
    cycle.append(cycle)
    del x, cycle
    y[0] = 5.0
    assert own(y)[0] == 5.0


def test_views_inside_transformations() -> None:
    def lost(x: Any) -> Any:
        x.reshape(-1)[0] = 1.0
        return (x * x).sum()

    x = made("cpu")
    for transformed in (eg.vmap(lost), eg.grad(lost), lambda x: eg.jvp(lost, (x,), (x,))):
        with pytest.raises(ViewError):
            transformed(x)

    def kept(x: Any) -> Any:
        y = (x * 1.0).reshape(-1)
        y[0] = 1.0
        return (y * y).sum()

    np.testing.assert_array_equal(own(eg.vmap(kept)(x)), [own(kept(row)) for row in x])
    want = 2.0 * own(x)
    want[0, 0] = 0.0
    np.testing.assert_array_equal(own(eg.grad(kept)(x)), want)
