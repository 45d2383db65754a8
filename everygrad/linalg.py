"""Linear algebra: decompositions, solutions and norms of matrices and batches of them."""

from everygrad.ops.contractions import tensordot as tensordot
from everygrad.ops.decompositions import (
    QRResult as QRResult,
    cholesky as cholesky,
    householder_product as householder_product,
    qr as qr,
)
from everygrad.ops.linalg import matmul as matmul, outer as outer, vecdot as vecdot
from everygrad.ops.matrixfunctions import (
    SlogdetResult as SlogdetResult,
    det as det,
    matrix_exp as matrix_exp,
    matrix_power as matrix_power,
    multi_dot as multi_dot,
    slogdet as slogdet,
)
from everygrad.ops.movement import matrix_transpose as matrix_transpose
from everygrad.ops.norms import (
    cond as cond,
    cross as cross,
    diagonal as diagonal,
    matrix_norm as matrix_norm,
    trace as trace,
    vector_norm as vector_norm,
)
from everygrad.ops.singular import (
    LstsqResult as LstsqResult,
    SVDResult as SVDResult,
    lstsq as lstsq,
    matrix_rank as matrix_rank,
    pinv as pinv,
    svd as svd,
    svdvals as svdvals,
)
from everygrad.ops.solving import (
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
from everygrad.ops.spectral import (
    EighResult as EighResult,
    EigResult as EigResult,
    eig as eig,
    eigh as eigh,
    eigvals as eigvals,
    eigvalsh as eigvalsh,
)
