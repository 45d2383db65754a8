"""Traced functions as ONNX files: `tracing` records a function with the ops that ONNX has left
whole, `sizes` finds what changes with the sizes of the inputs, `writer` collects nodes, and a table
for each family of ops says how a record is written; `saving` is `eg.io.save_onnx`."""
