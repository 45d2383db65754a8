"""ONNX files: `importing` makes Modules of them, `checks` and `tensors` refuse what is malformed,
`program` runs a graph by the handlers in `operators/`, `exporting` writes traced functions."""
