"""Every public op beside PyTorch: `python -m benchmarks.sweep`."""
