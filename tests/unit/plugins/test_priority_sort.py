"""Order of two pods in the queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from bayplan.objects.core import Pod
from bayplan.plugins.priority_sort import PrioritySort
from support.builders.framework import CREATED, make_pod

LATER = CREATED + timedelta(microseconds=1)


@dataclass
class Queued:
    pod: Pod
    timestamp: datetime


@pytest.mark.parametrize(
    ("first", "second", "goes_first"),
    [
        pytest.param((5, LATER), (1, CREATED), True, id="the more important one, however late"),
        pytest.param((1, CREATED), (5, LATER), False, id="the less important one, however early"),
        pytest.param((1, CREATED), (1, LATER), True, id="of equals the earlier"),
        pytest.param((1, LATER), (1, CREATED), False, id="of equals not the later"),
        pytest.param((1, CREATED), (1, CREATED), False, id="of twins neither"),
        pytest.param((None, LATER), (-1, CREATED), True, id="no priority is 0 and beats a negative one"),
        pytest.param((None, CREATED), (0, LATER), True, id="no priority equals 0"),
    ],
)
def test_order(first: tuple[int | None, datetime], second: tuple[int | None, datetime], goes_first: bool) -> None:
    one, other = (Queued(make_pod(priority=priority), stamp) for priority, stamp in (first, second))
    assert PrioritySort().less(one, other) is goes_first
