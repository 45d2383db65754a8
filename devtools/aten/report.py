"""What was checked, as a page: benchmarks/ATEN.md."""

from __future__ import annotations

from pathlib import Path

import torch

from devtools.aten.checking import Log
from devtools.aten.rows import core_overloads
from everygrad.interop.torch.aten.table import HANDLERS

PAGE = Path(__file__).parents[2] / "benchmarks" / "ATEN.md"
_BEHIND = "behind a size"


def _line(name: str, log: Log) -> str:
    nodes = sum(log.checked.values())
    return f"| {name} | {nodes:,} | {len(log.checked)} | {len(log.drawn)} | {len(log.wrong)} |"


def page(logs: dict[str, Log], samples: int) -> str:
    """The whole page."""
    whole = Log()
    for log in logs.values():
        whole.add(log)
    core = {f"aten::{name}" for name in core_overloads()}
    refused = {name: HANDLERS[name].refused for name in HANDLERS if HANDLERS[name].refused}
    seen = set(whole.checked) | set(whole.drawn)
    reached = {name: len(core & (set(log.checked) | set(log.drawn))) for name, log in logs.items()}
    absent = sorted(n for n in whole.missing if n not in refused and not n.startswith(_BEHIND))
    lines = [
        "# ATen ops beside PyTorch",
        "",
        "Written by `python -m devtools.aten --write`: every node of PyTorch's graphs is computed",
        f"by PyTorch {torch.__version__} and by the table in `everygrad/interop/torch/aten`, on",
        "the same values. Graphs are those of aot_autograd for PyTorch's own samples of its ops",
        f"(`op_db`, at most {samples} an op and dtype; float64, float32 and int64 forward, float64",
        "backward), with the core decompositions and without any; rows are calls of single",
        "overloads, in six dtypes and inside `eg.jit`.",
        "",
        "| from | nodes equal | overloads | that draw random numbers | nodes that differ |",
        "|---|---|---|---|---|",
        *(_line(name, log) for name, log in logs.items()),
        _line("all", whole),
        "",
        f"- The table has {len(HANDLERS)} overloads, of which {len(seen & set(HANDLERS))} were",
        f"  reached. PyTorch tags {len(core)} as core: {len(core & seen)} were checked, "
        f"{len(core & set(refused))} are refused.",
        "- Core overloads reached: " + ", ".join(f"{n}: {k}" for n, k in reached.items()) + ".",
        f"- {sum(whole.untraced.values())} samples cannot be traced by PyTorch itself.",
        "",
        "## Refused",
        "",
        *(f"- `{name}`: {why}" for name, why in sorted(refused.items())),
        "",
        "## Not in the table",
        "",
        "Overloads that the samples reach and nobody has written: " + ", ".join(
            f"`{name.removeprefix('aten::')}`" for name in absent
        ) + ".",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def write(logs: dict[str, Log], samples: int) -> None:
    PAGE.write_text(page(logs, samples), encoding="utf-8")
