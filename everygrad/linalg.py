"""Linear algebra: decompositions, solutions and norms of matrices and batches of them."""

from types import FunctionType
from typing import Any

from everygrad.core.torch_names import missing
from everygrad.ops.aliases.matrices import (
    norm as norm,
    tensorinv as tensorinv,
    tensorsolve as tensorsolve,
    vander as vander,
)
from everygrad.ops.aliases.with_info import (
    inv_ex as inv_ex,
    lu_factor_ex as lu_factor_ex,
    solve_ex as solve_ex,
)
from everygrad.ops.linalg.cholesky_qr import (
    QRResult as QRResult,
    cholesky as cholesky,
    householder_product as householder_product,
    qr as qr,
)
from everygrad.ops.linalg.eigen import (
    EighResult as EighResult,
    EigResult as EigResult,
    eig as eig,
    eigh as eigh,
    eigvals as eigvals,
    eigvalsh as eigvalsh,
)
from everygrad.ops.linalg.einsum import tensordot as tensordot
from everygrad.ops.linalg.lstsq import LstsqResult as LstsqResult, lstsq as lstsq
from everygrad.ops.linalg.matmul import matmul as matmul, outer as outer, vecdot as vecdot
from everygrad.ops.linalg.matrix_functions import (
    SlogdetResult as SlogdetResult,
    det as det,
    matrix_exp as matrix_exp,
    matrix_power as matrix_power,
    multi_dot as multi_dot,
    slogdet as slogdet,
)
from everygrad.ops.linalg.norms import (
    cond as cond,
    cross as cross,
    diagonal as diagonal,
    matrix_norm as matrix_norm,
    trace as trace,
    vector_norm as vector_norm,
)
from everygrad.ops.linalg.solve import (
    LUFactorResult as LUFactorResult,
    LUResult as LUResult,
    cholesky_solve as cholesky_solve,
    inv as inv,
    lu as lu,
    lu_factor as lu_factor,
    lu_solve as lu_solve,
    solve as solve,
    solve_triangular as solve_triangular,
)
from everygrad.ops.linalg.svd import (
    SVDResult as SVDResult,
    matrix_rank as matrix_rank,
    pinv as pinv,
    svd as svd,
    svdvals as svdvals,
)
from everygrad.ops.record.arguments import taking
from everygrad.ops.shape.movement import matrix_transpose as matrix_transpose

# the rule of all ops holds here too: arrays are taken, and PyTorch's names of parameters
for _name, _function in [*globals().items()]:
    if isinstance(_function, FunctionType) and _function.__module__.startswith(
        "everygrad.ops.linalg."
    ):
        globals()[_name] = taking(_function)

_ELSEWHERE = {
    "cholesky_ex": "cholesky, which refuses a matrix that is not positive definite",
    **dict.fromkeys(
        ("ldl_factor", "ldl_factor_ex", "ldl_solve"), "eigh, or cholesky where it is definite"
    ),
}


def __getattr__(name: str) -> Any:
    raise missing("everygrad.linalg", name, globals(), _ELSEWHERE)
