"""Cross entropy by one kernel on CUDA, and the allocating lines of large tensors, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.backends.cuda import array
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver import nvrtc
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.driver.memory import LARGE
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.nn import functional as F


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A dry GPU that nothing was launched on."""
    made = Cuda("cuda:dry", DryDriver())
    monkeypatch.setitem(base._OPEN, "cuda:dry", made)
    yield made
    array._plans.clear()  # they launch on the device they were made on


def loss(shape: tuple[int, ...], dtype: str = "float32", **settings: Any) -> eg.Tensor:
    x = eg.tensor(np.ones(shape, np.float32), dtype, device="cuda:dry").requires_grad_()
    labels = eg.tensor(np.zeros((shape[0], *shape[2:]), np.int64), device="cuda:dry")
    return F.cross_entropy(x, labels, **settings)


def test_labels_take_one_kernel_each_way(gpu: Any) -> None:
    with gpu.launches() as names:
        loss((4, 10)).backward()
    kinds = [name.rsplit("_", 1)[0] for name in names]
    assert kinds.count("softmax_cross_entropy") == kinds.count("softmax_cross_entropy_vjp") == 1
    assert "count_labels" in kinds
    assert not {"log_softmax", "nll_gather", "nll_scatter", "log_softmax_vjp"} & set(kinds)


def test_smoothed_labels_need_all_logarithms(gpu: Any) -> None:
    with gpu.launches() as names:
        loss((4, 10), label_smoothing=0.1)
    assert any(name.startswith("log_softmax") for name in names)


def test_kernels_of_all_lengths_compile(gpu: Any) -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        for shape in ((3, 10), (3, 8, 2), (2, 1500), (2, 9001), (2, 9004)):
            loss(shape, dtype).backward()
    ours = ("softmax_cross_entropy", "nll_", "count_")
    texts = [t for n, t in gpu.gpu.driver.texts.items() if n.startswith(ours)]
    assert len(texts) >= 20
    options = ("--gpu-architecture=sm_80", *nvrtc.OPTIONS, "--Ofast-compile=max")
    assert nvrtc.opened().build("all", with_library("".join(t.source for t in texts)), options)


def test_the_line_that_made_a_large_tensor_is_the_users(gpu: Any) -> None:
    small = eg.tensor(np.ones(LARGE // 4, np.float32), device="cuda:dry")
    made = small + 1.0
    line = sys._getframe().f_lineno - 1
    size, who = gpu.gpu.memory.large[made._data.ptr]
    assert size == LARGE
    assert str(who) == f"{__file__}:{line}"
    del made
    assert len(gpu.gpu.memory.large) == 1
