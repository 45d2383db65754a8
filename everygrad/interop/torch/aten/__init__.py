"""What each ATen op is in this library's ops: one file for a family, all in one table.

Handlers take and give Tensors, numbers and containers of them, and know nothing of PyTorch.
`table` imports every family, and is what others import."""
