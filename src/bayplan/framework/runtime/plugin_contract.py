"""Checks whether a class can work as a plugin, and suggests corrections.

Runs when a class enters a registry. Without it a misspelled attribute would be ignored, a method with wrong parameters
would fail at the first pod, and a method that cannot be awaited would fail at the first binding. The expected methods
are read from the protocols in `api.plugin`. Cost: some hundred microseconds for each class, once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any
from weakref import WeakSet

from bayplan.config.plugin_args import ArgsKind
from bayplan.config.suggestions import nearly
from bayplan.errors import PluginError
from bayplan.framework.api import plugin as protocols
from bayplan.framework.api.extension_points import ATTEMPT_ORDER
from bayplan.framework.api.plugin_traits import PluginTraits

FILE_MODULE_PREFIX = "bayplan_plugin_file_"
"""Prefix of the names of modules loaded from a plugin file."""

_TRAITS = {each.name: each.default for each in fields(PluginTraits)}
_DATA = ("ARGS", "events_to_register", "on_mutate_error", "traits")
MUTATE_BIND_REQUEST = "mutate_bind_request"
"""A method that belongs to no extension point: it is called on every plugin of a profile that has it."""

_REQUIRED_METHODS = (
    ("reserve", ("unreserve",)),
    ("add_pod", ("remove_pod",)),
    ("remove_pod", ("add_pod",)),
    ("add_pod", ("pre_filter",)),
    ("normalize", ("score_nodes", "score")),
    ("normalize_placements", ("score_placement",)),
    ("sort_key", ("less",)),
)
"""Methods that need one of the other methods."""


@dataclass(frozen=True, slots=True)
class MethodSignature:
    """How a method is called: its parameters, whether it is awaited, and whether it may be a generator."""

    parameters: tuple[str, ...]
    awaited: bool = False
    yields: bool = False

    @property
    def source_text(self) -> str:
        return f"({', '.join(self.parameters)})"


def _read_method_signatures() -> dict[str, MethodSignature]:
    signatures = {"close": MethodSignature(()), MUTATE_BIND_REQUEST: MethodSignature(("cycle", "node_name"))}
    for protocol in vars(protocols).values():
        if getattr(protocol, "_is_protocol", False) and protocol is not protocols.QueuedPod:
            for name, method in vars(protocol).items():
                if inspect.isfunction(method) and not name.startswith("_"):
                    parameters = tuple(inspect.signature(method).parameters)[1:]
                    return_type = str(inspect.signature(method).return_annotation)
                    signatures[name] = MethodSignature(
                        parameters, inspect.iscoroutinefunction(method), return_type.startswith("Iter")
                    )
    return signatures


METHOD_SIGNATURES = _read_method_signatures()

_checked_classes: WeakSet[type[Any]] = WeakSet()
"""Classes that passed the check. Tests build a thousand clusters with the same classes."""


def check_plugin(plugin: Any) -> None:
    """Raise a `PluginError` with the correction if the class cannot work."""
    name = getattr(plugin, "name", None)
    if not isinstance(plugin, type) or not isinstance(name, str) or not name:
        raise PluginError(f"{plugin_location(plugin)} has no `name`; a plugin class sets one, as in name = 'RackAware'")
    if plugin in _checked_classes:
        return
    for fault in _contract_errors(plugin):
        raise PluginError(f'plugin "{name}" ({plugin_location(plugin)}) {fault}')
    _checked_classes.add(plugin)


def _contract_errors(plugin: type[Any]) -> Iterator[str]:
    """Yield the errors of a class that has a name, the most specific first."""
    members = _defined_members(plugin)
    for attribute, value in members.items():
        if attribute in METHOD_SIGNATURES or attribute == "factory":
            yield from _method_error(plugin, attribute, value)
        elif attribute == "traits":
            yield from _trait_errors(value)
    if not any(point.extended_by(plugin) for point in ATTEMPT_ORDER) and MUTATE_BIND_REQUEST not in members:
        yield from misspelled_attributes(plugin)
        methods = ", ".join(method for point in ATTEMPT_ORDER for method in point.methods)
        yield f"extends no point; it needs one of: {methods}"
    for first, partners in _REQUIRED_METHODS:
        if first in members and not any(partner in members for partner in partners):
            yield f"has {first} but not {' or '.join(partners)}; it needs both"
    yield from misspelled_attributes(plugin)
    args = members.get("ARGS")
    if args is not None and not isinstance(args, ArgsKind):
        yield f"has ARGS = {_value_text(args)}; it takes an ArgsKind or nothing"


def _defined_members(plugin: type[Any]) -> dict[str, Any]:
    """Return the attributes as written in the class and its bases."""
    members: dict[str, Any] = {}
    for base in reversed(plugin.__mro__):
        if base is not object:
            members |= vars(base)
    return {name: value for name, value in members.items() if not name.startswith("_")}


def misspelled_attributes(plugin: type[Any]) -> Iterator[str]:
    """Yield attributes whose names are similar to a known one. They would be ignored silently."""
    methods, members = (*METHOD_SIGNATURES, "factory"), _defined_members(plugin)
    for attribute, value in members.items():
        if attribute in methods or attribute in _DATA or attribute == "name":
            continue
        is_method = callable(value) or isinstance(value, staticmethod | classmethod | property)
        known = (*_DATA, *_TRAITS, *(methods if is_method else ()))
        suggestion = attribute if attribute in _TRAITS else nearly(attribute, known)
        if suggestion in _TRAITS and getattr(members.get("traits"), suggestion, None) is not value:
            suggestion = f"traits = PluginTraits({suggestion}=...)"
        if suggestion and suggestion != attribute:
            yield f"has {'a method' if is_method else 'an attribute'} {attribute}; is {suggestion} meant?"


def _trait_errors(traits: Any) -> Iterator[str]:
    if not isinstance(traits, PluginTraits):
        yield f"has traits = {_value_text(traits)}; it takes a PluginTraits"
        return
    for name, default in _TRAITS.items():
        value = getattr(traits, name)
        if default is None and callable(value):
            parameters = ("plugin", "cycle", "nodes") if name == "score_groups" else ("plugin", "cycle")
            yield from _function_error("trait", name, value, MethodSignature(parameters))
        elif not isinstance(value, type(default)):
            expected = "a function, or leave it out" if default is None else "True or False"
            yield f"has a trait {name}={_value_text(value)}; it takes {expected}"


def _method_error(plugin: type[Any], attribute: str, value: Any) -> Iterator[str]:
    method: Callable[..., Any] = getattr(plugin, attribute)
    if not callable(method):
        yield f"has {attribute} = {_value_text(value)}; it takes a method, or leave it out"
        return
    if attribute == "factory":
        if not accepts_argument_count(method, 2):
            yield f"has factory{signature_text(method)}; it is called on the class as factory(args, handle)"
        return
    signature = METHOD_SIGNATURES[attribute]
    if inspect.isfunction(value):  # bound by the instance; static and class methods, and callable objects, are not
        signature = replace(signature, parameters=("self", *signature.parameters))
    yield from _function_error("method", attribute, method, signature)


def _function_error(
    kind: str, attribute: str, function: Callable[..., Any], signature: MethodSignature
) -> Iterator[str]:
    if not accepts_argument_count(function, len(signature.parameters)):
        called = f"{attribute}{signature.source_text}"
        yield f"has a {kind} {attribute}{signature_text(function)}; it is called as {called}"
    function = inspect.unwrap(function)
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async and not signature.awaited:
        yield f"has an async {attribute}; this method is not awaited, so define it with a plain def"
    elif signature.awaited and inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
        yield f"has a plain {attribute}; this method is awaited, so define it with async def"
    elif inspect.isgeneratorfunction(function) and not signature.yields:
        yield f"has a {attribute} with a yield; it must return its result"


def accepts_argument_count(method: Callable[..., Any], count: int) -> bool:
    """Whether it accepts this number of arguments. True if the signature is unknown."""
    try:
        inspect.signature(method).bind(*[None] * count)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def signature_text(method: Callable[..., Any]) -> str:
    return f"({', '.join(str(each).split(':')[0].strip() for each in inspect.signature(method).parameters.values())})"


def _value_text(value: Any) -> str:
    if isinstance(value, staticmethod | classmethod | property) or inspect.isroutine(value):
        return "a method"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def plugin_location(plugin: Any) -> str:
    """Return the location of the class: its file if it comes from a plugin file, else its module."""
    module = sys.modules.get(getattr(plugin, "__module__", ""))
    if module is not None and module.__name__.startswith(FILE_MODULE_PREFIX):
        return f"{getattr(plugin, '__qualname__', plugin)} in {module.__file__}"
    return f"{getattr(plugin, '__module__', '?')}.{getattr(plugin, '__qualname__', repr(plugin))}"
