"""Tensors as Python objects: creation, conversion, indexing, assignment, printing, protocols."""
