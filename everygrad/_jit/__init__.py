"""`eg.jit`: runs a function on tensors without values, and replays what it did.

The folder has an underscore because `eg.jit` is a function: no name is a module and a function at
once. May know: everything up to `ops` and the transformations.
"""
