"""Terminal output: tables, colours and progress.

Colours are used on a terminal only, and not with NO_COLOR. Output to a file or pipe is as wide as it needs to be; on a
narrow terminal long texts are wrapped and names are not. Progress goes to standard error, after a second, and only if
it is a terminal.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_UNLIMITED_WIDTH = 100_000
_MIN_REDRAW_WIDTH = 60
_PROGRESS_DELAY_S = 1.0
_COLUMN_GAP = 3

_GOOD = re.compile(r"Running|Ready|Bound|Active|Succeeded|Completed|Complete|Available|True|Normal")
_WAITING = re.compile(
    r"Pending|ContainerCreating|Terminating|Unknown|Suspended|Released|.*SchedulingDisabled.*|Warning"
)
_BAD = re.compile(r"Failed|NotReady.*|Error|.*BackOff|Evicted|OOMKilled|Unschedulable|Lost|.*Err.*")


def stdout_console() -> Console:
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else plain_console()


def plain_console() -> Console:
    """A console for the standard output in file format, also on a terminal: no colours, no redraw, no wrapping."""
    return Console(highlight=False, soft_wrap=False, force_terminal=False, color_system=None, width=_UNLIMITED_WIDTH)


def supports_redraw(console: Console) -> bool:
    """Whether the terminal can redraw in place: not without colours, and not if it is too narrow."""
    return (
        console.is_terminal
        and not console.is_dumb_terminal
        and not console.no_color
        and console.width >= _MIN_REDRAW_WIDTH
    )


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False)


def status_cell(cell: str) -> Text:
    """A cell; status words are coloured."""
    for pattern, style in ((_GOOD, "green"), (_BAD, "red"), (_WAITING, "yellow")):
        if pattern.fullmatch(cell):
            return Text(cell, style=style)
    return Text(cell)


class TablePrinter:
    """Prints rows below titles with columns as wide as needed; later rows use the same columns."""

    def __init__(self, titles: Sequence[str], *, headed: bool = True) -> None:
        self._titles = [title.upper() for title in titles]
        self._headed = headed
        self._widths = [len(title) if headed else 0 for title in self._titles]
        self._console = stdout_console()

    def show(self, rows: Sequence[Sequence[str]]) -> None:
        """Print rows; the first call also prints the titles."""
        for row in rows:
            self._widths = [max(pair) for pair in zip(self._widths, map(len, row), strict=True)]
        if self._too_wide():
            self._print_folded(rows)
        else:
            self._print_aligned(rows)
        self._headed = False

    def _too_wide(self) -> bool:
        return sum(self._widths) + _COLUMN_GAP * (len(self._widths) - 1) > self._console.width

    def _print_aligned(self, rows: Sequence[Sequence[str]]) -> None:
        lines = [Text(self._pad_row(self._titles), style="bold")] if self._headed else []
        for row in rows:
            line = Text()
            for number, cell in enumerate(row):
                line.append_text(status_cell(cell))
                if number < len(row) - 1:
                    line.append(" " * (self._widths[number] - len(cell) + _COLUMN_GAP))
            lines.append(line)
        for line in lines:
            self._console.print(line, no_wrap=True, overflow="ignore", crop=False)

    def _pad_row(self, cells: Sequence[str]) -> str:
        return (
            (" " * _COLUMN_GAP)
            .join(cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
            .rstrip()
        )

    def _print_folded(self, rows: Sequence[Sequence[str]]) -> None:
        """On a narrow terminal: the first column is not wrapped, the other columns are."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=self._headed)
        for number, title in enumerate(self._titles):
            table.add_column(title, no_wrap=number == 0, overflow="fold")
        for row in rows:
            table.add_row(*map(status_cell, row))
        self._console.print(table, width=self._min_width(table), crop=False, no_wrap=False)

    def _min_width(self, table: Table) -> int:
        endless = Console(width=_UNLIMITED_WIDTH)
        return max(self._console.width, Measurement.get(endless, endless.options, table).minimum)


def cell_text(cell: Any) -> str:
    """A value of a Table in kubectl's format."""
    if cell is None:
        return "<none>"
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(cell)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show what the command does, if it takes longer than a second and the standard error is a terminal."""
    console = stderr_console()
    if not (console.is_terminal and sys.stderr.isatty()):
        yield
        return
    status = console.status(text)
    timer = threading.Timer(_PROGRESS_DELAY_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
