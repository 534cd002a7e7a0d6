"""The plugins and actions that a configuration can name: values built by a function, without import side effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from bayplan.batch.config.arguments import Arguments
from bayplan.batch.diagnostics.plugin_faults import InvalidAnswer
from bayplan.batch.handle import BatchHandle
from bayplan.config.suggestions import nearly
from bayplan.errors import PluginError
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.framework.runtime.plugin_contract import plugin_location

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session

_EXPECTED_METHODS = {
    "batch plugin": ("on_session_open", "on_session_close", "factory"),
    "action": ("initialize", "execute", "uninitialize"),
}
"""The methods that the engine calls."""


@runtime_checkable
class BatchPlugin(Protocol):
    """A batch plugin: registers functions when a session opens; `on_session_close` is optional."""

    name: str

    def on_session_open(self, session: Session) -> None: ...


@runtime_checkable
class BatchAction(Protocol):
    """An action of a session. One object for the life of the process."""

    name: str

    def initialize(self) -> None: ...

    def execute(self, session: Session) -> Iterator[None] | None:
        """Run the action. A generator yields between statements only, so that other work can run."""
        ...

    def uninitialize(self) -> None: ...


class BatchPluginSet:
    """Plugin classes by name."""

    def __init__(self, plugins: Iterable[type[Any]] = ()) -> None:
        self._classes: dict[str, type[Any]] = {}
        for plugin in plugins:
            self._add(plugin)

    def _add(self, plugin: type[Any]) -> None:
        name = _name_of(plugin, "batch plugin", "costaware")
        if not callable(getattr(plugin, "on_session_open", None)):
            raise PluginError(
                f'batch plugin "{name}" ({plugin_location(plugin)}) has no on_session_open(session); '
                "it needs one to register with"
            )
        _reject_misspelt_methods(plugin, name, "batch plugin")
        if name in self._classes:
            raise PluginError(
                f'two batch plugins are called "{name}": '
                f"{plugin_location(self._classes[name])} and {plugin_location(plugin)}; rename one of them"
            )
        self._classes[name] = plugin

    def with_plugins(self, *plugins: type[Any]) -> BatchPluginSet:
        return BatchPluginSet((*self._classes.values(), *plugins))

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def get(self, name: str) -> type[Any] | None:
        return self._classes.get(name)

    def build(self, name: str, arguments: Arguments, handle: BatchHandle) -> Any:
        """Build a plugin for one session."""
        plugin = self._classes[name]
        factory = getattr(plugin, "factory", None)
        if factory is None:
            return plugin(arguments)
        built = factory(arguments, handle)
        if not hasattr(built, "on_session_open"):
            raise InvalidAnswer(built, "an object with on_session_open")
        return built


@dataclass(frozen=True, slots=True)
class ActionSet:
    """Actions by name."""

    actions: Mapping[str, BatchAction] = field(default_factory=dict)

    @classmethod
    def of(cls, *actions: BatchAction) -> ActionSet:
        return cls({action.name: action for action in actions})

    def with_actions(self, *actions: BatchAction) -> ActionSet:
        return ActionSet({**self.actions, **{action.name: action for action in actions}})

    def with_classes(self, *classes: type[Any]) -> ActionSet:
        """With one object of each class. Rejects duplicate names, because the classes are third-party code."""
        actions = dict(self.actions)
        for each in classes:
            name = _name_of(each, "action", "defragment")
            if name in actions:
                raise PluginError(
                    f'two actions are called "{name}": {plugin_location(type(actions[name]))} and '
                    f"{plugin_location(each)}; "
                    "rename one of them"
                )
            actions[name] = _instantiate(each, name)
        return ActionSet(actions)

    def __contains__(self, name: object) -> bool:
        return name in self.actions

    def __iter__(self) -> Iterator[str]:
        return iter(self.actions)

    def get(self, name: str) -> BatchAction | None:
        return self.actions.get(name)


def _name_of(candidate: Any, what: str, example: str) -> str:
    name = getattr(candidate, "name", None)
    if not isinstance(candidate, type) or not isinstance(name, str) or not name:
        raise PluginError(
            f"{plugin_location(candidate)} has no `name`; {what} classes set one, as in name = {example!r}"
        )
    return name


def _reject_misspelt_methods(candidate: type[Any], name: str, what: str) -> None:
    """Reject a method whose name is nearly an expected one, because the engine would never call it."""
    known = _EXPECTED_METHODS[what]
    for attribute, value in vars(candidate).items():
        if attribute.startswith("_") or not callable(value) or attribute in known:
            continue
        meant = nearly(attribute, known)
        if meant:
            place = plugin_location(candidate)
            raise PluginError(f'{what} "{name}" ({place}) has a method {attribute}; is {meant} meant?')


def _instantiate(candidate: type[Any], name: str) -> BatchAction:
    for method in _EXPECTED_METHODS["action"]:
        if not callable(getattr(candidate, method, None)):
            place = plugin_location(candidate)
            raise PluginError(
                f'action "{name}" ({place}) has no {method}(); it needs {", ".join(_EXPECTED_METHODS["action"])}'
            )
    try:
        action: BatchAction = candidate()
    except PLUGIN_EXCEPTIONS as fault:
        raise PluginError(
            f'action "{name}" ({plugin_location(candidate)}) cannot be created: {type(fault).__name__}: {fault}; '
            "the class is called without arguments"
        ) from fault
    return action
