"""Convolution over images (batch, channels, height, width).

conv2d is linear in the image and in the kernel, and so are the two ops its derivatives need; the
three are each other's derivatives, which gives every order. Lines and volumes are made of images
in `convolutions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple

from everygrad.amp.policy import whole
from everygrad.compiler import costs
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Function, Kernel, check_kind
from everygrad.ops.record.spec import refuse, register, sample
from everygrad.ops.record.splits import conv_axes, conv_input_axes, conv_weight_axes
from everygrad.ops.shape.joining import pad, stack
from everygrad.ops.shape.movement import put_slices, take_slices


def misses(n: int, k: int, stride: int, padding: int, dilation: int, out: int) -> bool:
    """Whether some of `out` windows of k places have none within n: with dilation they can reach
    over it."""
    if dilation == 1 or padding == 0:
        return False
    starts = (i * stride - padding for i in range(out))
    return any(not any(0 <= at + j * dilation < n for j in range(k)) for at in starts)


class Window(NamedTuple):
    """How a kernel moves over an image."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int = 1

    def out_size(self, image: Shape) -> tuple[int, int]:
        """The number of places the kernel fits, by height and width."""
        h, w = (
            (n + 2 * p - d * (k - 1) - 1) // st + 1
            for n, k, st, p, d in zip(
                image[-2:], self.size, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return h, w

    def misses(self, image: Shape) -> bool:
        """Whether it lies wholly in the padding of the image somewhere."""
        sizes = zip(image[-2:], *self[:4], self.out_size(image), strict=True)
        return any(misses(*one) for one in sizes)


_COUNTS = {1: "one integer", 2: "one or two integers", 3: "one or three integers"}


def integers(op: str, name: str, value: Any, least: int, count: int) -> Shape:
    """A parameter with one integer for each of `count` axes; one alone serves them all."""
    if type(value) is int and value >= least:  # the commonest
        return (value,) * count
    given = tuple(value) if isinstance(value, Sequence) else (value,) * count
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= least for v in given)
    if len(given) != count or not whole:
        raise ArgumentError(
            f"{op}: {name} must be {_COUNTS[count]} of at least {least}, got {value!r}"
        )
    return given


def named(function: Any, name: str, doc: str) -> Any:
    """A function that was made for one number of axes, under its own name, which says how many."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return of_batches(int(name[-2]))(function)


def of_batches(count: int) -> Callable[[Function], Function]:
    """A function of batches of things with `count` axes and channels, for one thing alone too, as
    in PyTorch: the result has no batch either."""

    def decorated(function: Function) -> Function:
        def batch(value: Any) -> Any:
            alone = isinstance(value, Tensor) and value.ndim == count + 1
            return value.expand_dims(0) if alone else value

        @wraps(function)
        def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            if x.ndim != count + 1:
                return function(x, *args, **kwargs)
            kwargs = {name: batch(value) for name, value in kwargs.items()}
            out = function(batch(x), *map(batch, args), **kwargs)
            return tuple(t.squeeze(0) for t in out) if type(out) is tuple else out.squeeze(0)

        return call

    return decorated


def check_groups(op: str, groups: Any) -> None:
    """Refuse anything but a positive integer."""
    if not isinstance(groups, int) or groups < 1:
        raise ArgumentError(f"{op}: groups must be a positive integer, got {groups!r}")


def window_of(
    op: str, size: Any, stride: Any, padding: Any, dilation: Any, groups: int = 1
) -> Window:
    """A window over images, its parameters checked."""
    check_groups(op, groups)
    return Window(
        integers(op, "the kernel size", size, 1, 2),  # type: ignore[arg-type]  # two of them
        integers(op, "stride", stride, 1, 2),  # type: ignore[arg-type]
        integers(op, "padding", padding, 0, 2),  # type: ignore[arg-type]
        integers(op, "dilation", dilation, 1, 2),  # type: ignore[arg-type]
        groups,
    )


PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate",
                 "circular": "circular"}  # fmt: skip


def is_plain(padding: Any) -> bool:
    """Whether the padding is numbers alone, as many before as after, which kernels do themselves.

    What is no padding at all is plain too: the window refuses it.
    """
    if type(padding) is int or not isinstance(padding, Sequence):
        return True
    return type(padding) is not str and not any(isinstance(p, Sequence) for p in padding)


def padding_widths(
    op: str, padding: Any, size: Shape, stride: Any, dilation: Any
) -> tuple[tuple[int, int], ...]:
    """Before and after each axis: from numbers, pairs, "valid", or "same", which needs stride 1."""
    count = len(size)
    if padding == "valid":
        return ((0, 0),) * count
    if padding == "same":
        steps = integers(op, "stride", stride, 1, count)
        if max(steps) > 1:
            raise ArgumentError(f'{op}: padding="same" needs stride 1, got {stride!r}')
        spread = integers(op, "dilation", dilation, 1, count)
        spans = [d * (k - 1) for k, d in zip(size, spread, strict=True)]
        return tuple((span // 2, span - span // 2) for span in spans)  # an odd one goes after
    if isinstance(padding, str):
        raise ArgumentError(
            f'{op}: padding must be numbers, "same" or "valid", or pairs, got {padding!r}'
        )
    each = padding if isinstance(padding, Sequence) else (padding,) * count
    pairs = [p if isinstance(p, Sequence) else (p, p) for p in each]
    if len(pairs) != count or any(len(pair) != 2 for pair in pairs):
        raise ArgumentError(
            f"{op}: padding must be {_COUNTS[count]} or as many pairs (before, after), "
            f"got {padding!r}"
        )
    checked = [integers(op, "padding", pair, 0, 2) for pair in pairs]
    return tuple((before, after) for before, after in checked)


def pad_places(
    op: str, x: Tensor, widths: Sequence[tuple[int, int]], padding_mode: str = "zeros"
) -> Tensor:
    """x (batch, channels, places...) with its places padded."""
    if padding_mode not in PADDING_MODES:
        shown = ", ".join(map(repr, PADDING_MODES))
        raise ArgumentError(f"{op}: padding_mode must be one of {shown}, got {padding_mode!r}")
    if x.ndim != len(widths) + 2:
        raise ShapeError(f"{op}: takes (batch, channels, {len(widths)} more axes), got {x.shape}")
    return pad(x, ((0, 0), (0, 0), *widths), mode=PADDING_MODES[padding_mode])


def check_fit(op: str, image: Shape, window: Window) -> None:
    """Refuse what is no batch of images, and images smaller than the kernel."""
    if len(image) != 4:
        raise ShapeError(f"{op}: takes images (batch, channels, height, width), got {image}")
    if min(window.out_size(image)) < 1:
        raise ShapeError(
            f"{op}: a kernel of {window.size} with dilation {window.dilation} does not fit an "
            f"image of {image[2:]} padded by {window.padding}"
        )


def taps_of(window: Window, out: tuple[int, int]) -> list[tuple[tuple[int, int, int], ...]]:
    """For each element of the kernel, the slices of the padded image it meets."""
    (kh, kw), (sh, sw), _, (dh, dw), _ = window
    return [((i * dh, out[0], sh), (j * dw, out[1], sw)) for i in range(kh) for j in range(kw)]


def padded_image(x: Tensor, window: Window, value: float = 0.0) -> Tensor:
    (ph, pw) = window.padding
    return pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), value=value)


def columns_of(x: Tensor, window: Window) -> Tensor:
    """(batch, groups, channels * taps, places): what each place of the kernel sees."""
    n, c = x.shape[:2]
    out = window.out_size(x.shape)
    x = padded_image(x, window)
    whole = ((0, n, 1), (0, c, 1))
    seen = stack([take_slices(x, (*whole, *tap)) for tap in taps_of(window, out)], axis=2)
    taps = window.size[0] * window.size[1]
    return seen.reshape(n, window.groups, c // window.groups * taps, out[0] * out[1])


def _conv_portable(x: Tensor, w: Tensor, window: Window) -> Tensor:
    columns = columns_of(x, window)
    rows = w.reshape(window.groups, w.shape[0] // window.groups, -1)
    out = rows @ columns
    return out.reshape(x.shape[0], w.shape[0], *window.out_size(x.shape))


def _conv_input_portable(y: Tensor, w: Tensor, window: Window, image: Shape) -> Tensor:
    n, c, height, width = image
    (ph, pw), groups = window.padding, window.groups
    rows = w.reshape(groups, w.shape[0] // groups, -1).matrix_transpose()
    taps, places = window.size[0] * window.size[1], y.shape[2] * y.shape[3]
    columns = rows @ y.reshape(n, groups, w.shape[0] // groups, places)
    columns = columns.reshape(n, c, taps, *y.shape[2:])
    padded = (n, c, height + 2 * ph, width + 2 * pw)
    total: Tensor | None = None
    for i, tap in enumerate(taps_of(window, y.shape[2:])):  # type: ignore[arg-type]
        part = put_slices(columns[:, :, i], padded, ((0, n, 1), (0, c, 1), *tap))
        total = part if total is None else total + part
    assert total is not None
    return take_slices(total, ((0, n, 1), (0, c, 1), (ph, height, 1), (pw, width, 1)))


def _conv_weight_portable(x: Tensor, y: Tensor, window: Window, weight: Shape) -> Tensor:
    n, groups = x.shape[0], window.groups
    rows = y.reshape(n, groups, weight[0] // groups, y.shape[2] * y.shape[3])
    return (rows @ columns_of(x, window).matrix_transpose()).sum(axis=0).reshape(weight)


class _Conv(Kernel):
    """Batching: one more axis of images folds into theirs, one more of kernels into the groups."""

    def batched(self, values: Any, flags: Any, size: int, params: dict[str, Any]) -> Tensor:
        window = params["window"]
        if self is CONV and not flags[1]:
            x, w = values
            n = x.shape[1]
            out = apply(CONV, x.reshape(size * n, *x.shape[2:]), w, window=window)
            return out.reshape(size, n, *out.shape[1:])
        wide = window._replace(groups=window.groups * size)
        first, second = (
            v if has else v.expand_dims(0).broadcast_to((size, *v.shape))
            for v, has in zip(values, flags, strict=True)
        )
        if self is CONV:
            return _split_groups(
                apply(CONV, _join_groups(first), _join_kernels(second), window=wide), size
            )
        if self is CONV_INPUT:
            n, c, *image = params["image"]
            out = apply(
                CONV_INPUT,
                _join_groups(first),
                _join_kernels(second),
                window=wide,
                image=(n, c * size, *image),
            )
            return _split_groups(out, size)
        o, *rest = params["weight"]
        out = apply(
            CONV_WEIGHT,
            _join_groups(first),
            _join_groups(second),
            window=wide,
            weight=(o * size, *rest),
        )
        return out.reshape(size, o, *rest)


def _join_groups(x: Tensor) -> Tensor:
    """(batch, n, channels, ...) -> (n, batch * channels, ...)."""
    x = x.moveaxis(0, 1)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


def _split_groups(x: Tensor, size: int) -> Tensor:
    n, c = x.shape[:2]
    return x.reshape(n, size, c // size, *x.shape[2:]).moveaxis(1, 0)


def _join_kernels(w: Tensor) -> Tensor:
    return w.reshape(w.shape[0] * w.shape[1], *w.shape[2:])


CONV: Kernel = _Conv(
    "conv2d",
    _conv_portable,
    ("x", "w"),
    (
        lambda g, w, window, shape: apply(CONV_INPUT, g, w, window=window, image=shape),
        lambda g, x, window, shape: apply(CONV_WEIGHT, x, g, window=window, weight=shape),
    ),
    linear=(0, 1),
    result=lambda x, w, window: (
        (x.shape[0], w.shape[0], *window.out_size(x.shape)),
        x.dtype,
    ),
    precision="low",
    flops=costs.convolution,
    splits=conv_axes,
)
# the image's gradient from the result's: linear in `y` (shaped like the result) and in w
CONV_INPUT: Kernel = _Conv(
    "conv2d_input",
    _conv_input_portable,
    ("y", "w"),
    (
        lambda g, w, window, image: apply(CONV, g, w, window=window),
        lambda g, y, window, shape: apply(CONV_WEIGHT, g, y, window=window, weight=shape),
    ),
    linear=(0, 1),
    result=lambda y, w, window, image: (image, y.dtype),
    precision="low",
    flops=costs.convolution,
    splits=conv_input_axes,
)
# the kernel's gradient: linear in the image x and in `y` (shaped like the result)
CONV_WEIGHT: Kernel = _Conv(
    "conv2d_weight",
    _conv_weight_portable,
    ("x", "y"),
    (
        lambda g, y, window, shape: apply(CONV_INPUT, y, g, window=window, image=shape),
        lambda g, x, window: apply(CONV, x, g, window=window),
    ),
    linear=(0, 1),
    result=lambda x, y, window, weight: (weight, x.dtype),
    precision="low",
    flops=costs.convolution_weight,
    splits=conv_weight_axes,
)


def _checked_window(
    image: Shape, weight: Shape, stride: Any, padding: Any, dilation: Any, groups: int
) -> Window:
    """The window of a convolution, its parameters and the shapes checked."""
    window = window_of("conv2d", weight[2:], stride, padding, dilation, groups)
    check_fit("conv2d", image, window)
    if image[1] != weight[1] * groups or weight[0] % groups:
        raise ShapeError(
            f"conv2d: weight {weight} in {groups} groups takes {weight[1] * groups} "
            f"channels and gives a multiple of {groups}; the image has {image[1]}"
        )
    return window


_known_window = lru_cache(1 << 12, typed=True)(_checked_window)  # checks take longer than a launch


@partial(whole, "conv2d")
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Kernels (out channels, channels / groups, height, width) moved over images, plus a bias.

    `padding` is one or two numbers, a pair (before, after) for each axis, "valid" (none) or "same"
    (the result is as large as the image); `padding_mode` is "zeros", "reflect", "replicate" or
    "circular".
    """
    if x.ndim == 3:  # one image
        image = x.expand_dims(0)
        one = conv2d(image, weight, bias, stride, padding, dilation, groups, padding_mode)
        return one.squeeze(0)
    if weight.ndim != 4:
        raise ShapeError(f"conv2d: the weight must have 4 dimensions, got {weight.shape}")
    if not is_plain(padding) or padding_mode != "zeros":
        widths = padding_widths("conv2d", padding, weight.shape[2:], stride, dilation)
        x, padding = pad_places("conv2d", x, widths, padding_mode), 0
    listed = list in (type(stride), type(padding), type(dilation))  # lists have no hash
    find = _checked_window if listed else _known_window
    window = find(x.shape, weight.shape, stride, padding, dilation, groups)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"conv2d: bias {bias.shape} must have shape {weight.shape[:1]}")
    both = isinstance(x, Tensor) and isinstance(weight, Tensor)
    if not both or x.dtype is not weight.dtype:
        x, weight = operands("conv2d", x, weight)
    check_kind("conv2d", x.dtype, "real float")
    out = apply(CONV, x, weight, window=window)
    return out if bias is None else out + bias.reshape(-1, 1, 1)


def _conv_samples() -> Any:
    yield sample(s.real(1, 1, 4, 4), s.real(1, 1, 3, 3, seed=1), stride=2, padding=1)
    yield sample(s.real(2, 2, 5, 5), s.real(3, 2, 2, 2, seed=1), stride=2)
    yield sample(
        s.real(1, 4, 5, 4), s.real(4, 2, 3, 2, seed=1), s.real(4), padding=(2, 1), groups=2
    )
    yield sample(s.real(1, 2, 6, 6), s.real(2, 2, 2, 3, seed=1), dilation=(2, 1), stride=(1, 2))
    yield sample(s.real(2, 3, 1, 1), s.real(2, 3, 3, 3, seed=1), padding=1)
    yield sample(s.real(1, 1, 3, 2), s.real(1, 1, 2, 2, seed=1), padding=((1, 0), (0, 2)))
    yield sample(s.real(1, 1, 3, 3), s.real(1, 1, 3, 1, seed=1), padding="same")


register(
    CONV,
    conv2d,
    methods=("conv2d",),
    kinds="real float",
    reference="tests.support.references.neural:conv2d",
    samples=_conv_samples,
    refuses=(
        refuse(
            ShapeError,
            "conv2d: a kernel of .* does not fit",
            s.real(1, 1, 2, 2),
            s.real(1, 1, 3, 3),
        ),
        refuse(ShapeError, "the image has 3", s.real(1, 3, 4, 4), s.real(2, 2, 3, 3)),
        refuse(ShapeError, r"takes images \(batch", s.real(4, 4), s.real(2, 3, 3, 3)),
        refuse(
            ArgumentError,
            "conv2d: stride must be one or two",
            s.real(1, 1, 4, 4),
            s.real(1, 1, 3, 3),
            stride=0,
        ),
        refuse(
            ArgumentError,
            "groups must be a positive",
            s.real(1, 1, 4, 4),
            s.real(1, 1, 3, 3),
            groups=0,
        ),
        refuse(
            ArgumentError,
            'conv2d: padding="same" needs stride 1',
            s.real(1, 1, 4, 4),
            s.real(1, 1, 3, 3),
            stride=2,
            padding="same",
        ),
        refuse(ShapeError, "conv2d: bias", s.real(1, 1, 4, 4), s.real(1, 1, 3, 3), s.real(2)),
        refuse(
            DtypeError,
            "conv2d: does not take int64",
            s.integers(1, 1, 4, 4),
            s.integers(1, 1, 3, 3),
        ),
    ),
)
_SAMPLE_WINDOW = Window((3, 2), (2, 1), (1, 0), (1, 2))
register(
    CONV_INPUT,
    lambda y, w, window, image: apply(CONV_INPUT, y, w, window=window, image=image),
    reference="tests.support.references.basic:conv2d_input",
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(1, 2, 3, 3), s.real(2, 2, 3, 2, seed=1), _SAMPLE_WINDOW, (1, 2, 6, 5)),)
    ),
)
register(
    CONV_WEIGHT,
    lambda x, y, window, weight: apply(CONV_WEIGHT, x, y, window=window, weight=weight),
    reference="tests.support.references.basic:conv2d_weight",
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(1, 2, 6, 5), s.real(1, 2, 3, 3, seed=1), _SAMPLE_WINDOW, (2, 2, 3, 2)),)
    ),
)
