"""`torch.compile(backend="everygrad")` as tests call it, and how its results are compared."""

from __future__ import annotations

import torch

from everygrad.interop.torch.backend import everygrad

WHOLE = {"fullgraph": True}


def compiled(fn, **options):
    """Compiled with no node left to PyTorch, unless a test says otherwise."""
    options.setdefault("options", WHOLE)
    return torch.compile(fn, backend=everygrad, **options)


def assert_same(got, want, tolerance=1e-10):
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        wide = torch.complex128 if want.dtype.is_complex else torch.float64
        torch.testing.assert_close(
            got.to(wide), want.to(wide), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    elif isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert_same(g, w, tolerance)
    else:
        assert got == want
