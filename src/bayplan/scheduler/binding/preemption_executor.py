"""Executes preemption: patches and deletes the victims, and clears lower nominations on the node.

Started after an attempt that found victims, and runs in the background. The preemptor stays in the queue until all
victims but the last are deleted and the deletion of the last is under way: that deletion event wakes the preemptor.
If a write fails, victims whose deletion was accepted terminate, the rest stay, and the preemptor is retried after its
backoff. A victim whose deletion was refused is excluded from preemption during a pause that grows.

After a refusal the preemptor's condition, event and nomination are reported, and weaker nominations are cleared, only
when a later eviction was accepted. Else each attempt whose eviction is refused again would change them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec

from bayplan.api_writes.crash_points import VICTIMS_EVICTED
from bayplan.api_writes.observer import NoSchedulerObserver, SchedulerObserver
from bayplan.api_writes.pod_status_messages import PodEventRecorder
from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.api_writes.writes import ApiWrites
from bayplan.clock import Clock
from bayplan.errors import ApiError, BayplanError, LeaseLost, Unreachable
from bayplan.framework.api.extension_points import POST_FILTER
from bayplan.framework.preemption.dry_run import ClearNomination, EvictVictim
from bayplan.framework.refused_evictions import RefusedEvictions
from bayplan.intents.pod_intents import DeletePod
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.workloads import PodGroup
from bayplan.queue import SchedulingQueue
from bayplan.scheduler.binding.pre_bind_tasks import PreBindTasks
from bayplan.scheduler.engine import PodEngine

log = logging.getLogger(__name__)


class PreemptingPlugin(Protocol):
    """Callbacks that a preemption plugin gets while its victims are evicted."""

    def on_preemption_started(self, preemptor: KubeObject) -> None: ...
    def on_waiting_for_victim(self, preemptor: KubeObject, last_leaves: Any) -> None: ...
    def on_preemption_finished(self, preemptor: KubeObject) -> None: ...


@dataclass(slots=True)
class PreemptionTask:
    """The evictions for one preemptor: a pod, or a group with its pending pods."""

    preemptor: KubeObject
    nominations_to_clear: list[Pod]
    victims: list[EvictVictim]
    plugin: PreemptingPlugin | None
    waiting: Sequence[Pod]
    staying: list[EvictVictim] = field(default_factory=list)
    """Victims whose deletion was not sent yet, or was refused."""
    reports_late: bool = False
    """An eviction for this preemptor, or of one of these victims, was refused before."""
    reports: list[Callable[[], object]] = field(default_factory=list)
    """Called when the evictions were accepted."""


@dataclass(slots=True)
class PreemptionExecutor:
    """Executes the writes of a PostFilter result. `wake` wakes the run loop."""

    engine: PodEngine
    queue: SchedulingQueue
    writes: ApiWrites
    statuses: PodStatuses
    events: PodEventRecorder
    clock: Clock
    pre_binds: PreBindTasks
    wake: asyncio.Event
    observer: SchedulerObserver = field(default_factory=NoSchedulerObserver)
    _refused: RefusedEvictions = field(init=False)
    _blocked: dict[str, dict[str, Pod]] = field(default_factory=dict)
    """Preemptors by uid, by the uid of the victim whose deletion was refused."""

    def __post_init__(self) -> None:
        self._refused = RefusedEvictions(self.engine.nominator, self.clock)

    def prepare(self, preemptor: Pod, writes: Sequence[object]) -> PreemptionTask | None:
        """Return the preemption task, None if there is nothing to do. Other intents are submitted at once."""
        cleared, victims = [], []
        for intent in writes:
            if isinstance(intent, EvictVictim):
                victims.append(intent)
            elif isinstance(intent, ClearNomination):
                cleared.append(intent.pod)
            else:
                self.writes.submit(intent)
        if not victims:
            return PreemptionTask(preemptor, cleared, [], None, (preemptor,)) if cleared else None
        return self._prepare_victims(preemptor, preemptor, (preemptor,), cleared, victims)

    def prepare_group(self, group: PodGroup, members: Sequence[Pod], victims: Sequence[EvictVictim]) -> PreemptionTask:
        """The same for a whole group: all its pods are held back. There is at least one victim."""
        return self._prepare_victims(group, members[0], members, [], list(victims))

    def _prepare_victims(
        self, preemptor: KubeObject, pod: Pod, waiting: Sequence[Pod], cleared: list[Pod], victims: list[EvictVictim]
    ) -> PreemptionTask:
        for each in victims:  # both engines know the victims at once, before the API server shows the deletion
            self.engine.nominator.add_victim(each.victim.uid, each.node_name, preemptor.key)
        self.observer.observe_victims(len(victims))
        plugin = self._plugin(pod, victims[0].plugin)
        if plugin is not None:
            plugin.on_preemption_started(preemptor)
        return PreemptionTask(
            preemptor, cleared, victims, plugin, waiting, list(victims), self._was_refused(waiting, victims)
        )

    def _was_refused(self, waiting: Sequence[Pod], victims: Sequence[EvictVictim]) -> bool:
        if any(self._refused.times(each.victim.uid) for each in victims):
            return True
        return any(pod.uid in blocked for blocked in self._blocked.values() for pod in waiting)

    def start(self, task: PreemptionTask, *status_writes: asyncio.Task[None] | None) -> None:
        """Start the task. `status_writes`: writes of the preemptors' statuses, which contain their nominations."""
        pending_writes = [each for each in status_writes if each is not None]
        self.writes.start(self._execute(task, pending_writes), f"preemption for {task.preemptor.key}")

    def next_pause_end_s(self) -> float | None:
        """When the next refused victim may be evicted again, on the monotonic clock."""
        return self._refused.next_end_s() if self._blocked else None

    def end_pauses(self) -> None:
        """Activate the preemptors whose refused victims may be evicted again."""
        if not self._blocked:
            return
        for uid in self._refused.end_pauses():
            self._activate(self._blocked.pop(uid, {}).values())

    async def _execute(self, task: PreemptionTask, status_writes: Sequence[asyncio.Task[None]]) -> None:
        failed, waits, start_s = True, True, self.clock.monotonic_s()
        try:
            failed = not task.reports_late and not await self._clear_nominations(task.nominations_to_clear)
            waits = await self._evict_victims(task, status_writes)
            if task.reports_late:
                failed = not await self._clear_nominations(task.nominations_to_clear)
            if task.victims:
                self.writes.crash_point(VICTIMS_EVICTED)
        except BayplanError as fault:
            failed = True
            kind = "pod" if isinstance(task.preemptor, Pod) else "pod group"
            log.warning("cannot evict the victims of preemption for %s %s: %s", kind, task.preemptor.key, fault)
        finally:
            if task.plugin is not None:
                task.plugin.on_preemption_finished(task.preemptor)
            done = waits and not failed
            self.observer.observe_preemption("success" if done else "error", self.clock.monotonic_s() - start_s)
            for each in task.staying:
                if not self._is_terminating(each.victim.uid):
                    self._cancel_victim(each)
            for report in task.reports if done else ():
                report()
            if failed:
                self._retry(task.waiting)
            elif not waits:
                self._activate(task.waiting)

    def _activate(self, pods: Iterable[Pod]) -> None:
        """Activate preemptors: they are tried at once."""
        self.queue.activate(list(pods))
        self.wake.set()

    def _retry(self, pods: Iterable[Pod]) -> None:
        """Requeue preemptors with their backoff."""
        self.queue.retry(list(pods))
        self.wake.set()

    def _cancel_victim(self, intent: EvictVictim) -> None:
        """A victim stays: retry the pods that are nominated to its node and counted on its deletion."""
        nominations = self.engine.nominator
        nominations.remove_victim(intent.victim.uid)
        self._retry(info.pod for info in nominations.on_node(intent.node_name) if info.uid in self.engine.pending)

    async def _evict_victims(self, task: PreemptionTask, status_writes: Sequence[asyncio.Task[None]]) -> bool:
        """Evict all victims. True: an event that wakes the preemptor is still to come, the deletion of the last victim.

        One watch delivers all pods in order. So the last victim is deleted only after the preemptor's nomination is
        written: a client that sees the deletion has seen the nomination, and the preemptor does not preempt twice.
        """
        first, last = (
            [each for each in task.victims if not each.is_last],
            [each for each in task.victims if each.is_last],
        )
        answers = await asyncio.gather(*(self._evict_one(task, each) for each in first), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if status_writes:
            await asyncio.wait(status_writes)
        for victim in last:
            is_terminating = partial(self._is_terminating, victim.victim.uid)
            if task.plugin is not None:
                task.plugin.on_waiting_for_victim(task.preemptor, is_terminating)
            if not await self._evict_one(task, victim) and is_terminating():
                return False  # it was deleted by another client, maybe before the queue waited for the event
        return True

    async def _clear_nominations(self, pods: list[Pod]) -> bool:
        """Clear the nominations. False if one could not be cleared; the evictions go on nevertheless."""
        done = True
        for pod in pods:
            try:
                await self.statuses.clear_nomination(pod)
            except ApiError as fault:
                done = False
                log.warning("cannot clear the nomination of pod %s: %s", pod.key, fault)
        return done

    async def _evict_one(self, task: PreemptionTask, intent: EvictVictim) -> bool:
        """Evict one victim. False if it did not exist any more. A refusal starts its pause."""
        victim = intent.victim
        try:
            was_there = await self._evict(intent)
        except BayplanError as refusal:
            if not isinstance(refusal, Unreachable | LeaseLost):
                pause_s = self._refused.note(victim.uid, intent.node_name)
                self._blocked.setdefault(victim.uid, {}).update({pod.uid: pod for pod in task.waiting})
                log.warning("pod %s cannot be evicted and is no victim for %.0f s: %s", victim.key, pause_s, refusal)
            raise
        task.staying.remove(intent)
        self._refused.forget(victim.uid)
        self._blocked.pop(victim.uid, None)
        return was_there

    async def _evict(self, intent: EvictVictim) -> bool:
        """Cancel the victim in memory or delete it. False if it did not exist any more."""
        victim = intent.victim
        waiting = self.engine.waiting_pods.get(victim.uid)
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
        """Write the victim's DisruptionTarget condition and delete it. The uid protects a later pod of its name."""
        victim = intent.victim
        if not intent.has_disruption_condition:
            condition = {**msgspec.to_builtins(intent.condition), "lastTransitionTime": self._now()}
            patch = {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}
            if not await self.statuses.patch(victim, patch):
                return False
        deleted: bool = await self.writes.perform(DeletePod(victim))
        return deleted

    def _is_terminating(self, uid: str) -> bool:
        """Whether the cache shows the victim as terminating, or not at all."""
        pod = self.engine.cache.pod(uid)
        return pod is None or pod.terminating

    def _plugin(self, preemptor: Pod, name: str) -> PreemptingPlugin | None:
        plugins = self.engine.framework(preemptor.scheduler_name).profile.at(POST_FILTER)
        return next(
            (plugin for plugin in plugins if plugin.name == name and hasattr(plugin, "on_preemption_started")), None
        )

    def _now(self) -> str:
        return self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
