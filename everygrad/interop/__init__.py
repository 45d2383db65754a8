"""Other libraries' programs and arrays: PyTorch's graphs and modules, ONNX files, JAX's functions.

May know everything below it; nothing else knows it. What it needs of other libraries is imported
when it is first asked for, and only through their public names."""
