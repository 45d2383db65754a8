"""Training over a mesh: data parallel, ZeRO, tensor parallel and pipelines."""
