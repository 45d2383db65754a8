"""Tensors and gradients on every GPU."""

from __future__ import annotations

import math as _math
from importlib import import_module
from types import FunctionType as _Function
from typing import Any

from everygrad import amp as amp, autograd as autograd
from everygrad.amp.policy import autocast as autocast
from everygrad.autograd.api import leaf_ready_hook as leaf_ready_hook
from everygrad.autograd.modes import (
    detect_anomaly as detect_anomaly,
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    is_grad_enabled as is_grad_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from everygrad.core.config import (
    config as config,
    get_matmul_precision as get_matmul_precision,
    set_matmul_precision as set_matmul_precision,
)
from everygrad.core.tensor import Tensor as Tensor
from everygrad.core.torch_names import (
    FUNCTIONS as _FUNCTIONS,
    OWN_FUNCTIONS as _OWN,
    SAME_FUNCTIONS as _SAME,
    missing as _missing,
)
from everygrad.dtypes import (
    BY_NAME as _DTYPES,
    can_cast as can_cast,
    finfo as finfo,
    iinfo as iinfo,
    isdtype as isdtype,
    result_type as result_type,
)
from everygrad.ops.python import creation as _creation, dlpack as _dlpack
from everygrad.ops.python.conversion import VERSIONS as _VERSIONS
from everygrad.ops.random import generators as _random
from everygrad.ops.record.keywords import spelled as _spelled
from everygrad.ops.record.lazy_index import FUNCTIONS as _NAMES
from everygrad.ops.record.spec import REGISTRY as _REGISTRY

__version__ = "0.1.0"

# The registry is the list of ops; `__init__.pyi`, made from it, is what editors and mypy read.
globals().update({name: getattr(_creation, name) for name in _creation.__all__})
globals().update({name: getattr(_dlpack, name) for name in _dlpack.__all__})
globals().update({op.name: op.function for op in _REGISTRY.values() if not op.namespace})
globals().update({name: getattr(_random, name) for name in _random.__all__})
for _name in (
    *("arange", "bernoulli", "empty_like", "eye", "full", "full_like", "linspace", "ones_like"),
    *("rand_like", "randn_like", "zeros_like"),
):  # here alone: what the package itself calls pays nothing for other names
    globals()[_name] = _spelled(globals()[_name])
globals().update({name: dtype for name, dtype in _DTYPES.items() if name != "bool"})
bool = _DTYPES["bool"]  # the Array API's name

# Tensors name this module as their namespace: the Array API's constants, and how it is asked about.
e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
__array_api_version__ = _VERSIONS[-1]

# What costs time to import comes when it is first asked for.
_LATER = {
    **dict.fromkeys(
        ("grad", "value_and_grad", "vjp", "jvp", "jacobian", "jacfwd", "hessian", "hvp"),
        "everygrad.autograd.transforms.functional",
    ),
    "vmap": "everygrad.autograd.transforms.vmap",
    "checkpoint": "everygrad.autograd.transforms.checkpoint",
    "checkpoint_sequential": "everygrad.autograd.transforms.checkpoint",
    "Function": "everygrad.autograd.transforms.function",
    "find_nan": "everygrad.autograd.transforms.anomaly",
    "jit": "everygrad._jit.jit",
    "embedding": "everygrad.nn.functional",
    "gradcheck": "everygrad.autograd.transforms.gradcheck",
    "gradgradcheck": "everygrad.autograd.transforms.gradcheck",
    "allclose": "everygrad.ops.elementwise.comparison",
    **dict.fromkeys(
        ("broadcast_shapes", "logspace", "tril_indices", "triu_indices"),
        "everygrad.ops.shape.builders",
    ),
    **dict.fromkeys(("stft", "istft"), "everygrad.ops.signal.stft"),
    **dict.fromkeys(
        ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"),
        "everygrad.ops.signal.window_functions",
    ),
    **dict.fromkeys(
        ("beta", "dirichlet", "exponential", "gamma"), "everygrad.ops.random.continuous"
    ),
    **dict.fromkeys(
        ("binomial", "categorical", "gumbel_softmax", "multinomial", "permutation", "poisson"),
        "everygrad.ops.random.discrete",
    ),
    "from_torch": "everygrad.interop.torch.calls",
    "to_torch": "everygrad.interop.torch.calls",
    "load": "everygrad.io.loading",
    "load_latest": "everygrad.io.checkpoints",
    "save": "everygrad.io.saving",
    "wrap_jax": "everygrad.interop.jax",
    "__array_namespace_info__": "everygrad.ops.python.namespace_info",
}
_OPS_LATER = frozenset(n for names in _NAMES.values() for n in names)
_PARTS = (
    *("cuda", "data", "distributed", "distributions", "fft", "io", "linalg", "models", "nn"),
    *("optim", "special", "tools", "training"),
)
_TORCH_PARTS = ("func", "utils")  # where PyTorch's programs look for what stands elsewhere here

# What other libraries call things: it works, but is not what is taught.
_ALIASES = {
    **dict.fromkeys(_SAME, ""),
    **{n: f"everygrad.ops.aliases.{module}" for module, names in _OWN.items() for n in names},
}

# What is public: written out here, and ops by their records. tests/public_names.txt is the sum.
__all__ = sorted(
    {
        *("Tensor", "amp", "autograd", "config", "dtypes", "errors"),
        *("autocast", "detect_anomaly", "enable_grad", "inference_mode", "is_grad_enabled"),
        *("leaf_ready_hook", "no_grad", "set_grad_enabled"),
        *("get_matmul_precision", "set_matmul_precision"),
        *("can_cast", "finfo", "iinfo", "isdtype", "result_type"),
        *("e", "inf", "nan", "newaxis", "pi", "__array_api_version__", "__version__"),
        *_DTYPES,
        *_creation.__all__,
        *_dlpack.__all__,
        *_random.__all__,
        *(op.name for op in _REGISTRY.values() if not op.namespace),
        *_OPS_LATER,
        *_LATER,
        *_PARTS,
    }
)


def __getattr__(name: str) -> Any:
    if name in _OPS_LATER:
        value: Any = _REGISTRY[name].function
    elif name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
    elif name in _PARTS or name in _TORCH_PARTS:
        value = import_module(f"everygrad.{name}")
    elif name in _SAME:
        value = _taught(_SAME[name])
    elif name in _ALIASES:
        value = getattr(import_module(_ALIASES[name]), name)
        value = _spelled(value) if isinstance(value, _Function) else value
    else:
        raise _missing("everygrad", name, __dir__(), _FUNCTIONS)
    globals()[name] = value
    return value


def compile(model: Any = None, **options: Any) -> Any:
    """`jit` under PyTorch's name; its options choose nothing here, and are taken as they are.

    In this place it hides the folder `everygrad/compiler`, which is found as a module all the same.
    """
    return import_module("everygrad._jit.jit").compile(model, **options)


def _taught(path: str) -> Any:
    """What a name of everygrad, or of the part before its dot, stands for."""
    part, _, name = path.rpartition(".")
    return getattr(import_module(f"everygrad.{part}") if part else import_module("everygrad"), name)


def __dir__() -> list[str]:
    return [*__all__, *_ALIASES, *_TORCH_PARTS, "compile"]
