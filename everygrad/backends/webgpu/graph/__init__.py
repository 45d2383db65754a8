"""Compiled functions on WebGPU: recorded on placeholders, submitted by one native call."""
