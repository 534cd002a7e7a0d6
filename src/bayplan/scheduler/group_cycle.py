"""What becomes of a group after its trial: its pods are placed or told why not, and the group is told how it stands.

Called by the loop for every pod whose turn it is and that belongs to a group. Carries out what `groups` found out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bayplan.client import MERGE_PATCH, Client, Resource
from bayplan.clock import LoopClock
from bayplan.framework.status import Code, Status
from bayplan.objects.meta import Condition, whole_time
from bayplan.objects.workloads import PodGroup
from bayplan.queueing import QueuedPod
from bayplan.scheduler.engine import Placed, PodEngine
from bayplan.scheduler.evicting import Evictions, Room
from bayplan.scheduler.failing import Failures
from bayplan.scheduler.group_preemption import GroupPreemption
from bayplan.scheduler.groups import UNSCHEDULABLE_GROUP, Groups, Outcome, Tried
from bayplan.scheduler.observing import ERROR, SCHEDULED, UNSCHEDULABLE, Observer
from bayplan.scheduler.writing import ApiWrites

CONDITION = "PodGroupScheduled"
WAITING_ON_PREEMPTION = "waiting_on_preemption"
_NOBODY: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


@dataclass(slots=True)
class GroupCycle:
    """Attempts for groups, carried out. `start` begins the binding of a pod, `skip` says who need not be tried."""

    groups: Groups
    engine: PodEngine
    failures: Failures
    evictions: Evictions
    writes: ApiWrites
    client: Client
    resource: Resource | None
    clock: LoopClock
    observer: Observer
    start: Callable[[QueuedPod, Placed], None]
    skip: Callable[[QueuedPod], bool]
    preemption: GroupPreemption | None = None
    """Who makes room for a whole group; nobody: each of its pods makes room for itself."""
    saying: dict[str, tuple[Condition, asyncio.Task[Any]]] = field(default_factory=dict)
    """By group: what is being written of it."""
    telling: list[asyncio.Task[None]] = field(default_factory=list)
    """What is being written of the pods of the group that was tried last."""

    async def attempt(self, first: QueuedPod) -> None:
        start_s = self.clock.monotonic_s()
        members = self.groups.gathered(first, self.skip)
        if not members:
            return
        for queued in members:
            queued.tried_s = start_s
        outcome = await self.groups.tried(members)
        self.observer.group_decided(self.clock.monotonic_s() - start_s)
        self.telling.clear()
        room = await self._room(members, outcome)
        for each in outcome.tried:
            self._carry_out(each, outcome)
        for queued in outcome.untried:
            self._fail(queued, outcome.status, None if outcome.status.rejected else "")
        profile, took_s = members[0].pod.scheduler_name, self.clock.monotonic_s() - start_s
        self.observer.group_attempt(_result(outcome), profile, took_s)
        self._tell(members[0], outcome.status)
        if room is not None:
            self.evictions.start(room, *self.telling)

    async def _room(self, members: list[QueuedPod], outcome: Outcome) -> Room | None:
        """Where room can be made for all of them, the outcome is that they wait for it."""
        if self.preemption is None or outcome.status.code is not Code.UNSCHEDULABLE:
            return None
        group = self._group(members[0])
        status, victims = await self.preemption.victims(group, members)
        outcome.waits_for_room |= status.ok
        if status.code is Code.ERROR:
            outcome.status = status
        elif not status.ok:
            outcome.status = Status(Code.UNSCHEDULABLE, (*outcome.status.reasons, status.message))
        if group is None or not victims:
            return None
        return self.evictions.prepare_group(group, [queued.pod for queued in members], victims)

    def _carry_out(self, tried: Tried, outcome: Outcome) -> None:
        queued, group = tried.queued, outcome.status
        if group.code is Code.ERROR:
            self._fail(queued, tried.status if tried.status.code is Code.ERROR else group)
        elif tried.status.ok and group.ok:
            self._place(tried)
        elif tried.status.ok and outcome.waits_for_room:
            self._fail(queued, group, tried.node_name)
        elif tried.status.ok or (tried.preempts and not outcome.waits_for_room):
            told = tuple(filter(None, (UNSCHEDULABLE_GROUP, tried.permit)))
            self._fail(queued, Status(Code.UNSCHEDULABLE, told), "", tried)
        else:
            self._fail(queued, tried.status, tried.decision.nominate, tried)

    def _place(self, tried: Tried) -> None:
        """Again, and in earnest."""
        placed = self.engine.commit(tried.framework, tried.cycle, tried.decision)
        self.groups.activate()
        if placed.held is None:
            self._fail(tried.queued, placed.status)
        else:
            self.start(tried.queued, placed)

    def _fail(self, queued: QueuedPod, status: Status, nominate: str | None = "", tried: Tried | None = None) -> None:
        rejectors = _NOBODY if tried is None or status is not tried.status else tried.decision.rejectors
        result = UNSCHEDULABLE if status.rejected else ERROR
        self.observer.attempt(result, queued.pod.scheduler_name, self.clock.monotonic_s() - queued.tried_s)
        writes = tried.decision.writes if tried is not None else ()
        room = self.evictions.prepare(queued.pod, writes) if writes else None
        told = self.failures.handle(queued, status, nominate, *rejectors)
        if told is not None:
            self.telling.append(told)
        if room is not None:
            self.evictions.start(room, told)

    # the group itself -------------------------------------------------------------------------------------------

    def _tell(self, member: QueuedPod, status: Status) -> None:
        """Write how the group stands, unless it says so, or has been scheduled before."""
        group = self._group(member)
        if group is None or self.resource is None:
            return
        told = _condition(status, group)
        old = self._said(group)
        if old is not None and (old.status == "True" != told.status or _words(old) == _words(told)):
            return
        since = old.last_transition_time if old is not None and old.status == told.status else None
        changed = msgspec.structs.replace(told, last_transition_time=since or self.clock.now())
        others = [each for each in group.status.conditions if each.type != CONDITION]
        patch = {"metadata": {"uid": group.metadata.uid}, "status": {"conditions": [*map(_tree, (*others, changed))]}}
        before = self.saying.get(group.metadata.uid)
        work = self._patch(group, patch, before[1] if before is not None else None)
        task = self.writes.start(work, f"saying how pod group {group.key} stands")
        self.saying[group.metadata.uid] = changed, task
        task.add_done_callback(lambda done: self._written(group.metadata.uid, done))

    def _said(self, group: PodGroup) -> Condition | None:
        """What the group is told, or about to be."""
        if (saying := self.saying.get(group.metadata.uid)) is not None:
            return saying[0]
        return next((each for each in group.status.conditions if each.type == CONDITION), None)

    def _written(self, uid: str, task: asyncio.Task[Any]) -> None:
        if uid in self.saying and self.saying[uid][1] is task:
            del self.saying[uid]

    async def _patch(self, group: PodGroup, patch: dict[str, Any], before: asyncio.Task[Any] | None) -> None:
        """One after another: what was said last is to be what stands there."""
        assert self.resource is not None
        if before is not None:
            await asyncio.wait([before])
        await self.client.patch(
            self.resource, patch, name=group.name, namespace=group.namespace, subresource="status", kind=MERGE_PATCH
        )

    def _group(self, member: QueuedPod) -> PodGroup | None:
        pod = member.pod
        name = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else None
        return self.engine.cache.catalog.pod_groups.get(f"{pod.namespace}/{name}")


def _result(outcome: Outcome) -> str:
    if outcome.status.ok:
        return SCHEDULED
    if not outcome.status.rejected:
        return ERROR
    return WAITING_ON_PREEMPTION if outcome.waits_for_room else UNSCHEDULABLE


def _condition(status: Status, group: PodGroup) -> Condition:
    generation = group.metadata.generation
    if status.ok:
        return Condition(CONDITION, "True", "Scheduled", "", observed_generation=generation)
    reason = "Unschedulable" if status.rejected else "SchedulerError"
    return Condition(CONDITION, "False", reason, status.message, observed_generation=generation)


def _words(condition: Condition) -> tuple[object, ...]:
    return condition.status, condition.reason, condition.message, condition.observed_generation


def _tree(condition: Condition) -> dict[str, Any]:
    when = condition.last_transition_time
    tree: dict[str, Any] = msgspec.to_builtins(condition)
    return {**tree, "message": condition.message, "lastTransitionTime": whole_time(when) if when is not None else None}
