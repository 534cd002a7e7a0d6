from __future__ import annotations

import pytest

from bayplan.codec.go_duration import DurationError, GoDuration, parse_duration


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("0", "0s"),
        ("-0", "0s"),
        ("0s", "0s"),
        ("1h30m", "1h30m0s"),
        ("90s", "1m30s"),
        ("3600s", "1h0m0s"),
        ("1.5s", "1.5s"),
        ("1.5h", "1h30m0s"),
        (".5s", "500ms"),
        ("1.s", "1s"),
        ("500ms", "500ms"),
        ("1500us", "1.5ms"),
        ("1µs", "1µs"),
        ("1μs", "1µs"),
        ("999ns", "999ns"),
        ("1001ns", "1.001µs"),
        ("0.0000000001s", "0s"),
        ("-1m5s", "-1m5s"),
        ("+2s", "2s"),
        ("1h1ns", "1h0m0.000000001s"),
        ("9223372036854775807ns", "2562047h47m16.854775807s"),
        ("-9223372036854775808ns", "-2562047h47m16.854775808s"),
        ("1.123456789123456789123456789s", "1.123456789s"),
    ],
)
def test_durations_print_normalised(text: str, printed: str) -> None:
    assert str(parse_duration(text)) == printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("abc", 'time: invalid duration "abc"'),
        ("-", 'time: invalid duration "-"'),
        (".s", 'time: invalid duration ".s"'),
        ("1s x", 'time: unknown unit "s x" in duration "1s x"'),
        ("5", 'time: missing unit in duration "5"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("1.5.5s", 'time: missing unit in duration "1.5.5s"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1S", 'time: unknown unit "S" in duration "1S"'),
        ('1"s', 'time: unknown unit "\\"s" in duration "1\\"s"'),
        ("1é", 'time: unknown unit "\\xc3\\xa9" in duration "1\\xc3\\xa9"'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
        ("3000000h", 'time: invalid duration "3000000h"'),
        ("2562047h47m16.854775808s", 'time: invalid duration "2562047h47m16.854775808s"'),
    ],
)
def test_invalid_durations(text: str, message: str) -> None:
    with pytest.raises(DurationError) as caught:
        parse_duration(text)
    assert str(caught.value) == message


def test_durations_compare_and_convert() -> None:
    assert GoDuration.of_seconds(2) > parse_duration("1999ms")
    assert parse_duration("1.5s").seconds == 1.5
    assert not GoDuration()
