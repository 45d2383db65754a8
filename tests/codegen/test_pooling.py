"""Pooling in the kernel language: windows of many kinds over images in several layouts, run by the
interpreter (which finds races and reads out of bounds) and compared with loops in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from everygrad import dtypes
from everygrad.backends.cuda.source.kernel_render import render as cuda_source
from everygrad.backends.webgpu.source.kernel_render import render as wgsl_source
from everygrad.codegen.copy import Layout
from everygrad.codegen.pooling import _UNROLLED, overlap, pooling
from everygrad.ops.nn.conv2d import Window
from tests.codegen.test_gathers import MACHINES, layout, run

PLAIN, LAST = (0, 1, 2, 3), (0, 2, 3, 1)
WINDOWS = [
    Window((2, 2), (2, 2), (0, 0), (1, 1)),
    Window((2, 2), (3, 2), (0, 0), (1, 1)),  # gaps between windows
    Window((3, 3), (2, 2), (1, 1), (1, 1)),
    Window((3, 2), (1, 3), (1, 1), (2, 1)),
    Window((1, 1), (2, 1), (0, 0), (1, 1)),
    Window((2, 3), (2, 2), (1, 1), (2, 3)),
    Window((4, _UNROLLED // 4), (1, 2), (2, 2), (1, 1)),
    Window((4, _UNROLLED // 4 + 1), (4, 5), (2, 2), (1, 1)),  # a loop
]


def taps(window: Window, place: tuple[int, int], image: tuple[int, ...]) -> list[tuple[int, int]]:
    """Where the elements of a window are that lie in the image."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window[:4]
    rows = [place[0] * sh + i * dh - ph for i in range(kh)]
    columns = [place[1] * sw + j * dw - pw for j in range(kw)]
    return [(r, q) for r in rows for q in columns if 0 <= r < image[2] and 0 <= q < image[3]]


def best(x: Any, n: int, c: int, places: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The first largest element; a NaN is larger than numbers."""
    found: tuple[int, int] | None = None
    for at in places:
        v, b = x[n, c][at], None if found is None else x[n, c][found]
        if b is None or v > b or (np.isnan(v) and not np.isnan(b)):
            found = at
    return found


def expected(form: str, x: Any, g: Any, window: Window) -> Any:
    places = window.out_size(x.shape)
    small, wide = np.zeros((*x.shape[:2], *places), x.dtype), np.zeros_like(x)
    index = np.full(small.shape, -1)
    for n, c, r, q in np.ndindex(*small.shape):
        inside = taps(window, (r, q), x.shape)
        found = best(x, n, c, inside)
        if form == "index" and found is not None:
            index[n, c, r, q] = found[0] * x.shape[3] + found[1]
        elif form == "value":
            small[n, c, r, q] = -np.inf if found is None else x[n, c][found]
        elif form == "sum":
            small[n, c, r, q] = sum((x[n, c][at] for at in inside), np.float32(0))
        elif form == "sum spread":
            for at in inside:
                wide[n, c][at] += g[n, c, r, q]
        elif form.startswith("spread") and found is not None:
            wide[n, c][found] += g[n, c, r, q]
    if form == "index":
        return index
    return wide if "spread" in form else small


def images(rng: Any, shape: tuple[int, ...], last: bool) -> Any:
    """Whole numbers, some of them equal; in channels-last memory if `last`."""
    x = rng.integers(-3, 4, shape).astype(np.float32)
    return x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) if last else x


@pytest.mark.parametrize("form", ["value", "index", "spread", "spread apart", "sum", "sum spread"])
@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "core"])
def test_windows(machine: str, form: str) -> None:
    rng, checked = np.random.default_rng(5), 0
    for window in WINDOWS:
        if form == "spread apart" and overlap(window):
            continue
        small = (1, 2, max(1, window.size[0] - 2), 9)  # one place, or none, from top to bottom
        for shape, last in [((2, 3, 7, 8), False), ((2, 3, 6, 9), True), (small, False)]:
            if min(window.out_size(shape)) < 1:
                continue
            x = images(rng, shape, last)
            if form == "value":
                x[0, 0, 0, 0] = np.nan
            g = images(rng, (*shape[:2], *window.out_size(shape)), last)
            want = expected(form, x, g, window)
            index = expected("index", x, g, window)
            reads = {"spread": [g, index], "spread apart": [g, x], "sum spread": [g]}
            arrays = reads.get(form, [x])
            dtype = dtypes.int64 if form == "index" else dtypes.float32
            order = LAST if last else PLAIN
            out = np.zeros([want.shape[a] for a in order], dtype.np)
            made = Layout(dtype, want.shape, ())
            given = tuple(layout(a) for a in arrays)
            lowered = pooling(form, given, window, shape, made, order, MACHINES[machine])
            assert run(lowered, *arrays, out) is None
            found = out.transpose(np.argsort(order))
            np.testing.assert_array_equal(found, want)
            lowered.rendered(wgsl_source if machine == "webgpu" else cuda_source)
            checked += 1
    assert checked >= 7
