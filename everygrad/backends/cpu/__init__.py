"""The CPU: NumPy for small arrays, generated LLVM kernels for large ones, BLAS for products."""
