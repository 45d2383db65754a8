"""What kernels state as their fact `splits`: along which axes shards of the inputs give shards of
the result, or parts that add up to it (`Split`). `distributed.sharding` asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everygrad.core.shapes import Shape

Params = dict[str, Any]


class Split:
    """One way to compute an op in shards.

    inputs   the axis along which each input is sharded; None: every rank has all of it
    out      the axis along which the results are shards; None: they add up
    size     of the whole result along `out`, where it is not that of the inputs
    params   (parameters, size of the result's shard) -> the parameters for a shard
    even     only where the axis divides by the number of ranks
    filled   only where no rank's shard is empty
    compute  (inputs, parameters) -> a shard of the result, where it is not the op itself
    once     inputs that every rank has, and that would be added by each: zeros but on the first
    """

    __slots__ = ("compute", "even", "filled", "inputs", "once", "out", "params", "size")

    def __init__(
        self,
        inputs: tuple[int | None, ...],
        out: int | None,
        size: int | None = None,
        params: Callable[[Params, int], Params] | None = None,
        even: bool = False,
        compute: Callable[..., Any] | None = None,
        once: tuple[int, ...] = (),
        filled: bool = False,
    ) -> None:
        self.inputs = inputs
        self.out = out
        self.size = size
        self.params = params
        self.even = even
        self.compute = compute
        self.once = once
        self.filled = filled


def with_size(name: str, at: int) -> Callable[[Params, int], Params]:
    """Parameters whose shape `name` has the size of a shard along `at`."""

    def change(params: Params, size: int) -> Params:
        shape = params[name]
        return {**params, name: (*shape[:at], size, *shape[at + 1 :])}

    return change


def broadcast_axes(shapes: Sequence[Shape], out: Shape) -> list[Split]:
    """Each axis of a result whose inputs broadcast."""
    made = []
    for axis in range(len(out)):
        places = [axis - len(out) + len(shape) for shape in shapes]
        inputs = tuple(
            p if p >= 0 and shape[p] == out[axis] else None
            for p, shape in zip(places, shapes, strict=True)
        )
        made.append(Split(inputs, axis, out[axis]))
    return made


def every_axis(shapes: Sequence[Shape], **params: Any) -> list[Split]:
    """Inputs of one shape, of which no element looks at another."""
    return [Split((axis,) * len(shapes), axis) for axis in range(len(shapes[0]))]


def other_axes(
    shapes: Sequence[Shape],
    axis: int | None = None,
    axes: Sequence[int] = (),
    keepdims: bool = True,
    **params: Any,
) -> list[Split]:
    """Inputs of one rank, along every axis but those that the op goes along."""
    gone = tuple(axes) if axis is None else (axis,)
    return [
        Split((d,) * len(shapes), d if keepdims else d - sum(a < d for a in gone))
        for d in range(len(shapes[0]))
        if d not in gone
    ]


def leading(*trailing: int) -> Callable[..., list[Split]]:
    """All but the last axes of each input, so many of each, which broadcast."""

    def splits(shapes: Sequence[Shape], **params: Any) -> list[Split]:
        leads = [shape[: len(shape) - n] for shape, n in zip(shapes, trailing, strict=True)]
        rank = max(map(len, leads))
        padded = [(1,) * (rank - len(lead)) + lead for lead in leads]
        return broadcast_axes(leads, tuple(max(sizes) for sizes in zip(*padded, strict=True)))

    return splits


def solve_axes(shapes: Sequence[Shape], **params: Any) -> list[Split]:
    """Matrices (..., n, n) and right-hand sides (..., n, k): batches, and the columns."""
    a, b = shapes
    return [*leading(2, 2)(shapes), Split((None, len(b) - 1), max(len(a), len(b)) - 1)]


def at_axes(*table: tuple[tuple[int | None, ...], int | None]) -> Callable[..., list[Split]]:
    """These axes of the inputs, and that of the result for each."""
    return lambda shapes, **params: [Split(inputs, out) for inputs, out in table]


def matmul_axes(shapes: Sequence[Shape], **params: Any) -> list[Split]:
    """(..., m, k) @ (..., k, n); a vector is a row on the left, a column on the right."""
    x, y = shapes
    if len(x) < 2 or len(y) < 2:
        last = len(x) - 1
        made = [Split((last, max(0, len(y) - 2)), None)]
        made += [Split((d, None), d) for d in range(last) if len(y) == 1]
        made += [
            Split((None, d), d - (d > len(y) - 2)) for d in range(len(y)) if d != len(y) - 2
        ] if len(x) == 1 and len(y) > 1 else []  # fmt: skip
        return made
    rank = max(len(x), len(y))
    made = leading(2, 2)(shapes)
    made.append(Split((len(x) - 2, None), rank - 2))
    made.append(Split((None, len(y) - 1), rank - 1))
    made.append(Split((len(x) - 1, len(y) - 2), None))
    return made


def linear_axes(shapes: Sequence[Shape], **params: Any) -> list[Split]:
    """x (..., k), w (n, k) and perhaps b (n)."""
    last = len(shapes[0]) - 1
    more = len(shapes) - 2
    made = [Split((d, None, *(None,) * more), d) for d in range(last)]
    made.append(Split((None, 0, *(0,) * more), last))
    once = (2,) if more else ()
    return [*made, Split((last, 1, *(None,) * more), None, once=once)]


def linear_weight_axes(shapes: Sequence[Shape], **params: Any) -> list[Split]:
    """v (..., n) and x (..., k): the sum over all rows, (n, k)."""
    last = len(shapes[0]) - 1
    made = [Split((d, d), None) for d in range(last)]
    return [*made, Split((last, None), 0), Split((None, last), 1)]


def conv_axes(shapes: Sequence[Shape], window: Any, **params: Any) -> list[Split]:
    """x (batch, in, ...) and w (out, in, ...)."""
    made = [Split((0, None), 0)]
    if window.groups == 1:
        made += [Split((None, 0), 1, filled=True), Split((1, 1), None, filled=True)]
    return made


def conv_input_axes(shapes: Sequence[Shape], window: Any, image: Shape) -> list[Split]:
    """y (batch, out, ...) and w (out, in, ...) to (batch, in, ...)."""
    made = [Split((0, None), 0, params=with_size("image", 0))]
    if window.groups == 1:
        made.append(Split((1, 0), None, filled=True))
        made.append(Split((None, 1), 1, params=with_size("image", 1), filled=True))
    return made


def conv_weight_axes(shapes: Sequence[Shape], window: Any, weight: Shape) -> list[Split]:
    """x (batch, in, ...) and y (batch, out, ...) to (out, in, ...)."""
    made = [Split((0, 0), None)]
    if window.groups == 1:
        made.append(Split((None, 1), 0, params=with_size("weight", 0), filled=True))
        made.append(Split((1, None), 1, params=with_size("weight", 1), filled=True))
    return made


def image_axes(shapes: Sequence[Shape], image: Shape | None = None, **params: Any) -> list[Split]:
    """Inputs (batch, channels, ...), whose pixels look at each other."""
    return [
        Split((d,) * len(shapes), d, params=None if image is None else with_size("image", d))
        for d in (0, 1)
    ]


def attention_axes(shapes: Sequence[Shape], causal: bool = False, **params: Any) -> list[Split]:
    """Batches and heads; queries, where none looks at its place; and what values are made of."""
    q, mask = shapes[0], shapes[3:]
    rank = len(q)
    made = leading(*(2,) * len(shapes))(shapes)
    if not causal:
        of_mask = [rank - 2 if m[rank - 2] == q[rank - 2] else None for m in mask]
        made.append(Split((rank - 2, None, None, *of_mask), rank - 2))
    made.append(Split((None, None, rank - 1, *(None for _ in mask)), rank - 1))
    return made


def gather_axes(shapes: Sequence[Shape], axis: int, **params: Any) -> list[Split]:
    """x and an index of its rank: along other axes together, along `axis` the index alone."""
    x, index = shapes
    same = [d for d in range(len(x)) if d != axis and x[d] == index[d]]
    return [*(Split((d, d), d) for d in same), Split((None, axis), axis)]


def take_axes(shapes: Sequence[Shape], axis: int, **params: Any) -> list[Split]:
    """Slices of x along `axis`, for every element of an index."""
    x, index = shapes
    more = len(index) - 1
    made = [Split((d, None), d + (more if d > axis else 0)) for d in range(len(x)) if d != axis]
    return made + [Split((None, j), axis + j) for j in range(len(index))]


def scatter_axes(shapes: Sequence[Shape], axis: int, **params: Any) -> list[Split]:
    """x, an index and a source of its rank, along axes on which all are as long."""
    x = shapes[0]
    same = [d for d in range(len(x)) if d != axis and all(s[d] == x[d] for s in shapes)]
    return [Split((d,) * len(shapes), d) for d in same]


def scatter_add_axes(shapes: Sequence[Shape], axis: int, **params: Any) -> list[Split]:
    """As `scatter_axes`; and of sources along `axis` the sums add up."""
    return [*scatter_axes(shapes, axis), Split((None, axis, axis), None, once=(0,))]


def index_add_axes(shapes: Sequence[Shape], axis: int = 0, **params: Any) -> list[Split]:
    """x and a source with slices along `axis`, which an index names; sums add up."""
    made = slice_axes(shapes, axis)
    return [*made, Split((None, 0, axis), None, once=(0,))]


def slice_axes(shapes: Sequence[Shape], axis: int = 0, **params: Any) -> list[Split]:
    """x and a source with slices along `axis`, which an index names."""
    return [Split((d, None, d), d) for d in range(len(shapes[0])) if d != axis]


def label_axes(shapes: Sequence[Shape], axis: int, **params: Any) -> list[Split]:
    """Scores with the classes along `axis`, and labels without it; one result for each label."""
    return [Split((d + (d >= axis), d), d) for d in range(len(shapes[1]))]


def label_grad_axes(shapes: Sequence[Shape], axis: int, **params: Any) -> list[Split]:
    """A value and a label (or a value, scores and labels) to scores."""
    labels = len(shapes[-1])
    made = []
    for d in range(labels):
        at = d + (d >= axis)
        made.append(Split((d, d) if len(shapes) == 2 else (d, at, d), at))
    return made


def summed_axes(shapes: Sequence[Shape], **params: Any) -> list[Split]:
    """Every axis of what is counted."""
    return [Split((d,), None) for d in range(len(shapes[0]))]


def table_axes(shapes: Sequence[Shape], axis: int, **params: Any) -> list[Split]:
    """x along which tables name elements of `axis`."""
    tables = (None,) * (len(shapes) - 1)
    return [Split((d, *tables), d) for d in range(len(shapes[0])) if d != axis]


def search_axes(shapes: Sequence[Shape], **params: Any) -> list[Split]:
    """Rows of sorted numbers and the values to look for, each by itself."""
    x, values = shapes
    if len(x) == 1:
        return [Split((None, d), d) for d in range(len(values))]
    last = len(values) - 1
    return [*(Split((d, d), d) for d in range(last)), Split((None, last), last)]
