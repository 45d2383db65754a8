"""Kernels of fused groups, of single large ops, and of many small tensors at once."""
