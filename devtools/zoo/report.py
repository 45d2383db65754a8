"""The zoo's outcome as a page: benchmarks/ZOO.md."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from devtools.zoo.check import CHECKS, SLACK, STEPS, TOLERANCES, Outcome

PAGE = Path(__file__).parents[2] / "benchmarks/ZOO.md"
_LIBRARIES = ("torch", "transformers", "timm", "torchvision")

_HEAD = """# The zoo

Written by `make zoo`. Architectures of transformers, timm, torchvision and PyTorch itself, built
from small configurations with random weights, on the CPU, without dropout; in float32, and in
float64 where a norm over two examples would hide faults in float32's rounding. Each goes through

- `torch.compile(network, backend="everygrad", fullgraph=True, options={{"fullgraph": True}})`:
  **forward** in evaluation mode, outputs and **gradients** in training mode, and {steps} steps of
  **training** (SGD with momentum, gradients clipped to norm 1), after which losses and the changes
  of weights and buffers are compared;
- `eg.from_torch(network, inputs)`: its outputs in evaluation mode, and **its gradients** in
  training mode.

The figures are the largest difference from PyTorch's eager mode, of the largest number of each
tensor (of a hundredth of the largest of all, where that is more). They may be {single:.0e} in
float32 and {double:.0e} in float64, or {slack} times what eager itself differs by from eager in
float64. Nodes that are left to PyTorch would be an error, and are listed.

"""


def page(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    single, double = TOLERANCES.values()
    right = sum(outcome.right for outcome in outcomes)
    missing = sorted({name for outcome in outcomes for name in outcome.missing})
    lines = [
        _HEAD.format(steps=STEPS, single=single, double=double, slack=SLACK),
        f"**{right} of {len(outcomes)} are right in every column.** "
        f"Overloads that were missing: {', '.join(missing) or 'none'}.",
        "",
        f"| architecture | from | dtype | parameters | {' | '.join(CHECKS)} |",
        f"|---|---|---|{'---:|' * (1 + len(CHECKS))}",
        *(_row(outcome) for outcome in outcomes),
        "",
    ]
    faults = [f"- {o.name}: {fault[:400]}" for o in outcomes for fault in o.faults()]
    if faults:
        lines += ["What went wrong:", "", *faults, ""]
    made = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES if find_spec(name))
    lines.append(f"With {made}; Python {platform.python_version()}.")
    return "\n".join(lines) + "\n"


def _row(outcome: Outcome) -> str:
    cells = [outcome.name, outcome.library, outcome.dtype, f"{outcome.parameters:,}"]
    for check in CHECKS:
        found = outcome.differences.get(check)
        shown = "failed" if found is None else f"{found:.0e}"
        cells.append(shown if outcome.holds(check) else f"**{shown}**")
    return f"| {' | '.join(cells)} |"
