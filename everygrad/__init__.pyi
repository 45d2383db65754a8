# Made by `python -m everygrad.tools.stubs`: change the ops, not this file.

import builtins
from collections.abc import Sequence
from typing import Any

from everygrad import (
    autograd as autograd,
    dtypes as dtypes,
    errors as errors,
    io as io,
    nn as nn,
    optim as optim,
    tools as tools,
)
from everygrad.autograd.anomaly import find_nan as find_nan
from everygrad.autograd.api import leaf_ready_hook as leaf_ready_hook
from everygrad.autograd.autocast import autocast as autocast
from everygrad.autograd.batching import vmap as vmap
from everygrad.autograd.checkpoint import (
    checkpoint as checkpoint,
    checkpoint_sequential as checkpoint_sequential,
)
from everygrad.autograd.function import Function as Function
from everygrad.autograd.functional import (
    grad as grad,
    hessian as hessian,
    hvp as hvp,
    jacfwd as jacfwd,
    jacobian as jacobian,
    jvp as jvp,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from everygrad.autograd.gradcheck import gradcheck as gradcheck, gradgradcheck as gradgradcheck
from everygrad.autograd.modes import (
    detect_anomaly as detect_anomaly,
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    is_grad_enabled as is_grad_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from everygrad.config import (
    Config,
    get_matmul_precision as get_matmul_precision,
    set_matmul_precision as set_matmul_precision,
)
from everygrad.dtypes import DType
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
    tensor as tensor,
    zeros as zeros,
    zeros_like as zeros_like,
)
from everygrad.ops.random import (
    Generator as Generator,
    bernoulli as bernoulli,
    manual_seed as manual_seed,
    normal as normal,
    rand as rand,
    randint as randint,
    randn as randn,
    uniform as uniform,
)
from everygrad.tensor import Tensor as Tensor, _TensorLike
from everygrad.tracing.jit import jit as jit

bfloat16: DType
bool: DType
complex128: DType
complex64: DType
config: Config
default_generator: Generator
float16: DType
float32: DType
float64: DType
int16: DType
int32: DType
int64: DType
int8: DType
uint16: DType
uint32: DType
uint64: DType
uint8: DType

def abs(x: _TensorLike) -> Tensor:
    """The absolute value; 0 has derivative 0."""

def acos(x: _TensorLike) -> Tensor:
    """The angle in [0, pi] whose cosine is x."""

def acosh(x: _TensorLike) -> Tensor:
    """The inverse of cosh on x >= 1."""

def add(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The sum x + y."""

def all(
    x: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: builtins.bool = False
) -> Tensor:
    """Whether every element is true (not 0)."""

def any(
    x: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: builtins.bool = False
) -> Tensor:
    """Whether some element is true (not 0)."""

def argmax(x: Tensor, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """The index of the first largest element; of the first NaN if there is one."""

def argmin(x: Tensor, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """The index of the first smallest element; of the first NaN if there is one."""

def asin(x: _TensorLike) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x."""

def asinh(x: _TensorLike) -> Tensor:
    """The inverse of sinh."""

def astype(x: Tensor, dtype: Any, copy: builtins.bool = True) -> Tensor:
    """The elements converted to another dtype. Values never change, so `copy` changes nothing."""

def atan(x: _TensorLike) -> Tensor:
    """The angle in (-pi/2, pi/2) whose tangent is x."""

def atan2(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The angle of the point (y, x): the arc tangent of x / y in its quadrant."""

def atanh(x: _TensorLike) -> Tensor:
    """The inverse of tanh."""

def avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    count_include_pad: builtins.bool = True,
) -> Tensor:
    """The mean of each window; padding counts as zeros unless count_include_pad is False."""

def bitwise_and(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise and, for each element."""

def bitwise_invert(x: _TensorLike) -> Tensor:
    """Every bit turned over; for bool, logical not."""

def bitwise_left_shift(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise left shift, for each element."""

def bitwise_or(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise or, for each element."""

def bitwise_right_shift(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise right shift, for each element."""

def bitwise_xor(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise xor, for each element."""

def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x repeated, without copying, along axes of size 1 and new leading axes."""

def ceil(x: _TensorLike) -> Tensor:
    """The next integer above. The derivative is 0."""

def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x limited to [min, max]; the gradient is 1 at the bounds. Either bound may be left out."""

def clone(x: Tensor) -> Tensor:
    """The same value, connected to x. Nothing is copied: values never change."""

def concat(arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis they may differ in; axis=None joins them flattened."""

def conj(x: _TensorLike) -> Tensor:
    """The complex conjugate."""

def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Kernels (out channels, channels / groups, height, width) moved over images, plus a bias."""

def cos(x: _TensorLike) -> Tensor:
    """The cosine."""

def cosh(x: _TensorLike) -> Tensor:
    """The hyperbolic cosine."""

def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross entropy of logits x, classes along axis 1, with labels or class probabilities."""

def divide(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The quotient x / y; integers give floating point."""

def dropout(
    x: Tensor, p: float = 0.5, training: builtins.bool = True, generator: Generator | None = None
) -> Tensor:
    """Each element 0 with probability p, else scaled by 1 / (1 - p); x itself if not training."""

def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """The rows of the table `weight` that the indices name."""

def equal(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is equal to y."""

def erf(x: _TensorLike) -> Tensor:
    """The error function."""

def exp(x: _TensorLike) -> Tensor:
    """e to the power x."""

def exp2(x: _TensorLike) -> Tensor:
    """2 to the power x."""

def expand_dims(x: Tensor, axis: Any = 0) -> Tensor:
    """With new axes of size 1 at the given places of the result."""

def expm1(x: _TensorLike) -> Tensor:
    """exp(x) - 1, exact near 0."""

def flatten(x: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """The axes from start_axis to end_axis made one."""

def flip(x: Tensor, axis: Any = None) -> Tensor:
    """The order of the elements reversed along the given axes, or along all."""

def floor(x: _TensorLike) -> Tensor:
    """The next integer below. The derivative is 0."""

def floor_divide(x: _TensorLike, y: _TensorLike) -> Tensor:
    """x / y rounded towards minus infinity."""

def gather(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """out[i][j][k] = x[index[i][j][k]][j][k] for axis 0, and likewise for the others."""

def gelu(x: _TensorLike) -> Tensor:
    """x times the share of a standard normal below x."""

def greater(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is greater than y."""

def greater_equal(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is greater or equal to y."""

def imag(x: _TensorLike) -> Tensor:
    """The imaginary part."""

def index_add(x: Tensor, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
    """x with each slice of `source` added to the slice that its index names; repeats add up."""

def index_select(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """`take` with a vector of indices."""

def isfinite(x: _TensorLike) -> Tensor:
    """Whether each element is neither infinite nor NaN."""

def isinf(x: _TensorLike) -> Tensor:
    """Whether each element is infinite."""

def isnan(x: _TensorLike) -> Tensor:
    """Whether each element is NaN."""

def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """x standardised over its last axes, then scaled by weight and shifted by bias."""

def less(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is less than y."""

def less_equal(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is less or equal to y."""

def log(x: _TensorLike) -> Tensor:
    """The natural logarithm."""

def log10(x: _TensorLike) -> Tensor:
    """The logarithm to base 10."""

def log1p(x: _TensorLike) -> Tensor:
    """log(1 + x), exact near 0."""

def log2(x: _TensorLike) -> Tensor:
    """The logarithm to base 2."""

def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of softmax, without going through it."""

def logical_and(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Logical and of two bool tensors."""

def logical_not(x: _TensorLike) -> Tensor:
    """Whether x is False."""

def logical_or(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Logical or of two bool tensors."""

def logical_xor(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Logical xor of two bool tensors."""

def logsumexp(
    x: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: builtins.bool = False
) -> Tensor:
    """log(sum(exp(x))) without overflow."""

def matmul(x: Tensor, y: Tensor) -> Tensor:
    """The matrix product. Vectors count as a row on the left and a column on the right; leading
    axes broadcast.
    """

def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged."""

def max(
    x: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: builtins.bool = False
) -> Tensor:
    """The largest element. NaN wins; equal largest elements share the gradient evenly."""

def max_pool2d(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1
) -> Tensor:
    """The largest element in each window. NaN wins; the gradient goes to the first largest one."""

def maximum(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The larger of x and y. NaN wins; a tie gives each side half the gradient."""

def mean(
    x: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: builtins.bool = False
) -> Tensor:
    """The arithmetic mean along the axes, or of all elements."""

def min(
    x: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: builtins.bool = False
) -> Tensor:
    """The smallest element. NaN wins; equal smallest elements share the gradient evenly."""

def minimum(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The smaller of x and y. NaN wins; a tie gives each side half the gradient."""

def moveaxis(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Axes moved to other places, the rest keeping their order."""

def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squared difference, averaged, summed or as it is."""

def multiply(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The product x * y."""

def negative(x: _TensorLike) -> Tensor:
    """-x."""

def not_equal(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is not or equal to y."""

def outer(x: Tensor, y: Tensor) -> Tensor:
    """Every product of an element of x and an element of y."""

def pad(x: Tensor, widths: Any, value: float = 0.0) -> Tensor:
    """x with `value` added around it: ((before, after), ...) for each axis, or one number."""

def permute_dims(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The axes in another order."""

def positive(x: Tensor) -> Tensor:
    """+x: the same value."""

def pow(x: _TensorLike, y: _TensorLike) -> Tensor:
    """x to the power y. The derivative in y is 0 where x <= 0."""

def prod(
    x: Tensor,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The product along the axes, or of all elements."""

def real(x: _TensorLike) -> Tensor:
    """The real part."""

def reciprocal(x: _TensorLike) -> Tensor:
    """1 / x."""

def relu(x: _TensorLike) -> Tensor:
    """The larger of x and 0; NaN stays NaN. The derivative at 0 is 0."""

def remainder(x: _TensorLike, y: _TensorLike) -> Tensor:
    """x - y * floor(x / y): the remainder with the sign of y."""

def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The same elements in another shape; one size may be -1."""

def roll(x: Tensor, shift: Any, axis: Any = None) -> Tensor:
    """Elements moved `shift` places along the axes, the last ones coming round to the front."""

def round(x: _TensorLike) -> Tensor:
    """The nearest integer, halves to the even one. The derivative is 0."""

def rsqrt(x: _TensorLike) -> Tensor:
    """1 / sqrt(x)."""

def scatter_add(x: Tensor, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
    """x with source[i][j][k] added at [index[i][j][k]][j][k] for axis 0; likewise for others."""

def sigmoid(x: _TensorLike) -> Tensor:
    """1 / (1 + exp(-x))."""

def sign(x: _TensorLike) -> Tensor:
    """-1, 0 or 1; NaN stays NaN."""

def silu(x: _TensorLike) -> Tensor:
    """x * sigmoid(x)."""

def sin(x: _TensorLike) -> Tensor:
    """The sine."""

def sinh(x: _TensorLike) -> Tensor:
    """The hyperbolic sine."""

def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) scaled to sum to 1 along the axis."""

def softplus(x: _TensorLike) -> Tensor:
    """log(1 + exp(x))."""

def split(x: Tensor, sizes: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Parts of the given sizes along an axis; one number means parts of that size."""

def sqrt(x: _TensorLike) -> Tensor:
    """The square root."""

def square(x: _TensorLike) -> Tensor:
    """x * x."""

def squeeze(x: Tensor, axis: Any) -> Tensor:
    """Without the given axes, each of which must have size 1."""

def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis."""

def standardize(x: Tensor, axis: Any = -1, eps: float = 1e-05) -> Tensor:
    """x moved and scaled to mean 0 and variance 1 along the axes."""

def std(
    x: Tensor,
    axis: int | tuple[int, ...] | None = None,
    correction: float = 0.0,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The standard deviation, the square root of `var`."""

def subtract(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The difference x - y."""

def sum(
    x: Tensor,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The sum along the axes, or of all elements; integers are summed in 64 bits."""

def sum_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x summed down to `shape`: the transpose of broadcasting."""

def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged."""

def take(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """The slices of x along an axis that the indices name, in their order and shape."""

def take_along_axis(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """`gather` with the other axes broadcast against each other."""

def tan(x: _TensorLike) -> Tensor:
    """The tangent."""

def tanh(x: _TensorLike) -> Tensor:
    """The hyperbolic tangent."""

def to(x: Tensor, device: Any = None, dtype: Any = None) -> Tensor:
    """The same values on another device, or in another dtype, or both."""

def tril(x: Tensor, k: int = 0) -> Tensor:
    """The part on and below the k-th diagonal, zero above."""

def triu(x: Tensor, k: int = 0) -> Tensor:
    """The part on and above the k-th diagonal, zero below."""

def trunc(x: _TensorLike) -> Tensor:
    """The next integer towards 0. The derivative is 0."""

def var(
    x: Tensor,
    axis: int | tuple[int, ...] | None = None,
    correction: float = 0.0,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The variance: squares of the distances from the mean, summed, over (count - correction)."""

def vecdot(x: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """The sum of products along an axis, x conjugated if complex."""

def where(condition: _TensorLike, x: _TensorLike, y: _TensorLike) -> Tensor:
    """x where the condition holds, y elsewhere."""
