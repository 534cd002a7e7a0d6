"""Builds the configuration of a pod engine harness.

Without a configuration by the author it is the default profile with the plugins added at every point that they extend,
or a profile of only these plugins. There is one queue sort plugin, so a plugin that sorts the queue replaces the
built-in one. The built-in bind plugin never skips, so it runs after those of the author.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bayplan.config.model import API_VERSION, KIND
from bayplan.errors import UsageError
from bayplan.framework.api.extension_points import BIND, QUEUE_SORT, ExtensionPoint
from bayplan.framework.runtime.registry import RegisteredPlugin, Registry
from bayplan.plugins import default_plugins

ConfigInput = str | Mapping[str, Any]

_QUEUE_SORT_PLUGIN, _BIND_PLUGIN = {"name": "PrioritySort"}, {"name": "DefaultBinder"}
"""Plugins of the points that every profile needs."""


def registry_with(plugins: Sequence[type[Any]]) -> Registry:
    """The built-in plugins and these; a built-in one may be among them."""
    registry = _default_registry()
    known = {entry.plugin for entry in registry}
    return registry.with_plugins(*(plugin for plugin in plugins if plugin not in known))


@cache
def _default_registry() -> Registry:
    """The registry never changes and is cached, because a property test builds a hundred harnesses."""
    return default_plugins()


def config_text(config: ConfigInput) -> str:
    """A configuration as the text of a file; a mapping may leave out apiVersion and kind."""
    return config if isinstance(config, str) else json.dumps({"apiVersion": API_VERSION, "kind": KIND, **config})


def config_text_for(
    entries: Sequence[RegisteredPlugin], *, args: Mapping[str, Any], weights: Mapping[str, int], only: bool = False
) -> str:
    """Text of a configuration that runs these plugins."""
    names = [entry.name for entry in entries]
    for keyword, given in (("args", args), ("weights", weights)):
        unknown = sorted(given.keys() - set(names))
        if unknown:
            raise UsageError(f"{keyword} name {unknown[0]}, which is not among the plugins ({', '.join(names)})")
    enabled = [{"name": name, **({"weight": weights[name]} if name in weights else {})} for name in names]
    profile = {
        "plugins": _only_plugins(entries, enabled) if only else _with_default_plugins(entries, enabled),
        "pluginConfig": [{"name": name, "args": value} for name, value in args.items()],
    }
    return config_text({"profiles": [profile]})


def _only_plugins(entries: Sequence[RegisteredPlugin], enabled: Sequence[Any]) -> dict[str, Any]:
    sorters = [] if _plugins_at(QUEUE_SORT, entries) else [_QUEUE_SORT_PLUGIN]
    return {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [*sorters, *enabled, _BIND_PLUGIN]}}


def _with_default_plugins(entries: Sequence[RegisteredPlugin], enabled: Sequence[Any]) -> dict[str, Any]:
    points: dict[str, Any] = {"multiPoint": {"enabled": list(enabled)}}
    if _plugins_at(QUEUE_SORT, entries):
        points[QUEUE_SORT.key] = {"disabled": [_QUEUE_SORT_PLUGIN]}
    binders = _plugins_at(BIND, entries)
    if binders:
        points[BIND.key] = {"disabled": [_BIND_PLUGIN], "enabled": [*binders, _BIND_PLUGIN]}
    return points


def _plugins_at(point: ExtensionPoint, entries: Sequence[RegisteredPlugin]) -> list[dict[str, str]]:
    return [{"name": entry.name} for entry in entries if entry.extends(point)]
