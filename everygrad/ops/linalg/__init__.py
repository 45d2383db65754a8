"""Matrix products, factorisations, solutions, eigenvalues."""
