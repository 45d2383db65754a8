# Made by `python -m devtools.stubs`: change the ops, not this file.

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from everygrad.autograd.graph import HookHandle, Node
from everygrad.core.device_name import device
from everygrad.core.op import Op
from everygrad.core.protocols import Layout
from everygrad.dtypes import DType
from everygrad.ops.aliases.arithmetic import FrexpResult
from everygrad.ops.index.search import Histogram
from everygrad.ops.linalg.cholesky_qr import QRResult
from everygrad.ops.linalg.matrix_functions import SlogdetResult
from everygrad.ops.python.conversion import Later
from everygrad.ops.random.generators import Generator
from everygrad.ops.record.torch_calls import ValuesAndIndices

_TensorLike: TypeAlias = Tensor | complex | np.ndarray[Any, Any] | np.generic

class Wrapped:
    """A payload made by a transformation: `level` says which, deeper ones have higher levels."""

    level: builtins.int
    transparent: builtins.bool
    plain: builtins.bool
    is_shard: builtins.bool
    layout: Layout | None
    @property
    def inner(self) -> Tensor:
        """The tensor of the level below that holds the value."""
    def beside(self, x: Tensor) -> Tensor:
        """A tensor of a backend's array as one of this transformation: where `is_shard`."""
    def left(self) -> Tensor | None:
        """The tensor of the level below that stands for the whole, for a name that outlives the
        transformation; None where there is none.
        """
    def stopped(self) -> Any:
        """The payload of the same value without any derivative."""
    @property
    def shape(self) -> tuple[builtins.int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> str: ...
    def interpret(self, op: Op, payloads: list[Any], params: dict[str, Any]) -> Any:
        """The payload of `op` applied to `payloads`, of which this one has the highest level."""

class Size(builtins.int):
    """The number of elements of a tensor; called, as PyTorch does, its shape or one size of it."""

    shape: tuple[builtins.int, ...]
    def __call__(self, dim: builtins.int | None = None) -> Any: ...

def _new_size(shape: tuple[builtins.int, ...]) -> Size: ...

class Tensor:
    """An n-dimensional array that remembers how it was made."""

    _data: Any
    _node: Node | None
    _source: Any
    _grad: Tensor | None
    @property
    def shape(self) -> tuple[builtins.int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def ndim(self) -> builtins.int: ...
    @property
    def size(self) -> Size:
        """The number of elements; `size()` is the shape, `size(dim)` one of it, as in PyTorch."""
    @property
    def device(self) -> device:
        """Where the value lives: "cpu", "cuda:0", "webgpu"; a string that knows its type and
        index.
        """
    @property
    def requires_grad(self) -> builtins.bool:
        """Whether operations on this tensor are recorded for `backward`."""
    @requires_grad.setter
    def requires_grad(self, value: builtins.bool) -> None: ...
    def requires_grad_(self, value: builtins.bool = True) -> Tensor:
        """Start (or stop) recording operations on this tensor; returns the tensor itself."""
    @property
    def is_leaf(self) -> builtins.bool:
        """True unless the tensor was made by a recorded op."""
    @property
    def grad(self) -> Tensor | None:
        """The gradient summed here by `backward`, or None."""
    @grad.setter
    def grad(self, value: Tensor | None) -> None: ...
    def rebind(self, payload: Any, node: Node | None, drawn: builtins.bool = False) -> None:
        """Give this name another value. The only place where a Tensor changes."""
    def detach(self) -> Tensor:
        """The same value as a constant for every derivative; nothing is copied."""
    @property
    def data(self) -> Tensor:
        """The value alone, as `detach` gives it, but for writes: of a leaf they reach the tensor
        itself, and no graph knows. Assigned to, it gives a leaf another value.
        """
    @data.setter
    def data(self, value: Tensor) -> None: ...
    def retain_grad(self) -> None:
        """Keep this result's gradient in `.grad` too, as leaves do."""
    def __copy__(self) -> Tensor: ...
    def __deepcopy__(self, memo: dict[builtins.int, Any]) -> Tensor: ...
    def __reduce_ex__(self, protocol: Any) -> Any: ...
    def __len__(self) -> builtins.int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __dir__(self) -> list[str]: ...
    def __add__(self, other: _TensorLike, /) -> Tensor: ...
    def __sub__(self, other: _TensorLike, /) -> Tensor: ...
    def __mul__(self, other: _TensorLike, /) -> Tensor: ...
    def __truediv__(self, other: _TensorLike, /) -> Tensor: ...
    def __floordiv__(self, other: _TensorLike, /) -> Tensor: ...
    def __mod__(self, other: _TensorLike, /) -> Tensor: ...
    def __radd__(self, other: _TensorLike, /) -> Tensor: ...
    def __rsub__(self, other: _TensorLike, /) -> Tensor: ...
    def __rmul__(self, other: _TensorLike, /) -> Tensor: ...
    def __rtruediv__(self, other: _TensorLike, /) -> Tensor: ...
    def __rfloordiv__(self, other: _TensorLike, /) -> Tensor: ...
    def __rmod__(self, other: _TensorLike, /) -> Tensor: ...
    def __divmod__(self, y: Any) -> tuple[Tensor, Tensor]: ...
    def __rdivmod__(self, other: Any) -> Any: ...
    def __neg__(self) -> Tensor: ...
    def __pos__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
    def __eq__(self, other: _TensorLike, /) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: _TensorLike, /) -> Tensor: ...  # type: ignore[override]
    def __lt__(self, other: _TensorLike, /) -> Tensor: ...
    def __le__(self, other: _TensorLike, /) -> Tensor: ...
    def __gt__(self, other: _TensorLike, /) -> Tensor: ...
    def __ge__(self, other: _TensorLike, /) -> Tensor: ...
    def __and__(self, other: _TensorLike, /) -> Tensor: ...
    def __rand__(self, other: _TensorLike, /) -> Tensor: ...
    def __or__(self, other: _TensorLike, /) -> Tensor: ...
    def __ror__(self, other: _TensorLike, /) -> Tensor: ...
    def __xor__(self, other: _TensorLike, /) -> Tensor: ...
    def __rxor__(self, other: _TensorLike, /) -> Tensor: ...
    def __lshift__(self, other: _TensorLike, /) -> Tensor: ...
    def __rlshift__(self, other: _TensorLike, /) -> Tensor: ...
    def __rshift__(self, other: _TensorLike, /) -> Tensor: ...
    def __rrshift__(self, other: _TensorLike, /) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __pow__(self, other: _TensorLike, /) -> Tensor: ...
    def __rpow__(self, other: _TensorLike, /) -> Tensor: ...
    def __matmul__(self, other: _TensorLike, /) -> Tensor: ...
    def __rmatmul__(self, other: _TensorLike, /) -> Tensor: ...
    def __array_namespace__(self, *, api_version: str | None = None) -> Any: ...
    def __array__(
        self, dtype: Any = None, copy: builtins.bool | None = None
    ) -> np.ndarray[Any, Any]: ...
    def __index__(self) -> builtins.int: ...
    def __bool__(self) -> builtins.bool: ...
    def __int__(self) -> builtins.int: ...
    def __float__(self) -> builtins.float: ...
    def __complex__(self) -> complex: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[builtins.int, builtins.int] | None = None,
        dl_device: tuple[builtins.int, builtins.int] | None = None,
        copy: builtins.bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[builtins.int, builtins.int]: ...
    def __getitem__(self, index: Any) -> Tensor: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...
    def __iadd__(self, other: _TensorLike, /) -> Tensor: ...
    def __isub__(self, other: _TensorLike, /) -> Tensor: ...
    def __imul__(self, other: _TensorLike, /) -> Tensor: ...
    def __itruediv__(self, other: _TensorLike, /) -> Tensor: ...
    def __ifloordiv__(self, other: _TensorLike, /) -> Tensor: ...
    def __imod__(self, other: _TensorLike, /) -> Tensor: ...
    def __ipow__(self, other: _TensorLike, /) -> Tensor: ...
    def __iand__(self, other: _TensorLike, /) -> Tensor: ...
    def __ior__(self, other: _TensorLike, /) -> Tensor: ...
    def __ixor__(self, other: _TensorLike, /) -> Tensor: ...
    def __ilshift__(self, other: _TensorLike, /) -> Tensor: ...
    def __irshift__(self, other: _TensorLike, /) -> Tensor: ...
    def __imatmul__(self, other: _TensorLike, /) -> Tensor: ...
    def __repr__(self) -> str: ...
    def __format__(self, spec: str) -> str: ...
    def __array_ufunc__(self, ufunc: Any, method: str, /, *inputs: Any, out: Any = ...) -> Any: ...
    def __array_function__(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...
    @property
    def H(self) -> Tensor:  # noqa: N802  # the Array API's name
        """The two axes of a matrix exchanged, and complex numbers conjugated."""
    @property
    def T(self) -> Tensor:  # noqa: N802  # the Array API's name
        """The two axes of a matrix exchanged."""
    def abs(self) -> Tensor:
        """The absolute value; 0 has derivative 0."""
    def absolute(self) -> Tensor:
        """The absolute value; 0 has derivative 0."""
    def acos(self) -> Tensor:
        """The angle in [0, pi] whose cosine is x."""
    def acosh(self) -> Tensor:
        """The inverse of cosh on x >= 1."""
    def add(self, y: _TensorLike, *, alpha: _TensorLike = 1) -> Tensor:
        """The sum x + y."""
    def addbmm(
        self, batch1: Tensor, batch2: Tensor, *, beta: builtins.float = 1, alpha: builtins.float = 1
    ) -> Tensor:
        """beta * x + alpha * the sum of batch1 @ batch2 over the batch."""
    def addcdiv(self, y: Any, z: Any, value: builtins.float = 1) -> Tensor:
        """x + value * (y / z), of floating point alone."""
    def addcmul(self, y: Any, z: Any, value: builtins.float = 1) -> Tensor:
        """x + value * y * z."""
    def addmm(
        self, mat1: Tensor, mat2: Tensor, *, beta: builtins.float = 1, alpha: builtins.float = 1
    ) -> Tensor:
        """beta * x + alpha * (mat1 @ mat2): one kernel inside eg.jit."""
    def addmv(
        self, mat: Tensor, vec: Tensor, *, beta: builtins.float = 1, alpha: builtins.float = 1
    ) -> Tensor:
        """beta * x + alpha * (mat @ vec)."""
    def addr(
        self, vec1: Tensor, vec2: Tensor, *, beta: builtins.float = 1, alpha: builtins.float = 1
    ) -> Tensor:
        """beta * x + alpha * outer(vec1, vec2)."""
    def adjoint(self) -> Tensor:
        """The last two axes exchanged, and complex numbers conjugated."""
    def all(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """Whether every element is true (not 0)."""
    def allclose(
        self,
        y: Any,
        rtol: builtins.float = 1e-05,
        atol: builtins.float = 1e-08,
        equal_nan: builtins.bool = False,
    ) -> builtins.bool:
        """Whether `isclose` holds for all elements, as a Python bool: not inside jit."""
    def amax(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """`max` under PyTorch's name: NaN wins, equal elements share the gradient evenly."""
    def amin(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """`min` under PyTorch's name: NaN wins, equal elements share the gradient evenly."""
    def aminmax(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> tuple[Tensor, Tensor]:
        """The smallest and the largest element along the axes, as `amin` and `amax` give them."""
    def angle(self) -> Tensor:
        """The angle of a complex number, from -pi to pi; of a real one 0 or, where it is
        negative, pi. NaN stays NaN.
        """
    def any(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """Whether some element is true (not 0)."""
    def arccos(self) -> Tensor:
        """The angle in [0, pi] whose cosine is x."""
    def arccosh(self) -> Tensor:
        """The inverse of cosh on x >= 1."""
    def arcsin(self) -> Tensor:
        """The angle in [-pi/2, pi/2] whose sine is x."""
    def arcsinh(self) -> Tensor:
        """The inverse of sinh."""
    def arctan(self) -> Tensor:
        """The angle in (-pi/2, pi/2) whose tangent is x."""
    def arctan2(self, y: _TensorLike) -> Tensor:
        """The angle of the point (y, x): the arc tangent of x / y in its quadrant."""
    def arctanh(self) -> Tensor:
        """The inverse of tanh."""
    def argmax(
        self,
        axis: builtins.int | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The index of the first largest element; of the first NaN if there is one."""
    def argmin(
        self,
        axis: builtins.int | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The index of the first smallest element; of the first NaN if there is one."""
    def argsort(
        self,
        axis: builtins.int = -1,
        descending: builtins.bool = False,
        stable: builtins.bool = True,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> Tensor:
        """The indices that sort x along an axis. Always stable; NaN counts as the largest."""
    def argwhere(self) -> Tensor:
        """The indices of the elements that are not 0, in C order: a row for each element."""
    def asin(self) -> Tensor:
        """The angle in [-pi/2, pi/2] whose sine is x."""
    def asinh(self) -> Tensor:
        """The inverse of sinh."""
    def astype(self, dtype: Any, copy: builtins.bool = True, device: Any = None) -> Tensor:
        """The elements converted to another dtype, and moved to `device` if one is named."""
    def atan(self) -> Tensor:
        """The angle in (-pi/2, pi/2) whose tangent is x."""
    def atan2(self, y: _TensorLike) -> Tensor:
        """The angle of the point (y, x): the arc tangent of x / y in its quadrant."""
    def atanh(self) -> Tensor:
        """The inverse of tanh."""
    def atleast_1d(self) -> Any:
        """With one axis at least; a tuple where several are given."""
    def atleast_2d(self) -> Any:
        """With two axes at least, a vector as a row; a tuple where several are given."""
    def atleast_3d(self) -> Any:
        """With three axes at least, a matrix as the first two; a tuple where several are given."""
    def avg_pool2d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: builtins.bool = False,
        count_include_pad: builtins.bool = True,
        divisor_override: builtins.int | None = None,
    ) -> Tensor:
        """The mean of each window; padding counts as zeros unless count_include_pad is False."""
    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: builtins.bool | None = None,
        create_graph: builtins.bool = False,
        inputs: Sequence[Tensor] | None = None,
        workers: builtins.int = 1,
    ) -> None:
        """Add the derivative of `root` to the `.grad` of the leaves it was made from."""
    def baddbmm(
        self, batch1: Tensor, batch2: Tensor, *, beta: builtins.float = 1, alpha: builtins.float = 1
    ) -> Tensor:
        """beta * x + alpha * (batch1 @ batch2), matrix by matrix."""
    def bernoulli(self, p: builtins.float | None = None, *, generator: Any = None) -> Tensor:
        """1 with the probability that each element is, or with p, in the dtype of x."""
    def bfloat16(self) -> Tensor:
        """The elements as bfloat16: `astype(eg.bfloat16)`."""
    def bincount(self, weights: Tensor | None = None, minlength: builtins.int = 0) -> Tensor:
        """How often each number from 0 on is in x, or the sum of the weights that stand beside
        it.
        """
    def bitwise_and(self, y: _TensorLike) -> Tensor:
        """Bitwise and, for each element."""
    def bitwise_invert(self) -> Tensor:
        """Every bit inverted; for bool, logical not."""
    def bitwise_left_shift(self, y: _TensorLike) -> Tensor:
        """Bitwise left shift, for each element."""
    def bitwise_not(self) -> Tensor:
        """Every bit inverted; for bool, logical not."""
    def bitwise_or(self, y: _TensorLike) -> Tensor:
        """Bitwise or, for each element."""
    def bitwise_right_shift(self, y: _TensorLike) -> Tensor:
        """Bitwise right shift, for each element."""
    def bitwise_xor(self, y: _TensorLike) -> Tensor:
        """Bitwise xor, for each element."""
    def bmm(self, y: Tensor) -> Tensor:
        """The matrix product. Vectors count as a row on the left and a column on the right;
        leading axes broadcast.
        """
    def bool(self) -> Tensor:
        """The elements as bool: `astype(eg.bool)`."""
    def broadcast_to(
        self, shape: Sequence[builtins.int] = ..., *, size: Sequence[builtins.int] = ...
    ) -> Tensor:
        """x repeated, without copying, along axes of size 1 and new leading axes."""
    def bucketize(
        self, boundaries: Tensor, right: builtins.bool = False, *, out_int32: builtins.bool = False
    ) -> Tensor:
        """The number of the bucket of each element: boundaries[i - 1] < x <= boundaries[i]."""
    def byte(self) -> Tensor:
        """The elements as uint8: `astype(eg.uint8)`."""
    def cbrt(self) -> Tensor:
        """The cube root, negative of negative numbers. The derivative at 0 is infinite."""
    def cdouble(self) -> Tensor:
        """The elements as complex128: `astype(eg.complex128)`."""
    def ceil(self) -> Tensor:
        """The next integer above. Integers stay what they are. The derivative is 0."""
    def celu(self, alpha: builtins.float = 1.0) -> Tensor:
        """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere: smooth for every
        alpha.
        """
    def cfloat(self) -> Tensor:
        """The elements as complex64: `astype(eg.complex64)`."""
    def char(self) -> Tensor:
        """The elements as int8: `astype(eg.int8)`."""
    def cholesky(self, *, upper: builtins.bool = False) -> Tensor:
        """L with x = L L^H, lower, or its conjugate transpose if `upper`. x is taken to be
        Hermitian: only its lower triangle is read, and its gradient is Hermitian.
        """
    def cholesky_inverse(self, upper: builtins.bool = False) -> Tensor:
        """The inverse of a matrix whose Cholesky factor is x."""
    def cholesky_solve(self, L: Tensor, upper: builtins.bool = False) -> Tensor:  # noqa: N803  # the name of a matrix
        """X with A X = B, from L = cholesky(A), or from its conjugate transpose if `upper`."""
    def chunk(
        self,
        chunks: builtins.int,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> list[Tensor]:
        """Parts of equal size, the last perhaps smaller: at most `chunks`, fewer where fewer do."""
    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        """x limited to [min, max]; the gradient is 1 at the bounds. Either bound may be left
        out.
        """
    def clamp_max(self, max: Any) -> Tensor:
        """The smaller of each element and `max`."""
    def clamp_min(self, min: Any) -> Tensor:
        """The larger of each element and `min`."""
    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        """x limited to [min, max], in the dtype of x; the gradient is 1 at the bounds."""
    def clone(self) -> Tensor:
        """The same value, connected to x. Nothing is copied: values never change."""
    def conj(self) -> Tensor:
        """The complex conjugate."""
    def conj_physical(self) -> Tensor:
        """The complex conjugate."""
    def conjugate(self) -> Tensor:
        """The complex conjugate."""
    def contiguous(self, memory_format: Any = None) -> Tensor:
        """x itself: no op asks for a layout, and values never change."""
    def conv2d(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: builtins.int = 1,
        padding_mode: str = "zeros",
    ) -> Tensor:
        """Kernels (out channels, channels / groups, height, width) moved over images, plus a
        bias.
        """
    def copy(self) -> Tensor:
        """The same value under another name, connected to x: `clone`."""
    def copysign(self, y: _TensorLike) -> Tensor:
        """The size of x with the sign of y, which may be that of -0.0. 0 has derivative 0."""
    def corrcoef(self) -> Tensor:
        """The correlations of variables, the rows of x, as a matrix; real ones within -1 and 1."""
    def cos(self) -> Tensor:
        """The cosine."""
    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
    def count_nonzero(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """How many elements are not 0; NaN is not."""
    def cov(self, correction: builtins.int = 1, *, unbiased: builtins.int = ...) -> Tensor:
        """The covariances of variables, the rows of x, as a matrix; of one variable its
        variance.
        """
    def cpu(self) -> Tensor:
        """The same values on the CPU."""
    def cross(self, other: Tensor, dim: builtins.int | None = None) -> Tensor:
        """The vectors at right angles to x and other along `dim`, or along the first axis of
        size 3.
        """
    def cuda(self, device: Any = None, non_blocking: Any = False) -> Tensor:
        """The same values on an NVIDIA GPU: the first, or the one of that number or name."""
    def cummax(
        self,
        axis: builtins.int | None = None,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> ValuesAndIndices:
        """The largest element so far, and its index: the last one of several. NaN wins."""
    def cummin(
        self,
        axis: builtins.int | None = None,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> ValuesAndIndices:
        """The smallest element so far, and its index: the last one of several. NaN wins."""
    def cumprod(
        self,
        axis: builtins.int | None = None,
        dtype: Any = None,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Tensor:
        """`cumulative_prod` under PyTorch's name."""
    def cumsum(
        self,
        axis: builtins.int | None = None,
        dtype: Any = None,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Tensor:
        """`cumulative_sum` under PyTorch's name."""
    def cumulative_prod(
        self,
        axis: builtins.int | None = None,
        dtype: Any = None,
        include_initial: builtins.bool = False,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Tensor:
        """The products of the elements up to each. The derivative is right where elements are 0."""
    def cumulative_sum(
        self,
        axis: builtins.int | None = None,
        dtype: Any = None,
        include_initial: builtins.bool = False,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Tensor:
        """The sums of the elements up to each; integers are summed in 64 bits."""
    def deg2rad(self) -> Tensor:
        """An angle in degrees as radians."""
    def det(self) -> Tensor:
        """The determinant. Singular matrices have a derivative too; a second one, only others."""
    def diag(self, offset: builtins.int = 0, *, diagonal: builtins.int = ...) -> Tensor:
        """A matrix with the vector x on a diagonal, or the diagonal of the matrix x."""
    def diag_embed(
        self,
        offset: builtins.int = 0,
        axis1: builtins.int = -2,
        axis2: builtins.int = -1,
        *,
        dim1: builtins.int = ...,
        dim2: builtins.int = ...,
        diagonal: builtins.int = ...,
    ) -> Tensor:
        """The last axis put on a diagonal of two new axes, zero elsewhere: `diagonal` undone."""
    def diagflat(self, offset: builtins.int = 0) -> Tensor:
        """A matrix with the elements of x on a diagonal."""
    def diagonal(
        self,
        offset: builtins.int = 0,
        axis1: builtins.int = 0,
        axis2: builtins.int = 1,
        *,
        dim1: builtins.int = ...,
        dim2: builtins.int = ...,
        diagonal: builtins.int = ...,
    ) -> Tensor:
        """The elements on a diagonal of two axes, as a last axis. A positive offset lies above."""
    def diagonal_scatter(
        self, src: Tensor, offset: builtins.int = 0, dim1: builtins.int = 0, dim2: builtins.int = 1
    ) -> Tensor:
        """x with a diagonal replaced by src."""
    def diff(
        self,
        n: builtins.int = 1,
        axis: builtins.int = -1,
        prepend: Tensor | None = None,
        append: Tensor | None = None,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> Tensor:
        """The differences between neighbours along an axis, n times over."""
    def digamma(self) -> Tensor:
        """The derivative of lgamma; infinite at 0, NaN at the negative integers."""
    def dim(self) -> builtins.int:
        """The number of axes: `x.ndim`."""
    def dist(self, other: Tensor, p: builtins.float = 2.0) -> Tensor:
        """The p-norm of x - other."""
    def div(self, other: Any, rounding_mode: str | None = None) -> Tensor:
        """x / other, rounded towards zero ("trunc") or down ("floor") if said."""
    def divide(self, y: _TensorLike) -> Tensor:
        """The quotient x / y; integers give floating point."""
    def dot(self, other: Tensor) -> Tensor:
        """The product of two vectors, or of matrices as NumPy has it."""
    def double(self) -> Tensor:
        """The elements as float64: `astype(eg.float64)`."""
    def dropout(
        self,
        p: builtins.float = 0.5,
        training: builtins.bool = True,
        generator: Generator | None = None,
    ) -> Tensor:
        """Each element 0 with probability p, else scaled by 1 / (1 - p); x itself if not
        training.
        """
    def dsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """Parts along the third axis."""
    def element_size(self) -> builtins.int:
        """The bytes of one element: `x.dtype.itemsize`."""
    def elu(self, alpha: builtins.float = 1.0) -> Tensor:
        """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    def eq(self, y: _TensorLike) -> Tensor:
        """Whether x is equal to y."""
    def equal(self, y: _TensorLike) -> Tensor:
        """Whether x is equal to y."""
    def erf(self) -> Tensor:
        """The error function."""
    def erfc(self) -> Tensor:
        """1 - erf(x), with all its digits where that is small."""
    def erfinv(self) -> Tensor:
        """The inverse of erf: infinite at -1 and 1, NaN outside."""
    def exp(self) -> Tensor:
        """e to the power x."""
    def exp2(self) -> Tensor:
        """2 to the power x."""
    def expand(self, shape: Any = ..., *more: builtins.int, size: Any = ...) -> Tensor:
        """`broadcast_to`, the sizes in a tuple or as several numbers, where -1 keeps an axis as
        it is.
        """
    def expand_as(self, other: Tensor) -> Tensor:
        """x repeated to the shape of another tensor."""
    def expand_dims(self, axis: Any = 0, *, dim: Any = ..., dims: Any = ...) -> Tensor:
        """With new axes of size 1 at the given places of the result."""
    def expm1(self) -> Tensor:
        """exp(x) - 1, exact near 0."""
    def fix(self) -> Tensor:
        """The next integer towards 0. Integers stay what they are. The derivative is 0."""
    def flatten(
        self,
        start_axis: builtins.int = 0,
        end_axis: builtins.int = -1,
        *,
        start_dim: builtins.int = ...,
        end_dim: builtins.int = ...,
    ) -> Tensor:
        """The axes from start_axis to end_axis made one."""
    def flip(
        self, axis: Any = None, *more: builtins.int, dim: Any = ..., dims: Any = ...
    ) -> Tensor:
        """The order of the elements reversed along the given axes, a tuple or several numbers,
        or along all.
        """
    def fliplr(self) -> Tensor:
        """The order along the second axis reversed."""
    def flipud(self) -> Tensor:
        """The order along the first axis reversed."""
    def float(self) -> Tensor:
        """The elements as float32: `astype(eg.float32)`."""
    def float_power(self, exponent: Any) -> Tensor:
        """x to the power of `exponent` in float64, or complex128."""
    def floor(self) -> Tensor:
        """The next integer below. Integers stay what they are. The derivative is 0."""
    def floor_divide(self, y: _TensorLike) -> Tensor:
        """x / y rounded towards minus infinity."""
    def fmax(self, y: _TensorLike) -> Tensor:
        """The larger of x and y, NaN only where both are; a tie gives each side half the
        gradient.
        """
    def fmin(self, y: _TensorLike) -> Tensor:
        """The smaller of x and y, NaN only where both are; a tie gives each side half the
        gradient.
        """
    def fmod(self, y: _TensorLike) -> Tensor:
        """x - y * trunc(x / y): the remainder with the sign of x."""
    def frac(self) -> Tensor:
        """x - trunc(x): what stands behind the point, with the sign of x."""
    def frexp(self) -> FrexpResult:
        """x as mantissa * 2**exponent, the mantissa from 0.5 to 1 (0 of 0) and the exponent an
        int32.
        """
    def gather(
        self,
        index: Tensor,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> Tensor:
        """out[i][j][k] = x[index[i][j][k]][j][k] for axis 0, and likewise for the others."""
    def gcd(self, other: Any) -> Tensor:
        """The greatest common divisor of integers; gcd(0, n) is n."""
    def ge(self, y: _TensorLike) -> Tensor:
        """Whether x is greater or equal to y."""
    def gelu(self, approximate: str = "none") -> Tensor:
        """x times the share of a standard normal below x; "tanh" gives the older approximation."""
    def gelu_tanh(self) -> Tensor:
        """gelu by its older approximation with tanh."""
    def ger(self, y: Tensor) -> Tensor:
        """Every product of an element of x and an element of y."""
    def get_device(self) -> builtins.int:
        """The number of the GPU a tensor is on; -1 on the CPU."""
    def glu(
        self, axis: builtins.int = -1, *, dim: builtins.int = ..., dims: builtins.int = ...
    ) -> Tensor:
        """The first half of x along the axis times the sigmoid of the second."""
    def greater(self, y: _TensorLike) -> Tensor:
        """Whether x is greater than y."""
    def greater_equal(self, y: _TensorLike) -> Tensor:
        """Whether x is greater or equal to y."""
    def gt(self, y: _TensorLike) -> Tensor:
        """Whether x is greater than y."""
    def half(self) -> Tensor:
        """The elements as float16: `astype(eg.float16)`."""
    def hardshrink(self, lambd: builtins.float = 0.5) -> Tensor:
        """x, and 0 where abs(x) <= lambd; NaN stays NaN."""
    def hardsigmoid(self) -> Tensor:
        """(x + 3) / 6 limited to [0, 1]. The derivative at -3 and at 3 is 0."""
    def hardswish(self) -> Tensor:
        """x * hardsigmoid(x)."""
    def hardtanh(self, min_val: builtins.float = -1.0, max_val: builtins.float = 1.0) -> Tensor:
        """x limited to [min_val, max_val]; unlike that of clamp, the derivative at the bounds is
        0.
        """
    def heaviside(self, y: Any) -> Tensor:
        """0 below 0, 1 above it, y at 0; NaN stays NaN. It carries no derivative."""
    def histc(
        self, bins: builtins.int = 100, min: builtins.float = 0, max: builtins.float = 0
    ) -> Tensor:
        """How many elements lie in each of `bins` bins from min to max, or from the least to the
        largest element if both are 0.
        """
    def histogram(
        self,
        bins: builtins.int | Sequence[builtins.float] | Tensor = 10,
        weights: Tensor | None = None,
        range: tuple[builtins.float, builtins.float] | None = None,
        density: builtins.bool = False,
    ) -> Histogram:
        """How many elements lie in each bin, in x's dtype, and the edges of the bins."""
    def hsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """Parts along the second axis; of a vector along its own."""
    def hypot(self, y: _TensorLike) -> Tensor:
        """sqrt(x * x + y * y), without overflow on the way. The derivative at (0, 0) is 0."""
    def i0(self) -> Tensor:
        """The modified Bessel function of the first kind, of order 0."""
    def igamma(self, x: Any) -> Tensor:
        """The share of a gamma distribution of shape a > 0 below x >= 0, with derivatives in
        both.
        """
    def igammac(self, x: Any) -> Tensor:
        """The share of a gamma distribution of shape a > 0 above x >= 0, with derivatives in
        both.
        """
    def imag(self) -> Tensor:
        """The imaginary part."""
    def index_add(
        self,
        index: Tensor,
        source: Tensor = ...,
        axis: builtins.int = 0,
        *,
        alpha: builtins.float = 1,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        src: Tensor = ...,
    ) -> Tensor:
        """x with each slice of `source` added to the slice that its index names; repeats add up.
        `alpha` is a factor of the source.
        """
    def index_copy(
        self,
        index: Tensor,
        source: Tensor = ...,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        src: Tensor = ...,
    ) -> Tensor:
        """x with the slices that the index names replaced by those of `source`."""
    def index_fill(
        self,
        index: Tensor,
        value: Any,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> Tensor:
        """x with the slices that the index names filled with one value."""
    def index_put(self, indices: Any, values: Any, accumulate: builtins.bool = False) -> Tensor:
        """x with x[indices] replaced by values, or with values added there."""
    def index_reduce(
        self,
        dim: builtins.int,
        index: Tensor,
        source: Tensor,
        reduce: str,
        *,
        include_self: builtins.bool = True,
    ) -> Tensor:
        """x with the slices of source combined into the slices that index names along an axis."""
    def index_select(
        self,
        index: Tensor,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> Tensor:
        """`take` with a vector of indices, none of them negative."""
    def inner(self, other: Tensor) -> Tensor:
        """The sums of products along the last axis of both, for each pair of rows."""
    def int(self) -> Tensor:
        """The elements as int32: `astype(eg.int32)`."""
    def inverse(self) -> Tensor:
        """The inverse of each matrix; solve() is quicker and more exact where one is applied."""
    def is_complex(self) -> builtins.bool:
        """Whether the elements are complex numbers: `x.dtype.is_complex`."""
    def is_conj(self) -> builtins.bool:
        """False: a conjugate is computed when it is asked for."""
    def is_contiguous(self, memory_format: Any = None) -> Any:
        """True: no op asks for a layout."""
    @property
    def is_cpu(self) -> builtins.bool:
        """Whether a tensor is on the CPU."""
    @property
    def is_cuda(self) -> builtins.bool:
        """Whether a tensor is on an NVIDIA GPU."""
    def is_floating_point(self) -> builtins.bool:
        """Whether the elements are real floating-point numbers: `x.dtype.is_float`."""
    def is_inference(self) -> builtins.bool:
        """False: a tensor made in inference_mode() is one like any other."""
    @property
    def is_meta(self) -> builtins.bool:
        """False: there are no such tensors."""
    @property
    def is_mps(self) -> builtins.bool:
        """False: there are no such tensors."""
    def is_neg(self) -> builtins.bool:
        """False: a negative is computed when it is asked for."""
    @property
    def is_nested(self) -> builtins.bool:
        """False: there are no such tensors."""
    def is_nonzero(self) -> builtins.bool:
        """Whether the one element of a tensor is not 0."""
    def is_pinned(self) -> builtins.bool:
        """False: a copy to a device is never waited for."""
    @property
    def is_quantized(self) -> builtins.bool:
        """False: there are no such tensors."""
    def is_same_size(self, other: Tensor) -> builtins.bool:
        """Whether two tensors have the same shape."""
    def is_shared(self) -> builtins.bool:
        """False: memory is the process's own."""
    def is_signed(self) -> builtins.bool:
        """Whether the elements may be negative."""
    @property
    def is_sparse(self) -> builtins.bool:
        """False: there are no such tensors."""
    @property
    def is_sparse_csr(self) -> builtins.bool:
        """False: there are no such tensors."""
    @property
    def is_xpu(self) -> builtins.bool:
        """False: there are no such tensors."""
    def isclose(
        self,
        y: Any,
        rtol: builtins.float = 1e-05,
        atol: builtins.float = 1e-08,
        equal_nan: builtins.bool = False,
    ) -> Tensor:
        """Whether |x - y| <= atol + rtol |y|. Infinities are close to themselves alone; NaN to
        none, or to NaN if `equal_nan`.
        """
    def isfinite(self) -> Tensor:
        """Whether each element is neither infinite nor NaN."""
    def isin(self, test_elements: Any, invert: builtins.bool = False) -> Tensor:
        """Whether each element of x is among `test_elements` (or is not); NaN never is."""
    def isinf(self) -> Tensor:
        """Whether each element is infinite."""
    def isnan(self) -> Tensor:
        """Whether each element is NaN."""
    def isneginf(self) -> Tensor:
        """Whether each element is negative infinity."""
    def isposinf(self) -> Tensor:
        """Whether each element is positive infinity."""
    def isreal(self) -> Tensor:
        """Whether the imaginary part of each element is 0."""
    def istft(
        self,
        n_fft: builtins.int,
        hop_length: builtins.int | None = None,
        win_length: builtins.int | None = None,
        window: Tensor | None = None,
        center: builtins.bool = True,
        normalized: builtins.bool = False,
        onesided: builtins.bool | None = None,
        length: builtins.int | None = None,
        return_complex: builtins.bool = False,
    ) -> Tensor:
        """The signal of which `stft` gives this: stretches times the window, added up where they
        overlap, and divided by the sum of squared windows there. Where that is 0, so is the
        result.
        """
    def item(self) -> Any:
        """The one element as a Python number."""
    @property
    def itemsize(self) -> builtins.int:
        """The bytes of one element."""
    def kron(self, y: Tensor) -> Tensor:
        """Every element of x times all of y, as blocks: the Kronecker product."""
    def kthvalue(
        self,
        k: builtins.int = ...,
        axis: builtins.int = -1,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        keepdim: builtins.bool = ...,
        diagonal: builtins.int = ...,
    ) -> ValuesAndIndices:
        """The k-th smallest element along an axis, counted from 1, and its index."""
    def layer_norm(
        self,
        normalized_shape: Sequence[builtins.int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: builtins.float = 1e-05,
    ) -> Tensor:
        """x standardised over its last axes, then scaled by weight and shifted by bias."""
    def lcm(self, other: Any) -> Tensor:
        """The least common multiple of integers; 0 if one of them is."""
    def ldexp(self, other: Any) -> Tensor:
        """x * 2**other."""
    def le(self, y: _TensorLike) -> Tensor:
        """Whether x is less or equal to y."""
    def leaky_relu(self, negative_slope: builtins.float = 0.01) -> Tensor:
        """x where it is positive, negative_slope * x elsewhere; at 0 the derivative is the
        slope.
        """
    def lerp(self, end: _TensorLike, weight: _TensorLike) -> Tensor:
        """x + weight * (end - x): x at weight 0, end at weight 1, exactly."""
    def less(self, y: _TensorLike) -> Tensor:
        """Whether x is less than y."""
    def less_equal(self, y: _TensorLike) -> Tensor:
        """Whether x is less or equal to y."""
    def lgamma(self) -> Tensor:
        """log(abs(gamma(x))): infinite at 0 and the negative integers."""
    def log(self) -> Tensor:
        """The natural logarithm."""
    def log10(self) -> Tensor:
        """The logarithm to base 10."""
    def log1p(self) -> Tensor:
        """log(1 + x), exact near 0."""
    def log2(self) -> Tensor:
        """The logarithm to base 2."""
    def log_softmax(
        self, axis: builtins.int = -1, *, dim: builtins.int = ..., dims: builtins.int = ...
    ) -> Tensor:
        """The logarithm of softmax, without going through it."""
    def logaddexp(self, y: _TensorLike) -> Tensor:
        """log(exp(x) + exp(y)), without the overflow. Two equal infinities share the gradient."""
    def logaddexp2(self, other: Tensor) -> Tensor:
        """log2(2**x + 2**other) without overflow."""
    def logcumsumexp(
        self,
        axis: builtins.int | None = None,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Tensor:
        """log(cumulative_sum(exp(x))) without overflow."""
    def logdet(self) -> Tensor:
        """The logarithm of the determinant; NaN where that is negative."""
    def logical_and(self, y: _TensorLike) -> Tensor:
        """Logical and, as bool: every number but 0 is true, NaN too."""
    def logical_not(self) -> Tensor:
        """Whether x is False or 0, as bool; NaN is not."""
    def logical_or(self, y: _TensorLike) -> Tensor:
        """Logical or, as bool: every number but 0 is true, NaN too."""
    def logical_xor(self, y: _TensorLike) -> Tensor:
        """Logical xor, as bool: every number but 0 is true, NaN too."""
    def logit(self, eps: builtins.float | None = None) -> Tensor:
        """log(x / (1 - x)), the inverse of expit: infinite at 0 and 1, NaN outside. With `eps`,
        x is limited to [eps, 1 - eps] first.
        """
    def logsigmoid(self) -> Tensor:
        """log(sigmoid(x)), without the underflow."""
    def logsumexp(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """log(sum(exp(x))) without overflow."""
    def long(self) -> Tensor:
        """The elements as int64: `astype(eg.int64)`."""
    def lt(self, y: _TensorLike) -> Tensor:
        """Whether x is less than y."""
    def lu_solve(self, pivots: Tensor, B: Tensor) -> Tensor:  # noqa: N803  # the name of a matrix
        """X with A X = B, from lu_factor(A)."""
    @property
    def mH(self) -> Tensor:  # noqa: N802  # the Array API's name
        """The last two axes exchanged, and complex numbers conjugated."""
    @property
    def mT(self) -> Tensor:  # noqa: N802  # the Array API's name
        """The last two axes exchanged."""
    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        """x with one value wherever the mask is true."""
    def masked_scatter(self, mask: Tensor, source: Tensor = ..., *, src: Tensor = ...) -> Tensor:
        """x with the elements where the mask is true replaced by those of `source`, in order."""
    def masked_select(self, mask: Tensor) -> Tensor:
        """The elements where the mask is true, as a vector; x and mask broadcast."""
    def matmul(self, y: Tensor) -> Tensor:
        """The matrix product. Vectors count as a row on the left and a column on the right;
        leading axes broadcast.
        """
    def matrix_exp(self) -> Tensor:
        """1 + x + x @ x / 2 + ...: scaling and squaring, with a Pade approximant of degree 13."""
    def matrix_power(self, n: builtins.int) -> Tensor:
        """x @ x @ ..., n times; the inverse to the power -n where n is negative."""
    def matrix_transpose(self) -> Tensor:
        """The last two axes exchanged."""
    def max(
        self,
        *dim: Any,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Any:
        """The largest element. NaN wins, 0.0 is above -0.0; equal largest elements share the
        gradient evenly.
        """
    def max_pool2d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: builtins.bool = False,
        return_indices: builtins.bool = False,
    ) -> Any:
        """The largest element in each window. NaN wins; the gradient goes to the first largest."""
    def maximum(self, y: _TensorLike) -> Tensor:
        """The larger of x and y. NaN wins; a tie gives each side half the gradient."""
    def mean(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The arithmetic mean along the axes, or of all elements."""
    def median(
        self,
        *dim: Any,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Any:
        """The element in the middle, of two the lower, as in PyTorch; NaN where there is a NaN."""
    def min(
        self,
        *dim: Any,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Any:
        """The smallest element. NaN wins, -0.0 is below 0.0; equal smallest elements share the
        gradient evenly.
        """
    def minimum(self, y: _TensorLike) -> Tensor:
        """The smaller of x and y. NaN wins; a tie gives each side half the gradient."""
    def mish(self) -> Tensor:
        """x * tanh(softplus(x))."""
    def mm(self, y: Tensor) -> Tensor:
        """The matrix product. Vectors count as a row on the left and a column on the right;
        leading axes broadcast.
        """
    def mode(self, dim: builtins.int = -1, keepdim: builtins.bool = False) -> ValuesAndIndices:
        """The commonest element along an axis, the smallest of several, and where one stands."""
    def moveaxis(self, source: Any, destination: Any) -> Tensor:
        """Axes moved to other places, the rest keeping their order."""
    def movedim(self, source: Any, destination: Any) -> Tensor:
        """Axes moved to other places, the rest keeping their order."""
    def msort(self) -> Tensor:
        """`sort` along the first axis."""
    def mul(self, y: _TensorLike) -> Tensor:
        """The product x * y."""
    def multinomial(
        self,
        num_samples: builtins.int,
        replacement: builtins.bool = False,
        *,
        generator: Any = None,
    ) -> Tensor:
        """Indices drawn with the weights along the last axis."""
    def multiply(self, y: _TensorLike) -> Tensor:
        """The product x * y."""
    def mv(self, y: Tensor) -> Tensor:
        """The matrix product. Vectors count as a row on the left and a column on the right;
        leading axes broadcast.
        """
    def mvlgamma(self, p: builtins.int) -> Tensor:
        """The logarithm of the multivariate gamma function of dimension p."""
    def nan_to_num(
        self,
        nan: builtins.float = 0.0,
        posinf: builtins.float | None = None,
        neginf: builtins.float | None = None,
    ) -> Tensor:
        """x with NaN and the infinities replaced, those by the dtype's largest and smallest
        number if nothing else is asked for. What is replaced has derivative 0; integers stay
        what they are.
        """
    def nanmax(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The largest element that is not NaN; NaN where there is none."""
    def nanmean(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The mean of all elements that are not NaN; NaN where there are none."""
    def nanmedian(
        self,
        *dim: Any,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Any:
        """`median` of the elements that are not NaN; NaN where there are none."""
    def nanmin(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The smallest element that is not NaN; NaN where there is none."""
    def nanquantile(
        self,
        q: builtins.float | Sequence[builtins.float] | Tensor,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        interpolation: str = "linear",
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """`quantile` of the elements that are not NaN; NaN where there are none."""
    def nansum(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        dtype: Any = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The sum of all elements that are not NaN."""
    def narrow(self, dim: builtins.int, start: builtins.int, length: builtins.int) -> Tensor:
        """`length` elements from `start` on along an axis: x[:, start:start + length]."""
    def narrow_copy(self, dim: builtins.int, start: builtins.int, length: builtins.int) -> Tensor:
        """`length` elements from `start` on along an axis: x[:, start:start + length]."""
    @property
    def nbytes(self) -> builtins.int:
        """The bytes of all elements."""
    def ndimension(self) -> builtins.int:
        """The number of axes: `x.ndim`."""
    def ne(self, y: _TensorLike) -> Tensor:
        """Whether x is not or equal to y."""
    def neg(self) -> Tensor:
        """-x."""
    def negative(self) -> Tensor:
        """-x."""
    def nelement(self) -> builtins.int:
        """The number of elements: `x.size`."""
    def new_empty(
        self,
        *size: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: builtins.bool = False,
    ) -> Tensor:
        """A tensor whose values mean nothing, in the dtype and on the device of x."""
    def new_full(
        self,
        size: Any,
        fill_value: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: builtins.bool = False,
    ) -> Tensor:
        """One value in a shape, in the dtype and on the device of x."""
    def new_ones(
        self,
        *size: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: builtins.bool = False,
    ) -> Tensor:
        """Ones of a shape, in the dtype and on the device of x; without a shape like x itself,
        which is what the engine asks for: it knows no ops.
        """
    def new_tensor(
        self, data: Any, dtype: Any = None, device: Any = None, requires_grad: builtins.bool = False
    ) -> Tensor:
        """Data as a tensor in the dtype and on the device of x."""
    def new_zeros(
        self,
        *size: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: builtins.bool = False,
    ) -> Tensor:
        """Zeros of a shape, in the dtype and on the device of x."""
    def nextafter(self, y: Any) -> Tensor:
        """The next number of the dtype after x towards y; y where they are equal. The derivative
        in x is 1.
        """
    def nonzero(self, as_tuple: builtins.bool = True) -> Any:
        """The indices of the elements that are not 0, in C order: a vector for each axis; with
        `as_tuple=False`, as `argwhere` has them.
        """
    def norm(
        self,
        p: Any = 2.0,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The p-norm of the elements along the axes as one vector: sum(|x|^p)^(1/p)."""
    def not_equal(self, y: _TensorLike) -> Tensor:
        """Whether x is not or equal to y."""
    def numel(self) -> builtins.int:
        """The number of elements: `x.size`."""
    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array that shares memory where it can, and cannot be written to."""
    def numpy_later(self) -> Later:
        """The values as a NumPy array that is on its way: its `result()` waits, this does not."""
    def outer(self, y: Tensor) -> Tensor:
        """Every product of an element of x and an element of y."""
    def pad(self, widths: Any, mode: Any = "constant", value: Any = 0.0) -> Tensor:
        """x with more around it."""
    def permute(
        self, axes: Any = ..., *more: builtins.int, dim: Any = ..., dims: Any = ...
    ) -> Tensor:
        """The axes in another order, a tuple or several numbers."""
    def permute_dims(
        self, axes: Any = ..., *more: builtins.int, dim: Any = ..., dims: Any = ...
    ) -> Tensor:
        """The axes in another order, a tuple or several numbers."""
    def pin_memory(self, device: Any = None) -> Tensor:
        """x itself: a copy to a device is never waited for."""
    def pinverse(
        self,
        *,
        rtol: builtins.float | Tensor | None = None,
        atol: builtins.float | Tensor | None = None,
        hermitian: builtins.bool = False,
    ) -> Tensor:
        """The pseudo-inverse. Singular values up to `rtol` times the largest, or up to `atol`,
        count as 0; by default, what rounding leaves of 0. `hermitian` says what x is, and
        changes nothing.
        """
    def polygamma(self, n: builtins.int) -> Tensor:
        """The n-th derivative of digamma: `eg.special.polygamma(n, x)`."""
    def positive(self) -> Tensor:
        """+x: the same value."""
    def pow(self, y: _TensorLike) -> Tensor:
        """x to the power y. Integers have no negative powers."""
    def prelu(self, weight: Tensor) -> Tensor:
        """x where it is positive, weight * x elsewhere: one weight, or one for each place on
        axis 1.
        """
    def prod(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        dtype: Any = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The product along the axes, or of all elements."""
    def put(
        self,
        index: Tensor,
        source: Tensor = ...,
        accumulate: builtins.bool = False,
        *,
        src: Tensor = ...,
    ) -> Tensor:
        """x with elements replaced, or added to; the index counts as if x were flat, and from
        the end where it is negative.
        """
    def qr(self, *, mode: str = "reduced") -> QRResult:
        """x = Q @ R with orthonormal columns in Q and an upper R. Q has as many columns as x has
        rows or columns, whichever are fewer ("reduced"), or is square ("complete"); a derivative
        that depends on the columns added then is refused. The signs are LAPACK's.
        """
    def quantile(
        self,
        q: builtins.float | Sequence[builtins.float] | Tensor,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        keepdims: builtins.bool = False,
        interpolation: str = "linear",
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The value below which the share q of the elements lies; NaN where there is a NaN."""
    def rad2deg(self) -> Tensor:
        """An angle in radians as degrees."""
    def ravel(self) -> Tensor:
        """All elements along one axis."""
    def real(self) -> Tensor:
        """The real part."""
    def reciprocal(self) -> Tensor:
        """1 / x."""
    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
        """Call `hook(gradient)` once in each backward pass, on the summed gradient of this
        tensor.
        """
    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> HookHandle:
        """Call `hook(tensor)` once this leaf's `.grad` is complete."""
    def relu(self) -> Tensor:
        """The larger of x and 0; NaN stays NaN. The derivative at 0 is 0."""
    def relu6(self) -> Tensor:
        """x limited to [0, 6]; NaN stays NaN. The derivative at 0 and at 6 is 0."""
    def remainder(self, y: _TensorLike) -> Tensor:
        """x - y * floor(x / y): the remainder with the sign of y."""
    def renorm(self, p: builtins.float, dim: builtins.int, maxnorm: builtins.float) -> Tensor:
        """The slices along `dim` whose p-norm is above `maxnorm` scaled down to it."""
    def repeat(
        self,
        repeats: builtins.int | Sequence[builtins.int] | Tensor,
        *more: builtins.int,
        axis: builtins.int | None = None,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Tensor:
        """Each element `repeats` times in a row along an axis, or flattened."""
    def repeat_interleave(
        self,
        repeats: builtins.int | Sequence[builtins.int] | Tensor,
        axis: builtins.int | None = None,
        *,
        output_size: builtins.int | None = None,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Tensor:
        """`repeat` under PyTorch's name. `output_size` is what the axis will have, if it is
        known.
        """
    def reshape(
        self,
        shape: Any = ...,
        *more: builtins.int,
        copy: builtins.bool | None = None,
        size: Any = ...,
    ) -> Tensor:
        """The same elements in another shape, a tuple or several numbers; one size may be -1."""
    def reshape_as(self, other: Tensor) -> Tensor:
        """The same elements in the shape of another tensor."""
    def resolve_conj(self) -> Tensor:
        """x itself: a conjugate is computed when it is asked for."""
    def resolve_neg(self) -> Tensor:
        """x itself: a negative is computed when it is asked for."""
    @property
    def retains_grad(self) -> builtins.bool:
        """Whether retain_grad() was called on this result of an op."""
    def roll(
        self,
        shift: Any = ...,
        axis: Any = None,
        *,
        dim: Any = ...,
        dims: Any = ...,
        shifts: Any = ...,
    ) -> Tensor:
        """Elements moved `shift` places along the axes, the last ones coming round to the front."""
    def rot90(
        self,
        k: builtins.int = 1,
        axes: Sequence[builtins.int] = ...,
        *,
        dim: Sequence[builtins.int] = ...,
        dims: Sequence[builtins.int] = ...,
        diagonal: builtins.int = ...,
    ) -> Tensor:
        """x rotated by k quarters of a circle, from the first axis towards the second."""
    def rotary_embedding(
        self,
        positions: Tensor | None = None,
        base: builtins.float = 10000.0,
        interleaved: builtins.bool = False,
    ) -> Tensor:
        """x, of (..., positions, width), with each pair of elements rotated by position times
        base ** (-i / (width / 2)); the i-th pair is elements i and i + width / 2, or
        `interleaved` 2 i and 2 i + 1. Products of two such vectors depend on the distance of
        their positions alone.
        """
    def round(self) -> Tensor:
        """The nearest integer, halves to the even one. Integers stay what they are. The
        derivative is 0.
        """
    def rsqrt(self) -> Tensor:
        """1 / sqrt(x)."""
    def scatter(
        self,
        index: Tensor,
        source: Tensor | builtins.float = ...,
        axis: builtins.int = 0,
        reduce: str | None = None,
        include_self: builtins.bool = True,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        src: Tensor | builtins.float = ...,
    ) -> Tensor:
        """x with source[i][j] put at [index[i][j]][j] for axis 0, and likewise for the others."""
    def scatter_add(
        self,
        index: Tensor,
        source: Tensor = ...,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        src: Tensor = ...,
    ) -> Tensor:
        """x with source[i][j][k] added at [index[i][j][k]][j][k] for axis 0; likewise for
        others.
        """
    def scatter_reduce(
        self,
        dim: builtins.int,
        index: Tensor,
        src: Tensor,
        reduce: str,
        *,
        include_self: builtins.bool = True,
    ) -> Tensor:
        """x with src[i][j] combined into [index[i][j]][j] for dim 0, and likewise for the
        others.
        """
    def searchsorted(
        self,
        values: Any,
        side: str | None = None,
        sorter: Tensor | None = None,
        *,
        right: builtins.bool = False,
        out_int32: builtins.bool = False,
    ) -> Tensor:
        """The index at which each value can be put into a sequence, sorted along its last axis,
        and keep order.
        """
    def select(self, dim: builtins.int, index: builtins.int) -> Tensor:
        """One slice along an axis: x[:, index]."""
    def select_scatter(self, src: Tensor, dim: builtins.int, index: builtins.int) -> Tensor:
        """x with one slice along an axis replaced by src."""
    def selu(self) -> Tensor:
        """The scaled elu that keeps mean 0 and variance 1 through many layers."""
    def sgn(self) -> Tensor:
        """-1, 0 or 1; NaN stays NaN. Of a complex number x / abs(x), and 0 of 0."""
    def short(self) -> Tensor:
        """The elements as int16: `astype(eg.int16)`."""
    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))."""
    def sign(self) -> Tensor:
        """-1, 0 or 1; NaN stays NaN. Of a complex number x / abs(x), and 0 of 0."""
    def signbit(self) -> Tensor:
        """Whether the sign is minus: of -0.0 and of a NaN with that bit as well."""
    def silu(self) -> Tensor:
        """x * sigmoid(x)."""
    def sin(self) -> Tensor:
        """The sine."""
    def sinc(self) -> Tensor:
        """sin(pi x) / (pi x), and 1 at 0."""
    def sinh(self) -> Tensor:
        """The hyperbolic sine."""
    def slice_scatter(
        self,
        src: Tensor,
        dim: builtins.int = 0,
        start: builtins.int | None = None,
        end: builtins.int | None = None,
        step: builtins.int = 1,
    ) -> Tensor:
        """x with the slice start:end:step of an axis replaced by src."""
    def slogdet(self) -> SlogdetResult:
        """The sign of the determinant, complex of length 1 for complex matrices, and the
        logarithm of its absolute value: 0 and -inf for singular matrices.
        """
    def softmax(
        self, axis: builtins.int = -1, *, dim: builtins.int = ..., dims: builtins.int = ...
    ) -> Tensor:
        """exp(x) scaled to sum to 1 along the axis."""
    def softmin(
        self, axis: builtins.int = -1, *, dim: builtins.int = ..., dims: builtins.int = ...
    ) -> Tensor:
        """exp(-x) scaled to sum to 1 along the axis."""
    def softplus(self, beta: builtins.float = 1.0, threshold: builtins.float = 20.0) -> Tensor:
        """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold. With
        neither given the logarithm is computed everywhere: it does not overflow.
        """
    def softshrink(self, lambd: builtins.float = 0.5) -> Tensor:
        """x moved towards 0 by lambd, and 0 where that would cross it; NaN stays NaN."""
    def softsign(self) -> Tensor:
        """x / (1 + abs(x))."""
    def sort(
        self,
        *dim: Any,
        axis: builtins.int = -1,
        descending: builtins.bool = False,
        stable: builtins.bool = True,
        dims: builtins.int = ...,
    ) -> Any:
        """The elements in order along an axis. The gradient goes back to where each came from."""
    def split(
        self,
        sizes: builtins.int | Sequence[builtins.int] = ...,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        split_size_or_sections: builtins.int | Sequence[builtins.int] = ...,
    ) -> list[Tensor]:
        """Parts of the given sizes along an axis; one number means parts of that size."""
    def split_with_sizes(self, split_sizes: Any, dim: builtins.int = 0) -> tuple[Tensor, ...]:
        """Parts of the given sizes along an axis."""
    def sqrt(self) -> Tensor:
        """The square root."""
    def square(self) -> Tensor:
        """x * x."""
    def squeeze(self, axis: Any = None, *, dim: Any = ..., dims: Any = ...) -> Tensor:
        """Without the given axes, each of which must have size 1; without all that do, if none
        is given.
        """
    def std(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        correction: builtins.float = 0.0,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
        unbiased: builtins.float = ...,
    ) -> Tensor:
        """The standard deviation, the square root of `var`."""
    def stft(
        self,
        n_fft: builtins.int,
        hop_length: builtins.int | None = None,
        win_length: builtins.int | None = None,
        window: Tensor | None = None,
        center: builtins.bool = True,
        pad_mode: str = "reflect",
        normalized: builtins.bool = False,
        onesided: builtins.bool | None = None,
        return_complex: builtins.bool = True,
    ) -> Tensor:
        """Transforms of stretches of n_fft elements of a signal, `hop_length` (n_fft // 4)
        apart, each times the window: (..., frequencies, stretches). With `center`, stretches are
        centred at their places, the signal padded by n_fft // 2 on both sides. `normalized`
        divides by the root of n_fft. Half of the frequencies are given for real signals, unless
        `onesided` is False. Without `return_complex` the last axis has real and imaginary parts.
        """
    def storage_offset(self) -> builtins.int:
        """0: no op asks for a layout."""
    def stride(self, dim: builtins.int | None = None) -> Any:
        """The strides, in elements, that a contiguous tensor of this shape has: no op asks for
        more.
        """
    def sub(self, other: Any, alpha: builtins.float = 1) -> Tensor:
        """x - alpha * other."""
    def subtract(self, y: _TensorLike, *, alpha: _TensorLike = 1) -> Tensor:
        """The difference x - y."""
    def sum(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        dtype: Any = None,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
    ) -> Tensor:
        """The sum along the axes, or of all elements; integers are summed in 64 bits. It begins
        with 0.0: of -0.0 alone it is 0.0.
        """
    def sum_to(
        self, shape: Sequence[builtins.int] = ..., *, size: Sequence[builtins.int] = ...
    ) -> Tensor:
        """x summed down to `shape`: the transpose of broadcasting."""
    def sum_to_size(self, *size: Any) -> Tensor:
        """x summed down to a shape that broadcasts to its own."""
    def swapaxes(
        self,
        axis1: builtins.int = ...,
        axis2: builtins.int = ...,
        *,
        dim1: builtins.int = ...,
        dim2: builtins.int = ...,
    ) -> Tensor:
        """Two axes exchanged."""
    def swapdims(
        self, *axes: Any, dim0: builtins.int | None = None, dim1: builtins.int | None = None
    ) -> Tensor:
        """Two axes exchanged, as in PyTorch; with none or with all of them NumPy's order of
        axes.
        """
    def t(self) -> Tensor:
        """The two axes of a matrix exchanged; a vector stays what it is."""
    def take(
        self,
        indices: Tensor,
        axis: builtins.int | None = 0,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Tensor:
        """The slices of x along an axis that the indices name, negative ones from the end, in
        their order and shape; with axis=None the elements, counted as if x were flat.
        """
    def take_along_axis(
        self,
        indices: Tensor,
        axis: builtins.int = -1,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> Tensor:
        """`gather` with the other axes broadcast; negative indices count from the end."""
    def take_along_dim(self, indices: Tensor, dim: builtins.int | None = None) -> Tensor:
        """The elements at `indices` along an axis; of the flattened tensor if none is given."""
    def tan(self) -> Tensor:
        """The tangent."""
    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
    def tanhshrink(self) -> Tensor:
        """x - tanh(x)."""
    def tensor_split(
        self,
        indices_or_sections: builtins.int | Sequence[builtins.int],
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> list[Tensor]:
        """So many parts, the first ones larger by one where it must be; or parts that end at
        indices.
        """
    def threshold(self, threshold: builtins.float, value: builtins.float) -> Tensor:
        """x where it is above the threshold (or NaN), the value elsewhere."""
    def tile(
        self,
        repetitions: Sequence[builtins.int] | builtins.int = ...,
        *more: builtins.int,
        dims: Sequence[builtins.int] | builtins.int = ...,
    ) -> Tensor:
        """x laid side by side, so many times along each axis: a tuple or several numbers."""
    def to(
        self,
        device: Any = None,
        dtype: Any = None,
        non_blocking: builtins.bool = False,
        copy: builtins.bool = False,
        *,
        memory_format: Any = None,
    ) -> Tensor:
        """The same values on another device, or in another dtype, or both; or as another tensor
        has them. The name of a dtype in place of a device is taken for what it is.
        """
    def to_dense(self) -> Tensor:
        """x itself: every tensor is dense."""
    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The Array API's name for a move to another device; devices here have one stream each."""
    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
    def topk(
        self,
        k: builtins.int = ...,
        axis: builtins.int = -1,
        largest: builtins.bool = True,
        sorted: builtins.bool = True,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        diagonal: builtins.int = ...,
    ) -> ValuesAndIndices:
        """The k largest (or smallest) elements along an axis, and their indices."""
    def trace(self) -> Tensor:
        """The sum of the diagonal of a matrix."""
    def transpose(
        self, *axes: Any, dim0: builtins.int | None = None, dim1: builtins.int | None = None
    ) -> Tensor:
        """Two axes exchanged, as in PyTorch; with none or with all of them NumPy's order of
        axes.
        """
    def trapezoid(
        self,
        x: Tensor | None = None,
        dx: builtins.float = 1.0,
        axis: builtins.int = -1,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> Tensor:
        """The integral along an axis of the straight lines between samples y."""
    def tril(self, k: builtins.int = 0, *, diagonal: builtins.int = ...) -> Tensor:
        """The part on and below the k-th diagonal, zero above."""
    def triu(self, k: builtins.int = 0, *, diagonal: builtins.int = ...) -> Tensor:
        """The part on and above the k-th diagonal, zero below."""
    def true_divide(self, y: _TensorLike) -> Tensor:
        """The quotient x / y; integers give floating point."""
    def trunc(self) -> Tensor:
        """The next integer towards 0. Integers stay what they are. The derivative is 0."""
    def type(self, dtype: Any = None) -> Any:
        """The elements as another dtype; without one the name of this one."""
    def type_as(self, other: Tensor) -> Tensor:
        """The elements in the dtype, and on the device, of another tensor."""
    def unbind(
        self, axis: builtins.int = 0, *, dim: builtins.int = ..., dims: builtins.int = ...
    ) -> tuple[Tensor, ...]:
        """`unstack` under PyTorch's name."""
    def unflatten(
        self,
        axis: builtins.int = ...,
        sizes: Sequence[builtins.int] = ...,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        split_size_or_sections: Sequence[builtins.int] = ...,
    ) -> Tensor:
        """x with one axis as several, of these sizes; one of them may be -1."""
    def unfold(
        self,
        axis: Any = None,
        size: builtins.int | None = None,
        step: builtins.int | None = None,
        stride: Any = None,
        *,
        kernel_size: Any = None,
        dilation: Any = None,
        padding: Any = None,
        dim: Any = ...,
        dims: Any = ...,
    ) -> Tensor:
        """All windows of `size` elements along an axis, `step` (1) apart, as a last axis."""
    def unique(
        self,
        sorted: builtins.bool = True,
        return_inverse: builtins.bool = False,
        return_counts: builtins.bool = False,
        axis: builtins.int | None = None,
        *,
        dim: builtins.int | None = ...,
        dims: builtins.int | None = ...,
    ) -> Any:
        """The different elements, or slices along an axis, always in order; PyTorch's form."""
    def unique_consecutive(
        self,
        return_inverse: builtins.bool = False,
        return_counts: builtins.bool = False,
        dim: builtins.int | None = None,
    ) -> Any:
        """One element, or slice along an axis, of each run of equal ones. Reads values: eager
        only.
        """
    def unsafe_chunk(
        self,
        chunks: builtins.int,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> list[Tensor]:
        """Parts of equal size, the last perhaps smaller: at most `chunks`, fewer where fewer do."""
    def unsafe_split(
        self,
        sizes: builtins.int | Sequence[builtins.int] = ...,
        axis: builtins.int = 0,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
        split_size_or_sections: builtins.int | Sequence[builtins.int] = ...,
    ) -> list[Tensor]:
        """Parts of the given sizes along an axis; one number means parts of that size."""
    def unsafe_split_with_sizes(
        self, split_sizes: Any, dim: builtins.int = 0
    ) -> tuple[Tensor, ...]:
        """Parts of the given sizes along an axis."""
    def unsqueeze(self, axis: Any = 0, *, dim: Any = ..., dims: Any = ...) -> Tensor:
        """With new axes of size 1 at the given places of the result."""
    def unstack(
        self, axis: builtins.int = 0, *, dim: builtins.int = ..., dims: builtins.int = ...
    ) -> tuple[Tensor, ...]:
        """The slices along an axis, without it: `stack` undone."""
    def var(
        self,
        axis: builtins.int | tuple[builtins.int, ...] | None = None,
        correction: builtins.float = 0.0,
        keepdims: builtins.bool = False,
        *,
        dim: builtins.int | tuple[builtins.int, ...] | None = ...,
        dims: builtins.int | tuple[builtins.int, ...] | None = ...,
        keepdim: builtins.bool = ...,
        unbiased: builtins.float = ...,
    ) -> Tensor:
        """The variance: squares of the distances from the mean, summed, over (count -
        correction).
        """
    def vdot(self, other: Tensor) -> Tensor:
        """The product of two vectors, the first one conjugated."""
    def vecdot(
        self,
        y: Tensor,
        axis: builtins.int = -1,
        *,
        dim: builtins.int = ...,
        dims: builtins.int = ...,
    ) -> Tensor:
        """The sum of products along an axis of one size in both, x conjugated if complex."""
    def view(
        self,
        shape: Any = ...,
        *more: builtins.int,
        copy: builtins.bool | None = None,
        size: Any = ...,
    ) -> Tensor:
        """The same elements in another shape, a tuple or several numbers; one size may be -1."""
    def view_as(self, other: Tensor) -> Tensor:
        """The same elements in the shape of another tensor."""
    def vsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """Parts along the first axis."""
    def where(self, condition: Any, other: Any) -> Tensor:
        """x where the condition holds, else other: `eg.where(condition, x, other)`."""
    def xlogy(self, y: _TensorLike) -> Tensor:
        """x * log(y), and 0 where x is 0 and y not NaN; the derivative in x is 0 there if y <=
        0.
        """

def shared(t: Tensor) -> Any:
    """The payload of `t`, to stand under another name too: a tracer must know whose it is."""

def stand_in(t: Tensor) -> Tensor:
    """The tensor that holds the value and the node of `t` in this context: `t` itself, except
    for a tensor from outside that a tracer has captured, which is never written to.
    """

def set_grad(t: Tensor, g: Tensor | None) -> None:
    """Give `t` this gradient; while a function is traced, only the tracer knows it."""

def wrap(payload: Any, node: Node | None = None) -> Tensor:
    """A Tensor around a payload."""

def view(out: Tensor, source: Tensor) -> Tensor:
    """`out`, marked as a view of `source`: it shows elements of it, in memory of its own or not."""

def held_source(t: Tensor) -> Tensor | None:
    """A tensor that `t` is a view of and that somebody still holds; None if there is none."""

def data_owner(t: Tensor) -> Tensor | None:
    """The leaf whose `data` this tensor is, to which a write goes; None if it is none's."""

def refuse_lost_write(t: Tensor, op: str, cure: str) -> None:
    """Refuse to write to a view of a tensor that somebody still holds: it would not change."""

def _rows(x: Tensor) -> Iterator[Tensor]:
    """The rows, views of x unless this loop is the only one who holds it."""

def _one_loop() -> builtins.int:
    """What refcount says of an object that only a generator's local name holds."""

class _Elsewhere:
    """A method of PyTorch's that is none here: asking for it says what is. (A `__getattr__`
    would make every attribute of a tensor slower to reach.)
    """

    def __init__(self, name: str) -> None: ...
    def __get__(self, instance: Tensor | None, owner: builtins.type[Tensor]) -> Any: ...
