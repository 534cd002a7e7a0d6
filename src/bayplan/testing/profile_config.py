"""Which configuration runs these plugins on a small cluster? Asked once a harness.

Without a configuration of the author's own it is the default profile with the plugins added at every point that they
extend, or a profile of nothing but them. There is one queue order, so a plugin that brings its own takes the place of
the shipped one. The shipped binder never skips a pod, so it is asked after those of the plugins.
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
"""Who serves the points that a profile cannot do without."""


def registry_with(plugins: Sequence[type[Any]]) -> Registry:
    """The shipped plugins and these; a shipped one may be among them."""
    registry = _default_registry()
    known = {entry.plugin for entry in registry}
    return registry.with_plugins(*(plugin for plugin in plugins if plugin not in known))


@cache
def _default_registry() -> Registry:
    """A registry never changes, and a property builds a hundred harnesses."""
    return default_plugins()


def config_text(config: ConfigInput) -> str:
    """A configuration as the text of a file; a mapping need not say what kind it is."""
    return config if isinstance(config, str) else json.dumps({"apiVersion": API_VERSION, "kind": KIND, **config})


def config_text_for(
    entries: Sequence[RegisteredPlugin], *, args: Mapping[str, Any], weights: Mapping[str, int], only: bool = False
) -> str:
    """The text of a configuration that runs these plugins."""
    names = [entry.name for entry in entries]
    for what, given in (("args", args), ("weights", weights)):
        strangers = sorted(given.keys() - set(names))
        if strangers:
            raise UsageError(f"{what} name {strangers[0]}, which is not among the plugins ({', '.join(names)})")
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
