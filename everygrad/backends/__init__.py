"""Devices: buffers and programs."""
