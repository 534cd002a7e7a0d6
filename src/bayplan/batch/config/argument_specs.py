"""Which arguments does a plugin or an action read, and what does a file give it beside them?

Plugins and actions declare theirs as a class attribute, `takes`; one that has none is not judged. Asked by whoever
checks a file before anything runs: sessions read arguments through `Arguments`, which tells what it cannot use but
cannot know what nobody asks for. Cost: a comparison with every declared name for each name that is not one.
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
    """One argument: its name, its type and what counts where it is missing.

    A name may end in a placeholder, as in `binpack.resources.<resource>`; with `listed_in` it is read only for what the
    argument of that name lists. `kind` is a plain type, `timedelta` for a text such as 5m, or what `Arguments.get`
    takes; a map with `fields` has these and no others.
    """

    name: str
    kind: Any
    default: Any = None
    fields: tuple[Argument, ...] = ()
    listed_in: str = ""
    no_effect_reason: str = ""
    """Why it has no effect, if it has none: a name of Volcano's that is no mistake of who writes it."""

    @property
    def prefix(self) -> str:
        """What stands before the placeholder; nothing where there is none."""
        return self.name.partition("<")[0] if self.name.endswith(">") else ""

    def matches(self, key: str) -> bool:
        return key.startswith(self.prefix) and key != self.prefix if self.prefix else key == self.name

    def suggestion_for(self, key: str) -> str:
        """The name that a misspelt key may stand for."""
        return self.prefix + key.rpartition(".")[2] if self.prefix else self.name


def argument_specs_of(owner: object) -> tuple[Argument, ...] | None:
    """What a plugin or an action declares; None where it declares nothing."""
    found: tuple[Argument, ...] | None = getattr(owner, "takes", None)
    return found


def argument_problems(owner: str, takes: Sequence[Argument], given: Mapping[str, Any]) -> Iterator[str]:
    """What a file gives that is not read, or not as it is: a sentence each."""
    for key, value in given.items():
        found = next((each for each in takes if each.matches(key)), None)
        if found is None:
            yield (
                f"{owner}: {key!r} is no argument and is "
                f"ignored{did_you_mean(key, [each.suggestion_for(key) for each in takes])}"
            )
        elif found.no_effect_reason:
            yield f"{owner}: {key} has no effect: {found.no_effect_reason}"
        elif found.listed_in and (rest := key.removeprefix(found.prefix)) not in _listed_names(given, found.listed_in):
            yield f"{owner}: {key} is not read, because {found.listed_in} does not list {rest}"
        else:
            yield from _value_problems(owner, found, key, value)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown word: what it may be meant for, if anything."""
    close = get_close_matches(word, known, n=1, cutoff=_SIMILARITY_CUTOFF)
    return f"; did you mean {close[0]}?" if close else ""


def _listed_names(given: Mapping[str, Any], name: str) -> list[str]:
    names = given.get(name)
    return [each.strip() for each in names.split(",")] if isinstance(names, str) else []


def _value_problems(owner: str, argument: Argument, key: str, value: Any) -> Iterator[str]:
    if argument.fields and isinstance(value, Mapping):
        yield from argument_problems(f"{owner}: {key}", argument.fields, value)
        return
    arguments = Arguments({key: value}, owner=owner)
    _read_argument(arguments, argument, key)
    yield from arguments.warnings
    for where, field, known in _unknown_keys(argument.kind, value, key):
        yield f"{owner}: {where}: {field!r} is no key here and is ignored{did_you_mean(field, known)}"


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
    """Keys inside a value that no field of its type reads: where, which, and those that there are."""
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
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)
