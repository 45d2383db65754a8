"""Makers of problems, one file for each kind of op."""
