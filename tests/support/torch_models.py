"""Small PyTorch models of every kind of layer, for what runs them beside us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

torch.set_num_threads(1)  # these arrays are tiny, and two test processes share the cores


class Case(NamedTuple):
    """A model, and what it is called with."""

    name: str
    make: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]] = dict


class TiedTransformer(nn.Module):
    """A language model whose head is its table of words; word 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        count, dtype = words.shape[1], self.words.weight.dtype
        mask = nn.Transformer.generate_square_subsequent_mask(count, dtype=dtype)
        return self.head(self.layers(self.words(words), mask=mask, is_causal=True))


class UNet(nn.Module):
    """Down, up, and a bridge between: convolutions of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1, groups=2), nn.LeakyReLU(0.1))
        self.up = nn.ConvTranspose2d(8, 6, 2, 2)
        self.out = nn.Conv2d(12, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.down(x)
        low = self.deep(nn.functional.avg_pool2d(high, 1))
        up = self.up(low) + nn.functional.interpolate(low[:, :6], scale_factor=2, mode="bilinear")
        return self.out(torch.cat([high, up], 1))


class Recurrent(nn.Module):
    """An LSTM of two layers and a GRU in both directions; nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True)
        self.gru = nn.GRU(4, 5, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y, state = self.lstm(x)
        z, last = self.gru(y)
        return {"out": z, "states": (*state, [last]), "none": None}


class Indexed(nn.Module):
    """Masks, indices, scatters and sorts, and numbers of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))
        self.register_buffer("limit", torch.tensor(0.3), persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor, *, scale: float = 1.0) -> Any:
        y = x @ self.weight
        kept = y.masked_fill(y > self.limit, 0.5)
        kept[kept < -0.5] = -0.25
        best, where = y.topk(2, dim=-1)
        summed = torch.zeros(6, 5, dtype=y.dtype).index_add(0, at, kept)
        spread = torch.scatter(y, 1, where, best * 2)
        return summed[1:5].cumsum(0) * scale, spread.flip(0), (at + 1.5).mean(), where


CASES = [
    Case(
        "mlp",
        lambda: nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 2)),
        lambda: (torch.randn(4, 3),),
    ),
    Case(
        "cnn",
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(16, 3), nn.LogSoftmax(-1)),
        ),
        lambda: (torch.randn(4, 2, 4, 4),),
    ),
    Case("transformer", TiedTransformer, lambda: (torch.tensor([[1, 2, 0, 4], [5, 0, 0, 9]]),)),
    Case("recurrent", Recurrent, lambda: (torch.randn(2, 5, 3),)),
    Case("unet", UNet, lambda: (torch.randn(2, 2, 6, 6),)),
    Case(
        "indexed",
        Indexed,
        lambda: (torch.randn(3, 4), torch.tensor([2, 0, 2])),
        lambda: {"scale": 2.0},
    ),
]


def doubled(value: Any) -> Any:
    """Floating-point tensors in float64."""
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else value


def made(case: Case) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A case's model in float64, and its arguments; the same every time."""
    torch.manual_seed(sum(map(ord, case.name)))
    model = case.make().double()
    return model, tuple(map(doubled, case.args())), case.kwargs()
