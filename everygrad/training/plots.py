"""Curves of a run as a picture, by matplotlib."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everygrad.errors import ArgumentError

_NEVER = {"step", "epoch", "seconds"}


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def figure(who: str, rows: int) -> Any:
    """A figure outside pyplot, which has global state: no display is needed."""
    if not available():
        raise ImportError(f"{who}: needs matplotlib: pip install matplotlib")
    made = importlib.import_module("matplotlib.figure").Figure(
        figsize=(7, 2.6 * rows + 0.6), layout="constrained"
    )
    return made, made.subplots(rows, 1, squeeze=False)[:, 0]


def draw_history(history: Sequence[Mapping[str, Any]], path: Any) -> Path:
    """Draw the numbers of a run over its steps, losses together and everything else by itself.

    >>> import everygrad as eg, tempfile
    >>> rows = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0, "val_loss": 1.5}]
    >>> eg.training.draw_history(rows, tempfile.mkdtemp() + "/curves.png").name
    'curves.png'
    """
    names: dict[str, None] = {}
    for row in history:
        names.update({k: None for k, v in row.items() if isinstance(v, int | float)})
    losses = [n for n in names if n.endswith("loss")]
    others = [n for n in names if n not in _NEVER and n not in losses]
    panels = [losses, *([n] for n in others)] if losses else [[n] for n in others]
    if not panels:
        raise ArgumentError("draw_history: the history has no numbers to draw")
    made, axes = figure("draw_history", len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for name in panel:
            points = [(r["step"], r[name]) for r in history if _finite(r.get(name))]
            marks = "o" if len(points) < 40 else None
            axis.plot(*zip(*points, strict=True), marker=marks, markersize=3, label=name) if (
                points
            ) else None
        axis.set_ylabel(panel[0] if len(panel) == 1 else "loss")
        axis.grid(alpha=0.3)
        if len(panel) > 1:
            axis.legend(frameon=False)
    axes[-1].set_xlabel("step")
    where = Path(path)
    where.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(where, dpi=120)
    return where


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
