"""`python -m devtools.onnx_zoo [NAME ...]`: the zoo's networks through `from_torch`, `save_onnx`,
onnxruntime and `load_onnx`, with the largest difference of each from what they give here."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import everygrad as eg

ALLOWED = 1e-4  # relative to the largest number of a result


def listed(out: Any) -> list[Any]:
    return [out] if isinstance(out, eg.Tensor) else list(out)


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest, relative to the largest number of each result."""
    return max(
        float(np.abs(f - w).max()) / max(1e-3, float(np.abs(w).max()))
        for f, w in zip(found, wanted, strict=True)
    )


def compared(network: Any, inputs: tuple[Any, ...], path: Path) -> tuple[int, float, float]:
    """The number of nodes, and the differences of onnxruntime and of our importer."""
    with eg.no_grad():
        wanted = [w.numpy() for w in listed(network(*inputs))]
        eg.io.save_onnx(network, inputs, path)
        again = [b.numpy() for b in listed(eg.io.load_onnx(path).eval()(*inputs))]
    graph = onnx.load(str(path)).graph
    ort: Any = import_module("onnxruntime")  # ships no types
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {p.name: x.numpy() for p, x in zip(graph.input, inputs, strict=True)}
    found = list(session.run(None, given))
    return len(graph.node), difference(found, wanted), difference(again, wanted)


def main(names: Sequence[str]) -> int:
    """Print a line for each; the exit status."""
    cases: dict[str, Any] = import_module("devtools.zoo.table").CASES
    from_torch: Any = import_module("everygrad.interop.torch.module").from_torch
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names or cases:
            begin, case = time.process_time(), cases[name]
            arguments = case.arguments()
            network = from_torch(case.network(), arguments).eval()
            inputs = tuple(eg.tensor(a.numpy()) for a in arguments)
            nodes, there, here = compared(network, inputs, Path(folder) / "model.onnx")
            bad = max(there, here) > ALLOWED
            wrong += bad
            took = f"{time.process_time() - begin:.1f} s"
            shown = f"nodes {nodes:<4} onnxruntime {there:.1e}  imported {here:.1e}  {took}"
            print(f"{name:<14} {shown}{'  WRONG' if bad else ''}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
