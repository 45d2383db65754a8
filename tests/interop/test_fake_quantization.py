"""Training that is aware of quantisation: rounding that gradients pass straight through."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import everygrad as eg
from tests.support.torch_compile import compiled


class Aware(nn.Module):
    """Weights by channel, activations by one scale, and by scales and zeros that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3, bias=False)
        self.norm = nn.BatchNorm2d(5)
        self.head = nn.Linear(5, 4)
        self.register_buffer("zeros", torch.zeros(5, dtype=torch.int32))
        self.scale = nn.Parameter(torch.tensor([0.05]))
        self.zero = nn.Parameter(torch.tensor([3.0]))
        self.scales = nn.Parameter(torch.full((4,), 0.03))
        self.zero_points = nn.Parameter(torch.tensor([0.0, 1.0, -1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        size = weight.detach().abs().amax((1, 2, 3)) / 127
        weight = torch.fake_quantize_per_channel_affine(weight, size, self.zeros, 0, -128, 127)
        x = F.relu(self.norm(F.conv2d(x, weight)))
        x = torch.fake_quantize_per_tensor_affine(x, 0.04, 2, 0, 63)
        x = torch._fake_quantize_learnable_per_tensor_affine(x, self.scale, self.zero, 0, 31, 0.5)
        x = self.head(x.mean((2, 3)))
        return torch._fake_quantize_learnable_per_channel_affine(
            x, self.scales, self.zero_points, 1, -8, 7, 0.5
        )


def _loss(out):
    return (out**2).mean() + (out * 3).mean()


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def test_five_steps_are_pytorchs() -> None:
    model, x = Aware(), torch.randn(3, 3, 9, 7)
    found = []
    for wrapped in (lambda m: m, compiled):
        copied = copy.deepcopy(model)
        call, losses = wrapped(copied), []
        step = torch.optim.SGD(copied.parameters(), lr=1e-2)
        for _ in range(5):
            step.zero_grad()
            loss = _loss(call(x))
            loss.backward()
            step.step()
            losses.append(loss.detach())
        found.append([*losses, *(p.detach() for p in copied.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=2e-5, atol=1e-6)


def test_an_imported_module_has_the_same_gradients() -> None:
    model, x = Aware(), torch.randn(3, 3, 9, 7)
    mine = eg.from_torch(copy.deepcopy(model), (x,))
    out = mine(eg.tensor(x.numpy()))
    _loss(out).backward()
    want = model(x)
    _loss(want).backward()
    np.testing.assert_allclose(out.detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)
    gradients = dict(mine.named_parameters())
    for name, p in model.named_parameters():
        got, wanted = gradients[name].grad.numpy(), p.grad.numpy()
        np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max(), err_msg=name)


def test_what_is_out_of_bounds_stays_finite() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.zero = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -8, 7)
            return torch._fake_quantize_learnable_per_tensor_affine(
                x, self.scale, self.zero, -2, 2, 1.0
            )

    x = torch.tensor([1e30, -1e30, 0.3])
    mine = eg.from_torch(Learned(), (x,))
    assert mine(eg.tensor(x.numpy())).tolist() == Learned()(x).tolist() == [2.0, -2.0, 0.0]
