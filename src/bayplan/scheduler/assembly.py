"""Puts a live pod engine together: engine, queue, routing, bindings and the writes between them."""

from __future__ import annotations

import random

from bayplan.cache import Cache
from bayplan.client import Client, Resource
from bayplan.clock import LoopClock
from bayplan.config.model import Configuration
from bayplan.framework.points import QUEUE_SORT
from bayplan.framework.registry import Registry
from bayplan.objects.core import Pod
from bayplan.queueing import QueueProfile, QueueRecorder, QueueSettings, SchedulingQueue, queue_order
from bayplan.scheduler.binding import Bindings
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.evicting import Evictions
from bayplan.scheduler.failing import Failures
from bayplan.scheduler.live import LiveScheduler, NoObserver, Observer
from bayplan.scheduler.routing import Routing
from bayplan.scheduler.statuses import PodStatuses
from bayplan.scheduler.telling import Events
from bayplan.scheduler.writing import ApiWrites


def live_scheduler(
    configuration: Configuration,
    registry: Registry,
    cache: Cache,
    client: Client,
    events: Events,
    *,
    clock: LoopClock,
    chance: random.Random,
    claims: Resource | None = None,
    recorder: QueueRecorder | None = None,
    observer: Observer | None = None,
) -> LiveScheduler:
    """A scheduler that writes through `client`; `claims`: device claims as the server offers them."""

    def exists(pod: Pod) -> bool:
        return pod.uid in engine.pending or cache.pod(pod.uid) is not None

    writes = ApiWrites(client, events, clock=clock, claims=claims, exists=exists)
    engine = PodEngine(configuration, registry, cache, clock=clock, chance=chance, writes=writes)
    queue = _queue(engine, clock, recorder)
    statuses = PodStatuses(client, writes, engine.pending, clock=clock, chance=chance)
    failures = Failures(engine, queue, statuses, events)
    bindings = Bindings(
        engine,
        queue,
        bound=lambda queued, held: live.bound(queued, held),
        failed=lambda queued, status, rejectors: live.binding_failed(queued, status, rejectors),
        nominate=statuses.nominate,
    )
    evictions = Evictions(
        engine,
        client,
        writes,
        statuses,
        events,
        clock,
        bindings.pre_binds,
        activate=lambda pod: live.activate(pod),
    )
    routing = Routing(engine, queue)
    live = LiveScheduler(
        engine,
        queue,
        routing,
        bindings,
        failures,
        evictions,
        writes,
        events,
        clock,
        observer=observer or NoObserver(),
    )
    return live


def _queue(engine: PodEngine, clock: LoopClock, recorder: QueueRecorder | None) -> SchedulingQueue:
    configuration = engine.configuration
    frameworks = {name: engine.framework(name) for name in engine.scheduler_names}
    first = next(iter(frameworks.values()))
    (sorter,) = first.profile.at(QUEUE_SORT)
    extenders = bool(configuration.extenders)
    settings = QueueSettings(
        initial_backoff_s=float(configuration.pod_initial_backoff_seconds),
        max_backoff_s=float(configuration.pod_max_backoff_seconds),
    )
    return SchedulingQueue(
        {name: QueueProfile.of(framework, extenders=extenders) for name, framework in frameworks.items()},
        queue_order(sorter, first.boundary),
        clock=clock,
        pods=engine.pending,
        nominations=engine.nominations,
        settings=settings,
        prepare=engine.prepare,
        recorder=recorder,
    )
