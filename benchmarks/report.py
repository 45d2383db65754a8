"""The report as text: the same table on the screen and in RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.compare import COPY, Match, judge, matches
from benchmarks.harness.measure import Result, Start
from benchmarks.peers import FLOOR
from benchmarks.probes import longchain
from benchmarks.probes.longchain import ChainTimes
from benchmarks.probes.overhead import ALLOWED_S as CALL_S, CASES, OURS, Overhead
from benchmarks.probes.startup import ALLOWED_S, ImportTimes

Rows = list[list[str]]
# A second step this many times the third one still compiles, and is worth a line.
LATE = 5.0


@dataclass
class Report:
    """Everything one run found out. `missing`: peers asked for that cannot run here, and why."""

    labels: list[str]
    rounds: int
    first: bool = False
    machine: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    imports: ImportTimes | None = None
    overheads: list[Overhead] = field(default_factory=list)
    chains: list[ChainTimes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """A peer is missing, failed or disagreed: some figure is not there."""
        return bool(self.missing or self.problems) or any(r.failures for r in self.results)

    @property
    def matches(self) -> list[Match]:
        """Missing peers take part: a match without them is not won."""
        return matches([*self.labels, *self.missing])

    @property
    def missed(self) -> bool:
        """Some target was not shown to be met."""
        every = [*self.matches, COPY] if OURS in self.labels else self.matches
        slow = any(judge(match, result).missed for match in every for result in self.results)
        late = any(_first_met(r) is False for r in self.results) if self.first else False
        calls = [o.met(case) for o in self.overheads for case in CASES if o.peer == OURS]
        imports = self.imports is not None and not self.imports.met
        return slow or late or False in calls or imports or not self.chain_met

    @property
    def chain_met(self) -> bool:
        mine = [c for c in self.chains if c.peer == "everygrad"]
        return len(mine) < 2 or longchain.met(mine[0], mine[-1])


def _first_met(result: Result) -> bool | None:
    """Whether jit's first calls keep their bounds; None where there are none or no figures."""
    start, targets = result.first.get(OURS), result.workload.first_targets
    if start is None or targets is None or start.warm_s is None or OURS in result.failures:
        return None
    return start.cold_s <= targets[0] and start.warm_s <= targets[1]


def table(rows: Rows) -> list[str]:
    """A Markdown table; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0]] + ["-" * (w - 1) + ":" for w in widths[1:]]
    lines = []
    for row in [rows[0], rule, *rows[1:]]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def yes(met: bool | None) -> str:
    return {True: "yes", False: "NO", None: "?"}[met]


def ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def progress(result: Result, labels: list[str]) -> str:
    """One workload in one line, while the run goes on."""
    cells = [f"{result.workload.name}:"]
    cells += [f"{label} {_time(result, label)}" for label in labels]
    for match in matches(labels):
        verdict = judge(match, result)
        if verdict.ratio is not None:
            bound = "" if verdict.target is None else f" (<= {verdict.target:g})"
            cells.append(f"{match.ours}/{verdict.best} {verdict.ratio:.2f}{bound}")
    return "  ".join(cells)


def _time(result: Result, label: str) -> str:
    if label in result.failures:
        return "FAILED"
    return ms(result.median(label)) if label in result.times else "-"


def _times(report: Report) -> list[str]:
    rows = [["workload", *(f"{label} ms" for label in report.labels), "disturbed"]]
    for r in report.results:
        rows.append([r.workload.name, *(_time(r, x) for x in report.labels), str(r.disturbed)])
    return [
        "",
        f"Median of {report.rounds} rounds a peer, rounds in turn, float32; milliseconds a step. "
        "`disturbed` counts rounds in which",
        "other processes took part of the machine: where most are, no quiet machine was found and "
        "`met` below is left open.",
        "",
        *table(rows),
        "",
        *(f"- `{r.workload.name}`: {r.workload.about}" for r in report.results),
    ]


def _match(match: Match, results: list[Result]) -> list[str]:
    rows = [["workload", f"{match.ours} ms", "fastest", "its ms", "ratio", "quartiles", "target",
             "met"]]  # fmt: skip
    for r in results:
        v = judge(match, r)
        rows.append([
            r.workload.name,
            _time(r, match.ours),
            v.best or "-",
            _time(r, v.best),
            "-" if v.ratio is None else f"{v.ratio:.2f}",
            "-" if v.spread is None else f"{v.spread[0]:.2f}-{v.spread[1]:.2f}",
            "-" if v.target is None else f"<= {v.target:g}",
            "-" if v.target is None else yes(v.met),
        ])  # fmt: skip
    return ["", f"{match.title}; quartiles over the rounds taken in pairs:", "", *table(rows)]


def _floor(report: Report) -> list[str]:
    bound = [r for r in report.results if FLOOR in r.times]
    if OURS in report.labels:
        return _match(COPY, bound) if bound else []
    floors = [f"`{r.workload.name}` {ms(r.median(FLOOR))} ms" for r in bound]
    return ["", f"A copy of the same bytes: {', '.join(floors)}."] if floors else []


def _first_calls(report: Report) -> list[str]:
    done = [r for r in report.results if r.first]
    if not done:
        return []
    warm = [x for x in report.labels if any(_warm(r.first.get(x)) != "-" for r in done)]
    rows = [["first call", *(f"{x} ms" for x in report.labels), *(f"{x} warm ms" for x in warm)]]
    for r in done:
        cold = [ms(r.first[x].cold_s) if x in r.first else "-" for x in report.labels]
        rows.append([r.workload.name, *cold, *(_warm(r.first.get(x)) for x in warm)])
    where = "in a process that has imported the library, disk caches as they were found:"
    if report.first:
        where = "in a new process that has imported the library, disk cache empty; `warm`: full."
    return ["", f"The first step of each workload {where}", "", *table(rows), *_first_notes(done)]


def _warm(start: Start | None) -> str:
    return "-" if start is None or start.warm_s is None else ms(start.warm_s)


def _first_notes(done: list[Result]) -> list[str]:
    """The targets, and who goes on compiling in the second step."""
    lines = []
    for r in done:
        if r.workload.first_targets and OURS in r.first:
            cold, warm = r.workload.first_targets
            lines.append(f"Target of {OURS} on `{r.workload.name}`: {cold:g} s cold, {warm:g} s "
                         f"warm: met {yes(_first_met(r))}.")  # fmt: skip
        late = [
            f"{label} {ms(start.second_s)} ms"
            for label, start in r.first.items()
            if start.second_s > max(0.05, LATE * start.cold[0][-1])
        ]
        if late:
            lines.append(f"The second step of `{r.workload.name}` is slow too: {', '.join(late)}.")
    return ["", *lines] if lines else []


def _overheads(report: Report) -> list[str]:
    if not report.overheads:
        return []
    rows = [["empty call", *(f"{o.peer} us" for o in report.overheads), "target", "met"]]
    ours = next((o for o in report.overheads if o.peer == OURS), None)
    for name, case in CASES.items():
        times = [f"{o.seconds[name] * 1e6:.1f}" for o in report.overheads]
        bound = case.bound and ours is not None
        met = yes(ours.met(name)) if bound and ours is not None else "-"
        rows.append([name, *times, f"<= {CALL_S * 1e6:g}" if bound else "-", met])
    return ["", "One call of a compiled function that returns:", "", *table(rows)]


def _imports(times: ImportTimes | None) -> list[str]:
    if times is None:
        return []
    heavy = ", ".join(times.heavy) or "none"
    rows = [
        ["import", "everygrad ms", "numpy ms", "difference", "target", "met"],
        ["fresh interpreter", ms(times.ours_s), ms(times.numpy_s),
         ms(times.ours_s - times.numpy_s), f"<= {ALLOWED_S * 1e3:.0f}", yes(times.met)],
    ]  # fmt: skip
    return ["", *table(rows), "", f"Device, compiler or peer packages it loads: {heavy}."]


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
        "", *table(rows), "",
        "`delete after`: what backward left; `delete`: a whole graph never taken backward;",
        "`others`: cores that other processes kept busy meanwhile.",
        f"Target: backward and deletions of 1,000,000 ops <= {longchain.LIMIT_S:g} s and linear "
        f"(at most {allowed}): met {yes(report.chain_met)}.",
    ]  # fmt: skip


def _missing(report: Report) -> list[str]:
    lines = [
        f"- `{label}`: {why.strip().splitlines()[-1]}" for label, why in report.missing.items()
    ]
    return ["", "Missing peers, without which a match is not won:", "", *lines] if lines else []


def _problems(report: Report) -> list[str]:
    lines = [f"{r.workload.name}: {label}: {why}" for r in report.results
             for label, why in r.failures.items()]  # fmt: skip
    lines += report.problems
    return ["", "Failures:", "", *(f"    {line}" for t in lines for line in t.splitlines())] \
        if lines else []  # fmt: skip


def head(report: Report) -> list[str]:
    """The machine, and who could not take part."""
    return [f"- {line}" for line in report.machine] + _missing(report)


def body(report: Report) -> str:
    """What was measured."""
    lines: list[str] = []
    if report.results:
        lines += _times(report)
        for match in report.matches:
            lines += _match(match, report.results)
        lines += _floor(report) + _first_calls(report)
    lines += _overheads(report) + _imports(report.imports) + _chains(report) + _problems(report)
    return "\n".join(lines) + "\n"


def render(report: Report) -> str:
    """The whole report."""
    return "\n".join([*head(report), body(report)])


def markdown(report: Report, date: str) -> str:
    return f"# Benchmarks\n\nWritten by `make bench ARGS=--write` on {date}.\n\n{render(report)}"
