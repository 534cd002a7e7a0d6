"""Builds a profile: the plugins of each extension point, their order and their weights.

Called once for each profile at start. MultiPoint entries are expanded to every point that a plugin extends; plugins
listed explicitly at a point take precedence. Messages are kube-scheduler's, because users search for them. The profile
is stored in its final form, so it can be displayed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.config.model import MULTI_POINT, PluginRef, PluginSet
from bayplan.config.model import ProfileConfig as ProfileConfig
from bayplan.errors import BayplanError, ConfigError, PluginError
from bayplan.framework.api.events import ClusterEventWithHint
from bayplan.framework.api.extension_points import (
    ATTEMPT_ORDER,
    BIND,
    BUILD_ORDER,
    FILTER,
    PLACEMENT_GENERATE,
    PLACEMENT_SCORE,
    PRE_FILTER,
    QUEUE_SORT,
    SCORE,
    ExtensionPoint,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin_error import exception_text
from bayplan.framework.api.plugin_traits import traits_of
from bayplan.framework.runtime.bind_request_mutation import SKIP, Mutator
from bayplan.framework.runtime.event_registrations import registered_events
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.framework.runtime.registry import RegisteredPlugin, Registry

log = logging.getLogger(__name__)

_MAX_INT64 = 2**63 - 1
_ALL = "*"


@dataclass(frozen=True, slots=True)
class Profile:
    """A completed profile: the plugins of each point in the order of execution."""

    scheduler_name: str
    plugins: Mapping[ExtensionPoint, tuple[Any, ...]]
    weights: Mapping[str, int]
    placement_weights: Mapping[str, int]
    instances: Mapping[str, Any]
    # plugin -> events that may help a pod it rejected
    registered_events: Mapping[str, tuple[ClusterEventWithHint, ...]]
    percentage_of_nodes_to_score: int | None = None
    mutators: tuple[Mutator, ...] = ()
    """The functions that add annotations to BindRequests, in the order of the configuration."""

    def at(self, point: ExtensionPoint) -> tuple[Any, ...]:
        return self.plugins.get(point, ())

    def describe(self) -> dict[str, list[str]]:
        """Return names by point, score plugins as `name:weight`. Printed by `config show`."""
        return {point.key: list(self._names(point)) for point in ATTEMPT_ORDER if self.at(point)}

    def close(self) -> None:
        close_all(self.instances.values())

    def _names(self, point: ExtensionPoint) -> Iterator[str]:
        weights = {SCORE: self.weights, PLACEMENT_SCORE: self.placement_weights}.get(point)
        for plugin in self.at(point):
            yield plugin.name if weights is None else f"{plugin.name}:{weights[plugin.name]}"


def close_all(plugins: Iterable[Any]) -> None:
    """Close every plugin that has a `close`. A failure is logged and does not affect the remaining plugins."""
    for plugin in plugins:
        try:
            getattr(plugin, "close", lambda: None)()
        except PLUGIN_EXCEPTIONS:
            log.exception("closing plugin %s failed", plugin.name)


def build_profile(
    config: ProfileConfig, registry: Registry, handle: Handle, existing: Mapping[str, Any] | None = None
) -> Profile:
    """Build the profile of a configuration. Raises `ConfigError` with kube-scheduler's message if it is invalid.

    `existing`: plugins by name that are reused.
    """
    existing = existing or {}
    builder = _ProfileBuilder(config, registry, handle, existing)
    try:
        return builder.build()
    except BayplanError:
        close_all(plugin for name, plugin in builder.instances.items() if name not in existing)
        raise


class _ProfileBuilder:
    def __init__(self, config: ProfileConfig, registry: Registry, handle: Handle, existing: Mapping[str, Any]) -> None:
        self._config = config
        self._registry = registry
        self._handle = handle
        self._existing = existing
        self.instances: dict[str, Any] = {}

    def build(self) -> Profile:
        self._build_plugins()
        explicit = {point: self._explicit(point) for point in BUILD_ORDER}
        plugins = {point: self._expand_multi_point(point, explicit[point]) for point in BUILD_ORDER}
        if not plugins[PLACEMENT_GENERATE]:
            # Without a generate plugin, only score plugins that are named explicitly are in the profile.
            plugins[PLACEMENT_SCORE] = explicit[PLACEMENT_SCORE]
        for point in (PRE_FILTER, FILTER):
            plugins[point] += [name for name in self._filtering_binders(plugins[BIND]) if name not in plugins[point]]
        self._check_counts(plugins)
        self._warn_about_unreachable_binders(plugins[BIND])
        return Profile(
            scheduler_name=self._config.scheduler_name,
            plugins={point: tuple(self.instances[name] for name in names) for point, names in plugins.items()},
            weights=self._weights(SCORE, "score plugins: total score of Score plugins could overflow"),
            placement_weights=self._weights(
                PLACEMENT_SCORE, "placement score plugins: total score of PlacementScore plugins could overflow"
            ),
            instances=self.instances,
            registered_events={name: self._registered_events(plugin) for name, plugin in self.instances.items()},
            percentage_of_nodes_to_score=self._config.percentage_of_nodes_to_score,
            mutators=tuple(self._mutators()),
        )

    def _mutators(self) -> Iterator[Mutator]:
        """Yield the `mutate_bind_request` functions of all plugins, in the order of the configuration."""
        listed = dict.fromkeys(ref.name for point in (None, *BUILD_ORDER) for ref in self._plugin_set(point).enabled)
        for name in listed:
            plugin = self.instances.get(name)
            method = getattr(plugin, "mutate_bind_request", None)
            if method is not None:
                try:
                    yield Mutator(name, method, getattr(plugin, "on_mutate_error", SKIP))
                except PluginError as fault:
                    raise self._config_error(str(fault)) from fault

    def _build_plugins(self) -> None:
        """Build every plugin that a list names. Unknown names are found later, point by point."""
        listed_names = {ref.name for point in (*BUILD_ORDER, None) for ref in self._plugin_set(point).enabled}
        for entry in self._registry:
            if entry.name in listed_names:
                existing = self._existing.get(entry.name)
                self.instances[entry.name] = self._build_plugin(entry) if existing is None else existing

    def _build_plugin(self, entry: RegisteredPlugin) -> Any:
        args = self._config.plugin_config.get(entry.name)
        try:
            plugin = entry.build(args, self._handle)
            if getattr(plugin, "name", None) != entry.name:
                raise PluginError(f'its factory returned {plugin!r}, which is not a plugin with name "{entry.name}"')
            return plugin
        except BayplanError as fault:
            raise self._config_error(f'initializing plugin "{entry.name}": {fault}') from fault
        except PLUGIN_EXCEPTIONS as fault:
            raise self._config_error(
                f'initializing plugin "{entry.name}": {type(fault).__name__}: {exception_text(fault)}'
            ) from fault

    def _registered_events(self, plugin: Any) -> tuple[ClusterEventWithHint, ...]:
        try:
            return registered_events(plugin)
        except BayplanError as fault:
            raise self._config_error(str(fault)) from fault

    def _plugin_set(self, point: ExtensionPoint | None) -> PluginSet:
        """Return the configured lists of a point; None: multiPoint."""
        return self._config.plugins.at(point.key if point else MULTI_POINT)

    def _explicit(self, point: ExtensionPoint) -> list[str]:
        names: list[str] = []
        for ref in self._plugin_set(point).enabled:
            entry = self._registered_plugin(ref, point)
            if not entry.extends(point):
                raise self._config_error(f'plugin "{ref.name}" does not extend {point.interface} plugin')
            if ref.name in names:
                raise self._already_enabled(ref, point)
            names.append(ref.name)
        return names

    def _expand_multi_point(self, point: ExtensionPoint, explicit: Sequence[str]) -> list[str]:
        """Return overrides first, then plugins of multiPoint only, then plugins listed only at this point."""
        disabled = {ref.name for ref in self._plugin_set(point).disabled}
        if _ALL in disabled:
            return list(explicit)
        overrides: set[str] = set()
        inherited: list[str] = []
        for ref in self._plugin_set(None).enabled:
            entry = self._registered_plugin(ref, point)
            if not entry.extends(point) or ref.name in disabled:
                continue
            if ref.name in explicit:
                overrides.add(ref.name)
            elif ref.name in inherited:
                raise self._already_enabled(ref, point)
            else:
                inherited.append(ref.name)
        return [
            *(name for name in explicit if name in overrides),
            *inherited,
            *(name for name in explicit if name not in overrides),
        ]

    def _filtering_binders(self, binders: Iterable[str]) -> Iterator[str]:
        """Yield Bind plugins that must also filter, whatever the configuration lists at Filter."""
        return (name for name in binders if traits_of(self.instances[name]).filters_before_binding)

    def _registered_plugin(self, ref: PluginRef, point: ExtensionPoint) -> RegisteredPlugin:
        entry = self._registry.get(ref.name)
        if entry is None:
            raise self._config_error(f'{point.interface} "{ref.name}" does not exist')
        return entry

    def _weights(self, point: ExtensionPoint, overflow: str) -> dict[str, int]:
        """Return weights by plugin. The first mention of a plugin decides; 0 or no weight means 1."""
        weights: dict[str, int] = {}
        total = 0
        for ref in (*self._plugin_set(point).enabled, *self._plugin_set(None).enabled):
            entry = self._registry.get(ref.name)
            if entry is None or not entry.extends(point) or ref.name in weights:
                continue
            weight = ref.weight or 1
            if weight * 100 > _MAX_INT64 - total or total < 0:
                raise self._config_error(overflow)
            weights[ref.name] = weight
            total += weight * 100
        return weights

    def _check_counts(self, plugins: Mapping[ExtensionPoint, Sequence[str]]) -> None:
        profile_text = f'profile with scheduler name "{self._config.scheduler_name}"'
        if len(plugins[QUEUE_SORT]) != 1:
            raise self._config_error(
                f"only one queue sort plugin required for {profile_text}, but got {len(plugins[QUEUE_SORT])}"
            )
        if not plugins[BIND]:
            raise self._config_error(f"at least one bind plugin is needed for {profile_text}")
        if len(plugins[PLACEMENT_GENERATE]) > 1:
            raise self._config_error(f"at most one placement generate plugin is allowed for {profile_text}")

    def _warn_about_unreachable_binders(self, binders: Sequence[str]) -> None:
        """Warn about Bind plugins that can never run. kube-scheduler accepts this, but it is not intended."""
        for position, name in enumerate(binders[:-1], 1):
            if traits_of(self.instances[name]).binds_every_pod:
                log.warning(
                    'profile "%s": %s binds every pod, and %s behind it never runs; disable %s at multiPoint or bind',
                    self._config.scheduler_name,
                    name,
                    ", ".join(binders[position:]),
                    name,
                )
                return

    @staticmethod
    def _already_enabled(ref: PluginRef, point: ExtensionPoint) -> ConfigError:
        return ConfigError(f'plugin "{ref.name}" already registered as "{point.interface}"', stage="profile")

    @staticmethod
    def _config_error(text: str) -> ConfigError:
        return ConfigError(text, stage="profile")
