"""Answers one question: can this class work as a plugin, and if not, what was meant?

Asked when a class enters a registry: a misspelt attribute would never be read, a method with other parameters would
fail at the first pod, one that cannot be awaited only when the pod is bound. What a method has to look like is read off
the protocols in `plugin`. Cost: some hundred microseconds for each class, once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from bayplan.config.plugin_args import ArgsKind
from bayplan.config.suggestions import nearly
from bayplan.errors import PluginError
from bayplan.framework.api import plugin as protocols
from bayplan.framework.api.extension_points import ATTEMPT_ORDER

FILE_MODULE_PREFIX = "bayplan_plugin_file_"
"""How modules are called that were made from a plugin file."""

TRAIT_FLAGS = (
    "binds_every_pod",
    "compares_candidates",
    "filters_where_it_binds",
    "looks_at_pods",
    "per_row",
    "reserves_what_it_filters",
    "signs_anew",
)
"""What a plugin says about itself by True or False."""

_OTHER_DATA = ("ARGS", "cured_by", "on_mutate_error")
MUTATE_BIND_REQUEST = "mutate_bind_request"
"""A method that belongs to no point of a configuration: every plugin of a profile that has it is asked."""

_REQUIRED_METHODS = (
    ("reserve", ("unreserve",)),
    ("add_pod", ("remove_pod",)),
    ("remove_pod", ("add_pod",)),
    ("add_pod", ("pre_filter",)),
    ("normalize", ("score_nodes", "score")),
    ("normalize_placements", ("score_placement",)),
    ("sort_key", ("less",)),
)
"""Methods that are of no use on their own: who has the first needs one of the others."""


@dataclass(frozen=True, slots=True)
class MethodSignature:
    """How a method is called: with what, whether it is awaited, and whether it may answer bit by bit."""

    parameters: tuple[str, ...]
    awaited: bool = False
    yields: bool = False

    @property
    def source_text(self) -> str:
        return f"({', '.join(self.parameters)})"


def _read_method_signatures() -> dict[str, MethodSignature]:
    shapes = {name: MethodSignature(("cycle",)) for name in ("depends_on", "scores_depend_on", "sits_out")}
    shapes |= {
        "score_groups": MethodSignature(("cycle", "nodes")),
        "close": MethodSignature(()),
        MUTATE_BIND_REQUEST: MethodSignature(("cycle", "node_name")),
    }
    for protocol in vars(protocols).values():
        if getattr(protocol, "_is_protocol", False) and protocol is not protocols.QueuedPod:
            for name, method in vars(protocol).items():
                if inspect.isfunction(method) and not name.startswith("_"):
                    parameters = tuple(inspect.signature(method).parameters)[1:]
                    answers = str(inspect.signature(method).return_annotation)
                    shapes[name] = MethodSignature(
                        parameters, inspect.iscoroutinefunction(method), answers.startswith("Iter")
                    )
    return shapes


METHOD_SIGNATURES = _read_method_signatures()

_checked_classes: WeakSet[type[Any]] = WeakSet()
"""Classes that were found in order: tests build a thousand clusters with the same ones."""


def check_plugin(plugin: Any) -> None:
    """`PluginError` with what is wrong and what was meant, if the class cannot work."""
    name = getattr(plugin, "name", None)
    if not isinstance(plugin, type) or not isinstance(name, str) or not name:
        raise PluginError(f"{plugin_location(plugin)} has no `name`; a plugin class sets one, as in name = 'RackAware'")
    if plugin in _checked_classes:
        return
    for fault in _contract_errors(plugin):
        raise PluginError(f'plugin "{name}" ({plugin_location(plugin)}) {fault}')
    _checked_classes.add(plugin)


def _contract_errors(plugin: type[Any]) -> Iterator[str]:
    """What is wrong with a class that has a name, the most telling first."""
    members = _defined_members(plugin)
    for attribute, value in members.items():
        if attribute in METHOD_SIGNATURES or attribute == "factory":
            yield from _method_error(plugin, attribute, value)
        elif attribute in TRAIT_FLAGS and not isinstance(value, bool):
            yield f"has {attribute} = {_value_text(value)}; it takes True or False"
    if not any(point.extended_by(plugin) for point in ATTEMPT_ORDER) and MUTATE_BIND_REQUEST not in members:
        yield from misspelled_attributes(plugin)
        methods = ", ".join(method for point in ATTEMPT_ORDER for method in point.methods)
        yield f"extends no point; it needs one of: {methods}"
    for method, partners in _REQUIRED_METHODS:
        if method in members and not any(partner in members for partner in partners):
            yield f"has {method} but not {' or '.join(partners)}; it needs both"
    yield from misspelled_attributes(plugin)
    args = members.get("ARGS")
    if args is not None and not isinstance(args, ArgsKind):
        yield f"has ARGS = {_value_text(args)}; it takes an ArgsKind or nothing"


def _defined_members(plugin: type[Any]) -> dict[str, Any]:
    """What authors wrote: the class with its bases, as it stands there."""
    members: dict[str, Any] = {}
    for base in reversed(plugin.__mro__):
        if base is not object:
            members |= vars(base)
    return {name: value for name, value in members.items() if not name.startswith("_")}


def misspelled_attributes(plugin: type[Any]) -> Iterator[str]:
    """Attributes that are nearly one of ours: they would never be read, and nobody would notice."""
    methods, data = (*METHOD_SIGNATURES, "factory"), (*TRAIT_FLAGS, *_OTHER_DATA)
    for attribute, value in _defined_members(plugin).items():
        if attribute in methods or attribute in data or attribute == "name":
            continue
        is_method = callable(value) or isinstance(value, staticmethod | classmethod | property)
        meant = nearly(attribute, methods + data if is_method else data)
        if meant:
            yield f"has {'a method' if is_method else 'an attribute'} {attribute}; is {meant} meant?"


def _method_error(plugin: type[Any], attribute: str, value: Any) -> Iterator[str]:
    called: Callable[..., Any] = getattr(plugin, attribute)
    if not callable(called):
        yield f"has {attribute} = {_value_text(value)}; it takes a method, or leave it out"
        return
    if attribute == "factory":
        if not accepts_argument_count(called, 2):
            yield f"has factory{signature_text(called)}; it is called on the class as factory(args, handle)"
        return
    shape = METHOD_SIGNATURES[attribute]
    is_bound_later = inspect.isfunction(value)  # by the instance; static and class methods, and objects, are not
    if not accepts_argument_count(called, len(shape.parameters) + is_bound_later):
        wanted = f"(self{''.join(f', {each}' for each in shape.parameters)})" if is_bound_later else shape.source_text
        yield f"has a method {attribute}{signature_text(called)}; it is called as {attribute}{wanted}"
    yield from _call_style_error(attribute, inspect.unwrap(called), shape)


def _call_style_error(attribute: str, written: Callable[..., Any], shape: MethodSignature) -> Iterator[str]:
    waits = inspect.iscoroutinefunction(written) or inspect.isasyncgenfunction(written)
    if waits and not shape.awaited:
        yield f"has an async {attribute}; nothing waits at this point, so it is a plain def"
    elif shape.awaited and inspect.isfunction(written) and not inspect.iscoroutinefunction(written):
        yield f"has a plain {attribute}; it is awaited, so it is an async def"
    elif inspect.isgeneratorfunction(written) and not shape.yields:
        yield f"has a {attribute} with a yield in it; it returns its answer"


def accepts_argument_count(called: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many arguments; what does not tell is believed."""
    try:
        inspect.signature(called).bind(*[None] * count)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def signature_text(called: Callable[..., Any]) -> str:
    return f"({', '.join(str(each).split(':')[0].strip() for each in inspect.signature(called).parameters.values())})"


def _value_text(value: Any) -> str:
    if isinstance(value, staticmethod | classmethod | property) or inspect.isroutine(value):
        return "a method"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def plugin_location(plugin: Any) -> str:
    """Where a person finds the class: its file where it came from one, else its module."""
    module = sys.modules.get(getattr(plugin, "__module__", ""))
    if module is not None and module.__name__.startswith(FILE_MODULE_PREFIX):
        return f"{getattr(plugin, '__qualname__', plugin)} in {module.__file__}"
    return f"{getattr(plugin, '__module__', '?')}.{getattr(plugin, '__qualname__', repr(plugin))}"
