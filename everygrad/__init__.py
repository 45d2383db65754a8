"""Tensors and gradients on every GPU."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from everygrad import autograd as autograd
from everygrad.autograd.api import leaf_ready_hook as leaf_ready_hook
from everygrad.autograd.modes import detect_anomaly as detect_anomaly
from everygrad.autograd.modes import enable_grad as enable_grad
from everygrad.autograd.modes import inference_mode as inference_mode
from everygrad.autograd.modes import is_grad_enabled as is_grad_enabled
from everygrad.autograd.modes import no_grad as no_grad
from everygrad.autograd.modes import set_grad_enabled as set_grad_enabled
from everygrad.config import config as config
from everygrad.dtypes import BY_NAME as _DTYPES
from everygrad.ops import conv as _conv
from everygrad.ops import conversion as _conversion
from everygrad.ops import creation as _creation
from everygrad.ops import getitem as _getitem
from everygrad.ops import inplace as _inplace
from everygrad.ops import neural as _neural
from everygrad.ops import printing as _printing
from everygrad.ops import random as _random
from everygrad.ops import reduce as _reduce
from everygrad.ops.creation import (
    arange as arange,
    asarray as asarray,
    empty as empty,
    empty_like as empty_like,
    eye as eye,
    from_dlpack as from_dlpack,
    full as full,
    full_like as full_like,
    linspace as linspace,
    meshgrid as meshgrid,
    ones as ones,
    ones_like as ones_like,
    zeros as zeros,
    zeros_like as zeros_like,
)
from everygrad.ops.spec import REGISTRY as _REGISTRY
from everygrad.tensor import Tensor as Tensor

tensor = _creation.tensor
globals().update({op.name: op.function for op in _REGISTRY.values() if not op.namespace})
globals().update({name: getattr(_random, name) for name in _random.__all__})
globals().update({name: dtype for name, dtype in _DTYPES.items() if name != "bool"})
bool = _DTYPES["bool"]  # noqa: A001  # the Array API's name

# What costs time to import comes when it is first asked for.
_LATER = {
    **dict.fromkeys(
        ("grad", "value_and_grad", "vjp", "jvp", "jacobian", "jacfwd", "hessian", "hvp"),
        "everygrad.autograd.functional",
    ),
    "vmap": "everygrad.autograd.batching",
    "checkpoint": "everygrad.autograd.checkpoint",
    "checkpoint_sequential": "everygrad.autograd.checkpoint",
    "Function": "everygrad.autograd.function",
    "find_nan": "everygrad.autograd.anomaly",
    "gradcheck": "everygrad.autograd.gradcheck",
    "gradgradcheck": "everygrad.autograd.gradcheck",
}
_PARTS = ("nn", "optim", "tools")

__all__ = sorted(
    {name for name in globals() if not name.startswith("_")}
    - {"annotations", "import_module", "Any", "compile", "backends", "dispatch", "shapes", "ops"}
    | set(_LATER) | set(_PARTS)
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
    elif name in _PARTS:
        value = import_module(f"everygrad.{name}")
    else:
        raise AttributeError(f"everygrad has no {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
