"""A table of vectors, looked up by number."""

from __future__ import annotations

from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.nn import functional as F, init
from everygrad.nn.linear import check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import arange, empty
from everygrad.ops.python.inplace import assign


class Embedding(Module):
    """A vector for each of `num_embeddings` integers.

    The vector of `padding_idx` starts as zeros and gets no gradient.

    >>> import everygrad as eg
    >>> eg.nn.Embedding(10, 4)(eg.tensor([[1, 2, 2]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = (
            None if padding_idx is None else F.padding_row(padding_idx, num_embeddings)
        )
        self.weight = Parameter(empty((num_embeddings, embedding_dim), dtype, device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new vectors from the standard normal; that of `padding_idx` is zeros."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                rows = arange(self.num_embeddings, device=self.weight.device).expand_dims(1)
                kept = where(rows == self.padding_idx, 0.0, self.weight)
                assign(self.weight, kept, "Embedding")

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
