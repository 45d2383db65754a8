"""Compiled functions on CUDA: launches recorded, rewritten, captured into CUDA graphs."""
