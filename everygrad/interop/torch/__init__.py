"""PyTorch's programs on this library: `aten/` says what each ATen op is here, `graph` runs a graph
of them, `module` makes Modules of exported ones, `backend` serves `torch.compile` by `compiled`
graphs on PyTorch's memory (`layouts`, `sizes`, `recurrent`, `cuda`), `function` gives functions of
ours to PyTorch."""
