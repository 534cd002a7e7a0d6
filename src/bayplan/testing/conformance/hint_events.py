"""Answers events after a rejection: which plugins are called, what their hints return, and which sub-queue has the pod.

Each event starts from the same state: a cluster, a queue, and one pod that was tried once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayplan.clock import ManualClock
from bayplan.framework.api.events import ClusterEvent, QueueingHint
from bayplan.framework.runtime.object_changes import pod_update_events
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.objects.kinds import convert, kinds_by_name
from bayplan.objects.meta import KubeObject
from bayplan.queue import HintTable, QueuedPodInfo, SchedulingQueue, SubQueue
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.live.event_handlers import EventHandlers
from bayplan.scheduler.live.queue_factory import new_queue
from bayplan.testing.conformance.scenario_cluster import NOW, build_scenario_engine, decode_objects

REJECTED_AFTER_S = 0.3
_POOL_NAMES = {
    SubQueue.ACTIVE: "active",
    SubQueue.BACKOFF: "backoff",
    SubQueue.ERROR_BACKOFF: "backoff",
    SubQueue.UNSCHEDULABLE: "unschedulable",
}
_HINT_ORDER = ("Skip", "error", "Queue")


def answer_hints(scenario: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """The rejection of the pod, and the effect of each event."""
    start = _PodHistory(scenario, registry)
    decision = start.try_pod()
    start.requeue(decision)
    return {
        "name": scenario.get("name", ""),
        "rejected": start.rejection(decision),
        "events": [_PodHistory(scenario, registry).with_event(event) for event in scenario["events"]],
    }


class _PodHistory:
    """One pod from its creation on."""

    def __init__(self, scenario: dict[str, Any], registry: Registry) -> None:
        self._clock = ManualClock(NOW)
        self._engine = build_scenario_engine(scenario, registry, clock=self._clock)
        (self._pod,) = decode_objects(scenario, "pending", Pod)
        self._queue = _RecordingQueue.for_pod(self._engine, self._pod.uid, self._clock)
        self._event_handlers = EventHandlers(self._engine, self._queue)
        self._popped: QueuedPodInfo | None = None
        for pod in (*decode_objects(scenario, "pods", Pod), self._pod):
            if not pod.spec.node_name:
                self._event_handlers.handle(None, pod)

    def try_pod(self) -> SchedulingDecision | None:
        """Run the attempt; None if PreEnqueue holds the pod."""
        self._clock.advance(REJECTED_AFTER_S)
        self._popped = self._queue.pop()
        return None if self._popped is None else self._engine.try_pod(self._popped.pod)

    def requeue(self, decision: SchedulingDecision | None) -> None:
        """Requeue the pod after a failed attempt."""
        if self._popped is not None and decision is not None:
            self._queue.requeue(self._popped, *decision.rejectors)
            self._queue.nominate(self._popped.info, decision.nominated_node_name)

    def rejection(self, decision: SchedulingDecision | None) -> dict[str, Any]:
        answer: dict[str, Any] = self._queue_state()
        queued = self._queue.get(self._pod.key)
        assert queued is not None
        if queued.unschedulable_plugins:
            answer["unschedulablePlugins"] = sorted(queued.unschedulable_plugins)
        if queued.pending_plugins:
            answer["pendingPlugins"] = sorted(queued.pending_plugins)
        if decision is not None:
            answer["message"] = decision.message
        return answer

    def with_event(self, event: dict[str, Any]) -> dict[str, Any]:
        decision = self.try_pod()
        if not event.get("inFlight"):
            self.requeue(decision)
        self._clock.advance(event.get("after") or 0.0)
        self._queue.recorded_events.clear()
        self._event_handlers.handle(_item(event, "old"), _item(event, "new"))
        events = list(self._queue.recorded_events)
        if event.get("inFlight"):
            self.requeue(decision)
        return {"events": events} | self._queue_state()

    def _queue_state(self) -> dict[str, Any]:
        queued = self._queue.get(self._pod.key)
        if queued is None or queued.pool is None:
            return {"lands": "gone"}
        answer: dict[str, Any] = {"lands": _POOL_NAMES[queued.pool]}
        if queued.gated_by:
            answer["gatedBy"] = queued.gated_by
        return answer


class _RecordingQueue(SchedulingQueue):
    """A queue that records the events for one pod."""

    recorded_events: list[dict[str, Any]]
    _engine: PodEngine
    _uid: str

    @classmethod
    def for_pod(cls, engine: PodEngine, uid: str, clock: ManualClock) -> _RecordingQueue:
        queue = new_queue(engine, cls, clock=clock)
        queue.recorded_events, queue._engine, queue._uid = [], engine, uid
        return queue

    def update(self, old: Pod, new: Pod) -> None:
        if new.uid == self._uid:
            for event in pod_update_events(old, new):
                self._record_event(event, old, new)
        super().update(old, new)

    def move_in_slices(
        self,
        event: ClusterEvent,
        old: KubeObject | None = None,
        new: KubeObject | None = None,
        *,
        at_most: int | None = None,
        skip_self: bool = False,
    ) -> Iterator[int]:
        self._record_event(event, old, new, at_most)
        return super().move_in_slices(event, old, new, at_most=at_most, skip_self=skip_self)

    def _record_event(
        self, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None, at_most: int | None = None
    ) -> None:
        pod = self._engine.pending.get(self._uid)
        if pod is None:
            return
        answer: dict[str, Any] = {"event": event.name, "hints": _hint_results(self.hints, pod, event, old, new)}
        if at_most is not None and pod.priority > at_most:
            answer["excluded"] = True
        self.recorded_events.append(answer)


def _hint_results(
    table: HintTable, pod: Pod, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None
) -> dict[str, str]:
    """Result of every hint that is registered for the event, also of plugins that did not reject the pod."""
    results: dict[str, str] = {}
    for registration in table.matching(pod.scheduler_name, event):
        hint = registration.event_with_hint.hint
        try:
            result = QueueingHint.QUEUE.value if hint is None else hint(pod, old, new).value
        except Exception:
            result = "error"
        results[registration.plugin] = max(results.get(registration.plugin, "Skip"), result, key=_HINT_ORDER.index)
    return dict(sorted(results.items()))


def _item(event: dict[str, Any], key: str) -> KubeObject | None:
    """The object of an event. An updated object always gets a new resource version."""
    raw = event.get(key)
    if raw is None:
        return None
    if key == "new":
        raw = raw | {"metadata": raw.get("metadata", {}) | {"resourceVersion": "2"}}
    return convert(raw, kinds_by_name()[event["kind"]].struct)
