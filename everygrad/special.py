"""Special functions: SciPy is what they are held against.

Names are SciPy's, and PyTorch's for the orthogonal polynomials. SciPy's `gammaln`, `psi` and
`expit` are `lgamma`, `digamma` and `eg.sigmoid`.
"""

from types import FunctionType
from typing import Any

from everygrad.core.torch_names import missing
from everygrad.ops.aliases.arithmetic import mvlgamma
from everygrad.ops.aliases.special import (
    chebyshev_polynomial_v as chebyshev_polynomial_v,
    chebyshev_polynomial_w as chebyshev_polynomial_w,
    shifted_chebyshev_polynomial_t as shifted_chebyshev_polynomial_t,
    shifted_chebyshev_polynomial_u as shifted_chebyshev_polynomial_u,
    shifted_chebyshev_polynomial_v as shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w as shifted_chebyshev_polynomial_w,
    spherical_bessel_j0 as spherical_bessel_j0,
)
from everygrad.ops.elementwise.math import (
    erf as erf,
    exp2 as exp2,
    expm1 as expm1,
    log1p as log1p,
    sigmoid,
    sinc as sinc,
    xlogy as xlogy,
)
from everygrad.ops.nn.softmax_and_norm import log_softmax as log_softmax, softmax as softmax
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.reduce.reductions import logsumexp as _logsumexp
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
round = REGISTRY["round"].function
psi = digamma
expit = sigmoid
bessel_j0, bessel_j1, bessel_y0, bessel_y1 = j0, j1, y0, y1
modified_bessel_i0, modified_bessel_i1 = i0, i1
multigammaln = mvlgamma
logsumexp = taking(_logsumexp)

# the rule of all ops holds here too: arrays are taken, and PyTorch's names of parameters
for _name, _function in [*globals().items()]:
    if isinstance(_function, FunctionType) and _function.__module__.startswith(
        "everygrad.ops.special."
    ):
        globals()[_name] = taking(_function)

_ELSEWHERE = {
    "airy_ai": "scipy.special.airy(x.numpy())[0], which has no derivative",
    **{
        name: f"scipy.special.{theirs}(x.numpy()), which has no derivative"
        for name, theirs in (
            ("modified_bessel_k0", "k0"),
            ("modified_bessel_k1", "k1"),
            ("scaled_modified_bessel_k0", "k0e"),
            ("scaled_modified_bessel_k1", "k1e"),
        )
    },
}


def __getattr__(name: str) -> Any:
    raise missing("everygrad.special", name, globals(), _ELSEWHERE)
