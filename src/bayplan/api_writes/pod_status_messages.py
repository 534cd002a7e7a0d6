"""Events, conditions and nominations of pods, as values. The texts are kube-scheduler's.

Called after every failed attempt, every binding and every eviction. Nothing here waits: a patch is a value, and the
caller that sends it may retry it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from bayplan.objects.core import Pod
from bayplan.objects.meta import Condition
from bayplan.telemetry.events import EventRecorder

NORMAL, WARNING = "Normal", "Warning"
POD_SCHEDULED = "PodScheduled"
UNSCHEDULABLE, SCHEDULER_ERROR = "Unschedulable", "SchedulerError"


class PodEventRecorder(Protocol):
    """Records events. `record` never waits and never fails."""

    def record(
        self, regarding: Pod, kind: str, reason: str, action: str, note: str, related: Pod | None = None
    ) -> None: ...


class ProfileEvents:
    """Events in the name of the profile that serves the pod, or of the preemptor's profile."""

    def __init__(self, recorders: Mapping[str, EventRecorder]) -> None:
        self._recorders = recorders
        self._first = next(iter(recorders.values()))

    def record(
        self, regarding: Pod, kind: str, reason: str, action: str, note: str, related: Pod | None = None
    ) -> None:
        recorder = self._recorders.get((related or regarding).scheduler_name, self._first)
        # kube-scheduler 1.36 intends to refer to the preemptor and, by a bug, never does.
        recorder.record(regarding, type=kind, reason=reason, action=action, note=note)


def record_scheduled(events: PodEventRecorder, pod: Pod, node_name: str) -> None:
    events.record(pod, NORMAL, "Scheduled", "Binding", f"Successfully assigned {pod.key} to {node_name}")


def record_failed_scheduling(events: PodEventRecorder, pod: Pod, message: str) -> None:
    events.record(pod, WARNING, "FailedScheduling", "Scheduling", message)


def record_skipped(events: PodEventRecorder, pod: Pod) -> None:
    record_failed_scheduling(events, pod, f"skip schedule deleting pod: {pod.key}")


def failure_patch(pod: Pod, reason: str, message: str, nominate: str | None, now: datetime) -> dict[str, Any] | None:
    """The status patch with the reason why a pod waits; None if there is no change. `nominate`: None keeps the node."""
    status: dict[str, Any] = {}
    if not has_scheduled_condition(pod, reason, message):
        status["conditions"] = [_new_condition(_scheduled_condition(pod), pod, reason, message, now)]
    if nominate is not None and nominate != pod.status.nominated_node_name:
        status["nominatedNodeName"] = nominate or None
    return {"metadata": {"uid": pod.uid}, "status": status} if status else None


def has_scheduled_condition(pod: Pod, reason: str, message: str) -> bool:
    """Whether the pod's PodScheduled condition is false with this reason and message."""
    known = _scheduled_condition(pod)
    return known is not None and (known.status, known.reason, known.message) == ("False", reason, message)


def _scheduled_condition(pod: Pod) -> Condition | None:
    return next((each for each in pod.status.conditions if each.type == POD_SCHEDULED), None)


def _new_condition(old: Condition | None, pod: Pod, reason: str, message: str, now: datetime) -> dict[str, Any]:
    condition: dict[str, Any] = {
        "type": POD_SCHEDULED,
        "status": "False",
        "reason": reason,
        "message": message,
        "observedGeneration": pod.metadata.generation,
        "lastProbeTime": None,
    }
    if old is None or old.status != "False":
        condition["lastTransitionTime"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return condition


def nomination_patch(pod: Pod, node_name: str) -> dict[str, Any]:
    return {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node_name or None}}
