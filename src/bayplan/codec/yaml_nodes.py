"""Parses YAML into nodes, before scalars are resolved.

PyYAML is the parser only. `yaml` converts the nodes to JSON values as Kubernetes does. Code that decodes into typed
fields, as Volcano does with its configuration, needs the nodes themselves: their lines, tags and quotes. Syntax errors
have go-yaml's wording. Cost: that of the parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import yaml

from bayplan.errors import ObjectError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LONG_TAG = "tag:yaml.org,2002:"

MAX_DEPTH = 200
"""Go's limit is 10,000. Python's stack is smaller, and no API object is a tenth as deep."""

MERGE_ERROR = "yaml: map merge requires map or sequence of maps as the value"


class YamlNodeKind(Enum):
    SCALAR = auto()
    SEQUENCE = auto()
    MAPPING = auto()
    ALIAS = auto()


@dataclass(slots=True)
class YamlNode:
    """A node of the document.

    `content` is a text, a list of nodes, a list of key, value, key, value… or, for an alias, the node it refers to.
    """

    kind: YamlNodeKind
    content: Any
    line: int
    tag: str = ""
    """A scalar's tag such as `!!str`. go-yaml ignores the tags of all other nodes."""
    plain: bool = False
    name: str = ""
    """The anchor of an alias."""

    @property
    def merges(self) -> bool:
        """Whether this key is `<<`."""
        return self.kind is YamlNodeKind.SCALAR and self.content == "<<" and (self.plain or self.tag == "!!merge")

    def pairs(self) -> Iterator[tuple[YamlNode, YamlNode]]:
        return zip(self.content[::2], self.content[1::2], strict=True)

    def merged(self) -> Iterator[YamlNode]:
        """The mappings that `<<` with this value merges, in the order in which they are read."""
        if self.kind is YamlNodeKind.SEQUENCE:
            for child in reversed(self.content):
                yield child._check_mapping()
        else:
            yield self._check_mapping()

    def _check_mapping(self) -> YamlNode:
        target = self.content if self.kind is YamlNodeKind.ALIAS else self
        if target.kind is not YamlNodeKind.MAPPING:
            raise ObjectError(MERGE_ERROR)
        return self


def read_nodes(text: str) -> Iterator[YamlNode]:
    """The root node of each document, read on demand; raises `ObjectError` with Go's message."""
    loader = _Loader(text)
    try:
        loader.get_event()
        while not loader.check_event(yaml.StreamEndEvent):
            yield _Composer(loader).document()
    except yaml.MarkedYAMLError as error:
        raise ObjectError(f"yaml: {_syntax_error(error)}") from None
    except yaml.reader.ReaderError as error:
        raise ObjectError(f"yaml: {error.reason}") from None
    finally:
        loader.dispose()


def depth_error(where: str) -> ObjectError:
    return ObjectError(f"{where}exceeded max depth of {MAX_DEPTH}")


def _syntax_error(error: yaml.MarkedYAMLError) -> str:
    """Go's wording of a parser error. Its line numbers are one too low, except for errors of the scanner."""
    line = 0
    if error.problem_mark is not None and error.problem_mark.line:
        line = error.problem_mark.line + (1 if isinstance(error, yaml.scanner.ScannerError) else 0)
    elif error.context_mark is not None:
        line = error.context_mark.line
    where = f"line {line}: " if line else ""
    return f"{where}{error.problem or 'unknown problem parsing YAML content'}"


class _Composer:
    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._anchors: dict[str, YamlNode] = {}

    def document(self) -> YamlNode:
        start = self._loader.get_event()
        if start.version not in (None, (1, 1)):
            where = f"line {start.start_mark.line}: " if start.start_mark.line else ""
            raise ObjectError(f"yaml: {where}found incompatible YAML document")
        root = self._node(0)
        self._loader.get_event()
        return root

    def _node(self, depth: int) -> YamlNode:
        event = self._loader.get_event()
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise depth_error(f"yaml: line {line}: ")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise ObjectError(f"yaml: unknown anchor '{event.anchor}' referenced")
            return YamlNode(YamlNodeKind.ALIAS, self._anchors[event.anchor], line, name=event.anchor)
        if isinstance(event, yaml.ScalarEvent):
            tag = (event.tag or "").replace(_LONG_TAG, "!!", 1)
            return self._register_anchor(
                event, YamlNode(YamlNodeKind.SCALAR, event.value, line, tag, event.implicit[0])
            )
        in_list = isinstance(event, yaml.SequenceStartEvent)
        node = self._register_anchor(
            event, YamlNode(YamlNodeKind.SEQUENCE if in_list else YamlNodeKind.MAPPING, [], line)
        )
        end = yaml.SequenceEndEvent if in_list else yaml.MappingEndEvent
        while not self._loader.check_event(end):
            node.content.append(self._node(depth + 1))
        self._loader.get_event()
        return node

    def _register_anchor(self, event: Any, node: YamlNode) -> YamlNode:
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node


@dataclass(slots=True)
class AliasResolver:
    """Resolves the aliases of a document, and refuses endless or excessive ones.

    A few lines of aliases can stand for more values than fit into memory. The limits are those of Go's reader: small
    documents may repeat values freely; the larger a document, the smaller the allowed share of aliased values.
    """

    _read: int = 0
    _aliased: int = 0
    _depth: int = 0
    _open: set[int] = field(default_factory=set)

    def count(self) -> None:
        self._read += 1
        if not self._depth:
            return
        self._aliased += 1
        if self._aliased > 100 and self._read > 1000 and self._aliased > self._read * self._allowed():
            raise ObjectError("yaml: document contains excessive aliasing")

    @contextmanager
    def resolve(self, alias: YamlNode) -> Iterator[YamlNode]:
        """The node that the alias refers to, while it is read."""
        if id(alias) in self._open:
            raise ObjectError(f"yaml: anchor '{alias.name}' value contains itself")
        self._open.add(id(alias))
        self._depth += 1
        yield alias.content
        self._depth -= 1
        self._open.discard(id(alias))

    def _allowed(self) -> float:
        few, many = 400_000, 4_000_000
        return 0.99 - 0.89 * (min(max(self._read, few), many) - few) / (many - few)
