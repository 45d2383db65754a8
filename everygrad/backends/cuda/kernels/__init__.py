"""Kernels of single ops, and the registry of them."""
