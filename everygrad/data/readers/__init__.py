"""Readers of files: arrays, tables, images, tokens."""
