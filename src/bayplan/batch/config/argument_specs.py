"""Declared arguments of plugins and actions, and the check of configured arguments against them.

Plugins and actions declare arguments in the class attribute `takes`; without it they are not checked. Called by
configuration checks before anything runs. Sessions read arguments through `Arguments`, which warns about unusable
values but does not detect unknown names. Cost: for each unknown name, a comparison with every declared name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, get_args, get_origin, get_type_hints

from bayplan.batch.config.arguments import Arguments
from bayplan.codec.go_duration import DurationError, parse_duration

_SIMILARITY_CUTOFF = 0.75


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its name, its type and its default.

    A name can end in a placeholder, as in `binpack.resources.<resource>`; with `listed_in` it is read only for names
    that the other argument lists. `kind` is a plain type, `timedelta` for a text such as 5m, or a type for
    `Arguments.get`. A map with `fields` has exactly these keys.
    """

    name: str
    kind: Any
    default: Any = None
    fields: tuple[Argument, ...] = ()
    listed_in: str = ""
    no_effect_reason: str = ""
    """Why the argument has no effect: set for names that Volcano accepts and Bayplan ignores."""

    @property
    def prefix(self) -> str:
        """The part before the placeholder; "" without one."""
        return self.name.partition("<")[0] if self.name.endswith(">") else ""

    def matches(self, key: str) -> bool:
        return key.startswith(self.prefix) and key != self.prefix if self.prefix else key == self.name

    def suggestion_for(self, key: str) -> str:
        return self.prefix + key.rpartition(".")[2] if self.prefix else self.name


def argument_specs_of(owner: object) -> tuple[Argument, ...] | None:
    """The declared arguments of a plugin or an action; None without a declaration."""
    found: tuple[Argument, ...] | None = getattr(owner, "takes", None)
    return found


def argument_problems(owner: str, takes: Sequence[Argument], configured: Mapping[str, Any]) -> Iterator[str]:
    """Configured arguments that are not read, or not as written: one message each."""
    for key, value in configured.items():
        found = next((each for each in takes if each.matches(key)), None)
        if found is None:
            yield (
                f"{owner}: {key!r} is not an argument and is "
                f"ignored{did_you_mean(key, [each.suggestion_for(key) for each in takes])}"
            )
        elif found.no_effect_reason:
            yield f"{owner}: {key} has no effect: {found.no_effect_reason}"
        elif found.listed_in and (rest := key.removeprefix(found.prefix)) not in _listed_names(
            configured, found.listed_in
        ):
            yield f"{owner}: {key} is not read, because {found.listed_in} does not list {rest}"
        else:
            yield from _value_problems(owner, found, key, value)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown word: a suggestion, or ""."""
    close = get_close_matches(word, known, n=1, cutoff=_SIMILARITY_CUTOFF)
    return f"; did you mean {close[0]}?" if close else ""


def _listed_names(configured: Mapping[str, Any], name: str) -> list[str]:
    names = configured.get(name)
    return [each.strip() for each in names.split(",")] if isinstance(names, str) else []


def _value_problems(owner: str, argument: Argument, key: str, value: Any) -> Iterator[str]:
    if argument.fields and isinstance(value, Mapping):
        yield from argument_problems(f"{owner}: {key}", argument.fields, value)
        return
    arguments = Arguments({key: value}, owner=owner)
    _read_argument(arguments, argument, key)
    yield from arguments.warnings
    for where, field, known in _unknown_keys(argument.kind, value, key):
        yield f"{owner}: {where}: {field!r} is an unknown key and is ignored{did_you_mean(field, known)}"


def _read_argument(arguments: Arguments, argument: Argument, key: str) -> None:
    kind, default = argument.kind, argument.default
    if kind is int:
        arguments.get_int(key, default)
    elif kind is float:
        arguments.get_float(key, default)
    elif kind is bool:
        arguments.get_bool(key, default)
    elif kind in (str, timedelta):
        text = arguments.get_str(key, default or "")
        if kind is timedelta and text:
            _read_duration(arguments, key, text)
    else:
        arguments.get(key, kind)


def _read_duration(arguments: Arguments, key: str, text: str) -> None:
    try:
        parse_duration(text)
    except DurationError as fault:
        arguments.warn(f"{key}: {fault}; write it like 1h30m")


def _unknown_keys(kind: Any, value: Any, where: str) -> Iterator[tuple[str, str, list[str]]]:
    """Keys inside a value that its type does not have: path, key and the known keys."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is dict and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _unknown_keys(inner[1], each, f"{where}.{key}")
    elif origin is list and isinstance(value, list):
        for position, each in enumerate(value):
            yield from _unknown_keys(inner[0], each, f"{where}[{position}]")
    elif dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        fields = {_camel(each.name): hints[each.name] for each in dataclasses.fields(kind)}
        folded = {name.lower(): name for name in fields}
        for key, each in value.items():
            name = folded.get(str(key).lower())
            if name is None:
                yield where, str(key), list(fields)
            else:
                yield from _unknown_keys(fields[name], each, f"{where}.{name}")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
