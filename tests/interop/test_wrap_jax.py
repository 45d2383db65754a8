"""wrap_jax: JAX's functions among ours, with JAX where `.venv-jax` has it (tools/bootstrap.sh
bench), and always with a stand-in that has JAX's calling convention, made of PyTorch's."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.errors import ArgumentError, DeviceError, DtypeError, FunctionError, TraceError

ROOT = Path(__file__).parents[2]
PACKAGES = next(iter(ROOT.glob(".venv-jax/lib/python*/site-packages")), None)


def stand_in() -> Any:
    """A module with what wrap_jax asks of JAX: vjp, vmap and arrays; no float64, as JAX's."""
    jax: Any = types.ModuleType("jax")
    jax.vjp, jax.vmap = torch.func.vjp, lambda f, in_axes: torch.func.vmap(f, in_dims=in_axes)
    jax.numpy = types.ModuleType("jax.numpy")

    def asarray(array: Any) -> torch.Tensor:
        made = torch.tensor(array)
        return made.float() if made.dtype is torch.float64 else made

    jax.numpy.asarray = asarray
    for name in ("zeros_like", "sin", "exp", "stack", "sum", "where"):
        setattr(jax.numpy, name, getattr(torch, name))
    jax.numpy.take = lambda x, index: x[index]
    return jax


@pytest.fixture(autouse=True)
def _jax(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sys.modules.get("jax") or stand_in()  # JAX itself in the run below
    monkeypatch.setitem(sys.modules, "jax", made)


def jnp() -> Any:
    return sys.modules["jax"].numpy  # type: ignore[attr-defined]  # JAX's, or the stand-in's


def of(values: Any) -> eg.Tensor:
    return eg.tensor(np.asarray(values, np.float32))


def halved(x: Any) -> Any:
    """An array in float16."""
    return x.half() if isinstance(x, torch.Tensor) else x.astype("float16")


# the same function of JAX's arrays and of tensors
TABLE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "elementwise": (lambda x, y: jnp().sin(x) * y + x * x * x,
                    lambda x, y: eg.sin(x) * y + x * x * x),
    "a sum": (lambda x, y: jnp().sum(jnp().exp(x * y)), lambda x, y: eg.exp(x * y).sum()),
    "two results": (lambda x, y: [x * y, jnp().exp(y)], lambda x, y: [x * y, eg.exp(y)]),
    "one unused": (lambda x, y: x * x, lambda x, y: x * x),
}  # fmt: skip


def total(f: Callable[..., Any]) -> Callable[..., Any]:
    def scalar(*xs: eg.Tensor) -> eg.Tensor:
        out = f(*xs)
        parts = out if isinstance(out, list) else [out]
        return sum((k + 1) * p.sum() for k, p in enumerate(parts))  # type: ignore[return-value]

    return scalar


def near(got: Any, want: Any) -> None:
    a, b = (eg.autograd.trees.flatten(v)[0] for v in (got, want))
    assert len(a) == len(b)
    assert a
    for g, w in zip(a, b, strict=True):
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=2e-5, atol=1e-6)


X, Y = of([0.3, 0.7]), of([1.0, 2.0])


@pytest.mark.parametrize("name", TABLE)
def test_values_and_derivatives_of_every_kind(name: str) -> None:
    theirs, ours = TABLE[name]
    f = eg.wrap_jax(theirs)
    near(f(X, Y), ours(X, Y))
    near(eg.grad(total(f), (0, 1))(X, Y), eg.grad(total(ours), (0, 1))(X, Y))
    near(eg.hessian(total(f))(X, Y), eg.hessian(total(ours))(X, Y))
    near(eg.jvp(f, (X, Y), (Y, X)), eg.jvp(ours, (X, Y), (Y, X)))
    near(eg.jacobian(f)(X, Y), eg.jacobian(ours)(X, Y))
    near(eg.vmap(f)(X, Y), eg.vmap(ours)(X, Y))


def test_third_derivatives_and_backward() -> None:
    theirs, ours = TABLE["elementwise"]
    f = eg.wrap_jax(theirs)

    def third(g: Any) -> Any:
        def first(x: eg.Tensor) -> eg.Tensor:
            return eg.grad(total(g))(x, Y).sum()

        return eg.grad(lambda x: eg.grad(first)(x).sum())(X)

    near(third(f), third(ours))
    x = of([0.3, 0.7])
    x.requires_grad = True
    f(x, Y).sum().backward()
    near(x.grad, eg.grad(total(ours))(X, Y))


def test_per_example_gradients() -> None:
    theirs, ours = TABLE["a sum"]
    grads = [eg.vmap(eg.grad(g), in_axes=(0, None))(eg.stack([X, Y]), Y)
             for g in (eg.wrap_jax(theirs), ours)]  # fmt: skip
    near(*grads)


def test_containers_numbers_and_integers() -> None:
    """Tensors are found in containers and keywords; what is no tensor is handed on."""

    def theirs(given: Any, k: int = 2, index: Any = None) -> Any:
        return {"a": given["p"][0] * k, "b": (jnp().take(given["p"][0], index),)}

    f = eg.wrap_jax(theirs)
    index = eg.tensor([1, 0, 1], dtype="int32")
    x = of([0.3, 0.7])
    x.requires_grad = True
    out = f({"p": [x]}, k=3, index=index)
    near(out, {"a": X * 3, "b": (X.take(index.astype("int64")),)})
    (out["a"].sum() + out["b"][0].sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 5.0]
    assert f.__name__ == "theirs"


def test_refusals() -> None:
    f = eg.wrap_jax(TABLE["elementwise"][0])
    with pytest.raises(ArgumentError, match="wrap_jax: takes a JAX function, got int"):
        eg.wrap_jax(3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ArgumentError, match="no tensor among the arguments"):
        f(1.0, 2.0)
    with pytest.raises(TraceError, match="inside jit, where no value is known; call it outside"):
        eg.jit(f)(X, Y)
    with pytest.raises(DtypeError, match=r"JAX makes float32 of float64.*jax_enable_x64"):
        f(X.astype("float64"), Y)
    with pytest.raises(FunctionError, match="returns nothing; return arrays"):
        eg.wrap_jax(lambda x: [])(X)
    with pytest.raises(FunctionError, match="results of different dtypes"):
        eg.wrap_jax(lambda x: [x, halved(x)])(X)


def test_another_device_is_refused(device: str) -> None:
    if device == "cpu":
        assert eg.wrap_jax(lambda x: x * 2)(X.to(device)).tolist() == (X * 2).tolist()
        return
    with pytest.raises(DeviceError, match="takes tensors on the cpu"):
        eg.wrap_jax(lambda x: x * 2)(X.to(device))


def test_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ModuleNotFoundError, match="pip install jax"):
        eg.wrap_jax(lambda x: x)


@pytest.mark.skipif("jax" in sys.modules, reason="this is the run with JAX")
def test_with_jax_itself() -> None:
    """This file again with JAX, in a process of its own, where it is installed; where it is not,
    the stand-in above has JAX's calling convention all the same."""
    assert callable(stand_in().vjp)
    if PACKAGES is None:
        return
    code = f"import sys; sys.path.append({str(PACKAGES)!r}); import jax, pytest; "
    code += f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {__file__!r}]))"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
