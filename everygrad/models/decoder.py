"""What decoders of text share: masks, the cache of keys and values, and generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.models.generation import Sampling, Steps, generated
from everygrad.models.kv_cache import KVCache, positions_of, visible
from everygrad.models.pretrained import Pretrained
from everygrad.nn.linear import Linear

Masks = dict[int | None, Tensor | None]  # by a layer's window; None: every token before


class Decoder(Pretrained):
    """Token numbers in, scores of the next token out; each token looks at those before it."""

    heads: int  # of keys and values
    head_dim: int
    longest: int  # tokens of a row that have a place
    windows: tuple[int | None, ...]  # of each layer: how far back a token looks; None: to the first
    lm_head: Linear

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.steps = Steps()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: KVCache | None = None,
        position: Tensor | None = None,
    ) -> Tensor:
        """Scores (batch, tokens, vocabulary).

        `attention_mask` is True or 1 where a token is no padding. With a `cache`, `position` is the
        place of the first token given, a tensor: one for all rows (0-d), or one for each.
        """
        name = type(self).__name__
        if input_ids.ndim != 2:
            raise ShapeError(f"{name}: input_ids must be (batch, tokens), got {input_ids.shape}")
        if input_ids.shape[1] > self.longest:
            raise ShapeError(
                f"{name}: {input_ids.shape[1]} tokens are more than its {self.longest} positions"
            )
        if (cache is None) != (position is None):
            raise ArgumentError(f"{name}: give cache and position, or neither")
        if cache is not None and attention_mask is not None:
            raise ArgumentError(f"{name}: a cache has no padding: give position for each row")
        at = positions_of(input_ids, position)
        keys = input_ids.shape[1] if cache is None else cache.length
        real = None if attention_mask is None else attention_mask.astype("bool")[:, None, None, :]
        masks: Masks = {}
        for window in dict.fromkeys(self.windows):
            if cache is None and real is None and (window is None or window >= keys):
                masks[window] = None
                continue
            seen = visible(at, keys, window)
            masks[window] = seen if real is None else seen & real
        out: Tensor = self.lm_head(self.hidden(input_ids, at, masks, cache, position))
        return out

    def hidden(
        self, tokens: Tensor, at: Tensor, masks: Masks, cache: KVCache | None, position: Any
    ) -> Tensor:
        """What the head turns into scores; each network has its own."""
        raise NotImplementedError(f"{type(self).__name__} defines no hidden()")

    def new_cache(self, batch: int, length: int) -> KVCache:
        """An empty cache for `length` tokens of each of `batch` rows."""
        held = self.lm_head.weight
        return KVCache.empty(
            len(self.windows), batch, self.heads, length, self.head_dim, held.dtype, held.device
        )

    def generate(
        self,
        input_ids: Tensor | Sequence[Sequence[int]],
        max_new_tokens: int = 20,
        *,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        jit: bool = True,
    ) -> Any:
        """The prompts continued, each until an end token or for `max_new_tokens`.

        Prompts are a tensor (batch, tokens), and a longer one comes back, filled up with
        `pad_token_id` behind end tokens; or lists of token numbers of any lengths, and lists come
        back. The most likely token is taken, or with `do_sample` one is drawn: of the `top_k`
        likeliest, or of the fewest whose probabilities reach `top_p`, with `temperature`; the same
        `seed` draws the same. The end token is the configuration's unless it is given. Keys and
        values are kept, and with `jit` one compiled step serves all tokens.

        >>> import everygrad as eg
        >>> sizes = {"vocab_size": 99, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}
        >>> model = eg.models.GPT2(sizes).eval()
        >>> model.generate(eg.tensor([[1, 5, 2]]), max_new_tokens=4, jit=False).shape
        (1, 7)
        """
        sampling = Sampling(do_sample, temperature, top_k, top_p, seed)
        end = self.config.get("eos_token_id") if eos_token_id is None else eos_token_id
        pad = self.config.get("pad_token_id") if pad_token_id is None else pad_token_id
        return generated(self, input_ids, max_new_tokens, sampling, end, pad, jit)
