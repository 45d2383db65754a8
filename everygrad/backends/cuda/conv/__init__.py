"""Convolutions by cuDNN, and pooling."""
