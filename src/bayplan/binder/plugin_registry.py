"""Which plugins does the binder run, in which order, with which arguments?

Known plugins are a value: the shipped ones, with those of packages and folders. A configuration maps names to
`{enabled, priority, arguments}`; what it does not name is as shipped, plugin by plugin and key by key, and what it
names and nobody knows is an error at start. Higher priority comes first, equal ones by name. A plugin that builds on
another says so, and is refused without it or before it.
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
"""The attribute in which a class may say which arguments it takes; others are then refused at start."""
RUNS_AFTER = "runs_after"
"""The attribute in which a class may name plugins that it builds on: they run, and before it."""


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """How a plugin is to run."""

    enabled: bool = True
    priority: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PluginChange:
    """What is to be otherwise about a plugin; None: nothing. Arguments replace the shipped ones as a whole."""

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
    """Classes by name, and how each runs unless told otherwise."""

    classes: Mapping[str, type[Any]] = field(default_factory=dict)
    defaults: Mapping[str, PluginChoice] = field(default_factory=dict)

    def with_plugins(self, *plugins: type[Any]) -> BinderPlugins:
        """These as well; a name can be taken only once."""
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
            takes_any = hasattr(self.classes[name], FACTORY)  # nobody else is given them
            taken = getattr(self.classes[name], ARGUMENT_NAMES, tuple(arguments) if takes_any else ())
            for unknown in (each for each in arguments if each not in taken):
                what = f'binder plugin "{name}" has no argument "{unknown}"'
                raise ConfigError(f"{what}; {_closest_name(unknown, taken)}", stage=STAGE)
        as_shipped = {name: self.defaults.get(name, PluginChoice()) for name in self.classes}
        choices = {name: changes.get(name, PluginChange()).applied_to(shipped) for name, shipped in as_shipped.items()}
        enabled = [(name, choice) for name, choice in choices.items() if choice.enabled]
        ordered = sorted(enabled, key=lambda each: (-each[1].priority, each[0]))
        for fault in self._order_errors(ordered):
            raise ConfigError(fault, stage=STAGE)
        return ordered

    def build(self, handle: BinderHandle, changes: Mapping[str, PluginChange] | None = None) -> list[Any]:
        """The plugins in running order."""
        return [self._build_plugin(name, choice, handle) for name, choice in self.choices(changes)]

    def _order_errors(self, ordered: list[tuple[str, PluginChoice]]) -> Iterator[str]:
        """What is wrong for those who build on others."""
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
            made = factory(dict(choice.arguments), handle) if factory is not None else plugin()
        except (Exception, SystemExit) as fault:
            raise PluginError(f'binder plugin "{name}" cannot be made: {type(fault).__name__}: {fault}') from fault
        if getattr(made, "name", None) != name:
            what = f'its factory returned {made!r}, which is no plugin called "{name}"'
            raise PluginError(f'binder plugin "{name}" cannot be made: {what}')
        return made


def read_choices(tree: Mapping[str, Any], place: str) -> dict[str, PluginChange]:
    """Changes as a file has them: by name, `enabled`, `priority` and `arguments`."""
    found = {}
    for name, given in tree.items():
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"{place}: {name} is no object; write enabled, priority or arguments below it", stage=STAGE
            )
        for key, value in given.items():
            kinds = {"enabled": bool, "priority": int, "arguments": Mapping}
            if key not in kinds:
                raise ConfigError(f'{place}: {name} has no "{key}"; write enabled, priority or arguments', stage=STAGE)
            if not isinstance(value, kinds[key]) or (key == "priority" and isinstance(value, bool)):
                raise ConfigError(f"{place}: {name}.{key} is {value!r}, which it cannot be", stage=STAGE)
        found[name] = PluginChange(**given)
    return found


def _closest_name(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f'did you mean "{near[0]}"?' if near else f"known are: {', '.join(sorted(known)) or 'none'}"


def check_binder_plugin(plugin: Any) -> None:
    """`PluginError` with what is wrong, if the class cannot work."""
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
        if isinstance(given := getattr(plugin, names, ()), str):
            yield f'has {names} = "{given}"; it takes several names, as in {names} = ("{given}",)'
    if getattr(plugin, ARGUMENT_NAMES, ()) and not hasattr(plugin, FACTORY):
        yield f"names arguments and has no {FACTORY}(arguments, handle) that takes them"


def _misspelled_attributes(plugin: type[Any]) -> Iterator[str]:
    """What is nearly called as one of ours would never be looked at, and nobody would notice."""
    known = (*STAGES, FACTORY, ARGUMENT_NAMES, RUNS_AFTER)
    for attribute in dir(plugin):
        if not attribute.startswith("_") and attribute not in known and (meant := nearly(attribute, known)):
            yield f"has {attribute}; is {meant} meant?"


def stages_of(plugin: type[Any]) -> Iterable[str]:
    """The stages of a plugin, for people."""
    return [stage for stage in STAGES if hasattr(plugin, stage)]
