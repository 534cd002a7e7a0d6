"""Builds the cluster of a scenario: decodes the objects, fills a cache, builds an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.config.load import load, load_default
from bayplan.config.model import Configuration
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import KINDS, convert
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import NodeColumns, RowVector

T = TypeVar("T", bound=KubeObject)

NOW = datetime(2027, 1, 1, tzinfo=UTC)
"""After all times in scenarios: a pod that has not started is younger than all that have."""

_KIND_OF_LIST = {kind.plural: kind.struct for kind in reversed(KINDS) if kind.struct not in (Node, Pod)}
"""Kind by list name in lower case; nodes and pods are handled separately."""


def decode_objects(scenario: dict[str, Any], key: str, struct: type[T]) -> list[T]:
    return [convert(raw, struct) for raw in scenario.get(key) or ()]


def load_scenario_configuration(scenario: dict[str, Any], registry: Registry) -> Configuration:
    """The scenario's configuration, or the default one."""
    text = scenario.get("config")
    kinds = registry.args_kinds
    return load_default(args_kinds=kinds) if text is None else load(text, args_kinds=kinds)


def build_scenario_cache(scenario: dict[str, Any]) -> Cache:
    cache = Cache()
    for node in decode_objects(scenario, "nodes", Node):
        cache.upsert(node)
    for key in scenario:
        struct = _KIND_OF_LIST.get(key.lower())
        for item in decode_objects(scenario, key, struct) if struct is not None else ():
            cache.upsert(item)
    for pod in decode_objects(scenario, "pods", Pod):
        cache.upsert(pod)
    return cache


def first_by_name(columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
    """Tie break: the node whose name comes first."""
    names = [columns.names[row] for row in rows]
    return names.index(min(names))


def build_scenario_engine(
    scenario: dict[str, Any], registry: Registry, *, share: bool = True, clock: ManualClock | None = None
) -> PodEngine:
    """An engine on the scenario's cluster that breaks ties by name."""
    return PodEngine(
        load_scenario_configuration(scenario, registry),
        registry,
        build_scenario_cache(scenario),
        clock=clock or ManualClock(NOW),
        chance=random.Random(0),
        tie_break=first_by_name,
        share=share,
    )
