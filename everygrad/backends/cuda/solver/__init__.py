"""Factorisations and Fourier transforms by cuSOLVER, cuBLAS and cuFFT; kernels around them."""
