"""cel-go's string extension, version 2. `string_format` has the formatting."""

from __future__ import annotations

from typing import Any

from bayplan.cel.errors import COST_EXCEEDED, CelError, EvaluationAborted
from bayplan.cel.types.declarations import Overload, function, method
from bayplan.cel.types.types import INT, STRING, list_of
from bayplan.cel.values.values import go_text

# The cost of replacing depends on the input, not on the output, so the length of the output is limited.
MAX_TEXT = 100_000_000

# The characters that Go's strings.TrimSpace removes.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_SPACE += "\u2028\u2029\u202f\u205f\u3000"
_UPPER = {c: c - 32 for c in range(97, 123)}
_LOWER = {c: c + 32 for c in range(65, 91)}
_QUOTED = {ord(c): f"\\{name}" for c, name in zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True)}


def _out_of_range(index: int) -> CelError:
    return CelError(f"index out of range: {index}")


def char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def index_of(text: str, part: str, offset: int = 0) -> int:
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    return text.find(part, offset)


def last_index_of(text: str, part: str) -> int:
    return text.rfind(part)


def last_index_of_before(text: str, part: str, offset: int) -> int:
    """The last position at or before `offset`."""
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    return -1 if offset >= len(text) else text.rfind(part, 0, offset + len(part))


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    if len(text) * max(len(new), 1) > MAX_TEXT:
        raise EvaluationAborted(COST_EXCEEDED)
    return text.replace(old, new, count if count >= 0 else -1)


def split(text: str, separator: str, count: int = -1) -> tuple[str, ...]:
    if count == 0:
        return ()
    if not separator:
        return _characters(text, count)
    return tuple(text.split(separator, count - 1 if count > 0 else -1))


def _characters(text: str, count: int) -> tuple[str, ...]:
    if count < 0 or count > len(text):
        return tuple(text)
    return (*text[: count - 1], text[count - 1 :])


def substring(text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def substring_range(text: str, start: int, end: int) -> str:
    if start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise _out_of_range(index)
    return text[start:end]


def quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


def join(values: Any, separator: str = "") -> str:
    for value in values:
        if type(value) is not str:
            raise CelError(f"join: invalid input: {go_text(value)}")
    return separator.join(values)


OVERLOADS: list[Overload] = [
    method("charAt", "string_char_at_int", (STRING, INT), STRING, char_at),
    method("indexOf", "string_index_of_string", (STRING, STRING), INT, index_of),
    method("indexOf", "string_index_of_string_int", (STRING, STRING, INT), INT, index_of),
    method("lastIndexOf", "string_last_index_of_string", (STRING, STRING), INT, last_index_of),
    method("lastIndexOf", "string_last_index_of_string_int", (STRING, STRING, INT), INT, last_index_of_before),
    method("lowerAscii", "string_lower_ascii", (STRING,), STRING, lambda text: text.translate(_LOWER)),
    method("replace", "string_replace_string_string", (STRING, STRING, STRING), STRING, replace),
    method("replace", "string_replace_string_string_int", (STRING, STRING, STRING, INT), STRING, replace),
    method("split", "string_split_string", (STRING, STRING), list_of(STRING), split),
    method("split", "string_split_string_int", (STRING, STRING, INT), list_of(STRING), split),
    method("substring", "string_substring_int", (STRING, INT), STRING, substring),
    method("substring", "string_substring_int_int", (STRING, INT, INT), STRING, substring_range),
    method("trim", "string_trim", (STRING,), STRING, lambda text: text.strip(_SPACE)),
    method("upperAscii", "string_upper_ascii", (STRING,), STRING, lambda text: text.translate(_UPPER)),
    function("strings.quote", "strings_quote", (STRING,), STRING, quote),
    method("join", "list_join", (list_of(STRING),), STRING, join),
    method("join", "list_join_string", (list_of(STRING), STRING), STRING, join),
]
