"""Ops of neural networks: softmax, norms, attention, convolutions, pooling, resampling."""
