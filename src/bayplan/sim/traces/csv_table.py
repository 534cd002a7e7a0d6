"""Reads a table of text line by line, and says of what it cannot read: the line, the column and what was expected.

A trace may be a year long, so nothing is kept but the line at hand. Files that end in `.gz` are unpacked on the way.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from bayplan.errors import ObjectError

T = TypeVar("T")

_MAX_EXACT_INTEGER = 2**53
"""Amounts above this are mistakes, and floats could not tell them apart."""


class TraceError(ObjectError):
    """A trace that cannot be used. `line` and `column` say where, as far as there is such a place."""

    def __init__(self, path: object, expected: str, *, line: int = 0, column: str = "") -> None:
        place = "".join([str(path), f", line {line}" if line else "", f", column {column}" if column else ""])
        super().__init__(f"{place}: {expected}")
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class CsvColumn(Generic[T]):
    """One column: how a cell is read, what is expected of it, and what stands for a column that is not there."""

    name: str
    read: Callable[[str], T]
    expected: str
    absent: T | None = None
    required: bool = True

    def value(self, text: str) -> T:
        return self.read(text)


def integer_column(name: str, *, lowest: int = 0, absent: int | None = None) -> CsvColumn[int]:
    def read(text: str) -> int:
        number = _parse_integer(text)
        if not lowest <= number <= _MAX_EXACT_INTEGER:
            raise ValueError
        return number

    return CsvColumn(name, read, f"a whole number from {lowest} on", absent, required=absent is None)


def float_column(name: str, *, absent: float | None = None) -> CsvColumn[float]:
    def read(text: str) -> float:
        found = float(text)
        if not 0 <= found <= _MAX_EXACT_INTEGER or "_" in text:
            raise ValueError
        return found

    return CsvColumn(name, read, "a number from 0 on", absent, required=absent is None)


def text_column(name: str, *, absent: str | None = None) -> CsvColumn[str]:
    def read(cell: str) -> str:
        if not cell and absent is None:
            raise ValueError
        return cell

    return CsvColumn(name, read, "a text", absent, required=absent is None)


def _parse_integer(cell: str) -> int:
    """A whole number, also one that some program has written as a float: `12.0`."""
    body, point, fraction = cell.strip().partition(".")
    if not body.isascii() or not body.removeprefix("-").isdigit() or (point and fraction.strip("0")):
        raise ValueError
    return int(body)


@dataclass(frozen=True, slots=True)
class CsvRow:
    """The cells of one line, read."""

    path: str
    line: int
    values: Mapping[str, Any]
    names: Mapping[str, str]

    def __getitem__(self, field: str) -> Any:
        return self.values[field]

    def error(self, field: str, expected: str) -> TraceError:
        """What is wrong with a cell whose own text was readable."""
        return TraceError(self.path, expected, line=self.line, column=self.names.get(field, field))


def read_rows(
    path: Path, columns: Sequence[CsvColumn[Any]], names: Mapping[str, str] | None = None
) -> Iterator[CsvRow]:
    """The lines of a file; `names`: by what name the file has a column, where it is not the usual one."""
    called = {column.name: (names or {}).get(column.name, column.name) for column in columns}
    with _open_text(path) as file:
        reader = csv.reader(file, strict=True)
        with _explain_read_errors(path, reader):
            header = next(reader, None)
            if header is None:
                raise TraceError(path, "expected a first line that names the columns; the file is empty")
            header = [cell.strip() for cell in header]
            places = _column_positions(path, header, columns, called, names or {})
            for cells in reader:
                if cells:
                    yield _row(path, reader.line_num, cells, header, places, called)


def _column_positions(
    path: Path,
    header: list[str],
    columns: Sequence[CsvColumn[Any]],
    called: Mapping[str, str],
    named: Mapping[str, str],
) -> list[tuple[CsvColumn[Any], int]]:
    """Where each column is; -1: it is not there, and need not be."""
    for name in header:
        if header.count(name) > 1 and name in called.values():
            raise TraceError(path, "expected a name for one column only; it is there twice", line=1, column=name)
    unknown = named.keys() - called.keys()
    if unknown:
        raise TraceError(path, f"expected a field that there is: {', '.join(called)}", column=min(unknown))
    places = []
    for column in columns:
        name = called[column.name]
        if name not in header and (column.required or column.name in named):
            known = ", ".join(header) or "nothing"
            raise TraceError(path, f"expected a column of this name; the file has: {known}", line=1, column=name)
        places.append((column, header.index(name) if name in header else -1))
    return places


def _row(
    path: Path,
    line: int,
    cells: list[str],
    header: list[str],
    places: list[tuple[CsvColumn[Any], int]],
    called: Mapping[str, str],
) -> CsvRow:
    if len(cells) != len(header):
        expected = f"expected {len(header)} cells, as many as the first line names; got {len(cells)}"
        raise TraceError(path, expected, line=line, column=(*header, "")[min(len(cells), len(header))])
    values: dict[str, Any] = {}
    for column, place in places:
        cell = cells[place].strip() if place >= 0 else ""
        if place < 0 or (not cell and not column.required):
            values[column.name] = column.absent
            continue
        try:
            values[column.name] = column.value(cell)
        except ValueError:
            shown = repr(cell if len(cell) <= 40 else f"{cell[:40]}…")
            expected = f"expected {column.expected}; got {shown}"
            raise TraceError(path, expected, line=line, column=called[column.name]) from None
    return CsvRow(str(path), line, values, called)


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    try:
        raw = path.open("rb")
    except OSError as fault:
        raise TraceError(path, f"it cannot be read: {fault.strerror}") from None
    with raw:
        stream = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
        with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as file:
            yield file


@contextmanager
def _explain_read_errors(path: Path, reader: Any) -> Iterator[None]:
    line = reader.line_num + 1
    try:
        yield
    except UnicodeDecodeError:
        raise TraceError(path, "expected text in UTF-8", line=reader.line_num + 1) from None
    except csv.Error as fault:
        raise TraceError(
            path, f"expected cells separated by commas; {fault}", line=max(line, reader.line_num)
        ) from None
    except (OSError, EOFError, zlib.error) as fault:
        raise TraceError(path, f"expected a whole gzip file; {fault}", line=reader.line_num + 1) from None
