"""Images taken apart and put together: columns of windows, pixels and channels exchanged."""

from __future__ import annotations

from typing import Any

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.nn.conv2d import check_fit, columns_of, integers, window_of
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import composite, refuse, same, sample
from everygrad.ops.shape.movement import put_slices, slice_axis


@composite(
    methods=(),
    reference="tests.support.references.neural:im2col",
    torch="torch.nn.functional:unfold",
    samples=lambda: iter(
        (
            sample(s.real(1, 2, 3, 2), 2),
            sample(s.real(1, 1, 3, 4), (2, 1), dilation=(1, 2), padding=(1, 0), stride=(2, 3)),
        )
    ),
    refuses=(
        refuse(ShapeError, "im2col: a kernel of .* does not fit", s.real(1, 1, 2, 2), 3),
        refuse(ArgumentError, "im2col: stride must be", s.real(1, 1, 2, 2), 2, stride=0),
        refuse(ShapeError, "im2col: takes images", s.real(2, 2), 2),
    ),
)
def im2col(
    x: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """What each place of a window sees: (batch, channels * height * width of the window, places).

    PyTorch's `unfold` of images, and `nn.functional.unfold`.
    """
    window = window_of("im2col", kernel_size, stride, padding, dilation)
    check_fit("im2col", x.shape, window)
    return columns_of(x, window).squeeze(1)


@composite(
    kinds="numeric",
    methods=(),
    reference="tests.support.references.neural:col2im",
    torch="torch.nn.functional:fold",
    samples=lambda: iter(
        (
            sample(s.real(1, 8, 2), (3, 2), 2),
            sample(s.real(1, 2, 4), (3, 4), (2, 1), dilation=(1, 2), padding=(1, 0), stride=(2, 3)),
        )
    ),
    refuses=(
        refuse(ShapeError, "col2im: .* needs 2 places, got 3", s.real(1, 8, 3), (3, 2), 2),
        refuse(ShapeError, "col2im: 6 rows are no multiple of the 4", s.real(1, 6, 2), (3, 2), 2),
        refuse(ShapeError, "col2im: takes columns", s.real(8, 2), (3, 2), 2),
    ),
)
def col2im(
    x: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Tensor:
    """Columns (batch, channels * window, places) added up to images: the transpose of `im2col`.

    PyTorch's `fold`, and `nn.functional.fold`.
    """
    check_kind("col2im", x.dtype, "numeric")
    window = window_of("col2im", kernel_size, stride, padding, dilation)
    height, width = integers("col2im", "the output size", output_size, 1, 2)
    if x.ndim != 3:
        raise ShapeError(f"col2im: takes columns (batch, rows, places), got {x.shape}")
    taps = shapes.size_of(window.size)
    if x.shape[1] % taps:
        raise ShapeError(f"col2im: {x.shape[1]} rows are no multiple of the {taps} of a window")
    out = window.out_size((height, width))
    if min(out) < 1 or x.shape[2] != out[0] * out[1]:
        raise ShapeError(
            f"col2im: an image of {(height, width)} under a window of {window.size} needs "
            f"{max(0, out[0]) * max(0, out[1])} places, got {x.shape[2]}"
        )
    x = x.reshape(x.shape[0], x.shape[1] // taps, *window.size, *out)
    x = _added_up(
        x, 3, 4, width, [v[1] for v in window[1:4]]
    )  # (batch, channels, taps, out, width)
    return _added_up(x, 2, 2, height, [v[0] for v in window[1:4]])


def _added_up(x: Tensor, taps: int, places: int, size: int, options: list[int]) -> Tensor:
    """x without its axis `taps`, the axis `places` of what is left spread over `size` elements."""
    step, around, spread = options
    total: Tensor | None = None
    for k in range(x.shape[taps]):
        part = slice_axis(x, taps, k, 1).squeeze(taps)
        shape = tuple(size + 2 * around if a == places else n for a, n in enumerate(part.shape))
        slices = tuple(
            (k * spread, part.shape[a], step) if a == places else (0, n, 1)
            for a, n in enumerate(shape)
        )
        part = put_slices(part, shape, slices)
        total = part if total is None else total + part
    assert total is not None
    return slice_axis(total, places, around, size)


# --- pixels and channels -------------------------------------------------------------------------


def _check_factor(op: str, x: Tensor, name: str, factor: Any) -> int:
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise ArgumentError(f"{op}: {name} must be a positive integer, got {factor!r}")
    if x.ndim < 3:
        raise ShapeError(f"{op}: takes images (..., channels, height, width), got {x.shape}")
    return factor


@composite(
    methods=(),
    reference="tests.support.references.neural:pixel_shuffle",
    torch="torch.nn.functional:pixel_shuffle",
    samples=lambda: iter((sample(s.real(1, 4, 1, 2), 2), sample(s.real(4, 2, 1), 2))),
    refuses=(
        refuse(ShapeError, "pixel_shuffle: 3 channels are no multiple of 4", s.real(3, 1, 1), 2),
        refuse(ArgumentError, "pixel_shuffle: upscale_factor must be", s.real(4, 1, 1), 0),
        refuse(ShapeError, "pixel_shuffle: takes images", s.real(4, 4), 2),
    ),
)
def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """(..., C r r, H, W) as (..., C, H r, W r): each r * r channels become a square of pixels."""
    r = _check_factor("pixel_shuffle", x, "upscale_factor", upscale_factor)
    *batch, c, height, width = x.shape
    if c % (r * r):
        raise ShapeError(f"pixel_shuffle: {c} channels are no multiple of {r * r}")
    x = x.reshape(*batch, c // (r * r), r, r, height, width)
    n = len(batch)
    x = x.permute_dims((*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return same(x.reshape(*batch, c // (r * r), height * r, width * r))


@composite(
    methods=(),
    reference="tests.support.references.neural:pixel_unshuffle",
    torch="torch.nn.functional:pixel_unshuffle",
    samples=lambda: iter((sample(s.real(1, 1, 2, 4), 2), sample(s.real(2, 2, 2), 2))),
    refuses=(
        refuse(ShapeError, "pixel_unshuffle: .* are no multiples of 2", s.real(1, 3, 2), 2),
        refuse(ArgumentError, "pixel_unshuffle: downscale_factor", s.real(4, 1, 1), 0.5),
    ),
)
def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H r, W r) as (..., C r r, H, W): the inverse of `pixel_shuffle`."""
    r = _check_factor("pixel_unshuffle", x, "downscale_factor", downscale_factor)
    *batch, c, height, width = x.shape
    if height % r or width % r:
        raise ShapeError(f"pixel_unshuffle: {(height, width)} are no multiples of {r}")
    x = x.reshape(*batch, c, height // r, r, width // r, r)
    n = len(batch)
    x = x.permute_dims((*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return same(x.reshape(*batch, c * r * r, height // r, width // r))


@composite(
    methods=(),
    reference="tests.support.references.neural:channel_shuffle",
    torch="torch.nn.functional:channel_shuffle",
    samples=lambda: iter((sample(s.real(1, 6, 2), 2), sample(s.real(2, 4, 1), 4))),
    refuses=(
        refuse(ShapeError, "channel_shuffle: 3 channels are no multiple of 2", s.real(1, 3), 2),
        refuse(ArgumentError, "channel_shuffle: groups must be", s.real(1, 4), 0),
    ),
)
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """The channels along axis 1 dealt out: the first of each group, then the second of each."""
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise ArgumentError(f"channel_shuffle: groups must be a positive integer, got {groups!r}")
    if x.ndim < 2 or x.shape[1] % groups:
        channels = x.shape[1] if x.ndim > 1 else 0
        raise ShapeError(f"channel_shuffle: {channels} channels are no multiple of {groups}")
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return same(parts.swapaxes(1, 2).reshape(x.shape))
