# Made by `python -m devtools.stubs`: change the ops, not this file.
"""What each module of ops has that is loaded later: see the package."""

OPS: dict[str, tuple[str, ...]] = {
    "elementwise.activations": (
        "celu", "elu", "gated", "gelu_tanh", "glu", "hardshrink", "hardsigmoid", "hardswish",
        "hardtanh", "leaky_relu", "logsigmoid", "mish", "prelu", "relu6", "selu", "softmin",
        "softshrink", "softsign", "tanhshrink", "threshold",
    ),
    "elementwise.arithmetic": (
        "addcdiv", "addcmul", "angle", "clip", "copysign", "deg2rad", "fmod", "frac", "hypot",
        "lerp", "nan_to_num", "nextafter", "rad2deg", "replaced", "signbit",
    ),
    "elementwise.comparison": (
        "aminmax", "fmax", "fmin", "heaviside", "isclose",
    ),
    "index.masks": (
        "argwhere", "masked_fill", "masked_scatter", "masked_select", "nonzero", "nonzero_indices",
    ),
    "index.scatter": (
        "index_copy", "index_fill", "put", "scatter", "scatter_max", "scatter_min", "scatter_prod",
    ),
    "index.search": (
        "bincount", "bucketize", "histogram", "isin", "searchsorted",
    ),
    "index.sort": (
        "argsort", "kthvalue", "msort", "sort", "top_index", "topk",
    ),
    "index.unique": (
        "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    ),
    "linalg.checks": (
        "check_true", "ensure",
    ),
    "linalg.cholesky_qr": (
        "cholesky", "cholesky_vjp", "householder_product", "qr", "qr_complete", "qr_vjp",
    ),
    "linalg.eigen": (
        "eig", "eigh", "eigh_vjp", "eigvals", "eigvalsh",
    ),
    "linalg.einsum": (
        "einsum", "kron", "tensordot",
    ),
    "linalg.lstsq": (
        "lstsq", "lstsq_ranks", "lstsq_residuals", "lstsq_vjp",
    ),
    "linalg.matrix_functions": (
        "adjugate", "det", "matrix_exp", "matrix_power", "multi_dot", "slogdet", "slogdet_vjp",
    ),
    "linalg.norms": (
        "cond", "cross", "linalg_diagonal", "matrix_norm", "trace", "vector_norm",
    ),
    "linalg.parts": (
        "matrix_part",
    ),
    "linalg.solve": (
        "cholesky_solve", "inv", "lexsort_rows", "lu", "lu_factor", "lu_solve", "solve",
        "solve_triangular",
    ),
    "linalg.svd": (
        "matrix_rank", "pinv", "svd", "svd_complete", "svd_vjp", "svdvals",
    ),
    "loss.ctc": (
        "ctc_adjoint", "ctc_loss", "ctc_states", "log_sum_of_three",
    ),
    "loss.distances": (
        "cosine_embedding_loss", "cosine_similarity", "hinge_embedding_loss",
        "margin_ranking_loss", "multi_margin_loss", "multilabel_soft_margin_loss", "normalize",
        "pairwise_distance", "soft_margin_loss", "triplet_margin_loss",
    ),
    "loss.margins": (
        "cdist", "multilabel_margin_loss", "pdist",
    ),
    "loss.pointwise": (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "binary_entropy",
        "gaussian_nll_loss", "huber_distance", "huber_loss", "kl_div", "l1_loss",
        "poisson_nll_loss", "smooth_distance", "smooth_l1_loss",
    ),
    "nn.adaptive_pooling": (
        "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
        "adaptive_max_pool2d", "adaptive_max_pool3d", "max_unpool1d", "max_unpool2d",
        "max_unpool3d",
    ),
    "nn.channel_norm": (
        "channel_moments", "channel_norm", "channel_norm_grads",
    ),
    "nn.conv3d": (
        "convolve3d", "convolve3d_input", "convolve3d_weight",
    ),
    "nn.conv_nd": (
        "conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    ),
    "nn.normalisation": (
        "batch_norm", "group_norm", "instance_norm", "local_response_norm", "rms_norm",
        "scaled_rms",
    ),
    "nn.pooling": (
        "avg_pool1d", "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
        "max_pool1d", "max_pool2d", "max_pool2d_index", "max_pool2d_spread", "max_pool2d_value",
        "max_pool3d", "sum_pool2d", "sum_pool2d_spread",
    ),
    "nn.recurrent": (
        "rnn_grads", "rnn_reserve", "rnn_sequence",
    ),
    "nn.recurrent_step": (
        "rnn_step", "rnn_step_grads",
    ),
    "nn.resampling": (
        "affine_grid", "grid_sample", "interpolate",
    ),
    "nn.rotary": (
        "rotary_embedding",
    ),
    "nn.sparse_interp": (
        "weighted_gather_sum",
    ),
    "nn.unfold": (
        "channel_shuffle", "col2im", "im2col", "pixel_shuffle", "pixel_unshuffle",
    ),
    "reduce.norms_and_counts": (
        "amax", "amin", "count_nonzero", "nanmax", "nanmean", "nanmin", "nansum", "norm",
    ),
    "reduce.quantiles": (
        "median", "nanmedian", "nanquantile", "quantile",
    ),
    "reduce.scans": (
        "cummax", "cummax_index", "cummin", "cummin_index", "cumprod", "cumsum", "cumulative_prod",
        "cumulative_sum", "diff", "logcumsumexp", "recurrence", "trapezoid",
    ),
    "reduce.statistics": (
        "corrcoef", "cov", "std_mean", "var_mean",
    ),
    "shape.builders": (
        "block_diag", "cartesian_prod", "one_hot", "unflatten", "vander",
    ),
    "shape.diagonals": (
        "diag", "diag_embed", "diagonal", "rot90",
    ),
    "shape.splitting": (
        "atleast_1d", "atleast_2d", "atleast_3d", "chunk", "dstack", "hstack", "ravel",
        "tensor_split", "unbind", "unstack", "vstack",
    ),
    "shape.tiling": (
        "broadcast_arrays", "repeat", "repeat_interleave", "tile", "unfold",
    ),
    "signal.dft": (
        "dft", "dftn", "half_dft", "half_dft_weighted", "real_dft", "real_dft_weighted",
        "whole_dft",
    ),
    "signal.fft": (
        "fft_fft", "fft_fft2", "fft_fftn", "fft_hfft", "fft_hfft2", "fft_hfftn", "fft_ifft",
        "fft_ifft2", "fft_ifftn", "fft_ihfft", "fft_ihfft2", "fft_ihfftn", "fft_irfft",
        "fft_irfft2", "fft_irfftn", "fft_rfft", "fft_rfft2", "fft_rfftn",
    ),
    "signal.stft": (
        "fft_fftshift", "fft_ifftshift", "istft", "stft",
    ),
    "special.bessel": (
        "bessel_i", "bessel_j", "bessel_y", "i0", "i0e", "i1", "i1e", "j0", "j1", "spherical_jn",
        "y0", "y1",
    ),
    "special.erf": (
        "entr", "erfc", "erfcx", "erfinv", "log_ndtr", "logit", "logit_of", "ndtr", "ndtri",
        "xlog1py",
    ),
    "special.gamma": (
        "beta", "betaln", "digamma", "lgamma", "polygamma", "zeta",
    ),
    "special.gammainc": (
        "exp_gap", "gamma_log_density", "gammainc", "gammaincc", "lgamma1p",
    ),
    "special.polynomials": (
        "chebyshev_polynomial_t", "chebyshev_polynomial_u", "gegenbauer", "hermite_polynomial_h",
        "hermite_polynomial_he", "laguerre", "laguerre_polynomial_l", "legendre_polynomial_p",
    ),
}  # fmt: skip
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "elementwise.activations": (
        "celu", "elu", "gelu_tanh", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
        "leaky_relu", "logsigmoid", "mish", "prelu", "relu6", "selu", "softmin", "softshrink",
        "softsign", "tanhshrink", "threshold",
    ),
    "elementwise.arithmetic": (
        "addcdiv", "addcmul", "angle", "clip", "copysign", "deg2rad", "fmod", "frac", "hypot",
        "lerp", "nan_to_num", "nextafter", "rad2deg", "signbit",
    ),
    "elementwise.comparison": (
        "aminmax", "fmax", "fmin", "heaviside", "isclose",
    ),
    "index.masks": (
        "argwhere", "masked_fill", "masked_scatter", "masked_select", "nonzero",
    ),
    "index.scatter": (
        "index_copy", "index_fill", "put", "scatter",
    ),
    "index.search": (
        "bincount", "bucketize", "histogram", "isin", "searchsorted",
    ),
    "index.sort": (
        "argsort", "kthvalue", "msort", "sort", "topk",
    ),
    "index.unique": (
        "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    ),
    "linalg.einsum": (
        "einsum", "kron", "tensordot",
    ),
    "loss.ctc": (
        "ctc_loss",
    ),
    "loss.distances": (
        "cosine_embedding_loss", "cosine_similarity", "hinge_embedding_loss",
        "margin_ranking_loss", "multi_margin_loss", "multilabel_soft_margin_loss", "normalize",
        "pairwise_distance", "soft_margin_loss", "triplet_margin_loss",
    ),
    "loss.margins": (
        "cdist", "multilabel_margin_loss", "pdist",
    ),
    "loss.pointwise": (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "gaussian_nll_loss",
        "huber_loss", "kl_div", "l1_loss", "poisson_nll_loss", "smooth_l1_loss",
    ),
    "nn.adaptive_pooling": (
        "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
        "adaptive_max_pool2d", "adaptive_max_pool3d", "max_unpool1d", "max_unpool2d",
        "max_unpool3d",
    ),
    "nn.conv_nd": (
        "conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    ),
    "nn.normalisation": (
        "batch_norm", "group_norm", "instance_norm", "local_response_norm", "rms_norm",
    ),
    "nn.pooling": (
        "avg_pool1d", "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
        "max_pool1d", "max_pool2d", "max_pool3d",
    ),
    "nn.resampling": (
        "affine_grid", "grid_sample", "interpolate",
    ),
    "nn.rotary": (
        "rotary_embedding",
    ),
    "nn.unfold": (
        "channel_shuffle", "col2im", "im2col", "pixel_shuffle", "pixel_unshuffle",
    ),
    "reduce.norms_and_counts": (
        "amax", "amin", "count_nonzero", "nanmax", "nanmean", "nanmin", "nansum", "norm",
    ),
    "reduce.quantiles": (
        "median", "nanmedian", "nanquantile", "quantile",
    ),
    "reduce.scans": (
        "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff",
        "logcumsumexp", "trapezoid",
    ),
    "reduce.statistics": (
        "corrcoef", "cov", "std_mean", "var_mean",
    ),
    "shape.builders": (
        "block_diag", "cartesian_prod", "one_hot", "unflatten", "vander",
    ),
    "shape.diagonals": (
        "diag", "diag_embed", "diagonal", "rot90",
    ),
    "shape.splitting": (
        "atleast_1d", "atleast_2d", "atleast_3d", "chunk", "dstack", "hstack", "ravel",
        "tensor_split", "unbind", "unstack", "vstack",
    ),
    "shape.tiling": (
        "broadcast_arrays", "repeat", "repeat_interleave", "tile", "unfold",
    ),
}  # fmt: skip
METHODS: dict[str, tuple[str, ...]] = {
    "elementwise.activations": (
        "celu", "elu", "gelu_tanh", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
        "leaky_relu", "logsigmoid", "mish", "prelu", "relu6", "selu", "softmin", "softshrink",
        "softsign", "tanhshrink", "threshold",
    ),
    "elementwise.arithmetic": (
        "addcdiv", "addcmul", "angle", "clip", "copysign", "deg2rad", "fmod", "frac", "hypot",
        "lerp", "nan_to_num", "nextafter", "rad2deg", "signbit",
    ),
    "elementwise.comparison": (
        "aminmax", "fmax", "fmin", "heaviside", "isclose",
    ),
    "index.masks": (
        "argwhere", "masked_fill", "masked_scatter", "masked_select", "nonzero",
    ),
    "index.scatter": (
        "index_copy", "index_fill", "put", "scatter",
    ),
    "index.search": (
        "bincount", "bucketize", "histogram", "isin", "searchsorted",
    ),
    "index.sort": (
        "argsort", "kthvalue", "msort", "sort", "topk",
    ),
    "index.unique": (
        "unique",
    ),
    "nn.pooling": (
        "avg_pool2d", "max_pool2d",
    ),
    "nn.rotary": (
        "rotary_embedding",
    ),
    "reduce.norms_and_counts": (
        "amax", "amin", "count_nonzero", "nanmax", "nanmean", "nanmin", "nansum", "norm",
    ),
    "reduce.quantiles": (
        "median", "nanmedian", "nanquantile", "quantile",
    ),
    "reduce.scans": (
        "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff",
        "logcumsumexp", "trapezoid",
    ),
    "reduce.statistics": (
        "corrcoef", "cov",
    ),
    "shape.builders": (
        "unflatten",
    ),
    "shape.diagonals": (
        "diag", "diag_embed", "diagonal", "rot90",
    ),
    "shape.splitting": (
        "atleast_1d", "atleast_2d", "atleast_3d", "chunk", "ravel", "tensor_split", "unbind",
        "unstack",
    ),
    "shape.tiling": (
        "repeat", "repeat_interleave", "tile", "unfold",
    ),
}  # fmt: skip
