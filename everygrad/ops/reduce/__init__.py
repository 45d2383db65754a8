"""Reductions and scans along axes, and what statistics make of them."""
