"""Harness of a live pod engine: manual clock, and a fake API server that records requests.

The server stores nothing: a test delivers watch events with `harness.deliver`. It accepts every request unless the test
has planned a refusal with `harness.fail_next`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api_writes.observer import SchedulerObserver
from bayplan.app import configured, known_plugins
from bayplan.cache import Cache
from bayplan.client.resources import resource_of
from bayplan.clock import ManualClock
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.feature_gates import parse_feature_gates
from bayplan.config.serving_flags import ProcessOptions, ServingFlags
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.workloads import PodGroup
from bayplan.queue.queued_pod import SubQueue
from bayplan.scheduler.live.bind_request_handlers import track_bind_requests
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.scheduler.live.scheduler_factory import new_live_scheduler
from support.fakes.http_server import FakeHttpServer, Reply, Request, ServerAnswer
from support.harness.async_tests import wait_until
from support.harness.live_engine import LiveEngineHarness

CLAIMS = resource_of(kind_of(ResourceClaim))
GROUPS = resource_of(kind_of(PodGroup))


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event that the engine recorded."""

    about: str
    kind: str
    reason: str
    action: str
    note: str
    related: str = ""


@dataclass
class RecordedEvents:
    recorded: list[RecordedEvent] = field(default_factory=list)

    def record(
        self, regarding: Pod, kind: str, reason: str, action: str, note: str, related: Pod | None = None
    ) -> None:
        self.recorded.append(RecordedEvent(regarding.name, kind, reason, action, note, related.name if related else ""))


@dataclass
class LiveSchedulerHarness(LiveEngineHarness[LiveScheduler]):
    events: RecordedEvents
    objects: dict[str, KubeObject] = field(default_factory=dict)
    """Responses to GET requests, by path."""

    def latest(self, pod: Pod) -> Pod:
        """The version of the pod that was delivered last."""
        found = self._known[f"Pod {pod.key}"]
        assert isinstance(found, Pod)
        return found

    def answer(self, request: Request) -> ServerAnswer:
        stored = self.objects.get(request.path)
        if request.method == "GET" and stored is not None and not self.fails(request):
            return Reply(200, msgspec.json.encode(stored))
        return super().answer(request)

    def count(self, method: str, ending: str) -> int:
        """Number of requests of this kind."""
        return sum(each.method == method and each.path.endswith(ending) for each in self.server.requests)

    async def idle(self) -> None:
        """Wait until all events are handled, all possible attempts are made, and no binding or write is in progress."""
        await wait_until(lambda: self.live.is_idle and not self.live.writes.busy)

    async def wait_for_request(self, method: str, ending: str, times: int = 1) -> None:
        await wait_until(lambda: len(self.sent(method, ending)) >= times)

    def pool(self, pod: Pod) -> SubQueue | None:
        """The part of the queue that a pod is in; None if it is not queued."""
        queued = self.live.queue.get(pod.key)
        return None if queued is None else queued.pool

    def attempts(self, pod: Pod) -> int:
        """Number of attempts for a queued pod."""
        queued = self.live.queue.get(pod.key)
        return 0 if queued is None else queued.attempts


def conditions(harness: LiveSchedulerHarness) -> list[dict[str, Any]]:
    """Every PodScheduled condition that was written."""
    patches = harness.sent("PATCH", "/status")
    written = [each for patch in patches for each in patch["status"].get("conditions", [])]
    return [each for each in written if each["type"] == "PodScheduled"]


@asynccontextmanager
async def run_live_scheduler(
    *objects: KubeObject,
    config: str | None = None,
    registry: Registry | None = None,
    decide: bool = True,
    prepare: Callable[[LiveScheduler], object] | None = None,
    gates: Iterable[str] = (),
    settings: BayplanSettings | None = None,
    observer: SchedulerObserver | None = None,
) -> AsyncIterator[LiveSchedulerHarness]:
    """Run a live engine to which these objects are delivered. `decide`: whether it schedules or only handles events."""
    clock = ManualClock()
    registry = registry or known_plugins()
    features = parse_feature_gates(f"{name}=true" for name in gates)
    async with FakeHttpServer() as server, server.client(clock) as client:
        events = RecordedEvents()
        live = new_live_scheduler(
            configured(config, registry, features),
            registry,
            Cache(),
            client,
            events,
            clock=clock,
            chance=random.Random(0),
            claims=CLAIMS,
            pod_groups=GROUPS,
            observer=observer,
            options=ProcessOptions(serving=ServingFlags(features=features), settings=settings or BayplanSettings()),
        )
        harness = LiveSchedulerHarness(server, client, clock, live, events)
        server.route = harness.answer
        if prepare is not None:
            prepare(live)
        harness.deliver(*sorted(objects, key=lambda item: not isinstance(item, Node)))
        loop = asyncio.ensure_future(live.run() if decide else live.handle_events())
        try:
            if decide:
                await harness.idle()
            yield harness
            assert not loop.done(), loop
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            await live.abandon()


def bind_request_config(*plugins: str) -> str:
    """A configuration with BindRequestBinder and further plugins."""
    enabled = ", ".join(f"{{name: {each}}}" for each in (*plugins, "BindRequestBinder"))
    return f"""
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{enabled}]
      disabled: [{{name: DefaultBinder}}]
"""


def run_with_bind_requests(
    *objects: KubeObject, config: str, **options: Any
) -> AbstractAsyncContextManager[LiveSchedulerHarness]:
    """Run a live scheduler that tracks the bind requests of its pods."""
    return run_live_scheduler(
        *objects, config=config, prepare=lambda live: track_bind_requests(live, live.clock, stale_s=600.0), **options
    )


def store_bind_requests(harness: LiveSchedulerHarness) -> None:
    """Let the server answer each create of a bind request with the request that was sent, under a new uid."""
    numbers = itertools.count(1)

    def route(request: Request) -> ServerAnswer:
        if request.method == "POST" and request.path.endswith("/bindrequests") and not harness.refusals:
            sent = msgspec.convert(request.json, BindRequest)
            number = next(numbers)
            meta = replace(
                sent.metadata,
                uid=f"request-{number}",
                resource_version=str(1000 * number),
                creation_timestamp=harness.clock.now(),
            )
            return Reply(201, msgspec.json.encode(replace(sent, metadata=meta)))
        return harness.answer(request)

    harness.server.route = route
