"""Order of extenders, and their changes to the profiles.

Called once, before profiles are built. Resources that an extender manages and the scheduler ignores replace the
`ignoredResources` of NodeResourcesFit. Cost: linear in profiles and extenders.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.config.model import Configuration, ExtenderConfig, ProfileConfig
from bayplan.errors import ConfigError

_FIT_PLUGIN = "NodeResourcesFit"
PROFILE_STAGE = "profile"


def apply_extenders(configuration: Configuration) -> Configuration:
    """The configuration with its extenders in the order of calls and their ignored resources in every profile."""
    ordered = sort_extenders(configuration.extenders)
    ignored = _ignored_resources(configuration.extenders)
    profiles = configuration.profiles
    if ignored:
        profiles = tuple(_set_ignored_resources(profile, ignored) for profile in profiles)
    return replace(configuration, extenders=ordered, profiles=profiles)


def sort_extenders(extenders: tuple[ExtenderConfig, ...]) -> tuple[ExtenderConfig, ...]:
    """Ignorable extenders come last, so they see the nodes that all the rest left over."""
    return tuple(sorted(extenders, key=lambda extender: extender.ignorable))


def _ignored_resources(extenders: tuple[ExtenderConfig, ...]) -> tuple[str, ...]:
    return tuple(
        resource.name
        for extender in extenders
        for resource in extender.managed_resources
        if resource.ignored_by_scheduler
    )


def _set_ignored_resources(profile: ProfileConfig, resources: tuple[str, ...]) -> ProfileConfig:
    """The profile whose NodeResourcesFit ignores exactly these resources: the list is replaced, not extended."""
    if _FIT_PLUGIN not in profile.plugin_config:
        message = "couldn't build extenders: can't find NodeResourcesFitArgs in plugin config"
        raise ConfigError(message, stage=PROFILE_STAGE)
    args = replace(profile.plugin_config[_FIT_PLUGIN], ignored_resources=resources)
    return replace(profile, plugin_config={**profile.plugin_config, _FIT_PLUGIN: args})
