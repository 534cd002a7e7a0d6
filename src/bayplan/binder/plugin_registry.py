"""Registry of the binder's plugins: which run, in which order, and with which arguments.

The known plugins are a value: the shipped ones, and those of packages and folders. A configuration maps names to
`{enabled, priority, arguments}`. Unnamed plugins and keys keep their defaults; an unknown plugin is an error at start.
Plugins run by descending priority, then by name. A plugin that builds on another declares that; a configuration without
the other, or with the wrong order, is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from bayplan.binder.plugin import STAGES, BinderHandle
from bayplan.config.suggestions import nearly
from bayplan.errors import ConfigError, PluginError

STAGE = "binder"
FACTORY = "factory"
ARGUMENT_NAMES = "argument_names"
"""Class attribute with the names of the arguments that a plugin takes; unknown arguments are refused at start."""
RUNS_AFTER = "runs_after"
"""Class attribute with the names of plugins that must be enabled and run before."""


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """Whether and how a plugin runs."""

    enabled: bool = True
    priority: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PluginChange:
    """Configured changes of a plugin's defaults; None: no change. Arguments replace the default arguments as a
    whole."""

    enabled: bool | None = None
    priority: int | None = None
    arguments: Mapping[str, Any] | None = None

    def applied_to(self, shipped: PluginChoice) -> PluginChoice:
        return PluginChoice(
            shipped.enabled if self.enabled is None else self.enabled,
            shipped.priority if self.priority is None else self.priority,
            shipped.arguments if self.arguments is None else self.arguments,
        )


@dataclass(frozen=True, slots=True)
class BinderPlugins:
    """Classes by name, and the default choice of each."""

    classes: Mapping[str, type[Any]] = field(default_factory=dict)
    defaults: Mapping[str, PluginChoice] = field(default_factory=dict)

    def with_plugins(self, *plugins: type[Any]) -> BinderPlugins:
        """A registry with these plugins added. A name can be used only once."""
        classes = dict(self.classes)
        for plugin in plugins:
            check_binder_plugin(plugin)
            if plugin.name in classes:
                raise PluginError(f'two binder plugins are called "{plugin.name}"; rename one of them')
            classes[plugin.name] = plugin
        return BinderPlugins(classes, self.defaults)

    def choices(self, changes: Mapping[str, PluginChange] | None = None) -> list[tuple[str, PluginChoice]]:
        """Names and choices in running order."""
        changes = changes or {}
        for name, change in changes.items():
            if name not in self.classes:
                raise ConfigError(
                    f'there is no binder plugin "{name}"; {_closest_name(name, self.classes)}', stage=STAGE
                )
            arguments = change.arguments or {}
            takes_any = hasattr(self.classes[name], FACTORY)  # a class without a factory gets no arguments
            accepted = getattr(self.classes[name], ARGUMENT_NAMES, tuple(arguments) if takes_any else ())
            for unknown in (each for each in arguments if each not in accepted):
                what = f'binder plugin "{name}" has no argument "{unknown}"'
                raise ConfigError(f"{what}; {_closest_name(unknown, accepted)}", stage=STAGE)
        as_shipped = {name: self.defaults.get(name, PluginChoice()) for name in self.classes}
        choices = {name: changes.get(name, PluginChange()).applied_to(shipped) for name, shipped in as_shipped.items()}
        enabled = [(name, choice) for name, choice in choices.items() if choice.enabled]
        ordered = sorted(enabled, key=lambda each: (-each[1].priority, each[0]))
        for fault in self._order_errors(ordered):
            raise ConfigError(fault, stage=STAGE)
        return ordered

    def build(self, handle: BinderHandle, changes: Mapping[str, PluginChange] | None = None) -> list[Any]:
        """Build the plugins in running order."""
        return [self._build_plugin(name, choice, handle) for name, choice in self.choices(changes)]

    def _order_errors(self, ordered: list[tuple[str, PluginChoice]]) -> Iterator[str]:
        """Errors of plugins that build on plugins that are disabled or run later."""
        priorities = {name: choice.priority for name, choice in ordered}
        places = {name: place for place, name in enumerate(priorities)}
        for name in priorities:
            for basis in getattr(self.classes[name], RUNS_AFTER, ()):
                if basis not in priorities:
                    yield (
                        f'binder plugin "{name}" builds on "{basis}", which is not enabled; '
                        f"enable {basis}, or disable {name}"
                    )
                elif places[basis] > places[name]:
                    yield (
                        f'binder plugin "{name}" (priority {priorities[name]}) has to run after "{basis}" '
                        f"(priority {priorities[basis]}); give {name} a lower priority"
                    )

    def _build_plugin(self, name: str, choice: PluginChoice, handle: BinderHandle) -> Any:
        plugin = self.classes[name]
        factory = getattr(plugin, FACTORY, None)
        try:
            built = factory(dict(choice.arguments), handle) if factory is not None else plugin()
        except (Exception, SystemExit) as fault:
            raise PluginError(f'binder plugin "{name}" cannot be built: {type(fault).__name__}: {fault}') from fault
        if getattr(built, "name", None) != name:
            what = f'its factory returned {built!r}, which is no plugin called "{name}"'
            raise PluginError(f'binder plugin "{name}" cannot be built: {what}')
        return built


def read_choices(tree: Mapping[str, Any], place: str) -> dict[str, PluginChange]:
    """Parse changes from a file: by name, `enabled`, `priority` and `arguments`."""
    found = {}
    for name, change in tree.items():
        if not isinstance(change, Mapping):
            raise ConfigError(
                f"{place}: {name} is not an object; write enabled, priority or arguments below it", stage=STAGE
            )
        for key, value in change.items():
            kinds = {"enabled": bool, "priority": int, "arguments": Mapping}
            if key not in kinds:
                raise ConfigError(f'{place}: {name} has no "{key}"; write enabled, priority or arguments', stage=STAGE)
            if not isinstance(value, kinds[key]) or (key == "priority" and isinstance(value, bool)):
                expected = {"enabled": "true or false", "priority": "an integer", "arguments": "an object"}[key]
                raise ConfigError(f"{place}: {name}.{key} is {value!r}; use {expected}", stage=STAGE)
        found[name] = PluginChange(**change)
    return found


def _closest_name(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f'did you mean "{near[0]}"?' if near else f"known are: {', '.join(sorted(known)) or 'none'}"


def check_binder_plugin(plugin: Any) -> None:
    """Raise `PluginError` with the reason if the class cannot work."""
    name = getattr(plugin, "name", None)
    if not isinstance(plugin, type) or not isinstance(name, str) or not name:
        raise PluginError(f"{plugin!r} has no `name`; a binder plugin class sets one, as in name = 'nodestate'")
    for fault in _contract_errors(plugin):
        raise PluginError(f'binder plugin "{name}" {fault}')


def _contract_errors(plugin: type[Any]) -> Iterator[str]:
    stages = [stage for stage in STAGES if hasattr(plugin, stage)]
    yield from _misspelled_attributes(plugin)
    if not stages:
        yield f"has no stage; it needs one of: {', '.join(STAGES)}"
    for stage in stages:
        method = inspect.unwrap(getattr(plugin, stage))
        if not inspect.iscoroutinefunction(method):
            yield f"has a plain {stage}; it is awaited, so it is an async def"
            continue
        try:
            inspect.signature(method).bind(*[None] * 6)
        except TypeError:
            yield f"has another {stage} than {stage}(self, ctx, pod, node, bind_request, state)"

    for names in (ARGUMENT_NAMES, RUNS_AFTER):
        if isinstance(value := getattr(plugin, names, ()), str):
            yield f'has {names} = "{value}"; it takes several names, as in {names} = ("{value}",)'
    if getattr(plugin, ARGUMENT_NAMES, ()) and not hasattr(plugin, FACTORY):
        yield f"names arguments and has no {FACTORY}(arguments, handle) that takes them"


def _misspelled_attributes(plugin: type[Any]) -> Iterator[str]:
    """Attributes with nearly the name of a stage or option. They would be ignored silently."""
    known = (*STAGES, FACTORY, ARGUMENT_NAMES, RUNS_AFTER)
    for attribute in dir(plugin):
        if not attribute.startswith("_") and attribute not in known and (similar := nearly(attribute, known)):
            yield f"has {attribute}; is {similar} meant?"


def stages_of(plugin: type[Any]) -> Iterable[str]:
    return [stage for stage in STAGES if hasattr(plugin, stage)]
