"""Writes the condition PodGroupScheduled into the statuses of PodGroups.

Used by `PodGroupCycle` after each attempt for a group. The patches of one group are sent one after another. Each has
the resourceVersion that it was made from and is made again after a conflict. So a patch that the API server applies
late reverts no later one, and conditions of other types stay. Cost: one request for each condition that changes; after
a conflict or an unknown outcome also one GET.

A condition that could not be written is written again after a pause, because no further attempt is made for a group
that is scheduled. The pause grows while the API server refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from bayplan.api_writes.writes import ApiWrites
from bayplan.client import GroupVersionResource
from bayplan.clock import Clock
from bayplan.errors import ApiError, NotFound, Unreachable
from bayplan.framework.api.status import Status
from bayplan.objects.meta import Condition, format_time
from bayplan.objects.workloads import PodGroup

CONDITION = "PodGroupScheduled"
FIRST_PAUSE_S, LAST_PAUSE_S = 10.0, 600.0


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """A condition that could not be written, how often it was refused, and when it is written again."""

    group: PodGroup
    condition: Condition
    refusals: int
    due_s: float


class GroupStatuses:
    """Writes of PodGroup statuses. `resource`: None if the API server has no PodGroups."""

    def __init__(
        self, writes: ApiWrites, resource: GroupVersionResource | None, clock: Clock, wake: asyncio.Event
    ) -> None:
        self._writes = writes
        self._resource = resource
        self._clock = clock
        self._latest: dict[str, tuple[Condition, asyncio.Task[None]]] = {}  # by uid: the last write under way
        self._unwritten: dict[str, _Unwritten] = {}  # by uid
        self._wake = wake  # set when `next_retry_s` has changed

    def write(self, group: PodGroup, status: Status) -> None:
        """Start to write the outcome of an attempt, unless the group has that condition or was scheduled before."""
        if self._resource is None:
            return
        uid, condition = group.metadata.uid, _condition(status, group)
        latest, unwritten = self._latest.get(uid), self._unwritten.get(uid)
        if latest is not None:
            known: Condition | None = latest[0]
        else:
            known = unwritten.condition if unwritten is not None else _find(group)
        if _is_current(known, condition):
            return
        self._unwritten.pop(uid, None)
        self._start(group, condition, self._write(group, condition, self._resource, latest[1] if latest else None))

    def next_retry_s(self) -> float | None:
        """When a condition that could not be written is written again, on the monotonic clock."""
        return min((each.due_s for uid, each in self._unwritten.items() if uid not in self._latest), default=None)

    def retry(self) -> None:
        """Start to write again what could not be written and is due."""
        if not self._unwritten or self._resource is None:
            return
        now_s = self._clock.monotonic_s()
        for uid, each in list(self._unwritten.items()):
            if each.due_s <= now_s and uid not in self._latest:
                self._start(each.group, each.condition, self._write_again(each, self._resource))

    def _start(self, group: PodGroup, condition: Condition, work: Coroutine[Any, Any, None]) -> None:
        uid = group.metadata.uid
        task: asyncio.Task[None] = self._writes.start(work, f"writing the status of pod group {group.key}")
        self._latest[uid] = condition, task
        task.add_done_callback(lambda done: self._forget(uid, done))

    def _forget(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._latest[uid][1] is task:
            del self._latest[uid]
            if uid in self._unwritten:
                self._wake.set()

    async def _write(
        self, group: PodGroup, condition: Condition, resource: GroupVersionResource, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._send(group, condition, resource)

    async def _write_again(self, unwritten: _Unwritten, resource: GroupVersionResource) -> None:
        """A group that is gone needs no condition; nor does another one that has its name."""
        meta = unwritten.group.metadata
        try:
            found = await self._writes.patches.read(unwritten.group, resource=resource)
        except ApiError as refusal:
            self._note(unwritten.group, unwritten.condition, refusal)
            raise
        if found.metadata.uid == meta.uid:
            await self._send(found, unwritten.condition, resource)
        else:
            self._unwritten.pop(meta.uid, None)

    async def _send(self, group: PodGroup, condition: Condition, resource: GroupVersionResource) -> None:
        async def attempt(found: PodGroup) -> PodGroup:
            if _is_current(_find(found), condition):
                return found
            return await self._writes.patches.patch(
                found,
                self._patch(found, condition),
                is_done=lambda now: _is_current(_find(now), condition),
                subresource="status",
                resource=resource,
            )

        try:
            await self._writes.patches.repeat(group, attempt, resource=resource)
        except ApiError as refusal:
            self._note(group, condition, refusal)
            raise
        self._unwritten.pop(group.metadata.uid, None)

    def _note(self, group: PodGroup, condition: Condition, refusal: ApiError) -> None:
        uid = group.metadata.uid
        before = self._unwritten.pop(uid, None)
        if isinstance(refusal, NotFound) or self._latest[uid][0] is not condition:
            return  # the group is gone, or a later condition is about to be written
        refusals = before.refusals if before is not None else 0
        pause_s: float = min(FIRST_PAUSE_S * 2.0 ** min(refusals, 16), LAST_PAUSE_S)
        refusals += not isinstance(refusal, Unreachable)
        self._unwritten[uid] = _Unwritten(group, condition, refusals, self._clock.monotonic_s() + pause_s)

    def _patch(self, group: PodGroup, condition: Condition) -> dict[str, Any]:
        meta, old = group.metadata, _find(group)
        since = old.last_transition_time if old is not None and old.status == condition.status else None
        changed = msgspec.structs.replace(condition, last_transition_time=since or self._clock.now())
        rest = [each for each in group.status.conditions if each.type != CONDITION]
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        return {"metadata": metadata, "status": {"conditions": [*map(_tree, (*rest, changed))]}}


def _find(group: PodGroup) -> Condition | None:
    return next((each for each in group.status.conditions if each.type == CONDITION), None)


def _is_current(old: Condition | None, new: Condition) -> bool:
    """Whether there is nothing to write. A group that was scheduled keeps its condition."""
    return old is not None and (old.status == "True" != new.status or _content(old) == _content(new))


def _condition(status: Status, group: PodGroup) -> Condition:
    generation = group.metadata.generation
    if status.ok:
        return Condition(CONDITION, "True", "Scheduled", "", observed_generation=generation)
    reason = "Unschedulable" if status.rejected else "SchedulerError"
    return Condition(CONDITION, "False", reason, status.message, observed_generation=generation)


def _content(condition: Condition) -> tuple[object, ...]:
    return condition.status, condition.reason, condition.message, condition.observed_generation


def _tree(condition: Condition) -> dict[str, Any]:
    when = condition.last_transition_time
    tree: dict[str, Any] = msgspec.to_builtins(condition)
    return {**tree, "message": condition.message, "lastTransitionTime": format_time(when) if when is not None else None}
