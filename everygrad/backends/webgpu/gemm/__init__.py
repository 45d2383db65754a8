"""Matrix products: the choice of a kernel, tiled GEMM, GEMV, epilogues."""
