"""The registered plugins: a value built by a function, never a side effect of an import.

`default_plugins()` in `bayplan.plugins` returns the shipped plugins. External plugins are added the same way:
`default_plugins().with_plugins(RackAware)`. A plugin class may have `factory(args, handle)`; otherwise the class is
called without arguments. `plugin_contract` checks each class here, so a misspelled method is found at registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.config.plugin_args import ArgsKind
from bayplan.errors import PluginError
from bayplan.framework.api.extension_points import ExtensionPoint
from bayplan.framework.api.handle import Handle
from bayplan.framework.runtime.plugin_contract import check_plugin, plugin_location

PluginFactory = Callable[[Any, Handle], Any]


@dataclass(frozen=True, slots=True)
class RegisteredPlugin:
    """One registered plugin: its name, its class and the kind of its arguments (None: ignored)."""

    name: str
    plugin: type[Any]
    args: ArgsKind | None = None

    def build(self, args: Any, handle: Handle) -> Any:
        factory: PluginFactory | None = getattr(self.plugin, "factory", None)
        return factory(args, handle) if factory is not None else self.plugin()

    def extends(self, point: ExtensionPoint) -> bool:
        return point.extended_by(self.plugin)


@dataclass(frozen=True, slots=True)
class Registry:
    entries: Mapping[str, RegisteredPlugin] = field(default_factory=dict)

    @classmethod
    def of(cls, *plugins: type[Any]) -> Registry:
        return cls().with_plugins(*plugins)

    def with_plugins(self, *plugins: type[Any]) -> Registry:
        """Return a registry with these plugins added. Names must be unique."""
        entries = dict(self.entries)
        for plugin in plugins:
            entry = _registered_plugin(plugin)
            if entry.name in entries:
                raise PluginError(
                    f'two plugins have the name "{entry.name}": '
                    f"{plugin_location(entries[entry.name].plugin)} and {plugin_location(plugin)}; rename one of them"
                )
            entries[entry.name] = entry
        return Registry(entries)

    def __iter__(self) -> Iterator[RegisteredPlugin]:
        return iter(self.entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def get(self, name: str) -> RegisteredPlugin | None:
        return self.entries.get(name)

    @property
    def args_kinds(self) -> dict[str, ArgsKind]:
        return {entry.name: entry.args for entry in self if entry.args is not None}


def _registered_plugin(plugin: type[Any]) -> RegisteredPlugin:
    check_plugin(plugin)
    return RegisteredPlugin(plugin.name, plugin, getattr(plugin, "ARGS", None))
