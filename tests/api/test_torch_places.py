"""What PyTorch's programs say besides ops: modules they import, `data`, layouts, devices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import nn, optim
from everygrad.errors import ArgumentError, DtypeError, GradientError, ViewError

# --- modules -------------------------------------------------------------------------------------

PLACES = {
    "autograd": ("Variable", "grad", "Function"),
    "backends.cudnn": ("benchmark", "deterministic", "enabled", "is_available"),
    "backends.mps": ("is_available", "is_built"),
    "cuda.amp": ("GradScaler", "autocast"),
    "distributions.categorical": ("Categorical",),
    "distributions.normal": ("Normal",),
    "func": ("functional_call", "grad", "grad_and_value", "jacrev", "stack_module_state", "vmap"),
    "nn.utils.rnn": ("pack_padded_sequence", "pad_sequence"),
    "optim.lr_scheduler": ("OneCycleLR",),
    "utils.checkpoint": ("checkpoint", "checkpoint_sequential"),
    "utils.data": ("DataLoader", "Dataset", "random_split"),
}


@pytest.mark.parametrize("place", PLACES)
def test_modules_are_where_pytorch_has_them(place: str) -> None:
    module = import_module(f"everygrad.{place}")
    found: Any = eg
    for part in place.split("."):
        found = getattr(found, part)
    assert found is module
    there = import_module(f"torch.{place}")
    for name in PLACES[place]:
        assert hasattr(there, name)
        assert hasattr(module, name)
    wrong = f"{PLACES[place][0]}x"
    with pytest.raises(AttributeError, match=f"has no '{wrong}'"):
        getattr(module, wrong)


def test_modules_are_there_without_an_import_of_their_own() -> None:
    paths = ", ".join(f"everygrad.{place}" for place in PLACES)
    done = subprocess.run([sys.executable, "-c", f"import everygrad\n{paths}"], check=False)
    assert done.returncode == 0


def test_one_module_by_two_names() -> None:
    assert import_module("everygrad.utils.data") is eg.data
    assert eg.utils.data.DataLoader is eg.data.DataLoader
    assert dir(eg.utils) == ["checkpoint", "data", "tensorboard"]


def test_what_is_elsewhere_says_where() -> None:
    for look, message in (
        (lambda: nn.parallel.DistributedDataParallel, r"use eg\.distributed\.DataParallel"),
        (lambda: eg.profiler, r"use eg\.tools\.profile"),
        (lambda: eg.backends.mkldnn, "kernels are chosen by measuring"),
        (lambda: nn.SyncBatchNorm, r"use eg\.distributed\.SyncBatchNorm"),
    ):
        with pytest.raises(AttributeError, match=message):
            look()


def test_switches_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eg.backends.cudnn, "benchmark", False)
    before = eg.get_matmul_precision()
    try:
        eg.backends.cuda.matmul.allow_tf32 = True
        assert (eg.get_matmul_precision(), eg.backends.cuda.matmul.allow_tf32) == ("high", True)
        eg.backends.cuda.matmul.allow_tf32 = False
        assert eg.get_matmul_precision() == "highest"
    finally:
        eg.set_matmul_precision(before)
    assert not eg.backends.mps.is_available()
    assert not eg.backends.mps.is_built()


def test_checkpoints_take_pytorchs_switches() -> None:
    from everygrad.utils.checkpoint import checkpoint, checkpoint_sequential

    x = eg.tensor([1.0, 2.0], requires_grad=True)
    checkpoint(lambda v, scale: (v * v * scale).sum(), x, use_reentrant=False, scale=3.0).backward()
    assert x.grad.tolist() == [6.0, 12.0]
    steps = [lambda v: v * 2, lambda v: v + 1, lambda v: v * v]
    found = checkpoint_sequential(steps, 2, x, use_reentrant=False, preserve_rng_state=True)
    assert found.tolist() == [9.0, 25.0]


def test_functions_of_torch_func() -> None:
    x = np.arange(6.0).reshape(2, 3)

    def run(library: Any, make: Any) -> list[Any]:
        f = library.func
        rows = f.vmap(lambda a, b: (a * b).sum(), in_dims=(0, None))(make(x), make(x[0]))
        both = f.grad_and_value(lambda a: (a**3).sum())(make(x))
        return [rows, *both, f.jacrev(lambda a: a * a)(make(x[0]))]

    for ours, theirs in zip(run(eg, eg.tensor), run(torch, torch.tensor), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy())
    assert eg.vmap(lambda a: a, in_dims=1, out_dims=1)(eg.ones(2, 3)).shape == (2, 3)


def test_autocast_of_cuda_leaves_others_alone() -> None:
    from everygrad.cuda.amp import GradScaler, autocast

    for enabled in (True, False):
        with autocast(enabled):
            assert (eg.ones(2, 2) @ eg.ones(2, 2)).dtype is eg.float32
            assert eg.is_autocast_enabled("cuda") == enabled
    assert GradScaler is eg.amp.GradScaler


class Writer:
    """As much of a package for TensorBoard as there must be."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir, self.added = log_dir, []

    def add_scalar(self, tag: str, value: Any, step: int | None = None) -> None:
        self.added.append((tag, value, step))

    def add_scalars(self, tag: str, values: dict[str, Any], step: int | None = None) -> None:
        self.added.append((tag, values, step))

    def close(self) -> None:
        self.added.append("closed")


def test_the_writer_of_a_package_is_given_arrays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from everygrad.utils import tensorboard

    package = ModuleType("tensorboardX")
    package.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", package)
    tensorboard._writer.cache_clear()
    try:
        writer = tensorboard.SummaryWriter(str(tmp_path))
        writer.add_scalar("loss", eg.tensor(2.0, requires_grad=True), 3)
        writer.add_scalars("all", {"a": eg.tensor(1.0), "b": 2}, step=4)
        writer.close()
    finally:
        tensorboard._writer.cache_clear()
    (_, loss, _), (_, several, _), closed = writer.added
    assert (type(loss), loss.item(), closed) == (np.ndarray, 2.0, "closed")
    assert type(several["a"]) is np.ndarray
    assert several == {"a": 1.0, "b": 2}
    assert isinstance(writer, Writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="SummaryWriter: needs tensorboardX"):
        _ = tensorboard.SummaryWriter
    tensorboard._writer.cache_clear()


# --- data ----------------------------------------------------------------------------------------


def test_data_is_pytorchs() -> None:
    """Reads and writes of `data`, on both libraries: the values of parameter and gradient."""

    def run(library: Any, make: Callable[[Any], Any]) -> list[Any]:
        p = library.nn.Parameter(make([1.0, 2.0, 3.0]))
        d = p.data
        d[0] = 5.0
        found = [d + 0]
        p.data[1] = 7.0
        p.data -= 0.5
        p.data *= make([2.0, 1.0, 1.0])
        found.append(p.detach() + 0)
        (p * p * p).sum().backward()
        p.grad.data *= 2.0
        g = p.grad.data
        g[0] = 1.0
        found += [p.grad + 0, (p * 2).data]
        library.nn.init.constant_(p.data, 4.0)
        found.append(p.detach() + 0)
        p.data = make([[1.0, 2.0]])
        p.grad = None
        (p * 3).sum().backward()
        return [*found, p.detach() + 0, p.grad]

    ours = run(eg, lambda v: eg.tensor(v, dtype=eg.float32))
    theirs = run(torch, lambda v: torch.tensor(v, dtype=torch.float32))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert not a.requires_grad


def test_data_in_a_compiled_step() -> None:
    def trained(jitted: bool) -> list[Any]:
        eg.manual_seed(0)
        layer = nn.Linear(2, 2)
        opt = optim.SGD(layer.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = layer(x).square().sum()
            loss.backward()
            opt.step()
            layer.weight.data[0] = 0.5
            layer.bias.data -= 1.0
            layer.bias.data = layer.bias.data * 2.0
            return loss

        run = eg.jit(step) if jitted else step
        found = [run(eg.ones((1, 2))) for _ in range(3)]
        return [t.detach().numpy() for t in (*found, layer.weight, layer.bias)]

    for a, b in zip(trained(False), trained(True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_writes_to_data_that_would_be_lost_are_refused() -> None:
    p = nn.Parameter(eg.ones(3))
    d = p.data
    p.data = eg.zeros(3)
    with pytest.raises(ViewError, match="is a view of a tensor"):
        d[0] = 1.0  # PyTorch's would not be seen in p either
    y, x = p * 2, eg.zeros((2, 2))
    out, row = y.data, x[0]
    with pytest.raises(ViewError, match="is a view of a tensor"):
        out[0] = 1.0
    inner = row.data
    with pytest.raises(ViewError, match="is a view of a tensor"):
        inner += 1.0
    for wrong, error, message in (
        (lambda: setattr(y, "data", y), GradientError, "the result of an op"),
        (lambda: setattr(row, "data", eg.ones(2)), ViewError, "data: this tensor"),
        (lambda: setattr(p, "data", eg.arange(3)), DtypeError, "int64 has no derivatives"),
        (lambda: setattr(p, "data", 3), ArgumentError, "takes a tensor, got int"),
    ):
        with pytest.raises(error, match=message):
            wrong()
    assert x.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert p.tolist() == [0.0, 0.0, 0.0]


# --- layouts, devices and old names --------------------------------------------------------------


def test_layouts_are_taken() -> None:
    x = eg.ones(1, 2, 3, 3)
    assert x.to("cpu", True).shape == x.shape
    assert x.to(eg.float64, True).dtype is eg.float64
    for form in (eg.channels_last, eg.contiguous_format, eg.preserve_format):
        assert x.contiguous(memory_format=form) is x
        assert x.to(memory_format=form, non_blocking=True).tolist() == x.tolist()
    layer = nn.Linear(2, 2)
    assert layer.to(memory_format=eg.channels_last) is layer
    assert layer.to(x.device, True).weight.dtype is eg.float32
    assert layer.to(eg.zeros(1, dtype=eg.float64)).weight.dtype is eg.float64
    assert eg.zeros(2, 3, layout=eg.strided).shape == eg.Size([2, 3])


def test_tensors_by_their_oldest_names() -> None:
    for name, dtype in (
        *(("Float", "float32"), ("Double", "float64"), ("Half", "float16"), ("Bool", "bool")),
        *(("Long", "int64"), ("Int", "int32"), ("Short", "int16"), ("Char", "int8")),
        ("Byte", "uint8"),
    ):
        make, theirs = (getattr(library, f"{name}Tensor") for library in (eg, torch))
        assert make([1, 0]).tolist() == theirs([1, 0]).tolist()
        assert (make([1]).dtype, str(theirs([1]).dtype)) == (getattr(eg, dtype), f"torch.{dtype}")
        assert make(2, 3).shape == tuple(theirs(2, 3).shape)
        assert make().shape == tuple(theirs().shape) == (0,)


# --- attributes of instances ---------------------------------------------------------------------


def instances() -> dict[str, tuple[Any, str, str]]:
    layer = nn.Linear(2, 2)
    opt = optim.SGD(layer.parameters(), lr=0.1)
    x = eg.zeros(2, 2)
    return {
        "tensor": (x, "reshap", "reshape"),
        "module": (layer, "wieght", "weight"),
        "jitted module": (eg.jit(layer), "wieght", "weight"),
        "optimiser": (opt, "paramgroups", "param_groups"),
        "scheduler": (optim.lr_scheduler.StepLR(opt, 1), "get_last_rl", "get_last_lr"),
        "distribution": (eg.distributions.Normal(0.0, 1.0), "logprob", "log_prob"),
        "loader": (eg.data.DataLoader(eg.data.TensorDataset(x)), "batchsize", "batch_size"),
        "scaler": (eg.amp.GradScaler(), "updat", "update"),
        "generator": (eg.Generator(), "manual_sed", "manual_seed"),
    }


@pytest.mark.parametrize("kind", instances())
def test_python_says_what_is_nearest(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No `__getattr__` is needed for it, which would make every attribute slower to reach."""
    thing, wrong, near = instances()[kind]
    with pytest.raises(AttributeError, match=wrong) as caught:
        getattr(thing, wrong)
    sys.__excepthook__(AttributeError, caught.value, None)
    assert f"Did you mean: '{near}'?" in capsys.readouterr().err
