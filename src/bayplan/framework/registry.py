"""Which plugins exist: a value built by a function, never a side effect of an import.

`default_plugins()` in `bayplan.plugins` gives the shipped ones; yours enter by the same door:
`default_plugins().with_plugins(RackAware)`. A plugin class may have `factory(args, handle)`; without one it is built
by calling the class. Classes are checked here, so that a misspelt method is found at registration and not at the
thousandth pod.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from bayplan.config.args import ArgsKind
from bayplan.errors import PluginError
from bayplan.framework.handle import Handle
from bayplan.framework.points import ATTEMPT_ORDER, Point

Factory = Callable[[Any, Handle], Any]

MODULE_OF_FILE = "bayplan_plugin_file_"
"""How modules are called that were made from a plugin file."""

_KNOWN_METHODS = (
    *(method for point in ATTEMPT_ORDER for method in point.methods),
    "add_pod",
    "remove_pod",
    "normalize",
    "unreserve",
    "pre_bind_preflight",
    "signature",
    "depends_on",
    "factory",
    "close",
    "cured_by",
    "normalize_placements",
)

_PARTNERS = (("reserve", "unreserve"), ("add_pod", "remove_pod"), ("remove_pod", "add_pod"))
"""Methods that undo one another: who has the first must have the second."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One known plugin: its name, its class, and what its arguments look like (None: not looked at)."""

    name: str
    plugin: type[Any]
    args: ArgsKind | None = None

    def build(self, args: Any, handle: Handle) -> Any:
        factory: Factory | None = getattr(self.plugin, "factory", None)
        return factory(args, handle) if factory is not None else self.plugin()

    def extends(self, point: Point) -> bool:
        return point.extended_by(self.plugin)


@dataclass(frozen=True, slots=True)
class Registry:
    """Plugins by name."""

    entries: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, *plugins: type[Any]) -> Registry:
        return cls().with_plugins(*plugins)

    def with_plugins(self, *plugins: type[Any]) -> Registry:
        """A registry with these as well. A name can be taken only once."""
        entries = dict(self.entries)
        for plugin in plugins:
            entry = _entry(plugin)
            if entry.name in entries:
                raise PluginError(
                    f'two plugins are called "{entry.name}": '
                    f"{home_of(entries[entry.name].plugin)} and {home_of(plugin)}; rename one of them"
                )
            entries[entry.name] = entry
        return Registry(entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def get(self, name: str) -> Entry | None:
        return self.entries.get(name)

    @property
    def args_kinds(self) -> dict[str, ArgsKind]:
        return {entry.name: entry.args for entry in self if entry.args is not None}


def _entry(plugin: type[Any]) -> Entry:
    name = getattr(plugin, "name", None)
    if not isinstance(plugin, type) or not isinstance(name, str) or not name:
        raise PluginError(f"{home_of(plugin)} has no `name`; a plugin class sets one, as in name = 'RackAware'")
    if not any(point.extended_by(plugin) for point in ATTEMPT_ORDER):
        methods = ", ".join(method for point in ATTEMPT_ORDER for method in point.methods)
        raise PluginError(f'plugin "{name}" ({home_of(plugin)}) extends no point; it needs one of: {methods}')
    for method, partner in _PARTNERS:
        if callable(getattr(plugin, method, None)) and not callable(getattr(plugin, partner, None)):
            raise PluginError(f'plugin "{name}" ({home_of(plugin)}) has {method} but not {partner}; it needs both')
    _refuse_misspelt(plugin, name)
    args = getattr(plugin, "ARGS", None)
    if args is not None and not isinstance(args, ArgsKind):
        raise PluginError(f'plugin "{name}" ({home_of(plugin)}): ARGS is {args!r}; it takes an ArgsKind or nothing')
    return Entry(name, plugin, args)


def _refuse_misspelt(plugin: type[Any], name: str) -> None:
    """A method that is nearly one of ours would never be called, and nobody would notice."""
    for attribute, value in vars(plugin).items():
        if attribute.startswith("_") or not callable(value) or attribute in _KNOWN_METHODS:
            continue
        meant = get_close_matches(attribute, _KNOWN_METHODS, n=1, cutoff=0.85)
        if meant:
            raise PluginError(f'plugin "{name}" ({home_of(plugin)}) has a method {attribute}; is {meant[0]} meant?')
    if hasattr(plugin, "add_pod") != hasattr(plugin, "remove_pod") or (
        hasattr(plugin, "add_pod") and not hasattr(plugin, "pre_filter")
    ):
        raise PluginError(
            f'plugin "{name}" ({home_of(plugin)}): add_pod, remove_pod and pre_filter go together: '
            "the first two keep the state up to date that the third one makes"
        )


def home_of(plugin: Any) -> str:
    """Where a person finds the class: its file where it came from one, else its module."""
    module = sys.modules.get(getattr(plugin, "__module__", ""))
    if module is not None and module.__name__.startswith(MODULE_OF_FILE):
        return f"{getattr(plugin, '__qualname__', plugin)} in {module.__file__}"
    return f"{getattr(plugin, '__module__', '?')}.{getattr(plugin, '__qualname__', repr(plugin))}"
