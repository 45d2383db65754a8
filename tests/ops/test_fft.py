"""Fourier transforms against NumPy and PyTorch: every length, norm and layout; derivatives."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.backends.cpu.solver.fourier import KERNELS
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from tests.support.checks import close, without_kernel

ONE = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
LENGTHS = [1, 2, 3, 4, 7, 16, 31, 32, 33, 37, 60, 64, 97, 100, 127, 128, 210, 257]


def signal(*shape: int, complex_: bool = True, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    made = rng.normal(size=shape)
    return made + 1j * rng.normal(size=shape) if complex_ else made


@pytest.mark.parametrize("n", LENGTHS)
def test_portable_transforms_of_any_length(n: int) -> None:
    """Products with waves, Cooley and Tukey's split, Bluestein's convolution."""
    x = signal(2, n)
    with ExitStack() as stack:
        for name in KERNELS:
            stack.enter_context(without_kernel("cpu", name))
        close(eg.fft.fft(eg.tensor(x)), np.fft.fft(x), 1e-12)
        close(eg.fft.fft(eg.tensor(x.real)), np.fft.fft(x.real), 1e-12)
        close(eg.fft.ifft(eg.tensor(x)), np.fft.ifft(x), 1e-12)
        close(eg.fft.rfft(eg.tensor(x.real)), np.fft.rfft(x.real), 1e-12)
        close(eg.fft.irfft(eg.tensor(x), n=n), np.fft.irfft(x, n=n), 1e-12)
        small = eg.tensor(x.astype(np.complex64))
        assert eg.fft.fft(small).dtype is eg.complex64
        close(eg.fft.fft(small), np.fft.fft(x), 1e-5)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ONE)
def test_norms_lengths_and_axes(name: str, norm: str) -> None:
    x = signal(3, 5, 4, complex_=name not in ("rfft", "ihfft"))
    ours, theirs = getattr(eg.fft, name), getattr(np.fft, name)
    for n in (None, 3, 6, 9):
        for axis in (0, -1, 1):
            options = {"n": n, "axis": axis, "norm": norm}
            close(ours(eg.tensor(x), **options), theirs(x, **options), 1e-12, f"{name} {options}")


@pytest.mark.parametrize("last", ["n", "2"])
@pytest.mark.parametrize("first", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_several_axes(first: str, last: str) -> None:
    name = first + last
    x = signal(3, 4, 5, complex_=not name.startswith(("rf", "ih")))
    ours, theirs = getattr(eg.fft, name), getattr(torch.fft, name)
    for s, axes in ((None, None), ((4, 3), (0, 2)), ((2, 6), (1, 0)), (None, (-1, 0))):
        options = {} if axes is None else {"axes": axes}
        given = {} if axes is None else {"dim": axes}
        want = theirs(torch.tensor(x), s=s, norm="ortho", **given)
        close(ours(eg.tensor(x), s=s, norm="ortho", **options), want.numpy(), 1e-12, name)


@pytest.mark.parametrize(
    "name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "irfft2"]
)
def test_gradients_are_torchs(name: str) -> None:
    """Of complex inputs too, to second order through a square."""
    a = signal(4, 5, complex_=name not in ("rfft", "ihfft"))
    v = signal(4, 5, complex_=name not in ("rfft", "ihfft"), seed=1)
    x, t = eg.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    ours = (abs(getattr(eg.fft, name)(x)) ** 2).sum()
    theirs = (getattr(torch.fft, name)(t).abs() ** 2).sum()
    (g,) = eg.autograd.grad(ours, [x], create_graph=True)
    (h,) = torch.autograd.grad(theirs, t, create_graph=True)
    close(g, h.detach().numpy(force=True), 1e-11)
    picked = (eg.real(g * eg.tensor(v)) if g.dtype.is_complex else g * eg.tensor(v)).sum()
    chosen = (h * torch.tensor(v)).real.sum() if h.is_complex() else (h * torch.tensor(v)).sum()
    (more,) = eg.autograd.grad(picked, [x])
    (same,) = torch.autograd.grad(chosen, t)
    close(more, same.numpy(force=True), 1e-11)


def test_inverses() -> None:
    x = eg.tensor(signal(3, 7, complex_=False))
    close(eg.fft.ifft(eg.fft.fft(x)), x, 1e-14)
    close(eg.fft.irfft(eg.fft.rfft(x), n=7), x, 1e-14)
    close(eg.fft.hfft(eg.fft.ihfft(x), n=7), x, 1e-14)
    close(eg.fft.irfftn(eg.fft.rfftn(x), s=(3, 7)), x, 1e-14)
    assert eg.fft.fft(x.astype("float32")).dtype is eg.complex64
    assert eg.fft.rfft(x.astype("float16")).dtype is eg.complex64


def test_frequencies_and_shifts() -> None:
    for n in (1, 4, 5):
        close(eg.fft.fftfreq(n, d=0.5, dtype="float64"), np.fft.fftfreq(n, 0.5), 1e-15)
        close(eg.fft.rfftfreq(n, d=0.5, dtype="float64"), np.fft.rfftfreq(n, 0.5), 1e-15)
        x = eg.arange(n)
        close(eg.fft.ifftshift(eg.fft.fftshift(x)), x, 0)
    assert eg.fft.fftfreq(3).dtype is eg.float32
    with pytest.raises(ArgumentError, match="fftfreq: n must be at least 1, got 0"):
        eg.fft.fftfreq(0)
    with pytest.raises(DtypeError, match="rfftfreq: frequencies are real"):
        eg.fft.rfftfreq(3, dtype="complex64")


def test_refusals() -> None:
    x = eg.ones((3,))
    with pytest.raises(ArgumentError, match="fft: a transform needs at least one element"):
        eg.fft.fft(x, n=0)
    with pytest.raises(ArgumentError, match=r"irfft: .* got length 0"):
        eg.fft.irfft(eg.ones((1,)))
    with pytest.raises(ShapeError, match="fftn: s has 2 sizes for 1 axes"):
        eg.fft.fftn(eg.ones((2, 2)), s=(2, 2), axes=(0,))
    with pytest.raises(DtypeError, match="rfft: does not take complex64"):
        eg.fft.rfft(x.astype("complex64"))


# --- short stretches -----------------------------------------------------------------------------


@pytest.mark.parametrize("pad_mode", ["reflect", "replicate", "circular", "constant"])
@pytest.mark.parametrize("onesided", [True, False])
def test_stft(pad_mode: str, onesided: bool) -> None:
    x = signal(2, 50, complex_=False)
    window = eg.hann_window(12, dtype="float64")
    given = {"hop_length": 5, "win_length": 12, "normalized": True, "onesided": onesided}
    got = eg.stft(eg.tensor(x), 16, window=window, pad_mode=pad_mode, **given)
    want = torch.stft(
        torch.tensor(x),
        16,
        window=torch.hann_window(12, dtype=torch.float64),
        pad_mode=pad_mode,
        return_complex=True,
        **given,
    )
    close(got, want.numpy(), 1e-12)


def test_istft_undoes_stft() -> None:
    x = signal(2, 64, complex_=False)
    window = eg.hann_window(16, dtype="float64")
    there = eg.stft(eg.tensor(x), 16, 4, window=window)
    close(eg.istft(there, 16, 4, window=window), x, 1e-12)
    close(eg.istft(there, 16, 4, window=window, length=60), x[:, :60], 1e-12)
    longer = eg.istft(there, 16, 4, window=window, length=70)
    assert longer.shape == (2, 70)
    z = signal(40)
    both = eg.stft(eg.tensor(z), 8, 2)
    close(eg.istft(both, 8, 2, return_complex=True), z, 1e-12)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_windows(name: str) -> None:
    for periodic in (True, False):
        for n in (0, 1, 2, 5, 8):
            got = getattr(eg, f"{name}_window")(n, periodic, dtype="float64")
            want = getattr(torch, f"{name}_window")(n, periodic, dtype=torch.float64)
            close(got, want.numpy(), 1e-12, f"{name} {n}")
    with pytest.raises(ArgumentError, match="window_length must not be negative"):
        getattr(eg, f"{name}_window")(-1)
