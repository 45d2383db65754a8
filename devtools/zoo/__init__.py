"""Forty architectures of other libraries, each trained by PyTorch and by everygrad: `make zoo`."""
