"""PyTorch's public names, which everygrad lacks, and why: for docs/from-pytorch.md and tests."""

from __future__ import annotations

import inspect
import re
from functools import cache
from importlib import import_module
from typing import Any

import everygrad as eg

# What PyTorch keeps for itself, or for its compiler and its vendors' libraries, in its top level.
INTERNAL = re.compile(
    r"(cudnn|miopen|mkldnn|fbgemm|quantized|native|sym|batch_norm|import_ir|parse|profiler)_"
    r"|(get|set|is|clear)_autocast_(?!enabled$)|autocast_|.*_copy$|.*type_comment|unify_type_list"
    r"|set_autocast_enabled|is_autocast_cache_enabled|(rnn|gru|lstm)(_|$)|.*_with_indices$"
    r"|prepare_multiprocessing|thread_safe_generator|merge_type|classproperty|compiled_with"
    r"|init_num_threads|grid_sampler_|affine_grid_generator|norm_except_dim|fused_moving|fork|wait"
    r"|is_vulkan|get_file_path|is_anomaly_check|set_anomaly|is_storage|convolution$|import_ir|dsmm"
    r"|hspmm|hsmm|saddmm|conv_tbc|choose_qparams|batch_norm|to_dlpack|segment_reduce"
)

# Why a name is not there: the first pattern that fits it.
WHY = (
    (r"data_ptr|const_data_ptr", "memory has no address that programs may ask for"),
    (r"data$", "detach() reads it, x[...] = v under no_grad() writes it"),
    (
        r".*sparse|coalesce|is_coalesced|indices|values|crow_|ccol_|col_ind|row_ind|dense_dim|smm"
        r"|sspaddmm|spmm",
        "there are no sparse tensors",
    ),
    (r"q_|qscheme|int_repr|dequantize|quantize|fake_quant|empty_quant", "no quantised tensors"),
    (
        r"as_strided|storage|untyped|stride|empty_strided|new_empty_strided|dim_order|layout|is_set_to"
        r"|resize|empty_permuted|record_stream|to_mkldnn|is_mkldnn|slice_inverse",
        "no op asks for a layout, and tensors own no storage that can be shared",
    ),
    (r"ipu|is_ipu|is_maia|is_mtia|mtia|is_vulkan|is_xla|xpu|is_distributed", "no such device"),
    (r"grad_fn|output_nr|grad_dtype|volatile|reinforce", "the graph is drawn by eg.tools"),
    (r"svd$|eig$|symeig|solve|lstsq|lu$|triangular_solve", "linalg has it, with other results"),
    (r"geqrf|orgqr|ormqr|lobpcg|pca_lowrank|svd_lowrank|lu_unpack", "linalg.qr, lu and svd do"),
    (r"cond$|while_loop", "Python's if and while; where() inside jit"),
    (r"load$|save$|from_file", "everygrad.io, and safetensors"),
    (r"set_default|get_default_device", "say dtype= and device= where tensors are made"),
    (r".*deterministic", "sums are taken in an order that shapes alone decide"),
    (r".*num_threads|.*interop|.*denormal", "kernels use the cores there are"),
    (r"set_printoptions|.*warn_always|get_device_module", "nothing to set"),
    (
        r"to_padded_tensor|name$|index$|as_subclass|module_load|new$|chalf",
        "nested or legacy tensors",
    ),
    (r"nonzero_static|hash_tensor|histogramdd", "not done yet"),
    (r".*dropout|rrelu|bilinear|embedding_bag|constant_pad_nd", "nn.functional has it"),
    (r"detach$", "the method: x.detach()"),
    (r"lu_factor|ldl_|cholesky_ex", "linalg.eigh, or linalg.cholesky where it is definite"),
    (r".*bessel_k|airy_ai", "SciPy has it, without a derivative"),
)


# Parts of PyTorch that are functions here, and parts that are classes, with their counterparts.
FUNCTIONS_OF = ("torch", "torch.Tensor", "torch.linalg", "torch.special", "torch.fft")
CLASSES_OF = {
    "torch.nn": "everygrad.nn",
    "torch.nn.functional": "everygrad.nn.functional",
    "torch.nn.init": "everygrad.nn.init",
    "torch.nn.utils": "everygrad.nn.utils",
    "torch.optim": "everygrad.optim",
    "torch.optim.lr_scheduler": "everygrad.optim.lr_scheduler",
    "torch.optim.swa_utils": "everygrad.optim.swa_utils",
    "torch.distributions": "everygrad.distributions",
    "torch.utils.data": "everygrad.data",
}
_HELPERS = (
    *("common_args", "handle_torch_function", "has_torch_function", "boolean_dispatch"),
    *("factory_kwargs", "assert_int_or_pair"),
)


def _is_function(value: Any) -> bool:
    return callable(value) and not inspect.isclass(value) and not inspect.ismodule(value)


def _is_public(module: Any, name: str) -> bool:
    """Whether a name of a module is its own, and meant for users."""
    if name.startswith(("_", *_HELPERS)):
        return False
    if hasattr(module, "__all__") and module.__name__ not in ("torch.nn.functional", "torch"):
        return name in module.__all__ and callable(getattr(module, name))
    value = getattr(module, name)
    home = getattr(value, "__module__", None) or "torch"
    if module.__name__.startswith("torch.nn.utils."):
        return callable(value) and home == module.__name__
    if module.__name__ == "torch.nn.functional" and inspect.isclass(value):
        return False  # types that it imports
    return callable(value) and home.split(".")[0] in ("torch", "builtins")


@cache
def names_of(part: str) -> tuple[str, ...]:
    """The public names of a part of PyTorch: functions, classes, or what its Tensor has."""
    torch = import_module("torch")
    if part == "torch.Tensor":
        names = [n for n in dir(torch.Tensor) if not n.startswith("_")]
        return tuple(n for n in names if not n.endswith("_"))
    module = torch if part == "torch" else import_module(part)
    if part in CLASSES_OF or part.startswith("torch.nn."):
        return tuple(n for n in dir(module) if _is_public(module, n))
    found = [n for n in dir(module) if n[0] != "_" and _is_function(getattr(module, n))]
    plain = [n for n in found if not n.endswith("_") and n not in _HELPERS]
    return tuple(n for n in plain if part != "torch" or not INTERNAL.match(n))


def counterpart(part: str) -> Any:
    """What stands for a part of PyTorch here."""
    if part == "torch.Tensor":
        return eg.Tensor
    path = CLASSES_OF.get(part) or part.replace("torch", "everygrad", 1)
    return import_module(path)


def absent(part: str) -> dict[str, str]:
    """Each name of a part that is not here, with the reason; "" where none is written down."""
    ours = counterpart(part)
    lacking = [n for n in names_of(part) if not hasattr(ours, n)]
    return {n: next((why for r, why in WHY if re.match(r, n)), "") for n in lacking}
