"""The benchmark of loaders runs, and its committed table says what the issue asks for."""

from __future__ import annotations

from benchmarks.loader import TABLE, WORKERS, measure, table


def test_it_runs() -> None:
    best = measure(samples=32, rounds=1)
    assert [*best] == [*WORKERS]
    text = table(best)
    assert text.splitlines()[0] == "| loader | 1 worker | 2 workers |"
    for rates in best.values():
        assert len(rates) == 3
        assert min(rates.values()) > 0


def test_the_committed_table_is_ahead_of_pytorch() -> None:
    rows = {
        cells[0].strip(): [float(c) for c in cells[1:]]
        for cells in (line.strip("| ").split("|") for line in TABLE.read_text().splitlines()[6:])
    }
    assert len(rows) == 3
    ours, theirs = rows["everygrad, processes"], rows["PyTorch, processes"]
    assert len(ours) == len(WORKERS)
    assert all(a >= b for a, b in zip(ours, theirs, strict=True))
