"""Values in the notation of Go's `%q`, `%v`, `%#v`, `encoding/json` and `strconv`.

Users compare Bayplan's messages with kube-scheduler's, which use these formats. Called by the YAML and JSON readers and
by every configuration error. Cost: linear in the length of the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_ESCAPES |= {'"': '\\"', "\\": "\\\\"}

# encoding/json escapes these so that its output is safe in HTML, and the line separators so that it is valid
# JavaScript.
_HTML_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})

# encoding/json uses exponents below and above these magnitudes.
_MIN_PLAIN_FLOAT, _MAX_PLAIN_FLOAT = 1e-6, 1e21


def quote(text: str) -> str:
    """The text as `%q` prints it."""
    return f'"{"".join(map(_quote_char, text))}"'


def quote_byte(char: str) -> str:
    """The first byte of a character in single quotes, as the errors of the JSON scanner show it."""
    byte = chr(char.encode("utf-8", "replace")[0])
    if byte == "'":
        return "'\\''"
    return "'\"'" if byte == '"' else f"'{_quote_char(byte)}'"


def _quote_char(char: str) -> str:
    if (escape := _ESCAPES.get(char)) is not None:
        return escape
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_string(text: str) -> str:
    """The text as a string of `encoding/json`."""
    return json.dumps(text, ensure_ascii=False).translate(_HTML_SAFE)


def json_float(number: float) -> str:
    """The shortest digits that parse to the same number. A whole number has no decimal point."""
    if math.isinf(number) or math.isnan(number):
        raise ValueError(f"json: unsupported value: {'NaN' if math.isnan(number) else f'{number:+}'.title()}")
    size = abs(number)
    if size != 0 and (size < _MIN_PLAIN_FLOAT or size >= _MAX_PLAIN_FLOAT):
        mantissa, exponent = f"{Decimal(repr(number)):e}".split("e")
        return f"{mantissa}e{int(exponent):+}"
    text = f"{Decimal(repr(number)):f}"
    return text[:-2] if text.endswith(".0") else text


def json_text(value: Any, *, sort_keys: bool = False) -> str:
    """A tree of plain values as `encoding/json` writes it. It sorts maps; structs keep their order."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json_string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return json_float(value)
    if isinstance(value, Mapping):
        keys = sorted(value) if sort_keys else value
        return "{" + ",".join(f"{json_string(k)}:{json_text(value[k], sort_keys=sort_keys)}" for k in keys) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(json_text(item, sort_keys=sort_keys) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def go_syntax(value: Any) -> str:
    """The value as `%#v` prints it, with the types of a YAML document without a schema."""
    if value is None:
        return "interface {}(nil)"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, Mapping):
        members = (f"{go_syntax(key)}:{go_syntax(value[key])}" for key in sorted(value))
        return f"map[interface {{}}]interface {{}}{{{', '.join(members)}}}"
    if isinstance(value, Sequence):
        return f"[]interface {{}}{{{', '.join(map(go_syntax, value))}}}"
    return json_text(value)


def go_value(value: Any) -> str:
    """The value as `%v` prints it."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _shortest_float(value)
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{go_value(key)}:{go_value(value[key])}" for key in sorted(value, key=str)) + "]"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + " ".join(map(go_value, value)) + "]"
    return str(value)


def _shortest_float(number: float) -> str:
    """The fewest digits that parse to the same number, with an exponent from a million on and below 0.0001."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return f"{number:+}".title()
    digits = Decimal(repr(number))
    exponent = digits.adjusted() if number else 0
    if not -4 <= exponent < 6:
        mantissa, _, power = f"{digits.normalize():e}".partition("e")
        return f"{mantissa}e{int(power):+03d}"
    text = f"{digits:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
