"""Writes the condition PodGroupScheduled into the statuses of PodGroups.

Used by `PodGroupCycle` after each attempt for a group. The patches of one group are sent one after another. Each has
the resourceVersion that it was made from and is made again after a conflict. So a patch that the API server applies
late reverts no later one, and conditions of other types stay. Cost: one request for each condition that changes; after
a conflict or an unknown outcome also one GET."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from bayplan.api_writes.writes import ApiWrites
from bayplan.client import GroupVersionResource
from bayplan.clock import Clock
from bayplan.framework.api.status import Status
from bayplan.objects.meta import Condition, format_time
from bayplan.objects.workloads import PodGroup

CONDITION = "PodGroupScheduled"


class GroupStatuses:
    """Writes of PodGroup statuses. `resource`: None if the API server has no PodGroups."""

    def __init__(self, writes: ApiWrites, resource: GroupVersionResource | None, clock: Clock) -> None:
        self._writes = writes
        self._resource = resource
        self._clock = clock
        self._latest: dict[str, tuple[Condition, asyncio.Task[None]]] = {}  # by uid: the last write under way

    def write(self, group: PodGroup, status: Status) -> None:
        """Start to write the outcome of an attempt, unless the group has that condition or was scheduled before."""
        if self._resource is None:
            return
        uid, condition = group.metadata.uid, _condition(status, group)
        latest = self._latest.get(uid)
        if _is_current(latest[0] if latest is not None else _find(group), condition):
            return
        work = self._write(group, condition, self._resource, latest[1] if latest is not None else None)
        task: asyncio.Task[None] = self._writes.start(work, f"writing the status of pod group {group.key}")
        self._latest[uid] = condition, task
        task.add_done_callback(lambda done: self._forget(uid, done))

    def _forget(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._latest[uid][1] is task:
            del self._latest[uid]

    async def _write(
        self, group: PodGroup, condition: Condition, resource: GroupVersionResource, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])

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

        await self._writes.patches.repeat(group, attempt, resource=resource)

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
