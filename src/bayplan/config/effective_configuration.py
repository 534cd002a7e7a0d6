"""What does a configuration come to once a scheduler runs it?

Asked for `--write-config-to` and `/configz`, where people look for what counts, not for what they wrote. kube-scheduler
shows the two differently: the file is made of the profiles as they were built. Linear in profiles and extenders.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.config.extenders import apply_extenders
from bayplan.config.model import Configuration, ProfileConfig


def effective_configuration(configuration: Configuration) -> Configuration:
    """With what its extenders change in it; they stand as they were given, not as they are asked."""
    extenders = tuple(replace(extender, http_timeout=extender.timeout) for extender in configuration.extenders)
    return replace(apply_extenders(configuration), extenders=extenders)


def built_configuration(configuration: Configuration) -> Configuration:
    """In force, and of the arguments those that somebody reads: of plugins that run, by their names."""
    changed = effective_configuration(configuration)
    return replace(changed, profiles=tuple(map(_built_profile, changed.profiles)))


def _built_profile(profile: ProfileConfig) -> ProfileConfig:
    running = profile.plugins.enabled_names()
    read = {name: args for name, args in sorted(profile.plugin_config.items()) if name in running and args is not None}
    return replace(profile, plugin_config=read)
