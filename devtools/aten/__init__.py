"""Every ATen overload in the table beside PyTorch itself, on PyTorch's own samples of its ops."""
