"""Text, token by token: the prompt once, then one step for each new token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad._jit.jit import jit as compiled
from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.models.kv_cache import KVCache
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import arange, tensor
from everygrad.ops.random.discrete import categorical
from everygrad.ops.random.generators import Generator
from everygrad.ops.record.spec import REGISTRY

if TYPE_CHECKING:
    from everygrad.models.decoder import Decoder

_PROMPTS = 16  # prompts are padded to a multiple, so that few lengths are compiled
_CACHES = 64  # and caches to one of these


class Sampling(NamedTuple):
    """How a token is chosen by its scores."""

    do_sample: bool
    temperature: float
    top_k: int | None
    top_p: float
    seed: int

    def check(self) -> None:
        if not self.temperature > 0:
            raise ArgumentError(
                f"generate: temperature must be above 0, got {self.temperature!r}; "
                f"do_sample=False takes the most likely token"
            )
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise ArgumentError(f"generate: top_k must be an integer above 0, got {self.top_k!r}")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"generate: top_p must be above 0, at most 1, got {self.top_p!r}")

    def choose(self, scores: Tensor, generator: Generator) -> Tensor:
        """A token for each row of scores (batch, vocabulary)."""
        if not self.do_sample:
            return scores.argmax(axis=-1)
        scores = scores.astype("float32") / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            lowest = REGISTRY["topk"].function(scores, self.top_k)[0][:, -1:]
            scores = where(scores < lowest, -np.inf, scores)
        if self.top_p < 1:
            scores = where(scores < self._nucleus(scores), -np.inf, scores)
        return categorical(scores, generator=generator)

    def _nucleus(self, scores: Tensor) -> Tensor:
        """The lowest score among the fewest tokens whose probabilities reach top_p."""
        ordered = scores.sort(axis=-1, descending=True)
        chances = ordered.softmax(axis=-1)
        before = chances.cumulative_sum(axis=-1) - chances  # of all that are likelier
        return where(before < self.top_p, ordered, np.inf).min(axis=-1, keepdims=True)


class Steps:
    """The steps of one model, compiled once; a copy of the model compiles its own."""

    def __init__(self) -> None:
        self.made: dict[Sampling, tuple[Callable[..., Tensor], Generator]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        return Steps()

    def of(self, model: Decoder, sampling: Sampling) -> tuple[Callable[..., Tensor], Generator]:
        """The step, and the generator it draws from, at the beginning of the seed's stream."""
        kind = sampling._replace(seed=0)
        if kind not in self.made:
            generator = Generator(0)
            self.made[kind] = (compiled(_step(model, kind, generator)), generator)
        step, generator = self.made[kind]
        return step, generator.manual_seed(sampling.seed)


def _step(model: Decoder, sampling: Sampling, generator: Generator) -> Callable[..., Tensor]:
    def step(tokens: Tensor, last: Tensor, cache: KVCache, position: Tensor) -> Tensor:
        """The token behind each row's `last` one of those given."""
        scores = model(tokens, None, cache, position)
        rows = arange(tokens.shape[0], device=tokens.device)
        return sampling.choose(scores[rows, last], generator)

    return step


def generated(
    model: Decoder,
    prompts: Any,
    count: int,
    sampling: Sampling,
    end: int | Sequence[int] | None,
    pad: int | None,
    jit: bool,
) -> Any:
    """`Decoder.generate`, its defaults filled in."""
    sampling.check()
    if type(count) is not int or count < 1:
        raise ArgumentError(f"generate: max_new_tokens must be an integer above 0, got {count!r}")
    if model.training:
        raise ArgumentError("generate: the model is in training mode; call model.eval() first")
    ends = set() if end is None else {end} if isinstance(end, int) else set(end)
    rows = _rows(prompts, type(model).__name__)
    longest = max(map(len, rows))
    if longest + count > model.longest:
        raise ArgumentError(
            f"generate: a prompt of {longest} tokens and {count} more are {longest + count}; "
            f"{type(model).__name__} has {model.longest} positions"
        )
    device = model.lm_head.weight.device
    if jit:
        step, generator = model.steps.of(model, sampling)
    else:
        generator = Generator(sampling.seed)
        step = _step(model, sampling, generator)
    new = _loop(model, step, rows, count, ends, device)
    if not isinstance(prompts, Tensor):
        return [row + _until(more, ends) for row, more in zip(rows, new, strict=True)]
    fill = pad if pad is not None else min(ends, default=0)
    whole = [row + _filled(more, ends, fill) for row, more in zip(rows, new, strict=True)]
    return tensor(whole, prompts.dtype, prompts.device)


def _loop(
    model: Decoder,
    step: Callable[..., Tensor],
    rows: list[list[int]],
    count: int,
    ends: set[int],
    device: str,
) -> list[list[int]]:
    """The new tokens of each row. Rows of other lengths are padded behind: what the padding leaves
    in the cache lies behind every token that is asked for, and is written over by those to come."""
    lengths = np.array([len(row) for row in rows], np.int64)
    longest = int(lengths.max())
    width = min(-(-longest // _PROMPTS) * _PROMPTS, model.longest)
    room = min(-(-max(width, longest + count) // _CACHES) * _CACHES, model.longest)
    first = np.zeros((len(rows), width), np.int64)
    for i, row in enumerate(rows):
        first[i, : len(row)] = row
    uneven = len({*lengths.tolist()}) > 1

    def place(of: np.ndarray[Any, Any]) -> Tensor:
        return tensor(of if uneven else of[0], device=device)

    new: list[list[int]] = [[] for _ in rows]
    cache = model.new_cache(len(rows), room)
    last = tensor(lengths - 1, device=device)
    none = tensor(np.zeros_like(lengths), device=device)
    with no_grad():
        token = step(tensor(first, device=device), last, cache, place(np.zeros_like(lengths)))
        for i in range(count):
            found = token.to("cpu").numpy().tolist()
            for row, number in zip(new, found, strict=True):
                row.append(number)
            done = all(not ends.isdisjoint(row) for row in new)
            if done or i == count - 1:
                break
            token = step(token[:, None], none, cache, place(lengths + i))
    return new


def _rows(prompts: Any, name: str) -> list[list[int]]:
    """Prompts as lists of numbers, each of at least one token."""
    if isinstance(prompts, Tensor):
        if prompts.dtype.kind not in ("int", "uint"):
            raise DtypeError(f"generate: prompts are integers, got {prompts.dtype}")
        if prompts.ndim != 2:
            raise ShapeError(f"generate: prompts must be (batch, tokens), got {prompts.shape}")
        rows = prompts.tolist()
    else:
        rows = [list(row) if not isinstance(row, int | str) else row for row in prompts]
        if not all(isinstance(row, list) and all(type(n) is int for n in row) for row in rows):
            raise ArgumentError(
                f"generate: {name} takes a tensor (batch, tokens), or lists of token numbers"
            )
    if not rows or not all(rows):
        raise ArgumentError("generate: every prompt needs a token at least")
    return rows


def _until(more: list[int], ends: set[int]) -> list[int]:
    """New tokens up to the first end token, which is the last."""
    at = next((i for i, number in enumerate(more) if number in ends), len(more))
    return more[: at + 1]


def _filled(more: list[int], ends: set[int], fill: int) -> list[int]:
    kept = _until(more, ends)
    return kept + [fill] * (len(more) - len(kept))
