"""Shapes around the numbers at which kernels change their ways, against float64: `make sweep`.

A *section* draws cases and checks them. Most sections are lists of *makers*: a maker draws one
`Problem`, a function of tensors beside the same function of PyTorch tensors. Each problem is run
in several *ways* (eager, compiled), values and gradients, and compared element by element with
the referee's float64. `registry.SECTIONS` names the sections; a case is replayed from the choices
that drew it.
"""
