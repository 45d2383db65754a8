"""SciPy and scikit-learn with array-API dispatch take tensors, and give tensors back.

Both must be told before they are imported, so that everything runs in one other process, which
prints what came of each function; the tests look at that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4))
P = np.abs(RNG.normal(size=(12, 4))) + 0.1
V, W = RNG.normal(size=40), RNG.normal(size=40)
ENDS = np.array([0.5, 1.0]), np.array([2.0, 3.0])
LABELS, GUESSES = (V > 0).astype(np.int64), (W > 0).astype(np.int64)

# name -> an expression of a function, and its arguments
SCIPY: dict[str, tuple[str, Any]] = {
    "special.logsumexp": ("special.logsumexp", (X,)),
    "special.softmax": ("special.softmax", (X,)),
    "special.xlogy": ("special.xlogy", (P, P)),
    "special.ndtr": ("special.ndtr", (X,)),
    "special.gammaln": ("special.gammaln", (P,)),
    "stats.zscore": ("stats.zscore", (X,)),
    "stats.skew": ("stats.skew", (X,)),
    "stats.kurtosis": ("stats.kurtosis", (X,)),
    "stats.variation": ("stats.variation", (P,)),
    "stats.gmean": ("stats.gmean", (P,)),
    "stats.entropy": ("stats.entropy", (P,)),
    "stats.rankdata": ("stats.rankdata", (V,)),
    "stats.quantile": ("lambda x: stats.quantile(x, 0.3)", (V,)),
    "stats.pearsonr": ("lambda x, y: tuple(stats.pearsonr(x, y))", (V, W)),
    "stats.ttest_ind": ("lambda x, y: tuple(stats.ttest_ind(x, y))", (V, W)),
    "stats.normaltest": ("lambda x: tuple(stats.normaltest(x))", (V,)),
    "stats.kruskal": ("lambda x, y: tuple(stats.kruskal(x, y))", (V, W)),
    "stats.iqr": ("stats.iqr", (V,)),
    "stats.trim_mean": ("lambda x: stats.trim_mean(x, 0.1)", (V,)),
    "stats.false_discovery_control": ("stats.false_discovery_control", (P[:, 0] / 4,)),
    "stats.mannwhitneyu": ("lambda x, y: tuple(stats.mannwhitneyu(x, y))", (V, W)),
    "signal.fftconvolve": ("signal.fftconvolve", (V, W[:5])),
    "signal.hilbert": ("signal.hilbert", (V,)),
    "signal.detrend": ("signal.detrend", (V,)),
    "signal.lfilter": ("signal.lfilter", (W[:3], P[0], V)),
    "signal.resample": ("lambda x: signal.resample(x, 20)", (V,)),
    "signal.correlate": ("signal.correlate", (V, W[:5])),
    "signal.savgol_filter": ("lambda x: signal.savgol_filter(x, 5, 2)", (V,)),
    "signal.resample_poly": ("lambda x: signal.resample_poly(x, 2, 3)", (V,)),
    "signal.freqz": ("lambda b: tuple(signal.freqz(b, worN=8))", (W[:3],)),
    "fft.dct": ("fft.dct", (X,)),
    "fft.hfftn": ("fft.hfftn", (X,)),
    "fft.rfft": ("fft.rfft", (V,)),
    "integrate.trapezoid": ("integrate.trapezoid", (V,)),
    "integrate.cumulative_simpson": ("integrate.cumulative_simpson", (V,)),
    "integrate.cubature": (
        "lambda a, b: integrate.cubature(lambda x: xp.exp(-x[..., 0] ** 2), a, b).estimate",
        (ENDS[0][:1], ENDS[1][:1])),
    "integrate.tanhsinh": (
        "lambda a, b: integrate.tanhsinh(lambda t: t**2 * xp.exp(-t), a, b).integral", ENDS),
    "differentiate": ("lambda x: differentiate.derivative(lambda t: t**3, x).df", (ENDS[0],)),
    "differentiate.hessian": (
        "lambda x: differentiate.hessian(lambda t: t[0] ** 2 * t[1], x).ddf", (ENDS[0],)),
    "optimize.rosen_der": ("optimize.rosen_der", (V,)),
    "cluster.vq": ("lambda x, y: vq.vq(x, y)", (X, X[:3])),
    "Rotation": ("lambda q: Rotation.from_quat(q).as_matrix()", (X,)),
}  # fmt: skip
SKLEARN: dict[str, tuple[str, Any]] = {
    **{
        f"metrics.{name}": (f"metrics.{name}", (LABELS, GUESSES))
        for name in ("accuracy_score", "f1_score", "confusion_matrix", "jaccard_score")
    },
    **{
        f"metrics.{name}": (f"metrics.{name}", (V, W))
        for name in ("r2_score", "mean_squared_error", "mean_absolute_error", "max_error")
    },
    "metrics.log_loss": ("metrics.log_loss", (LABELS, P[:10].reshape(-1) / 4)),
    "metrics.average_precision_score": ("metrics.average_precision_score", (LABELS, W)),
    "metrics.roc_curve": ("metrics.roc_curve", (LABELS, W)),
    "metrics.roc_auc_score": ("metrics.roc_auc_score", (LABELS, W)),
    "metrics.precision_recall_curve": ("metrics.precision_recall_curve", (LABELS, W)),
    "metrics.cohen_kappa_score": ("metrics.cohen_kappa_score", (LABELS, GUESSES)),
    "metrics.d2_absolute_error_score": ("metrics.d2_absolute_error_score", (V, W)),
    **{
        f"pairwise.{name}": (f"metrics.pairwise.{name}", (X, P))
        for name in ("euclidean_distances", "cosine_similarity", "rbf_kernel", "laplacian_kernel")
    },
    "MinMaxScaler": ("preprocessing.MinMaxScaler().fit_transform", (X,)),
    "StandardScaler": ("preprocessing.StandardScaler().fit_transform", (X,)),
    "PCA": ("decomposition.PCA(2, svd_solver='full').fit_transform", (X,)),
    "Ridge": ("lambda x, y: linear_model.Ridge(solver='svd').fit(x, y).predict(x)", (X, P)),
    "Normalizer": ("preprocessing.Normalizer().fit_transform", (X,)),
    "LinearDiscriminantAnalysis": (
        "lambda x, y: LinearDiscriminantAnalysis().fit(x, y).predict_proba(x)",
        (X, LABELS[:12]),
    ),
    "GaussianNB": ("lambda x, y: GaussianNB().fit(x, y).predict_proba(x)", (X, LABELS[:12])),
    "RidgeCV": ("lambda x, y: linear_model.RidgeCV().fit(x, y).predict(x)", (X, P[:, 0])),
    "LabelEncoder": ("preprocessing.LabelEncoder().fit_transform", (LABELS,)),
}
FUNCTIONS = {**SCIPY, **SKLEARN}
RECEIVED = {"Tensor", "float", "float64"}  # scikit-learn's scores are numbers

PROGRAM = """
import json, sys, warnings
import numpy as np
import scipy, sklearn
from scipy import differentiate, fft, integrate, optimize, signal, special, stats
from scipy.cluster import vq
from scipy.spatial.transform import Rotation
from sklearn import decomposition, linear_model, metrics, preprocessing
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB
import everygrad as eg

warnings.simplefilter("ignore")
sklearn.set_config(array_api_dispatch=True)
found = {}
for name, (text, arrays) in json.load(sys.stdin).items():
    arrays = [np.array(a) for a in arrays]
    try:
        xp = np
        want = eval(text)(*arrays)
        xp = eg
        got = eval(text)(*[eg.asarray(a) for a in arrays])
        got, want = (v if type(v) is tuple else (v,) for v in (got, want))
        assert len(got) == len(want)
        for g, w in zip(got, want):
            np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-6, atol=1e-9)
        found[name] = sorted({type(g).__name__ for g in got})
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def _elsewhere(code: str, given: Any = None) -> Any:
    """What a program prints as JSON, with SciPy told to dispatch."""
    env = {**os.environ, "SCIPY_ARRAY_API": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, env=env, input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def results() -> Any:
    given = {n: (text, [a.tolist() for a in arrays]) for n, (text, arrays) in FUNCTIONS.items()}
    return _elsewhere(PROGRAM, given)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gives_what_numpy_arrays_give(name: str, results: Any) -> None:
    assert isinstance(results[name], list), results[name]
    assert set(results[name]) <= (RECEIVED if name in SKLEARN else {"Tensor"})


DIFFERENTIATED = """
import json
import numpy as np
from scipy import integrate, special, stats
import everygrad as eg

x = eg.tensor(np.linspace(-1.0, 2.0, 7), requires_grad=True)
losses = {
    "logsumexp": lambda x: special.logsumexp(x),
    "skew": lambda x: stats.skew(x),
    "trapezoid": lambda x: integrate.trapezoid(x**2),
}
print(json.dumps({name: eg.gradcheck(f, (x,)) for name, f in losses.items()}))
"""


def test_derivatives_go_through_scipy() -> None:
    assert _elsewhere(DIFFERENTIATED) == {"logsumexp": True, "skew": True, "trapezoid": True}


def test_scikit_learn_knows_the_namespace() -> None:
    """Without dispatch a tensor is an array like any other; its values are read."""
    from sklearn.utils._array_api import get_namespace  # what its functions ask first

    assert get_namespace(eg.ones((2,)))[1] is False
    assert np.asarray(eg.ones((2,))).tolist() == [1.0, 1.0]
