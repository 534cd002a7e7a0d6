"""The way of a pod from a session's commit to its binding, and back if that fails.

One coroutine a pod, started when the session commits it; so many at once. Nothing waits for the whole gang: what one
member loses by a refused write it gets back in the next session. Order of steps and words are Volcano's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bayplan.batch.live.following import Following
from bayplan.batch.live.observing import BatchObserver
from bayplan.batch.live.writing import Speaker, Statuses, Writer
from bayplan.batch.pre_binding import PreBinding
from bayplan.cache.bind_requests import BindRequests
from bayplan.client import MERGE_PATCH, PODS, Client
from bayplan.clock import Clock
from bayplan.errors import BayplanError, NotFound
from bayplan.framework.intents import BindPod, CreateBindRequest
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
    under_way: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By uid: pods whose binding is not written yet."""
    settled: Callable[[], None] = lambda: None
    """Called when a binding has ended, either way."""
    requests: BindRequests | None = None
    """Where the binder carries out what sessions have placed: who knows what became of it."""
    _room: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.at_once)

    def start(
        self,
        pod: Pod,
        node_name: str,
        needs: PreBinding | None,
        annotations: Mapping[str, str] | None,
        handed: Mapping[str, str] | None = None,
    ) -> None:
        """A session has given a pod a node; the cache counts it there already. `handed`: to the binder's plugins."""
        self.observer.task_stage("Assumed", pod)
        task = asyncio.ensure_future(self._carry_out(pod, node_name, needs, annotations or {}, handed or {}))
        self.under_way[pod.uid] = task
        task.add_done_callback(lambda _: self._over(pod.uid))

    async def drain(self) -> None:
        if self.requests is not None:
            self.requests.let_go()
        while self.under_way:
            await asyncio.gather(*self.under_way.values(), return_exceptions=True)

    async def abandon(self) -> None:
        for task in self.under_way.values():
            task.cancel()
        await self.drain()

    # inside -----------------------------------------------------------------------------------------------------

    def _over(self, uid: str) -> None:
        del self.under_way[uid]
        self.settled()

    async def _carry_out(
        self,
        pod: Pod,
        node_name: str,
        needs: PreBinding | None,
        annotations: Mapping[str, str],
        handed: Mapping[str, str],
    ) -> None:
        try:
            async with self._room:
                await self._prepare(pod, node_name, needs, annotations)
                await self._write(pod, node_name, handed)
            await self._settle(pod)
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

    async def _write(self, pod: Pod, node_name: str, handed: Mapping[str, str]) -> None:
        if (saying := self.statuses.being_written(pod.uid)) is not None:
            await asyncio.wait([saying])  # else why it waited could be written after it has a node
        start_s = self.clock.monotonic_s()
        try:
            desk = self.following.engine.handle.desk
            if desk is None:
                await self.writes.perform(BindPod(pod, node_name))
            else:
                wanted = CreateBindRequest(pod, desk.request(pod, node_name, handed))
                desk.made(await self.writes.perform(wanted), pod)
        except NotFound:
            raise _NotBound("") from None  # it is gone, and nobody is left to be told
        except BayplanError as fault:
            raise _NotBound(f"failed to bind to node {node_name}: {fault}") from fault
        finally:
            self.observer.stage("Bind", self.clock.monotonic_s() - start_s)

    async def _settle(self, pod: Pod) -> None:
        """Wait for what the binder makes of it; nobody else waits meanwhile."""
        if self.requests is not None:
            status = await self.requests.settled(pod)
            if not status.ok:
                raise _NotBound(status.message)

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
