"""Makes room that preemption has found: victims are told and deleted, weaker nominations cleared.

Started after an attempt that found victims, and done meanwhile. The preemptor is held back until all victims but the
last were told to go, and the last is known to go: its own going is the event that wakes the preemptor. If a write
fails, victims whose deletion was accepted go on leaving, the others stay, and the preemptor is tried again after its
backoff. A victim whose deletion was refused is no victim during a pause that grows.

After a refusal the preemptor's condition, event and nomination are reported, and weaker nominations are cleared, only
when a later eviction was accepted. Else each try of an eviction that is refused again would change them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec

from bayplan.clock import Clock
from bayplan.errors import ApiError, BayplanError, LeaseLost, Unreachable
from bayplan.framework.intents import DeletePod
from bayplan.framework.points import POST_FILTER
from bayplan.framework.preemption import ClearNomination, EvictVictim
from bayplan.framework.refused_evictions import RefusedEvictions
from bayplan.framework.steps import EVICTED
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.workloads import PodGroup
from bayplan.scheduler.binding import PreBinds
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.observing import NoObserver, Observer
from bayplan.scheduler.statuses import PodStatuses
from bayplan.scheduler.telling import Events
from bayplan.scheduler.writing import ApiWrites

log = logging.getLogger(__name__)


class Preempting(Protocol):
    """What a plugin that preempts is told of how far it is."""

    def begins(self, preemptor: KubeObject) -> None: ...
    def waits_for(self, preemptor: KubeObject, last_leaves: Any) -> None: ...
    def finished(self, preemptor: KubeObject) -> None: ...


@dataclass(slots=True)
class Room:
    """What has to be done for one preemptor: a pod, or a group with its pods that wait."""

    preemptor: KubeObject
    cleared: list[Pod]
    victims: list[EvictVictim]
    plugin: Preempting | None
    waiting: Sequence[Pod]
    staying: list[EvictVictim] = field(default_factory=list)
    """Victims whose deletion was not sent so far, or was refused."""
    reports_late: bool = False
    """An eviction for this preemptor, or of these victims, was refused before."""
    reports: list[Callable[[], object]] = field(default_factory=list)
    """Called when the evictions were accepted."""


@dataclass(slots=True)
class Evictions:
    """Carries out the writes of a PostFilter answer. `activate` has a pod tried at once, `retry` after its backoff."""

    engine: PodEngine
    writes: ApiWrites
    statuses: PodStatuses
    events: Events
    clock: Clock
    pre_binds: PreBinds
    activate: Callable[[Pod], None]
    retry: Callable[[Pod], None]
    observer: Observer = field(default_factory=NoObserver)
    _refused: RefusedEvictions = field(init=False)
    _held_up: dict[str, dict[str, Pod]] = field(default_factory=dict)
    """Preemptors by their uid, by the uid of the victim whose deletion was refused."""

    def __post_init__(self) -> None:
        self._refused = RefusedEvictions(self.engine.nominations, self.clock)

    def prepare(self, preemptor: Pod, writes: Sequence[object]) -> Room | None:
        """Hold the preemptor back, if there is somebody to be evicted. What else was decided is written at once."""
        cleared, victims = [], []
        for intent in writes:
            if isinstance(intent, EvictVictim):
                victims.append(intent)
            elif isinstance(intent, ClearNomination):
                cleared.append(intent.pod)
            else:
                self.writes.submit(intent)
        if not victims:
            return Room(preemptor, cleared, [], None, (preemptor,)) if cleared else None
        return self._held_back(preemptor, preemptor, (preemptor,), cleared, victims)

    def prepare_group(self, group: PodGroup, members: Sequence[Pod], victims: Sequence[EvictVictim]) -> Room:
        """The same for a whole group: all of it is held back. There is somebody to be evicted."""
        return self._held_back(group, members[0], members, [], list(victims))

    def _held_back(
        self, whom: KubeObject, one: Pod, waiting: Sequence[Pod], cleared: list[Pod], victims: list[EvictVictim]
    ) -> Room:
        for each in victims:  # both engines know from now on, not only when the API server shows it
            self.engine.nominations.leave(each.victim.uid, each.node_name, whom.key)
        self.observer.preempted(len(victims))
        plugin = self._plugin(one, victims[0].plugin)
        if plugin is not None:
            plugin.begins(whom)
        return Room(whom, cleared, victims, plugin, waiting, list(victims), self._was_refused(waiting, victims))

    def _was_refused(self, waiting: Sequence[Pod], victims: Sequence[EvictVictim]) -> bool:
        if any(self._refused.times(each.victim.uid) for each in victims):
            return True
        return any(pod.uid in held_up for held_up in self._held_up.values() for pod in waiting)

    def start(self, room: Room, *told: asyncio.Task[None] | None) -> None:
        """Begin. `told`: what is being written into the status of those who wait, their nominations among it."""
        being_told = [each for each in told if each is not None]
        self.writes.start(self._make(room, being_told), f"making room for {room.preemptor.key}")

    def next_pause_end_s(self) -> float | None:
        """When a pod becomes a victim again whose deletion was refused, on the monotonic clock."""
        return self._refused.next_end_s() if self._held_up else None

    def end_pauses(self) -> None:
        """Try the preemptors again whose victims were refused and may be victims again."""
        if not self._held_up:
            return
        for uid in self._refused.end_pauses():
            for pod in self._held_up.pop(uid, {}).values():
                self.activate(pod)

    async def _make(self, room: Room, told: Sequence[asyncio.Task[None]]) -> None:
        failed, waits, start_s = True, True, self.clock.monotonic_s()
        try:
            failed = not room.reports_late and not await self._cleared(room.cleared)
            waits = await self._evicted(room, told)
            if room.reports_late:
                failed = not await self._cleared(room.cleared)
            if room.victims:
                self.writes.reached(EVICTED)
        except BayplanError as fault:
            failed = True
            kind = "pod" if isinstance(room.preemptor, Pod) else "pod group"
            log.warning("cannot make room for %s %s: %s", kind, room.preemptor.key, fault)
        finally:
            if room.plugin is not None:
                room.plugin.finished(room.preemptor)
            done = waits and not failed
            self.observer.preemption_ran("success" if done else "error", self.clock.monotonic_s() - start_s)
            for each in room.staying:
                if not self._leaves(each.victim.uid):
                    self._spare(each)
            for report in room.reports if done else ():
                report()
            for pod in () if done else room.waiting:
                (self.retry if failed else self.activate)(pod)

    def _spare(self, intent: EvictVictim) -> None:
        """A victim stays after all: others may have counted on its going."""
        nominations = self.engine.nominations
        nominations.stays(intent.victim.uid)
        for info in list(nominations.on_node(intent.node_name)):
            if info.uid in self.engine.pending:
                self.retry(info.pod)

    async def _evicted(self, room: Room, told: Sequence[asyncio.Task[None]]) -> bool:
        """Whether something is still to come that wakes the preemptor: the going of the last victim.

        One watch tells of all pods in order. So the last is deleted only when the preemptor's nomination is written:
        whoever hears of its going has heard of the nomination, and the preemptor does not preempt a second time.
        """
        others, last = [each for each in room.victims if not each.last], [each for each in room.victims if each.last]
        answers = await asyncio.gather(*(self._evict_one(room, each) for each in others), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if told:
            await asyncio.wait(told)
        for victim in last:
            leaves = partial(self._leaves, victim.victim.uid)
            if room.plugin is not None:
                room.plugin.waits_for(room.preemptor, leaves)
            if not await self._evict_one(room, victim) and leaves():
                return False  # it went by itself, and maybe while the preemptor was not listening
        return True

    async def _cleared(self, pods: list[Pod]) -> bool:
        """Whether all nominations could be cleared; the evictions go on without."""
        done = True
        for pod in pods:
            try:
                await self.statuses.clear_nomination(pod)
            except ApiError as fault:
                done = False
                log.warning("cannot clear the nomination of pod %s: %s", pod.key, fault)
        return done

    async def _evict_one(self, room: Room, intent: EvictVictim) -> bool:
        """Whether the victim was still there. A refusal is remembered."""
        victim = intent.victim
        try:
            was_there = await self._evict(intent)
        except BayplanError as refusal:
            if not isinstance(refusal, Unreachable | LeaseLost):
                pause_s = self._refused.note(victim.uid, intent.node_name)
                self._held_up.setdefault(victim.uid, {}).update({pod.uid: pod for pod in room.waiting})
                log.warning("pod %s cannot be evicted and is no victim for %.0f s: %s", victim.key, pause_s, refusal)
            raise
        room.staying.remove(intent)
        self._refused.forget(victim.uid)
        self._held_up.pop(victim.uid, None)
        return was_there

    async def _evict(self, intent: EvictVictim) -> bool:
        """Whether the victim was still there."""
        victim = intent.victim
        waiting = self.engine.waiting.get(victim.uid)
        if waiting is not None:
            in_memory = waiting.preempt(intent.plugin, intent.waiting_message)
        else:
            in_memory = self.pre_binds.cancel(victim.uid, intent.cancel_message)
        if not in_memory and not await self._delete(intent):
            return False
        self.events.record(
            victim,
            intent.event_type,
            intent.event_reason,
            intent.event_action,
            intent.note(in_memory=in_memory),
            related=intent.preemptor,
        )
        return True

    async def _delete(self, intent: EvictVictim) -> bool:
        """Tell the victim why, and delete it. A namesake that came after it is nobody's victim."""
        victim = intent.victim
        if not intent.already_told:
            condition = {**msgspec.to_builtins(intent.condition), "lastTransitionTime": self._now()}
            patch = {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}
            if not await self.statuses.patch(victim, patch):
                return False
        deleted: bool = await self.writes.perform(DeletePod(victim))
        return deleted

    def _leaves(self, uid: str) -> bool:
        """Whether a victim is known to be terminating, or gone."""
        pod = self.engine.cache.pod(uid)
        return pod is None or pod.terminating

    def _plugin(self, preemptor: Pod, name: str) -> Preempting | None:
        plugins = self.engine.framework(preemptor.scheduler_name).profile.at(POST_FILTER)
        return next((plugin for plugin in plugins if plugin.name == name and hasattr(plugin, "begins")), None)

    def _now(self) -> str:
        return self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
