"""Age of an object in the short form of a column."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache

UNKNOWN = "<unknown>"
_DAY_H = 24
_YEAR_H = 365 * _DAY_H


@lru_cache(maxsize=4096)
def parse_timestamp(text: str) -> datetime:
    """Parses an RFC 3339 timestamp."""
    return datetime.fromisoformat(text)


def age_cell(now: datetime, then: str | None) -> str:
    """The time since a timestamp; `<unknown>` without one."""
    return UNKNOWN if not then else format_age(now - parse_timestamp(then))


def _two_units(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"


def format_age(duration: timedelta) -> str:
    """A duration, with fewer units the longer it is."""
    total_s = duration.total_seconds()
    seconds = int(total_s)
    if seconds < -1:
        return "<invalid>"
    if seconds < 2 * 60:
        return f"{max(seconds, 0)}s"
    minutes, hours = seconds // 60, seconds // 3600
    if minutes < 10:
        return _two_units(minutes, "m", seconds % 60, "s")
    if minutes < 3 * 60:
        return f"{minutes}m"
    if hours < 8:
        return _two_units(hours, "h", minutes % 60, "m")
    if hours < 2 * _DAY_H:
        return f"{hours}h"
    if hours < 8 * _DAY_H:
        return _two_units(hours // _DAY_H, "d", hours % _DAY_H, "h")
    if hours < 2 * _YEAR_H:
        return f"{hours // _DAY_H}d"
    if hours < 8 * _YEAR_H:
        return _two_units(hours // _YEAR_H, "y", hours // _DAY_H % 365, "d")
    return f"{hours // _YEAR_H}y"
