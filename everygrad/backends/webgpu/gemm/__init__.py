"""Matrix products and convolutions: the choice of a kernel, tiled GEMM, GEMV, epilogues."""
