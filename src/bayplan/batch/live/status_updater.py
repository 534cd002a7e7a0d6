"""Status updates after a session: conditions of pod groups, allocations of queues, conditions of pods, events.

Unchanged values are not written, and events are not repeated; Volcano repeats its events every second. Writes to one
object run one after another, and only the newest waiting one is kept. A refused write is repeated after the next
session, if it still applies. Early sessions only write new phases of groups, because controllers wait for them. The
condition of a waiting pod changes with every new member of its gang, and is written once per period.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bayplan.api_writes.pod_statuses import PartialObjectMetadata
from bayplan.batch.diagnostics.misconfigured_objects import ObjectProblem, find_misconfigured_objects
from bayplan.batch.live.event_handlers import BatchEventHandlers
from bayplan.batch.live.write_interfaces import IntentWriter, ObjectEventRecorder, PodStatusWriter
from bayplan.batch.model.tasks import GROUP_NAME
from bayplan.batch.session.outcome import GroupEvent, GroupOutcome, SessionResult
from bayplan.client import MERGE_PATCH, Client, GroupVersionResource
from bayplan.codec.quantity import Quantity
from bayplan.errors import ApiError, Conflict, NotFound
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano
from bayplan.telemetry.events import WARNING

log = logging.getLogger(__name__)

UNSCHEDULABLE, MISCONFIGURED = "Unschedulable", "Misconfigured"
NO_POD_GROUP_MESSAGE = (
    f"the pod has no pod group in the annotation {GROUP_NAME}; run the pod group controller, or create a PodGroup and "
    "set the annotation"
)
_CLEANUP_THRESHOLD = 1024

_Object = tuple[type[KubeObject], str, str]
"""Kind, key and uid."""


@dataclass(slots=True)
class SessionStatusUpdater:
    event_handlers: BatchEventHandlers
    client: Client
    writes: IntentWriter
    statuses: PodStatusWriter
    event_recorder: ObjectEventRecorder
    groups: GroupVersionResource
    queues: GroupVersionResource
    _latest: dict[str, dict[str, Any]] = field(default_factory=dict)  # by path: the newest patch that waits
    _busy: set[str] = field(default_factory=set)
    # by path: version of the object, and the value written
    _last_written: dict[str, tuple[str, Any]] = field(default_factory=dict)
    _last_events: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """By object and reason: the event texts of the last session that had any."""
    _faults: set[str] = field(default_factory=set)
    _last_reported: dict[_Object, str] = field(default_factory=dict)  # the last reported problems of objects
    _pods_without_group: set[str] = field(default_factory=set)

    def update_statuses(self, outcome: SessionResult, *, early: bool = False) -> Iterable[None]:
        """Write the results of a session, some per step. After an early session, only what controllers wait for."""
        catalog = self.event_handlers.engine.cache.catalog
        table = catalog.table(volcano.PodGroup)
        written: set[str] = set()
        for uid, found in outcome.groups.items():
            group = table.get(uid)
            if found.changed and group is not None and not (early and found.status.phase == group.status.phase):
                written.add(uid)
                self._update_group(group, found)
                yield
        by_reason: dict[tuple[str, str], list[GroupEvent]] = {}
        for event in outcome.events:
            if not (early and event.group not in written):
                by_reason.setdefault((event.group, event.reason), []).append(event)
        for (uid, _), events in by_reason.items():
            if (group := table.get(uid)) is not None:
                self._record_group_events(group, events)
                yield
        if not early:
            yield from self._update_pods_and_queues(outcome)

    def _update_pods_and_queues(self, outcome: SessionResult) -> Iterable[None]:
        for key, message in outcome.messages.items():
            pod = self.event_handlers.pods.get(key)
            if pod is not None and not self.event_handlers.engine.cache.pod(pod.uid):
                self._update_pod_condition(pod, message.reason, message.message, message.nominated_node)
                yield
        queues = self.event_handlers.engine.cache.catalog.table(volcano.Queue)
        for name, allocated in outcome.queues.items():
            if name in queues:
                self._update_queue(queues[name], allocated)
                yield
        yield from self._report_faults(outcome)
        self._forget_deleted_objects()

    # Pod groups and queues

    def _update_group(self, group: volcano.PodGroup, found: GroupOutcome) -> None:
        """Patch the status fields that a session decides. Pod groups have no status subresource."""
        status = found.status
        fields: dict[str, Any] = {
            "phase": status.phase or None,
            "conditions": [_condition_to_dict(each) for each in status.conditions] or None,
            "running": status.running or None,
            "succeeded": status.succeeded or None,
            "failed": status.failed or None,
        }
        meaning = (status.phase, status.running, status.succeeded, status.failed, _condition_keys(status.conditions))
        patch = {"metadata": _precondition(group), "status": fields}
        self._write(self.groups, group, patch, meaning)

    def _update_queue(self, queue: volcano.Queue, amounts: Mapping[str, Quantity]) -> None:
        allocated: dict[str, str | None] = {name: None for name in queue.status.allocated if name not in amounts}
        allocated |= {name: str(amount) for name, amount in amounts.items()}
        patch = {"metadata": _precondition(queue), "status": {"allocated": allocated}}
        self._write(self.queues, queue, patch, allocated, subresource="status")

    def _write(
        self,
        resource: GroupVersionResource,
        item: KubeObject,
        patch: dict[str, Any],
        meaning: Any,
        subresource: str = "",
    ) -> None:
        path = f"{resource} {item.key}"
        version = item.metadata.resource_version
        if self._last_written.get(path) == (version, meaning):
            return  # the watch has not shown it yet
        self._last_written[path] = version, meaning
        self._latest[path] = patch
        if path not in self._busy:
            self._busy.add(path)
            self.writes.start(self._write_latest(resource, item, path, subresource), f"writing the status of {path}")

    async def _write_latest(
        self, resource: GroupVersionResource, item: KubeObject, path: str, subresource: str
    ) -> None:
        meta, before, after = item.metadata, "", ""
        try:
            while (patch := self._latest.pop(path, None)) is not None:
                version = patch["metadata"]["resourceVersion"]
                if version == before:  # the watch has not shown the previous patch yet
                    patch["metadata"]["resourceVersion"] = after
                try:
                    answer = await self.client.patch(
                        resource,
                        patch,
                        name=meta.name,
                        namespace=meta.namespace,
                        subresource=subresource,
                        kind=MERGE_PATCH,
                    )
                    before, after = (
                        version,
                        msgspec.json.decode(answer, type=PartialObjectMetadata).metadata.resource_version,
                    )
                except (NotFound, Conflict):
                    # the next session writes what still applies to the version that exists then
                    self._last_written.pop(path, None)
                except ApiError as fault:
                    # the current value is unknown: the next session writes it again
                    self._last_written.pop(path, None)
                    log.warning("cannot write the status of %s: %s; the next session tries again", path, fault)
        finally:
            self._busy.discard(path)

    # Pods and events

    def _update_pod_condition(self, pod: Pod, reason: str, message: str, nominate: str = "") -> None:
        if self.statuses.set_unschedulable(pod, reason, message, nominate or None) is not None:
            self.event_recorder.record_core_event(pod, WARNING, "FailedScheduling", message)

    def _record_group_events(self, item: KubeObject, events: Sequence[GroupEvent]) -> None:
        """Record events of one reason about an object, without those already recorded in the last session."""
        key = item.metadata.uid, events[0].reason
        before = self._last_events.get(key, ())
        self._last_events[key] = tuple(dict.fromkeys(event.text for event in events))
        for event in {event.text: event for event in events}.values():
            if event.text not in before:
                self.event_recorder.record_core_event(item, event.type, event.reason, event.text)

    def _report_faults(self, outcome: SessionResult) -> Iterable[None]:
        """Report faults: on the objects concerned, and once in the log."""
        current = set(outcome.faults)
        for message in sorted(current - self._faults):
            log.warning("%s", message)
        self._faults = current
        # a list, because the cluster state changes between steps
        yield from self._report_objects(list(find_misconfigured_objects(self.event_handlers.engine, outcome)))
        yield from self._report_pods_without_group()

    def _report_objects(self, found: Iterable[ObjectProblem]) -> Iterable[None]:
        """Report all problems of an object in one event, if they changed since the last report. A pod gets a condition
        instead."""
        by_object: dict[_Object, tuple[KubeObject, list[str]]] = {}
        for item, message in found:
            by_object.setdefault((type(item), item.key, item.metadata.uid), (item, []))[1].append(message)
        last_reported, self._last_reported = self._last_reported, {}
        for key, (item, messages) in by_object.items():
            text = ". ".join(messages)
            if isinstance(item, Pod):
                self._update_pod_condition(item, UNSCHEDULABLE, text)
            else:
                self._last_reported[key] = text
                if last_reported.get(key) != text:
                    self.event_recorder.record_core_event(item, WARNING, MISCONFIGURED, text)
            yield

    def _report_pods_without_group(self) -> Iterable[None]:
        """Report pods without a group for two sessions; controllers need a moment to create the group."""
        event_handlers, found = self.event_handlers, set[str]()
        for pod in list(event_handlers.waiting.values()):
            if GROUP_NAME in pod.metadata.annotations:
                continue
            found.add(pod.uid)
            if pod.uid in self._pods_without_group:
                self._update_pod_condition(pod, UNSCHEDULABLE, NO_POD_GROUP_MESSAGE)
                yield
        self._pods_without_group = found

    def _forget_deleted_objects(self) -> None:
        if len(self._last_written) < _CLEANUP_THRESHOLD and len(self._last_events) < _CLEANUP_THRESHOLD:
            return
        catalog = self.event_handlers.engine.cache.catalog
        groups, queues = catalog.table(volcano.PodGroup), catalog.table(volcano.Queue)
        paths = {f"{self.groups} {key}" for key in groups} | {f"{self.queues} {key}" for key in queues}
        uids = {item.metadata.uid for item in (*groups.values(), *queues.values())}
        self._last_written = {path: written for path, written in self._last_written.items() if path in paths}
        self._last_events = {key: text for key, text in self._last_events.items() if key[0] in uids}


def _precondition(item: KubeObject) -> dict[str, Any]:
    """Precondition of a patch. The API server rejects a late patch of an old version."""
    return {"uid": item.metadata.uid, "resourceVersion": item.metadata.resource_version}


def _condition_to_dict(condition: volcano.PodGroupCondition) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(condition)
    if condition.last_transition_time is not None:
        tree["lastTransitionTime"] = condition.last_transition_time.strftime("%Y-%m-%dT%H:%M:%SZ")
    return tree


def _condition_keys(conditions: Iterable[volcano.PodGroupCondition]) -> tuple[tuple[str, str, str, str], ...]:
    """The compared fields of conditions, without time and session."""
    return tuple((each.type, each.status, each.reason, each.message) for each in conditions)
