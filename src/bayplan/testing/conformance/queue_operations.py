"""The scheduling queue step by step on a manual clock: who is where after each operation."""

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
from bayplan.queue import (
    QueueProfile,
    SchedulingQueue,
    SubQueue,
    hints,
)
from bayplan.snapshot import PodInfo

HOLD_LABEL = "Hold"
_ACTIONS = {word: action for action, word in ACTION_NAMES.items()}
_GATES = SchedulingGates()


def answer_queue(scenario: dict[str, Any], registry: Registry) -> dict[str, Any]:  # noqa: ARG001
    """The state of the queue after each operation. The scenario brings its own plugins."""
    run = _QueueRun(scenario.get("plugins") or ())
    with _silence_hint_errors():
        return {"name": scenario.get("name", ""), "steps": [run.take(op) for op in scenario["ops"]]}


@contextmanager
def _silence_hint_errors() -> Iterator[None]:
    """Hints that fail are part of the scenarios; nobody has to be warned of them."""
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
        self._pods: dict[str, Pod] = {}  # by uid: what was added and neither deleted nor bound
        self._flying: dict[str, Any] = {}  # by uid: popped pods
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

    def take(self, op: dict[str, Any]) -> dict[str, Any]:
        self._clock.advance(op["at"] / 1000 - self._clock.monotonic_s())
        operation = self._operations.get(op["op"])
        if operation is None:
            raise ObjectError(f'nobody knows the operation "{op["op"]}"; there are {", ".join(self._operations)}')
        told = operation(op) or {}
        return told | {key: value for key, value in self._state().items() if value}

    # operations -------------------------------------------------------------------------------------------------

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
        pod = self._named(op)
        if pod is not None:
            del self._pods[pod.uid]
            self._queue.delete(pod)

    def _activate(self, op: dict[str, Any]) -> None:
        pod = self._named(op)
        if pod is not None:
            self._queue.activate([pod])

    def _nominate(self, op: dict[str, Any]) -> None:
        pod = self._named(op)
        if pod is not None:
            self._queue.nominate(PodInfo(pod), op["node"])

    def _denominate(self, op: dict[str, Any]) -> None:
        pod = self._named(op)
        if pod is not None:
            self._nominations.delete_nomination(pod.uid)

    def _pop(self, op: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        queued = self._queue.pop()
        if queued is None:
            return {"blocks": True}
        self._flying[queued.uid] = queued
        return {"pod": queued.pod.name, "attempts": queued.attempts}

    def _fail(self, op: dict[str, Any]) -> dict[str, Any] | None:
        queued = self._in_slot(op)
        if queued is None:
            return None
        self._queue.requeue(queued, op.get("unschedulablePlugins") or (), op.get("pendingPlugins") or ())
        return {"pod": queued.pod.name}

    def _done(self, op: dict[str, Any]) -> dict[str, Any] | None:
        queued = self._in_slot(op)
        if queued is None:
            return None
        self._queue.done(queued.uid)
        bound = self._pods.pop(queued.uid, None)
        if bound is not None:
            self._queue.delete(bound)
        return {"pod": queued.pod.name}

    def _event(self, op: dict[str, Any]) -> None:
        self._queue.move_all_on_event(ClusterEvent(op["resource"], _ACTIONS[op["action"]]), at_most=op.get("priority"))

    def _named(self, op: dict[str, Any]) -> Pod | None:
        return next((pod for pod in self._pods.values() if pod.name == op["name"]), None)

    def _in_slot(self, op: dict[str, Any]) -> Any:
        flying = self._queue.in_flight()
        return self._flying[flying[(op.get("slot") or 0) % len(flying)].uid] if flying else None

    # state ------------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        queue = self._queue
        parked = sorted(queue.pods_in(SubQueue.UNSCHEDULABLE), key=lambda each: each.pod.name)
        return {
            "active": [each.pod.name for each in queue.pods_in(SubQueue.ACTIVE)],
            "backoff": self._backing_off(SubQueue.BACKOFF),
            "errorBackoff": sorted(self._backing_off(SubQueue.ERROR_BACKOFF), key=lambda each: str(each["pod"])),
            "unschedulable": [each.pod.name for each in parked if not each.gated_by],
            "gated": {each.pod.name: each.gated_by for each in parked if each.gated_by},
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


# plugins


def _gate(pod: Pod, first: str) -> Status:
    """SchedulingGates and a plugin that holds pods with a label; whoever holds the pod already is asked first."""
    refusals = {
        SchedulingGates.name: _GATES.pre_enqueue(pod),
        HOLD_LABEL: unresolvable("held") if pod.labels.get("hold") == "yes" else None,
    }
    for plugin in sorted(refusals, key=lambda name: name != first):
        refusal = refusals[plugin]
        if refusal is not None:
            return refusal.by(plugin)
    return SUCCESS


def _events_to_register(plugins: Any) -> dict[str, tuple[ClusterEventWithHint, ...]]:
    cures: dict[str, tuple[ClusterEventWithHint, ...]] = {
        SchedulingGates.name: SchedulingGates.cured_by,
        HOLD_LABEL: (),
    }
    for entry in plugins:
        action = ActionType(0)
        for word in entry["actions"]:
            action |= _ACTIONS[word]
        cure = _ANSWERS[entry["answer"]](entry["resource"], action)
        cures[entry["plugin"]] = (*cures.get(entry["plugin"], ()), cure)
    return cures


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


_ANSWERS: dict[str, Callable[[EventResource | str, ActionType], ClusterEventWithHint]] = {
    "Queue": lambda resource, action: ClusterEventWithHint(resource, action, _queue_hint, no_hint_key),
    "Skip": lambda resource, action: ClusterEventWithHint(resource, action, _skip_hint, no_hint_key),
    "Error": lambda resource, action: ClusterEventWithHint(resource, action, _failing_hint, no_hint_key),
    "Label": lambda resource, action: ClusterEventWithHint(resource, action, _label_hint, _label),
}
