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

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4))
P = np.abs(RNG.normal(size=(12, 4))) + 0.1
V, W = RNG.normal(size=40), RNG.normal(size=40)
ENDS = np.array([0.5, 1.0]), np.array([2.0, 3.0])
LABELS, GUESSES = (V > 0).astype(np.int64), (W > 0).astype(np.int64)


def _each(module: str, names: str, *arrays: Any) -> dict[str, tuple[str, Any]]:
    """Functions of one module that all take the same arrays."""
    return {f"{module}.{name}": (f"{module}.{name}", arrays) for name in names.split()}


def _calls(module: str, calls: dict[str, str], *arrays: Any) -> dict[str, tuple[str, Any]]:
    """Functions of one module, each with the arguments it needs; x is the first array."""
    names = ", ".join("xyz"[: len(arrays)])
    return {
        f"{module}.{name}": (f"lambda {names}: {module}.{name}({given})", arrays)
        for name, given in calls.items()
    }


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
# Each is called as it stands on NumPy's arrays and on tensors.
MORE_SCIPY: dict[str, tuple[str, Any]] = {
    **_each("special", "entr expit erf erfc exp1 expi gamma i0 i0e i1 i1e j0 j1 k0 k1 log_ndtr psi "
            "rgamma sinc spence y0 y1 log_softmax", P),
    **_each("special", "betaln chdtr chdtrc gammainc gammaincc huber kl_div rel_entr stdtr xlog1py",
            P, P[::-1]),
    **_each("stats", "ansari bartlett brunnermunzel chatterjeexi epps_singleton_2samp f_oneway "
            "fligner levene mood spearmanrho ttest_rel wilcoxon alexandergovern zmap "
            "cramervonmises_2samp", V, W),
    **_each("stats", "circmean circstd circvar differential_entropy jarque_bera kstat kstatvar "
            "kurtosistest median_abs_deviation mode moment sem sigmaclip skewtest tmax tmean tmin "
            "tsem tstd tvar lmoment describe", V),
    **_each("stats", "gstd gzscore hmean chisquare power_divergence", P[:, 0]),
    **_calls("stats", {"pmean": "x, 2", "boxcox_llf": "1.0, x", "combine_pvalues": "x / 4",
                       "ttest_1samp": "x, 0.5", "ks_1samp": "x, special.ndtr",
                       "cramervonmises": "x, special.ndtr", "yeojohnson_llf": "0.5, x"}, P[:, 0]),
    **_calls("stats", {"friedmanchisquare": "x, y, x + y * y"}, V, W),
    **_calls("signal.windows", dict.fromkeys(
        ("boxcar", "triang", "parzen", "bohman", "blackman", "nuttall", "blackmanharris", "flattop",
         "bartlett", "barthann", "hamming", "hann", "cosine", "exponential", "tukey", "taylor",
         "lanczos"), "8, xp=xp"), V),
    **_each("signal", "convolve2d correlate2d", X, X[:2, :2]),
    **_each("signal", "convolve deconvolve", V, W[:4]),
    **_each("signal", "envelope medfilt cspline1d qspline1d wiener", V),
    **_each("signal", "hilbert2 medfilt2d", X),
    **_each("signal", "group_delay normalize tf2sos tf2zpk lp2lp lp2hp "
            "lp2bp lp2bs bilinear", np.array([1.0, 0.5]), np.array([2.0, -0.3, 0.1])),
    **_calls("signal", {"filtfilt": "x, y, z"}, W[:3], np.array([2.0, -0.3, 0.1]), V),
    **_each("signal", "lfilter_zi", np.array([1.0, 0.5, 0.0]), np.array([2.0, -0.3, 0.1])),
    **_calls("signal", {"butter": "3, x", "cheby1": "3, 1, x", "bessel": "3, x",
                        "ellip": "3, 1, 20, x", "firwin": "7, x"}, np.array(0.3)),
    **_calls("signal", {"upfirdn": "x, y, 2, 3", "order_filter": "x[:4], x[:3] > -9, 1",
                        "vectorstrength": "x, 2.0"}, V, W),
    **_each("fft", "fft ifft irfft fftn ifftn rfftn irfftn fft2 rfft2 hfft ihfft dst idct idst "
            "dctn fftshift ifftshift", X),
    **_calls("fft", {"fftfreq": "8, xp=xp", "rfftfreq": "8, xp=xp", "fht": "x, 0.1, 0.5"}, P[:, 0]),
    **_each("ndimage", "sobel prewitt laplace center_of_mass extrema distance_transform_edt mean",
            P),
    **_calls("ndimage", {"gaussian_filter": "x, 1.0", "median_filter": "x, 3", "zoom": "x, 2",
                         "uniform_filter": "x, 3", "rotate": "x, 30.0", "shift": "x, 0.5",
                         "binary_erosion": "x > 0.2",
                         "map_coordinates": "x, x[:2] + 1.0",
                         "convolve": "x, x[:3, :3]"}, P),
    "ndimage.label": ("lambda x: ndimage.label(x > 0.5)[0]", (P,)),
    **_calls("integrate", {"cumulative_trapezoid": "x", "romb": "x[:9]",
                           "nsum": "lambda t: t**-2.0, x[:2] ** 2 // 1 + 1.0, xp.ones_like(x[:2]) "
                                   "* 9.0"}, V),
    **_calls("optimize", {"rosen": "x", "rosen_hess": "x", "rosen_hess_prod": "x, x"}, V),
    **_calls("optimize.elementwise", {
        "find_root": "lambda t, c: t**3 - c, (x * 0, x + 1), args=(x,)",
        "find_minimum": "lambda t, c: (t - c) ** 2, (x - 1, x + 0.1, x + 2), args=(x,)",
        "bracket_root": "lambda t, c: t**3 - c, x, args=(x,)"}, ENDS[1]),
    **_calls("linalg", {"block_diag": "x, y", "orthogonal_procrustes": "x, y", "fiedler": "x[0]"},
             X[:4], P[:4]),
    **_calls("vq", {"whiten": "x", "kmeans": "x, x[:3]", "kmeans2": "x, x[:3], minit='matrix'"}, X),
    **_each("hierarchy", "average complete single ward linkage", X),
    **_calls("hierarchy", {"fcluster": "hierarchy.ward(x), 2.0", "cophenet": "hierarchy.ward(x)",
                           "leaves_list": "hierarchy.ward(x)"}, X),
    **_calls("interpolate", dict.fromkeys(
        ("CubicSpline", "Akima1DInterpolator", "make_interp_spline", "make_smoothing_spline"),
        "x, y)(x[:-1] + 0.3"), np.arange(9.0), V[:9]),
    **_calls("Rotation", {"from_rotvec": "x).as_quat(", "from_mrp": "x).as_rotvec(",
                          "from_euler": "'xyz', x).as_matrix(",
                          "align_vectors": "x, y)[0].as_quat("}, X[:, :3], P[:, :3]),
    **_calls("RigidTransform", {"from_translation": "x).inv().as_matrix(",
                                "from_exp_coords": "xp.concat((x, x), axis=1)).as_dual_quat("},
             X[:, :3]),
    **_calls("constants", {"convert_temperature": "x, 'Celsius', 'Kelvin'"}, V),
}  # fmt: skip
MORE_SKLEARN: dict[str, tuple[str, Any]] = {
    **_each("metrics", "balanced_accuracy_score hamming_loss precision_score recall_score "
            "zero_one_loss multilabel_confusion_matrix class_likelihood_ratios", LABELS, GUESSES),
    **_each("metrics", "explained_variance_score mean_absolute_percentage_error "
            "mean_pinball_loss root_mean_squared_error d2_pinball_score", V, W),
    **_each("metrics", "mean_squared_log_error root_mean_squared_log_error mean_gamma_deviance "
            "mean_poisson_deviance mean_tweedie_deviance d2_tweedie_score", P[:, 0], P[:, 1]),
    **_each("metrics", "brier_score_loss d2_log_loss_score", LABELS, P[:10].reshape(-1) / 4),
    **_each("metrics", "det_curve", LABELS, W),
    **_each("metrics.pairwise", "manhattan_distances cosine_distances linear_kernel "
            "polynomial_kernel sigmoid_kernel paired_euclidean_distances paired_cosine_distances "
            "paired_manhattan_distances", X, P),
    **_each("preprocessing", "maxabs_scale minmax_scale normalize binarize", X),
    **_calls("preprocessing", dict.fromkeys(
        ("MaxAbsScaler", "Binarizer", "PolynomialFeatures"), ").fit_transform(x"), X),
    **_calls("preprocessing", {"LabelBinarizer": ").fit_transform(x"}, LABELS),
    **_calls("linear_model", {
        "LogisticRegression": ").fit(x, y).predict_proba(x", "RidgeClassifier": "solver='svd').fit("
        "x, y).decision_function(x"}, X, LABELS[:12]),
    **_calls("linear_model", {"PoissonRegressor": ").fit(x, y).predict(x"}, X, P[:, 0]),
    **_calls("mixture", {"GaussianMixture": "1, covariance_type='diag', init_params='random', "
                                            "random_state=0).fit(x).score_samples(x"}, X),
    **_calls("model_selection", {
        "train_test_split": "x, random_state=0",
        "cross_val_predict": "linear_model.Ridge(solver='svd'), x, x[:, 0]"}, X),
}  # fmt: skip
# These write into views of arrays and read the arrays: refused by name, not silently wrong.
REFUSED: dict[str, tuple[str, Any]] = {
    "signal.oaconvolve": ("signal.oaconvolve", (np.tile(V, 10), W[:7])),
    "integrate.tanhsinh": (
        "lambda a, b: integrate.tanhsinh(lambda t: t**2 * xp.exp(-t), a, b).integral", ENDS),
    "integrate.nsum": (
        "lambda a: integrate.nsum(lambda k: 1 / k**2, a, xp.asarray([np.inf])).sum",
        (ENDS[0][1:],)),
    "mixture.GaussianMixture": (
        "lambda x: mixture.GaussianMixture(2, init_params='random', random_state=0).fit(x)"
        ".score_samples(x)", (X,)),
}  # fmt: skip
SCIPY, SKLEARN = {**SCIPY, **MORE_SCIPY}, {**SKLEARN, **MORE_SKLEARN}
FUNCTIONS = {**SCIPY, **SKLEARN}
RECEIVED = {"Tensor", "float", "float64"}  # scikit-learn's scores are numbers

PROGRAM = """
import json, sys, warnings
import numpy as np
import scipy, sklearn
from scipy import (
    constants, differentiate, fft, integrate, interpolate, linalg, ndimage, optimize, signal,
    special, stats
)
import scipy.optimize.elementwise
from scipy.cluster import hierarchy, vq
from scipy.spatial.transform import RigidTransform, Rotation
from sklearn import (
    decomposition, linear_model, metrics, mixture, model_selection, preprocessing
)
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB
import everygrad as eg

warnings.simplefilter("ignore")
sklearn.set_config(array_api_dispatch=True)


def parts(value):
    # the results of a function that gives several: a test's, an iteration's, a tuple
    if isinstance(value, (eg.Tensor, np.ndarray, np.generic)):
        return (value,)
    for names in (("statistic", "pvalue"), ("x",), ("sum",), ("bracket",)):
        if all(hasattr(value, n) for n in names):
            value = tuple(getattr(value, n) for n in names)
    if isinstance(value, (tuple, list)):
        return tuple(part for v in value for part in parts(v))
    return (value,)


found = {}
for name, (text, arrays) in json.load(sys.stdin).items():
    arrays = [np.array(a) for a in arrays]
    try:
        xp = np
        want = eval(text)(*arrays)
        xp = eg
        got = eval(text)(*[eg.asarray(a) for a in arrays])
        got, want = parts(got), parts(want)
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
    calls = {**FUNCTIONS, **{f"refused {name}": call for name, call in REFUSED.items()}}
    given = {n: (text, [a.tolist() for a in arrays]) for n, (text, arrays) in calls.items()}
    return _elsewhere(PROGRAM, given)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gives_what_numpy_arrays_give(name: str, results: Any) -> None:
    assert isinstance(results[name], list), results[name]
    assert set(results[name]) <= (RECEIVED if name in SKLEARN else {"Tensor"})


@pytest.mark.parametrize("name", REFUSED)
def test_writes_into_views_are_refused(name: str, results: Any) -> None:
    assert str(results[f"refused {name}"]).startswith("ViewError: "), results[f"refused {name}"]


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
