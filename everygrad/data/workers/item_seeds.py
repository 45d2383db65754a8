"""Random numbers of items: each batch of a pass has its own seed, whoever fetches it.

As the items of a batch are fetched, one after the other, `random`, NumPy's global functions and
everygrad's default generator begin at that batch's seed, so that an augmentation comes out the same
for any number of workers. In a thread worker the first two are the whole process's and stay as they
are: draw from everygrad there, or from `item_generator()`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import mtrand

from everygrad.data.permutation import mixed
from everygrad.ops.random.generators import Generator, default_generator, scoped_generator


class _Here(threading.local):
    """The generator of the item that this thread fetches."""

    generator: Generator | None = None


_here = _Here()


def item_generator() -> Generator | None:
    """The generator from which the item that is being fetched draws, or None outside of a fetch.

    >>> import everygrad as eg
    >>> eg.data.item_generator() is None
    True
    """
    return _here.generator


def _begin(generator: Generator, seed: int) -> None:
    """`manual_seed` in a tenth of its time."""
    words = np.frombuffer(seed.to_bytes(16, "little"), np.uint32)  # the key, and a counter of 0
    generator.state.rebind(words, None, drawn=True)


class ProcessSeeds:
    """Seeds the streams of this whole process: of a worker process, or of a loader without workers,
    which gives them back afterwards."""

    def __init__(self) -> None:
        self._bits = np.random.MT19937(0)

    def __call__(self, *numbers: int) -> None:
        seed = mixed(*numbers)
        random.seed(seed)
        np.random.seed(seed >> 32)
        _begin(default_generator, seed)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Items are fetched inside; the streams are then where they were."""
        before: Any = (random.getstate(), default_generator.get_state())
        numpy_bits, around = mtrand.get_bit_generator(), _here.generator
        try:
            mtrand.set_bit_generator(self._bits)
            _here.generator = default_generator
            yield
        finally:
            _here.generator = around
            mtrand.set_bit_generator(numpy_bits)
            random.setstate(before[0])
            default_generator.set_state(before[1])


class ThreadSeeds:
    """Seeds the stream of one worker thread."""

    def __init__(self) -> None:
        self._generator = Generator(0)

    def __call__(self, *numbers: int) -> None:
        _begin(self._generator, mixed(*numbers))

    @contextmanager
    def scope(self) -> Iterator[None]:
        with scoped_generator(self._generator):
            around, _here.generator = _here.generator, self._generator
            try:
                yield
            finally:
                _here.generator = around
