"""Puts a live batch engine together: engine, following, bindings, evictions and what is told."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from bayplan.batch.engine import BatchEngine
from bayplan.batch.live.binding import BatchBinder
from bayplan.batch.live.default_queues import ensure_default_queues
from bayplan.batch.live.event_handlers import BatchEventHandlers, ignore_freed_pod, manage_every_node
from bayplan.batch.live.eviction import PodEvictor
from bayplan.batch.live.gate_removal import GateRemovals
from bayplan.batch.live.observer import BatchObserver, NoBatchObserver
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.orphaned_claims import OrphanedClaims
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.batch.live.status_updater import SessionStatusUpdater
from bayplan.batch.live.write_interfaces import IntentWriter, ObjectEventRecorder, PodStatusWriter
from bayplan.batch.session.last_choices import LastChoices
from bayplan.client import Client, GroupVersionResource
from bayplan.client.step_thread import StepThread
from bayplan.clock import LoopClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano


@dataclass(frozen=True, slots=True)
class ApiWriters:
    """How the engine reaches the API server, and people."""

    client: Client
    writes: IntentWriter
    statuses: PodStatusWriter
    event_recorder: ObjectEventRecorder
    groups: GroupVersionResource
    queues: GroupVersionResource


def build_event_handlers(
    engine: BatchEngine,
    options: BatchOptions,
    *,
    left_to_others: Collection[type[KubeObject]] = (),
    freed: Callable[[Pod], None] = ignore_freed_pod,
) -> BatchEventHandlers:
    """What keeps an engine in step with the API server."""
    manages: Callable[[Node], bool] = (
        options.manages if options.node_selector or options.multi_scheduler else manage_every_node
    )
    if Node in left_to_others and manages is not manage_every_node:
        engine.cluster_state.manages = (
            manages  # the cache has them all: which of them are ours is the sessions' own affair
        )
    return BatchEventHandlers(engine, options.scheduler_name, left_to_others, manages, options.multi_scheduler, freed)


def _queue_is_known(following: BatchEventHandlers) -> Callable[[str], bool]:
    return lambda queue: queue in following.engine.cache.catalog.table(volcano.Queue)


def build_run_loop(
    following: BatchEventHandlers,
    ways: ApiWriters,
    options: BatchOptions,
    clock: LoopClock,
    observer: BatchObserver | None = None,
) -> BatchRunLoop:
    """An engine that follows the API server and writes what its sessions decide."""
    engine, observer = following.engine, observer or NoBatchObserver()
    engine.handle.writes = ways.writes
    engine.handle.node_sampling = options.node_sampling
    engine.handle.queue_admission = options.queue_admission
    engine.handle.last_choices = LastChoices()
    made = (following, ways.writes, ways.statuses, ways.event_recorder)
    aside = StepThread()
    engine.call_and_wait = aside.wait_outside
    return BatchRunLoop(
        engine,
        following,
        BatchBinder(*made, observer, clock, max_workers=options.max_concurrent_writes),
        PodEvictor(*made, observer, clock),
        GateRemovals(ways.client, ways.writes, clock),
        SessionStatusUpdater(
            following, ways.client, ways.writes, ways.statuses, ways.event_recorder, ways.groups, ways.queues
        ),
        ways.writes,
        clock,
        period_s=options.schedule_period.seconds,
        slice_s=options.slice_s,
        observer=observer,
        blocking_thread=aside,
        after_session=[OrphanedClaims(following, ways.writes, clock).release_orphaned],
        prepare=partial(
            ensure_default_queues, ways.client, ways.queues, clock, _queue_is_known(following), options.default_queue
        ),
    )
