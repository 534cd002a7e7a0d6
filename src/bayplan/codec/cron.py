"""Cron schedules of CronJobs with the errors of upstream's parser, and time zone names.

Used by admission and by the CronJob controller. Parsing takes about ten microseconds and is cached. The next time costs
a walk over the days until it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import available_timezones

from bayplan.codec.go_text import quote

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_BOUNDS: tuple[tuple[int, int, dict[str, int]], ...] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    (0, 6, {name: number for number, name in enumerate(_DAYS)}),
)
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MAX_YEARS = 5
_ZONE_PART = re.compile(r"[A-Za-z.\-_0-9+]{1,14}")
_DURATION = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|ms|s|m|h))+")
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class CronScheduleError(ValueError):
    """A schedule that does not parse. The message is upstream's."""


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Times on the wall clock of one time zone. For `@every`, `every_s` is the interval instead."""

    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    any_day: bool = True
    """Whether day of month or day of week is `*`. If so, both must match; otherwise one of them is enough."""
    every_s: int = 0

    def next(self, after: datetime, zone: tzinfo = UTC) -> datetime | None:
        """The first time after `after`, on the clocks of the zone; None if there is none within five years.

        A time that a clock change skips is left out; a repeated time counts once.
        """
        if self.every_s:
            return after.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=self.every_s)
        local = after.astimezone(zone)
        day = local.date()
        for _ in range(366 * _MAX_YEARS):
            if self._runs_on(day):
                for moment in self._times(day, zone):
                    if moment > after:
                        return moment
            day += timedelta(days=1)
        return None

    def _runs_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day and by_weekday if self.any_day else by_day or by_weekday

    def _times(self, day: date, zone: tzinfo) -> Iterator[datetime]:
        for hour in sorted(self.hours):
            for minute in sorted(self.minutes):
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                moment = local.astimezone(UTC)
                if moment.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
                    yield moment


@lru_cache(maxsize=512)
def schedule_error(text: str) -> str | None:
    """The parse error of a schedule, or None."""
    try:
        parse_cron_schedule(text)
    except CronScheduleError as wrong:
        return str(wrong)
    return None


@lru_cache(maxsize=512)
def parse_cron_schedule(text: str) -> CronSchedule:
    """Parse a schedule; raises `CronScheduleError`."""
    if text.startswith("@"):
        return _read_descriptor(text)
    fields = text.split()
    if len(fields) != 5:
        raise CronScheduleError(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    sets: list[frozenset[int]] = []
    for field, (low, high, names) in zip(fields, _BOUNDS, strict=True):
        numbers: set[int] = set()
        for part in filter(None, field.split(",")):
            numbers |= _read_range(part, low, high, names)
        sets.append(frozenset(numbers))
    stars = any(part[:1] in ("*", "?") for field in (fields[2], fields[4]) for part in field.split(","))
    minutes, hours, days, months, weekdays = sets
    return CronSchedule(minutes, hours, days, months, weekdays, any_day=stars)


def _read_descriptor(text: str) -> CronSchedule:
    if text in _DESCRIPTORS:
        return parse_cron_schedule(_DESCRIPTORS[text])
    if text.startswith("@every "):
        given = text.removeprefix("@every ")
        if not _DURATION.fullmatch(given):
            raise CronScheduleError(f"failed to parse duration {text}: time: invalid duration {quote(given)}")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(given))
        return CronSchedule(every_s=max(1, int(-seconds if given.startswith("-") else seconds)))
    raise CronScheduleError(f"unrecognized descriptor: {text}")


def _read_range(text: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    span, *steps = text.split("/")
    ends = span.split("-")
    if ends[0] in ("*", "?"):
        start, end = low, high
    else:
        start = _number(ends[0], names)
        end = start if len(ends) == 1 else _number(ends[1], names)
        if len(ends) > 2:
            raise CronScheduleError(f"too many hyphens: {text}")
    step = 1
    if len(steps) > 1:
        raise CronScheduleError(f"too many slashes: {text}")
    if steps:
        step = _number(steps[0], {})
        end = high if len(ends) == 1 else end
    if start < low:
        raise CronScheduleError(f"beginning of range ({start}) below minimum ({low}): {text}")
    if end > high:
        raise CronScheduleError(f"end of range ({end}) above maximum ({high}): {text}")
    if start > end:
        raise CronScheduleError(f"beginning of range ({start}) beyond end of range ({end}): {text}")
    if step == 0:
        raise CronScheduleError(f"step of range should be a positive number: {text}")
    return set(range(start, end + 1, step))


def _number(text: str, names: dict[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    digits = text.lstrip("+-") if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise CronScheduleError(f"failed to parse int from {text}: strconv.Atoi: parsing {quote(text)}: invalid syntax")
    if int(text) < 0:
        raise CronScheduleError(f"negative number ({int(text)}) not allowed: {text}")
    return int(text)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones() | {"UTC"})


def time_zone_error(name: str) -> str | None:
    """The error of a time zone name, or None."""
    if not name:
        return "timeZone must be nil or non-empty string"
    for part in name.split("/"):
        if part in (".", "..") or part.startswith("-") or not _ZONE_PART.fullmatch(part):
            return f"unknown time zone {name}"
    if name.lower() == "local":
        return "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
    return None if name in _zones() else f"unknown time zone {name}"
