"""Reads a conformance file: one JSON object a line, plain or gzip."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from bayplan.errors import ObjectError

_GZIP_MAGIC = b"\x1f\x8b"


class LineKind(Enum):
    """What a line asks for; it follows from the keys that the line has."""

    ATTEMPT = "one attempt"
    CONFIGURATION = "a configuration"
    SERIES = "pods placed one after another"
    HINTS = "events after a rejection"
    QUEUE = "operations of the queue"
    BATCH = "one session of the batch engine"


@dataclass(frozen=True, slots=True)
class Line:
    """One scenario, and what the real scheduler said of it (None: nobody asked)."""

    number: int
    scenario: dict[str, Any]
    expected: dict[str, Any] | None
    exact: bool | None = None

    @property
    def name(self) -> str:
        return str(self.scenario.get("name", f"line {self.number}"))

    @property
    def family(self) -> str:
        """The first word of the name."""
        return self.name.replace("-", " ").split()[0]

    @property
    def kind(self) -> LineKind:
        if self.exact is not None:
            return LineKind.BATCH
        for key, kind in (("events", LineKind.HINTS), ("ops", LineKind.QUEUE), ("steps", LineKind.SERIES)):
            if key in self.scenario:
                return kind
        return LineKind.ATTEMPT if "nodes" in self.scenario else LineKind.CONFIGURATION


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file; `ObjectError` names the line that cannot be read."""
    try:
        with _open(path) as stream:
            for number, text in enumerate(stream, 1):
                if text.strip():
                    yield _line(path, number, text)
    except (OSError, EOFError, gzip.BadGzipFile) as fault:
        raise ObjectError(f"{path} cannot be read: {fault}") from None


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as probe:
        packed = probe.read(2) == _GZIP_MAGIC
    return cast("IO[bytes]", gzip.open(path, "rb") if packed else path.open("rb"))


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        raw = msgspec.json.decode(text)
    except msgspec.DecodeError as fault:
        raise ObjectError(f"{path}, line {number}, is not JSON: {fault}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("scenario"), dict):
        raise ObjectError(f'{path}, line {number}, has no "scenario"; see docs/conformance.md for the format')
    return Line(number, raw["scenario"], raw.get("expected"), raw.get("exact"))
