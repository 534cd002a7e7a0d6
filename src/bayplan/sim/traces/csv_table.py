"""Reads CSV tables line by line; errors name the line, the column and the expectation.

Traces may cover a year, so only the current line is kept in memory. Files that end in `.gz` are decompressed.
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
"""Larger amounts are mistakes, and floats cannot represent them exactly."""


class TraceError(ObjectError):
    """A trace is invalid. `line` and `column` are the place, if there is one."""

    def __init__(self, path: object, expected: str, *, line: int = 0, column: str = "") -> None:
        place = "".join([str(path), f", line {line}" if line else "", f", column {column}" if column else ""])
        super().__init__(f"{place}: {expected}")
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class CsvColumn(Generic[T]):
    """One column: its parser, its expectation, and the value that replaces a missing column."""

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
    """Parse a whole number; a float without a fraction such as `12.0` is accepted."""
    body, point, fraction = cell.strip().partition(".")
    if not body.isascii() or not body.removeprefix("-").isdigit() or (point and fraction.strip("0")):
        raise ValueError
    return int(body)


@dataclass(frozen=True, slots=True)
class CsvRow:
    """The parsed cells of one line."""

    path: str
    line: int
    values: Mapping[str, Any]
    names: Mapping[str, str]

    def __getitem__(self, field: str) -> Any:
        return self.values[field]

    def error(self, field: str, expected: str) -> TraceError:
        """Build an error for a cell that could be parsed but is invalid."""
        return TraceError(self.path, expected, line=self.line, column=self.names.get(field, field))


def read_rows(
    path: Path, columns: Sequence[CsvColumn[Any]], names: Mapping[str, str] | None = None
) -> Iterator[CsvRow]:
    """Yield the lines of a file; `names` maps columns to their names in the file, if they differ."""
    names_in_file = {column.name: (names or {}).get(column.name, column.name) for column in columns}
    with _open_text(path) as file:
        reader = csv.reader(file, strict=True)
        with _explain_read_errors(path, reader):
            header = next(reader, None)
            if header is None:
                raise TraceError(path, "expected a first line that names the columns; the file is empty")
            header = [cell.strip() for cell in header]
            places = _column_positions(path, header, columns, names_in_file, names or {})
            for cells in reader:
                if cells:
                    yield _row(path, reader.line_num, cells, header, places, names_in_file)


def _column_positions(
    path: Path,
    header: list[str],
    columns: Sequence[CsvColumn[Any]],
    names_in_file: Mapping[str, str],
    explicit_names: Mapping[str, str],
) -> list[tuple[CsvColumn[Any], int]]:
    """Position of each column; -1 for an optional column that is missing."""
    for name in header:
        if header.count(name) > 1 and name in names_in_file.values():
            raise TraceError(path, "expected each column once; the header has it twice", line=1, column=name)
    unknown = explicit_names.keys() - names_in_file.keys()
    if unknown:
        raise TraceError(path, f"unknown field; expected one of: {', '.join(names_in_file)}", column=min(unknown))
    places = []
    for column in columns:
        name = names_in_file[column.name]
        if name not in header and (column.required or column.name in explicit_names):
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
    names_in_file: Mapping[str, str],
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
            got = repr(cell if len(cell) <= 40 else f"{cell[:40]}…")
            expected = f"expected {column.expected}; got {got}"
            raise TraceError(path, expected, line=line, column=names_in_file[column.name]) from None
    return CsvRow(str(path), line, values, names_in_file)


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
