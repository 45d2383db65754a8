"""Convolutions and pooling as generated kernels."""
