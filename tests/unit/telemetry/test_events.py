"""Fields of events as kube-scheduler writes them, and the limits of events."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from bayplan.clock import ManualClock
from bayplan.objects.core import ObjectMeta, Pod
from bayplan.objects.workloads import PodGroup
from bayplan.telemetry.events import NOTE_BYTES, Event, EventRecorder, ObjectReference, truncate_note

START = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
LEASE = ObjectReference("Lease", "", "me", "l1", "coordination.k8s.io/v1", "9")


def pod(name: str = "web", version: str = "7") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="team", uid=f"uid-{name}", resource_version=version))


def recorder(posted: list[Event], clock: ManualClock | None = None) -> EventRecorder:
    clock = clock or ManualClock(START)
    return EventRecorder("default-scheduler", host="h1", clock=clock, chance=random.Random(1), post=posted.append)


def test_a_scheduled_event_has_every_field_of_upstreams() -> None:
    posted: list[Event] = []
    recorder(posted).record_scheduled(pod(), "n1")
    nanoseconds = (START - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    assert msgspec.to_builtins(posted[0]) == {
        "metadata": {"name": f"web.{nanoseconds:x}", "namespace": "team"},
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "default-scheduler",
        "reportingInstance": "default-scheduler-h1",
        "action": "Binding",
        "reason": "Scheduled",
        "regarding": {
            "kind": "Pod",
            "namespace": "team",
            "name": "web",
            "uid": "uid-web",
            "apiVersion": "v1",
            "resourceVersion": "7",
        },
        "note": "Successfully assigned team/web to n1",
        "type": "Normal",
    }


def test_events_of_other_outcomes_have_upstreams_texts() -> None:
    posted: list[Event] = []
    event_recorder = recorder(posted)
    event_recorder.record_failed_scheduling(pod(), "0/1 nodes are available")
    event_recorder.record_skipped_deleting(pod())
    event_recorder.record_preempted(pod(), pod("boss"), "Preempted by pod uid-boss on node n1")
    event_recorder.record_binding_conditions_pending(pod(), "n1")
    assert [(each.type, each.reason, each.action, each.note) for each in posted] == [
        ("Warning", "FailedScheduling", "Scheduling", "0/1 nodes are available"),
        ("Warning", "FailedScheduling", "Scheduling", "skip schedule deleting pod: team/web"),
        ("Normal", "Preempted", "Preempting", "Preempted by pod uid-boss on node n1"),
        ("Normal", "BindingConditionsPending", "Scheduling", "waiting for binding conditions for device on node n1"),
    ]
    assert [each.related for each in posted] == [None] * 4


def test_a_preempting_pod_group_is_the_related_object() -> None:
    posted: list[Event] = []
    group = PodGroup(metadata=ObjectMeta(name="gang", namespace="team", uid="g1", resource_version="8"))
    recorder(posted).record_preempted(pod(), group, "Preempted by podgroup g1 on node cluster")
    assert posted[0].related == ObjectReference("PodGroup", "team", "gang", "g1", "scheduling.k8s.io/v1alpha2", "8")


def test_events_of_a_cluster_scoped_object_are_in_the_default_namespace() -> None:
    posted: list[Event] = []
    recorder(posted).record(LEASE, type="Normal", reason="LeaderElection", action="", note="me became leader")
    assert posted[0].metadata.namespace == "default"
    assert posted[0].regarding == LEASE


@pytest.mark.parametrize("name", ["No_Name", "n" * 237], ids=["no DNS name", "too long with the time"])
def test_a_name_that_is_invalid_for_an_event_is_replaced(name: str) -> None:
    posted: list[Event] = []
    recorder(posted).record_scheduled(pod(name), "n1")
    assert len(posted[0].metadata.name) == 36
    assert posted[0].regarding.name == name


def test_the_longest_name_that_fits_is_kept() -> None:
    posted: list[Event] = []
    recorder(posted).record_scheduled(pod("n" * 236), "n1")
    assert posted[0].metadata.name.startswith("n" * 236 + ".")
    assert len(posted[0].metadata.name) == 253


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        pytest.param("short", "short", id="short"),
        pytest.param("x" * 1024, "x" * 1024, id="just fits"),
        pytest.param("x" * 1025, "x" * 1020 + " ...", id="one too many"),
        pytest.param("é" * 512, "é" * 512, id="bytes count, and fit"),
        pytest.param("x" + "é" * 512, "x" + "é" * 509 + " ...", id="no half characters"),
    ],
)
def test_notes_are_cut_to_the_limit_of_the_api_server(text: str, cut: str) -> None:
    assert truncate_note(text) == cut
    assert len(truncate_note(text).encode()) <= NOTE_BYTES
