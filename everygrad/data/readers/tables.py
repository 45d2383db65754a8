"""Tables: CSV and Parquet files as NumPy arrays by column, read by pyarrow or polars."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from everygrad.errors import ArgumentError

_ENGINES = {
    "pyarrow": lambda: import_module("pyarrow"),
    "polars": lambda: import_module("polars"),
}


def read_csv(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    delimiter: str = ",",
    engine: str | None = None,
) -> dict[str, Any]:
    """The columns of a CSV file as NumPy arrays by name; texts become lists of strings.

    `engine` is "pyarrow" or "polars", by default the one that is installed.

    >>> import everygrad as eg
    >>> table = eg.data.read_csv("measured.csv", ["x", "y"])  # doctest: +SKIP
    """
    if len(delimiter) != 1:
        raise ArgumentError(f"read_csv: delimiter must be one character, got {delimiter!r}")
    name, module = _engine("read_csv", engine)
    if name == "polars":
        return _polars(module.read_csv(path, separator=delimiter), columns, "read_csv")
    csv = import_module("pyarrow.csv")
    parse = csv.ParseOptions(delimiter=delimiter)
    return _arrow(csv.read_csv(os.fspath(path), parse_options=parse), columns, "read_csv")


def read_parquet(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    engine: str | None = None,
) -> dict[str, Any]:
    """The columns of a Parquet file as NumPy arrays by name; texts become lists of strings.

    Only the columns that are asked for are read.

    >>> import everygrad as eg
    >>> table = eg.data.read_parquet("measured.parquet", ["x"])  # doctest: +SKIP
    """
    name, module = _engine("read_parquet", engine)
    if name == "polars":
        there = module.read_parquet_schema(path)
        _check_columns("read_parquet", columns, list(there))
        chosen = None if columns is None else list(columns)
        return _polars(module.read_parquet(path, columns=chosen), columns, "read_parquet")
    parquet = import_module("pyarrow.parquet")
    _check_columns("read_parquet", columns, parquet.read_schema(os.fspath(path)).names)
    chosen = None if columns is None else list(columns)
    return _arrow(parquet.read_table(os.fspath(path), columns=chosen), columns, "read_parquet")


def _engine(reader: str, wanted: str | None) -> tuple[str, Any]:
    if wanted is not None and wanted not in _ENGINES:
        raise ArgumentError(f"{reader}: engine must be one of {[*_ENGINES]}, got {wanted!r}")
    for name in _ENGINES if wanted is None else (wanted,):
        try:
            return name, _ENGINES[name]()
        except ModuleNotFoundError as error:
            if error.name != name:  # installed, but broken
                raise
    missing = " or ".join(_ENGINES if wanted is None else (wanted,))
    raise ImportError(f"{reader}: needs {missing}: pip install {wanted or 'pyarrow'}")


def _check_columns(reader: str, wanted: Sequence[str] | None, there: Sequence[str]) -> None:
    absent = [c for c in wanted or () if c not in there]
    if absent:
        raise ArgumentError(f"{reader}: no column {absent[0]!r}; there are {list(there)}")


def _arrow(table: Any, columns: Sequence[str] | None, reader: str) -> dict[str, Any]:
    _check_columns(reader, columns, table.column_names)
    out = {}
    for name in table.column_names if columns is None else columns:
        column = table.column(name)
        out[name] = _values(column.to_numpy(), column.to_pylist)
    return out


def _polars(table: Any, columns: Sequence[str] | None, reader: str) -> dict[str, Any]:
    _check_columns(reader, columns, table.columns)
    names = table.columns if columns is None else columns
    return {n: _values(table[n].to_numpy(), table[n].to_list) for n in names}


def _values(array: Any, listed: Any) -> Any:
    """An array of numbers or dates, or the list of values where NumPy has no dtype for them."""
    return listed() if array.dtype.kind in "OSUT" else np.asarray(array)
