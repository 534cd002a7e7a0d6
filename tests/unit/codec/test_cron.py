"""Cron schedules: the next time, time zones, and parse errors."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from bayplan.codec.cron import parse_cron_schedule, schedule_error


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:30", "2026-01-01T00:01:00"),
        ("*/15 * * * *", "2026-01-01T00:15:00", "2026-01-01T00:30:00"),
        ("0 3 * * *", "2026-01-01T03:00:00", "2026-01-02T03:00:00"),
        ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 * * mon-fri", "2026-01-03T00:00:00", "2026-01-05T00:00:00"),
        ("0 0 13 * fri", "2026-01-10T00:00:00", "2026-01-13T00:00:00"),
        ("30 4 1,15 */6 ?", "2026-01-16T00:00:00", "2026-07-01T04:30:00"),
        ("@hourly", "2026-01-01T00:00:00", "2026-01-01T01:00:00"),
        ("@weekly", "2026-01-01T00:00:00", "2026-01-04T00:00:00"),
        ("@every 1h30m", "2026-01-01T00:00:00.5", "2026-01-01T01:30:00"),
    ],
)
def test_the_next_time(text: str, after: str, expected: str) -> None:
    found = parse_cron_schedule(text).next(datetime.fromisoformat(after).replace(tzinfo=UTC))
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_a_schedule_without_a_next_time() -> None:
    assert parse_cron_schedule("0 0 31 2 *").next(datetime(2026, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        pytest.param("0 9 * * *", "2026-01-01T09:00:00+00:00", "2026-01-02T08:00:00+00:00", id="by their clocks"),
        pytest.param("30 2 * * *", "2026-03-28T02:00:00+00:00", "2026-03-30T00:30:00+00:00", id="an hour is left out"),
        pytest.param("30 2 * * *", "2026-10-24T22:00:00+00:00", "2026-10-25T00:30:00+00:00", id="an hour comes twice"),
        pytest.param("30 2 * * *", "2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00", id="and is met once"),
    ],
)
def test_clock_changes_of_a_time_zone(text: str, after: str, expected: str) -> None:
    found = parse_cron_schedule(text).next(datetime.fromisoformat(after), ZoneInfo("Europe/Berlin"))
    assert found == datetime.fromisoformat(expected)


@pytest.mark.parametrize("text", ["", "* * * *", "60 * * * *", "* * 0 * *", "5-1 * * * *", "*/0 * * * *", "@often"])
def test_invalid_schedules(text: str) -> None:
    assert schedule_error(text)
