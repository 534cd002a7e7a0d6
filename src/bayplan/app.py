"""Composition root: turns configuration, cluster and clock into a running engine. Wiring and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from bayplan.cache import Cache
from bayplan.clock import Clock, SystemClock
from bayplan.config.load import load, load_default
from bayplan.config.model import Configuration
from bayplan.framework.discovery import with_installed_plugins, with_plugins_from
from bayplan.framework.registry import Registry
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.plugins import default_plugins
from bayplan.scheduler.engine import PodEngine

__all__ = ["build_engine", "configured", "filled_cache", "known_plugins"]


def known_plugins(folders: Iterable[Path] = (), *, trust_writable: bool = False) -> Registry:
    """Every plugin that can be named in a configuration: shipped, installed, and from folders."""
    registry = with_installed_plugins(default_plugins())
    for folder in folders:
        registry = with_plugins_from(registry, folder, trust_writable=trust_writable)
    return registry


def configured(text: str | None, registry: Registry) -> Configuration:
    """A configuration from the text of a file, or the default one."""
    kinds = registry.args_kinds
    return load(text, args_kinds=kinds) if text is not None else load_default(args_kinds=kinds)


def build_engine(
    configuration: Configuration,
    registry: Registry,
    cache: Cache,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
) -> PodEngine:
    """A pod engine on a cache. `seed` makes ties fall the same way every time."""
    return PodEngine(configuration, registry, cache, clock=clock or SystemClock(), chance=random.Random(seed))


def filled_cache(objects: Iterable[KubeObject]) -> Cache:
    """A cache that has seen the objects; pods without a node are left to whoever schedules them."""
    cache = Cache()
    for item in objects:
        if isinstance(item, Node):
            cache.add_node(item)
        elif isinstance(item, Pod):
            if item.spec.node_name and item.status.phase not in ("Succeeded", "Failed"):
                cache.add_pod(item)
        else:
            cache.put(item)
    return cache
