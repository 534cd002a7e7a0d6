"""Makes room that preemption has found: victims are told and deleted, weaker nominations cleared.

Started after an attempt that found victims, and done meanwhile. The preemptor is held back until all victims but the
last were told to go, and the last is known to go: its own going is the event that wakes the preemptor. If something
fails the preemptor is tried again at once, and the last victim is left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from bayplan.client import PODS, STRATEGIC_PATCH, Client
from bayplan.errors import ApiError, NotFound
from bayplan.framework.points import POST_FILTER
from bayplan.framework.preemption import ClearNomination, EvictVictim
from bayplan.objects.core import Pod
from bayplan.queueing import SchedulingQueue
from bayplan.scheduler.binding import PreBinds
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.failing import Failures
from bayplan.scheduler.telling import Events

log = logging.getLogger(__name__)


class Preempting(Protocol):
    """What a plugin that preempts is told of how far it is."""

    def begins(self, preemptor: Pod) -> None: ...
    def waits_for(self, preemptor: Pod, last_leaves: Any) -> None: ...
    def finished(self, preemptor: Pod) -> None: ...


@dataclass(slots=True)
class Evictions:
    """Carries out the writes of a PostFilter answer."""

    engine: PodEngine
    queue: SchedulingQueue
    client: Client
    events: Events
    failures: Failures
    pre_binds: PreBinds

    def begin(self, preemptor: Pod, writes: Sequence[object]) -> None:
        """Hold the preemptor back, and start."""
        victims = [intent for intent in writes if isinstance(intent, EvictVictim)]
        if not victims:
            return
        plugin = self._plugin(preemptor, victims[0].plugin)
        if plugin is not None:
            plugin.begins(preemptor)
        self.failures.writes.start(
            self._carry_out(preemptor, writes, victims, plugin), f"making room for {preemptor.key}"
        )

    async def _carry_out(
        self, preemptor: Pod, writes: Sequence[object], victims: list[EvictVictim], plugin: Preempting | None
    ) -> None:
        try:
            for intent in writes:
                if isinstance(intent, ClearNomination):
                    await self._clear(intent.pod)
            others, last = [each for each in victims if not each.last], [each for each in victims if each.last]
            await asyncio.gather(*map(self._evict, others))
            for victim in last:
                if plugin is not None:
                    plugin.waits_for(preemptor, partial(self._leaves, victim.victim.uid))
                await self._evict(victim)
        except ApiError as fault:
            log.warning("cannot make room for pod %s: %s", preemptor.key, fault)
            self._release(preemptor, plugin)
            self.queue.activate([preemptor])
        finally:
            self._release(preemptor, plugin)

    def _release(self, preemptor: Pod, plugin: Preempting | None) -> None:
        if plugin is not None:
            plugin.finished(preemptor)

    async def _clear(self, pod: Pod) -> None:
        try:
            await self.failures.clear_nomination(pod)
        except ApiError as fault:
            log.warning("cannot clear the nomination of pod %s: %s", pod.key, fault)

    async def _evict(self, intent: EvictVictim) -> None:
        victim = intent.victim
        waiting = self.engine.waiting.get(victim.uid)
        if waiting is not None:
            waiting.preempt(intent.plugin, intent.waiting_message)
            in_memory = True
        else:
            in_memory = self.pre_binds.cancel(victim.uid, intent.cancel_message)
        if not in_memory and not await self._delete(intent):
            return
        self.events.record(
            victim,
            intent.event_type,
            intent.event_reason,
            intent.event_action,
            intent.note(in_memory=in_memory),
            related=intent.preemptor,
        )

    async def _delete(self, intent: EvictVictim) -> bool:
        """Whether the victim was still there."""
        victim = intent.victim
        try:
            if not intent.already_told:
                condition = {**msgspec.to_builtins(intent.condition), "lastTransitionTime": _now(self.failures)}
                await self.client.patch(
                    PODS,
                    {"status": {"conditions": [condition]}},
                    name=victim.name,
                    namespace=victim.namespace,
                    subresource="status",
                    kind=STRATEGIC_PATCH,
                )
            await self.client.delete(PODS, name=victim.name, namespace=victim.namespace)
        except NotFound:
            return False
        return True

    def _leaves(self, uid: str) -> bool:
        """Whether the last victim is known to be terminating, or gone."""
        pod = self.engine.cache.pod(uid)
        return pod is None or pod.terminating

    def _plugin(self, preemptor: Pod, name: str) -> Preempting | None:
        plugins = self.engine.framework(preemptor.scheduler_name).profile.at(POST_FILTER)
        return next((plugin for plugin in plugins if plugin.name == name and hasattr(plugin, "begins")), None)


def _now(failures: Failures) -> str:
    return failures.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
