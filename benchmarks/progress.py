"""Progress of a benchmark on the error stream: one changing line on a terminal, separate lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status


class Progress:
    """Shows the current measurement."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status: Status | None = None

    @contextmanager
    def show(self) -> Iterator[Progress]:
        with self._console.status("", spinner="dots") as self._status:
            yield self

    def __call__(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)
