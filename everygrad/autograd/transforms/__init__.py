"""Transformations of functions, written in tensor ops: vmap, forward mode, grad and its kin,
checkpoint, gradcheck.

May know: everything up to `ops`. The engine below knows none of them.
"""
