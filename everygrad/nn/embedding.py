"""Tables of vectors, looked up by number, one by one or in bags."""

from __future__ import annotations

from typing import Any, Self

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import functional as F, init
from everygrad.nn.functions.embeddings import padding_row
from everygrad.nn.linear import check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import arange, empty
from everygrad.ops.python.inplace import assign


class _Table(Module):
    """What tables of vectors share: the vectors, and how they are looked up."""

    padding_idx: int | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        weight: Tensor | None,
        device: str,
        dtype: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if max_norm is not None and not max_norm > 0:
            raise ArgumentError(f"{name}: max_norm must be positive, got {max_norm!r}")
        shape = (num_embeddings, embedding_dim)
        if weight is not None and weight.shape != shape:
            raise ShapeError(f"{name}: _weight must have shape {shape}, got {weight.shape}")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_row(padding_idx, num_embeddings)
        self.max_norm = max_norm
        self.norm_type = norm_type
        if weight is None:
            self.weight = Parameter(empty(shape, dtype, device))
            self.reset_parameters()
        else:
            self.weight = Parameter(weight)

    def reset_parameters(self) -> None:
        """Draw new vectors from the standard normal; that of `padding_idx` is zeros."""
        init.normal_(self.weight)
        if self.padding_idx is not None and not init.are_to_come():
            with no_grad():
                rows = arange(self.num_embeddings, device=self.weight.device).expand_dims(1)
                kept = where(rows == self.padding_idx, 0.0, self.weight)
                assign(self.weight, kept, "Embedding")

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **options: Any) -> Self:
        """A table of given vectors (rows, width); they are not trained if `freeze`."""
        if embeddings.ndim != 2:
            raise ShapeError(f"from_pretrained: takes (rows, width), got {embeddings.shape}")
        make: Any = cls
        made: Self = make(*embeddings.shape, _weight=embeddings, **options)
        made.weight.requires_grad_(not freeze)
        return made

    def extra_repr(self) -> str:
        shown = f"{self.num_embeddings}, {self.embedding_dim}"
        for name, usual in (("padding_idx", None), ("max_norm", None), ("norm_type", 2.0)):
            own = getattr(self, name)
            shown += f", {name}={own}" if own != usual else ""
        return shown


class Embedding(_Table):
    """A vector for each of `num_embeddings` integers.

    The vector of `padding_idx` starts as zeros and gets no gradient; the other options are those of
    `nn.functional.embedding`.

    >>> import everygrad as eg
    >>> eg.nn.Embedding(10, 4)(eg.tensor([[1, 2, 2]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, _weight, device, dtype
        )
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        if _freeze:
            self.weight.requires_grad_(False)

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(
            indices,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
        )


class EmbeddingBag(_Table):
    """Sums, means or maxima of the vectors of bags of integers, as `nn.functional.embedding_bag`.

    >>> import everygrad as eg
    >>> bags = eg.nn.EmbeddingBag(10, 4, mode="sum")
    >>> bags(eg.tensor([1, 2, 4]), eg.tensor([0, 2])).shape
    (2, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f'EmbeddingBag: mode must be "sum", "mean" or "max", got {mode!r}')
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, _weight, device, dtype
        )
        self.scale_grad_by_freq = scale_grad_by_freq
        self.mode = mode
        self.sparse = sparse
        self.include_last_offset = include_last_offset

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        return F.embedding_bag(
            indices,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
