"""The older functions for norms of weights, whose parameters lie in the module itself."""

from __future__ import annotations

from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.nn.utils.computed import compute, computed_names, keep
from everygrad.nn.utils.parametrizations import norm_axis, norm_except
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.python.inplace import assign
from everygrad.ops.random.generators import randn


def _plain(fn: str, module: Module, name: str) -> Parameter:
    held = vars(module).get(name)
    if not isinstance(held, Parameter):
        known = ", ".join(n for n, _ in module._own(Parameter)) or "none"
        raise ArgumentError(
            f"{fn}: {type(module).__name__} has no plain parameter {name!r}; there are: {known}"
        )
    return held


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Train the size (`weight_g`) and the direction (`weight_v`) of a weight apart.

    `nn.utils.parametrizations.weight_norm` is the newer one.

    >>> import everygrad as eg
    >>> sorted(eg.nn.utils.weight_norm(eg.nn.Linear(2, 3)).state_dict())
    ['bias', 'weight_g', 'weight_v']
    """
    weight = _plain("weight_norm", module, name)
    axis = norm_axis("weight_norm", weight, dim)
    with no_grad():
        size = norm_except(weight, axis)
    delattr(module, name)
    module.register_parameter(f"{name}_g", Parameter(size, weight.requires_grad))
    module.register_parameter(f"{name}_v", Parameter(weight, weight.requires_grad))

    def value(self: Any) -> Tensor:
        v = getattr(self, f"{name}_v")
        out: Tensor = v * (getattr(self, f"{name}_g") / norm_except(v, axis))
        return out

    compute(module, name, value)
    return module


def _removed(fn: str, module: Any, name: str, *parts: str) -> Any:
    if name not in computed_names(module) or not all(hasattr(module, part) for part in parts):
        raise ArgumentError(f"{fn}: {name!r} of {type(module).__name__} has no such norm")
    with no_grad():
        value = getattr(module, name).detach()
    trained = getattr(module, parts[0]).requires_grad
    keep(module, name)
    for part in parts:
        delattr(module, part)
    setattr(module, name, Parameter(value, trained))
    return module


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Make a weight with `weight_norm` a plain parameter again.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.weight_norm(eg.nn.Linear(2, 3))
    >>> sorted(eg.nn.utils.remove_weight_norm(layer).state_dict())
    ['bias', 'weight']
    """
    return _removed("remove_weight_norm", module, name, f"{name}_v", f"{name}_g")


def spectral_norm(
    module: Any,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Any:
    """Divide a weight by its largest singular value, followed at each call in training.

    `nn.utils.parametrizations.spectral_norm` is the newer one.

    >>> import everygrad as eg
    >>> sorted(eg.nn.utils.spectral_norm(eg.nn.Linear(2, 3)).state_dict())
    ['bias', 'weight_orig', 'weight_u', 'weight_v']
    """
    weight = _plain("spectral_norm", module, name)
    if n_power_iterations < 1:
        raise ArgumentError(
            f"spectral_norm: n_power_iterations must be positive, got {n_power_iterations!r}"
        )
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    order = (dim, *(k for k in range(weight.ndim) if k != dim))

    def matrix(w: Tensor) -> Tensor:
        return w.permute_dims(order).reshape(w.shape[dim], -1)

    with no_grad():
        sizes = matrix(weight).shape
        dtype, device = weight.dtype, weight.device
        drawn = [randn((n,), dtype=dtype, device=device) for n in sizes]
        starts = [F.normalize(start, axis=0, eps=eps) for start in drawn]
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    for key, start in zip(("u", "v"), starts, strict=True):
        module.register_buffer(f"{name}_{key}", start)

    def value(self: Any) -> Tensor:
        held = getattr(self, f"{name}_orig")
        u, v = getattr(self, f"{name}_u").detach(), getattr(self, f"{name}_v").detach()
        out: Tensor = held / (u * matmul(matrix(held), v)).sum()
        return out

    @no_grad()
    def follow(self: Any, args: Any) -> None:
        if not self.training:
            return
        found = matrix(getattr(self, f"{name}_orig").detach())
        u, v = getattr(self, f"{name}_u"), getattr(self, f"{name}_v")
        new_u, new_v = u, v
        for _ in range(n_power_iterations):
            new_v = F.normalize(matmul(found.mT, new_u), axis=0, eps=eps)
            new_u = F.normalize(matmul(found, new_v), axis=0, eps=eps)
        assign(u, new_u, "spectral_norm")
        assign(v, new_v, "spectral_norm")

    compute(module, name, value)
    vars(module).setdefault("_norm_hooks", {})[name] = module.register_forward_pre_hook(follow)
    return module


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Make a weight with `spectral_norm` a plain parameter again.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.spectral_norm(eg.nn.Linear(2, 3))
    >>> sorted(eg.nn.utils.remove_spectral_norm(layer).state_dict())
    ['bias', 'weight']
    """
    made = _removed("remove_spectral_norm", module, name, f"{name}_orig", f"{name}_u", f"{name}_v")
    vars(made)["_norm_hooks"].pop(name).remove()
    return made
