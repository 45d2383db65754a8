"""Special functions: SciPy is what they are held against.

Names are SciPy's, and PyTorch's for the orthogonal polynomials. SciPy's `gammaln`, `psi` and
`expit` are `lgamma`, `digamma` and `eg.sigmoid`.
"""

from everygrad.ops.elementwise.math import erf as erf, sigmoid, sinc as sinc, xlogy as xlogy
from everygrad.ops.special.bessel import (
    i0 as i0,
    i0e as i0e,
    i1 as i1,
    i1e as i1e,
    j0 as j0,
    j1 as j1,
    spherical_jn as spherical_jn,
    y0 as y0,
    y1 as y1,
)
from everygrad.ops.special.erf import (
    entr as entr,
    erfc as erfc,
    erfcx as erfcx,
    erfinv as erfinv,
    log_ndtr as log_ndtr,
    logit as logit,
    ndtr as ndtr,
    ndtri as ndtri,
    xlog1py as xlog1py,
)
from everygrad.ops.special.gamma import (
    beta as beta,
    betaln as betaln,
    digamma as digamma,
    lgamma as lgamma,
    polygamma as polygamma,
    zeta as zeta,
)
from everygrad.ops.special.gammainc import gammainc as gammainc, gammaincc as gammaincc
from everygrad.ops.special.polynomials import (
    chebyshev_polynomial_t as chebyshev_polynomial_t,
    chebyshev_polynomial_u as chebyshev_polynomial_u,
    hermite_polynomial_h as hermite_polynomial_h,
    hermite_polynomial_he as hermite_polynomial_he,
    laguerre_polynomial_l as laguerre_polynomial_l,
    legendre_polynomial_p as legendre_polynomial_p,
)

gammaln = lgamma
psi = digamma
expit = sigmoid
