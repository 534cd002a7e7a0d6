"""JSON parser that keeps positions and duplicate keys, with Go's errors.

Unlike `json.loads` the tree has what a strict decoder needs: the order of keys, repeated keys, the digits of a number
and the position of each value. Configurations are parsed with it. Cost: about a microsecond per token; large manifests
use the faster `yaml.read_documents`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from bayplan.codec.go_text import quote_byte
from bayplan.errors import ObjectError

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_STRING_PREFIX = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_HEX = re.compile(r"[0-9a-fA-F]*")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LITERALS: dict[str, tuple[str, bool | None]] = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}

# Go's limit is 10,000. Python's stack is smaller, and no API object is a tenth as deep.
_MAX_DEPTH = 400

JsonValue = Any
"""`None`, `bool`, `str`, `JsonNumber`, a list of nodes or a `JsonObject`."""


class JsonSyntaxError(ObjectError):
    """The text is not JSON. The message is Go's."""


@dataclass(frozen=True, slots=True)
class JsonNumber:
    """A number as written. The field decides whether `4.0` may become an integer."""

    text: str

    def value(self) -> int | float:
        return float(self.text) if {".", "e", "E"} & set(self.text) else int(self.text)


@dataclass(frozen=True, slots=True)
class JsonMember:
    """One key of an object with its value; `start` and `end` are the value's position in the text."""

    key: str
    value: JsonValue
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object with its keys in the order of the text, repeated ones included."""

    members: tuple[JsonMember, ...]


def parse(text: str) -> JsonValue:
    """Parse a JSON text that contains exactly one value."""
    reader = _JsonReader(text)
    node, end = reader.value(reader.skip(0), 0)
    end = reader.skip(end)
    if end < len(text):
        raise reader.error(end, "after top-level value")
    return node


def to_plain(node: JsonValue) -> Any:
    """The tree as dictionaries, lists and numbers. The last one of repeated keys counts."""
    if isinstance(node, JsonObject):
        return {member.key: to_plain(member.value) for member in node.members}
    if isinstance(node, list):
        return [to_plain(item) for item in node]
    return node.value() if isinstance(node, JsonNumber) else node


class _JsonReader:
    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at

    def error(self, at: int, where: str) -> JsonSyntaxError:
        if at >= len(self._text):
            return JsonSyntaxError("unexpected end of JSON input")
        return JsonSyntaxError(f"invalid character {quote_byte(self._text[at])} {where}")

    def _token_error(self, at: int, where: str) -> JsonSyntaxError:
        """An error inside a literal, a number or an escape.

        Go appends a blank to its input, which it reports at the end.
        """
        return self.error(at, where) if at < len(self._text) else JsonSyntaxError(f"invalid character ' ' {where}")

    def value(self, at: int, depth: int) -> tuple[JsonValue, int]:
        if depth > _MAX_DEPTH:
            raise JsonSyntaxError("exceeded max depth")
        char = self._text[at : at + 1]
        if char == "{":
            return self._object(at, depth)
        if char == "[":
            return self._array(at, depth)
        if char == '"':
            return self._string(at)
        if char in _LITERALS:
            return self._word(at)
        if char == "-" or ("0" <= char <= "9"):
            return self._number(at)
        raise self.error(at, "looking for beginning of value")

    def _object(self, at: int, depth: int) -> tuple[JsonObject, int]:
        members: list[JsonMember] = []
        at = self.skip(at + 1)
        if self._text[at : at + 1] == "}":
            return JsonObject(()), at + 1
        while True:
            if self._text[at : at + 1] != '"':
                raise self.error(at, "looking for beginning of object key string")
            key, at = self._string(at)
            at = self.skip(at)
            if self._text[at : at + 1] != ":":
                raise self.error(at, "after object key")
            start = self.skip(at + 1)
            value, end = self.value(start, depth + 1)
            members.append(JsonMember(key, value, start, end))
            at = self.skip(end)
            if self._text[at : at + 1] == "}":
                return JsonObject(tuple(members)), at + 1
            if self._text[at : at + 1] != ",":
                raise self.error(at, "after object key:value pair")
            at = self.skip(at + 1)

    def _array(self, at: int, depth: int) -> tuple[list[JsonValue], int]:
        items: list[JsonValue] = []
        at = self.skip(at + 1)
        if self._text[at : at + 1] == "]":
            return items, at + 1
        while True:
            value, at = self.value(at, depth + 1)
            items.append(value)
            at = self.skip(at)
            if self._text[at : at + 1] == "]":
                return items, at + 1
            if self._text[at : at + 1] != ",":
                raise self.error(at, "after array element")
            at = self.skip(at + 1)

    def _string(self, at: int) -> tuple[str, int]:
        match = _STRING.match(self._text, at)
        if match is None:
            raise self._string_error(at)
        value: str = json.loads(match.group())
        return _LONE_SURROGATE.sub("\ufffd", value), match.end()

    def _string_error(self, at: int) -> JsonSyntaxError:
        prefix = _STRING_PREFIX.match(self._text, at)
        at = prefix.end() if prefix else at
        if self._text[at : at + 1] != "\\":
            return self.error(at, "in string literal")
        if self._text[at + 1 : at + 2] != "u":
            return self._token_error(at + 1, "in string escape code")
        digits = _HEX.match(self._text, at + 2, at + 6)
        return self._token_error(digits.end() if digits else at + 2, "in \\u hexadecimal character escape")

    def _word(self, at: int) -> tuple[bool | None, int]:
        word, value = _LITERALS[self._text[at]]
        for offset, expected in enumerate(word):
            if self._text[at + offset : at + offset + 1] != expected:
                raise self._token_error(at + offset, f"in literal {word} (expecting '{expected}')")
        return value, at + len(word)

    def _number(self, at: int) -> tuple[JsonNumber, int]:
        match = _NUMBER.match(self._text, at)
        if match is None:
            raise self._token_error(at + 1, "in numeric literal")
        end, following = match.end(), self._text[match.end() : match.end() + 1]
        digits = match.group()
        has_exponent = "e" in digits or "E" in digits
        if following == "." and "." not in digits and not has_exponent:
            raise self._token_error(end + 1, "after decimal point in numeric literal")
        if following in ("e", "E") and not has_exponent:
            signed = self._text[end + 1 : end + 2] in ("+", "-")
            raise self._token_error(end + 2 if signed else end + 1, "in exponent of numeric literal")
        return JsonNumber(digits), end
