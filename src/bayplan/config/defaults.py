"""Defaults of the scheduler configuration.

Applied once to a decoded configuration. The order of the default plugins matters: plugins run in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from bayplan.config.feature_gates import GANG_SCHEDULING, TOPOLOGY_AWARE_WORKLOAD_SCHEDULING
from bayplan.config.model import (
    DEFAULT_SCHEDULER_NAME,
    ClientConnection,
    Configuration,
    LeaderElection,
    PluginRef,
    Plugins,
    PluginSet,
    ProfileConfig,
    VersionedConfiguration,
    VersionedProfile,
)
from bayplan.config.plugin_args import ArgsKinds
from bayplan.config.schema import ConfigStruct, RawArgs

ALL = "*"
"""In a `disabled` list: every default plugin."""

DEFAULT_MULTIPOINT = (
    PluginRef("SchedulingGates"),
    PluginRef("PrioritySort"),
    PluginRef("NodeUnschedulable"),
    PluginRef("NodeName"),
    PluginRef("TaintToleration", 3),
    PluginRef("NodeAffinity", 2),
    PluginRef("NodePorts"),
    PluginRef("NodeResourcesFit", 1),
    PluginRef("VolumeRestrictions"),
    PluginRef("NodeVolumeLimits"),
    PluginRef("VolumeBinding"),
    PluginRef("VolumeZone"),
    PluginRef("PodTopologySpread", 2),
    PluginRef("InterPodAffinity", 2),
    # Before preemption: deallocating an idle claim is cheaper than evicting a pod.
    PluginRef("DynamicResources", 2),
    PluginRef("DefaultPreemption"),
    PluginRef("NodeResourcesBalancedAllocation", 1),
    PluginRef("ImageLocality", 1),
    PluginRef("DefaultBinder"),
    PluginRef("NodeDeclaredFeatures"),
)

DEFAULT_PLUGINS = Plugins(multi_point=PluginSet(enabled=DEFAULT_MULTIPOINT))


@dataclass(frozen=True, slots=True)
class ProfileDraft:
    """A profile with defaults, before validation: names may be missing, arguments may be repeated."""

    scheduler_name: str
    percentage_of_nodes_to_score: int | None
    plugins: Plugins
    plugin_config: tuple[tuple[str, Any], ...]

    def build(self) -> ProfileConfig:
        config = {name: args.value() if isinstance(args, RawArgs) else args for name, args in self.plugin_config}
        return ProfileConfig(self.scheduler_name, self.percentage_of_nodes_to_score, self.plugins, config)


@dataclass(frozen=True, slots=True)
class ConfigurationDraft:
    """A configuration with defaults, before validation."""

    settings: Configuration
    profiles: tuple[ProfileDraft, ...]

    def build(self) -> Configuration:
        return replace(self.settings, profiles=tuple(profile.build() for profile in self.profiles))


DecodedArgs = Mapping[tuple[int, int], ConfigStruct]
"""Decoded arguments by the position of their entry: profile and index."""


_GATED_PLUGINS = {
    GANG_SCHEDULING: (PluginRef("GangScheduling"),),
    TOPOLOGY_AWARE_WORKLOAD_SCHEDULING: (PluginRef("TopologyPlacementGenerator"), PluginRef("PodGroupPodsCount", 1)),
}


def default_plugins(gates: Collection[str]) -> Plugins:
    """The plugins of a profile without own plugin lists, given the enabled feature gates."""
    gated = [ref for gate, refs in _GATED_PLUGINS.items() if gate in gates for ref in refs]
    return Plugins(multi_point=PluginSet(enabled=(*DEFAULT_MULTIPOINT, *gated))) if gated else DEFAULT_PLUGINS


def apply_defaults(
    source: VersionedConfiguration, decoded: DecodedArgs, kinds: ArgsKinds, gates: Collection[str] = ()
) -> ConfigurationDraft:
    """Apply the defaults. Entries of `pluginConfig` that are not in `decoded` stay raw."""
    plugins = default_plugins(gates)
    sources = source.profiles or (VersionedProfile(),)
    if len(sources) == 1 and sources[0].scheduler_name is None:
        # With several profiles it is unclear which one is the default.
        sources = (replace(sources[0], scheduler_name=DEFAULT_SCHEDULER_NAME),)
    profiles = tuple(_profile(number, profile, decoded, kinds, plugins) for number, profile in enumerate(sources))
    return ConfigurationDraft(_settings(source), profiles)


def _settings(source: VersionedConfiguration) -> Configuration:
    given = {name: getattr(source, name) for name in Configuration.__struct_fields__ if name != "profiles"}
    given["leader_election"] = _default_zero_fields(
        source.leader_election, LeaderElection(), LEADER_ELECTION_DEFAULTED_FIELDS
    )
    given["client_connection"] = _default_zero_fields(
        source.client_connection, ClientConnection(), CLIENT_CONNECTION_DEFAULTED_FIELDS
    )
    if source.enable_contention_profiling is None:
        given["enable_contention_profiling"] = source.enable_profiling
    return Configuration(**given)


LEADER_ELECTION_DEFAULTED_FIELDS = (
    "lease_duration",
    "renew_deadline",
    "retry_period",
    "resource_lock",
    "resource_name",
    "resource_namespace",
)
CLIENT_CONNECTION_DEFAULTED_FIELDS = ("content_type", "qps", "burst")


def _default_zero_fields(given: Any, defaults: Any, names: tuple[str, ...]) -> Any:
    """Fill in defaults of fields where 0 and "" mean the default, too."""
    return replace(given, **{name: getattr(given, name) or getattr(defaults, name) for name in names})


def _profile(
    number: int, source: VersionedProfile, decoded: DecodedArgs, kinds: ArgsKinds, defaults: Plugins
) -> ProfileDraft:
    plugins = merge_plugins(defaults, source.plugins)
    given = tuple(
        (entry.name, _decoded_args(decoded.get((number, position), entry.args), entry.name, kinds))
        for position, entry in enumerate(source.plugin_config)
    )
    named = {name for name, _ in given}
    missing = sorted(plugins.enabled_names() & kinds.keys() - named)
    filled = tuple((name, kinds[name].default()) for name in missing)
    return ProfileDraft(source.scheduler_name or "", source.percentage_of_nodes_to_score, plugins, (*given, *filled))


def _decoded_args(args: ConfigStruct | RawArgs, plugin: str, kinds: ArgsKinds) -> Any:
    return args if isinstance(args, RawArgs) else kinds[plugin].apply_defaults(args)


def merge_plugins(defaults: Plugins, custom: Plugins | None) -> Plugins:
    """The default sets changed by the custom ones, each point by the same rule."""
    if custom is None:
        return defaults
    return Plugins(
        **{name: merge_plugin_set(getattr(defaults, name), getattr(custom, name)) for name in Plugins.__struct_fields__}
    )


def merge_plugin_set(defaults: PluginSet, custom: PluginSet) -> PluginSet:
    """A default that is listed again is replaced at its position; disabled plugins are removed; the rest is appended.

    A plugin that is both disabled and enabled moves to the end; this is how users reorder plugins.
    """
    # Weights of disabled entries have no meaning and would make equal sets differ.
    disabled = tuple(PluginRef(plugin.name) for plugin in (*custom.disabled, *defaults.disabled))
    names = {plugin.name for plugin in disabled}
    last = {plugin.name: position for position, plugin in enumerate(custom.enabled)}
    consumed: set[int] = set()
    enabled: list[PluginRef] = []
    for plugin in defaults.enabled if ALL not in names else ():
        if plugin.name in names:
            continue
        if (position := last.get(plugin.name)) is None:
            enabled.append(plugin)
        else:
            consumed.add(position)
            enabled.append(custom.enabled[position])
    enabled += [plugin for position, plugin in enumerate(custom.enabled) if position not in consumed]
    return PluginSet(tuple(enabled), disabled)
