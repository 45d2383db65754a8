# Made by `python -m devtools.stubs`: change the ops, not this file.

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from everygrad.autograd.graph import HookHandle, Node
from everygrad.core.protocols import Op
from everygrad.dtypes import DType
from everygrad.ops.index.search import Histogram
from everygrad.ops.index.sort import ValuesAndIndices
from everygrad.ops.python.conversion import Later
from everygrad.ops.random.generators import Generator

_TensorLike: TypeAlias = Tensor | complex | np.ndarray[Any, Any] | np.generic

class Wrapped:
    """A payload made by a transformation: `level` says which, deeper ones have higher levels."""

    level: int
    transparent: bool
    plain: bool
    @property
    def inner(self) -> Tensor:
        """The tensor of the level below that holds the value."""
    def left(self) -> Tensor | None:
        """The tensor of the level below that stands for the whole, for a name that outlives the
        transformation; None where there is none.
        """
    def stopped(self) -> Any:
        """The payload of the same value without any derivative."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> str: ...
    def interpret(self, op: Op, payloads: list[Any], params: dict[str, Any]) -> Any:
        """The payload of `op` applied to `payloads`, of which this one has the highest level."""

class Tensor:
    """An n-dimensional array that remembers how it was made."""

    _data: Any
    _node: Node | None
    _source: Any
    _grad: Tensor | None
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int:
        """The number of elements."""
    @property
    def device(self) -> str:
        """Where the value lives: "cpu", "cuda:0", "webgpu"."""
    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded for `backward`."""
    @requires_grad.setter
    def requires_grad(self, value: bool) -> None: ...
    def requires_grad_(self, value: bool = True) -> Tensor:
        """Start (or stop) recording operations on this tensor; returns the tensor itself."""
    @property
    def is_leaf(self) -> bool:
        """True unless the tensor was made by a recorded op."""
    @property
    def grad(self) -> Tensor | None:
        """The gradient summed here by `backward`, or None."""
    @grad.setter
    def grad(self, value: Tensor | None) -> None: ...
    def rebind(self, payload: Any, node: Node | None, drawn: bool = False) -> None:
        """Give this name another value. The only place where a Tensor changes."""
    def detach(self) -> Tensor:
        """The same value as a constant for every derivative; nothing is copied."""
    def retain_grad(self) -> None:
        """Keep this result's gradient in `.grad` too, as leaves do."""
    def __copy__(self) -> Tensor: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor: ...
    def __reduce_ex__(self, protocol: Any) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
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
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __index__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
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
    def __array_ufunc__(
        self, ufunc: Any, method: str, /, *inputs: Any, out: Any = ..., **options: Any
    ) -> Any: ...
    def __array_function__(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...
    @property
    def T(self) -> Tensor:  # noqa: N802  # the Array API's name
        """The two axes of a matrix exchanged."""
    def abs(self) -> Tensor:
        """The absolute value; 0 has derivative 0."""
    def acos(self) -> Tensor:
        """The angle in [0, pi] whose cosine is x."""
    def acosh(self) -> Tensor:
        """The inverse of cosh on x >= 1."""
    def add(self, y: _TensorLike) -> Tensor:
        """The sum x + y."""
    def addcdiv(self, y: Any, z: Any, value: float = 1) -> Tensor:
        """x + value * (y / z), of floating point alone."""
    def addcmul(self, y: Any, z: Any, value: float = 1) -> Tensor:
        """x + value * y * z."""
    def all(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """Whether every element is true (not 0)."""
    def amax(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """`max` under PyTorch's name: NaN wins, equal elements share the gradient evenly."""
    def amin(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """`min` under PyTorch's name: NaN wins, equal elements share the gradient evenly."""
    def aminmax(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The smallest and the largest element along the axes, as `amin` and `amax` give them."""
    def angle(self) -> Tensor:
        """The angle of a complex number, from -pi to pi; of a real one 0 or, where it is
        negative, pi. NaN stays NaN.
        """
    def any(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """Whether some element is true (not 0)."""
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first largest element; of the first NaN if there is one."""
    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first smallest element; of the first NaN if there is one."""
    def argsort(self, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """The indices that sort x along an axis. Always stable; NaN counts as the largest."""
    def argwhere(self) -> Tensor:
        """The indices of the elements that are not 0, in C order: a row for each element."""
    def asin(self) -> Tensor:
        """The angle in [-pi/2, pi/2] whose sine is x."""
    def asinh(self) -> Tensor:
        """The inverse of sinh."""
    def astype(self, dtype: Any, copy: bool = True, device: Any = None) -> Tensor:
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
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        """The mean of each window; padding counts as zeros unless count_include_pad is False."""
    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Sequence[Tensor] | None = None,
        workers: int = 1,
    ) -> None:
        """Add the derivative of `root` to the `.grad` of the leaves it was made from."""
    def bincount(self, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """How often each number from 0 on is in x, or the sum of the weights that stand beside
        it.
        """
    def bitwise_and(self, y: _TensorLike) -> Tensor:
        """Bitwise and, for each element."""
    def bitwise_invert(self) -> Tensor:
        """Every bit inverted; for bool, logical not."""
    def bitwise_left_shift(self, y: _TensorLike) -> Tensor:
        """Bitwise left shift, for each element."""
    def bitwise_or(self, y: _TensorLike) -> Tensor:
        """Bitwise or, for each element."""
    def bitwise_right_shift(self, y: _TensorLike) -> Tensor:
        """Bitwise right shift, for each element."""
    def bitwise_xor(self, y: _TensorLike) -> Tensor:
        """Bitwise xor, for each element."""
    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        """x repeated, without copying, along axes of size 1 and new leading axes."""
    def bucketize(self, boundaries: Tensor, right: bool = False) -> Tensor:
        """The number of the bucket of each element: boundaries[i - 1] < x <= boundaries[i]."""
    def cbrt(self) -> Tensor:
        """The cube root, negative of negative numbers. The derivative at 0 is infinite."""
    def ceil(self) -> Tensor:
        """The next integer above. Integers stay what they are. The derivative is 0."""
    def celu(self, alpha: float = 1.0) -> Tensor:
        """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere: smooth for every
        alpha.
        """
    def chunk(self, chunks: int, axis: int = 0) -> list[Tensor]:
        """Parts of equal size, the last perhaps smaller: at most `chunks`, fewer where fewer do."""
    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        """x limited to [min, max]; the gradient is 1 at the bounds. Either bound may be left
        out.
        """
    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        """x limited to [min, max], in the dtype of x; the gradient is 1 at the bounds."""
    def clone(self) -> Tensor:
        """The same value, connected to x. Nothing is copied: values never change."""
    def conj(self) -> Tensor:
        """The complex conjugate."""
    def conv2d(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> Tensor:
        """Kernels (out channels, channels / groups, height, width) moved over images, plus a
        bias.
        """
    def copysign(self, y: _TensorLike) -> Tensor:
        """The size of x with the sign of y, which may be that of -0.0. 0 has derivative 0."""
    def corrcoef(self) -> Tensor:
        """The correlations of variables, the rows of x, as a matrix; real ones within -1 and 1."""
    def cos(self) -> Tensor:
        """The cosine."""
    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
    def count_nonzero(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
    ) -> Tensor:
        """How many elements are not 0; NaN is not."""
    def cov(self, correction: int = 1) -> Tensor:
        """The covariances of variables, the rows of x, as a matrix; of one variable its
        variance.
        """
    def cummax(self, axis: int) -> ValuesAndIndices:
        """The largest element so far, and its index: the last one of several. NaN wins."""
    def cummin(self, axis: int) -> ValuesAndIndices:
        """The smallest element so far, and its index: the last one of several. NaN wins."""
    def cumprod(self, axis: int, dtype: Any = None) -> Tensor:
        """`cumulative_prod` under PyTorch's name."""
    def cumsum(self, axis: int, dtype: Any = None) -> Tensor:
        """`cumulative_sum` under PyTorch's name."""
    def cumulative_prod(
        self, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Tensor:
        """The products of the elements up to each. The derivative is right where elements are 0."""
    def cumulative_sum(
        self, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Tensor:
        """The sums of the elements up to each; integers are summed in 64 bits."""
    def deg2rad(self) -> Tensor:
        """An angle in degrees as radians."""
    def diag(self, offset: int = 0) -> Tensor:
        """A matrix with the vector x on a diagonal, or the diagonal of the matrix x."""
    def diag_embed(self, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
        """The last axis put on a diagonal of two new axes, zero elsewhere: `diagonal` undone."""
    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """The elements on a diagonal of two axes, as a last axis. A positive offset lies above."""
    def diff(
        self,
        n: int = 1,
        axis: int = -1,
        prepend: Tensor | None = None,
        append: Tensor | None = None,
    ) -> Tensor:
        """The differences between neighbours along an axis, n times over."""
    def divide(self, y: _TensorLike) -> Tensor:
        """The quotient x / y; integers give floating point."""
    def dropout(
        self, p: float = 0.5, training: bool = True, generator: Generator | None = None
    ) -> Tensor:
        """Each element 0 with probability p, else scaled by 1 / (1 - p); x itself if not
        training.
        """
    def elu(self, alpha: float = 1.0) -> Tensor:
        """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    def equal(self, y: _TensorLike) -> Tensor:
        """Whether x is equal to y."""
    def erf(self) -> Tensor:
        """The error function."""
    def exp(self) -> Tensor:
        """e to the power x."""
    def exp2(self) -> Tensor:
        """2 to the power x."""
    def expand(self, shape: Any = ..., *more: int) -> Tensor:
        """`broadcast_to`, the sizes in a tuple or as several numbers, where -1 keeps an axis as
        it is.
        """
    def expand_dims(self, axis: Any = 0) -> Tensor:
        """With new axes of size 1 at the given places of the result."""
    def expm1(self) -> Tensor:
        """exp(x) - 1, exact near 0."""
    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """The axes from start_axis to end_axis made one."""
    def flip(self, axis: Any = None) -> Tensor:
        """The order of the elements reversed along the given axes, or along all."""
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
    def gather(self, index: Tensor, axis: int = 0) -> Tensor:
        """out[i][j][k] = x[index[i][j][k]][j][k] for axis 0, and likewise for the others."""
    def gelu(self) -> Tensor:
        """x times the share of a standard normal below x."""
    def gelu_tanh(self) -> Tensor:
        """gelu by its older approximation with tanh."""
    def glu(self, axis: int = -1) -> Tensor:
        """The first half of x along the axis times the sigmoid of the second."""
    def greater(self, y: _TensorLike) -> Tensor:
        """Whether x is greater than y."""
    def greater_equal(self, y: _TensorLike) -> Tensor:
        """Whether x is greater or equal to y."""
    def hardshrink(self, lambd: float = 0.5) -> Tensor:
        """x, and 0 where abs(x) <= lambd; NaN stays NaN."""
    def hardsigmoid(self) -> Tensor:
        """(x + 3) / 6 limited to [0, 1]. The derivative at -3 and at 3 is 0."""
    def hardswish(self) -> Tensor:
        """x * hardsigmoid(x)."""
    def hardtanh(self, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
        """x limited to [min_val, max_val]; unlike that of clamp, the derivative at the bounds is
        0.
        """
    def heaviside(self, y: Any) -> Tensor:
        """0 below 0, 1 above it, y at 0; NaN stays NaN. It carries no derivative."""
    def histogram(
        self,
        bins: int | Sequence[float] | Tensor = 10,
        weights: Tensor | None = None,
        range: tuple[float, float] | None = None,
        density: bool = False,
    ) -> Histogram:
        """How many elements lie in each bin, in x's dtype, and the edges of the bins."""
    def hypot(self, y: _TensorLike) -> Tensor:
        """sqrt(x * x + y * y), without overflow on the way. The derivative at (0, 0) is 0."""
    def imag(self) -> Tensor:
        """The imaginary part."""
    def index_add(self, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
        """x with each slice of `source` added to the slice that its index names; repeats add up."""
    def index_copy(self, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
        """x with the slices that the index names replaced by those of `source`."""
    def index_fill(self, index: Tensor, value: Any, axis: int = 0) -> Tensor:
        """x with the slices that the index names filled with one value."""
    def index_select(self, index: Tensor, axis: int = 0) -> Tensor:
        """`take` with a vector of indices, none of them negative."""
    def isclose(
        self, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Tensor:
        """Whether |x - y| <= atol + rtol |y|. Infinities are close to themselves alone; NaN to
        none, or to NaN if `equal_nan`.
        """
    def isfinite(self) -> Tensor:
        """Whether each element is neither infinite nor NaN."""
    def isin(self, elements: Any, invert: bool = False) -> Tensor:
        """Whether each element of x is among `elements` (or is not); NaN never is."""
    def isinf(self) -> Tensor:
        """Whether each element is infinite."""
    def isnan(self) -> Tensor:
        """Whether each element is NaN."""
    def item(self) -> Any:
        """The one element as a Python number."""
    def kthvalue(self, k: int, axis: int = -1, keepdims: bool = False) -> ValuesAndIndices:
        """The k-th smallest element along an axis, counted from 1, and its index."""
    def layer_norm(
        self,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-05,
    ) -> Tensor:
        """x standardised over its last axes, then scaled by weight and shifted by bias."""
    def leaky_relu(self, negative_slope: float = 0.01) -> Tensor:
        """x where it is positive, negative_slope * x elsewhere; at 0 the derivative is the
        slope.
        """
    def lerp(self, end: _TensorLike, weight: _TensorLike) -> Tensor:
        """x + weight * (end - x): x at weight 0, end at weight 1, exactly."""
    def less(self, y: _TensorLike) -> Tensor:
        """Whether x is less than y."""
    def less_equal(self, y: _TensorLike) -> Tensor:
        """Whether x is less or equal to y."""
    def log(self) -> Tensor:
        """The natural logarithm."""
    def log10(self) -> Tensor:
        """The logarithm to base 10."""
    def log1p(self) -> Tensor:
        """log(1 + x), exact near 0."""
    def log2(self) -> Tensor:
        """The logarithm to base 2."""
    def log_softmax(self, axis: int = -1) -> Tensor:
        """The logarithm of softmax, without going through it."""
    def logaddexp(self, y: _TensorLike) -> Tensor:
        """log(exp(x) + exp(y)), without the overflow. Two equal infinities share the gradient."""
    def logcumsumexp(self, axis: int) -> Tensor:
        """log(cumulative_sum(exp(x))) without overflow."""
    def logical_and(self, y: _TensorLike) -> Tensor:
        """Logical and, as bool: every number but 0 is true, NaN too."""
    def logical_not(self) -> Tensor:
        """Whether x is False or 0, as bool; NaN is not."""
    def logical_or(self, y: _TensorLike) -> Tensor:
        """Logical or, as bool: every number but 0 is true, NaN too."""
    def logical_xor(self, y: _TensorLike) -> Tensor:
        """Logical xor, as bool: every number but 0 is true, NaN too."""
    def logsigmoid(self) -> Tensor:
        """log(sigmoid(x)), without the underflow."""
    def logsumexp(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
    ) -> Tensor:
        """log(sum(exp(x))) without overflow."""
    @property
    def mT(self) -> Tensor:  # noqa: N802  # the Array API's name
        """The last two axes exchanged."""
    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        """x with one value wherever the mask is true."""
    def masked_scatter(self, mask: Tensor, source: Tensor) -> Tensor:
        """x with the elements where the mask is true replaced by those of `source`, in order."""
    def masked_select(self, mask: Tensor) -> Tensor:
        """The elements where the mask is true, as a vector; x and mask broadcast."""
    def matmul(self, y: Tensor) -> Tensor:
        """The matrix product. Vectors count as a row on the left and a column on the right;
        leading axes broadcast.
        """
    def matrix_transpose(self) -> Tensor:
        """The last two axes exchanged."""
    def max(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The largest element. NaN wins, 0.0 is above -0.0; equal largest elements share the
        gradient evenly.
        """
    def max_pool2d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """The largest element in each window. NaN wins; the gradient goes to the first largest."""
    def maximum(self, y: _TensorLike) -> Tensor:
        """The larger of x and y. NaN wins; a tie gives each side half the gradient."""
    def mean(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The arithmetic mean along the axes, or of all elements."""
    def median(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The element in the middle, of two the lower, as in PyTorch; NaN where there is a NaN."""
    def min(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The smallest element. NaN wins, -0.0 is below 0.0; equal smallest elements share the
        gradient evenly.
        """
    def minimum(self, y: _TensorLike) -> Tensor:
        """The smaller of x and y. NaN wins; a tie gives each side half the gradient."""
    def mish(self) -> Tensor:
        """x * tanh(softplus(x))."""
    def moveaxis(self, source: Any, destination: Any) -> Tensor:
        """Axes moved to other places, the rest keeping their order."""
    def msort(self) -> Tensor:
        """`sort` along the first axis."""
    def multiply(self, y: _TensorLike) -> Tensor:
        """The product x * y."""
    def nan_to_num(
        self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Tensor:
        """x with NaN and the infinities replaced, those by the dtype's largest and smallest
        number if nothing else is asked for. What is replaced has derivative 0; integers stay
        what they are.
        """
    def nanmax(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The largest element that is not NaN; NaN where there is none."""
    def nanmean(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The mean of all elements that are not NaN; NaN where there are none."""
    def nanmedian(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
    ) -> Tensor:
        """`median` of the elements that are not NaN; NaN where there are none."""
    def nanmin(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The smallest element that is not NaN; NaN where there is none."""
    def nanquantile(
        self,
        q: float | Sequence[float] | Tensor,
        axis: int | tuple[int, ...] | None = None,
        keepdims: bool = False,
        interpolation: str = "linear",
    ) -> Tensor:
        """`quantile` of the elements that are not NaN; NaN where there are none."""
    def nansum(
        self, axis: int | tuple[int, ...] | None = None, dtype: Any = None, keepdims: bool = False
    ) -> Tensor:
        """The sum of all elements that are not NaN."""
    def negative(self) -> Tensor:
        """-x."""
    def new_ones(self) -> Tensor:
        """Ones like x; the method form the engine uses, which knows no ops."""
    def nextafter(self, y: Any) -> Tensor:
        """The next number of the dtype after x towards y; y where they are equal. The derivative
        in x is 1.
        """
    def nonzero(self) -> tuple[Tensor, ...]:
        """The indices of the elements that are not 0, in C order: a vector for each axis."""
    def norm(
        self, p: Any = 2.0, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
    ) -> Tensor:
        """The p-norm of the elements along the axes as one vector: sum(|x|^p)^(1/p)."""
    def not_equal(self, y: _TensorLike) -> Tensor:
        """Whether x is not or equal to y."""
    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array that shares memory where it can, and cannot be written to."""
    def numpy_later(self) -> Later:
        """The values as a NumPy array that is on its way: its `result()` waits, this does not."""
    def outer(self, y: Tensor) -> Tensor:
        """Every product of an element of x and an element of y."""
    def pad(self, widths: Any, value: float = 0.0, mode: str = "constant") -> Tensor:
        """x with more around it: ((before, after), ...) for each axis, or one number."""
    def permute_dims(self, axes: Any = ..., *more: int) -> Tensor:
        """The axes in another order, a tuple or several numbers."""
    def positive(self) -> Tensor:
        """+x: the same value."""
    def pow(self, y: _TensorLike) -> Tensor:
        """x to the power y. Integers have no negative powers."""
    def prelu(self, weight: Tensor) -> Tensor:
        """x where it is positive, weight * x elsewhere: one weight, or one for each place on
        axis 1.
        """
    def prod(
        self, axis: int | tuple[int, ...] | None = None, dtype: Any = None, keepdims: bool = False
    ) -> Tensor:
        """The product along the axes, or of all elements."""
    def put(self, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
        """x with elements replaced, or added to; the index counts as if x were flat, and from
        the end where it is negative.
        """
    def quantile(
        self,
        q: float | Sequence[float] | Tensor,
        axis: int | tuple[int, ...] | None = None,
        keepdims: bool = False,
        interpolation: str = "linear",
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
    def repeat(
        self, repeats: int | Sequence[int] | Tensor, *more: int, axis: int | None = None
    ) -> Tensor:
        """Each element `repeats` times in a row along an axis, or flattened."""
    def repeat_interleave(
        self, repeats: int | Sequence[int] | Tensor, axis: int | None = None
    ) -> Tensor:
        """`repeat` under PyTorch's name."""
    def reshape(self, shape: Any = ..., *more: int, copy: bool | None = None) -> Tensor:
        """The same elements in another shape, a tuple or several numbers; one size may be -1."""
    def roll(self, shift: Any, axis: Any = None) -> Tensor:
        """Elements moved `shift` places along the axes, the last ones coming round to the front."""
    def rot90(self, k: int = 1, axes: Sequence[int] = ...) -> Tensor:
        """x rotated by k quarters of a circle, from the first axis towards the second."""
    def rotary_embedding(
        self, positions: Tensor | None = None, base: float = 10000.0, interleaved: bool = False
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
        source: Tensor | float,
        axis: int = 0,
        reduce: str | None = None,
        include_self: bool = True,
    ) -> Tensor:
        """x with source[i][j] put at [index[i][j]][j] for axis 0, and likewise for the others."""
    def scatter_add(self, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
        """x with source[i][j][k] added at [index[i][j][k]][j][k] for axis 0; likewise for
        others.
        """
    def searchsorted(self, values: Any, side: str = "left", sorter: Tensor | None = None) -> Tensor:
        """The index at which each value can be put into x, sorted along its last axis, and keep
        order.
        """
    def selu(self) -> Tensor:
        """The scaled elu that keeps mean 0 and variance 1 through many layers."""
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
    def softmax(self, axis: int = -1) -> Tensor:
        """exp(x) scaled to sum to 1 along the axis."""
    def softmin(self, axis: int = -1) -> Tensor:
        """exp(-x) scaled to sum to 1 along the axis."""
    def softplus(self) -> Tensor:
        """log(1 + exp(x))."""
    def softshrink(self, lambd: float = 0.5) -> Tensor:
        """x moved towards 0 by lambd, and 0 where that would cross it; NaN stays NaN."""
    def softsign(self) -> Tensor:
        """x / (1 + abs(x))."""
    def sort(self, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """The elements in order along an axis. The gradient goes back to where each came from."""
    def split(self, sizes: int | Sequence[int], axis: int = 0) -> list[Tensor]:
        """Parts of the given sizes along an axis; one number means parts of that size."""
    def sqrt(self) -> Tensor:
        """The square root."""
    def square(self) -> Tensor:
        """x * x."""
    def squeeze(self, axis: Any = None) -> Tensor:
        """Without the given axes, each of which must have size 1; without all that do, if none
        is given.
        """
    def std(
        self,
        axis: int | tuple[int, ...] | None = None,
        correction: float = 0.0,
        keepdims: bool = False,
    ) -> Tensor:
        """The standard deviation, the square root of `var`."""
    def subtract(self, y: _TensorLike) -> Tensor:
        """The difference x - y."""
    def sum(
        self, axis: int | tuple[int, ...] | None = None, dtype: Any = None, keepdims: bool = False
    ) -> Tensor:
        """The sum along the axes, or of all elements; integers are summed in 64 bits. It begins
        with 0.0: of -0.0 alone it is 0.0.
        """
    def sum_to(self, shape: Sequence[int]) -> Tensor:
        """x summed down to `shape`: the transpose of broadcasting."""
    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Two axes exchanged."""
    def take(self, indices: Tensor, axis: int | None = 0) -> Tensor:
        """The slices of x along an axis that the indices name, negative ones from the end, in
        their order and shape; with axis=None the elements, counted as if x were flat.
        """
    def take_along_axis(self, indices: Tensor, axis: int = -1) -> Tensor:
        """`gather` with the other axes broadcast; negative indices count from the end."""
    def tan(self) -> Tensor:
        """The tangent."""
    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
    def tanhshrink(self) -> Tensor:
        """x - tanh(x)."""
    def tensor_split(self, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
        """So many parts, the first ones larger by one where it must be; or parts that end at
        indices.
        """
    def threshold(self, threshold: float, value: float) -> Tensor:
        """x where it is above the threshold (or NaN), the value elsewhere."""
    def tile(self, repetitions: Sequence[int]) -> Tensor:
        """x laid side by side, so many times along each axis."""
    def to(self, device: Any = None, dtype: Any = None, *, non_blocking: bool = False) -> Tensor:
        """The same values on another device, or in another dtype, or both; or as another tensor
        has them.
        """
    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The Array API's name for a move to another device; devices here have one stream each."""
    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
    def topk(
        self, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
    ) -> ValuesAndIndices:
        """The k largest (or smallest) elements along an axis, and their indices."""
    def trapezoid(self, x: Tensor | None = None, dx: float = 1.0, axis: int = -1) -> Tensor:
        """The integral along an axis of the straight lines between samples y."""
    def tril(self, k: int = 0) -> Tensor:
        """The part on and below the k-th diagonal, zero above."""
    def triu(self, k: int = 0) -> Tensor:
        """The part on and above the k-th diagonal, zero below."""
    def trunc(self) -> Tensor:
        """The next integer towards 0. Integers stay what they are. The derivative is 0."""
    def unbind(self, axis: int = 0) -> tuple[Tensor, ...]:
        """`unstack` under PyTorch's name."""
    def unflatten(self, axis: int, sizes: Sequence[int]) -> Tensor:
        """x with one axis as several, of these sizes; one of them may be -1."""
    def unfold(self, axis: int, size: int, step: int = 1) -> Tensor:
        """All windows of `size` elements along an axis, `step` apart, as a last axis."""
    def unique(
        self,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        axis: int | None = None,
    ) -> Any:
        """The different elements, or slices along an axis, always in order; PyTorch's form."""
    def unstack(self, axis: int = 0) -> tuple[Tensor, ...]:
        """The slices along an axis, without it: `stack` undone."""
    def var(
        self,
        axis: int | tuple[int, ...] | None = None,
        correction: float = 0.0,
        keepdims: bool = False,
    ) -> Tensor:
        """The variance: squares of the distances from the mean, summed, over (count -
        correction).
        """
    def vecdot(self, y: Tensor, axis: int = -1) -> Tensor:
        """The sum of products along an axis of one size in both, x conjugated if complex."""
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

def refuse_lost_write(t: Tensor, op: str, cure: str) -> None:
    """Refuse to write to a view of a tensor that somebody still holds: it would not change."""

def _rows(x: Tensor) -> Iterator[Tensor]:
    """The rows, views of x unless this loop is the only one who holds it."""

def _one_loop() -> int:
    """What refcount says of an object that only a generator's local name holds."""

class _Elsewhere:
    """A method of PyTorch's that is none here: asking for it says what is. (A `__getattr__`
    would make every attribute of a tensor slower to reach.)
    """

    def __init__(self, name: str) -> None: ...
    def __get__(self, instance: Tensor | None, owner: type[Tensor]) -> Any: ...
