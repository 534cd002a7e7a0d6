"""Series and counts: which events become requests, on a manual clock."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from bayplan.clock import ManualClock
from bayplan.objects.core import ObjectMeta, Pod
from bayplan.telemetry.core_event_correlator import COMBINED, CoreEventCorrelator
from bayplan.telemetry.event_correlator import EventCorrelator, EventSeriesCorrelator, EventWrite
from bayplan.telemetry.events import Event, EventRecorder


class Say:
    """A recorder in front of a book; `writes` are the requests that the book asked for."""

    def __init__(
        self, book: type[EventSeriesCorrelator] | type[CoreEventCorrelator] = EventSeriesCorrelator, **more: Any
    ) -> None:
        self.clock = ManualClock()
        self.book: EventCorrelator = book(self.clock, **more)
        self.writes: list[EventWrite] = []
        post = self._post
        self.recorder = EventRecorder("s", host="h", clock=self.clock, chance=random.Random(0), post=post)

    def _post(self, event: Event) -> None:
        write = self.book.observe(event)
        if write is not None:
            self.writes.append(write)

    def failed(self, note: str = "no room", *, name: str = "p", version: str = "1") -> None:
        meta = ObjectMeta(name=name, namespace="team", uid=name, resource_version=version)
        self.recorder.record_failed_scheduling(Pod(metadata=meta), note)
        self.clock.advance(1)

    def patches(self) -> list[Any]:
        return [msgspec.to_builtins(write.patch) for write in self.writes]


def test_the_first_is_created_the_second_patched_and_the_rest_counted() -> None:
    say = Say()
    for _ in range(5):
        say.failed()
    assert say.patches() == [None, {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}]
    assert {write.name for write in say.writes} == {say.writes[0].name}


def test_a_pod_that_fails_for_two_reasons_in_turn_has_two_events() -> None:
    say = Say()
    for attempt in range(20):
        say.failed(f"reason {attempt % 2}", version=str(attempt))
    assert [patch is None for patch in say.patches()] == [True, True, False, False]
    assert [write.name for write in say.writes[2:]] == [write.name for write in say.writes[:2]]
    bodies = [msgspec.to_builtins(write.body) for write in say.writes]
    assert [each["note"] for each in bodies] == ["reason 0", "reason 1"] * 2


@pytest.mark.parametrize("swept", [True, False])
def test_a_series_ends_without_a_write_six_minutes_after_its_last_event(swept: bool) -> None:
    say = Say()
    for _ in range(4):
        say.failed()
    say.clock.advance(360 - 1)
    assert say.book.sweep() == []
    say.failed()
    assert len(say.writes) == 2, "it went on"
    say.clock.advance(360)
    assert not swept or say.book.sweep() == []
    say.failed()
    assert say.patches()[-1] is None, "a new series"


def test_a_single_event_is_forgotten_after_six_minutes() -> None:
    say = Say()
    say.failed()
    say.clock.advance(360)
    assert say.book.sweep() == []
    say.failed()
    assert say.patches() == [None, None]


def test_a_series_that_goes_on_is_told_every_half_an_hour() -> None:
    say = Say()
    told = []
    for minute in range(91):
        if minute % 6 == 0:
            told += [(minute, msgspec.to_builtins(each.patch)["series"]["count"]) for each in say.book.sweep()]
        say.failed()
        say.clock.advance(59)
    assert told == [(30, 30), (60, 60), (90, 90)]


def test_bindings_are_not_kept() -> None:
    say = Say()
    meta = ObjectMeta(name="p", namespace="team", uid="p", resource_version="1")
    say.recorder.record_scheduled(Pod(metadata=meta), "n1")
    assert len(say.writes) == 1
    assert isinstance(say.book, EventSeriesCorrelator)
    assert len(say.book) == 0


def test_a_binding_is_recorded_whatever_else_was_said_of_the_pod() -> None:
    say = Say(CoreEventCorrelator)
    meta = ObjectMeta(name="p", namespace="team", uid="p", resource_version="1")
    pod = Pod(metadata=meta)
    for number in range(40):
        say.recorder.record(pod, type="Normal", reason="Other", action="", note=f"note {number}")
    before = len(say.writes)
    say.recorder.record_scheduled(pod, "n1")
    assert [msgspec.to_builtins(write.body)["reason"] for write in say.writes[before:]] == ["Scheduled"]


@pytest.mark.parametrize(
    ("reason", "notes"),
    [
        ("Misconfigured", ("its queue is missing", "its queue has no parent")),
        ("BindingRetry", ("not bound to node n1 (attempt 1 of 3)", "not bound to node n2 (attempt 2 of 3)")),
        ("BindingError", ("not bound to node n1", "not bound to node n2")),
    ],
)
@pytest.mark.parametrize("book", [EventSeriesCorrelator, CoreEventCorrelator])
def test_what_is_wrong_next_with_the_same_version_is_told_in_its_own_words(
    book: type[EventSeriesCorrelator] | type[CoreEventCorrelator], reason: str, notes: tuple[str, str]
) -> None:
    say = Say(book)
    pod = Pod(metadata=ObjectMeta(name="p", namespace="team", uid="p", resource_version="1"))
    for note in notes:
        say.recorder.record(pod, type="Warning", reason=reason, action="Scheduling", note=note)
        say.clock.advance(1)
    assert say.patches() == [None, None]
    assert len({write.name for write in say.writes}) == 2


def test_a_storm_keeps_the_newest() -> None:
    say = Say(max_series=2)
    for name in ("a", "b", "c"):
        say.failed(name=name)
    say.failed(name="c")
    say.failed(name="a")
    assert [patch is None for patch in say.patches()] == [True, True, True, False, True]


# Core events, for servers without events.k8s.io.


def test_core_events_are_counted() -> None:
    say = Say(CoreEventCorrelator)
    for _ in range(3):
        say.failed()
    first = msgspec.to_builtins(say.writes[0].body)
    assert first.pop("metadata")["namespace"] == "team"
    assert first.pop("involvedObject")["resourceVersion"] == "1"
    assert first == {
        "reason": "FailedScheduling",
        "message": "no room",
        "source": {"component": "s"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        "type": "Warning",
        "reportingComponent": "s",
    }
    assert say.patches() == [
        None,
        {"count": 2, "lastTimestamp": "2026-01-01T00:00:01Z", "message": "no room"},
        {"count": 3, "lastTimestamp": "2026-01-01T00:00:02Z", "message": "no room"},
    ]
    assert msgspec.to_builtins(say.writes[2].body)["firstTimestamp"] == "2026-01-01T00:00:00Z"


def test_ten_that_differ_by_the_message_alone_become_one() -> None:
    say = Say(CoreEventCorrelator)
    for number in range(12):
        say.failed(f"reason {number}")
    assert [patch is None for patch in say.patches()] == [True] * 10 + [False] * 2
    assert say.patches()[-1]["message"] == f"{COMBINED}reason 11"
    assert say.patches()[-1]["count"] == 3
    assert {write.name for write in say.writes[9:]} == {say.writes[9].name}


def test_similar_events_are_forgotten_after_ten_quiet_minutes() -> None:
    say = Say(CoreEventCorrelator)
    for number in range(9):
        say.failed(f"reason {number}")
    say.clock.advance(600)
    say.failed("reason 9")
    assert msgspec.to_builtins(say.writes[-1].body)["message"] == "reason 9"


@pytest.mark.parametrize(("wait_s", "pass_"), [(299, 0), (300, 1), (600, 2), (300 * 100, 25)])
def test_an_object_may_be_spoken_of_25_times_and_then_every_five_minutes(wait_s: int, pass_: int) -> None:
    say = Say(CoreEventCorrelator)
    event = Say()
    event.failed()
    body = event.writes[0].body
    assert isinstance(body, Event)
    assert sum(say.book.observe(body) is not None for _ in range(40)) == 25
    say.clock.advance(wait_s)
    assert sum(say.book.observe(body) is not None for _ in range(40)) == pass_
    assert say.book.sweep() == []
