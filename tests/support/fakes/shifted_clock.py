"""Bayplan in a process with a wall clock that is shifted by the number of seconds in a file.

    python tests/support/fakes/shifted_clock.py FILE scheduler --config ...

Writing to the file makes the clock of this process jump; other processes are unaffected. Monotonic time is not shifted,
as when the clock of a machine is set.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bayplan.cli import main
from bayplan.clock import SystemClock


def install(file: Path) -> None:
    """Shift every reader of the wall clock: the product's clock, and the log."""
    machine_s = time.time

    def shift_s() -> float:
        return float(file.read_text() or 0.0)

    SystemClock.now = lambda _: datetime.now(UTC) + timedelta(seconds=shift_s())  # type: ignore[method-assign]
    time.time = lambda: machine_s() + shift_s()


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.argv = ["bayplan", *sys.argv[2:]]
    main()
