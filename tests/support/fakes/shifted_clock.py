"""Bayplan in a process whose wall clock is as far from the machine's as a file says, in seconds.

    python tests/support/fakes/shifted_clock.py FILE scheduler --config ...

Whoever writes into the file makes the clock jump, and nobody else notices. Monotonic time goes on as it does when
somebody sets a machine's clock.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bayplan.cli import main
from bayplan.clock import SystemClock


def install(file: Path) -> None:
    """Everything that reads the wall clock: the product's clock, and the log."""
    machine_s = time.time

    def shift_s() -> float:
        return float(file.read_text() or 0.0)

    SystemClock.now = lambda _: datetime.now(UTC) + timedelta(seconds=shift_s())  # type: ignore[method-assign]
    time.time = lambda: machine_s() + shift_s()


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.argv = ["bayplan", *sys.argv[2:]]
    main()
