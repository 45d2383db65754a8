"""Matrix products: generated kernels, and BLAS where it is faster."""
