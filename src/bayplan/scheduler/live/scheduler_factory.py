"""Builds a live pod engine: engine, queue, event handlers, binding cycles and API writes."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

from bayplan.api_writes.observer import NoSchedulerObserver, SchedulerObserver
from bayplan.api_writes.pod_status_messages import PodEventRecorder
from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.api_writes.writes import ApiWrites
from bayplan.cache import Cache
from bayplan.client import Client, GroupVersionResource
from bayplan.clock import LoopClock
from bayplan.config.feature_gates import (
    GANG_SCHEDULING,
    GENERIC_WORKLOAD,
    TOPOLOGY_AWARE_WORKLOAD_SCHEDULING,
    WORKLOAD_AWARE_PREEMPTION,
)
from bayplan.config.model import Configuration
from bayplan.config.serving_flags import ProcessOptions
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.queue import QueueRecorder, SchedulingQueue
from bayplan.scheduler.binding.binding_cycle import BindingCycle
from bayplan.scheduler.binding.binding_tasks import BindingTasks
from bayplan.scheduler.binding.failure_handler import FailureHandler
from bayplan.scheduler.binding.preemption_executor import PreemptionExecutor
from bayplan.scheduler.cycle.extender_client import ExtenderClient
from bayplan.scheduler.cycle.scheduling_cycle import first_row
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.live.event_handlers import EventHandlers
from bayplan.scheduler.live.queue_factory import new_queue
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.scheduler.plugin_handle import PostFunction
from bayplan.scheduler.pod_groups.group_attempts import GroupAttempts
from bayplan.scheduler.pod_groups.group_cycle import PodGroupCycle
from bayplan.scheduler.pod_groups.group_preemption import GroupPreemption
from bayplan.scheduler.pod_groups.group_statuses import GroupStatuses
from bayplan.scheduler.pod_groups.placement_attempts import PlacementGroupAttempts
from bayplan.telemetry.decisions import DecisionRing
from bayplan.telemetry.plugin_timings import PluginTimings


def new_live_scheduler(
    configuration: Configuration,
    registry: Registry,
    cache: Cache,
    client: Client,
    events: PodEventRecorder,
    *,
    clock: LoopClock,
    chance: random.Random,
    claims: GroupVersionResource | None = None,
    recorder: QueueRecorder | None = None,
    observer: SchedulerObserver | None = None,
    extenders: ExtenderClient | None = None,
    options: ProcessOptions | None = None,
    post: PostFunction | None = None,
    timings: PluginTimings | None = None,
    pod_groups: GroupVersionResource | None = None,
) -> LiveScheduler:
    """Build a scheduler that writes through `client`. `claims`, `pod_groups`: these resources as the server serves
    them."""

    options, observer = options or ProcessOptions(), observer or NoSchedulerObserver()
    settings, features, wake = options.settings, options.serving.features, asyncio.Event()

    def exists(pod: Pod) -> bool:
        return pod.uid in engine.pending or cache.pod(pod.uid) is not None

    write_options: dict[str, Any] = {"clock": clock, "claims": claims, "exists": exists, "observer": observer}
    writes = ApiWrites(client, events, **write_options, request_timeout_s=settings.request_timeout_seconds)
    new_engine = partial(
        PodEngine, configuration, registry, cache, clock=clock, chance=chance, post=post, timings=timings
    )
    engine = new_engine(
        writes=writes,
        records=DecisionRing(settings.records_mebibytes << 20),
        tie_break=first_row if settings.ties == "inOrder" else None,
        groups_preempt=features.enabled(WORKLOAD_AWARE_PREEMPTION),
        groups_placed=features.enabled(TOPOLOGY_AWARE_WORKLOAD_SCHEDULING),
    )
    queue = _new_queue(engine, options, clock, recorder)
    statuses = PodStatuses(client, writes, engine.pending, clock=clock, chance=chance)
    failures = FailureHandler(engine, queue, statuses, events, observer, clock)
    cycle = BindingCycle(
        engine,
        queue,
        statuses,
        failures,
        events,
        observer,
        clock,
        wake,
        max_concurrent=settings.writes_at_once,
        extender_bind=partial(extenders.bind, await_binding=writes.await_binding) if extenders is not None else None,
    )
    live = LiveScheduler(
        engine,
        queue,
        EventHandlers(engine, queue, gangs=features.enabled(GANG_SCHEDULING)),
        BindingTasks(cycle),
        failures,
        PreemptionExecutor(engine, queue, writes, statuses, events, clock, cycle.pre_binds, wake, observer),
        writes,
        events,
        observer,
        clock,
        wake,
        call_extender=extenders.call if extenders is not None else None,
        slice_s=settings.slice_milliseconds / 1e3,
    )
    if features.enabled(GENERIC_WORKLOAD):
        live.pod_group_cycle = _new_group_cycle(live, chance, options, pod_groups)
    _add_listeners(cache, live, observer)
    return live


def _add_listeners(cache: Cache, live: LiveScheduler, observer: SchedulerObserver) -> None:
    cache.devices.listener = live.handle_own_write
    cache.volumes.listen(live.handle_own_write)
    cache.volumes.on_failure = observer.observe_volume_failure


def _new_queue(
    engine: PodEngine, options: ProcessOptions, clock: LoopClock, recorder: QueueRecorder | None
) -> SchedulingQueue:
    features = options.serving.features
    return new_queue(
        engine,
        SchedulingQueue,
        clock=clock,
        recorder=recorder,
        max_unschedulable_s=options.max_in_unschedulable_pods.seconds,
        pop_from_backoff=features.enabled("SchedulerPopFromBackoffQ"),
        pod_groups=features.enabled(GENERIC_WORKLOAD),
    )


def _new_group_attempts(live: LiveScheduler, chance: random.Random, options: ProcessOptions) -> GroupAttempts:
    """Build the attempts for whole groups: on all nodes at once, or placement by placement."""
    if not options.serving.features.enabled(TOPOLOGY_AWARE_WORKLOAD_SCHEDULING):
        return GroupAttempts(live.engine, live.queue, live.call_extender)
    ties = None if options.settings.ties == "inOrder" else chance
    return PlacementGroupAttempts(live.engine, live.queue, live.call_extender, ties)


def _new_group_cycle(
    live: LiveScheduler, chance: random.Random, options: ProcessOptions, pod_groups: GroupVersionResource | None
) -> PodGroupCycle:
    groups = _new_group_attempts(live, chance, options)
    cycle = PodGroupCycle(
        groups,
        live.engine,
        live.failure_handler,
        live.preemption_executor,
        live.bindings,
        GroupStatuses(live.writes, pod_groups, live.clock, live.wake_event),
        live.clock,
        live.observer,
    )
    if options.serving.features.enabled(WORKLOAD_AWARE_PREEMPTION):
        cycle.preemption = GroupPreemption(groups, live.engine, live.clock)
    return cycle
