"""When does a cron schedule come round next? Five fields, names, steps and the @-words, as robfig/cron reads them.

Asked by admission for whether a schedule can be read at all, and by the controller for when it is due. `next_after`
walks over days first, then hours and minutes: a schedule that never comes round costs some two thousand days.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from bayplan.errors import BayplanError

_MONTHS = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
}
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_HORIZON_DAYS = 366 * 5 + 2


class ScheduleError(BayplanError):
    """A schedule cannot be read."""


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The moments that a schedule names, in one time zone; or every so many seconds."""

    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    any_day: bool = True
    any_weekday: bool = True
    every_s: int = 0

    @staticmethod
    def parse(text: str) -> CronSchedule:
        """Raises `ScheduleError` for what robfig/cron would not read."""
        text = text.strip()
        if text.startswith("@every "):
            return CronSchedule(every_s=_duration_s(text.removeprefix("@every ").strip()))
        if text.startswith("@") and text not in _WORDS:
            raise ScheduleError(f"unrecognized descriptor: {text}; write five fields such as */5 * * * *")
        fields = _WORDS.get(text, text).split()
        if len(fields) != 5:
            raise ScheduleError(f"expected exactly 5 fields, found {len(fields)}: [{text}]; write */5 * * * *")
        minutes, hours, days, months, weekdays = fields
        return CronSchedule(
            minutes=_field(minutes, 0, 59),
            hours=_field(hours, 0, 23),
            days=_field(days, 1, 31),
            months=_field(months, 1, 12, _MONTHS),
            weekdays=_field(weekdays, 0, 6, _DAYS),
            any_day=_is_star(days),
            any_weekday=_is_star(weekdays),
        )

    def next_after(self, moment: datetime, zone: tzinfo = UTC) -> datetime | None:
        """The first moment after this one, in UTC; None when there is none within five years."""
        if self.every_s:
            return moment.replace(microsecond=0) + timedelta(seconds=self.every_s)
        local = moment.astimezone(zone)
        for ahead in range(_HORIZON_DAYS):
            day = (local.replace(tzinfo=None) + timedelta(days=ahead)).date()
            if day.month not in self.months or not self._on(day.day, day.isoweekday() % 7):
                continue
            # What is past today need not be tried; an hour is left for a clock that was put back.
            hours = sorted(hour for hour in self.hours if ahead or hour >= local.hour - 1)
            for hour in hours:
                for minute in sorted(self.minutes):
                    found = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).astimezone(UTC)
                    skipped = found.astimezone(zone).hour != hour  # the clock was put forward over it
                    if found > moment and not skipped:
                        return found
        return None

    def _on(self, day: int, weekday: int) -> bool:
        """Days and weekdays are alternatives when both are given."""
        if self.any_day or self.any_weekday:
            return day in self.days and weekday in self.weekdays
        return day in self.days or weekday in self.weekdays


def _is_star(field: str) -> bool:
    return any(part.partition("/")[0] in ("*", "?") for part in field.split(","))


def _field(text: str, least: int, most: int, names: dict[str, int] | None = None) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, part, {}) if slash else 1
        if span in ("*", "?"):
            start, end = least, most
        else:
            first, dash, last = span.partition("-")
            start = _number(first, part, names or {})
            end = _number(last, part, names or {}) if dash else (most if slash else start)
        if start < least or end > most or start > end or step < 1:
            raise ScheduleError(f"{part} is not between {least} and {most}; correct the schedule")
        found.update(range(start, end + 1, step))
    return frozenset(found)


def _number(text: str, part: str, names: dict[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not text.isascii() or not text.isdigit():
        raise ScheduleError(f"failed to parse int from {text}: {part}; write numbers, or names of months and days")
    return int(text)


def _duration_s(text: str) -> int:
    parts = re.findall(r"(\d+(?:\.\d+)?|\.\d+)(h|ms|m|us|µs|ns|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text.lstrip("+"):
        raise ScheduleError(f"failed to parse duration @every {text}; write one such as @every 1h30m")
    return max(1, int(sum(float(number) * _UNITS[unit] for number, unit in parts)))
