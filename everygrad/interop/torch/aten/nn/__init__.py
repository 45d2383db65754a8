"""ATen ops of neural networks: layers, activations and losses, with the backwards PyTorch names."""
