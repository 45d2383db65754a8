"""The report as text: the same table on the screen and in RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks import longchain
from benchmarks.longchain import ChainTimes
from benchmarks.measure import Result
from benchmarks.startup import ALLOWED_S, ImportTimes

Rows = list[list[str]]


@dataclass
class Report:
    """Everything one run found out."""

    labels: list[str]
    rounds: int
    machine: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    imports: ImportTimes | None = None
    chains: list[ChainTimes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """A peer failed, or peers disagreed: some figure is missing."""
        return bool(self.problems) or any(result.problem for result in self.results)

    @property
    def missed(self) -> bool:
        """Some target was not shown to be met."""
        slow = any(result.met is not True for result in self.results)
        return slow or (self.imports is not None and not self.imports.met) or not self.chain_met

    @property
    def chain_met(self) -> bool:
        mine = [c for c in self.chains if c.peer == self.labels[0]]
        return len(mine) < 2 or longchain.met(mine[0], mine[-1])


def _table(rows: Rows) -> list[str]:
    """A Markdown table; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0]] + ["-" * (w - 1) + ":" for w in widths[1:]]
    lines = []
    for row in [rows[0], rule, *rows[1:]]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _yes(met: bool | None) -> str:
    return {True: "yes", False: "NO", None: "?"}[met]


def ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def result_row(result: Result, labels: list[str]) -> list[str]:
    """One line of the main table."""
    target = f"<= {result.workload.target:g}"
    if result.problem:
        return [result.workload.name, *("-" for _ in labels), "-", "-", target, "FAILED", "-"]
    ratio, spread = result.ratio, result.spread
    return [
        result.workload.name,
        *(ms(result.median(label)) for label in labels),
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if spread is None else f"{spread[0]:.2f}-{spread[1]:.2f}",
        target,
        _yes(result.met),
        str(result.disturbed),
    ]


def header(labels: list[str]) -> list[str]:
    return ["workload", *(f"{label} ms" for label in labels), "ratio", "quartiles", "target", "met",
            "disturbed"]  # fmt: skip


def _first_calls(report: Report) -> list[str]:
    done = [r for r in report.results if not r.problem]
    if not done:
        return []
    rows = [["first call", *(f"{label} ms" for label in report.labels)]]
    rows += [[r.workload.name, *(ms(r.first[label]) for label in report.labels)] for r in done]
    return ["", "The first step of each workload in a process that has imported the library:",
            "", *_table(rows)]  # fmt: skip


def _imports(times: ImportTimes | None) -> list[str]:
    if times is None:
        return []
    heavy = ", ".join(times.heavy) or "none"
    rows = [
        ["import", "everygrad ms", "numpy ms", "difference", "target", "met"],
        ["fresh interpreter", ms(times.ours_s), ms(times.numpy_s),
         ms(times.ours_s - times.numpy_s), f"<= {ALLOWED_S * 1e3:.0f}", _yes(times.met)],
    ]  # fmt: skip
    return ["", *_table(rows), "", f"Device, compiler or peer packages it loads: {heavy}."]


def _chains(report: Report) -> list[str]:
    if not report.chains:
        return []
    head = ["long chain", "ops", "build s", "backward s", "delete after s", "delete s", "peak MB",
            "others"]  # fmt: skip
    rows = [head]
    for c in report.chains:
        seconds = (c.build_s, c.backward_s, c.delete_after_s, c.delete_s)
        rows.append([c.peer, f"{c.length:,}", *(f"{s:.2f}" for s in seconds), str(c.peak_mb),
                     f"{c.others:.1f}"])  # fmt: skip
    allowed = f"{longchain.LINEAR:g} times the time for 4 times the ops"
    return [
        "", *_table(rows), "",
        "`delete after`: what backward left; `delete`: a whole graph never taken backward;",
        "`others`: cores that other processes kept busy meanwhile.",
        f"Target: backward and deletions of 1,000,000 ops <= {longchain.LIMIT_S:g} s and linear "
        f"(at most {allowed}): met {_yes(report.chain_met)}.",
    ]  # fmt: skip


def _problems(report: Report) -> list[str]:
    lines = [f"{r.workload.name}: {r.problem}" for r in report.results if r.problem]
    lines += report.problems
    return ["", "Failures:", "", *(f"    {line}" for t in lines for line in t.splitlines())] \
        if lines else []  # fmt: skip


def render(report: Report) -> str:
    """The whole report."""
    lines = [f"- {line}" for line in report.machine]
    if report.results:
        rows = [header(report.labels)]
        rows += [result_row(result, report.labels) for result in report.results]
        lines += [
            "",
            f"Median of {report.rounds} rounds a peer, rounds in turn, float32; milliseconds a "
            "step. The ratio is ours over the fastest peer's;",
            "its quartiles are over the rounds taken in pairs. `disturbed` counts rounds in which "
            "other processes took part of the machine:",
            "where most are, no quiet machine was found and `met` is left open.",
            "",
            *_table(rows),
            "",
            *(f"- `{r.workload.name}`: {r.workload.about}" for r in report.results),
            *_first_calls(report),
        ]
    lines += _imports(report.imports) + _chains(report) + _problems(report)
    return "\n".join(lines) + "\n"


def markdown(report: Report, date: str) -> str:
    return f"# Benchmarks\n\nWritten by `make bench ARGS=--write` on {date}.\n\n{render(report)}"
