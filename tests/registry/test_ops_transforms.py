"""Forward mode, vmap and their nestings: properties that hold for every op of the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import TraceError
from everygrad.ops.record.spec import REGISTRY, Op, Sample
from tests.registry.test_ops_derivatives import DIFFERENTIABLE, few_differentiable
from tests.support.checks import (
    WITH_SAMPLES,
    all_close,
    arrays_of,
    call,
    close,
    directions,
    few_samples_of,
    fitted,
    function_of,
    gradients,
    is_absent,
    is_float,
    is_narrow,
    map_sample,
    refer,
    replaced,
    to_tensor,
    wide,
)


def of_floats(op: Op, sample: Sample, device: str) -> tuple[Callable[..., Any], list[Any]]:
    """The op as a function of its floating-point inputs alone, giving a list; and those inputs."""
    floats = [a for a in arrays_of(sample) if is_float(a)]

    def fn(*xs: Any) -> list[Any]:
        supply = iter(xs)
        given = map_sample(sample, lambda a: next(supply) if is_float(a) else to_tensor(device)(a))
        return call(function_of(op), given)

    return fn, [eg.tensor(a, device=device) for a in floats]


def tangents_for(xs: list[Any], device: str) -> list[Any]:
    rng = np.random.default_rng(1)
    return [eg.tensor(rng.uniform(-1, 1, x.shape), x.dtype, device) for x in xs]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_mode_equals_differences(name: str, device: str) -> None:
    """And it is the transpose of reverse mode: <v, J u> = <J^T v, u>."""
    op = REGISTRY[name]
    step, tolerance = (0.125, 2e-2) if op.notes.get("coarse") else (1e-6, 1e-7)
    for sample in few_differentiable(op, device):
        fn, xs = of_floats(op, sample, device)
        us = tangents_for(xs, device)
        outs, moves = eg.jvp(fn, tuple(xs), tuple(us))
        plain = call(function_of(op), map_sample(sample, to_tensor(device)))
        all_close(outs, plain, 1e-12, f"{name} {sample}")
        ends = []
        for sign in (1, -1):
            moved = [
                np.asarray(wide(x) + sign * step * wide(u)) for x, u in zip(xs, us, strict=True)
            ]
            ends.append(refer(op, replaced(sample, moved)))
        want = [(wide(a) - wide(b)) / (2 * step) for a, b in zip(*ends, strict=True)]
        all_close(moves, want, tolerance, f"{name} {sample}")
        vs = directions(plain)
        grads = gradients(function_of(op), sample, device, vs)[1]
        here = sum(
            float(np.sum(np.real(np.conj(v) * wide(m)))) for v, m in zip(vs, moves, strict=True)
        )
        there = sum(float(np.sum(wide(g) * wide(u))) for g, u in zip(grads, us, strict=True))
        digits = 1e-5 if is_narrow(device) else 1e-9
        assert here == pytest.approx(
            there, rel=1e-2 if op.notes.get("coarse") else digits, abs=digits
        )
        for o, m in zip(outs, moves, strict=True):
            assert (o.shape, o.dtype) == (m.shape, m.dtype)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_order_is_the_same_in_every_nesting(name: str, device: str) -> None:
    """Forward over reverse, reverse over forward and reverse over reverse."""
    op = REGISTRY[name]
    checked = 0
    for sample in few_differentiable(op, device):
        fn, xs = of_floats(op, sample, device)
        us = tangents_for(xs, device)
        plain = call(function_of(op), map_sample(sample, to_tensor(device)))
        if plain[0].dtype.is_complex:
            checked += 1
            continue  # test_torch_referee.py has those
        pairs = zip(directions(plain), plain, strict=True)
        vs = [eg.tensor(v, o.dtype, o.device) for v, o in pairs]

        def loss(*xs: Any, fn=fn, vs=vs) -> Any:
            return sum((v * o).sum() for v, o in zip(vs, fn(*xs), strict=True))

        places = tuple(range(len(xs)))

        def slope(*xs: Any, loss=loss, us=us) -> Any:
            return eg.jvp(loss, xs, tuple(us))[1]

        def along(*xs: Any, loss=loss, places=places, us=us) -> Any:
            grads = eg.grad(loss, argnums=places)(*xs)
            return sum((g * u).sum() for g, u in zip(grads, us, strict=True))

        _, forward = eg.jvp(eg.grad(loss, argnums=places), tuple(xs), tuple(us))
        mixed = eg.grad(slope, argnums=places)(*xs)
        reverse = eg.grad(along, argnums=places)(*xs)
        tolerance = 2e-3 if op.notes.get("coarse") else 1e-9
        all_close(list(forward), list(reverse), tolerance, f"{name} {sample}")
        all_close(list(mixed), list(reverse), tolerance, f"{name} {sample}")
        checked += 1
    assert checked or is_absent(op, device)


# --- vmap ----------------------------------------------------------------------------------------

BATCH = 3


def variants(a: Any) -> list[Any]:
    """BATCH arrays like this one, still within the op's domain."""
    if is_float(a):
        return [np.asarray(a * (1 - 0.04 * i)) for i in range(BATCH)]
    return [np.roll(a.reshape(-1), i).reshape(a.shape) for i in range(BATCH)]


def has_fixed_size(op: Op, sample: Sample) -> bool:
    """Not so with a bool index: the size of the result depends on values."""
    if op.notes.get("by_values"):
        return False
    return op.name != "getitem" or all(a.dtype != bool for a in arrays_of(sample))


def check_vmap(op: Op, sample: Sample, which: list[int], device: str) -> None:
    """The op mapped over the arrays numbered `which` equals a loop over them."""
    arrays = arrays_of(sample)
    supply: list[Any] = []

    def fn(*mapped: Any) -> list[Any]:
        supply[:] = [*mapped]
        count = iter(range(len(arrays)))
        given = map_sample(
            sample, lambda a: supply.pop(0) if next(count) in which else to_tensor(device)(a)
        )
        return call(function_of(op), given)

    sets = [variants(arrays[i]) for i in which]
    loops = [fn(*(eg.tensor(s[b], device=device) for s in sets)) for b in range(BATCH)]
    want = [np.stack([wide(one[k]) for one in loops]) for k in range(len(loops[0]))]
    for axis in (0, -1):
        batched = [eg.tensor(np.stack(s, axis=axis), device=device) for s in sets]
        got = eg.vmap(fn, in_axes=axis, out_axes=0)(*batched)
        all_close(got, want, 1e-11, f"{op.name} {sample} over {which} at {axis}")
        assert [g.dtype for g in got] == [one.dtype for one in loops[0]]
    last = eg.vmap(fn, in_axes=axis, out_axes=-1)(*batched)
    all_close(last, [np.moveaxis(w, 0, -1) for w in want], 1e-11, f"{op.name} {sample}")


# the state of a generator is not an input to map over: random functions have their own rule
@pytest.mark.parametrize("name", [n for n in WITH_SAMPLES if n != "philox"])
def test_vmap_equals_a_loop(name: str, device: str) -> None:
    """Over every input at once, over each alone."""
    op = REGISTRY[name]
    for sample in few_samples_of(op, device):
        count = len(arrays_of(sample))
        # of an empty tensor the standard's unique_... know the size
        empty = name.startswith("unique_") and not all(a.size for a in arrays_of(sample))
        if not has_fixed_size(op, sample) and not empty:
            with pytest.raises(TraceError):
                check_vmap(op, sample, list(range(count)), device)
            continue
        check_vmap(op, sample, list(range(count)), device)
        for i in range(count) if count > 1 else ():
            check_vmap(op, sample, [i], device)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_vmap_of_gradients(name: str, device: str) -> None:
    """Gradients of each example, and the gradient of a sum over a vmap."""
    op = REGISTRY[name]
    checked = 0
    for sample in few_differentiable(op, device):
        fn, xs = of_floats(op, sample, device)
        if call(function_of(op), map_sample(sample, to_tensor(device)))[0].dtype.is_complex:
            checked += 1  # o * o is no real number
            continue
        if not has_fixed_size(op, sample):
            continue  # test_vmap_equals_a_loop: refused

        def loss(*xs: Any, fn=fn) -> Any:
            return sum((o * o).sum() for o in fn(*xs))

        places = tuple(range(len(xs)))
        batched = [eg.tensor(np.stack(variants(wide(x))), x.dtype, device) for x in xs]
        got = eg.vmap(eg.grad(loss, argnums=places))(*batched)
        each = [eg.grad(loss, argnums=places)(*(b[i] for b in batched)) for i in range(BATCH)]
        want = [np.stack([wide(e[k]) for e in each]) for k in places]
        all_close(list(got), want, 1e-9, f"{name} {sample}")
        total = eg.grad(lambda *bs, loss=loss: eg.vmap(loss)(*bs).sum(), argnums=places)(*batched)
        all_close(list(total), want, 1e-9, f"{name} {sample}")
        checked += 1
    assert checked or is_absent(op, device) or op.notes.get("by_values")


def test_vmap_inside_vmap(device: str) -> None:
    rows = [fitted(np.random.default_rng(i).normal(size=(3, 4)), device) for i in (0, 1)]
    x, y = (eg.tensor(r, device=device) for r in rows)
    products = eg.vmap(lambda a: eg.vmap(lambda b: (a * b).sum())(y))(x)
    close(products, wide(x) @ wide(y).T, 1e-12)


def test_mask_inside_vmap_is_refused(device: str) -> None:
    x = eg.ones((3, 4), device=device)
    with pytest.raises(TraceError, match="bool index inside a transformation"):
        eg.vmap(lambda v: v[v > 0])(x)
