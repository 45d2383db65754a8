"""Convolution over lines and volumes, and transposed convolution.

A line is an image of one row; volumes have ops of their own (`volumes`). Transposed convolution is
the derivative of convolution by its input, an op of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from everygrad.amp.policy import whole
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.nn.conv2d import (
    CONV_INPUT,
    Window,
    check_groups,
    conv2d,
    integers,
    is_plain,
    named,
    of_batches,
    pad_places,
    padding_widths,
)
from everygrad.ops.nn.conv3d import VOLUME, VOLUME_INPUT, Volume
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Function, check_kind
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.shape.joining import pad
from everygrad.ops.shape.movement import slice_axis


def _check(op: str, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    """Refuse channels that do not fit; the number of axes is known to."""
    check_groups(op, groups)
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ShapeError(
            f"{op}: weight {weight.shape} in {groups} groups takes {weight.shape[1] * groups} "
            f"channels and gives a multiple of {groups}; the input has {x.shape[1]}"
        )
    _check_bias(op, bias, weight.shape[0])


def _check_bias(op: str, bias: Tensor | None, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(f"{op}: bias {bias.shape} must have shape {(channels,)}")


def _check_axes(op: str, x: Tensor, weight: Tensor, count: int) -> None:
    if x.ndim != count + 2 or weight.ndim != count + 2:
        raise ShapeError(
            f"{op}: takes an input and a weight of {count + 2} dimensions (batch or out channels, "
            f"channels, {count} more), got {x.shape} and {weight.shape}"
        )


def _check_fit(op: str, places: Shape, size: Shape, padding: Shape, dilation: Shape) -> None:
    spans = [d * (k - 1) + 1 for k, d in zip(size, dilation, strict=True)]
    if any(n + 2 * p < span for n, p, span in zip(places, padding, spans, strict=True)):
        raise ShapeError(
            f"{op}: a kernel of {size} with dilation {dilation} does not fit places {places} "
            f"padded by {padding}"
        )


def _prepared(
    op: str, x: Tensor, weight: Tensor, count: int, options: tuple[Any, Any, Any, str]
) -> tuple[Tensor, Shape, Shape, Shape]:
    """x with what kernels do not pad themselves, and the stride, padding and dilation left."""
    stride, padding, dilation, padding_mode = options
    size = weight.shape[2:]
    if not is_plain(padding) or padding_mode != "zeros":
        widths = padding_widths(op, padding, size, stride, dilation)
        x, padding = pad_places(op, x, widths, padding_mode), 0
    steps = integers(op, "stride", stride, 1, count)
    around = integers(op, "padding", padding, 0, count)
    spread = integers(op, "dilation", dilation, 1, count)
    _check_fit(op, x.shape[2:], size, around, spread)
    return x, steps, around, spread


def _line_samples() -> Any:
    yield sample(s.real(2, 2, 4), s.real(2, 1, 3, seed=1), s.real(2), 2, 1, 1, 2)
    yield sample(s.real(1, 2, 4), s.real(1, 2, 2, seed=1), padding=((2, 0),), dilation=2)
    yield sample(s.real(1, 1, 4), s.real(2, 1, 3, seed=1), padding=2, padding_mode="reflect")


def _refusals(name: str, count: int) -> tuple[Any, ...]:
    x, w = s.real(1, 1, *(3,) * count), s.real(1, 1, *(2,) * count)
    return (
        refuse(ShapeError, f"{name}: .* does not fit", x, s.real(1, 1, *(4,) * count)),
        refuse(ShapeError, "the input has 1", x, s.real(1, 2, *(1,) * count)),
        refuse(ShapeError, f"{name}: takes an input and a weight", x[0, 0], w),
        refuse(ArgumentError, f"{name}: stride must be", x, w, stride=0),
        refuse(ArgumentError, f"{name}: padding must be", x, w, padding="full"),
        refuse(ArgumentError, f"{name}: padding_mode must be", x, w, padding_mode="edge"),
        refuse(ArgumentError, "groups must be a positive", x, w, groups=0),
        refuse(ShapeError, f"{name}: bias", x, w, s.real(2)),
    )


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:conv1d",
    torch="tests.support.references.neural:torch_conv1d",
    samples=_line_samples,
    refuses=_refusals("conv1d", 1),
)
@of_batches(1)
def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Kernels (out channels, channels / groups, length) moved over lines, plus a bias.

    `padding` and `padding_mode` are as in `conv2d`.
    """
    _check_axes("conv1d", x, weight, 1)
    _check("conv1d", x, weight, bias, groups)
    check_kind("conv1d", x.dtype, "real float")
    options = (stride, padding, dilation, padding_mode)
    x, (step,), (around,), (spread,) = _prepared("conv1d", x, weight, 1, options)
    out = conv2d(
        x.expand_dims(2),
        weight.expand_dims(2),
        bias,
        (1, step),
        (0, around),
        (1, spread),
        groups,
    )
    return out.squeeze(2)


def _volume_samples() -> Any:
    w = s.real(2, 1, 2, 1, 2, seed=1)
    yield sample(s.real(1, 2, 3, 1, 2), w, s.real(2), padding=(1, 0, 0), stride=(2, 1, 1), groups=2)
    yield sample(
        s.real(1, 1, 3, 1, 2), s.real(1, 1, 2, 1, 1, seed=1), padding="same", dilation=(2, 1, 1)
    )


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:conv3d",
    torch="tests.support.references.neural:torch_conv3d",
    samples=_volume_samples,
    refuses=_refusals("conv3d", 3),
)
@partial(whole, "convolve3d")
@of_batches(3)
def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Kernels (out channels, channels / groups, depth, height, width) moved over volumes.

    `padding` and `padding_mode` are as in `conv2d`. Where a device has no kernel for volumes, the
    input's slices are held once for each place along the kernel's depth.
    """
    _check_axes("conv3d", x, weight, 3)
    _check("conv3d", x, weight, bias, groups)
    check_kind("conv3d", x.dtype, "real float")
    options = (stride, padding, dilation, padding_mode)
    x, steps, around, spread = _prepared("conv3d", x, weight, 3, options)
    window = Volume(weight.shape[2:], steps, around, spread, groups)
    x, weight = operands("conv3d", x, weight)
    out = apply(VOLUME, x, weight, window=window)
    return out if bias is None else out + bias.reshape(-1, 1, 1, 1)


# --- transposed ----------------------------------------------------------------------------------


class _Transposed:
    """The parameters of a transposed convolution over `count` axes, checked."""

    def __init__(
        self,
        op: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        options: tuple[Any, ...],
    ) -> None:
        count = int(op[-2])
        _check_axes(op, x, weight, count)
        check_kind(op, x.dtype, "real float")
        stride, padding, output_padding, self.groups, dilation = options
        check_groups(op, self.groups)
        self.size = weight.shape[2:]
        self.stride = integers(op, "stride", stride, 1, count)
        self.padding = integers(op, "padding", padding, 0, count)
        self.dilation = integers(op, "dilation", dilation, 1, count)
        more = integers(op, "output_padding", output_padding, 0, count)
        limits = [max(st, d) for st, d in zip(self.stride, self.dilation, strict=True)]
        if any(m >= most for m, most in zip(more, limits, strict=True)):
            raise ArgumentError(
                f"{op}: output_padding {more} must be smaller than the stride {self.stride} or "
                f"the dilation {self.dilation}"
            )
        if x.shape[1] != weight.shape[0] or x.shape[1] % self.groups:
            raise ShapeError(
                f"{op}: weight {weight.shape} in {self.groups} groups takes {weight.shape[0]} "
                f"channels, a multiple of {self.groups}; the input has {x.shape[1]}"
            )
        self.channels = weight.shape[1] * self.groups
        _check_bias(op, bias, self.channels)
        # the reach of all kernels together, and what is kept of it
        self.reach = tuple(
            (n - 1) * st + d * (k - 1) + 1
            for n, k, st, d in zip(x.shape[2:], self.size, self.stride, self.dilation, strict=True)
        )
        self.out = tuple(
            n - 2 * p + m for n, p, m in zip(self.reach, self.padding, more, strict=True)
        )
        if min(self.out, default=1) < 1:
            raise ShapeError(
                f"{op}: padding {self.padding} leaves nothing of the {self.reach} places that "
                f"kernels of {self.size} reach"
            )
        if count == 1:  # a line is an image of one row
            self.size, self.stride, self.dilation = (
                (1, *v) for v in (self.size, self.stride, self.dilation)
            )
            self.reach, self.out = (1, *self.reach), (1, *self.out)
            self.padding, more = (0, *self.padding), (0, *more)
        # a thing whose convolution has exactly the places of x; else it is cut out of the reach
        self.exact = all(m < st for m, st in zip(more, self.stride, strict=True))

    def of(self, x: Tensor, weight: Tensor) -> Tensor:
        """The transposed convolution of images or volumes."""
        around = self.padding if self.exact else (0,) * len(self.padding)
        facts: Any = (self.size, self.stride, around, self.dilation, self.groups)
        kept = self.out if self.exact else self.reach
        flat = len(kept) == 2
        op = CONV_INPUT if flat else VOLUME_INPUT
        window = Window(*facts) if flat else Volume(*facts)
        x, weight = operands(op.name, x, weight)
        out = apply(op, x, weight, window=window, image=(x.shape[0], self.channels, *kept))
        for k in range(len(kept) if not self.exact else 0):
            out = self.cut(out, 2 + k, k)
        return out

    def cut(self, x: Tensor, axis: int, which: int) -> Tensor:
        """What is kept of the reach along an axis; beyond the reach are zeros."""
        start, count = self.padding[which], self.out[which]
        missing = max(0, start + count - x.shape[axis])
        if missing:
            x = pad(x, tuple((0, missing if a == axis else 0) for a in range(x.ndim)))
        return slice_axis(x, axis, start, count)


def _transposed_refusals(name: str, count: int) -> tuple[Any, ...]:
    x, w = s.real(1, 2, *(2,) * count), s.real(2, 1, *(2,) * count)
    return (
        refuse(ShapeError, f"{name}: takes an input and a weight", x[0, 0], w),
        refuse(ShapeError, "the input has 2", x, s.real(3, 1, *(1,) * count)),
        refuse(ArgumentError, f"{name}: output_padding .* must be smaller", x, w, output_padding=1),
        refuse(ShapeError, f"{name}: padding .* leaves nothing", x, w, padding=2),
        refuse(ArgumentError, f"{name}: stride must be", x, w, stride=0),
        refuse(ShapeError, f"{name}: bias", x, w, s.real(2)),
        refuse(
            DtypeError,
            f"{name}: does not take int64",
            s.integers(1, 1, *(2,) * count),
            s.integers(1, 1, *(2,) * count),
        ),
    )


_DOC = """Each element of the input times a kernel, added up where the kernels overlap, plus a bias.

    The weight is (channels, out channels / groups, sizes...). The transpose of the convolution with
    these parameters; `output_padding` adds to one end of the result.
    """


def _transposed_samples(count: int) -> Any:
    def make() -> Any:
        short, w = {
            1: ((1, 2, 3), (2, 1, 3)),
            2: ((1, 2, 2, 2), (2, 1, 2, 3)),
            3: ((1, 2, 2, 1, 2), (2, 1, 2, 1, 2)),
        }[count]
        ends = (0,) * (count - 1) + (1,)
        yield sample(s.real(*short), s.real(*w, seed=1), s.real(2), 2, ends, ends, 2)
        yield sample(s.real(*short), s.real(*w, seed=1), stride=1, dilation=2, output_padding=ends)

    return make


def _transposed(
    x: Tensor, weight: Tensor, bias: Tensor | None, name: str, given: tuple[Any, ...]
) -> Tensor:
    made = _Transposed(name, x, weight, bias, given)
    count = x.ndim - 2
    if count == 1:
        out = made.of(x.expand_dims(2), weight.expand_dims(2)).squeeze(2)
    else:
        out = made.of(x, weight)
    return out if bias is None else out + bias.reshape((-1,) + (1,) * count)


_transposed_as_one = whole("conv2d_input", _transposed)  # so that the bias has the same dtype


def _transposed_of(count: int) -> Function:
    name = f"conv_transpose{count}d"

    def conv_transpose(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        given = (stride, padding, output_padding, groups, dilation)
        out: Tensor = _transposed_as_one(x, weight, bias, name, given)
        return out

    return composite(
        kinds="real float",
        methods=(),
        reference=f"tests.support.references.neural:{name}",
        torch=f"torch.nn.functional:{name}",
        samples=_transposed_samples(count),
        refuses=_transposed_refusals(name, count),
    )(named(conv_transpose, name, _DOC))


conv_transpose1d = _transposed_of(1)
conv_transpose2d = _transposed_of(2)
conv_transpose3d = _transposed_of(3)
