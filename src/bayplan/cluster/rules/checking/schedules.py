"""Is this the schedule of a CronJob, and if not, what does its parser say? Also time zones, which go with it."""

from __future__ import annotations

import re
from functools import lru_cache
from zoneinfo import available_timezones

from bayplan.objects.go_text import quote

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_BOUNDS: tuple[tuple[int, int, dict[str, int]], ...] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    (0, 6, {name: number for number, name in enumerate(_DAYS)}),
)
_DESCRIPTORS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_ZONE_PART = re.compile(r"[A-Za-z.\-_0-9+]{1,14}")
_DURATION = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|ms|s|m|h))+")


class _Wrong(ValueError):
    """What the parser says."""


@lru_cache(maxsize=512)
def schedule_problem(text: str) -> str | None:
    """What is wrong with a schedule, or None."""
    try:
        _read(text)
    except _Wrong as wrong:
        return str(wrong)
    return None


def _read(text: str) -> None:
    if text.startswith("@"):
        _read_descriptor(text)
        return
    fields = text.split()
    if len(fields) != 5:
        raise _Wrong(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    for field, (low, high, names) in zip(fields, _BOUNDS, strict=True):
        for part in filter(None, field.split(",")):
            _read_range(part, low, high, names)


def _read_descriptor(text: str) -> None:
    if text in _DESCRIPTORS:
        return
    if text.startswith("@every "):
        given = text.removeprefix("@every ")
        if not _DURATION.fullmatch(given):
            raise _Wrong(f"failed to parse duration {text}: time: invalid duration {quote(given)}")
        return
    raise _Wrong(f"unrecognized descriptor: {text}")


def _read_range(text: str, low: int, high: int, names: dict[str, int]) -> None:
    span, *steps = text.split("/")
    ends = span.split("-")
    if ends[0] in ("*", "?"):
        start, end = low, high
    else:
        start = _number(ends[0], names)
        end = start if len(ends) == 1 else _number(ends[1], names)
        if len(ends) > 2:
            raise _Wrong(f"too many hyphens: {text}")
    step = 1
    if len(steps) > 1:
        raise _Wrong(f"too many slashes: {text}")
    if steps:
        step = _number(steps[0], {})
        end = high if len(ends) == 1 else end
    if start < low:
        raise _Wrong(f"beginning of range ({start}) below minimum ({low}): {text}")
    if end > high:
        raise _Wrong(f"end of range ({end}) above maximum ({high}): {text}")
    if start > end:
        raise _Wrong(f"beginning of range ({start}) beyond end of range ({end}): {text}")
    if step == 0:
        raise _Wrong(f"step of range should be a positive number: {text}")


def _number(text: str, names: dict[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    digits = text.lstrip("+-") if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise _Wrong(f"failed to parse int from {text}: strconv.Atoi: parsing {quote(text)}: invalid syntax")
    if int(text) < 0:
        raise _Wrong(f"negative number ({int(text)}) not allowed: {text}")
    return int(text)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones() | {"UTC"})


def zone_problem(name: str) -> str | None:
    """What is wrong with the name of a time zone, or None."""
    if not name:
        return "timeZone must be nil or non-empty string"
    for part in name.split("/"):
        if part in (".", "..") or part.startswith("-") or not _ZONE_PART.fullmatch(part):
            return f"unknown time zone {name}"
    if name.lower() == "local":
        return "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
    return None if name in _zones() else f"unknown time zone {name}"
