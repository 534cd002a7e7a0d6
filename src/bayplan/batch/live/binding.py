"""The way of a pod from a session's commit to its binding, and back if that fails.

Begun when the session commits it, so many pods at once; those that wait for their turn are entries of a queue and not
tasks of the loop, of which ten thousand would keep the collector of garbage busy. Nothing waits for the whole gang:
what one member loses by a refused write it gets back in the next session. Order of steps and words are Volcano's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bayplan.batch.live.following import Following
from bayplan.batch.live.observing import BatchObserver
from bayplan.batch.live.writing import Speaker, Statuses, Writer
from bayplan.batch.pre_binding import PreBinding
from bayplan.client import MERGE_PATCH, PODS, Client
from bayplan.clock import Clock
from bayplan.errors import BayplanError, NotFound
from bayplan.framework.intents import BindPod
from bayplan.objects.core import Pod
from bayplan.telemetry.events import NORMAL, WARNING
from bayplan.telemetry.logs import Ref, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)

SCHEDULER_ERROR = "SchedulerError"
_DECISION = 3
"""The verbosity at which Volcano tells of decisions."""


class _NotBound(Exception):
    """Why a pod is not bound, in the words that its condition gets."""


class _Placed(NamedTuple):
    """A pod that has a node, and what is to be done first."""

    pod: Pod
    node_name: str
    needs: PreBinding | None
    annotations: Mapping[str, str]


@dataclass(slots=True)
class Binds:
    """Carries out what sessions have placed."""

    following: Following
    client: Client
    writes: Writer
    statuses: Statuses
    speaker: Speaker
    observer: BatchObserver
    clock: Clock
    at_once: int = 64
    under_way: set[str] = field(default_factory=set)
    """Uids of pods whose binding is not written yet."""
    _waiting: deque[_Placed] = field(default_factory=deque)
    _workers: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, pod: Pod, node_name: str, needs: PreBinding | None, annotations: Mapping[str, str] | None) -> None:
        """A session has given a pod a node; the cache counts it there already."""
        self.observer.task_stage("Assumed", pod)
        self.under_way.add(pod.uid)
        self._waiting.append(_Placed(pod, node_name, needs, annotations or {}))
        if len(self._workers) < self.at_once:
            worker = asyncio.ensure_future(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def drain(self) -> None:
        while self._workers:
            await asyncio.gather(*self._workers, return_exceptions=True)

    async def abandon(self) -> None:
        self._waiting.clear()
        self.under_way.clear()
        for worker in self._workers:
            worker.cancel()
        await self.drain()

    # inside -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Bind whoever waits longest, until nobody does."""
        while self._waiting:
            placed = self._waiting.popleft()
            try:
                await self._carry_out(placed)
            finally:
                self.under_way.discard(placed.pod.uid)

    async def _carry_out(self, placed: _Placed) -> None:
        pod, node_name, needs, annotations = placed
        try:
            await self._prepare(pod, node_name, needs, annotations)
            await self._write(pod, node_name)
        except _NotBound as fault:
            self._take_back(pod, needs, node_name, str(fault))
        except Exception as fault:  # a bug of ours costs the pod one session, and never leaves it counted on its node
            log.exception("the binding of pod %s broke", pod.key)
            self._take_back(pod, needs, node_name, f"{type(fault).__name__}: {fault}")
        else:
            self._bound(pod, node_name)

    async def _prepare(
        self, pod: Pod, node_name: str, needs: PreBinding | None, annotations: Mapping[str, str]
    ) -> None:
        """Everything that must be there before: volumes, devices, what plugins tell the node by annotations."""
        if needs is not None:
            start_s = self.clock.monotonic_s()
            status = await needs.perform(node_name)
            self.observer.stage("PreBind", self.clock.monotonic_s() - start_s)
            if not status.ok:
                raise _NotBound(f"execute preBind for pod {pod.key} failed: {status.message}, resync the task")
        if annotations:
            patch = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
            try:
                await self.client.patch(PODS, patch, name=pod.name, namespace=pod.namespace, kind=MERGE_PATCH)
            except BayplanError as fault:
                raise _NotBound(f"execute preBind for pod {pod.key} failed: {fault}, resync the task") from fault
        self.observer.task_stage("PreBound", pod)

    async def _write(self, pod: Pod, node_name: str) -> None:
        if (saying := self.statuses.being_written(pod.uid)) is not None:
            await asyncio.wait([saying])  # else why it waited could be written after it has a node
        start_s = self.clock.monotonic_s()
        try:
            await self.writes.perform(BindPod(pod, node_name))
        except NotFound:
            raise _NotBound("") from None  # it is gone, and nobody is left to be told
        except BayplanError as fault:
            raise _NotBound(f"failed to bind to node {node_name}: {fault}") from fault
        finally:
            self.observer.stage("Bind", self.clock.monotonic_s() - start_s)

    def _bound(self, pod: Pod, node_name: str) -> None:
        cache = self.following.engine.cache
        cache.finish_binding(pod.uid, self.clock.monotonic_s())
        self.observer.bound(pod)
        self.speaker.tell(pod, NORMAL, "Scheduled", f"Successfully assigned {pod.key} to {node_name}")
        if outcomes.enabled(_DECISION):
            outcomes.info("Successfully bound pod to node", v=_DECISION, pod=Ref(pod.key), node=node_name)

    def _take_back(self, pod: Pod, needs: PreBinding | None, node_name: str, why: str) -> None:
        """Nothing is held for the pod any more, and the next session finds it waiting."""
        engine = self.following.engine
        if needs is not None:
            needs.undo(node_name)
        assumed = engine.cache.pod(pod.uid) if engine.cache.is_assumed(pod.uid) else None
        if assumed is not None:
            engine.cache.forget(assumed)
            self.following.freed(assumed)
        newest = self.following.newest(pod)
        if newest is None or newest.spec.node_name:
            return  # gone, or on a node: the watch knows better than whoever answered us
        engine.observe(newest)
        self.observer.failed(pod)
        if why:
            log.warning("pod %s: %s", pod.key, why)
            self.statuses.say(newest, SCHEDULER_ERROR, why, None)
            self.speaker.tell(newest, WARNING, "FailedScheduling", why)
