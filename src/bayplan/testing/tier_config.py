"""Which configuration of the batch engine runs these plugins on a small cluster? Asked once a harness.

Without one of the author's own the plugins make a tier of their own before the built-in tiers, so that whatever they
say counts: later tiers are asked about victims, votes and starving only where the first has no opinion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bayplan.batch.actions import default_actions
from bayplan.batch.config.scheduler_conf import (
    BatchConfiguration,
    PluginOption,
    Tier,
    load_default_conf,
)
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.errors import UsageError
from bayplan.testing.batch_builders import make_option

TierEntry = str | type[Any] | PluginOption
"""A plugin in a tier that is built by hand."""


def plugin_set_with(plugins: Sequence[type[Any]]) -> BatchPluginSet:
    """The shipped plugins and these; a shipped one may be among them."""
    shipped = _default_plugin_set()
    return shipped.with_plugins(
        *(each for each in dict.fromkeys(plugins) if shipped.get(_plugin_name(each)) is not each)
    )


@cache
def _default_plugin_set() -> BatchPluginSet:
    return default_batch_plugins()


def action_set_with(actions: Sequence[str | type[Any]]) -> ActionSet:
    """The shipped actions and the classes among these. A session runs them in the order given."""
    return default_actions().with_classes(*(each for each in actions if isinstance(each, type)))


def build_configuration(
    plugins: Sequence[type[Any]],
    *,
    actions: Sequence[str | type[Any]],
    tiers: Sequence[Sequence[TierEntry]] | None,
    args: Mapping[str, Mapping[str, Any]],
    only: bool,
) -> BatchConfiguration:
    """What runs: tiers that were built by hand, or else the plugins before, or without, the built-in tiers."""
    if tiers is not None:
        if args or only:
            raise UsageError("tiers say everything themselves; leave out args and only, and use make_option")
        chosen = tuple(tuple(_to_option(each) for each in tier) for tier in tiers)
        _check_known_plugins(chosen, plugin_set_with([*plugins, *plugin_classes(tiers)]))
    else:
        own = tuple(
            make_option(each, arguments=args.get(getattr(each, "name", ""))).with_default_flags() for each in plugins
        )
        _check_argument_names(args, own)
        chosen = ((own,) if own else ()) + (() if only else _default_tiers(own))
    return BatchConfiguration(actions=_action_names(actions), tiers=chosen)


def plugin_classes(tiers: Sequence[Sequence[TierEntry]] | None) -> list[type[Any]]:
    """The plugins that stand in tiers as classes."""
    return [each for tier in tiers or () for each in tier if isinstance(each, type)]


def _check_known_plugins(tiers: tuple[Tier, ...], known: BatchPluginSet) -> None:
    for option in (each for tier in tiers for each in tier):
        if option.name not in known:
            raise UsageError(
                f'there is no plugin "{option.name}"; give its class in `plugins` as well, or mend the name'
            )


def _to_option(listed: TierEntry) -> PluginOption:
    return listed if isinstance(listed, PluginOption) else make_option(listed)


def _default_tiers(own: Tier) -> tuple[Tier, ...]:
    """The built-in tiers without those that the author looks at."""
    names = {option.name for option in own}
    return tuple(tuple(option for option in tier if option.name not in names) for tier in load_default_conf().tiers)


def _check_argument_names(args: Mapping[str, Any], own: Tier) -> None:
    names = [option.name for option in own]
    strangers = sorted(args.keys() - set(names))
    if strangers:
        raise UsageError(f"args name {strangers[0]}, which is not among the plugins ({', '.join(names)})")


def _action_names(actions: Sequence[str | type[Any]]) -> tuple[str, ...]:
    known = action_set_with(actions)
    names = tuple(_plugin_name(each) for each in actions)
    for name in names:
        if name not in known:
            raise UsageError(f'there is no action "{name}"; there are: {", ".join(known)}, or give the class of yours')
    return names


def check_plugins_listed(plugins: Sequence[type[Any]], configuration: BatchConfiguration) -> None:
    """A plugin that stands in no tier is never asked, and a test of it would pass whatever it does."""
    listed = {option.name for option in configuration.plugins}
    for plugin in plugins:
        if _plugin_name(plugin) not in listed:
            raise UsageError(f'the configuration has "{_plugin_name(plugin)}" in no tier; name it in one')


def _plugin_name(given: str | type[Any]) -> str:
    return given if isinstance(given, str) else str(getattr(given, "name", ""))
