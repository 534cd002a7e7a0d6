"""Of which nodes does a YAML text consist, before anybody says what they mean?

PyYAML is used as the parser only. `yaml` makes JSON values of the nodes, as Kubernetes does; whoever decodes into typed
fields, as Volcano does with its configuration, needs the nodes themselves: their lines, tags and quotes. Syntax errors
are worded as go-yaml words them. Cost: that of the parser.
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
"""Go stops at 10,000; Python's own stack is shorter, and no object of ours is a tenth as deep."""

MERGE_ERROR = "yaml: map merge requires map or sequence of maps as the value"


class YamlNodeKind(Enum):
    SCALAR = auto()
    SEQUENCE = auto()
    MAPPING = auto()
    ALIAS = auto()


@dataclass(slots=True)
class YamlNode:
    """A node of the document; `content` is a text, a list of nodes, a list of key, value, key, value… or, of an alias,
    the node that it stands for."""

    kind: YamlNodeKind
    content: Any
    line: int
    tag: str = ""
    """A scalar's tag as `!!str`; tags of anything else mean nothing to go-yaml."""
    plain: bool = False
    name: str = ""
    """An alias's anchor."""

    @property
    def merges(self) -> bool:
        """Whether this key is `<<`."""
        return self.kind is YamlNodeKind.SCALAR and self.content == "<<" and (self.plain or self.tag == "!!merge")

    def pairs(self) -> Iterator[tuple[YamlNode, YamlNode]]:
        """Keys and values of a mapping."""
        return zip(self.content[::2], self.content[1::2], strict=True)

    def merged(self) -> Iterator[YamlNode]:
        """The mappings that `<<` with this value brings in, in the order in which they are to be read."""
        if self.kind is YamlNodeKind.SEQUENCE:
            for child in reversed(self.content):
                yield child._checked_mapping()
        else:
            yield self._checked_mapping()

    def _checked_mapping(self) -> YamlNode:
        target = self.content if self.kind is YamlNodeKind.ALIAS else self
        if target.kind is not YamlNodeKind.MAPPING:
            raise ObjectError(MERGE_ERROR)
        return self


def read_nodes(text: str) -> Iterator[YamlNode]:
    """The root of each document, read when it is asked for; raises `ObjectError` with Go's words."""
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
    """Go's wording of a parser error. Its line numbers are one short, except for errors of the scanner."""
    line = 0
    if error.problem_mark is not None and error.problem_mark.line:
        line = error.problem_mark.line + (1 if isinstance(error, yaml.scanner.ScannerError) else 0)
    elif error.context_mark is not None:
        line = error.context_mark.line
    where = f"line {line}: " if line else ""
    return f"{where}{error.problem or 'unknown problem parsing YAML content'}"


class _Composer:
    """Turns the events of one document into nodes."""

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
            return self._anchored(event, YamlNode(YamlNodeKind.SCALAR, event.value, line, tag, event.implicit[0]))
        in_list = isinstance(event, yaml.SequenceStartEvent)
        node = self._anchored(event, YamlNode(YamlNodeKind.SEQUENCE if in_list else YamlNodeKind.MAPPING, [], line))
        end = yaml.SequenceEndEvent if in_list else yaml.MappingEndEvent
        while not self._loader.check_event(end):
            node.content.append(self._node(depth + 1))
        self._loader.get_event()
        return node

    def _anchored(self, event: Any, node: YamlNode) -> YamlNode:
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node


@dataclass(slots=True)
class AliasResolver:
    """Follows the aliases of a document, and stops at those that would never end.

    A few lines of aliases can stand for more than fits any memory. The limits are those of Go's reader: small
    documents may repeat themselves as they like, large ones may owe less and less to aliases.
    """

    _read: int = 0
    _aliased: int = 0
    _depth: int = 0
    _open: set[int] = field(default_factory=set)

    def count(self) -> None:
        """One more value is read."""
        self._read += 1
        if not self._depth:
            return
        self._aliased += 1
        if self._aliased > 100 and self._read > 1000 and self._aliased > self._read * self._allowed():
            raise ObjectError("yaml: document contains excessive aliasing")

    @contextmanager
    def resolve(self, alias: YamlNode) -> Iterator[YamlNode]:
        """What the alias stands for, while it is read."""
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
