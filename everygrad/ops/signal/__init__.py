"""Fourier transforms, short-time transforms, window functions."""
