"""Builds the configuration of a batch harness.

Without a configuration by the author the plugins form a tier before the built-in tiers, so that their results count.
Later tiers are consulted about victims, votes and starving jobs only if the first one has no opinion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bayplan.batch.actions import default_actions
from bayplan.batch.config.scheduler_conf import BatchConfiguration, PluginOption, Tier, load_default_conf
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.errors import UsageError
from bayplan.testing.batch_builders import make_option

TierEntry = str | type[Any] | PluginOption
"""An entry of a tier that a test defines."""


def plugin_set_with(plugins: Sequence[type[Any]]) -> BatchPluginSet:
    """The built-in plugins and these; a built-in one may be among them."""
    built_in = _default_plugin_set()
    return built_in.with_plugins(
        *(each for each in dict.fromkeys(plugins) if built_in.get(_plugin_name(each)) is not each)
    )


@cache
def _default_plugin_set() -> BatchPluginSet:
    return default_batch_plugins()


def action_set_with(actions: Sequence[str | type[Any]]) -> ActionSet:
    """The built-in actions and the classes among these. A session runs them in the given order."""
    return default_actions().with_classes(*(each for each in actions if isinstance(each, type)))


def build_configuration(
    plugins: Sequence[type[Any]],
    *,
    actions: Sequence[str | type[Any]],
    tiers: Sequence[Sequence[TierEntry]] | None,
    args: Mapping[str, Mapping[str, Any]],
    only: bool,
) -> BatchConfiguration:
    """Build the tiers: those of the test, or the plugins before, or without, the built-in tiers."""
    if tiers is not None:
        if args or only:
            raise UsageError("tiers excludes args and only; leave them out, and use make_option")
        chosen = tuple(tuple(_to_option(each) for each in tier) for tier in tiers)
        _check_known_plugins(chosen, plugin_set_with([*plugins, *plugin_classes(tiers)]))
    else:
        tested = tuple(
            make_option(each, arguments=args.get(getattr(each, "name", ""))).with_default_flags() for each in plugins
        )
        _check_argument_names(args, tested)
        chosen = ((tested,) if tested else ()) + (() if only else _default_tiers(tested))
    return BatchConfiguration(actions=_action_names(actions), tiers=chosen)


def plugin_classes(tiers: Sequence[Sequence[TierEntry]] | None) -> list[type[Any]]:
    """The plugins that tiers name by class."""
    return [each for tier in tiers or () for each in tier if isinstance(each, type)]


def _check_known_plugins(tiers: tuple[Tier, ...], known: BatchPluginSet) -> None:
    for option in (each for tier in tiers for each in tier):
        if option.name not in known:
            raise UsageError(f'there is no plugin "{option.name}"; add its class to `plugins`, or correct the name')


def _to_option(entry: TierEntry) -> PluginOption:
    return entry if isinstance(entry, PluginOption) else make_option(entry)


def _default_tiers(tested: Tier) -> tuple[Tier, ...]:
    """The built-in tiers without the plugins under test."""
    names = {option.name for option in tested}
    return tuple(tuple(option for option in tier if option.name not in names) for tier in load_default_conf().tiers)


def _check_argument_names(args: Mapping[str, Any], tested: Tier) -> None:
    names = [option.name for option in tested]
    unknown = sorted(args.keys() - set(names))
    if unknown:
        raise UsageError(f"args name {unknown[0]}, which is not among the plugins ({', '.join(names)})")


def _action_names(actions: Sequence[str | type[Any]]) -> tuple[str, ...]:
    known = action_set_with(actions)
    names = tuple(_plugin_name(each) for each in actions)
    for name in names:
        if name not in known:
            raise UsageError(f'unknown action "{name}"; expected one of {", ".join(known)}, or the class of an action')
    return names


def check_plugins_listed(plugins: Sequence[type[Any]], configuration: BatchConfiguration) -> None:
    """Raise an error for a plugin in no tier: it would never be called, and every test of it would pass."""
    listed = {option.name for option in configuration.plugins}
    for plugin in plugins:
        if _plugin_name(plugin) not in listed:
            raise UsageError(f'no tier of the configuration has "{_plugin_name(plugin)}"; add it to one')


def _plugin_name(plugin: str | type[Any]) -> str:
    return plugin if isinstance(plugin, str) else str(getattr(plugin, "name", ""))
