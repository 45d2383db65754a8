"""What PyTorch programs ask of a tensor: dim(), numel(), is_floating_point() and others."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.dtypes import DEFAULT_FLOAT, DType, promote
from everygrad.errors import ArgumentError


def dim(x: Tensor) -> int:
    """The number of axes: `x.ndim`."""
    return x.ndim


def numel(x: Tensor) -> int:
    """The number of elements: `x.size`."""
    return int(x.size)


def element_size(x: Tensor) -> int:
    """The bytes of one element: `x.dtype.itemsize`."""
    return x.dtype.itemsize


def is_tensor(obj: Any) -> bool:
    """Whether an object is a tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(x: Tensor) -> bool:
    """Whether the elements are real floating-point numbers: `x.dtype.is_float`."""
    return x.dtype.is_float


def is_complex(x: Tensor) -> bool:
    """Whether the elements are complex numbers: `x.dtype.is_complex`."""
    return x.dtype.is_complex


def is_signed(x: Tensor) -> bool:
    """Whether the elements may be negative."""
    return x.dtype.kind not in ("bool", "uint")


def is_nonzero(x: Tensor) -> bool:
    """Whether the one element of a tensor is not 0."""
    if x.size != 1:
        raise ArgumentError(f"is_nonzero: needs exactly one element, this tensor has {x.size}")
    return bool(x)


def is_same_size(x: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape."""
    return x.shape == other.shape


def is_conj(x: Tensor) -> bool:
    """False: a conjugate is computed when it is asked for."""
    return False


def is_neg(x: Tensor) -> bool:
    """False: a negative is computed when it is asked for."""
    return False


def is_inference(x: Tensor) -> bool:
    """False: a tensor made in inference_mode() is one like any other."""
    return False


def is_pinned(x: Tensor) -> bool:
    """False: a copy to a device is never waited for."""
    return False


def is_shared(x: Tensor) -> bool:
    """False: memory is the process's own."""
    return False


def promote_types(type1: Any, type2: Any) -> DType:
    """The dtype that two of them make together: `result_type`."""
    return promote(type1, type2, "promote_types")


def storage_offset(x: Tensor) -> int:
    """0: no op asks for a layout."""
    return 0


def stride(x: Tensor, dim: int | None = None) -> Any:
    """The strides, in elements, that a contiguous tensor of this shape has: no op asks for more."""
    steps = [1]
    for n in reversed(x.shape[1:]):
        steps.append(steps[-1] * max(n, 1))
    found = tuple(reversed(steps)) if x.ndim else ()
    return found if dim is None else found[dim]


def get_device(x: Tensor) -> int:
    """The number of the GPU a tensor is on; -1 on the CPU."""
    kind, _, number = x.device.partition(":")
    return -1 if kind == "cpu" else int(number or 0)


def is_cuda(x: Tensor) -> bool:
    """Whether a tensor is on an NVIDIA GPU."""
    return x.device.startswith("cuda")


def is_cpu(x: Tensor) -> bool:
    """Whether a tensor is on the CPU."""
    return x.device == "cpu"


def _never(x: Tensor) -> bool:
    """False: there are no such tensors."""
    return False


def itemsize(x: Tensor) -> int:
    """The bytes of one element."""
    return x.dtype.itemsize


def nbytes(x: Tensor) -> int:
    """The bytes of all elements."""
    return int(x.size) * x.dtype.itemsize


def retains_grad(x: Tensor) -> bool:
    """Whether retain_grad() was called on this result of an op."""
    node = x._node
    return node is not None and not node.is_leaf and -1 in (node.hooks or {})


def mH(x: Tensor) -> Tensor:  # noqa: N802  # PyTorch's name
    """The last two axes exchanged, and complex numbers conjugated."""
    turned: Tensor = x.mT
    return turned.conj() if x.dtype.is_complex else turned


def H(x: Tensor) -> Tensor:  # noqa: N802  # PyTorch's name
    """The two axes of a matrix exchanged, and complex numbers conjugated."""
    turned: Tensor = x.T
    return turned.conj() if x.dtype.is_complex else turned


def get_default_dtype() -> DType:
    """The dtype of floating-point numbers that say none: float32."""
    return DEFAULT_FLOAT


# asked without parentheses
is_meta = is_mps = is_nested = is_quantized = is_sparse = is_sparse_csr = is_xpu = _never
ndimension = dim
nelement = numel
