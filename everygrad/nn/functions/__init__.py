"""Functions of `nn.functional` that are made of ops and have no record of their own."""
