"""Builds a live batch engine: event handlers, binding, evictions and status updates."""

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
from bayplan.client import BlockingHttpService, Client, GroupVersionResource
from bayplan.clock import LoopClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano


@dataclass(frozen=True, slots=True)
class ApiWriters:
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
    kinds_handled_elsewhere: Collection[type[KubeObject]] = (),
    on_pod_released: Callable[[Pod], None] = ignore_freed_pod,
) -> BatchEventHandlers:
    manages: Callable[[Node], bool] = (
        options.manages if options.node_selector or options.multi_scheduler else manage_every_node
    )
    if Node in kinds_handled_elsewhere and manages is not manage_every_node:
        engine.cluster_state.manages = manages  # the shared cache has all nodes, so sessions filter them
    return BatchEventHandlers(
        engine, options.scheduler_name, kinds_handled_elsewhere, manages, options.multi_scheduler, on_pod_released
    )


def _queue_is_known(event_handlers: BatchEventHandlers) -> Callable[[str], bool]:
    return lambda queue: queue in event_handlers.engine.cache.catalog.table(volcano.Queue)


def build_run_loop(
    event_handlers: BatchEventHandlers,
    writers: ApiWriters,
    options: BatchOptions,
    clock: LoopClock,
    observer: BatchObserver | None = None,
    http: BlockingHttpService | None = None,
) -> BatchRunLoop:
    """Build the run loop of an engine that follows the API server and writes the decisions of its sessions.

    `http`: the service by which the engine posts."""
    engine, observer = event_handlers.engine, observer or NoBatchObserver()
    engine.handle.writes = writers.writes
    engine.handle.node_sampling = options.node_sampling
    engine.handle.queue_admission = options.queue_admission
    engine.handle.last_choices = LastChoices()
    common = (event_handlers, writers.writes, writers.statuses, writers.event_recorder)
    return BatchRunLoop(
        engine,
        event_handlers,
        BatchBinder(*common, observer, clock, max_workers=options.max_concurrent_writes),
        PodEvictor(*common, observer, clock),
        GateRemovals(writers.client, writers.writes, clock),
        SessionStatusUpdater(
            event_handlers,
            writers.client,
            writers.writes,
            writers.statuses,
            writers.event_recorder,
            writers.groups,
            writers.queues,
        ),
        writers.writes,
        clock,
        period_s=options.schedule_period.seconds,
        slice_s=options.slice_s,
        observer=observer,
        http=http,
        after_session=[OrphanedClaims(event_handlers, writers.writes, clock).release_orphaned],
        prepare=partial(
            ensure_default_queues,
            writers.client,
            writers.queues,
            clock,
            _queue_is_known(event_handlers),
            options.default_queue,
        ),
    )
