"""Whole networks with random weights: `layers` are written once for us and for PyTorch, `models`
are made of them, `check` compares layer by layer, and `section` makes it a part of the sweep."""
