"""When a cron schedule comes round."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from bayplan.objects.cron_schedule import CronSchedule, ScheduleError

NOON = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)  # a Thursday


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("* * * * *", "2026-01-01T12:01"),
        ("*/15 * * * *", "2026-01-01T12:15"),
        ("0 0 * * *", "2026-01-02T00:00"),
        ("30 9 * * mon-fri", "2026-01-02T09:30"),
        ("0 0 1 1 *", "2027-01-01T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 0 13 * fri", "2026-01-02T00:00"),  # either of the two
        ("0 0 13 * ?", "2026-01-13T00:00"),
        ("5,10 13 * * *", "2026-01-01T13:05"),
        ("@hourly", "2026-01-01T13:00"),
        ("@weekly", "2026-01-04T00:00"),
        ("@yearly", "2027-01-01T00:00"),
    ],
)
def test_next(text: str, following: str) -> None:
    found = CronSchedule.parse(text).next_after(NOON)
    assert found == datetime.fromisoformat(following).replace(tzinfo=UTC)


def test_every() -> None:
    found = CronSchedule.parse("@every 1h30m5s").next_after(NOON)
    assert found == datetime(2026, 1, 1, 13, 30, 35, tzinfo=UTC)


def test_in_a_time_zone() -> None:
    found = CronSchedule.parse("0 9 * * *").next_after(NOON, ZoneInfo("Asia/Tokyo"))
    assert found == datetime(2026, 1, 2, 0, 0, tzinfo=UTC)


def test_an_hour_that_the_clock_skips_is_skipped() -> None:
    night = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
    found = CronSchedule.parse("30 2 * * *").next_after(night, ZoneInfo("Europe/Berlin"))
    assert found == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)


def test_a_day_that_never_comes() -> None:
    assert CronSchedule.parse("0 0 31 2 *").next_after(NOON) is None


UNREADABLE = (
    *("", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "*/0 * * * *", "5-1 * * * *", "x * * * *"),
    *("@never", "@every x", "@every 1d", "* * * * * *"),
)


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(ScheduleError):
        CronSchedule.parse(text)
