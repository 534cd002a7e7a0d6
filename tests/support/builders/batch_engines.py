"""Complete engines for tests of sessions and actions: real framework plugins, a configuration as text, a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from bayplan.app import build_batch_engine
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.batch.engine import BatchEngine
from bayplan.batch.registry import BatchPluginSet
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from support.builders.batch import NOW, make_queue

GANGS = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: nodeorder
"""
"""Configuration that places gangs on feasible nodes, the least used first."""


def build_engine(
    *,
    conf: str = GANGS,
    nodes: Iterable[Node] = (),
    pods: Iterable[Pod] = (),
    objects: Iterable[KubeObject] = (),
    plugins: BatchPluginSet | None = None,
    seed: int = 0,
    cache: Cache | None = None,
) -> BatchEngine:
    """An engine on a cluster; the queue `q` always exists."""
    cache = Cache() if cache is None else cache
    for node in nodes:
        cache.add_node(node)
    for item in (make_queue(), *objects):
        cache.upsert(item)
    engine = build_batch_engine(
        load_conf(conf), cache, plugins=plugins, clock=ManualClock(NOW), chance=random.Random(seed)
    )
    for pod in pods:
        add_pod(engine, pod)
    return engine


def add_pod(engine: BatchEngine, pod: Pod) -> None:
    """Deliver the add event of a pod."""
    if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
        engine.cache.add_pod(pod)
    engine.handle_update(pod)


def account_rows(room: Any) -> dict[str, list[list[float]]]:
    """The accounts of all rows as plain numbers."""
    return {name: getattr(room, name).tolist() for name in ("idle", "used", "releasing", "pipelined")}
