"""Tensors and gradients on every GPU."""

from __future__ import annotations

import math as _math
from importlib import import_module
from typing import Any

from everygrad import autograd as autograd
from everygrad.autograd.api import leaf_ready_hook as leaf_ready_hook
from everygrad.autograd.autocast import autocast as autocast
from everygrad.autograd.modes import (
    detect_anomaly as detect_anomaly,
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    is_grad_enabled as is_grad_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from everygrad.config import (
    config as config,
    get_matmul_precision as get_matmul_precision,
    set_matmul_precision as set_matmul_precision,
)
from everygrad.dtypes import (
    BY_NAME as _DTYPES,
    can_cast as can_cast,
    finfo as finfo,
    iinfo as iinfo,
    isdtype as isdtype,
    result_type as result_type,
)
from everygrad.ops import creation as _creation, random as _random
from everygrad.ops.conversion import VERSIONS as _VERSIONS
from everygrad.ops.later import FUNCTIONS as _NAMES
from everygrad.ops.spec import REGISTRY as _REGISTRY
from everygrad.tensor import Tensor as Tensor
from everygrad.torchnames import FUNCTIONS as _FUNCTIONS, cure as _cure

# The registry is the list of ops; `__init__.pyi`, made from it, is what editors and mypy read.
globals().update({name: getattr(_creation, name) for name in _creation.__all__})
globals().update({op.name: op.function for op in _REGISTRY.values() if not op.namespace})
globals().update({name: getattr(_random, name) for name in _random.__all__})
globals().update({name: dtype for name, dtype in _DTYPES.items() if name != "bool"})
bool = _DTYPES["bool"]  # the Array API's name

# Tensors name this module as their namespace: the Array API's constants, and how it is asked about.
e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
__array_api_version__ = _VERSIONS[-1]

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
    "jit": "everygrad.tracing.jit",
    "gradcheck": "everygrad.autograd.gradcheck",
    "gradgradcheck": "everygrad.autograd.gradcheck",
    "allclose": "everygrad.ops.comparing",
    **dict.fromkeys(
        ("broadcast_shapes", "logspace", "tril_indices", "triu_indices"), "everygrad.ops.building"
    ),
    **dict.fromkeys(("stft", "istft"), "everygrad.ops.spectra"),
    **dict.fromkeys(
        ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"),
        "everygrad.ops.windows",
    ),
    **dict.fromkeys(("beta", "dirichlet", "exponential", "gamma"), "everygrad.ops.distributions"),
    **dict.fromkeys(
        ("binomial", "categorical", "gumbel_softmax", "multinomial", "permutation", "poisson"),
        "everygrad.ops.discrete",
    ),
    "__array_namespace_info__": "everygrad.ops.inspection",
}
_OPS_LATER = frozenset(n for names in _NAMES.values() for n in names)
_PARTS = ("fft", "io", "linalg", "nn", "optim", "special", "tools")

__all__ = sorted(
    {name for name in globals() if not name.startswith("_")}
    - {"annotations", "import_module", "Any", "compile", "backends", "dispatch", "shapes", "ops"}
    - {"scopes", "torchnames"}
    | {"__array_api_version__"}
    | _OPS_LATER
    | set(_LATER)
    | set(_PARTS)
)


def __getattr__(name: str) -> Any:
    if name in _OPS_LATER:
        value: Any = _REGISTRY[name].function
    elif name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
    elif name in _PARTS:
        value = import_module(f"everygrad.{name}")
    else:
        raise AttributeError(f"everygrad has no {name!r}{_cure(name, _FUNCTIONS)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
