"""The CUDA driver, NVRTC, CuPy and DLPack: devices, memory, modules, streams, launches.

May know: `backends`. Nothing here knows an op.
"""
