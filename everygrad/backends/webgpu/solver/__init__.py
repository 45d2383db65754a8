"""Factorisations and solutions of linear systems, block by block, and rotations of Jacobi's."""
