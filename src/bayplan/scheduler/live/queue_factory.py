"""Builds the scheduling queue of an engine from its profiles' PreEnqueue plugins, hints and QueueSort, and the backoff.

Called once at start; `queue_profiles` also whenever plugins are reloaded (`queue.install`).
"""

from __future__ import annotations

from typing import TypeVar

from bayplan.clock import Clock
from bayplan.framework.api.extension_points import QUEUE_SORT
from bayplan.queue import QueueProfile, QueueRecorder, QueueSettings, SchedulingQueue, queue_order
from bayplan.queue.heap import SortKey
from bayplan.scheduler.engine import PodEngine

Q = TypeVar("Q", bound=SchedulingQueue)

DEFAULT_MAX_UNSCHEDULABLE_S = 300.0


def queue_profiles(engine: PodEngine) -> dict[str, QueueProfile]:
    extenders = bool(engine.configuration.extenders)
    return {name: QueueProfile.of(engine.framework(name), extenders=extenders) for name in engine.scheduler_names}


def queue_sort_order(engine: PodEngine) -> SortKey:
    """The order of the queue. All profiles share one QueueSort."""
    framework = engine.framework(next(iter(engine.scheduler_names)))
    (sorter,) = framework.profile.at(QUEUE_SORT)
    return queue_order(sorter, framework.plugin_caller)


def new_queue(
    engine: PodEngine,
    kind: type[Q],
    *,
    clock: Clock,
    recorder: QueueRecorder | None = None,
    max_unschedulable_s: float = DEFAULT_MAX_UNSCHEDULABLE_S,
    pop_from_backoff: bool = True,
    pod_groups: bool = False,
) -> Q:
    """Build a queue for an engine. It shares the engine's pending pods and its nominator."""
    configuration = engine.configuration
    settings = QueueSettings(
        initial_backoff_s=float(configuration.pod_initial_backoff_seconds),
        max_backoff_s=float(configuration.pod_max_backoff_seconds),
        max_unschedulable_s=max_unschedulable_s,
        pop_from_backoff=pop_from_backoff,
        pod_groups=pod_groups,
    )
    return kind(
        queue_profiles(engine),
        queue_sort_order(engine),
        clock=clock,
        pods=engine.pending,
        nominations=engine.nominator,
        settings=settings,
        prepare=engine.prepare,
        recorder=recorder,
    )
