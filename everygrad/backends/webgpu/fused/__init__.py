"""Kernels of fused groups: threads mapped to rows, accumulators, partial sums."""
