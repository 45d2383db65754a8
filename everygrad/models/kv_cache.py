"""Keys and values of tokens that were seen, kept for the tokens that follow.

The tensors have their full size from the beginning, and where to write is a tensor too, so that one
compiled step serves every token.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from everygrad.core.tensor import Tensor
from everygrad.ops.python.creation import arange, zeros


class KVCache(NamedTuple):
    """For each layer the keys and values (batch, heads, length, width of a head).

    >>> import everygrad as eg
    >>> cache = eg.models.KVCache.empty(1, 2, 4, 16, 8)
    >>> cache.length, cache.keys[0].shape
    (16, (2, 4, 16, 8))
    """

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(
        cls,
        layers: int,
        batch: int,
        heads: int,
        length: int,
        head_dim: int,
        dtype: Any = None,
        device: str = "cpu",
    ) -> Self:
        """A cache for `length` tokens of each of `batch` rows."""
        shape = (batch, heads, length, head_dim)
        keys, values = ([zeros(shape, dtype, device) for _ in range(layers)] for _ in range(2))
        return cls(keys, values)

    @property
    def length(self) -> int:
        """How many tokens of a row have a place."""
        return self.keys[0].shape[2]

    def write(
        self, layer: int, key: Tensor, value: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Put the keys and values of new tokens at `position`, and give those of all places.

        `position` is that of the first new token: one for all rows (0-d), or one for each.
        """
        keys, values = self.keys[layer], self.values[layer]
        steps = arange(key.shape[2], device=key.device)
        if position.ndim:
            rows = arange(key.shape[0], device=key.device)[:, None]
            at = position[:, None] + steps
            keys[rows, :, at] = key.permute_dims((0, 2, 1, 3))
            values[rows, :, at] = value.permute_dims((0, 2, 1, 3))
        else:
            keys[:, :, position + steps] = key
            values[:, :, position + steps] = value
        return keys, values


def positions_of(tokens: Tensor, position: Tensor | None) -> Tensor:
    """The places of tokens (batch, tokens) in their rows: (tokens,), or (batch, tokens)."""
    steps = arange(tokens.shape[1], device=tokens.device)
    if position is None:
        return steps
    return position[:, None] + steps if position.ndim else position + steps


def visible(at: Tensor, keys: int, window: int | None) -> Tensor:
    """Which of `keys` places the tokens at places `at` may look at: up to their own, and not
    further back than `window`. The shape is that of `at`, an axis for heads, and one for places."""
    places = arange(keys, device=at.device)
    rows = at[..., None]
    seen = places <= rows
    if window is not None:
        seen = seen & (places > rows - window)
    return seen[:, None] if at.ndim == 2 else seen
