"""Puts a profile together: which plugin runs at which point, in which order, with which weight.

Called once a profile at start. MultiPoint entries are expanded to every point that a plugin extends; what is listed
at a point explicitly wins. The texts are kube-scheduler's, because people search for them; the result is kept as it
runs, so that it can be shown.
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
from bayplan.framework.runtime.bind_request_mutation import SKIP, Mutator
from bayplan.framework.runtime.event_registrations import registered_events
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.framework.runtime.registry import RegisteredPlugin, Registry

log = logging.getLogger(__name__)

_MAX_INT64 = 2**63 - 1
_ALL = "*"


@dataclass(frozen=True, slots=True)
class Profile:
    """A completed profile: the plugins of each point in running order."""

    scheduler_name: str
    plugins: Mapping[ExtensionPoint, tuple[Any, ...]]
    weights: Mapping[str, int]
    placement_weights: Mapping[str, int]
    instances: Mapping[str, Any]
    registered_events: Mapping[
        str, tuple[ClusterEventWithHint, ...]
    ]  # plugin -> events that may help a pod it rejected
    percentage_of_nodes_to_score: int | None = None
    mutators: tuple[Mutator, ...] = ()
    """Who has something to say about bind requests, in the order in which they are listed."""

    def at(self, point: ExtensionPoint) -> tuple[Any, ...]:
        return self.plugins.get(point, ())

    def describe(self) -> dict[str, list[str]]:
        """Names by point, score plugins as `name:weight`: what `config show` prints."""
        return {point.key: list(self._names(point)) for point in ATTEMPT_ORDER if self.at(point)}

    def close(self) -> None:
        """Let every plugin release what it holds."""
        close_all(self.instances.values())

    def _names(self, point: ExtensionPoint) -> Iterator[str]:
        weights = {SCORE: self.weights, PLACEMENT_SCORE: self.placement_weights}.get(point)
        for plugin in self.at(point):
            yield plugin.name if weights is None else f"{plugin.name}:{weights[plugin.name]}"


def close_all(plugins: Iterable[Any]) -> None:
    """Close every plugin that can be closed; one that fails is logged and does not keep the others from it."""
    for plugin in plugins:
        try:
            getattr(plugin, "close", lambda: None)()
        except PLUGIN_EXCEPTIONS:
            log.exception("plugin %s failed while it was closed", plugin.name)


def build_profile(
    config: ProfileConfig, registry: Registry, handle: Handle, kept: Mapping[str, Any] | None = None
) -> Profile:
    """The profile that a configuration describes; `ConfigError` in kube-scheduler's words when it cannot be.

    `kept`: plugins by name that need not be made anew.
    """
    kept = kept or {}
    builder = _ProfileBuilder(config, registry, handle, kept)
    try:
        return builder.build()
    except BayplanError:
        close_all(plugin for name, plugin in builder.instances.items() if name not in kept)
        raise


class _ProfileBuilder:
    def __init__(self, config: ProfileConfig, registry: Registry, handle: Handle, kept: Mapping[str, Any]) -> None:
        self._config = config
        self._registry = registry
        self._handle = handle
        self._kept = kept
        self.instances: dict[str, Any] = {}

    def build(self) -> Profile:
        self._build_plugins()
        explicit = {point: self._explicit(point) for point in BUILD_ORDER}
        plugins = {point: self._expand_multi_point(point, explicit[point]) for point in BUILD_ORDER}
        if not plugins[PLACEMENT_GENERATE]:
            # Where nobody makes placements, only who was named is there to compare them.
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
        """Plugins that are asked about bind requests: all that the profile has, as they are listed."""
        listed = dict.fromkeys(ref.name for point in (None, *BUILD_ORDER) for ref in self._plugin_set(point).enabled)
        for name in listed:
            plugin = self.instances.get(name)
            method = getattr(plugin, "mutate_bind_request", None)
            if method is not None:
                try:
                    yield Mutator(name, method, getattr(plugin, "on_mutate_error", SKIP))
                except PluginError as fault:
                    raise self._config_error(str(fault)) from fault

    # construction -----------------------------------------------------------------------------------------------

    def _build_plugins(self) -> None:
        """Make every plugin that some list names. Names nobody knows are found later, point by point."""
        wanted = {ref.name for point in (*BUILD_ORDER, None) for ref in self._plugin_set(point).enabled}
        for entry in self._registry:
            if entry.name in wanted:
                kept = self._kept.get(entry.name)
                self.instances[entry.name] = self._build_plugin(entry) if kept is None else kept

    def _build_plugin(self, entry: RegisteredPlugin) -> Any:
        args = self._config.plugin_config.get(entry.name)
        try:
            plugin = entry.build(args, self._handle)
            if getattr(plugin, "name", None) != entry.name:
                raise PluginError(f'its factory returned {plugin!r}, which is no plugin called "{entry.name}"')
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

    # points -----------------------------------------------------------------------------------------------------

    def _plugin_set(self, point: ExtensionPoint | None) -> PluginSet:
        """The configured lists of a point; None: multiPoint."""
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
        """Overrides first, then what multiPoint alone brings, then what is only listed here."""
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
        """Those that must have their say about nodes, though a file names them at Bind alone, or lists all filters."""
        return (name for name in binders if getattr(self.instances[name], "filters_where_it_binds", False))

    def _registered_plugin(self, ref: PluginRef, point: ExtensionPoint) -> RegisteredPlugin:
        entry = self._registry.get(ref.name)
        if entry is None:
            raise self._config_error(f'{point.interface} "{ref.name}" does not exist')
        return entry

    # weights and counts -----------------------------------------------------------------------------------------

    def _weights(self, point: ExtensionPoint, overflow: str) -> dict[str, int]:
        """The first mention of a plugin decides; 0 or nothing means 1."""
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
        whose = f'profile with scheduler name "{self._config.scheduler_name}"'
        if len(plugins[QUEUE_SORT]) != 1:
            raise self._config_error(
                f"only one queue sort plugin required for {whose}, but got {len(plugins[QUEUE_SORT])}"
            )
        if not plugins[BIND]:
            raise self._config_error(f"at least one bind plugin is needed for {whose}")
        if len(plugins[PLACEMENT_GENERATE]) > 1:
            raise self._config_error(f"at most one placement generate plugin is allowed for {whose}")

    def _warn_about_unreachable_binders(self, binders: Sequence[str]) -> None:
        """No mistake in kube-scheduler's eyes, but nobody lists a binder that is not to bind."""
        for place, name in enumerate(binders[:-1], 1):
            if getattr(self.instances[name], "binds_every_pod", False):
                log.warning(
                    'profile "%s": %s binds every pod, and %s behind it is never asked; '
                    "disable %s at multiPoint or bind",
                    self._config.scheduler_name,
                    name,
                    ", ".join(binders[place:]),
                    name,
                )
                return

    @staticmethod
    def _already_enabled(ref: PluginRef, point: ExtensionPoint) -> ConfigError:
        return ConfigError(f'plugin "{ref.name}" already registered as "{point.interface}"', stage="profile")

    @staticmethod
    def _config_error(text: str) -> ConfigError:
        return ConfigError(text, stage="profile")
