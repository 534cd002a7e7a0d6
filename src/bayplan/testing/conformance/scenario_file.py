"""Reads a conformance file: one JSON object per line, plain or gzip; `-` is standard input."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from bayplan.errors import ObjectError
from bayplan.testing.conformance import scenario_checks

_FORMAT = "see docs/conformance.md for the format"
_GZIP_MAGIC = b"\x1f\x8b"


class ScenarioKind(Enum):
    """The kind of a scenario, derived from the keys of the line."""

    ATTEMPT = "one attempt"
    CONFIGURATION = "a configuration"
    SERIES = "pods placed one after another"
    HINTS = "events after a rejection"
    QUEUE = "operations of the queue"
    BATCH = "one session of the batch engine"


@dataclass(frozen=True, slots=True)
class ScenarioLine:
    """One scenario with the recorded answer of the real scheduler; None if there is none."""

    number: int
    scenario: dict[str, Any]
    expected: dict[str, Any] | None
    exact: bool | None = None
    varying: tuple[tuple[str, ...], ...] = ()
    """Paths in the answer that differ between runs of the real scheduler; they are removed from both answers."""
    fault: str = ""
    """Why the line is invalid."""

    @property
    def name(self) -> str:
        return str(self.scenario.get("name") or f"line {self.number}")

    @property
    def family(self) -> str:
        """The first word of the name."""
        return next(iter(self.name.replace("-", " ").split()), "line")

    @property
    def kind(self) -> ScenarioKind:
        if self.exact is not None:
            return ScenarioKind.BATCH
        for key, kind in (("events", ScenarioKind.HINTS), ("ops", ScenarioKind.QUEUE), ("steps", ScenarioKind.SERIES)):
            if key in self.scenario:
                return kind
        has_cluster = not self.scenario.keys().isdisjoint(("nodes", "pods", "pending"))
        return ScenarioKind.ATTEMPT if has_cluster else ScenarioKind.CONFIGURATION


def read_lines(path: Path) -> Iterator[ScenarioLine]:
    """Yield the lines of a file. An invalid line has a `fault`; an unreadable file is an `ObjectError`."""
    try:
        with _open(path) as stream:
            for number, text in enumerate(stream, 1):
                if text.strip():
                    yield _line(number, text)
    except (OSError, EOFError, gzip.BadGzipFile, zlib.error) as fault:
        raise ObjectError(f"{path} cannot be read: {fault}") from None


def _open(path: Path) -> IO[bytes]:
    if str(path) == "-":
        data = sys.stdin.buffer.read()
        return io.BytesIO(gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data)
    with path.open("rb") as probe:
        compressed = probe.read(2) == _GZIP_MAGIC
    return cast("IO[bytes]", gzip.open(path, "rb") if compressed else path.open("rb"))


def _line(number: int, text: bytes) -> ScenarioLine:
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return ScenarioLine(number, {}, None, fault=f"the line is not JSON: {fault}; {_FORMAT}")
    scenario = raw.get("scenario") if isinstance(raw, dict) else None
    if not isinstance(scenario, dict):
        return ScenarioLine(number, {}, None, fault=f'the line has no object "scenario"; {_FORMAT}')
    expected, exact = raw.get("expected"), raw.get("exact")
    if not isinstance(expected, dict | None):
        return ScenarioLine(number, scenario, None, fault=f"expected is not an object; {_FORMAT}")
    if not isinstance(exact, bool | None):
        return ScenarioLine(number, scenario, expected, fault=f"exact is not true or false; {_FORMAT}")
    varying = raw.get("varying") or []
    if not isinstance(varying, list) or not all(isinstance(path, list) for path in varying):
        return ScenarioLine(number, scenario, expected, exact, fault=f"varying is not a list of paths; {_FORMAT}")
    paths = tuple(tuple(str(key) for key in path) for path in varying)
    return ScenarioLine(number, scenario, expected, exact, paths, fault=scenario_checks.scenario_error(scenario) or "")
