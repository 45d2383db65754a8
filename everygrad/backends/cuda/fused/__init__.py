"""Kernels of fused groups: rows, values, partial sums and their second stage."""
