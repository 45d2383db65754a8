"""Sequences of different lengths in one batch: padded to the longest, or packed without padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from everygrad.autograd import trees
from everygrad.core.nearest import answering as _answering
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import take
from everygrad.ops.python.creation import asarray, full
from everygrad.ops.shape.joining import concat, stack


@dataclass(frozen=True, eq=False)
class PackedSequence:
    """The steps of sequences one after the other: first all that have a first step, and so on.

    data              (all steps, ...)
    batch_sizes       how many sequences have step 0, step 1, ...: Python integers, so that a
                      compiled function knows them
    sorted_indices    which sequence of the caller's comes where, longest first; None if as given
    unsorted_indices  its inverse
    """

    data: Tensor
    batch_sizes: tuple[int, ...]
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def __iter__(self) -> Iterator[Any]:
        """The four fields in their order, as PyTorch's unpacks."""
        order = (self.sorted_indices, self.unsorted_indices)
        return iter((self.data, self.batch_sizes, *order))

    @property
    def lengths(self) -> list[int]:
        """The length of each sequence, longest first."""
        return [sum(size > i for size in self.batch_sizes) for i in range(self.batch_sizes[0])]

    @property
    def device(self) -> str:
        """Where the data is."""
        return self.data.device

    def to(self, device: Any = None, dtype: Any = None) -> PackedSequence:
        """The same on a device, or in a dtype."""
        order = (self.sorted_indices, self.unsorted_indices)
        return PackedSequence(
            self.data.to(device, dtype),
            self.batch_sizes,
            *(i if i is None or not isinstance(device, str) else i.to(device) for i in order),
        )


# the sizes are part of the structure: a compiled function is one for each pattern of lengths
trees.register(
    PackedSequence,
    lambda p: ((p.data, p.sorted_indices, p.unsorted_indices), p.batch_sizes),
    lambda sizes, leaves: PackedSequence(leaves[0], sizes, *leaves[1:]),
)


def _lengths(fn: str, lengths: Any, n: int, longest: int) -> list[int]:
    given = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    if len(given) != n:
        raise ShapeError(f"{fn}: {n} lengths are needed, one for each sequence, got {len(given)}")
    for length in given:
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= longest:
            raise ArgumentError(
                f"{fn}: lengths must be integers from 1 to {longest}, got {length!r}"
            )
    return given


def _index(values: Any, device: str) -> Tensor:
    return asarray(np.asarray(values, np.int64), device=device)


def _time_first(fn: str, x: Tensor, batch_first: bool) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"{fn}: takes (time, batch, ...) or, batch first, its swap, got {x.shape}")
    return x.swapaxes(0, 1) if batch_first else x


def pack_padded_sequence(
    input: Tensor,
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Sequences without their padding, from (time, batch, ...), or (batch, time, ...).

    `enforce_sorted` says that lengths do not grow; without it the sequences are sorted first.

    >>> import everygrad as eg
    >>> padded = eg.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
    >>> eg.nn.utils.rnn.pack_padded_sequence(padded, [3, 1], batch_first=True).data
    tensor([1., 4., 2., 3.])
    """
    x = _time_first("pack_padded_sequence", input, batch_first)
    steps, n = x.shape[:2]
    counts = _lengths("pack_padded_sequence", lengths, n, steps)
    falling = all(a >= b for a, b in pairwise(counts))
    ahead: Tensor | None = None
    back: Tensor | None = None
    if not enforce_sorted:
        order = sorted(range(n), key=lambda i: -counts[i])
        ahead, back = _index(order, x.device), _index(np.argsort(order), x.device)
        x, counts = take(x, ahead, axis=1), [counts[i] for i in order]
    elif not falling:
        raise ArgumentError(
            f"pack_padded_sequence: lengths {counts} grow; sort the sequences, longest first, or "
            f"pass enforce_sorted=False"
        )
    sizes = tuple(sum(c > t for c in counts) for t in range(counts[0] if counts else 0))
    return PackedSequence(packed_rows(x, sizes), sizes, ahead, back)


def packed_rows(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """The rows of (time, batch, ...) that are no padding."""
    rows = [t * x.shape[1] + i for t, size in enumerate(sizes) for i in range(size)]
    flat = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    out: Tensor = take(flat, _index(rows, x.device), axis=0)
    return out


def padded_rows(packed: PackedSequence, value: float = 0.0, steps: int | None = None) -> Tensor:
    """(time, batch, ...) in the sorted order."""
    sizes = packed.batch_sizes
    steps, n = steps or len(sizes), sizes[0]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    index, inside = np.zeros((steps, n), np.int64), np.zeros((steps, n), bool)
    for t, size in enumerate(sizes):
        index[t, :size] = starts[t] + np.arange(size)
        inside[t, :size] = True
    data = packed.data
    rows = take(data, _index(index.reshape(-1), data.device), axis=0)
    out = rows.reshape(steps, n, *data.shape[1:])
    if inside.all():
        return out
    mask = asarray(inside, device=data.device).reshape((steps, n) + (1,) * (data.ndim - 1))
    filled: Tensor = where(mask, out, full((), value, dtype=data.dtype, device=data.device))
    return filled


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Packed sequences padded to the longest, or to `total_length`, and their lengths.

    >>> import everygrad as eg
    >>> rnn = eg.nn.utils.rnn
    >>> rnn.pad_packed_sequence(rnn.pack_sequence([eg.ones((2,)), eg.zeros((1,))]))[1]
    tensor([2, 1])
    """
    longest = len(sequence.batch_sizes)
    if total_length is not None and total_length < longest:
        raise ArgumentError(
            f"pad_packed_sequence: total_length must be at least {longest}, the longest "
            f"sequence, got {total_length}"
        )
    out = padded_rows(sequence, padding_value, total_length)
    lengths = _index(sequence.lengths, "cpu")
    if sequence.unsorted_indices is not None:
        out = take(out, sequence.unsorted_indices, axis=1)
        lengths = take(lengths, sequence.unsorted_indices.to("cpu"), axis=0)
    return (out.swapaxes(0, 1) if batch_first else out), lengths


def pad_sequence(
    sequences: Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Tensors (length, ...) padded to the longest: (longest, number, ...), or number first.

    >>> import everygrad as eg
    >>> eg.nn.utils.rnn.pad_sequence([eg.ones((2,)), eg.ones((1,))], batch_first=True)
    tensor([[1., 1.],
            [1., 0.]])
    """
    given = list(sequences)
    if padding_side not in ("right", "left"):
        raise ArgumentError(
            f'pad_sequence: padding_side must be "right" or "left", got {padding_side!r}'
        )
    if not given or any(not isinstance(x, Tensor) or not x.ndim for x in given):
        raise ArgumentError("pad_sequence: takes one tensor or more, each with an axis of steps")
    if len({(x.shape[1:], x.dtype) for x in given}) > 1:
        shown = ", ".join(str(x.shape) for x in given)
        raise ShapeError(f"pad_sequence: sequences must differ in their first axis only: {shown}")
    longest = max(x.shape[0] for x in given)
    rows = []
    for x in given:
        if x.shape[0] < longest:
            shape = (longest - x.shape[0], *x.shape[1:])
            extra = full(shape, padding_value, dtype=x.dtype, device=x.device)
            x = concat([x, extra] if padding_side == "right" else [extra, x], axis=0)
        rows.append(x)
    out: Tensor = stack(rows, axis=0 if batch_first else 1)
    return out


def unpad_sequence(
    padded_sequences: Tensor, lengths: Any, batch_first: bool = False
) -> list[Tensor]:
    """The sequences of a padded batch, each with its own length.

    >>> import everygrad as eg
    >>> eg.nn.utils.rnn.unpad_sequence(eg.ones((2, 3)), [3, 1], batch_first=True)
    [tensor([1., 1., 1.]), tensor([1.])]
    """
    x = _time_first("unpad_sequence", padded_sequences, batch_first)
    counts = _lengths("unpad_sequence", lengths, x.shape[1], x.shape[0])
    return [x[:count, i] for i, count in enumerate(counts)]


def pack_sequence(sequences: Iterable[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Tensors (length, ...) packed.

    >>> import everygrad as eg
    >>> eg.nn.utils.rnn.pack_sequence([eg.ones((2,)), eg.zeros((1,))]).batch_sizes
    (2, 1)
    """
    given = list(sequences)
    padded = pad_sequence(given)
    return pack_padded_sequence(padded, [x.shape[0] for x in given], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch, in the caller's order.

    >>> import everygrad as eg
    >>> rnn = eg.nn.utils.rnn
    >>> rnn.unpack_sequence(rnn.pack_sequence([eg.ones((2,)), eg.zeros((1,))]))
    [tensor([1., 1.]), tensor([0.])]
    """
    return unpad_sequence(*pad_packed_sequence(packed_sequences))


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes one; None for none.

    >>> import everygrad as eg
    >>> eg.nn.utils.rnn.invert_permutation(eg.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    if permutation is None:
        return None
    order: Tensor = permutation.argsort()
    return order


__getattr__ = _answering(__name__)
