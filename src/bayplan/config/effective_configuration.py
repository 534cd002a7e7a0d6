"""The configuration as a running scheduler uses it.

Used for `--write-config-to` and `/configz`, which show the values in force. kube-scheduler shows the two differently:
the file contains the profiles as they were built. Cost: linear in profiles and extenders.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.config.extenders import apply_extenders
from bayplan.config.model import Configuration, ProfileConfig


def effective_configuration(configuration: Configuration) -> Configuration:
    """The configuration with the changes and the timeouts of its extenders.

    The extenders keep the order of the file, not the order of calls.
    """
    extenders = tuple(replace(extender, http_timeout=extender.timeout) for extender in configuration.extenders)
    return replace(apply_extenders(configuration), extenders=extenders)


def built_configuration(configuration: Configuration) -> Configuration:
    """The configuration in force, with the arguments of the plugins that run, sorted by plugin name."""
    changed = effective_configuration(configuration)
    return replace(changed, profiles=tuple(map(_built_profile, changed.profiles)))


def _built_profile(profile: ProfileConfig) -> ProfileConfig:
    running = profile.plugins.enabled_names()
    read = {name: args for name, args in sorted(profile.plugin_config.items()) if name in running and args is not None}
    return replace(profile, plugin_config=read)
