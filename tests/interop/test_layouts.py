"""Strided memory of PyTorch's as a buffer: every layout gives the tensor back."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.interop.torch.backend import everygrad
from everygrad.interop.torch.layouts import layout_of

# equal sizes: then a permuted tensor has the shape of its buffer
SHAPES = [(4, 4), (3, 3, 3), (2, 2, 3), (2, 3, 3), (1, 3, 3), (2, 2, 2, 2)]


def memory_of(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_permutation_and_repetition_is_restored(shape: tuple[int, ...]) -> None:
    checked = 0
    for order in permutations(range(len(shape))):
        sizes = [shape[axis] for axis in order]
        whole = memory_of(int(np.prod(sizes))).reshape(sizes)
        dense = whole.permute(*np.argsort(order).tolist())
        assert tuple(dense.shape) == shape
        # each axis as it is, or the first element of it repeated
        for repeats in product((False, True), repeat=len(shape)):
            part = tuple(slice(0, 1) if again else slice(None) for again in repeats)
            t = dense[part].expand(shape)
            layout = layout_of(shape, t.stride())
            assert layout is not None
            memory = eg.tensor(whole.numpy().reshape(-1))
            buffer = memory[: int(np.prod(layout.buffer))].reshape(layout.buffer)
            np.testing.assert_array_equal(layout.restored(buffer).numpy(), t.numpy())
            if layout.dense:
                np.testing.assert_array_equal(
                    layout.arranged(eg.tensor(t.numpy())).numpy(), buffer.numpy()
                )
            checked += 1
    assert checked >= 8


@pytest.mark.parametrize("size", [4, 8])
def test_a_transposed_square_that_backward_reads(size: int) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, size, size) for _ in range(3)]

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(1, 2), -1) @ v

    found = []
    for call in (attention, torch.compile(attention, backend=everygrad)):
        own = [t.clone().requires_grad_() for t in given]
        call(*own).square().sum().backward()
        found.append([t.grad for t in own])
    for expected, ours in zip(*found, strict=True):
        assert expected is not None
        assert ours is not None
        np.testing.assert_allclose(ours.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
