"""`"%s of %d".format([x, y])`: the clauses of cel-go's string extension, in American English."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from bayplan.cel.errors import CelError
from bayplan.cel.libraries.conversions import to_string
from bayplan.cel.types.declarations import Overload, method
from bayplan.cel.types.types import DYN, STRING, list_of
from bayplan.cel.values.go_format import parse_float
from bayplan.cel.values.go_format import quote as quoted
from bayplan.cel.values.values import CelDuration, CelMap, CelTimestamp, TypeValue, Uint, is_list, type_name

DEFAULT_PRECISION = 6
MAX_PRECISION_DIGITS = 4
_SUPERSCRIPTS = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
_SPECIAL = ("NaN", "Infinity", "-Infinity")
_CLAUSE = re.compile(r"%(?:\.([0-9]*))?(.?)", re.DOTALL)

Clause = Callable[[Any], str]

STRING_CLAUSE = (
    "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, "
    "and timestamps, was given {}"
)
# Clause letter, accepted types, and the error for all other types.
REQUIREMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "d": (("int", "uint"), "decimal clause can only be used on integers, was given {}"),
    "f": (("double", "string"), "fixed-point clause can only be used on doubles, was given {}"),
    "e": (("double", "string"), "scientific clause can only be used on doubles, was given {}"),
    "b": (("int", "uint", "bool"), "only integers and bools can be formatted as binary, was given {}"),
    "x": (
        ("int", "uint", "string", "bytes"),
        "only integers, byte buffers, and strings can be formatted as hex, was given {}",
    ),
    "o": (("int", "uint"), "octal clause can only be used on integers, was given {}"),
}


def substitute_clauses(template: str, count: int, clause: Callable[[int, str, int | None], str]) -> tuple[str, int]:
    """The template with every clause replaced, and the number of arguments used; `ValueError` if it is malformed."""
    out: list[str] = []
    at = used = 0
    while at < len(template):
        if template.startswith("%%", at):
            out.append("%")
            at += 2
        elif template[at] != "%":
            out.append(template[at])
            at += 1
        else:
            if at + 1 >= len(template):
                raise ValueError(f"index {used} out of range" if used >= count else "unexpected end of string")
            if used >= count:
                raise ValueError(f"index {used} out of range")
            letter, precision, at = _clause(template, at)
            out.append(clause(used, letter, precision))
            used += 1
    return "".join(out), used


def _clause(template: str, at: int) -> tuple[str, int | None, int]:
    head = "could not parse formatting clause: "
    found = _CLAUSE.match(template, at)
    assert found is not None
    digits, letter = found.groups()
    if digits is not None and not letter:
        raise ValueError(head + "error while parsing precision: could not find end of precision specifier")
    if digits == "":
        reason = 'error while converting precision to integer: strconv.Atoi: parsing "": invalid syntax'
        raise ValueError(f"{head}error while parsing precision: {reason}")
    if letter not in "sdfebxXo":
        raise ValueError(f'{head}unrecognized formatting clause "{letter}"')
    if digits is not None and len(digits) > MAX_PRECISION_DIGITS:
        raise ValueError(f"{head}precision {digits} is too large")
    return letter, None if digits is None else int(digits), found.end()


def format_text(template: str, args: Any) -> str:
    def clause(index: int, letter: str, precision: int | None) -> str:
        try:
            return _render(args[index], letter, precision)
        except ValueError as error:
            raise ValueError(f"error during formatting: {error}") from None

    try:
        return substitute_clauses(template, len(args), clause)[0]
    except ValueError as error:
        raise CelError(str(error)) from None


def _render(value: Any, letter: str, precision: int | None) -> str:
    if letter == "s":
        return _text(value)
    allowed, refusal = REQUIREMENTS[letter.lower()]
    if type_name(value) not in allowed or (letter in "fe" and type(value) is str and value not in _SPECIAL):
        raise ValueError(refusal.format(type_name(value)))
    match letter:
        case "d":
            return str(int(value))
        case "f":
            return _format_fixed(_double(value), DEFAULT_PRECISION if precision is None else precision)
        case "e":
            # cel-go uses the precision of this clause as a width.
            return _scientific(_double(value)).rjust(DEFAULT_PRECISION if precision is None else precision)
        case "b":
            return f"{int(value):b}"
        case "o":
            return f"{int(value):o}"
        case _:
            return _hex(value, upper=letter == "X")


def _double(value: Any) -> float:
    return parse_float(value) if type(value) is str else float(value)


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "\u221e" if value > 0 else "-\u221e"
    return None


def _format_fixed(value: float, precision: int) -> str:
    """American grouping: commas separate thousands."""
    return _special(value) or f"{value:,.{precision}f}"


def _scientific(value: float) -> str:
    special = _special(value)
    if special:
        return special
    mantissa, exponent = f"{value:.6e}".split("e")
    power = f"{int(exponent):03d}" if int(exponent) < 0 else f"{int(exponent):02d}"
    return f"{mantissa}\u00d710{power.translate(_SUPERSCRIPTS)}"


def _hex(value: Any, *, upper: bool) -> str:
    if isinstance(value, str | bytes):
        text = (value.encode() if isinstance(value, str) else value).hex()
    else:
        text = f"{int(value):x}"
    return text.upper() if upper else text


def _text(value: Any) -> str:
    if is_list(value):
        return "[" + ", ".join(_format_nested(v) for v in value) + "]"
    if isinstance(value, CelMap):
        return _map_text(value)
    if value is None:
        return "null"
    if isinstance(value, TypeValue):
        return value.name
    if isinstance(value, str | bytes | bool | int | float | CelDuration | CelTimestamp):
        return to_string(value)
    raise ValueError(STRING_CLAUSE.format(type_name(value)))


def _map_text(value: CelMap) -> str:
    pairs: list[tuple[str, str]] = []
    for key, held in value.items():
        if type(key) not in (str, bool, int, Uint):
            raise ValueError(f"no formatting function for map key of type {type_name(key)}")
        pairs.append((_format_nested(key), _format_nested(held)))
    return "{" + ", ".join(f"{k}:{v}" for k, v in sorted(pairs)) + "}"


def _format_nested(value: Any) -> str:
    """A value inside a list or map: strings are quoted, doubles have six digits."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return "b" + quoted(to_string(value))
    if isinstance(value, float):
        return quoted(_go_double(value)) if math.isinf(value) or math.isnan(value) else f"{value:.6f}"
    if isinstance(value, CelTimestamp):
        return f"timestamp({quoted(to_string(value))})"
    if isinstance(value, CelDuration):
        return f"duration({quoted(to_string(value))})"
    if value is None or isinstance(value, bool | int | TypeValue | CelMap) or is_list(value):
        return _text(value)
    raise ValueError(f"no formatting function for {type_name(value)}")


def _go_double(value: float) -> str:
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


OVERLOADS: list[Overload] = [method("format", "string_format", (STRING, list_of(DYN)), STRING, format_text)]
