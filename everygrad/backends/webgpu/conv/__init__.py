"""Convolutions: products that read images in place."""
