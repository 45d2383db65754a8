"""PyTorch's names for what has another name here: each is answered with the name to use.

One thing has one name, the Array API's where it has one. Whoever comes from PyTorch is told it by
the `AttributeError` of `eg.cat` or `x.view`; `docs/array-api.md` has the table.
"""

from __future__ import annotations

_BOTH = {
    "absolute": "abs",
    "addmm": "beta * x + alpha * (a @ b), which is one kernel inside eg.jit",
    "adjoint": "matrix_transpose(x).conj()",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "baddbmm": "beta * x + alpha * (a @ b), which is one kernel inside eg.jit",
    "bmm": "matmul, or a @ b",
    "clamp_max": "clamp(x, max=...)",
    "clamp_min": "clamp(x, min=...)",
    "cross": "linalg.cross",
    "det": "linalg.det",
    "div": "divide, or x / y",
    "dot": "vecdot, or x @ y",
    "eq": "equal, or x == y",
    "erfc": "special.erfc",
    "erfinv": "special.erfinv",
    "ge": "greater_equal, or x >= y",
    "ger": "outer",
    "gt": "greater, or x > y",
    "histc": "histogram",
    "inner": "vecdot, or x @ y.mT",
    "inverse": "linalg.inv",
    "le": "less_equal, or x <= y",
    "lgamma": "special.gammaln",
    "logdet": "linalg.slogdet(x).logabsdet",
    "logit": "special.logit",
    "lt": "less, or x < y",
    "mm": "matmul, or a @ b",
    "movedim": "moveaxis",
    "mul": "multiply, or x * y",
    "mv": "matmul, or a @ b",
    "narrow": "a slice: x[:, start:start + length]",
    "ne": "not_equal, or x != y",
    "neg": "negative, or -x",
    "numel": "x.size, a number",
    "permute": "permute_dims",
    "pinverse": "linalg.pinv",
    "scatter_reduce": "scatter(x, index, source, axis, reduce=...)",
    "select": "an index: x[:, i]",
    "sgn": "sign",
    "sub": "subtract, or x - y",
    "swapdims": "swapaxes",
    "t": "x.T",
    "trace": "linalg.trace",
    "transpose": "swapaxes(x, i, j), or x.mT for the last two",
    "true_divide": "divide, or x / y",
    "unsqueeze": "expand_dims",
}
FUNCTIONS = {
    **_BOTH,
    "Size": "a tuple",
    "as_tensor": "asarray",
    "broadcast_tensors": "broadcast_arrays",
    "cat": "concat, with axis for dim",
    "cholesky": "linalg.cholesky",
    "column_stack": "stack(tensors, axis=1)",
    "complex": "real + 1j * imag",
    "cuda": 'a device by its name: x.to("cuda")',
    "device": 'a string: "cpu", "cuda:0", "webgpu"',
    "double": "float64",
    "float": "float32",
    "from_numpy": "asarray",
    "func": "grad, vjp, jvp, vmap, hessian in everygrad itself",
    "half": "float16",
    "int": "int32",
    "is_tensor": "isinstance(x, eg.Tensor)",
    "long": "int64",
    "polar": "absolute * exp(1j * angle)",
    "promote_types": "result_type",
    "qr": "linalg.qr",
    "randperm": "permutation",
    "short": "int16",
    "solve": "linalg.solve",
    "svd": "linalg.svd",
    "view_as_complex": "x[..., 0] + 1j * x[..., 1]",
    "view_as_real": "stack([real(x), imag(x)], axis=-1)",
}
METHODS = {
    **_BOTH,
    "H": "x.mT.conj()",
    "bfloat16": "astype(eg.bfloat16)",
    "bool": "astype(eg.bool)",
    "byte": "astype(eg.uint8)",
    "char": "astype(eg.int8)",
    "contiguous": "x itself: no op asks for a layout",
    "cpu": 'to("cpu")',
    "cuda": 'to("cuda")',
    "data": "detach(); and to give x another value, x[...] = v under no_grad()",
    "dim": "x.ndim, a number",
    "double": "astype(eg.float64)",
    "element_size": "x.dtype.itemsize",
    "expand_as": "broadcast_to(y.shape)",
    "float": "astype(eg.float32)",
    "grad_fn": "requires_grad and is_leaf; eg.tools draws the graph",
    "half": "astype(eg.float16)",
    "int": "astype(eg.int32)",
    "is_complex": "x.dtype.is_complex",
    "is_contiguous": "nothing: no op asks for a layout",
    "is_cuda": 'x.device, such as "cuda:0"',
    "is_floating_point": "x.dtype.is_float",
    "itemsize": "x.dtype.itemsize",
    "long": "astype(eg.int64)",
    "ndimension": "x.ndim, a number",
    "nelement": "x.size, a number",
    "new_empty": "eg.empty(shape, x.dtype, x.device)",
    "new_full": "eg.full(shape, value, x.dtype, x.device)",
    "new_tensor": "eg.tensor(data, x.dtype, x.device)",
    "new_zeros": "eg.zeros(shape, x.dtype, x.device)",
    "short": "astype(eg.int16)",
    "stride": "nothing: no op asks for a layout",
    "sum_to_size": "sum_to",
    "type": "astype",
    "type_as": "astype(y.dtype)",
    "view": "reshape, which copies only where it must",
    "view_as": "reshape(y.shape)",
    "where": "eg.where(condition, x, y)",
    # what changes a tensor in place is an assignment to its name
    "copy_": "x[...] = y",
    "detach_": "x = x.detach()",
    "fill_": "x[...] = value",
    "masked_fill_": "x[mask] = value",
    "normal_": "x[...] = eg.randn_like(x), or eg.nn.init.normal_(x)",
    "uniform_": "x[...] = eg.rand_like(x), or eg.nn.init.uniform_(x)",
    "zero_": "x[...] = 0",
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
