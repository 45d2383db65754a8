# Made by `python -m devtools.stubs`: change the ops, not this file.

import builtins
from collections.abc import Sequence
from typing import Any

from everygrad import (
    amp as amp,
    autograd as autograd,
    cuda as cuda,
    data as data,
    distributed as distributed,
    distributions as distributions,
    dtypes as dtypes,
    errors as errors,
    fft as fft,
    io as io,
    linalg as linalg,
    models as models,
    nn as nn,
    optim as optim,
    special as special,
    tools as tools,
    training as training,
)
from everygrad._jit.jit import compile as compile, jit as jit
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
from everygrad.autograd.transforms.anomaly import find_nan as find_nan
from everygrad.autograd.transforms.checkpoint import (
    checkpoint as checkpoint,
    checkpoint_sequential as checkpoint_sequential,
)
from everygrad.autograd.transforms.function import Function as Function
from everygrad.autograd.transforms.functional import (
    grad as grad,
    hessian as hessian,
    hvp as hvp,
    jacfwd as jacfwd,
    jacobian as jacobian,
    jvp as jvp,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from everygrad.autograd.transforms.gradcheck import (
    gradcheck as gradcheck,
    gradgradcheck as gradgradcheck,
)
from everygrad.autograd.transforms.vmap import vmap as vmap
from everygrad.core.config import (
    Config,
    get_matmul_precision as get_matmul_precision,
    set_matmul_precision as set_matmul_precision,
)
from everygrad.core.tensor import Tensor as Tensor, _TensorLike
from everygrad.dtypes import (
    DType,
    can_cast as can_cast,
    finfo as finfo,
    iinfo as iinfo,
    isdtype as isdtype,
    result_type as result_type,
)
from everygrad.interop.jax import wrap_jax as wrap_jax
from everygrad.interop.torch.calls import from_torch as from_torch, to_torch as to_torch
from everygrad.io.checkpoints import load_latest as load_latest
from everygrad.io.loading import load as load
from everygrad.io.saving import save as save
from everygrad.nn.functional import embedding as embedding
from everygrad.ops.aliases.arithmetic import (
    clamp_max as clamp_max,
    clamp_min as clamp_min,
    complex as complex,
    dist as dist,
    div as div,
    dot as dot,
    float_power as float_power,
    frexp as frexp,
    gcd as gcd,
    inner as inner,
    isneginf as isneginf,
    isposinf as isposinf,
    isreal as isreal,
    lcm as lcm,
    ldexp as ldexp,
    logaddexp2 as logaddexp2,
    mvlgamma as mvlgamma,
    polar as polar,
    renorm as renorm,
    rsub as rsub,
    sub as sub,
    vdot as vdot,
)
from everygrad.ops.aliases.conversion import (
    resolve_conj as resolve_conj,
    resolve_neg as resolve_neg,
)
from everygrad.ops.aliases.indexing import (
    diagonal_scatter as diagonal_scatter,
    index_put as index_put,
    index_reduce as index_reduce,
    scatter_reduce as scatter_reduce,
    select_scatter as select_scatter,
    slice_scatter as slice_scatter,
    take_along_dim as take_along_dim,
)
from everygrad.ops.aliases.making import (
    BoolTensor as BoolTensor,
    ByteTensor as ByteTensor,
    CharTensor as CharTensor,
    DoubleTensor as DoubleTensor,
    FloatTensor as FloatTensor,
    HalfTensor as HalfTensor,
    IntTensor as IntTensor,
    LongTensor as LongTensor,
    ShortTensor as ShortTensor,
    as_tensor as as_tensor,
    broadcast_tensors as broadcast_tensors,
    copy as copy,
    fill as fill,
    from_numpy as from_numpy,
    frombuffer as frombuffer,
    get_rng_state as get_rng_state,
    initial_seed as initial_seed,
    randint_like as randint_like,
    randperm as randperm,
    range as range,
    scalar_tensor as scalar_tensor,
    seed as seed,
    set_rng_state as set_rng_state,
)
from everygrad.ops.aliases.matrices import (
    addbmm as addbmm,
    addmm as addmm,
    addmv as addmv,
    addr as addr,
    adjoint as adjoint,
    baddbmm as baddbmm,
    chain_matmul as chain_matmul,
    cholesky_inverse as cholesky_inverse,
    cross as cross,
    frobenius_norm as frobenius_norm,
    logdet as logdet,
    nuclear_norm as nuclear_norm,
    trace as trace,
)
from everygrad.ops.aliases.queries import (
    get_default_dtype as get_default_dtype,
    get_device as get_device,
    is_complex as is_complex,
    is_conj as is_conj,
    is_floating_point as is_floating_point,
    is_inference as is_inference,
    is_neg as is_neg,
    is_nonzero as is_nonzero,
    is_same_size as is_same_size,
    is_signed as is_signed,
    is_tensor as is_tensor,
    numel as numel,
    promote_types as promote_types,
)
from everygrad.ops.aliases.settings import (
    Size as Size,
    channels_last as channels_last,
    channels_last_3d as channels_last_3d,
    contiguous_format as contiguous_format,
    device as device,
    is_anomaly_enabled as is_anomaly_enabled,
    is_autocast_enabled as is_autocast_enabled,
    is_inference_mode_enabled as is_inference_mode_enabled,
    preserve_format as preserve_format,
    strided as strided,
    typename as typename,
    use_deterministic_algorithms as use_deterministic_algorithms,
)
from everygrad.ops.aliases.shaping import (
    column_stack as column_stack,
    combinations as combinations,
    diagflat as diagflat,
    dsplit as dsplit,
    fliplr as fliplr,
    flipud as flipud,
    hsplit as hsplit,
    narrow as narrow,
    narrow_copy as narrow_copy,
    select as select,
    split_with_sizes as split_with_sizes,
    swapdims as swapdims,
    t as t,
    transpose as transpose,
    unravel_index as unravel_index,
    unsafe_split_with_sizes as unsafe_split_with_sizes,
    view_as_complex as view_as_complex,
    view_as_real as view_as_real,
    vsplit as vsplit,
)
from everygrad.ops.aliases.statistics import (
    cumulative_trapezoid as cumulative_trapezoid,
    gradient as gradient,
    histc as histc,
    mode as mode,
    unique_consecutive as unique_consecutive,
)
from everygrad.ops.elementwise.comparison import allclose as allclose
from everygrad.ops.index.search import Histogram
from everygrad.ops.index.unique import UniqueAll, UniqueCounts, UniqueInverse
from everygrad.ops.python.creation import (
    arange as arange,
    asarray as asarray,
    empty as empty,
    empty_like as empty_like,
    eye as eye,
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
from everygrad.ops.python.dlpack import from_dlpack as from_dlpack
from everygrad.ops.python.namespace_info import __array_namespace_info__ as __array_namespace_info__
from everygrad.ops.random.continuous import (
    beta as beta,
    dirichlet as dirichlet,
    exponential as exponential,
    gamma as gamma,
)
from everygrad.ops.random.discrete import (
    binomial as binomial,
    categorical as categorical,
    gumbel_softmax as gumbel_softmax,
    multinomial as multinomial,
    permutation as permutation,
    poisson as poisson,
)
from everygrad.ops.random.generators import (
    Generator as Generator,
    _DefaultGenerator,
    bernoulli as bernoulli,
    manual_seed as manual_seed,
    normal as normal,
    rand as rand,
    rand_like as rand_like,
    randint as randint,
    randn as randn,
    randn_like as randn_like,
    uniform as uniform,
)
from everygrad.ops.record.torch_calls import ValuesAndIndices
from everygrad.ops.shape.builders import (
    broadcast_shapes as broadcast_shapes,
    logspace as logspace,
    tril_indices as tril_indices,
    triu_indices as triu_indices,
)
from everygrad.ops.signal.stft import istft as istft, stft as stft
from everygrad.ops.signal.window_functions import (
    bartlett_window as bartlett_window,
    blackman_window as blackman_window,
    hamming_window as hamming_window,
    hann_window as hann_window,
    kaiser_window as kaiser_window,
)

__array_api_version__: str
__version__: str
bfloat16: DType
bool: DType
complex128: DType
complex64: DType
config: Config
default_generator: _DefaultGenerator
e: builtins.float
float16: DType
float32: DType
float64: DType
inf: builtins.float
int16: DType
int32: DType
int64: DType
int8: DType
nan: builtins.float
newaxis: None
pi: builtins.float
uint16: DType
uint32: DType
uint64: DType
uint8: DType
cdouble: DType
cfloat: DType
double: DType
float: DType
half: DType
int: DType
long: DType
short: DType

def abs(x: _TensorLike) -> Tensor:
    """The absolute value; 0 has derivative 0."""

def acos(x: _TensorLike) -> Tensor:
    """The angle in [0, pi] whose cosine is x."""

def acosh(x: _TensorLike) -> Tensor:
    """The inverse of cosh on x >= 1."""

def adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Tensor:
    """The mean of each of `output_size` windows that cover every axis about evenly."""

def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """The mean of each of `output_size` windows that cover every axis about evenly."""

def adaptive_avg_pool3d(x: Tensor, output_size: Any) -> Tensor:
    """The mean of each of `output_size` windows that cover every axis about evenly."""

def adaptive_max_pool1d(x: Tensor, output_size: Any, return_indices: builtins.bool = False) -> Any:
    """The largest element of each of `output_size` windows that cover an axis about evenly."""

def adaptive_max_pool2d(x: Tensor, output_size: Any, return_indices: builtins.bool = False) -> Any:
    """The largest element of each of `output_size` windows that cover an axis about evenly."""

def adaptive_max_pool3d(x: Tensor, output_size: Any, return_indices: builtins.bool = False) -> Any:
    """The largest element of each of `output_size` windows that cover an axis about evenly."""

def add(x: _TensorLike, y: _TensorLike, *, alpha: _TensorLike = 1) -> Tensor:
    """The sum x + y."""

def addcdiv(x: Tensor, y: Any, z: Any, value: builtins.float = 1) -> Tensor:
    """x + value * (y / z), of floating point alone."""

def addcmul(x: Tensor, y: Any, z: Any, value: builtins.float = 1) -> Tensor:
    """x + value * y * z."""

def affine_grid(
    theta: Tensor, size: Sequence[builtins.int], align_corners: builtins.bool = False
) -> Tensor:
    """The grid for `grid_sample` that moves every place of `size` by the matrices theta."""

def all(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """Whether every element is true (not 0)."""

def amax(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """`max` under PyTorch's name: NaN wins, equal elements share the gradient evenly."""

def amin(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """`min` under PyTorch's name: NaN wins, equal elements share the gradient evenly."""

def aminmax(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element along the axes, as `amin` and `amax` give them."""

def angle(x: Tensor) -> Tensor:
    """The angle of a complex number, from -pi to pi; of a real one 0 or, where it is negative,
    pi. NaN stays NaN.
    """

def any(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """Whether some element is true (not 0)."""

def argmax(
    x: Tensor,
    axis: builtins.int | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The index of the first largest element; of the first NaN if there is one."""

def argmin(
    x: Tensor,
    axis: builtins.int | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The index of the first smallest element; of the first NaN if there is one."""

def argsort(
    x: Tensor,
    axis: builtins.int = -1,
    descending: builtins.bool = False,
    stable: builtins.bool = True,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """The indices that sort x along an axis. Always stable; NaN counts as the largest."""

def argwhere(x: Tensor) -> Tensor:
    """The indices of the elements that are not 0, in C order: a row for each element."""

def asin(x: _TensorLike) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x."""

def asinh(x: _TensorLike) -> Tensor:
    """The inverse of sinh."""

def astype(x: Tensor, dtype: Any, copy: builtins.bool = True, device: Any = None) -> Tensor:
    """The elements converted to another dtype, and moved to `device` if one is named."""

def atan(x: _TensorLike) -> Tensor:
    """The angle in (-pi/2, pi/2) whose tangent is x."""

def atan2(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The angle of the point (y, x): the arc tangent of x / y in its quadrant."""

def atanh(x: _TensorLike) -> Tensor:
    """The inverse of tanh."""

def atleast_1d(*tensors: Tensor) -> Any:
    """With one axis at least; a tuple where several are given."""

def atleast_2d(*tensors: Tensor) -> Any:
    """With two axes at least, a vector as a row; a tuple where several are given."""

def atleast_3d(*tensors: Tensor) -> Any:
    """With three axes at least, a matrix as the first two; a tuple where several are given."""

def avg_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: builtins.bool = False,
    count_include_pad: builtins.bool = True,
    divisor_override: builtins.int | None = None,
) -> Tensor:
    """The mean of each window; padding counts as zeros unless count_include_pad is False."""

def avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: builtins.bool = False,
    count_include_pad: builtins.bool = True,
    divisor_override: builtins.int | None = None,
) -> Tensor:
    """The mean of each window; padding counts as zeros unless count_include_pad is False."""

def avg_pool3d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: builtins.bool = False,
    count_include_pad: builtins.bool = True,
    divisor_override: builtins.int | None = None,
) -> Tensor:
    """The mean of each window; padding counts as zeros unless count_include_pad is False."""

def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: builtins.bool = False,
    momentum: builtins.float | Tensor = 0.1,
    eps: builtins.float = 1e-05,
) -> Tensor:
    """x, channels along axis 1, standardised over all other axes, then scaled and shifted."""

def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(target log(x) + (1 - target) log(1 - x)) of probabilities x in [0, 1]."""

def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """The cross entropy of target with sigmoid(x), without overflow; positives by `pos_weight`."""

def bincount(x: Tensor, weights: Tensor | None = None, minlength: builtins.int = 0) -> Tensor:
    """How often each number from 0 on is in x, or the sum of the weights that stand beside it."""

def bitwise_and(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise and, for each element."""

def bitwise_invert(x: _TensorLike) -> Tensor:
    """Every bit inverted; for bool, logical not."""

def bitwise_left_shift(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise left shift, for each element."""

def bitwise_or(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise or, for each element."""

def bitwise_right_shift(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise right shift, for each element."""

def bitwise_xor(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Bitwise xor, for each element."""

def block_diag(*blocks: Tensor) -> Tensor:
    """A matrix with these along its diagonal, and 0 elsewhere; a vector is a row."""

def broadcast_arrays(*arrays: Tensor, tensors: Tensor = ...) -> list[Tensor]:
    """The tensors, each repeated without copying to the shape they have together."""

def broadcast_to(
    x: Tensor, shape: Sequence[builtins.int] = ..., *, size: Sequence[builtins.int] = ...
) -> Tensor:
    """x repeated, without copying, along axes of size 1 and new leading axes."""

def bucketize(
    x: Any, boundaries: Tensor, right: builtins.bool = False, *, out_int32: builtins.bool = False
) -> Tensor:
    """The number of the bucket of each element: boundaries[i - 1] < x <= boundaries[i]."""

def cartesian_prod(*vectors: Tensor) -> Tensor:
    """(count, vectors): every choice of one element of each, the last changing fastest."""

def cbrt(x: _TensorLike) -> Tensor:
    """The cube root, negative of negative numbers. The derivative at 0 is infinite."""

def cdist(x: Tensor, y: Tensor, p: builtins.float = 2.0, compute_mode: str | None = None) -> Tensor:
    """(..., n, m): the p-norm of the difference of each vector of x (..., n, size) and each of y
    (..., m, size). The derivative is 0 where they are the same. PyTorch's `compute_mode` chooses
    nothing here: differences are always taken.
    """

def ceil(x: _TensorLike) -> Tensor:
    """The next integer above. Integers stay what they are. The derivative is 0."""

def celu(x: Tensor, alpha: builtins.float = 1.0) -> Tensor:
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere: smooth for every alpha."""

def channel_shuffle(x: Tensor, groups: builtins.int) -> Tensor:
    """The channels along axis 1 dealt out: the first of each group, then the second of each."""

def chunk(
    x: Tensor,
    chunks: builtins.int,
    axis: builtins.int = 0,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> list[Tensor]:
    """Parts of equal size, the last perhaps smaller: at most `chunks`, fewer where fewer do."""

def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x limited to [min, max]; the gradient is 1 at the bounds. Either bound may be left out."""

def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x limited to [min, max], in the dtype of x; the gradient is 1 at the bounds."""

def clone(x: Tensor) -> Tensor:
    """The same value, connected to x. Nothing is copied: values never change."""

def col2im(
    x: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Tensor:
    """Columns (batch, channels * window, places) added up to images: the transpose of `im2col`."""

def concat(
    arrays: Sequence[Tensor] = ...,
    axis: builtins.int | None = 0,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
    tensors: Sequence[Tensor] = ...,
) -> Tensor:
    """Tensors joined along an axis they may differ in; axis=None joins them flattened."""

def conj(x: _TensorLike) -> Tensor:
    """The complex conjugate."""

def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: builtins.int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Kernels (out channels, channels / groups, length) moved over lines, plus a bias."""

def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: builtins.int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Kernels (out channels, channels / groups, height, width) moved over images, plus a bias."""

def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: builtins.int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Kernels (out channels, channels / groups, depth, height, width) moved over volumes."""

def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: builtins.int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Each element of the input times a kernel, added up where the kernels overlap, plus a bias."""

def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: builtins.int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Each element of the input times a kernel, added up where the kernels overlap, plus a bias."""

def conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: builtins.int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Each element of the input times a kernel, added up where the kernels overlap, plus a bias."""

def copysign(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The size of x with the sign of y, which may be that of -0.0. 0 has derivative 0."""

def corrcoef(x: Tensor) -> Tensor:
    """The correlations of variables, the rows of x, as a matrix; real ones within -1 and 1."""

def cos(x: _TensorLike) -> Tensor:
    """The cosine."""

def cosh(x: _TensorLike) -> Tensor:
    """The hyperbolic cosine."""

def cosine_embedding_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: builtins.float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - the cosine of x1 and x2 where target is 1; where it is -1, what is above `margin`."""

def cosine_similarity(
    x1: Tensor,
    x2: Tensor,
    axis: builtins.int = 1,
    eps: builtins.float = 1e-08,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """The cosine of the angle between vectors along the axis; x1 and x2 broadcast."""

def count_nonzero(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """How many elements are not 0; NaN is not."""

def cov(x: Tensor, correction: builtins.int = 1, *, unbiased: builtins.int = ...) -> Tensor:
    """The covariances of variables, the rows of x, as a matrix; of one variable its variance."""

def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: builtins.int = -100,
    reduction: str = "mean",
    label_smoothing: builtins.float = 0.0,
) -> Tensor:
    """The cross entropy of logits x, classes along axis 1, with labels or class probabilities."""

def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: builtins.int = 0,
    reduction: str = "mean",
    zero_infinity: builtins.bool = False,
) -> Tensor:
    """Minus the logarithm of the probability of each label sequence, by any alignment."""

def cummax(
    x: Tensor,
    axis: builtins.int | None = None,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> ValuesAndIndices:
    """The largest element so far, and its index: the last one of several. NaN wins."""

def cummin(
    x: Tensor,
    axis: builtins.int | None = None,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> ValuesAndIndices:
    """The smallest element so far, and its index: the last one of several. NaN wins."""

def cumprod(
    x: Tensor,
    axis: builtins.int | None = None,
    dtype: Any = None,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Tensor:
    """`cumulative_prod` under PyTorch's name."""

def cumsum(
    x: Tensor,
    axis: builtins.int | None = None,
    dtype: Any = None,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Tensor:
    """`cumulative_sum` under PyTorch's name."""

def cumulative_prod(
    x: Tensor,
    axis: builtins.int | None = None,
    dtype: Any = None,
    include_initial: builtins.bool = False,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Tensor:
    """The products of the elements up to each. The derivative is right where elements are 0."""

def cumulative_sum(
    x: Tensor,
    axis: builtins.int | None = None,
    dtype: Any = None,
    include_initial: builtins.bool = False,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Tensor:
    """The sums of the elements up to each; integers are summed in 64 bits."""

def deg2rad(x: _TensorLike) -> Tensor:
    """An angle in degrees as radians."""

def diag(x: Tensor, offset: builtins.int = 0, *, diagonal: builtins.int = ...) -> Tensor:
    """A matrix with the vector x on a diagonal, or the diagonal of the matrix x."""

def diag_embed(
    x: Tensor,
    offset: builtins.int = 0,
    axis1: builtins.int = -2,
    axis2: builtins.int = -1,
    *,
    dim1: builtins.int = ...,
    dim2: builtins.int = ...,
    diagonal: builtins.int = ...,
) -> Tensor:
    """The last axis put on a diagonal of two new axes, zero elsewhere: `diagonal` undone."""

def diagonal(
    x: Tensor,
    offset: builtins.int = 0,
    axis1: builtins.int = 0,
    axis2: builtins.int = 1,
    *,
    dim1: builtins.int = ...,
    dim2: builtins.int = ...,
    diagonal: builtins.int = ...,
) -> Tensor:
    """The elements on a diagonal of two axes, as a last axis. A positive offset lies above."""

def diff(
    x: Tensor,
    n: builtins.int = 1,
    axis: builtins.int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """The differences between neighbours along an axis, n times over."""

def divide(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The quotient x / y; integers give floating point."""

def dropout(
    x: Tensor,
    p: builtins.float = 0.5,
    training: builtins.bool = True,
    generator: Generator | None = None,
) -> Tensor:
    """Each element 0 with probability p, else scaled by 1 / (1 - p); x itself if not training."""

def dstack(arrays: Sequence[Tensor] = ..., *, tensors: Sequence[Tensor] = ...) -> Tensor:
    """Tensors joined along the third axis, after `atleast_3d`."""

def einsum(equation: str, *operands_: Tensor | Sequence[Tensor]) -> Tensor:
    """The sum of products that the equation says, in Einstein's convention: "bij,bjk->bik".
    Letters that are not in the result are summed over, "..." stands for any axes, which
    broadcast. Several operands, which may be one list, are multiplied two at a time, in the
    cheapest order for few, a good one for many.
    """

def elu(x: Tensor, alpha: builtins.float = 1.0) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

def equal(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is equal to y."""

def erf(x: _TensorLike) -> Tensor:
    """The error function."""

def exp(x: _TensorLike) -> Tensor:
    """e to the power x."""

def exp2(x: _TensorLike) -> Tensor:
    """2 to the power x."""

def expand(x: Tensor, shape: Any = ..., *more: builtins.int, size: Any = ...) -> Tensor:
    """`broadcast_to`, the sizes in a tuple or as several numbers, where -1 keeps an axis as it
    is.
    """

def expand_dims(x: Tensor, axis: Any = 0, *, dim: Any = ..., dims: Any = ...) -> Tensor:
    """With new axes of size 1 at the given places of the result."""

def expm1(x: _TensorLike) -> Tensor:
    """exp(x) - 1, exact near 0."""

def flatten(
    x: Tensor,
    start_axis: builtins.int = 0,
    end_axis: builtins.int = -1,
    *,
    start_dim: builtins.int = ...,
    end_dim: builtins.int = ...,
) -> Tensor:
    """The axes from start_axis to end_axis made one."""

def flip(
    x: Tensor, axis: Any = None, *more: builtins.int, dim: Any = ..., dims: Any = ...
) -> Tensor:
    """The order of the elements reversed along the given axes, a tuple or several numbers, or
    along all.
    """

def floor(x: _TensorLike) -> Tensor:
    """The next integer below. Integers stay what they are. The derivative is 0."""

def floor_divide(x: _TensorLike, y: _TensorLike) -> Tensor:
    """x / y rounded towards minus infinity."""

def fmax(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The larger of x and y, NaN only where both are; a tie gives each side half the gradient."""

def fmin(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The smaller of x and y, NaN only where both are; a tie gives each side half the gradient."""

def fmod(x: _TensorLike, y: _TensorLike) -> Tensor:
    """x - y * trunc(x / y): the remainder with the sign of x."""

def frac(x: _TensorLike) -> Tensor:
    """x - trunc(x): what stands behind the point, with the sign of x."""

def gather(
    x: Tensor,
    index: Tensor,
    axis: builtins.int = 0,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """out[i][j][k] = x[index[i][j][k]][j][k] for axis 0, and likewise for the others."""

def gaussian_nll_loss(
    x: Tensor,
    target: Tensor,
    var: Any,
    full: builtins.bool = False,
    eps: builtins.float = 1e-06,
    reduction: str = "mean",
) -> Tensor:
    """(log(var) + (x - target)^2 / var) / 2: target under normals of mean x and variance `var`."""

def gelu(x: _TensorLike, approximate: str = "none") -> Tensor:
    """x times the share of a standard normal below x; "tanh" gives the older approximation."""

def gelu_tanh(x: _TensorLike) -> Tensor:
    """gelu by its older approximation with tanh."""

def glu(
    x: Tensor, axis: builtins.int = -1, *, dim: builtins.int = ..., dims: builtins.int = ...
) -> Tensor:
    """The first half of x along the axis times the sigmoid of the second."""

def greater(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is greater than y."""

def greater_equal(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is greater or equal to y."""

def grid_sample(
    x: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: builtins.bool = False,
) -> Tensor:
    """x (n, c, places...) read where the grid (n, places of the result..., axes) says."""

def group_norm(
    x: Tensor,
    num_groups: builtins.int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: builtins.float = 1e-05,
) -> Tensor:
    """Each group of channels of each example standardised, then scaled and shifted by channel."""

def hardshrink(x: Tensor, lambd: builtins.float = 0.5) -> Tensor:
    """x, and 0 where abs(x) <= lambd; NaN stays NaN."""

def hardsigmoid(x: _TensorLike) -> Tensor:
    """(x + 3) / 6 limited to [0, 1]. The derivative at -3 and at 3 is 0."""

def hardswish(x: _TensorLike) -> Tensor:
    """x * hardsigmoid(x)."""

def hardtanh(x: Tensor, min_val: builtins.float = -1.0, max_val: builtins.float = 1.0) -> Tensor:
    """x limited to [min_val, max_val]; unlike that of clamp, the derivative at the bounds is 0."""

def heaviside(x: Tensor, y: Any) -> Tensor:
    """0 below 0, 1 above it, y at 0; NaN stays NaN. It carries no derivative."""

def hinge_embedding_loss(
    x: Tensor, target: Tensor, margin: builtins.float = 1.0, reduction: str = "mean"
) -> Tensor:
    """x where target is 1, max(0, margin - x) where it is -1: distances of what is alike or not."""

def histogram(
    x: Tensor,
    bins: builtins.int | Sequence[builtins.float] | Tensor = 10,
    weights: Tensor | None = None,
    range: tuple[builtins.float, builtins.float] | None = None,
    density: builtins.bool = False,
) -> Histogram:
    """How many elements lie in each bin, in x's dtype, and the edges of the bins."""

def hstack(arrays: Sequence[Tensor] = ..., *, tensors: Sequence[Tensor] = ...) -> Tensor:
    """Tensors joined along the second axis, vectors along their only one."""

def huber_loss(
    x: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: builtins.float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Half the squared difference; beyond delta it goes on as a line. `weight` has a factor for
    each element: as in PyTorch, a mean is that of the products.
    """

def hypot(x: _TensorLike, y: _TensorLike) -> Tensor:
    """sqrt(x * x + y * y), without overflow on the way. The derivative at (0, 0) is 0."""

def im2col(
    x: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """What each place of a window sees: (batch, channels * height * width of the window,
    places).
    """

def imag(x: _TensorLike) -> Tensor:
    """The imaginary part."""

def index_add(
    x: Tensor,
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
    x: Tensor,
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
    x: Tensor,
    index: Tensor,
    value: Any,
    axis: builtins.int = 0,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """x with the slices that the index names filled with one value."""

def index_select(
    x: Tensor,
    index: Tensor,
    axis: builtins.int = 0,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """`take` with a vector of indices, none of them negative."""

def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: builtins.bool = True,
    momentum: builtins.float | Tensor = 0.1,
    eps: builtins.float = 1e-05,
) -> Tensor:
    """Each channel of each example standardised over its places, then scaled and shifted."""

def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: builtins.bool | None = None,
    recompute_scale_factor: builtins.bool = False,
    antialias: builtins.bool = False,
) -> Tensor:
    """x (batch, channels, places...) resized to `size`, or by `scale_factor`."""

def isclose(
    x: Tensor,
    y: Any,
    rtol: builtins.float = 1e-05,
    atol: builtins.float = 1e-08,
    equal_nan: builtins.bool = False,
) -> Tensor:
    """Whether |x - y| <= atol + rtol |y|. Infinities are close to themselves alone; NaN to none,
    or to NaN if `equal_nan`.
    """

def isfinite(x: _TensorLike) -> Tensor:
    """Whether each element is neither infinite nor NaN."""

def isin(x: Any, test_elements: Any, invert: builtins.bool = False) -> Tensor:
    """Whether each element of x is among `test_elements` (or is not); NaN never is."""

def isinf(x: _TensorLike) -> Tensor:
    """Whether each element is infinite."""

def isnan(x: _TensorLike) -> Tensor:
    """Whether each element is NaN."""

def kl_div(
    x: Tensor, target: Tensor, reduction: str = "mean", log_target: builtins.bool = False
) -> Tensor:
    """target (log(target) - x): how far x, logarithms of probabilities, is from target."""

def kron(x: Tensor, y: Tensor) -> Tensor:
    """Every element of x times all of y, as blocks: the Kronecker product."""

def kthvalue(
    x: Tensor,
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

def l1_loss(
    x: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The absolute difference, averaged, summed or as it is; its slope at 0 is 0. `weight` has
    one for each element.
    """

def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[builtins.int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: builtins.float = 1e-05,
) -> Tensor:
    """x standardised over its last axes, then scaled by weight and shifted by bias."""

def leaky_relu(x: Tensor, negative_slope: builtins.float = 0.01) -> Tensor:
    """x where it is positive, negative_slope * x elsewhere; at 0 the derivative is the slope."""

def lerp(x: _TensorLike, end: _TensorLike, weight: _TensorLike) -> Tensor:
    """x + weight * (end - x): x at weight 0, end at weight 1, exactly."""

def less(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is less than y."""

def less_equal(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is less or equal to y."""

def local_response_norm(
    x: Tensor,
    size: builtins.int,
    alpha: builtins.float = 0.0001,
    beta: builtins.float = 0.75,
    k: builtins.float = 1.0,
    *,
    diagonal: builtins.float = ...,
) -> Tensor:
    """x / (k + alpha m) ** beta, m being the mean of the squares of `size` neighbouring
    channels.
    """

def log(x: _TensorLike) -> Tensor:
    """The natural logarithm."""

def log10(x: _TensorLike) -> Tensor:
    """The logarithm to base 10."""

def log1p(x: _TensorLike) -> Tensor:
    """log(1 + x), exact near 0."""

def log2(x: _TensorLike) -> Tensor:
    """The logarithm to base 2."""

def log_softmax(
    x: Tensor, axis: builtins.int = -1, *, dim: builtins.int = ..., dims: builtins.int = ...
) -> Tensor:
    """The logarithm of softmax, without going through it."""

def logaddexp(x: _TensorLike, y: _TensorLike) -> Tensor:
    """log(exp(x) + exp(y)), without the overflow. Two equal infinities share the gradient."""

def logcumsumexp(
    x: Tensor,
    axis: builtins.int | None = None,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Tensor:
    """log(cumulative_sum(exp(x))) without overflow."""

def logical_and(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Logical and, as bool: every number but 0 is true, NaN too."""

def logical_not(x: _TensorLike) -> Tensor:
    """Whether x is False or 0, as bool; NaN is not."""

def logical_or(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Logical or, as bool: every number but 0 is true, NaN too."""

def logical_xor(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Logical xor, as bool: every number but 0 is true, NaN too."""

def logsigmoid(x: _TensorLike) -> Tensor:
    """log(sigmoid(x)), without the underflow."""

def logsumexp(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """log(sum(exp(x))) without overflow."""

def lp_pool1d(
    x: Tensor,
    norm_type: builtins.float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: builtins.bool = False,
) -> Tensor:
    """The p-th root of the sum of p-th powers in each window, p being `norm_type`."""

def lp_pool2d(
    x: Tensor,
    norm_type: builtins.float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: builtins.bool = False,
) -> Tensor:
    """The p-th root of the sum of p-th powers in each window, p being `norm_type`."""

def lp_pool3d(
    x: Tensor,
    norm_type: builtins.float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: builtins.bool = False,
) -> Tensor:
    """The p-th root of the sum of p-th powers in each window, p being `norm_type`."""

def margin_ranking_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: builtins.float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, -target (x1 - x2) + margin): 1 asks that x1 is the larger, -1 that x2 is."""

def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """x with one value wherever the mask is true."""

def masked_scatter(x: Tensor, mask: Tensor, source: Tensor = ..., *, src: Tensor = ...) -> Tensor:
    """x with the elements where the mask is true replaced by those of `source`, in order."""

def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is true, as a vector; x and mask broadcast."""

def matmul(x: Tensor, y: Tensor) -> Tensor:
    """The matrix product. Vectors count as a row on the left and a column on the right; leading
    axes broadcast.
    """

def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged."""

def max(
    x: Tensor,
    *dim: Any,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Any:
    """The largest element. NaN wins, 0.0 is above -0.0; equal largest elements share the
    gradient evenly.
    """

def max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: builtins.bool = False,
    return_indices: builtins.bool = False,
) -> Any:
    """The largest element in each window. NaN wins; the gradient goes to the first largest."""

def max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: builtins.bool = False,
    return_indices: builtins.bool = False,
) -> Any:
    """The largest element in each window. NaN wins; the gradient goes to the first largest."""

def max_pool3d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: builtins.bool = False,
    return_indices: builtins.bool = False,
) -> Any:
    """The largest element in each window. NaN wins; the gradient goes to the first largest."""

def max_unpool1d(
    x: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Tensor:
    """Zeros, with each element of x where `indices` says: what max pooling lost is undone."""

def max_unpool2d(
    x: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Tensor:
    """Zeros, with each element of x where `indices` says: what max pooling lost is undone."""

def max_unpool3d(
    x: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Tensor:
    """Zeros, with each element of x where `indices` says: what max pooling lost is undone."""

def maximum(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The larger of x and y. NaN wins; a tie gives each side half the gradient."""

def mean(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The arithmetic mean along the axes, or of all elements."""

def median(
    x: Tensor,
    *dim: Any,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Any:
    """The element in the middle, of two the lower, as in PyTorch; NaN where there is a NaN."""

def min(
    x: Tensor,
    *dim: Any,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Any:
    """The smallest element. NaN wins, -0.0 is below 0.0; equal smallest elements share the
    gradient evenly.
    """

def minimum(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The smaller of x and y. NaN wins; a tie gives each side half the gradient."""

def mish(x: _TensorLike) -> Tensor:
    """x * tanh(softplus(x))."""

def moveaxis(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Axes moved to other places, the rest keeping their order."""

def mse_loss(
    x: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The squared difference, averaged, summed or as it is; `weight` has one for each element."""

def msort(x: Tensor) -> Tensor:
    """`sort` along the first axis."""

def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: builtins.int = 1,
    margin: builtins.float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of max(0, margin - x[label] + x) ** p, that of the label left out."""

def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The sum of max(0, 1 - x[label] + x) over an example's labels and the classes that are none
    of them, over the number of classes. Labels come first in a row; -1 ends them.
    """

def multilabel_soft_margin_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over classes, the last axis, of the cross entropy of sigmoid(x) with target."""

def multiply(x: _TensorLike, y: _TensorLike) -> Tensor:
    """The product x * y."""

def nan_to_num(
    x: Tensor,
    nan: builtins.float = 0.0,
    posinf: builtins.float | None = None,
    neginf: builtins.float | None = None,
) -> Tensor:
    """x with NaN and the infinities replaced, those by the dtype's largest and smallest number
    if nothing else is asked for. What is replaced has derivative 0; integers stay what they are.
    """

def nanmax(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The largest element that is not NaN; NaN where there is none."""

def nanmean(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The mean of all elements that are not NaN; NaN where there are none."""

def nanmedian(
    x: Tensor,
    *dim: Any,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Any:
    """`median` of the elements that are not NaN; NaN where there are none."""

def nanmin(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The smallest element that is not NaN; NaN where there is none."""

def nanquantile(
    x: Tensor,
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
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    dtype: Any = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The sum of all elements that are not NaN."""

def negative(x: _TensorLike) -> Tensor:
    """-x."""

def nextafter(x: Any, y: Any) -> Tensor:
    """The next number of the dtype after x towards y; y where they are equal. The derivative in
    x is 1.
    """

def nll_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: builtins.int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Minus what x, logarithms of probabilities with classes along axis 1, has at each label."""

def nonzero(x: Tensor, as_tuple: builtins.bool = True) -> Any:
    """The indices of the elements that are not 0, in C order: a vector for each axis; with
    `as_tuple=False`, as `argwhere` has them.
    """

def norm(
    x: Tensor,
    p: Any = 2.0,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The p-norm of the elements along the axes as one vector: sum(|x|^p)^(1/p)."""

def normalize(
    x: Tensor,
    p: builtins.float = 2.0,
    axis: builtins.int = 1,
    eps: builtins.float = 1e-12,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """x over its p-norm along the axis, which counts as `eps` at least."""

def not_equal(x: _TensorLike, y: _TensorLike) -> Tensor:
    """Whether x is not or equal to y."""

def one_hot(x: Tensor, num_classes: builtins.int = -1) -> Tensor:
    """For each label a row of `num_classes` integers, 1 at the label and 0 elsewhere. With -1
    the largest label is the last class; it must be known for that.
    """

def outer(x: Tensor, y: Tensor) -> Tensor:
    """Every product of an element of x and an element of y."""

def pad(x: Tensor, widths: Any, mode: Any = "constant", value: Any = 0.0) -> Tensor:
    """x with more around it."""

def pairwise_distance(
    x1: Tensor,
    x2: Tensor,
    p: builtins.float = 2.0,
    eps: builtins.float = 1e-06,
    keepdims: builtins.bool = False,
    *,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis; x1 and x2 broadcast."""

def pdist(x: Tensor, p: builtins.float = 2.0) -> Tensor:
    """The p-norms of the differences of all pairs of rows, the first of which changes slowest."""

def permute_dims(
    x: Tensor, axes: Any = ..., *more: builtins.int, dim: Any = ..., dims: Any = ...
) -> Tensor:
    """The axes in another order, a tuple or several numbers."""

def pixel_shuffle(x: Tensor, upscale_factor: builtins.int) -> Tensor:
    """(..., C r r, H, W) as (..., C, H r, W r): each r * r channels become a square of pixels."""

def pixel_unshuffle(x: Tensor, downscale_factor: builtins.int) -> Tensor:
    """(..., C, H r, W r) as (..., C r r, H, W): the inverse of `pixel_shuffle`."""

def poisson_nll_loss(
    x: Tensor,
    target: Tensor,
    log_input: builtins.bool = True,
    full: builtins.bool = False,
    eps: builtins.float = 1e-08,
    reduction: str = "mean",
) -> Tensor:
    """exp(x) - target x: counts under Poisson distributions whose rates have the logarithm x."""

def positive(x: Tensor) -> Tensor:
    """+x: the same value."""

def pow(x: _TensorLike, y: _TensorLike) -> Tensor:
    """x to the power y. Integers have no negative powers."""

def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, weight * x elsewhere: one weight, or one for each place on axis 1."""

def prod(
    x: Tensor,
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
    x: Tensor,
    index: Tensor,
    source: Tensor = ...,
    accumulate: builtins.bool = False,
    *,
    src: Tensor = ...,
) -> Tensor:
    """x with elements replaced, or added to; the index counts as if x were flat, and from the
    end where it is negative.
    """

def quantile(
    x: Tensor,
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

def rad2deg(x: _TensorLike) -> Tensor:
    """An angle in radians as degrees."""

def ravel(x: Tensor) -> Tensor:
    """All elements along one axis."""

def real(x: _TensorLike) -> Tensor:
    """The real part."""

def reciprocal(x: _TensorLike) -> Tensor:
    """1 / x."""

def relu(x: _TensorLike) -> Tensor:
    """The larger of x and 0; NaN stays NaN. The derivative at 0 is 0."""

def relu6(x: _TensorLike) -> Tensor:
    """x limited to [0, 6]; NaN stays NaN. The derivative at 0 and at 6 is 0."""

def remainder(x: _TensorLike, y: _TensorLike) -> Tensor:
    """x - y * floor(x / y): the remainder with the sign of y."""

def repeat(
    x: Tensor,
    repeats: builtins.int | Sequence[builtins.int] | Tensor,
    *more: builtins.int,
    axis: builtins.int | None = None,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Tensor:
    """Each element `repeats` times in a row along an axis, or flattened."""

def repeat_interleave(
    x: Tensor,
    repeats: builtins.int | Sequence[builtins.int] | Tensor,
    axis: builtins.int | None = None,
    *,
    output_size: builtins.int | None = None,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Tensor:
    """`repeat` under PyTorch's name. `output_size` is what the axis will have, if it is known."""

def reshape(
    x: Tensor,
    shape: Any = ...,
    *more: builtins.int,
    copy: builtins.bool | None = None,
    size: Any = ...,
) -> Tensor:
    """The same elements in another shape, a tuple or several numbers; one size may be -1."""

def rms_norm(
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: builtins.float | None = None,
) -> Tensor:
    """x over the root of the mean of its squares along its last axes, then scaled by weight."""

def roll(
    x: Tensor,
    shift: Any = ...,
    axis: Any = None,
    *,
    dim: Any = ...,
    dims: Any = ...,
    shifts: Any = ...,
) -> Tensor:
    """Elements moved `shift` places along the axes, the last ones coming round to the front."""

def rot90(
    x: Tensor,
    k: builtins.int = 1,
    axes: Sequence[builtins.int] = ...,
    *,
    dim: Sequence[builtins.int] = ...,
    dims: Sequence[builtins.int] = ...,
    diagonal: builtins.int = ...,
) -> Tensor:
    """x rotated by k quarters of a circle, from the first axis towards the second."""

def rotary_embedding(
    x: Tensor,
    positions: Tensor | None = None,
    base: builtins.float = 10000.0,
    interleaved: builtins.bool = False,
) -> Tensor:
    """x, of (..., positions, width), with each pair of elements rotated by position times base
    ** (-i / (width / 2)); the i-th pair is elements i and i + width / 2, or `interleaved` 2 i
    and 2 i + 1. Products of two such vectors depend on the distance of their positions alone.
    """

def round(x: _TensorLike) -> Tensor:
    """The nearest integer, halves to the even one. Integers stay what they are. The derivative
    is 0.
    """

def rsqrt(x: _TensorLike) -> Tensor:
    """1 / sqrt(x)."""

def scatter(
    x: Tensor,
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
    x: Tensor,
    index: Tensor,
    source: Tensor = ...,
    axis: builtins.int = 0,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
    src: Tensor = ...,
) -> Tensor:
    """x with source[i][j][k] added at [index[i][j][k]][j][k] for axis 0; likewise for others."""

def searchsorted(
    sorted_sequence: Tensor,
    values: Any,
    side: str | None = None,
    sorter: Tensor | None = None,
    *,
    right: builtins.bool = False,
    out_int32: builtins.bool = False,
) -> Tensor:
    """The index at which each value can be put into a sequence, sorted along its last axis, and
    keep order.
    """

def selu(x: _TensorLike) -> Tensor:
    """The scaled elu that keeps mean 0 and variance 1 through many layers."""

def sigmoid(x: _TensorLike) -> Tensor:
    """1 / (1 + exp(-x))."""

def sign(x: _TensorLike) -> Tensor:
    """-1, 0 or 1; NaN stays NaN. Of a complex number x / abs(x), and 0 of 0."""

def signbit(x: _TensorLike) -> Tensor:
    """Whether the sign is minus: of -0.0 and of a NaN with that bit as well."""

def silu(x: _TensorLike) -> Tensor:
    """x * sigmoid(x)."""

def sin(x: _TensorLike) -> Tensor:
    """The sine."""

def sinc(x: _TensorLike) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""

def sinh(x: _TensorLike) -> Tensor:
    """The hyperbolic sine."""

def smooth_l1_loss(
    x: Tensor, target: Tensor, reduction: str = "mean", beta: builtins.float = 1.0
) -> Tensor:
    """The absolute difference less beta / 2; below beta its square / (2 beta)."""

def soft_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target x)), the target being 1 or -1."""

def softmax(
    x: Tensor, axis: builtins.int = -1, *, dim: builtins.int = ..., dims: builtins.int = ...
) -> Tensor:
    """exp(x) scaled to sum to 1 along the axis."""

def softmin(
    x: Tensor, axis: builtins.int = -1, *, dim: builtins.int = ..., dims: builtins.int = ...
) -> Tensor:
    """exp(-x) scaled to sum to 1 along the axis."""

def softplus(
    x: _TensorLike, beta: builtins.float = 1.0, threshold: builtins.float = 20.0
) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold. With neither
    given the logarithm is computed everywhere: it does not overflow.
    """

def softshrink(x: Tensor, lambd: builtins.float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 where that would cross it; NaN stays NaN."""

def softsign(x: _TensorLike) -> Tensor:
    """x / (1 + abs(x))."""

def sort(
    x: Tensor,
    *dim: Any,
    axis: builtins.int = -1,
    descending: builtins.bool = False,
    stable: builtins.bool = True,
    dims: builtins.int = ...,
) -> Any:
    """The elements in order along an axis. The gradient goes back to where each came from."""

def split(
    x: Tensor,
    sizes: builtins.int | Sequence[builtins.int] = ...,
    axis: builtins.int = 0,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
    split_size_or_sections: builtins.int | Sequence[builtins.int] = ...,
) -> list[Tensor]:
    """Parts of the given sizes along an axis; one number means parts of that size."""

def sqrt(x: _TensorLike) -> Tensor:
    """The square root."""

def square(x: _TensorLike) -> Tensor:
    """x * x."""

def squeeze(x: Tensor, axis: Any = None, *, dim: Any = ..., dims: Any = ...) -> Tensor:
    """Without the given axes, each of which must have size 1; without all that do, if none is
    given.
    """

def stack(
    arrays: Sequence[Tensor] = ...,
    axis: builtins.int = 0,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
    tensors: Sequence[Tensor] = ...,
) -> Tensor:
    """Tensors of one shape joined along a new axis."""

def standardize(
    x: Tensor, axis: Any = -1, eps: builtins.float = 1e-05, *, dim: Any = ..., dims: Any = ...
) -> Tensor:
    """x moved and scaled to mean 0 and variance 1 along the axes."""

def std(
    x: Tensor,
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

def std_mean(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    correction: builtins.float = 1.0,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
    unbiased: builtins.float = ...,
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean along the axes. Only PyTorch has this: the sum of
    squares is over n - 1, where that of `std`, as NumPy and the Array API have it, is over n.
    """

def subtract(x: _TensorLike, y: _TensorLike, *, alpha: _TensorLike = 1) -> Tensor:
    """The difference x - y."""

def sum(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    dtype: Any = None,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
) -> Tensor:
    """The sum along the axes, or of all elements; integers are summed in 64 bits. It begins with
    0.0: of -0.0 alone it is 0.0.
    """

def sum_to(
    x: Tensor, shape: Sequence[builtins.int] = ..., *, size: Sequence[builtins.int] = ...
) -> Tensor:
    """x summed down to `shape`: the transpose of broadcasting."""

def swapaxes(
    x: Tensor,
    axis1: builtins.int = ...,
    axis2: builtins.int = ...,
    *,
    dim1: builtins.int = ...,
    dim2: builtins.int = ...,
) -> Tensor:
    """Two axes exchanged."""

def take(
    x: Tensor,
    indices: Tensor,
    axis: builtins.int | None = 0,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Tensor:
    """The slices of x along an axis that the indices name, negative ones from the end, in their
    order and shape; with axis=None the elements, counted as if x were flat.
    """

def take_along_axis(
    x: Tensor,
    indices: Tensor,
    axis: builtins.int = -1,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """`gather` with the other axes broadcast; negative indices count from the end."""

def tan(x: _TensorLike) -> Tensor:
    """The tangent."""

def tanh(x: _TensorLike) -> Tensor:
    """The hyperbolic tangent."""

def tanhshrink(x: _TensorLike) -> Tensor:
    """x - tanh(x)."""

def tensor_split(
    x: Tensor,
    indices_or_sections: builtins.int | Sequence[builtins.int],
    axis: builtins.int = 0,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> list[Tensor]:
    """So many parts, the first ones larger by one where it must be; or parts that end at
    indices.
    """

def tensordot(x1: Tensor, x2: Tensor, *, axes: Any = 2, dim: Any = ..., dims: Any = ...) -> Tensor:
    """The sum of products over pairs of axes: the last of x1 with the first of x2, as many as
    `axes` says, or those in two tuples.
    """

def threshold(x: Tensor, threshold: builtins.float, value: builtins.float) -> Tensor:
    """x where it is above the threshold (or NaN), the value elsewhere."""

def tile(
    x: Tensor,
    repetitions: Sequence[builtins.int] | builtins.int = ...,
    *more: builtins.int,
    dims: Sequence[builtins.int] | builtins.int = ...,
) -> Tensor:
    """x laid side by side, so many times along each axis: a tuple or several numbers."""

def to(
    x: Tensor,
    device: Any = None,
    dtype: Any = None,
    non_blocking: builtins.bool = False,
    copy: builtins.bool = False,
    *,
    memory_format: Any = None,
) -> Tensor:
    """The same values on another device, or in another dtype, or both; or as another tensor has
    them. The name of a dtype in place of a device is taken for what it is.
    """

def topk(
    x: Tensor,
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

def trapezoid(
    y: Tensor,
    x: Tensor | None = None,
    dx: builtins.float = 1.0,
    axis: builtins.int = -1,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """The integral along an axis of the straight lines between samples y."""

def tril(x: Tensor, k: builtins.int = 0, *, diagonal: builtins.int = ...) -> Tensor:
    """The part on and below the k-th diagonal, zero above."""

def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: builtins.float = 1.0,
    p: builtins.float = 2.0,
    eps: builtins.float = 1e-06,
    swap: builtins.bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin), distances by the last axis."""

def triu(x: Tensor, k: builtins.int = 0, *, diagonal: builtins.int = ...) -> Tensor:
    """The part on and above the k-th diagonal, zero below."""

def trunc(x: _TensorLike) -> Tensor:
    """The next integer towards 0. Integers stay what they are. The derivative is 0."""

def unbind(
    x: Tensor, axis: builtins.int = 0, *, dim: builtins.int = ..., dims: builtins.int = ...
) -> tuple[Tensor, ...]:
    """`unstack` under PyTorch's name."""

def unflatten(
    x: Tensor,
    axis: builtins.int = ...,
    sizes: Sequence[builtins.int] = ...,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
    split_size_or_sections: Sequence[builtins.int] = ...,
) -> Tensor:
    """x with one axis as several, of these sizes; one of them may be -1."""

def unfold(
    x: Tensor,
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
    x: Tensor,
    sorted: builtins.bool = True,
    return_inverse: builtins.bool = False,
    return_counts: builtins.bool = False,
    axis: builtins.int | None = None,
    *,
    dim: builtins.int | None = ...,
    dims: builtins.int | None = ...,
) -> Any:
    """The different elements, or slices along an axis, always in order; PyTorch's form."""

def unique_all(x: Tensor) -> UniqueAll:
    """The different elements in order, their first indices, the inverse, and their counts."""

def unique_counts(x: Tensor) -> UniqueCounts:
    """The different elements in order, and how often each occurs."""

def unique_inverse(x: Tensor) -> UniqueInverse:
    """The different elements in order, and for each element of x which of them it is."""

def unique_values(x: Tensor) -> Tensor:
    """The different elements in order."""

def unstack(
    x: Tensor, axis: builtins.int = 0, *, dim: builtins.int = ..., dims: builtins.int = ...
) -> tuple[Tensor, ...]:
    """The slices along an axis, without it: `stack` undone."""

def vander(x: Tensor, n: builtins.int | None = None, increasing: builtins.bool = False) -> Tensor:
    """For each element of the last axis a row of its powers n - 1 down to 0, or up from 0."""

def var(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    correction: builtins.float = 0.0,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
    unbiased: builtins.float = ...,
) -> Tensor:
    """The variance: squares of the distances from the mean, summed, over (count - correction)."""

def var_mean(
    x: Tensor,
    axis: builtins.int | tuple[builtins.int, ...] | None = None,
    correction: builtins.float = 1.0,
    keepdims: builtins.bool = False,
    *,
    dim: builtins.int | tuple[builtins.int, ...] | None = ...,
    dims: builtins.int | tuple[builtins.int, ...] | None = ...,
    keepdim: builtins.bool = ...,
    unbiased: builtins.float = ...,
) -> tuple[Tensor, Tensor]:
    """The variance and the mean along the axes. Only PyTorch has this: the sum of squares is
    over n - 1, where that of `var`, as NumPy and the Array API have it, is over n.
    """

def vecdot(
    x: Tensor,
    y: Tensor,
    axis: builtins.int = -1,
    *,
    dim: builtins.int = ...,
    dims: builtins.int = ...,
) -> Tensor:
    """The sum of products along an axis of one size in both, x conjugated if complex."""

def vstack(arrays: Sequence[Tensor] = ..., *, tensors: Sequence[Tensor] = ...) -> Tensor:
    """Tensors joined along the first axis, vectors as rows."""

def where(
    condition: _TensorLike, x: _TensorLike | None = None, y: _TensorLike | None = None
) -> Tensor:
    """x where the condition holds, y elsewhere; with the condition alone, `nonzero` of it."""

def xlogy(x: _TensorLike, y: _TensorLike) -> Tensor:
    """x * log(y), and 0 where x is 0 and y not NaN; the derivative in x is 0 there if y <= 0."""

absolute = abs

arccos = acos

arccosh = acosh

arcsin = asin

arcsinh = asinh

arctan = atan

arctan2 = atan2

arctanh = atanh

around = round

array = tensor

bitwise_not = bitwise_invert

bmm = matmul

cat = concat

cholesky = linalg.cholesky

cholesky_solve = linalg.cholesky_solve

concatenate = concat

conj_physical = conj

conjugate = conj

degrees = rad2deg

det = linalg.det

digamma = special.digamma

eq = equal

erfc = special.erfc

erfinv = special.erfinv

fabs = abs

fix = trunc

ge = greater_equal

ger = outer

get_float32_matmul_precision = get_matmul_precision

grid_sampler = grid_sample

gt = greater

i0 = special.i0

igamma = special.gammainc

igammac = special.gammaincc

inverse = linalg.inv

invert = bitwise_invert

le = less_equal

left_shift = bitwise_left_shift

lgamma = special.lgamma

logit = special.logit

lt = less

lu_solve = linalg.lu_solve

matrix_exp = linalg.matrix_exp

matrix_power = linalg.matrix_power

matrix_rank = linalg.matrix_rank

mm = matmul

mod = remainder

movedim = moveaxis

mul = multiply

mv = matmul

ndarray = Tensor

ne = not_equal

neg = negative

permute = permute_dims

pinverse = linalg.pinv

polygamma = special.polygamma

power = pow

product = prod

qr = linalg.qr

radians = deg2rad

right_shift = bitwise_right_shift

rint = round

row_stack = vstack

set_float32_matmul_precision = set_matmul_precision

sgn = sign

slogdet = linalg.slogdet

trapz = trapezoid

true_divide = divide

unsafe_chunk = chunk

unsafe_split = split

unsqueeze = expand_dims
