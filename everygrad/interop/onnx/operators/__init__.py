"""What each ONNX operator is here: a handler by `registry.onnx_op`, one file for each family;
`table` loads them all."""
