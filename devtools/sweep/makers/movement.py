"""What only moves elements: transposes, concatenation, padding, repetition, casts."""

from __future__ import annotations

from typing import Any

import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Given, Problem


def _any(d: Draw, shape: tuple[int, ...]) -> tuple[Given, str]:
    """Elements of one, two, four or eight bytes."""
    kind = d.pick(("float", "float", "float", "int8", "int32", "int64", "bool"))
    if kind == "float":
        dtype = d.dtype(halves=0.3)
        return d.ties(shape, dtype) if d.chance(0.3) else d.floats(shape, dtype), dtype
    if kind == "bool":
        return d.booleans(shape), "float32"
    return d.integers(shape, -90, 90, kind, layout=True), "float32"


def permute(d: Draw) -> Problem:
    """A copy in another order; addition of nothing makes it one."""
    shape = d.any_shape(least=2)
    order = tuple(d.permuted(len(shape)))
    x, dtype = _any(d, shape)
    return Problem(
        (x,),
        lambda t: eg.permute_dims(t, order).reshape(-1),
        lambda t: t.permute(order).reshape(-1),
        "exact",
        dtype=dtype,
    )


def concat(d: Draw) -> Problem:
    shape = d.any_shape(least=1)
    axis, count = d.between(0, len(shape) - 1), d.pick((1, 2, 3, 5, 17, 33))
    total = max(1, d.elements() // max(1, count))
    dtype = d.dtype(halves=0.3)
    parts = []
    for _ in range(count):
        own = list(shape)
        own[axis] = d.between(0, d.pick((2, 9, 70)))
        while own[axis] and _size(own) > total:
            own[axis] //= 2
        parts.append(d.floats(own, dtype))
    return Problem(
        parts,
        lambda *x: eg.concat(list(x), axis=axis),
        lambda *x: torch.cat(x, axis),
        "exact",
        dtype=dtype,
    )


def _size(shape: Any) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def stack(d: Draw) -> Problem:
    shape, count = d.any_shape(most=3), d.pick((1, 2, 3, 16, 17))
    axis, dtype = d.between(0, len(shape)), d.dtype(halves=0.3)
    return Problem(
        [d.floats(shape, dtype) for _ in range(count)],
        lambda *x: eg.stack(list(x), axis=axis),
        lambda *x: torch.stack(x, axis),
        "exact",
        dtype=dtype,
    )


def pad(d: Draw) -> Problem:
    shape = d.any_shape(least=1)
    widths = [(d.pick((0, 0, 1, 5)), d.pick((0, 0, 1, 17))) for _ in shape]
    value = d.pick((0.0, 0.0, -1.5))
    dtype = d.dtype(halves=0.3)
    flat = [w for pair in reversed(widths) for w in pair]
    return Problem(
        (d.floats(shape, dtype),),
        lambda t: eg.pad(t, widths, value=value),
        lambda t: torch.nn.functional.pad(t, flat, value=value),
        "exact",
        dtype=dtype,
    )


def padded_otherwise(d: Draw) -> Problem:
    """Reflected, repeated at the edge, or wrapped around: gradients are added up."""
    axes = d.pick((1, 2))
    size = tuple(n + 2 for n in d.shape(axes, d.elements(1 << 14)))
    mode = d.pick(("reflect", "replicate", "circular"))
    widths = [(d.between(0, min(n - 1, 9)), d.between(0, min(n - 1, 9))) for n in size]
    flat = [w for pair in reversed(widths) for w in pair]
    dtype = d.dtype()
    return Problem(
        (d.floats((2, 3, *size), dtype),),
        lambda t: eg.nn.functional.pad(t, flat, mode=mode),
        lambda t: torch.nn.functional.pad(t, flat, mode=mode),
        "sums",
        dtype=dtype,
    )


def repeat(d: Draw) -> Problem:
    shape = d.any_shape(least=1)
    axis, count, dtype = d.between(0, len(shape) - 1), d.pick((1, 2, 3, 7)), d.dtype()
    return Problem(
        (d.floats(shape, dtype),),
        lambda t: eg.repeat_interleave(t, count, axis=axis),
        lambda t: torch.repeat_interleave(t, count, axis),
        "sums",
        dtype=dtype,
    )


def tile(d: Draw) -> Problem:
    shape, dtype = d.any_shape(least=1, most=3), d.dtype()
    times = tuple(d.pick((1, 1, 2, 3)) for _ in shape)
    return Problem(
        (d.floats(shape, dtype),),
        lambda t: eg.tile(t, times),
        lambda t: torch.tile(t, times),
        "sums",
        dtype=dtype,
    )


def rolled(d: Draw) -> Problem:
    shape = d.any_shape(least=1)
    axis = d.between(0, len(shape) - 1)
    shift = d.between(-shape[axis], shape[axis])
    x, dtype = _any(d, shape)
    return Problem(
        (x,),
        lambda t: eg.roll(t, shift, axis),
        lambda t: torch.roll(t, shift, axis),
        "exact",
        dtype=dtype,
    )


def triangle(d: Draw) -> Problem:
    shape, name, k = d.any_shape(least=2), d.pick(("tril", "triu")), d.pick((0, 0, 1, -1, 5))
    x, dtype = _any(d, shape)
    return Problem(
        (x,),
        lambda t: getattr(eg, name)(t, k),
        lambda t: getattr(torch, name)(t, k),
        "exact",
        dtype=dtype,
    )


def unfold(d: Draw) -> Problem:
    """Windows that overlap; the gradient adds them up."""
    axes = 2
    size = tuple(max(4, n) for n in d.shape(axes, d.elements(1 << 14)))
    kernel = tuple(d.between(1, 4) for _ in size)
    window = {"stride": d.between(1, 3), "padding": d.between(0, 2), "dilation": 1}
    dtype = d.dtype()
    return Problem(
        (d.floats((d.pick((1, 2)), d.size(9), *size), dtype),),
        lambda t: eg.im2col(t, kernel, **window),
        lambda t: torch.nn.functional.unfold(t, kernel, **window),
        "sums",
        dtype=dtype,
    )


CASTS = ("float32", "float16", "bfloat16", "int32", "int8", "bool", "float64", "int64")
TORCH_DTYPES = {n: getattr(torch, n) for n in CASTS}


def seen(d: Draw) -> Problem:
    """Views that are results themselves, read as they lie."""
    shape = d.any_shape(least=1)
    x, dtype = _any(d, shape)
    order, axis = tuple(d.permuted(len(shape))), d.between(0, len(shape) - 1)
    views: dict[str, tuple[Any, Any]] = {
        "flip": (lambda t: eg.flip(t, axis), lambda t: torch.flip(t, (axis,))),
        "permute": (lambda t: eg.permute_dims(t, order), lambda t: t.permute(order)),
        "expand": (
            lambda t: eg.broadcast_to(t, (3, *shape)),
            lambda t: torch.broadcast_to(t, (3, *shape)),
        ),
        "every second": (lambda t: t[::2], lambda t: t[::2]),
    }
    ours, theirs = views[d.pick(tuple(views))]
    return Problem((x,), ours, theirs, "exact", dtype=dtype)


def cast(d: Draw) -> Problem:
    """From integers small enough for every dtype."""
    shape = d.any_shape(least=1)
    narrow = d.device.startswith("webgpu")
    some = [c for c in CASTS if not (narrow and c == "float64")]
    given, wanted = d.pick(some), d.pick(some)
    low = 0 if "bool" in (given, wanted) else -90
    x = d.integers(shape, low, 2 if low == 0 else 90, given, layout=True)
    return Problem(
        (x,),
        lambda t: eg.astype(t, wanted),
        lambda t: (
            t.detach()
            .to(TORCH_DTYPES[wanted])
            .to(torch.float64 if "float" in wanted else TORCH_DTYPES[wanted])
        ),
        "exact",
    )


def reshaped(d: Draw) -> Problem:
    """Large arrays whose elements do not lie in order, in one row; real and complex."""
    rows, width = d.pick(((600, 500), (3, 90_000), (90_000, 3), (2, 130)))
    x, whole = d.floats((rows, 2 * width), d.dtype(halves=0), -1, 1), d.chance(0.4)
    transposed = d.chance(0.5)

    def of(lib: Any) -> Any:
        def run(x: Any) -> Any:
            x = lib.complex(x, x) if whole else x
            out = (x.mT if transposed else x[:, ::2]).reshape(-1)
            return [lib.real(out), lib.imag(out)] if whole else out * 2

        return run

    return Problem((x,), of(eg), of(torch), "plain", dtype=x.array.dtype.name)


SECTION = OpSection(
    "movement",
    (
        "copy_index",
        "copy_kernels",
        "fused",
        "loop_order",
        "registry",
        "single_op",
        "strided_views",
        "transpose",
        "views",
    ),
    {
        "permute": (3, permute),
        "large reshape": (0.4, reshaped),
        "concat": (2, concat),
        "stack": (1, stack),
        "pad": (2, pad),
        "pad otherwise": (1, padded_otherwise),
        "repeat_interleave": (1, repeat),
        "tile": (1, tile),
        "roll": (1, rolled),
        "tril": (1, triangle),
        "im2col": (1, unfold),
        "astype": (1, cast),
        "views": (0.7, seen),
    },
    weight=1.5,
)
