"""Attention and its derivatives."""
