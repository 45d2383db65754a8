# Made by `python -m everygrad.tools.stubs`: change the ops, not this file.

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from everygrad.autograd.graph import HookHandle, Node
from everygrad.dtypes import DType
from everygrad.ops.conversion import Later
from everygrad.ops.random import Generator

_TensorLike: TypeAlias = Tensor | complex | np.ndarray[Any, Any] | np.generic

class Wrapped:
    """A payload made by a transformation: `level` says which, deeper ones have higher levels."""

    level: int
    transparent: bool
    plain: bool
    @property
    def inner(self) -> Tensor:
        """The tensor of the level below that holds the value."""
    def stopped(self) -> Any:
        """The payload of the same value without any derivative."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> str: ...
    def interpret(self, op: Any, payloads: list[Any], params: dict[str, Any]) -> Any:
        """The payload of `op` applied to `payloads`, of which this one has the highest level."""

class Tensor:
    """An n-dimensional array that remembers how it was made."""

    _data: Any
    _node: Node | None
    _grad: Tensor | None
    __array_ufunc__: None
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
    def rebind(self, payload: Any, node: Node | None) -> None:
        """Give this name another value. The only place where a Tensor changes."""
    def detach(self) -> Tensor:
        """The same value as a constant for every derivative; nothing is copied."""
    def retain_grad(self) -> None:
        """Keep this result's gradient in `.grad` too, as leaves do."""
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
    def __matmul__(self, other: _TensorLike, /) -> Tensor: ...
    def __rmatmul__(self, other: _TensorLike, /) -> Tensor: ...
    def __pow__(self, other: _TensorLike, /) -> Tensor: ...
    def __rpow__(self, other: _TensorLike, /) -> Tensor: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...
    def __dlpack__(self, **options: Any) -> Any: ...
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
    def __imatmul__(self, other: _TensorLike, /) -> Tensor: ...
    def __repr__(self) -> str: ...
    def __format__(self, spec: str) -> str: ...
    @property
    def T(self) -> Tensor:  # noqa: N802  # the Array API's name
        """The last two axes exchanged."""
    def abs(self) -> Tensor:
        """The absolute value; 0 has derivative 0."""
    def acos(self) -> Tensor:
        """The angle in [0, pi] whose cosine is x."""
    def acosh(self) -> Tensor:
        """The inverse of cosh on x >= 1."""
    def add(self, y: _TensorLike) -> Tensor:
        """The sum x + y."""
    def all(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """Whether every element is true (not 0)."""
    def any(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """Whether some element is true (not 0)."""
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first largest element; of the first NaN if there is one."""
    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first smallest element; of the first NaN if there is one."""
    def asin(self) -> Tensor:
        """The angle in [-pi/2, pi/2] whose sine is x."""
    def asinh(self) -> Tensor:
        """The inverse of sinh."""
    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """The elements converted to another dtype. Values never change, so `copy` changes
        nothing.
        """
    def atan(self) -> Tensor:
        """The angle in (-pi/2, pi/2) whose tangent is x."""
    def atan2(self, y: _TensorLike) -> Tensor:
        """The angle of the point (y, x): the arc tangent of x / y in its quadrant."""
    def atanh(self) -> Tensor:
        """The inverse of tanh."""
    def avg_pool2d(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
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
    def bitwise_and(self, y: _TensorLike) -> Tensor:
        """Bitwise and, for each element."""
    def bitwise_invert(self) -> Tensor:
        """Every bit turned over; for bool, logical not."""
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
    def ceil(self) -> Tensor:
        """The next integer above. The derivative is 0."""
    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        """x limited to [min, max]; the gradient is 1 at the bounds. Either bound may be left
        out.
        """
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
    ) -> Tensor:
        """Kernels (out channels, channels / groups, height, width) moved over images, plus a
        bias.
        """
    def cos(self) -> Tensor:
        """The cosine."""
    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
    def divide(self, y: _TensorLike) -> Tensor:
        """The quotient x / y; integers give floating point."""
    def dropout(
        self, p: float = 0.5, training: bool = True, generator: Generator | None = None
    ) -> Tensor:
        """Each element 0 with probability p, else scaled by 1 / (1 - p); x itself if not
        training.
        """
    def equal(self, y: _TensorLike) -> Tensor:
        """Whether x is equal to y."""
    def erf(self) -> Tensor:
        """The error function."""
    def exp(self) -> Tensor:
        """e to the power x."""
    def exp2(self) -> Tensor:
        """2 to the power x."""
    def expand(self, shape: Sequence[int]) -> Tensor:
        """x repeated, without copying, along axes of size 1 and new leading axes."""
    def expand_dims(self, axis: Any = 0) -> Tensor:
        """With new axes of size 1 at the given places of the result."""
    def expm1(self) -> Tensor:
        """exp(x) - 1, exact near 0."""
    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """The axes from start_axis to end_axis made one."""
    def flip(self, axis: Any = None) -> Tensor:
        """The order of the elements reversed along the given axes, or along all."""
    def floor(self) -> Tensor:
        """The next integer below. The derivative is 0."""
    def floor_divide(self, y: _TensorLike) -> Tensor:
        """x / y rounded towards minus infinity."""
    def gather(self, index: Tensor, axis: int = 0) -> Tensor:
        """out[i][j][k] = x[index[i][j][k]][j][k] for axis 0, and likewise for the others."""
    def gelu(self) -> Tensor:
        """x times the share of a standard normal below x."""
    def greater(self, y: _TensorLike) -> Tensor:
        """Whether x is greater than y."""
    def greater_equal(self, y: _TensorLike) -> Tensor:
        """Whether x is greater or equal to y."""
    def imag(self) -> Tensor:
        """The imaginary part."""
    def index_add(self, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
        """x with each slice of `source` added to the slice that its index names; repeats add up."""
    def index_select(self, index: Tensor, axis: int = 0) -> Tensor:
        """`take` with a vector of indices."""
    def isfinite(self) -> Tensor:
        """Whether each element is neither infinite nor NaN."""
    def isinf(self) -> Tensor:
        """Whether each element is infinite."""
    def isnan(self) -> Tensor:
        """Whether each element is NaN."""
    def item(self) -> Any:
        """The one element as a Python number."""
    def layer_norm(
        self,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-05,
    ) -> Tensor:
        """x standardised over its last axes, then scaled by weight and shifted by bias."""
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
    def logical_and(self, y: _TensorLike) -> Tensor:
        """Logical and of two bool tensors."""
    def logical_not(self) -> Tensor:
        """Whether x is False."""
    def logical_or(self, y: _TensorLike) -> Tensor:
        """Logical or of two bool tensors."""
    def logical_xor(self, y: _TensorLike) -> Tensor:
        """Logical xor of two bool tensors."""
    def logsumexp(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
    ) -> Tensor:
        """log(sum(exp(x))) without overflow."""
    @property
    def mT(self) -> Tensor:  # noqa: N802  # the Array API's name
        """The last two axes exchanged."""
    def matmul(self, y: Tensor) -> Tensor:
        """The matrix product. Vectors count as a row on the left and a column on the right;
        leading axes broadcast.
        """
    def matrix_transpose(self) -> Tensor:
        """The last two axes exchanged."""
    def max(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The largest element. NaN wins; equal largest elements share the gradient evenly."""
    def max_pool2d(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1
    ) -> Tensor:
        """The largest element in each window. NaN wins; the gradient goes to the first largest
        one.
        """
    def maximum(self, y: _TensorLike) -> Tensor:
        """The larger of x and y. NaN wins; a tie gives each side half the gradient."""
    def mean(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The arithmetic mean along the axes, or of all elements."""
    def min(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The smallest element. NaN wins; equal smallest elements share the gradient evenly."""
    def minimum(self, y: _TensorLike) -> Tensor:
        """The smaller of x and y. NaN wins; a tie gives each side half the gradient."""
    def moveaxis(self, source: Any, destination: Any) -> Tensor:
        """Axes moved to other places, the rest keeping their order."""
    def multiply(self, y: _TensorLike) -> Tensor:
        """The product x * y."""
    def negative(self) -> Tensor:
        """-x."""
    def new_ones(self) -> Tensor:
        """Ones like x; the method form the engine uses, which knows no ops."""
    def not_equal(self, y: _TensorLike) -> Tensor:
        """Whether x is not or equal to y."""
    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array that shares memory where it can, and cannot be written to."""
    def numpy_later(self) -> Later:
        """The values as a NumPy array that is on its way: its `result()` waits, this does not."""
    def outer(self, y: Tensor) -> Tensor:
        """Every product of an element of x and an element of y."""
    def pad(self, widths: Any, value: float = 0.0) -> Tensor:
        """x with `value` added around it: ((before, after), ...) for each axis, or one number."""
    def permute_dims(self, axes: Sequence[int]) -> Tensor:
        """The axes in another order."""
    def positive(self) -> Tensor:
        """+x: the same value."""
    def pow(self, y: _TensorLike) -> Tensor:
        """x to the power y. The derivative in y is 0 where x <= 0."""
    def prod(
        self, axis: int | tuple[int, ...] | None = None, dtype: Any = None, keepdims: bool = False
    ) -> Tensor:
        """The product along the axes, or of all elements."""
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
    def remainder(self, y: _TensorLike) -> Tensor:
        """x - y * floor(x / y): the remainder with the sign of y."""
    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one size may be -1."""
    def roll(self, shift: Any, axis: Any = None) -> Tensor:
        """Elements moved `shift` places along the axes, the last ones coming round to the front."""
    def round(self) -> Tensor:
        """The nearest integer, halves to the even one. The derivative is 0."""
    def rsqrt(self) -> Tensor:
        """1 / sqrt(x)."""
    def scatter_add(self, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
        """x with source[i][j][k] added at [index[i][j][k]][j][k] for axis 0; likewise for
        others.
        """
    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))."""
    def sign(self) -> Tensor:
        """-1, 0 or 1; NaN stays NaN."""
    def silu(self) -> Tensor:
        """x * sigmoid(x)."""
    def sin(self) -> Tensor:
        """The sine."""
    def sinh(self) -> Tensor:
        """The hyperbolic sine."""
    def softmax(self, axis: int = -1) -> Tensor:
        """exp(x) scaled to sum to 1 along the axis."""
    def softplus(self) -> Tensor:
        """log(1 + exp(x))."""
    def split(self, sizes: int | Sequence[int], axis: int = 0) -> list[Tensor]:
        """Parts of the given sizes along an axis; one number means parts of that size."""
    def sqrt(self) -> Tensor:
        """The square root."""
    def square(self) -> Tensor:
        """x * x."""
    def squeeze(self, axis: Any) -> Tensor:
        """Without the given axes, each of which must have size 1."""
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
        """The sum along the axes, or of all elements; integers are summed in 64 bits."""
    def sum_to(self, shape: Sequence[int]) -> Tensor:
        """x summed down to `shape`: the transpose of broadcasting."""
    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Two axes exchanged."""
    def take(self, indices: Tensor, axis: int = 0) -> Tensor:
        """The slices of x along an axis that the indices name, in their order and shape."""
    def take_along_axis(self, indices: Tensor, axis: int = -1) -> Tensor:
        """`gather` with the other axes broadcast against each other."""
    def tan(self) -> Tensor:
        """The tangent."""
    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
    def to(self, device: Any = None, dtype: Any = None) -> Tensor:
        """The same values on another device, or in another dtype, or both."""
    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
    def tril(self, k: int = 0) -> Tensor:
        """The part on and below the k-th diagonal, zero above."""
    def triu(self, k: int = 0) -> Tensor:
        """The part on and above the k-th diagonal, zero below."""
    def trunc(self) -> Tensor:
        """The next integer towards 0. The derivative is 0."""
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
        """The sum of products along an axis, x conjugated if complex."""

def shared(t: Tensor) -> Any:
    """The payload of `t`, to stand under another name too: a tracer must know whose it is."""

def wrap(payload: Any, node: Node | None = None) -> Tensor:
    """A Tensor around a payload."""
