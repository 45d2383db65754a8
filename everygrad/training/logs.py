"""Where the numbers of a run go: a CSV file, JSON lines, TensorBoard.

A row is a dict of numbers with "step". `rewind` makes a log what it was when a checkpoint was
saved: rows behind it are written again by the run that is resumed.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everygrad.errors import ArgumentError


class Log:
    """The base: `write(row)` for each row, `close()` at the end."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        raise NotImplementedError(f"{type(self).__name__} defines no write()")

    def rewind(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Hold what was written up to `step`: these rows."""

    def close(self) -> None:
        """Finish what is pending."""


def _replace(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


class JSONLinesLog(Log):
    """One JSON object a line.

    >>> import everygrad as eg, tempfile
    >>> log = eg.training.JSONLinesLog(tempfile.mkdtemp() + "/log.jsonl")
    >>> log.write({"step": 1, "loss": 0.5})
    >>> log.path.read_text()
    '{"step": 1, "loss": 0.5}\\n'
    """

    def __init__(self, path: Any) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, row: Mapping[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(row)) + "\n")

    def rewind(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        _replace(self.path, "".join(json.dumps(dict(row)) + "\n" for row in rows))


class CSVLog(Log):
    """A table with one column for each number that rows may have; what a row lacks stays empty.

    >>> import everygrad as eg, tempfile
    >>> log = eg.training.CSVLog(tempfile.mkdtemp() + "/log.csv", ["step", "loss"])
    >>> log.write({"step": 1, "loss": 0.5})
    >>> log.path.read_text()
    'step,loss\\n1,0.5\\n'
    """

    def __init__(self, path: Any, columns: Iterable[str]) -> None:
        self.path, self.columns = Path(path), list(columns)
        if "step" not in self.columns:
            raise ArgumentError(f'CSVLog: columns must have "step", got {self.columns}')
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _line(self, values: Sequence[Any]) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerow(values)
        return out.getvalue()

    def _values(self, row: Mapping[str, Any]) -> list[Any]:
        unknown = [name for name in row if name not in self.columns]
        if unknown:
            raise ArgumentError(
                f"CSVLog: no column {', '.join(unknown)} among {', '.join(self.columns)}"
            )
        return [row.get(name, "") for name in self.columns]

    def write(self, row: Mapping[str, Any]) -> None:
        values = self._values(row)
        fresh = not self.path.exists() or not self.path.stat().st_size
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            if fresh:
                file.write(self._line(self.columns))
            file.write(self._line(values))

    def rewind(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        table = [self.columns, *(self._values(row) for row in rows)]
        _replace(self.path, "".join(self._line(line) for line in table))


class TensorBoardLog(Log):
    """Scalars for TensorBoard, by `torch.utils.tensorboard` or `tensorboardX`."""

    def __init__(self, folder: Any) -> None:
        self.folder = Path(folder)
        self._make = summary_writer("TensorBoardLog")
        self._writer: Any = None
        self._purge: int | None = None

    def write(self, row: Mapping[str, Any]) -> None:
        if self._writer is None:  # opened by the first row: by then it is known where to go on
            self._writer = self._make(str(self.folder), purge_step=self._purge)
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["step"])

    def rewind(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._purge = step + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def summary_writer(what: str) -> Any:
    """A class with `add_scalar` and `close`, of a package that is installed, for what needs it."""
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:  # no PyTorch, or no tensorboard beside it
        pass
    try:
        return importlib.import_module("tensorboardX").SummaryWriter
    except ImportError:
        pass
    raise ImportError(
        f"{what}: needs tensorboardX, or tensorboard beside PyTorch: pip install tensorboardX"
    )
