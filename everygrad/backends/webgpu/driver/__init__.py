"""wgpu: adapters, devices, buffers, commands, reading back.

May know: `backends`. Nothing here knows an op.
"""
