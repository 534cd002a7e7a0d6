"""Event series and counts: which events become requests, on a manual clock."""

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


class CorrelatorHarness:
    """An `EventRecorder` with a correlator; `writes` are the requests of the correlator."""

    def __init__(
        self, correlator: type[EventSeriesCorrelator] | type[CoreEventCorrelator] = EventSeriesCorrelator, **more: Any
    ) -> None:
        self.clock = ManualClock()
        self.correlator: EventCorrelator = correlator(self.clock, **more)
        self.writes: list[EventWrite] = []
        post = self._post
        self.recorder = EventRecorder("s", host="h", clock=self.clock, chance=random.Random(0), post=post)

    def _post(self, event: Event) -> None:
        write = self.correlator.observe(event)
        if write is not None:
            self.writes.append(write)

    def failed(self, note: str = "no room", *, name: str = "p", version: str = "1") -> None:
        meta = ObjectMeta(name=name, namespace="team", uid=name, resource_version=version)
        self.recorder.record_failed_scheduling(Pod(metadata=meta), note)
        self.clock.advance(1)

    def patches(self) -> list[Any]:
        return [msgspec.to_builtins(write.patch) for write in self.writes]


def test_the_first_event_is_created_the_second_patched_and_later_ones_counted() -> None:
    harness = CorrelatorHarness()
    for _ in range(5):
        harness.failed()
    assert harness.patches() == [None, {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}]
    assert {write.name for write in harness.writes} == {harness.writes[0].name}


def test_a_pod_that_fails_for_two_reasons_in_turn_has_two_events() -> None:
    harness = CorrelatorHarness()
    for attempt in range(20):
        harness.failed(f"reason {attempt % 2}", version=str(attempt))
    assert [patch is None for patch in harness.patches()] == [True, True, False, False]
    assert [write.name for write in harness.writes[2:]] == [write.name for write in harness.writes[:2]]
    bodies = [msgspec.to_builtins(write.body) for write in harness.writes]
    assert [each["note"] for each in bodies] == ["reason 0", "reason 1"] * 2


@pytest.mark.parametrize("swept", [True, False])
def test_a_series_ends_without_a_write_six_minutes_after_its_last_event(swept: bool) -> None:
    harness = CorrelatorHarness()
    for _ in range(4):
        harness.failed()
    harness.clock.advance(360 - 1)
    assert harness.correlator.sweep() == []
    harness.failed()
    assert len(harness.writes) == 2, "it went on"
    harness.clock.advance(360)
    assert not swept or harness.correlator.sweep() == []
    harness.failed()
    assert harness.patches()[-1] is None, "a new series"


def test_a_single_event_is_forgotten_after_six_minutes() -> None:
    harness = CorrelatorHarness()
    harness.failed()
    harness.clock.advance(360)
    assert harness.correlator.sweep() == []
    harness.failed()
    assert harness.patches() == [None, None]


def test_a_series_that_goes_on_is_written_every_half_an_hour() -> None:
    harness = CorrelatorHarness()
    counts = []
    for minute in range(91):
        if minute % 6 == 0:
            counts += [
                (minute, msgspec.to_builtins(each.patch)["series"]["count"]) for each in harness.correlator.sweep()
            ]
        harness.failed()
        harness.clock.advance(59)
    assert counts == [(30, 30), (60, 60), (90, 90)]


def test_binding_events_are_not_kept_for_series() -> None:
    harness = CorrelatorHarness()
    meta = ObjectMeta(name="p", namespace="team", uid="p", resource_version="1")
    harness.recorder.record_scheduled(Pod(metadata=meta), "n1")
    assert len(harness.writes) == 1
    assert isinstance(harness.correlator, EventSeriesCorrelator)
    assert len(harness.correlator) == 0


def test_a_binding_event_passes_the_spam_filter() -> None:
    harness = CorrelatorHarness(CoreEventCorrelator)
    meta = ObjectMeta(name="p", namespace="team", uid="p", resource_version="1")
    pod = Pod(metadata=meta)
    for number in range(40):
        harness.recorder.record(pod, type="Normal", reason="Other", action="", note=f"note {number}")
    before = len(harness.writes)
    harness.recorder.record_scheduled(pod, "n1")
    assert [msgspec.to_builtins(write.body)["reason"] for write in harness.writes[before:]] == ["Scheduled"]


@pytest.mark.parametrize(
    ("reason", "notes"),
    [
        ("Misconfigured", ("its queue is missing", "its queue has no parent")),
        ("BindingRetry", ("not bound to node n1 (attempt 1 of 3)", "not bound to node n2 (attempt 2 of 3)")),
        ("BindingError", ("not bound to node n1", "not bound to node n2")),
    ],
)
@pytest.mark.parametrize("correlator", [EventSeriesCorrelator, CoreEventCorrelator])
def test_another_note_about_the_same_version_is_another_event(
    correlator: type[EventSeriesCorrelator] | type[CoreEventCorrelator], reason: str, notes: tuple[str, str]
) -> None:
    harness = CorrelatorHarness(correlator)
    pod = Pod(metadata=ObjectMeta(name="p", namespace="team", uid="p", resource_version="1"))
    for note in notes:
        harness.recorder.record(pod, type="Warning", reason=reason, action="Scheduling", note=note)
        harness.clock.advance(1)
    assert harness.patches() == [None, None]
    assert len({write.name for write in harness.writes}) == 2


def test_the_oldest_series_are_dropped_above_the_maximum() -> None:
    harness = CorrelatorHarness(max_series=2)
    for name in ("a", "b", "c"):
        harness.failed(name=name)
    harness.failed(name="c")
    harness.failed(name="a")
    assert [patch is None for patch in harness.patches()] == [True, True, True, False, True]


# Core events, for servers without events.k8s.io.


def test_core_events_are_counted() -> None:
    harness = CorrelatorHarness(CoreEventCorrelator)
    for _ in range(3):
        harness.failed()
    first = msgspec.to_builtins(harness.writes[0].body)
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
    assert harness.patches() == [
        None,
        {"count": 2, "lastTimestamp": "2026-01-01T00:00:01Z", "message": "no room"},
        {"count": 3, "lastTimestamp": "2026-01-01T00:00:02Z", "message": "no room"},
    ]
    assert msgspec.to_builtins(harness.writes[2].body)["firstTimestamp"] == "2026-01-01T00:00:00Z"


def test_ten_events_that_differ_only_in_the_message_are_combined() -> None:
    harness = CorrelatorHarness(CoreEventCorrelator)
    for number in range(12):
        harness.failed(f"reason {number}")
    assert [patch is None for patch in harness.patches()] == [True] * 10 + [False] * 2
    assert harness.patches()[-1]["message"] == f"{COMBINED}reason 11"
    assert harness.patches()[-1]["count"] == 3
    assert {write.name for write in harness.writes[9:]} == {harness.writes[9].name}


def test_similar_events_are_forgotten_after_ten_quiet_minutes() -> None:
    harness = CorrelatorHarness(CoreEventCorrelator)
    for number in range(9):
        harness.failed(f"reason {number}")
    harness.clock.advance(600)
    harness.failed("reason 9")
    assert msgspec.to_builtins(harness.writes[-1].body)["message"] == "reason 9"


@pytest.mark.parametrize(("wait_s", "pass_"), [(299, 0), (300, 1), (600, 2), (300 * 100, 25)])
def test_an_object_gets_25_events_at_once_and_then_one_every_five_minutes(wait_s: int, pass_: int) -> None:
    harness = CorrelatorHarness(CoreEventCorrelator)
    event = CorrelatorHarness()
    event.failed()
    body = event.writes[0].body
    assert isinstance(body, Event)
    assert sum(harness.correlator.observe(body) is not None for _ in range(40)) == 25
    harness.clock.advance(wait_s)
    assert sum(harness.correlator.observe(body) is not None for _ in range(40)) == pass_
    assert harness.correlator.sweep() == []
