"""Operators of other domains than ONNX's default one: ai.onnx.ml, ai.onnx.preview.training, and
com.microsoft, which onnxruntime's exporters write for language models."""
