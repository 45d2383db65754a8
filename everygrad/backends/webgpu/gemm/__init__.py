"""Matrix products and convolutions: which kernel serves, tiled and thin ones, epilogues."""
