"""Decoder of volcano-scheduler.conf with the rules of go-yaml and Volcano's structs.

Called by `scheduler_conf` once per load. It walks a document together with a shape and collects all type errors, with
the text and line numbers of go-yaml v2. Unknown and duplicate keys, which go-yaml ignores, become notes for the user.
The rules of go-yaml that decide the meaning of a file:

* a text field takes any scalar as written; a flag takes the booleans of YAML 1.1 and nothing else;
* `~` and `null` unset a flag, but `Null` and `NULL` turn it off; a null element of a list is an empty struct;
* a struct or a list that is given twice, or merged by `<<`, is set field by field, and its last value counts; the maps
  of `arguments` and `metrics` are merged.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.codec.go_text import go_syntax
from bayplan.codec.yaml_nodes import MAX_DEPTH, AliasResolver, YamlNode, YamlNodeKind, depth_error, read_nodes
from bayplan.codec.yaml_scalars import resolve_scalar
from bayplan.errors import ObjectError

_SEQ, _MAP = "!!seq", "!!map"
_LONGEST_VALUE, _SHOWN_VALUE = 10, 7  # length in bytes of a wrong value in error messages


@dataclass(frozen=True, slots=True)
class ConfShape:
    """The expected type at a position of the document; `go_type` is its name in error messages."""

    go_type: str
    zero: Any = None


@dataclass(frozen=True, slots=True)
class ConfListShape(ConfShape):
    item: ConfShape = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class ConfMapShape(ConfShape):
    value: ConfShape = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class ConfStructShape(ConfShape):
    """Decoded as a dictionary of the fields that are set."""

    fields: Mapping[str, ConfShape] = field(kw_only=True)


TEXT = ConfShape("string", "")
FLAG = ConfShape("bool", False)
ANY = ConfShape("interface {}")


@dataclass(slots=True)
class DecodedConf:
    """The fields of a document, its errors, and notes for the user."""

    value: dict[str, Any]
    faults: list[str]
    notes: list[str]


def decode_conf(text: str, shape: ConfStructShape) -> DecodedConf:
    """Read the first document of the text; raises `ObjectError` if it is not YAML."""
    decoder = _Decoder()
    root = next(read_nodes(text), None)
    value = decoder.document(root, shape) if root is not None else None
    return DecodedConf(value or {}, decoder.faults, decoder.notes)


_DecodedValue = tuple[bool, Any]
"""Whether the value has the right type, and the value."""


class _Decoder:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self.notes: list[str] = []
        self._aliases = AliasResolver()

    def document(self, root: YamlNode, shape: ConfStructShape) -> Any:
        self._aliases.count()
        return self._value(root, shape, None, 0)[1]

    def _value(self, node: YamlNode, shape: ConfShape, current: Any, depth: int) -> _DecodedValue:
        """The value of a node; `current` is the value decoded so far for the same position."""
        self._aliases.count()
        if depth > MAX_DEPTH:
            raise depth_error(f"yaml: line {node.line}: ")
        if node.kind is YamlNodeKind.ALIAS:
            with self._aliases.resolve(node) as target:
                return self._value(target, shape, current, depth + 1)
        if node.kind is YamlNodeKind.SCALAR:
            return self._scalar(node, shape)
        if node.kind is YamlNodeKind.SEQUENCE:
            return self._sequence(node, shape, depth)
        return self._mapping(node, shape, current, depth)

    def _scalar(self, node: YamlNode, shape: ConfShape) -> _DecodedValue:
        tag, value = resolve_scalar(node.content, node.tag, plain=node.plain)
        if value is None:
            return True, None if shape is FLAG and _is_null(node) else shape.zero
        if shape is TEXT:
            return True, value if tag == "!!binary" else node.content
        if shape is ANY:
            return True, value
        if shape is FLAG and _is_null(node):  # a quoted word, because go-yaml checks it before the quotes
            return self._fault(node, tag, "*bool")
        if shape is FLAG and isinstance(value, bool):
            return True, value
        return self._fault(node, tag, shape.go_type)

    def _sequence(self, node: YamlNode, shape: ConfShape, depth: int) -> _DecodedValue:
        if isinstance(shape, ConfListShape):
            item = shape.item
        elif shape is ANY:
            item = ANY
        else:
            return self._fault(node, _SEQ, shape.go_type)
        found = (self._value(child, item, None, depth + 1) for child in node.content)
        return True, [value for good, value in found if good]

    def _mapping(self, node: YamlNode, shape: ConfShape, current: Any, depth: int) -> _DecodedValue:
        if isinstance(shape, ConfStructShape):
            members = {} if current is None else current
            self._fill_struct(node, shape, members, depth)
        elif isinstance(shape, ConfMapShape):
            members = {} if current is None else current
            self._fill_map(node, TEXT, shape.value, members, depth)
        elif shape is ANY:
            members = {}
            self._fill_map(node, ANY, ANY, members, depth)
        else:
            return self._fault(node, _MAP, shape.go_type)
        return True, members

    def _fill_struct(self, node: YamlNode, shape: ConfStructShape, members: dict[str, Any], depth: int) -> None:
        own: set[str] = set()
        for key_node, value_node in node.pairs():
            if key_node.merges:
                for mapping in value_node.merged():
                    self._value(mapping, shape, members, depth + 1)
                continue
            good, key = self._value(key_node, TEXT, None, depth + 1)
            if not good:
                continue
            place = shape.fields.get(key)
            self._note(key_node, key, shape, twice=key in own)
            own.add(key)
            if place is None:
                continue
            fits, value = self._value(value_node, place, members.get(key), depth + 1)
            if fits:
                members[key] = value

    def _fill_map(
        self, node: YamlNode, key_shape: ConfShape, shape: ConfShape, members: dict[Any, Any], depth: int
    ) -> None:
        for key_node, value_node in node.pairs():
            if key_node.merges:
                for mapping in value_node.merged():
                    self._merge_map(mapping, key_shape, shape, members, depth + 1)
                continue
            good, key = self._value(key_node, key_shape, None, depth + 1)
            if isinstance(key, dict | list):
                raise ObjectError(f"yaml: invalid map key: {go_syntax(key)}")
            fits, value = self._value(value_node, shape, None, depth + 1) if good else (False, None)
            if fits:
                members[key] = value

    def _merge_map(
        self, node: YamlNode, key_shape: ConfShape, shape: ConfShape, members: dict[Any, Any], depth: int
    ) -> None:
        self._aliases.count()
        if depth > MAX_DEPTH:
            raise depth_error(f"yaml: line {node.line}: ")
        if node.kind is YamlNodeKind.ALIAS:
            with self._aliases.resolve(node) as target:
                self._merge_map(target, key_shape, shape, members, depth + 1)
        else:
            self._fill_map(node, key_shape, shape, members, depth)

    def _fault(self, node: YamlNode, tag: str, go_type: str) -> _DecodedValue:
        tag = node.tag or tag
        value = node.content if node.kind is YamlNodeKind.SCALAR else ""
        if tag not in (_SEQ, _MAP):
            value = f" `{_shorten(value)}`"
        self.faults.append(f"line {node.line}: cannot unmarshal {tag}{value} into {go_type}")
        return False, None

    def _note(self, node: YamlNode, key: str, shape: ConfStructShape, *, twice: bool) -> None:
        if key not in shape.fields:
            close = difflib.get_close_matches(key, shape.fields, n=1, cutoff=0.8)
            remedy = f"; did you mean {close[0]}?" if close else ""
            self.notes.append(f"line {node.line}: {key!r} is an unknown key and is ignored{remedy}")
        elif twice:
            self.notes.append(f"line {node.line}: {key} is given twice; the last one counts")


def _is_null(node: YamlNode) -> bool:
    """Whether go-yaml treats the node as null before it follows a pointer."""
    if node.tag:
        return node.tag == "!!null"
    return node.content in ("null", "~") or (not node.content and node.plain)


def _shorten(value: str) -> str:
    """A wrong value as error messages show it; lengths are in bytes."""
    data = value.encode()
    return value if len(data) <= _LONGEST_VALUE else data[:_SHOWN_VALUE].decode("utf-8", "replace") + "..."
