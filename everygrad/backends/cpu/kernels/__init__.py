"""Kernels of single ops: the registry of them, NumPy's way, and generated ones: copies, gathers,
scans, sorts, searches, random bits.
"""
