"""Puts a live pod engine together: engine, queue, routing, bindings and the writes between them."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from bayplan.cache import Cache
from bayplan.client import Client, Resource
from bayplan.clock import LoopClock
from bayplan.config.features import GANGS, GROUP_PREEMPTION, GROUPS, PLACEMENTS, Features
from bayplan.config.model import Configuration
from bayplan.config.serving_flags import ProcessOptions
from bayplan.framework.registry import Registry
from bayplan.objects.core import Pod
from bayplan.queueing import QueueRecorder, SchedulingQueue
from bayplan.scheduler.asking import Extenders
from bayplan.scheduler.binding import Bindings
from bayplan.scheduler.cycle import Ask, first_of
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.evicting import Evictions
from bayplan.scheduler.failing import Failures
from bayplan.scheduler.group_cycle import GroupCycle
from bayplan.scheduler.group_preemption import GroupPreemption
from bayplan.scheduler.group_statuses import GroupStatuses
from bayplan.scheduler.groups import Groups
from bayplan.scheduler.handles import Post
from bayplan.scheduler.intake import queue_for
from bayplan.scheduler.live import LiveScheduler
from bayplan.scheduler.observing import NoObserver, Observer
from bayplan.scheduler.placements import PlacementGroups
from bayplan.scheduler.routing import Routing
from bayplan.scheduler.statuses import PodStatuses
from bayplan.scheduler.telling import Events
from bayplan.scheduler.writing import ApiWrites
from bayplan.telemetry.decisions import DecisionRing
from bayplan.telemetry.timings import PluginTimings


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
    extenders: Extenders | None = None,
    options: ProcessOptions | None = None,
    post: Post | None = None,
    timings: PluginTimings | None = None,
    pod_groups: Resource | None = None,
) -> LiveScheduler:
    """A scheduler that writes through `client`; `claims` and `pod_groups`: these kinds as the server offers them."""

    ask = extenders.ask if extenders is not None else None
    options, observer = options or ProcessOptions(), observer or NoObserver()
    settings, features = options.settings, options.serving.features

    def exists(pod: Pod) -> bool:
        return pod.uid in engine.pending or cache.pod(pod.uid) is not None

    how: dict[str, Any] = {"clock": clock, "claims": claims, "exists": exists, "observer": observer}
    writes = ApiWrites(client, events, **how, request_timeout_s=settings.request_timeout_seconds)
    made = partial(PodEngine, configuration, registry, cache, clock=clock, chance=chance, post=post, timings=timings)
    engine = made(
        writes=writes,
        records=DecisionRing(settings.records_mebibytes << 20),
        tie_break=first_of if settings.ties == "inOrder" else None,
        groups_preempt=features.enabled(GROUP_PREEMPTION),
        groups_placed=features.enabled(PLACEMENTS),
    )
    queue = _queue(engine, options, clock, recorder)
    statuses = PodStatuses(client, writes, engine.pending, clock=clock, chance=chance)
    failures = Failures(engine, queue, statuses, events)
    bindings = Bindings(
        engine,
        queue,
        bound=lambda queued, held: live.bound(queued, held),
        failed=lambda queued, status, rejectors: live.binding_failed(queued, status, rejectors),
        statuses=statuses,
        at_once=settings.writes_at_once,
        extender_bind=partial(extenders.bind, await_binding=writes.await_binding) if extenders is not None else None,
        observer=observer,
    )
    evictions = Evictions(
        engine,
        writes,
        statuses,
        events,
        clock,
        bindings.pre_binds,
        activate=lambda pod: live.activate(pod),
        retry=lambda pod: live.retry(pod),
        observer=observer,
    )
    routing = Routing(engine, queue, gangs=features.enabled(GANGS))
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
        ask=ask,
        observer=observer,
        slice_s=settings.slice_milliseconds / 1e3,
    )
    if features.enabled(GROUPS):
        live.groups = _group_cycle(live, _groups(live, chance, ask, options), pod_groups, observer, features)
    _listen(cache, live, observer)
    return live


def _listen(cache: Cache, live: LiveScheduler, observer: Observer) -> None:
    cache.devices.listener = live.assumed
    cache.volumes.listen(live.assumed)
    cache.volumes.on_failure = observer.volumes_failed


def _queue(
    engine: PodEngine, options: ProcessOptions, clock: LoopClock, recorder: QueueRecorder | None
) -> SchedulingQueue:
    features = options.serving.features
    return queue_for(
        engine,
        SchedulingQueue,
        clock=clock,
        recorder=recorder,
        max_parked_s=options.max_parked.seconds,
        pop_from_backoff=features.enabled("SchedulerPopFromBackoffQ"),
        pod_groups=features.enabled(GROUPS),
    )


def _groups(live: LiveScheduler, chance: random.Random, ask: Ask | None, options: ProcessOptions) -> Groups:
    """How attempts are made for whole groups: all nodes at once, or placement by placement."""
    if not options.serving.features.enabled(PLACEMENTS):
        return Groups(live.engine, live.queue, ask)
    ties = None if options.settings.ties == "inOrder" else chance
    return PlacementGroups(live.engine, live.queue, ask, ties)


def _group_cycle(
    live: LiveScheduler,
    groups: Groups,
    pod_groups: Resource | None,
    observer: Observer,
    features: Features,
) -> GroupCycle:
    cycle = GroupCycle(
        groups,
        live.engine,
        live.failures,
        live.evictions,
        GroupStatuses(live.writes, pod_groups, live.clock),
        live.clock,
        observer,
        start=live.start_binding,
        skip=live.skip,
    )
    cycle.statuses.wake = live.wake
    if features.enabled(GROUP_PREEMPTION):
        cycle.preemption = GroupPreemption(groups, live.engine, live.clock)
    return cycle
