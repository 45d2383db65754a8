"""Attention and its derivatives as generated kernels."""
