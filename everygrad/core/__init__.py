"""What everything else stands on: settings, shapes, strides, context, protocols, the Tensor.

May know: `errors`, `dtypes` and the lower half of `autograd` (the Tensor holds a node). Nothing
here knows an op, a graph of the compiler or a device.
"""
