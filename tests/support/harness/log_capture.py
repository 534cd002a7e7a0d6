"""Captures the log lines of a verbosity."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from bayplan.clock import ManualClock
from bayplan.telemetry.logs import LogOptions, start_logs


@contextmanager
def log_at(verbosity: int) -> Iterator[io.StringIO]:
    written = io.StringIO()
    control = start_logs(LogOptions(verbosity=verbosity), ManualClock(), err=written)
    try:
        yield written
    finally:
        control.close()
