"""Elementwise ops: a scalar body and its derivatives."""
