"""Journal of a run: one JSON object a line, written and flushed as things happen, so that a crash loses nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

Entry = dict[str, Any]


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, what: str, **fields: Any) -> None:
        entry = {"what": what, "wall": round(time.time(), 3), **fields}
        self._file.write(json.dumps(entry, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Entry]:
    """All whole lines; the last one may have been cut off."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
