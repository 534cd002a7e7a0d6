"""`find` and `findAll`."""

from __future__ import annotations

from bayplan.cel.errors import CelError
from bayplan.cel.regex.regex import Regex, compile_regex
from bayplan.cel.types.declarations import Overload, method
from bayplan.cel.types.types import INT, STRING, list_of


def _compile(pattern: str) -> Regex:
    try:
        return compile_regex(pattern)
    except ValueError as error:
        raise CelError(f"Illegal regex: {error}") from None


def find(text: str, pattern: str) -> str:
    return _compile(pattern).find(text)


def find_all(text: str, pattern: str, limit: int = -1) -> tuple[str, ...]:
    return tuple(_compile(pattern).find_all(text, limit))


OVERLOADS: list[Overload] = [
    method("find", "string_find_string", (STRING, STRING), STRING, find),
    method("findAll", "string_find_all_string", (STRING, STRING), list_of(STRING), find_all),
    method("findAll", "string_find_all_string_int", (STRING, STRING, INT), list_of(STRING), find_all),
]
