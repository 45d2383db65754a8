"""What everything else stands on: settings, shapes, context blocks, the Tensor itself.

May know: `errors`, `dtypes`, `compile`, `backends.base` and the lower half of `autograd` (the
Tensor holds a node); nothing here knows an op.
"""
