"""Ops that move elements and compute nothing: views, joins, splits, tiles, diagonals."""
