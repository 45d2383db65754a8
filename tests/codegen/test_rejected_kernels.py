"""Kernels that a verifier, a renderer or a driver rejects: the error says which kernel, what it is
in the kernel language and what to do, and everything works afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.kernel_render import render as llvm
from everygrad.backends.cuda.driver import nvrtc
from everygrad.backends.cuda.source import kernel_render as cuda_render, render as cuda_table
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.backends.webgpu.source import kernel_render as wgsl_render, render as wgsl_table
from everygrad.codegen.kernel import Builder, Kernel
from everygrad.compiler.expr import call
from everygrad.errors import CompileError

TEXT = "kernel squashed: 1 groups x 1 threads"


def squashed(index: Any = dtypes.uint32) -> Kernel:
    b = Builder("squashed", index, 1, 1)
    x = b.buffer("x", dtypes.float32, 4)
    out = b.buffer("out", dtypes.float32, 4, written=True)
    with b.loop(0, 4) as i:
        b.store(out, i, call("tanh", b.load(x, i)))
    return b.finish()


RENDERERS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "cpu": (lambda: llvm(squashed(dtypes.uint64), (1, 0)), intrinsics, "apply"),
    "cuda": (lambda: cuda_render.render(squashed()), cuda_table, "TABLE"),
    "webgpu": (lambda: wgsl_render.render(squashed()), wgsl_table, "TABLE"),
}


@pytest.mark.parametrize("language", RENDERERS)
def test_a_renderer_says_which_op_needs_what_it_lacks(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, module, name = RENDERERS[language]
    whole = getattr(module, name)
    lacking = (
        {k: v for k, v in whole.items() if k != "tanh"} if name == "TABLE" else _lacking(whole)
    )
    monkeypatch.setattr(module, name, lacking)
    with pytest.raises(CompileError, match=f"{language}: squashed needs an intrinsic") as caught:
        render()
    assert "there is no tanh" in str(caught.value)
    assert TEXT in str(caught.value)
    monkeypatch.undo()
    assert render() is not None


def _lacking(apply: Callable[..., Any]) -> Callable[..., Any]:
    def without(e: Any, fn: str, *rest: Any) -> Any:
        if fn == "tanh":
            raise KeyError(fn)
        return apply(e, fn, *rest)

    return without


def check(error: pytest.ExceptionInfo[CompileError]) -> None:
    assert "does not compile" in str(error.value)
    assert "please report it with this text" in str(error.value)
    assert TEXT in str(error.value)


def test_what_llvm_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    real = intrinsics.apply

    def broken(e: Any, fn: str, *rest: Any) -> Any:
        found = real(e, fn, *rest)
        return found._replace(name="%nobody") if fn == "tanh" else found

    monkeypatch.setattr(intrinsics, "apply", broken)
    work = llvm(squashed(dtypes.uint64), (1, 0))
    monkeypatch.undo()
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(CompileError) as error:
        run_work.run(work, [out], [x])
    check(error)
    run_work.run(llvm(squashed(dtypes.uint64), (1, 0)), [out], [x])
    np.testing.assert_allclose(out, np.tanh(x), rtol=1e-6)


def test_what_nvrtc_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cuda_table.TABLE, "tanh", {"f": "nobody({0})"})
    broken = cuda_render.render(squashed()).text
    monkeypatch.undo()
    with pytest.raises(CompileError, match="cuda: the kernel 'squashed") as error:
        nvrtc.opened().compile(broken.name, with_library(broken.source), "sm_80")
    check(error)
    whole = cuda_render.render(squashed()).text
    assert nvrtc.opened().compile(whole.name, with_library(whole.source), "sm_80")


def test_what_a_driver_of_webgpu_rejects(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    if device != "webgpu":
        pytest.skip("of WebGPU's renderer")
    monkeypatch.setitem(wgsl_table.TABLE, "tanh", {"f": "nobody({0})"})
    broken = wgsl_render.render(squashed())
    monkeypatch.undo()
    backend: Any = base.get(device)
    with pytest.raises(CompileError, match="webgpu: the kernel 'squashed'") as error:
        backend.gpu.prepare(broken.name, broken.source, 1, 1, broken.params([0]), 1)
    check(error)
    assert eg.tanh(eg.zeros((3,), device=device)).numpy().tolist() == [0, 0, 0]


def test_what_a_device_has_no_statement_for() -> None:
    b = Builder("squashed", dtypes.uint64, 1, 2)
    out = b.buffer("out", dtypes.float32, 2, written=True)
    b.store(out, b.thread, 1.0)
    b.barrier()
    with pytest.raises(CompileError, match="cpu: squashed needs a barrier"):
        llvm(b.finish(), (0,))
    b = Builder("squashed", dtypes.uint32, 1, 1)
    out = b.buffer("out", dtypes.int64, 2, written=True, held=True)
    b.atomic("add", out, 0, 1)
    with pytest.raises(CompileError, match="webgpu: squashed needs an atomic add of int64"):
        wgsl_render.render(b.finish())
