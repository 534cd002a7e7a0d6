"""Puts a live batch engine together: engine, following, bindings, evictions and what is told."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from bayplan.batch.engine import BatchEngine
from bayplan.batch.live.binding import Binds
from bayplan.batch.live.default_queues import make_queues
from bayplan.batch.live.event_handlers import Following, every_node, nobody_waits
from bayplan.batch.live.eviction import PodEvictions
from bayplan.batch.live.gate_removal import GateRemovals
from bayplan.batch.live.observer import BatchObserver, NoBatchObserver
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.orphaned_claims import StrandedClaims
from bayplan.batch.live.run_loop import LiveBatch
from bayplan.batch.live.status_updater import Telling
from bayplan.batch.live.write_interfaces import Speaker, Statuses, Writer
from bayplan.batch.session.last_choices import LastChoices
from bayplan.client import Client, Resource
from bayplan.client.step_thread import Aside
from bayplan.clock import LoopClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano


@dataclass(frozen=True, slots=True)
class Ways:
    """How the engine reaches the API server, and people."""

    client: Client
    writes: Writer
    statuses: Statuses
    speaker: Speaker
    groups: Resource
    queues: Resource


def followed(
    engine: BatchEngine,
    options: BatchOptions,
    *,
    left_to_others: Collection[type[KubeObject]] = (),
    freed: Callable[[Pod], None] = nobody_waits,
) -> Following:
    """What keeps an engine in step with the API server."""
    manages: Callable[[Node], bool] = options.manages if options.node_selector or options.division else every_node
    if Node in left_to_others and manages is not every_node:
        engine.ledger.manages = manages  # the cache has them all: which of them are ours is the sessions' own affair
    return Following(engine, options.scheduler_name, left_to_others, manages, options.division, freed)


def _known(following: Following) -> Callable[[str], bool]:
    return lambda queue: queue in following.engine.cache.catalog.table(volcano.Queue)


def live_batch(
    following: Following,
    ways: Ways,
    options: BatchOptions,
    clock: LoopClock,
    observer: BatchObserver | None = None,
) -> LiveBatch:
    """An engine that follows the API server and writes what its sessions decide."""
    engine, observer = following.engine, observer or NoBatchObserver()
    engine.handle.writes = ways.writes
    engine.handle.share = options.share
    engine.handle.queues_admit = options.queues_admit
    engine.handle.last_choices = LastChoices()
    made = (following, ways.writes, ways.statuses, ways.speaker)
    aside = Aside()
    engine.waiting = aside.waiting
    return LiveBatch(
        engine,
        following,
        Binds(*made, observer, clock, at_once=options.writes_at_once),
        PodEvictions(*made, observer, clock),
        GateRemovals(ways.client, ways.writes, clock),
        Telling(following, ways.client, ways.writes, ways.statuses, ways.speaker, ways.groups, ways.queues),
        ways.writes,
        clock,
        period_s=options.schedule_period.seconds,
        slice_s=options.slice_s,
        observer=observer,
        aside=aside,
        after_session=[StrandedClaims(following, ways.writes, clock).look],
        prepare=partial(make_queues, ways.client, ways.queues, clock, _known(following), options.default_queue),
    )
