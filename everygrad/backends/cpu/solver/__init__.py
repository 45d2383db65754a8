"""Factorisations and Fourier transforms by NumPy's libraries."""
