"""Reads YAML and JSON documents as Kubernetes does.

kube-scheduler, kubectl and the API server convert YAML to JSON with a YAML 1.1 reader that has its own scalars: `y` is
true, `0o17` and `1e3` are numbers, dates and `12:30` are strings, a whole float is an integer. `yaml_nodes` parses,
`yaml_scalars` resolves scalars. Called for every configuration file and manifest; a pod manifest of 7 KB costs about 2
ms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayplan.codec import json_text
from bayplan.codec.go_text import go_syntax, quote
from bayplan.codec.go_text import json_text as go_json
from bayplan.codec.yaml_nodes import MAX_DEPTH, AliasResolver, YamlNode, YamlNodeKind, depth_error, read_nodes
from bayplan.codec.yaml_scalars import json_scalar, key_text
from bayplan.errors import ObjectError

# Go's `unicode.IsSpace`; str.lstrip() would also strip the separators 0x1c to 0x1f.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(frozen=True, slots=True)
class ManifestDocument:
    """One document of a file and its position, for error messages."""

    path: Path
    index: int
    value: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.path}, document {self.index + 1}"


@dataclass(frozen=True, slots=True)
class JsonConversion:
    """A YAML text as JSON text, and the error of strict decoding for keys that are set twice."""

    text: str
    duplicate_key_error: str | None


def is_json(text: str) -> bool:
    """Whether Kubernetes accepts the text as JSON only: flow YAML such as `{a: 1}` is refused."""
    return text.lstrip(_SPACES).startswith("{")


def to_json(text: str) -> JsonConversion:
    """The first YAML document as JSON with sorted keys. The last one of repeated keys counts."""
    document = next(_documents(text), _Document(None))
    try:
        return JsonConversion(go_json(document.value, sort_keys=True), document.fault)
    except ValueError as unsupported:
        raise ObjectError(str(unsupported)) from None


def read_document(text: str) -> Any:
    """The first document of the text as plain values."""
    return next(_values(text), None)


def read_documents(text: str) -> list[Any]:
    """Every non-empty document of the text: YAML between `---` lines, or JSON values one after another."""
    return [value for value in _values(text) if value is not None]


def read_manifests(path: Path) -> Iterator[ManifestDocument]:
    """The objects of a file. Every error has the file and the document."""
    try:
        values = _values(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ObjectError(f"cannot read {path}: {why}; name a file of manifests") from error
    index = 0
    while True:
        try:
            value = next(values, _END)
        except ObjectError as error:
            raise ObjectError(f"{path}, document {index + 1}: {error}; correct the file") from None
        if value is _END:
            return
        if value is None:
            continue
        if not isinstance(value, dict):
            raise ObjectError(f"{path}, document {index + 1}: expected an object with apiVersion and kind")
        yield ManifestDocument(path, index, value)
        index += 1


_END = object()


def _values(text: str) -> Iterator[Any]:
    """The documents as plain values, None for an empty one; each is read on demand."""
    return _read_json(text) if is_json(text) else map(_check_document, _documents(text))


def _read_json(text: str) -> Iterator[Any]:
    duplicates: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            duplicates.extend(key for key in found if keys.count(key) > 1)
        return found

    decoder = json.JSONDecoder(object_pairs_hook=members, parse_constant=_reject_constant)
    at = 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip(_SPACES)))
        except ValueError:
            json_text.parse(text[at:])
            raise ObjectError("json: a number has thousands of digits") from None
        except RecursionError:
            raise depth_error("json: ") from None
        if duplicates:
            raise ObjectError(f"duplicate field {quote(duplicates[0])}")
        yield _check_json_value(value)
        at += len(text[at:]) - len(text[at:].lstrip(_SPACES))


def _reject_constant(name: str) -> Any:
    raise ValueError(name)


@dataclass(slots=True)
class _Document:
    value: Any
    duplicates: list[str] = field(default_factory=list)

    @property
    def fault(self) -> str | None:
        lines = "".join(f"\n  {line}" for line in self.duplicates)
        return f"yaml: unmarshal errors:{lines}" if lines else None


def _check_document(document: _Document) -> Any:
    if document.fault is not None:
        raise ObjectError(document.fault)
    return _check_json_value(document.value)


def _check_json_value(value: Any, depth: int = 0) -> Any:
    """The value itself; raises an error if JSON cannot represent it."""
    if depth > MAX_DEPTH:
        raise depth_error("json: ")
    if isinstance(value, float) and not math.isfinite(value):
        raise ObjectError(f"json: unsupported value: {'NaN' if math.isnan(value) else f'{value:+}'.title()}")
    if isinstance(value, dict):
        for member in value.values():
            _check_json_value(member, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_json_value(item, depth + 1)
    return value


def _documents(text: str) -> Iterator[_Document]:
    return (_NodeReader().document(root) for root in read_nodes(text))


class _NodeReader:
    """Converts the nodes of one document to values. Aliases are converted again each time, as in Go."""

    def __init__(self) -> None:
        self._duplicates: list[str] = []
        self._aliases = AliasResolver()

    def document(self, root: YamlNode) -> _Document:
        self._aliases.count()
        return _Document(self._value(root, 0), self._duplicates)

    def _value(self, node: YamlNode, depth: int) -> Any:
        self._aliases.count()
        if depth > MAX_DEPTH:  # nested aliases can be deeper than the text
            raise depth_error(f"yaml: line {node.line}: ")
        if node.kind is YamlNodeKind.SCALAR:
            return json_scalar(node.content, node.tag, plain=node.plain)
        if node.kind is YamlNodeKind.SEQUENCE:
            return [self._value(child, depth + 1) for child in node.content]
        if node.kind is YamlNodeKind.ALIAS:
            with self._aliases.resolve(node) as target:
                return self._value(target, depth + 1)
        members: dict[tuple[type, Any], Any] = {}
        self._fill(node, members, depth)
        if (nothing := members.get((type(None), None), members)) is not members:
            shown = "<nil>" if nothing is None else go_syntax(nothing)
            raise ObjectError(f"unsupported map key of type: %!s(<nil>), key: <nil>, value: {shown}")
        return {key_text(key): value for (_, key), value in members.items()}

    def _fill(self, node: YamlNode, members: dict[tuple[type, Any], Any], depth: int) -> None:
        """Add the pairs of a mapping. Pairs of `<<` count at their position: a later pair wins, merged or not."""
        for key_node, value_node in node.pairs():
            if key_node.merges:
                for mapping in value_node.merged():
                    self._merge(mapping, members, depth + 1)
                continue
            key = self._value(key_node, depth + 1)
            if isinstance(key, (dict, list)):
                raise ObjectError(f"yaml: invalid map key: {go_syntax(key)}")
            value = self._value(value_node, depth + 1)
            if (type(key), key) in members:
                key_repr = quote(key) if isinstance(key, str) else key_text(key)
                self._duplicates.append(f"line {value_node.line}: key {key_repr} already set in map")
            members[type(key), key] = value

    def _merge(self, node: YamlNode, members: dict[tuple[type, Any], Any], depth: int) -> None:
        self._aliases.count()
        if depth > MAX_DEPTH:
            raise depth_error(f"yaml: line {node.line}: ")
        if node.kind is YamlNodeKind.ALIAS:
            with self._aliases.resolve(node) as target:
                self._merge(target, members, depth + 1)
        else:
            self._fill(node, members, depth)
