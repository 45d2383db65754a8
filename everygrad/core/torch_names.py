"""PyTorch's and NumPy's names: which of them work here, and what to use in place of the others.

One thing has one taught name, the Array API's where it has one. Another library's name for it works
too (`SAME_FUNCTIONS`, `SAME_METHODS`), as does what only another library has (`OWN`). What changes
a tensor in place, or is not done here, is answered with the cure (`FUNCTIONS`, `METHODS`).
docs/from-pytorch.md is made from these tables.
"""

from __future__ import annotations

from collections.abc import Iterable

from everygrad.core.nearest import no_attribute

# Another name -> the taught one, of everygrad itself or of the part before the dot.
_SAME_BOTH = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "bitwise_not": "bitwise_invert",
    "bmm": "matmul",
    "cholesky": "linalg.cholesky",
    "cholesky_solve": "linalg.cholesky_solve",
    "conj_physical": "conj",
    "conjugate": "conj",
    "det": "linalg.det",
    "digamma": "special.digamma",
    "eq": "equal",
    "erfc": "special.erfc",
    "erfinv": "special.erfinv",
    "fix": "trunc",
    "ge": "greater_equal",
    "ger": "outer",
    "gt": "greater",
    "i0": "special.i0",
    "igamma": "special.gammainc",
    "igammac": "special.gammaincc",
    "inverse": "linalg.inv",
    "le": "less_equal",
    "lgamma": "special.lgamma",
    "logit": "special.logit",
    "lt": "less",
    "lu_solve": "linalg.lu_solve",
    "matrix_exp": "linalg.matrix_exp",
    "matrix_power": "linalg.matrix_power",
    "mm": "matmul",
    "movedim": "moveaxis",
    "mul": "multiply",
    "mv": "matmul",
    "ne": "not_equal",
    "neg": "negative",
    "permute": "permute_dims",
    "pinverse": "linalg.pinv",
    "qr": "linalg.qr",
    "sgn": "sign",
    "slogdet": "linalg.slogdet",
    "true_divide": "divide",
    "unsafe_chunk": "chunk",
    "unsafe_split": "split",
    "unsqueeze": "expand_dims",
}
SAME_FUNCTIONS = {
    **_SAME_BOTH,
    "around": "round",
    "array": "tensor",
    "cat": "concat",
    "cdouble": "complex128",
    "cfloat": "complex64",
    "concatenate": "concat",
    "degrees": "rad2deg",
    "double": "float64",
    "fabs": "abs",
    "float": "float32",
    "get_float32_matmul_precision": "get_matmul_precision",
    "grid_sampler": "grid_sample",
    "half": "float16",
    "int": "int32",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "long": "int64",
    "matrix_rank": "linalg.matrix_rank",
    "mod": "remainder",
    "ndarray": "Tensor",
    "polygamma": "special.polygamma",
    "power": "pow",
    "product": "prod",
    "radians": "deg2rad",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
    "row_stack": "vstack",
    "set_float32_matmul_precision": "set_matmul_precision",
    "short": "int16",
    "trapz": "trapezoid",
}
SAME_METHODS = {
    **_SAME_BOTH,
    "allclose": "allclose",
    "istft": "istft",
    "kron": "kron",
    "stft": "stft",
    "view": "reshape",
}

# Functions that only another library has, by the module of `ops/aliases` that has them.
_OWN_BOTH = {
    "arithmetic": (
        *("clamp_max", "clamp_min", "dist", "div", "dot", "float_power", "frexp", "gcd", "inner"),
        *("isneginf", "isposinf", "isreal", "lcm", "ldexp", "logaddexp2", "mvlgamma", "renorm"),
        *("sub", "vdot"),
    ),
    "indexing": (
        *("diagonal_scatter", "index_put", "index_reduce", "scatter_reduce", "select_scatter"),
        *("slice_scatter", "take_along_dim"),
    ),
    "making": (),
    "matrices": (
        *("addbmm", "addmm", "addmv", "addr", "adjoint", "baddbmm", "cholesky_inverse", "cross"),
        *("logdet", "trace"),
    ),
    "queries": (
        *("get_device", "is_complex", "is_conj", "is_floating_point", "is_inference", "is_neg"),
        *("is_nonzero", "is_same_size", "is_signed", "numel"),
    ),
    "conversion": ("resolve_conj", "resolve_neg"),
    "shaping": (
        *("diagflat", "dsplit", "fliplr", "flipud", "hsplit", "narrow", "narrow_copy", "select"),
        *("split_with_sizes", "swapdims", "t", "transpose", "unsafe_split_with_sizes", "vsplit"),
    ),
    "statistics": ("histc", "mode", "unique_consecutive"),
}
OWN_FUNCTIONS = {
    **_OWN_BOTH,
    "arithmetic": (*_OWN_BOTH["arithmetic"], "complex", "polar", "rsub"),
    "making": (
        *("as_tensor", "broadcast_tensors", "copy", "fill", "from_numpy", "frombuffer"),
        *("get_rng_state", "initial_seed", "randint_like", "randperm", "range", "scalar_tensor"),
        *("seed", "set_rng_state", "FloatTensor", "DoubleTensor", "HalfTensor", "BoolTensor"),
        *("LongTensor", "IntTensor", "ShortTensor", "ByteTensor", "CharTensor"),
    ),
    "matrices": (*_OWN_BOTH["matrices"], "chain_matmul", "frobenius_norm", "nuclear_norm"),
    "queries": (*_OWN_BOTH["queries"], "get_default_dtype", "is_tensor", "promote_types"),
    "shaping": (
        *(*_OWN_BOTH["shaping"], "column_stack", "combinations", "unravel_index"),
        *("view_as_complex", "view_as_real"),
    ),
    "statistics": (*_OWN_BOTH["statistics"], "cumulative_trapezoid", "gradient"),
    "settings": (
        *("device", "is_anomaly_enabled", "is_autocast_enabled", "is_inference_mode_enabled"),
        *("typename", "use_deterministic_algorithms", "Size", "strided", "contiguous_format"),
        *("preserve_format", "channels_last", "channels_last_3d"),
    ),
}
OWN_METHODS = {
    **_OWN_BOTH,
    "arithmetic": (*_OWN_BOTH["arithmetic"], "polygamma"),
    "conversion": (
        *("bfloat16", "bool", "byte", "cdouble", "cfloat", "char", "contiguous", "cpu", "cuda"),
        *("double", "float", "half", "int", "is_contiguous", "long", "pin_memory"),
        *("resolve_conj", "resolve_neg", "short", "to_dense", "type", "type_as"),
    ),
    "indexing": (*_OWN_BOTH["indexing"], "where"),
    "making": (
        *("bernoulli", "copy", "multinomial", "new_empty", "new_full", "new_tensor", "new_zeros"),
    ),
    "queries": (
        *(*_OWN_BOTH["queries"], "dim", "element_size", "is_pinned", "is_shared", "ndimension"),
        *("nelement", "storage_offset", "stride"),
    ),
    "shaping": (*_OWN_BOTH["shaping"], "expand_as", "reshape_as", "sum_to_size", "view_as"),
}
# attributes of a tensor, all of `queries`
OWN_PROPERTIES = (
    *("H", "is_cpu", "is_cuda", "is_meta", "is_mps", "is_nested", "is_quantized", "is_sparse"),
    *("is_sparse_csr", "is_xpu", "itemsize", "mH", "nbytes", "retains_grad"),
)

# Names that are answered with what to use in their place.
_BOTH = {
    "as_strided": "reshape, permute_dims, indices and unfold: no op asks for a layout",
    "svd": "linalg.svd, whose third result is the conjugate transpose of this one's",
}
FUNCTIONS = {
    **_BOTH,
    "cond": "where(condition, x, y), or an if outside eg.jit",
    "eig": "linalg.eig",
    "from_file": "eg.asarray(np.memmap(path, dtype)), which reads what is asked for",
    "ao": "matmul in float16 or bfloat16: there are no quantised tensors",
    "random": "rand, randn, randint, normal, uniform in everygrad itself",
    "set_default_dtype": "dtype= where tensors are made, and module.to(dtype)",
    "set_default_device": "device= where tensors are made, and module.to(device)",
    "set_default_tensor_type": "dtype= where tensors are made",
    "solve": "linalg.solve",
    "symeig": "linalg.eigh",
    "triangular_solve": "linalg.solve_triangular",
    "while_loop": "a Python loop: inside eg.jit it is unrolled",
    "hub": "eg.load and load_state_dict: files are read, nothing is fetched",
    "multiprocessing": "Python's own: eg.data teaches it to hand over tensors by shared memory",
    "onnx": "eg.io.save_onnx, and eg.io.load_onnx",
    "profiler": "eg.tools.profile",
    "quantization": "matmul in float16 or bfloat16: there are no quantised tensors",
    "sparse": "dense tensors: there are no others",
    "testing": "numpy.testing, which takes tensors",
    "version": "__version__",
    **dict.fromkeys(
        (
            *("set_num_threads", "get_num_threads", "set_num_interop_threads"),
            *("get_num_interop_threads", "set_flush_denormal"),
        ),
        "nothing: kernels use the cores there are",
    ),
}
METHODS = {
    **_BOTH,
    "data_ptr": "nothing: memory has no place that programs may ask for",
    "grad_fn": "requires_grad and is_leaf; eg.tools draws the graph",
    "lstsq": "eg.linalg.lstsq(A, B)",
    "resize": "reshape, or a slice",
    "solve": "eg.linalg.solve(A, B)",
    "storage": "x.numpy(), which shares memory where it can",
    "symeig": "eg.linalg.eigh(x)",
    "to_sparse": "dense tensors: there are no others",
    "triangular_solve": "eg.linalg.solve_triangular(A, B, upper=...)",
    "untyped_storage": "x.numpy(), which shares memory where it can",
    # what changes a tensor in place is an assignment to its name
    "copy_": "x[...] = y",
    "detach_": "x = x.detach()",
    "fill_": "x[...] = value",
    "masked_fill_": "x[mask] = value",
    "normal_": "x[...] = eg.randn_like(x), or eg.nn.init.normal_(x)",
    "uniform_": "x[...] = eg.rand_like(x), or eg.nn.init.uniform_(x)",
    "zero_": "x[...] = 0",
}

# What other libraries call a parameter -> what it may be called here, the first that an op has.
KEYWORDS: dict[str, tuple[str, ...]] = {
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis", "repetitions"),
    "in_dims": ("in_axes",),
    "out_dims": ("out_axes",),
    "dim1": ("axis1",),
    "dim2": ("axis2",),
    "dimension": ("axis",),
    "start_dim": ("start_axis",),
    "end_dim": ("end_axis",),
    "keepdim": ("keepdims",),
    "diagonal": ("k", "offset"),
    "shifts": ("shift",),
    "size": ("shape",),
    "split_size": ("sizes",),
    "split_size_or_sections": ("sizes",),
    "tensors": ("arrays",),
    "other": ("y", "x2", "q"),
    "exponent": ("y",),
    "src": ("source",),
    "value": ("source",),
    "index": ("indices",),
    "tol": ("atol",),
    "rcond": ("rtol",),
    "unbiased": ("correction",),
    "ddof": ("correction",),
    "ord": ("p",),
    "end": ("stop",),
    "steps": ("num",),
    "a_min": ("min",),
    "a_max": ("max",),
    "mat2": ("y", "x2"),
    "vec": ("y",),
    "vec2": ("y", "x2"),
    "tensor": ("other",),
    "tensor1": ("y",),
    "tensor2": ("z",),
    "input1": ("x1",),
    "input2": ("x2",),
    "b": ("y", "x2"),
    "B": ("y", "b", "x2"),
    "values": ("y",),
    "elements": ("x",),
    "pad": ("widths",),
    "row": ("rows",),
    "col": ("columns",),
    "x1": ("x",),
    "x2": ("y",),
    "n": ("n_rows",),
    "m": ("n_cols",),
}
# Parameters that PyTorch counts from 0 and NumPy from 1, by op: a call that gives all the names on
# the left means those on the right.
FROM_ZERO: dict[str, dict[str, str]] = {"swapaxes": {"axis0": "axis1", "axis1": "axis2"}}
FIRST = ("input", "a", "A", "tensor")  # what other libraries call the tensor an op is about
BEFORE = ("condition", "n", "sorted_sequence")  # parameters that stand before that tensor
LEGACY = ("size_average", "reduce")  # what `reduction` says, where an op has it
MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
LAYOUTS = ("layout", "memory_format", "pin_memory")  # without meaning: no op asks for a layout

# Parameters that PyTorch takes by position and the Array API by name alone, in PyTorch's order.
POSITIONS: dict[str, tuple[str, ...]] = {
    "cross": ("axis",),
    "matrix_norm": ("ord", "axis", "keepdims"),
    "matrix_rank": ("atol", "hermitian"),
    "pinv": ("rtol", "hermitian"),
    "qr": ("mode",),
    "svd": ("full_matrices",),
    "tensordot": ("axes",),
    "trace": ("offset",),
    "vector_norm": ("ord", "axis", "keepdims"),
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"), ("n", "axis", "norm")),
    **dict.fromkeys(
        (
            *("fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2"),
            *("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"),
        ),
        ("s", "axes", "norm"),
    ),
    **dict.fromkeys(("fftshift", "ifftshift"), ("axes",)),
}

IN_PLACE = tuple(
    f"{name}_"
    for name in (
        *("abs", "add", "addcdiv", "addcmul", "addmm", "bernoulli", "ceil", "clamp", "copy", "cos"),
        *("div", "erf", "exp", "fill", "fill_diagonal", "floor", "index_add", "index_copy", "lerp"),
        *("index_fill", "log", "masked_fill", "masked_scatter", "mul", "neg", "normal", "pow"),
        *("reciprocal", "relu", "round", "rsqrt", "scatter", "scatter_add", "sigmoid", "sign"),
        *("sin", "sqrt", "squeeze", "sub", "t", "tanh", "transpose", "tril", "triu", "trunc"),
        *("uniform", "unsqueeze", "zero"),
    )
    if f"{name}_" not in METHODS
)


def cure(name: str, names: dict[str, str]) -> str:
    """What to use in place of PyTorch's `name`, as the end of a sentence; "" if it is none."""
    if name in names:
        return f"; in place of PyTorch's {name} use {names[name]}"
    plain = name.removesuffix("_")
    if names is METHODS and name != plain and not plain.endswith("_"):
        return f"; values never change in place: write x = x.{plain}(...), or x += y and x[i] = v"
    return ""


# Names of torch.distributions that are not in everygrad.distributions, each with the reason.
DISTRIBUTIONS_ABSENT: dict[str, str] = {}


def missing(module: str, name: str, known: Iterable[str], cures: dict[str, str]) -> AttributeError:
    """The error for a name that a module does not have: the cure, or what is nearest."""
    return no_attribute(module, name, known, cure(name, cures))
