"""What people and controllers are told after a session: conditions of groups, what queues hold, why pods wait.

Nothing is written that is written already, and nothing twice: Volcano repeats its events every second. Writes about one
object go one after another, and of those that wait only the newest. What is refused is tried again after the next
session, as long as it is still true. Sessions that come before their time tell groups of new phases, for which
controllers wait: why pods wait changes with every member of a gang that arrives, and is worth a write a period.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bayplan.batch.live.following import Following
from bayplan.batch.live.grievances import Grievance, grievances
from bayplan.batch.live.writing import Speaker, Statuses, Writer
from bayplan.batch.outcome import GroupEvent, GroupOutcome, Outcome
from bayplan.batch.tasks import GROUP_NAME
from bayplan.client import MERGE_PATCH, Client, Resource
from bayplan.errors import ApiError, Conflict, NotFound
from bayplan.objects import volcano
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.quantity import Quantity
from bayplan.telemetry.events import WARNING

log = logging.getLogger(__name__)

UNSCHEDULABLE, MISCONFIGURED = "Unschedulable", "Misconfigured"
GROUPLESS = (
    f"the pod names no pod group by the annotation {GROUP_NAME}; the pod group controller adds it, or create a "
    "PodGroup and name it"
)
_WORTH_SWEEPING = 1024

_Object = tuple[type[KubeObject], str, str]
"""Kind, key and uid."""


@dataclass(slots=True)
class Telling:
    """Writes what a session has left."""

    following: Following
    client: Client
    writes: Writer
    statuses: Statuses
    speaker: Speaker
    groups: Resource
    queues: Resource
    _latest: dict[str, dict[str, Any]] = field(default_factory=dict)  # by path: what waits to be written
    _busy: set[str] = field(default_factory=set)
    _said: dict[str, tuple[str, Any]] = field(default_factory=dict)  # by path: version of the object, and what we wrote
    _told: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """By object and reason: the texts of the events of the last session that had any."""
    _faults: set[str] = field(default_factory=set)
    _grieved: dict[_Object, str] = field(default_factory=dict)  # what is wrong with objects, as last told
    _groupless: set[str] = field(default_factory=set)

    def tell(self, outcome: Outcome, *, early: bool = False) -> Iterable[None]:
        """All that a session has left to say, some of it a turn; after an early one, what others wait to hear."""
        catalog = self.following.engine.cache.catalog
        table = catalog.table(volcano.PodGroup)
        written: set[str] = set()
        for uid, found in outcome.groups.items():
            group = table.get(uid)
            if found.changed and group is not None and not (early and found.status.phase == group.status.phase):
                written.add(uid)
                self._write_group(group, found)
                yield
        by_reason: dict[tuple[str, str], list[GroupEvent]] = {}
        for event in outcome.events:
            if not (early and event.group not in written):
                by_reason.setdefault((event.group, event.reason), []).append(event)
        for (uid, _), events in by_reason.items():
            if (group := table.get(uid)) is not None:
                self._record(group, events)
                yield
        if not early:
            yield from self._tell_the_rest(outcome)

    def _tell_the_rest(self, outcome: Outcome) -> Iterable[None]:
        for key, message in outcome.messages.items():
            pod = self.following.pods.get(key)
            if pod is not None and not self.following.engine.cache.pod(pod.uid):
                self._explain(pod, message.reason, message.message, message.nominated_node)
                yield
        queues = self.following.engine.cache.catalog.table(volcano.Queue)
        for name, held in outcome.queues.items():
            if name in queues:
                self._write_queue(queues[name], held)
                yield
        yield from self._complain(outcome)
        self._sweep()

    # groups and queues ------------------------------------------------------------------------------------------

    def _write_group(self, group: volcano.PodGroup, found: GroupOutcome) -> None:
        """Groups have no status of their own: the object itself is patched, and only what a session decides of it."""
        status = found.status
        said: dict[str, Any] = {
            "phase": status.phase or None,
            "conditions": [_written(each) for each in status.conditions] or None,
            "running": status.running or None,
            "succeeded": status.succeeded or None,
            "failed": status.failed or None,
        }
        meaning = (status.phase, status.running, status.succeeded, status.failed, _meaning(status.conditions))
        patch = {"metadata": _precondition(group), "status": said}
        self._write(self.groups, group, patch, meaning)

    def _write_queue(self, queue: volcano.Queue, held: Mapping[str, Quantity]) -> None:
        allocated: dict[str, str | None] = {name: None for name in queue.status.allocated if name not in held}
        allocated |= {name: str(amount) for name, amount in held.items()}
        patch = {"metadata": _precondition(queue), "status": {"allocated": allocated}}
        self._write(self.queues, queue, patch, allocated, subresource="status")

    def _write(
        self, resource: Resource, item: KubeObject, patch: dict[str, Any], meaning: Any, subresource: str = ""
    ) -> None:
        path = f"{resource} {item.key}"
        version = item.metadata.resource_version
        if self._said.get(path) == (version, meaning):
            return  # the watch has not shown it yet
        self._said[path] = version, meaning
        self._latest[path] = patch
        if path not in self._busy:
            self._busy.add(path)
            self.writes.start(self._write_latest(resource, item, path, subresource), f"writing the status of {path}")

    async def _write_latest(self, resource: Resource, item: KubeObject, path: str, subresource: str) -> None:
        meta, before, after = item.metadata, "", ""
        try:
            while (patch := self._latest.pop(path, None)) is not None:
                version = patch["metadata"]["resourceVersion"]
                if version == before:  # the watch did not show the patch before this one
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
                    before, after = version, msgspec.json.decode(answer, type=_Answer).metadata.resource_version
                except (NotFound, Conflict):
                    self._said.pop(path, None)  # the next session writes what is still true of what is there then
                except ApiError as fault:
                    self._said.pop(path, None)  # nobody knows what it says now: the next session writes it again
                    log.warning("cannot write the status of %s: %s; the next session tries again", path, fault)
        finally:
            self._busy.discard(path)

    # pods and people --------------------------------------------------------------------------------------------

    def _explain(self, pod: Pod, reason: str, message: str, nominate: str = "") -> None:
        if self.statuses.say(pod, reason, message, nominate or None) is not None:
            self.speaker.tell(pod, WARNING, "FailedScheduling", message)

    def _record(self, item: KubeObject, events: Sequence[GroupEvent]) -> None:
        """Record a session's events of one reason about an object, without those of the session before."""
        key = item.metadata.uid, events[0].reason
        before = self._told.get(key, ())
        self._told[key] = tuple(dict.fromkeys(event.text for event in events))
        for event in {event.text: event for event in events}.values():
            if event.text not in before:
                self.speaker.tell(item, event.type, event.reason, event.text)

    def _complain(self, outcome: Outcome) -> Iterable[None]:
        """What somebody must mend: on the object where it is one's, and in the log once."""
        current = set(outcome.faults)
        for sentence in sorted(current - self._faults):
            log.warning("%s", sentence)
        self._faults = current
        yield from self._grieve(list(grievances(self.following.engine, outcome)))  # at once: turns change the ledger
        yield from self._name_groupless()

    def _grieve(self, found: Iterable[Grievance]) -> Iterable[None]:
        """One event an object, with all that is wrong, when that is not what it was told last; of a pod its status."""
        by_object: dict[_Object, tuple[KubeObject, list[str]]] = {}
        for item, sentence in found:
            by_object.setdefault((type(item), item.key, item.metadata.uid), (item, []))[1].append(sentence)
        told_before, self._grieved = self._grieved, {}
        for key, (item, sentences) in by_object.items():
            text = ". ".join(sentences)
            if isinstance(item, Pod):
                self._explain(item, UNSCHEDULABLE, text)
            else:
                self._grieved[key] = text
                if told_before.get(key) != text:
                    self.speaker.tell(item, WARNING, MISCONFIGURED, text)
            yield

    def _name_groupless(self) -> Iterable[None]:
        """Pods of ours without a group. Controllers need a moment: who is without one for two sessions is told."""
        following, found = self.following, set[str]()
        for pod in list(following.waiting.values()):
            if GROUP_NAME in pod.metadata.annotations:
                continue
            found.add(pod.uid)
            if pod.uid in self._groupless:
                self._explain(pod, UNSCHEDULABLE, GROUPLESS)
                yield
        self._groupless = found

    def _sweep(self) -> None:
        """Forget what was said about objects that are gone."""
        if len(self._said) < _WORTH_SWEEPING and len(self._told) < _WORTH_SWEEPING:
            return
        catalog = self.following.engine.cache.catalog
        groups, queues = catalog.table(volcano.PodGroup), catalog.table(volcano.Queue)
        paths = {f"{self.groups} {key}" for key in groups} | {f"{self.queues} {key}" for key in queues}
        uids = {item.metadata.uid for item in (*groups.values(), *queues.values())}
        self._said = {path: said for path, said in self._said.items() if path in paths}
        self._told = {key: text for key, text in self._told.items() if key[0] in uids}


class _Answer(msgspec.Struct):
    metadata: ObjectMeta


def _precondition(item: KubeObject) -> dict[str, Any]:
    """Of two patches of one version the API server applies one: a late patch does not replace a newer status."""
    return {"uid": item.metadata.uid, "resourceVersion": item.metadata.resource_version}


def _written(condition: volcano.PodGroupCondition) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(condition)
    if condition.last_transition_time is not None:
        tree["lastTransitionTime"] = condition.last_transition_time.strftime("%Y-%m-%dT%H:%M:%SZ")
    return tree


def _meaning(conditions: Iterable[volcano.PodGroupCondition]) -> tuple[tuple[str, str, str, str], ...]:
    """What counts of conditions: not when they were set, nor by which session."""
    return tuple((each.type, each.status, each.reason, each.message) for each in conditions)
