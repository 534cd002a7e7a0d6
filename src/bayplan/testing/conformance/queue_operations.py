"""Answers operations on the scheduling queue, with a manual clock: the sub-queue of each pod after each operation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from bayplan.clock import ManualClock
from bayplan.errors import ObjectError
from bayplan.framework.api.events import (
    ACTION_NAMES,
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
)
from bayplan.framework.api.status import SUCCESS, Status, unresolvable
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import DEFAULT_SCHEDULER_NAME, Pod
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject
from bayplan.plugins.priority_sort import PrioritySort
from bayplan.plugins.scheduling_gates import SchedulingGates
from bayplan.queue import QueueProfile, SchedulingQueue, SubQueue, hints
from bayplan.snapshot import PodInfo

HOLD_LABEL = "Hold"
_ACTIONS = {name: action for action, name in ACTION_NAMES.items()}
_GATES = SchedulingGates()


def answer_queue(scenario: dict[str, Any], registry: Registry) -> dict[str, Any]:  # noqa: ARG001
    """The state of the queue after each operation. The scenario defines its own plugins."""
    run = _QueueRun(scenario.get("plugins") or ())
    with _silence_hint_errors():
        return {"name": scenario.get("name", ""), "steps": [run.run_step(op) for op in scenario["ops"]]}


@contextmanager
def _silence_hint_errors() -> Iterator[None]:
    """Suppress log messages of hints that fail as part of the scenario."""
    hints.log.addFilter(_is_hint_error)
    try:
        yield
    finally:
        hints.log.removeFilter(_is_hint_error)


def _is_hint_error(record: logging.LogRecord) -> bool:  # noqa: ARG001
    return False


class _QueueRun:
    def __init__(self, plugins: Any) -> None:
        self._clock = ManualClock()
        self._start = self._clock.now()
        self._pods: dict[str, Pod] = {}  # by uid: added pods that are neither deleted nor bound
        self._in_flight: dict[str, Any] = {}  # by uid: popped pods
        self._nominations = Nominator()
        self._queue = SchedulingQueue(
            {DEFAULT_SCHEDULER_NAME: QueueProfile(_events_to_register(plugins), _gate)},
            PrioritySort().sort_key,
            clock=self._clock,
            pods=self._pods,
            nominations=self._nominations,
        )
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "add": self._add,
            "update": self._update,
            "delete": self._delete,
            "activate": self._activate,
            "nominate": self._nominate,
            "denominate": self._denominate,
            "pop": self._pop,
            "fail": self._fail,
            "done": self._done,
            "event": self._event,
            "flushBackoff": lambda _: _drain(self._queue.flush_backoff()),
            "flushUnschedulable": lambda _: _drain(self._queue.flush_unschedulable()),
        }

    def run_step(self, op: dict[str, Any]) -> dict[str, Any]:
        self._clock.advance(op["at"] / 1000 - self._clock.monotonic_s())
        operation = self._operations.get(op["op"])
        if operation is None:
            raise ObjectError(f'unknown operation "{op["op"]}"; expected one of {", ".join(self._operations)}')
        answer = operation(op) or {}
        return answer | {key: value for key, value in self._state().items() if value}

    # Operations

    def _add(self, op: dict[str, Any]) -> None:
        pod = convert(op["pod"], Pod)
        self._pods[pod.uid] = pod
        self._queue.add(pod)

    def _update(self, op: dict[str, Any]) -> None:
        pod = convert(op["pod"], Pod)
        old = self._pods.get(pod.uid)
        if old is not None:
            self._pods[pod.uid] = pod
            self._queue.update(old, pod)

    def _delete(self, op: dict[str, Any]) -> None:
        pod = self._find_pod(op)
        if pod is not None:
            del self._pods[pod.uid]
            self._queue.delete(pod)

    def _activate(self, op: dict[str, Any]) -> None:
        pod = self._find_pod(op)
        if pod is not None:
            self._queue.activate([pod])

    def _nominate(self, op: dict[str, Any]) -> None:
        pod = self._find_pod(op)
        if pod is not None:
            self._queue.nominate(PodInfo(pod), op["node"])

    def _denominate(self, op: dict[str, Any]) -> None:
        pod = self._find_pod(op)
        if pod is not None:
            self._nominations.delete_nomination(pod.uid)

    def _pop(self, op: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        queued = self._queue.pop()
        if queued is None:
            return {"blocks": True}
        self._in_flight[queued.uid] = queued
        return {"pod": queued.pod.name, "attempts": queued.attempts}

    def _fail(self, op: dict[str, Any]) -> dict[str, Any] | None:
        queued = self._popped_pod(op)
        if queued is None:
            return None
        self._queue.requeue(queued, op.get("unschedulablePlugins") or (), op.get("pendingPlugins") or ())
        return {"pod": queued.pod.name}

    def _done(self, op: dict[str, Any]) -> dict[str, Any] | None:
        queued = self._popped_pod(op)
        if queued is None:
            return None
        self._queue.done(queued.uid)
        bound = self._pods.pop(queued.uid, None)
        if bound is not None:
            self._queue.delete(bound)
        return {"pod": queued.pod.name}

    def _event(self, op: dict[str, Any]) -> None:
        self._queue.move_all_on_event(ClusterEvent(op["resource"], _ACTIONS[op["action"]]), at_most=op.get("priority"))

    def _find_pod(self, op: dict[str, Any]) -> Pod | None:
        return next((pod for pod in self._pods.values() if pod.name == op["name"]), None)

    def _popped_pod(self, op: dict[str, Any]) -> Any:
        in_flight = self._queue.in_flight()
        return self._in_flight[in_flight[(op.get("slot") or 0) % len(in_flight)].uid] if in_flight else None

    # State

    def _state(self) -> dict[str, Any]:
        queue = self._queue
        unschedulable = sorted(queue.pods_in(SubQueue.UNSCHEDULABLE), key=lambda each: each.pod.name)
        return {
            "active": [each.pod.name for each in queue.pods_in(SubQueue.ACTIVE)],
            "backoff": self._backing_off(SubQueue.BACKOFF),
            "errorBackoff": sorted(self._backing_off(SubQueue.ERROR_BACKOFF), key=lambda each: str(each["pod"])),
            "unschedulable": [each.pod.name for each in unschedulable if not each.gated_by],
            "gated": {each.pod.name: each.gated_by for each in unschedulable if each.gated_by},
            "inFlight": sorted(pod.name for pod in queue.in_flight()),
            "nominated": {
                node: [info.pod.name for info in self._nominations.on_node(node)]
                for node in sorted(self._nominations.nodes())
            },
        }

    def _backing_off(self, pool: SubQueue) -> list[dict[str, Any]]:
        return [
            {"pod": each.pod.name, "until": self._milliseconds(self._queue.backoff_expires_at(each))}
            for each in self._queue.pods_in(pool)
        ]

    def _milliseconds(self, moment: datetime) -> int:
        return round((moment - self._start).total_seconds() * 1000)


def _drain(slices: Any) -> None:
    for _ in slices:
        pass


# Plugins


def _gate(pod: Pod, first: str) -> Status:
    """Run SchedulingGates and a plugin that holds pods with a label. The plugin that already holds the pod is first."""
    statuses = {
        SchedulingGates.name: _GATES.pre_enqueue(pod),
        HOLD_LABEL: unresolvable("held") if pod.labels.get("hold") == "yes" else None,
    }
    for plugin in sorted(statuses, key=lambda name: name != first):
        status = statuses[plugin]
        if status is not None:
            return status.by(plugin)
    return SUCCESS


def _events_to_register(plugins: Any) -> dict[str, tuple[ClusterEventWithHint, ...]]:
    events_by_plugin: dict[str, tuple[ClusterEventWithHint, ...]] = {
        SchedulingGates.name: SchedulingGates.events_to_register,
        HOLD_LABEL: (),
    }
    for entry in plugins:
        action = ActionType(0)
        for name in entry["actions"]:
            action |= _ACTIONS[name]
        event = _HINTS[entry["answer"]](entry["resource"], action)
        events_by_plugin[entry["plugin"]] = (*events_by_plugin.get(entry["plugin"], ()), event)
    return events_by_plugin


def _queue_hint(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    return QueueingHint.QUEUE


def _skip_hint(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    return QueueingHint.SKIP


def _failing_hint(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    raise ValueError("the hint of this scenario fails")


def _label_hint(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    return QueueingHint.QUEUE if pod.labels.get("wake") == "yes" else QueueingHint.SKIP


def _label(pod: Pod) -> str:
    return pod.labels.get("wake", "")


_HINTS: dict[str, Callable[[EventResource | str, ActionType], ClusterEventWithHint]] = {
    "Queue": lambda resource, action: ClusterEventWithHint(resource, action, _queue_hint, no_hint_key),
    "Skip": lambda resource, action: ClusterEventWithHint(resource, action, _skip_hint, no_hint_key),
    "Error": lambda resource, action: ClusterEventWithHint(resource, action, _failing_hint, no_hint_key),
    "Label": lambda resource, action: ClusterEventWithHint(resource, action, _label_hint, _label),
}
