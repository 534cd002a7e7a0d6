"""Components of timestamps and durations."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bayplan.cel.errors import CelError
from bayplan.cel.types.declarations import Overload, method
from bayplan.cel.types.types import DURATION, INT, STRING, TIMESTAMP
from bayplan.cel.values.go_format import NANOS, civil_time, quote
from bayplan.cel.values.values import CelDuration, CelTimestamp

# The components of the year and the wall clock.
Part = Callable[[int, datetime], int]
# Go still computes with an offset of more than a day, though invalid; beyond this limit it does not.
_FARTHEST_S = 400 * 365 * 86_400


def _offset(at: CelTimestamp, zone: str) -> int:
    """Seconds east of UTC at that instant, for a named zone or `+01:30`."""
    head, colon, tail = zone.partition(":")
    if colon:
        minutes = _atoi(head) * 60 + (-_atoi(tail) if zone.startswith("-") else _atoi(tail))
        if abs(minutes) * 60 > _FARTHEST_S:
            raise CelError(f"unknown time zone {zone}")
        return minutes * 60
    if zone in ("", "UTC"):
        return 0
    try:
        moment = datetime.fromtimestamp(at.nanos // NANOS, UTC)
        delta = ZoneInfo(zone).utcoffset(moment)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CelError(f"unknown time zone {zone}") from None
    return int(delta.total_seconds()) if delta else 0


def _atoi(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        raise CelError(f"strconv.Atoi: parsing {quote(text)}: invalid syntax")
    return int(text)


def _parts(name: str, base: str, part: Part, with_tz: str = "") -> list[Overload]:
    def plain(at: CelTimestamp) -> int:
        return part(*civil_time(at.nanos))

    def in_zone(at: CelTimestamp, zone: str) -> int:
        return part(*civil_time(at.nanos, _offset(at, zone)))

    return [
        method(name, base, (TIMESTAMP,), INT, plain),
        method(name, with_tz or f"{base}_with_tz", (TIMESTAMP, STRING), INT, in_zone),
    ]


def _milliseconds() -> list[Overload]:
    def plain(at: CelTimestamp, _: Any = None) -> int:
        return at.nanos % NANOS // 1_000_000

    def in_zone(at: CelTimestamp, zone: str) -> int:
        _offset(at, zone)
        return plain(at)

    base = "timestamp_to_milliseconds"
    return [
        method("getMilliseconds", base, (TIMESTAMP,), INT, plain),
        method("getMilliseconds", f"{base}_with_tz", (TIMESTAMP, STRING), INT, in_zone),
        _whole("getMilliseconds", "duration_to_milliseconds", 1_000_000),
    ]


def _whole(name: str, overload_id: str, unit: int) -> Overload:
    def run(value: CelDuration) -> int:
        count = abs(value.nanos) // unit
        return count if value.nanos >= 0 else -count

    return method(name, overload_id, (DURATION,), INT, run)


OVERLOADS: list[Overload] = [
    *_parts("getFullYear", "timestamp_to_year", lambda year, _: year),
    *_parts("getMonth", "timestamp_to_month", lambda _, t: t.month - 1),
    *_parts("getDayOfYear", "timestamp_to_day_of_year", lambda _, t: t.timetuple().tm_yday - 1),
    *_parts("getDayOfMonth", "timestamp_to_day_of_month", lambda _, t: t.day - 1),
    *_parts("getDate", "timestamp_to_day_of_month_1_based", lambda _, t: t.day),
    *_parts("getDayOfWeek", "timestamp_to_day_of_week", lambda _, t: t.isoweekday() % 7),
    *_parts("getHours", "timestamp_to_hours", lambda _, t: t.hour),
    _whole("getHours", "duration_to_hours", 3600 * NANOS),
    *_parts("getMinutes", "timestamp_to_minutes", lambda _, t: t.minute),
    _whole("getMinutes", "duration_to_minutes", 60 * NANOS),
    *_parts("getSeconds", "timestamp_to_seconds", lambda _, t: t.second, "timestamp_to_seconds_tz"),
    _whole("getSeconds", "duration_to_seconds", NANOS),
    *_milliseconds(),
]
