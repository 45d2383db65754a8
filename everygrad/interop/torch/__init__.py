"""PyTorch's programs on this library: `aten/` says what each ATen op is here, `graph` runs a graph
of them, `module` makes Modules of exported ones, `backend` serves `torch.compile`."""
