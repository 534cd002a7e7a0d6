"""What do the documents of this text say, read as Kubernetes reads YAML and JSON?

kube-scheduler, kubectl and the API server turn YAML into JSON with a reader of YAML 1.1 that has its own idea of
scalars: `y` is true, `0o17` and `1e3` are numbers, dates and `12:30` are texts, a whole float is an integer. PyYAML is
used as the parser only; scalars are resolved here. Asked for every configuration file and manifest; a pod manifest of
7 KB costs about 2 ms.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from bayplan.errors import ObjectError
from bayplan.objects import json_text
from bayplan.objects.go_text import go_syntax, quote
from bayplan.objects.go_text import json_text as go_json

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# What `unicode.IsSpace` says; str.lstrip() would also take the separators 0x1c to 0x1f.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))

_LONG_TAG = "tag:yaml.org,2002:"
_RESOLVED_TAGS = frozenset({"!!str", "!!bool", "!!int", "!!float", "!!null", "!!timestamp"})

_YES = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_NO = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_WORDS: dict[str, Any] = dict.fromkeys(_YES, True) | dict.fromkeys(_NO, False)
_WORDS |= dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS |= dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf)
_WORDS |= dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf) | dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)

_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_STRAY_UNDERSCORE = re.compile(r"(?<![0-9])_|_(?![0-9])")
_NUMERIC_START = frozenset("+-.0123456789")
_SHORT_FLOAT_DIGITS = 9

# Beyond this Go writes a whole float with an exponent, so that no reader takes it for an integer.
_WHOLE_FLOAT_LIMIT = 1e21


@dataclass(frozen=True, slots=True)
class Manifest:
    """One document of a file and where it stands, so that a complaint can say so."""

    path: Path
    index: int
    value: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.path}, document {self.index + 1}"


@dataclass(frozen=True, slots=True)
class JsonConversion:
    """A YAML text as JSON text, and what a strict reader holds against it (keys that are set twice)."""

    text: str
    fault: str | None


def is_json(text: str) -> bool:
    """Whether Kubernetes takes the text for JSON and nothing else: flow YAML such as `{a: 1}` is refused."""
    return text.lstrip(_SPACES).startswith("{")


def to_json(text: str) -> JsonConversion:
    """The first YAML document as JSON with sorted keys; of keys that are set twice the last one is taken."""
    document = next(_documents(text), _Document(None))
    try:
        return JsonConversion(go_json(document.value, sort_keys=True), document.fault)
    except ValueError as unsupported:
        raise ObjectError(str(unsupported)) from None


def read_document(text: str) -> Any:
    """The first document of the text as plain values."""
    if is_json(text):
        return _read_json(text)[0]
    return _checked(next(_documents(text), _Document(None)))


def read_documents(text: str) -> list[Any]:
    """Every document of the text that is not empty: YAML between `---` lines, or JSON values one after another."""
    found = _read_json(text) if is_json(text) else [_checked(document) for document in _documents(text)]
    return [value for value in found if value is not None]


def read_manifests(path: Path) -> Iterator[Manifest]:
    """The objects of a file; every error names the file and the document."""
    try:
        values = read_documents(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ObjectError(f"cannot read {path}: {error}") from error
    except ObjectError as error:
        raise ObjectError(f"{path}: {error}") from error
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise ObjectError(f"{path}, document {index + 1}: expected an object with apiVersion and kind")
        yield Manifest(path, index, value)


def _read_json(text: str) -> list[Any]:
    duplicates: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            duplicates.extend(key for key in found if keys.count(key) > 1)
        return found

    decoder = json.JSONDecoder(object_pairs_hook=members, parse_constant=_refuse_constant)
    values, at = [], 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip(_SPACES)))
        except ValueError:
            json_text.parse(text[at:])
            raise
        values.append(value)
        at += len(text[at:]) - len(text[at:].lstrip(_SPACES))
    if duplicates:
        raise ObjectError(f"duplicate field {quote(duplicates[0])}")
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


@dataclass(slots=True)
class _Document:
    value: Any
    duplicates: list[str] = field(default_factory=list)

    @property
    def fault(self) -> str | None:
        lines = "".join(f"\n  {line}" for line in self.duplicates)
        return f"yaml: unmarshal errors:{lines}" if lines else None


def _checked(document: _Document) -> Any:
    if document.fault is not None:
        raise ObjectError(document.fault)
    return _finite(document.value)


def _finite(value: Any) -> Any:
    """The value itself, unless JSON could not carry it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ObjectError(f"json: unsupported value: {'NaN' if math.isnan(value) else f'{value:+}'.title()}")
    if isinstance(value, dict):
        for member in value.values():
            _finite(member)
    elif isinstance(value, list):
        for item in value:
            _finite(item)
    return value


def _documents(text: str) -> Iterator[_Document]:
    loader = _Loader(text)
    try:
        loader.get_event()
        while not loader.check_event(yaml.StreamEndEvent):
            yield _Composer(loader).document()
    except yaml.MarkedYAMLError as error:
        raise ObjectError(f"yaml: {_syntax_fault(error)}") from None
    except yaml.reader.ReaderError as error:
        raise ObjectError(f"yaml: {error.reason}") from None
    finally:
        loader.dispose()


def _syntax_fault(error: yaml.MarkedYAMLError) -> str:
    """Go's wording of a parser error. Its line numbers are one short, except for errors of the scanner."""
    line = 0
    if error.problem_mark is not None and error.problem_mark.line:
        line = error.problem_mark.line + (1 if isinstance(error, yaml.scanner.ScannerError) else 0)
    elif error.context_mark is not None:
        line = error.context_mark.line
    where = f"line {line}: " if line else ""
    return f"{where}{error.problem or 'unknown problem parsing YAML content'}"


@dataclass(slots=True)
class _Node:
    """A node of the document; `content` is a text, a list of nodes or a list of key, value, key, value…"""

    kind: type
    content: Any
    tag: str
    plain: bool
    line: int


class _Composer:
    """Turns the events of one document into values. Aliases are read anew each time, as Go does."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._anchors: dict[str, _Node] = {}
        self._open: set[int] = set()
        self._duplicates: list[str] = []

    def document(self) -> _Document:
        start = self._loader.get_event()
        if start.version not in (None, (1, 1)):
            where = f"line {start.start_mark.line}: " if start.start_mark.line else ""
            raise ObjectError(f"yaml: {where}found incompatible YAML document")
        root = self._node()
        self._loader.get_event()
        return _Document(self._value(root), self._duplicates)

    def _node(self) -> _Node:
        event = self._loader.get_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise ObjectError(f"yaml: unknown anchor '{event.anchor}' referenced")
            return _Node(yaml.AliasEvent, event.anchor, "", False, line)
        if isinstance(event, yaml.ScalarEvent):
            tag = (event.tag or "").replace(_LONG_TAG, "!!", 1)
            node = _Node(yaml.ScalarEvent, event.value, tag, event.implicit[0], line)
            if event.anchor is not None:
                self._anchors[event.anchor] = node
            return node
        node = _Node(type(event), [], "", False, line)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        end = yaml.SequenceEndEvent if isinstance(event, yaml.SequenceStartEvent) else yaml.MappingEndEvent
        while not self._loader.check_event(end):
            node.content.append(self._node())
        self._loader.get_event()
        return node

    def _value(self, node: _Node) -> Any:
        if node.kind is yaml.ScalarEvent:
            return _scalar(node)
        if node.kind is yaml.SequenceStartEvent:
            return [self._value(child) for child in node.content]
        if node.kind is yaml.AliasEvent:
            return self._aliased(node)
        members: dict[tuple[type, Any], Any] = {}
        self._fill(node, members)
        if (nothing := members.get((type(None), None), members)) is not members:
            shown = "<nil>" if nothing is None else go_syntax(nothing)
            raise ObjectError(f"unsupported map key of type: %!s(<nil>), key: <nil>, value: {shown}")
        return {_key_text(key): value for (_, key), value in members.items()}

    def _aliased(self, node: _Node) -> Any:
        if id(node) in self._open:
            raise ObjectError(f"yaml: anchor '{node.content}' value contains itself")
        self._open.add(id(node))
        value = self._value(self._anchors[node.content])
        self._open.discard(id(node))
        return value

    def _fill(self, node: _Node, members: dict[tuple[type, Any], Any]) -> None:
        """Add the pairs of a mapping. Pairs of `<<` count where they stand: a later one wins, merged or not."""
        content = node.content
        for key_node, value_node in zip(content[::2], content[1::2], strict=True):
            if key_node.kind is yaml.ScalarEvent and key_node.content == "<<" and _merges(key_node):
                self._merge(value_node, members)
                continue
            key = self._value(key_node)
            if isinstance(key, (dict, list)):
                raise ObjectError(f"yaml: invalid map key: {go_syntax(key)}")
            value = self._value(value_node)
            if (type(key), key) in members:
                spelled = quote(key) if isinstance(key, str) else _key_text(key)
                self._duplicates.append(f"line {value_node.line}: key {spelled} already set in map")
            members[type(key), key] = value

    def _merge(self, node: _Node, members: dict[tuple[type, Any], Any]) -> None:
        target = self._anchors[node.content] if node.kind is yaml.AliasEvent else node
        if target.kind is yaml.MappingStartEvent:
            self._fill(target, members)
        elif target.kind is yaml.SequenceStartEvent and target is node:
            for child in reversed(node.content):
                self._merge(child, members)
        else:
            raise ObjectError("yaml: map merge requires map or sequence of maps as the value")


def _merges(node: _Node) -> bool:
    return node.plain or node.tag == "!!merge"


def _scalar(node: _Node) -> Any:
    text, tag = node.content, node.tag
    if tag == "!!binary":
        return _binary(text)
    if tag == "!!str" or (not tag and not node.plain) or (tag and tag not in _RESOLVED_TAGS):
        return text
    value = _resolve(text)
    if not tag or tag == "!!timestamp" or _tag_of(value) == tag or (tag == "!!float" and _tag_of(value) == "!!int"):
        return value
    raise ObjectError(f"yaml: cannot decode {_tag_of(value)} `{text}` as a {tag}")


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except binascii.Error:
        raise ObjectError("yaml: !!binary value contains invalid base64 data") from None


def _resolve(text: str) -> Any:
    """The value of a plain scalar."""
    if text in _WORDS:
        return _WORDS[text]
    return _number(text) if text[0] in _NUMERIC_START else text


def _number(text: str) -> int | float | str:
    if text[0] == "." and _STRAY_UNDERSCORE.search(text):
        # Only here must underscores stand between digits; elsewhere they may stand anywhere.
        return text
    digits = text.replace("_", "")
    if _INTEGER.match(digits):
        value = _integer(digits)
        if -(2**63) <= value < 2**64:
            return value
    if _FLOAT.match(digits):
        number = float(digits)
        if math.isfinite(number):
            whole = number.is_integer() and abs(number) < _WHOLE_FLOAT_LIMIT
            # By way of the shortest digits: those are what Go writes, not the float's exact value.
            return int(Decimal(repr(number))) if whole else number
    return text


def _integer(digits: str) -> int:
    body = digits.lstrip("+-").lower()
    sign = -1 if digits[0] == "-" else 1
    if body[:2] in ("0x", "0b", "0o"):
        return sign * int(body, 0)
    return sign * int(body, 8 if body[0] == "0" else 10)


def _tag_of(value: Any) -> str:
    if value is None:
        return "!!null"
    return {bool: "!!bool", int: "!!int", float: "!!float"}.get(type(value), "!!str")


def _key_text(key: Any) -> str:
    """The text that a key becomes in JSON."""
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return str(key)
    if not math.isfinite(key):
        return ".nan" if math.isnan(key) else (".inf" if key > 0 else "-.inf")
    return f"{key:.{_SHORT_FLOAT_DIGITS}g}"
