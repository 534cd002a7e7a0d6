"""Output shape of objects: whole, metadata only, or rows of a Table.

Used by every get, list and watch. Whole objects are the stored texts; the other shapes decode each object. Cost: none
for whole objects; otherwise one decode for each object, and its cells for a Table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from bayplan.apiserver import api_errors
from bayplan.apiserver.content_negotiation import MediaTypeOptions
from bayplan.apiserver.http.watch_stream import ObjectFormat, WatchFormat
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.stored_objects import StoredObject, encode
from bayplan.apiserver.tables import cells, columns, row_conditions

_META = "meta.k8s.io"


@dataclass(frozen=True, slots=True)
class OutputShape:
    """The requested shape of objects of one kind. `include`: the part of the object in its Table row."""

    resource: ServedResource
    form: MediaTypeOptions
    now: Callable[[], datetime]
    include: str = ""

    def render_object(self, text: bytes) -> bytes:
        match self.form.shape:
            case "PartialObjectMetadata":
                return encode(self._metadata(msgspec.json.decode(text)))
            case "PartialObjectMetadataList":
                raise self._shape_mismatch("not a list", self.resource.kind)
            case "Table":
                tree = msgspec.json.decode(text)
                if tree.get("kind") == self.resource.kind:  # a Status is not rendered as a row
                    return encode(self._table([tree], {"resourceVersion": _version(tree)}))
        return text

    def render_list(self, entries: Sequence[StoredObject], metadata: Tree) -> bytes | None:
        """Renders a list. Returns None for whole objects."""
        match self.form.shape:
            case "PartialObjectMetadataList":
                kind = {"kind": "PartialObjectMetadataList", "apiVersion": f"{_META}/{self.form.shape_version}"}
                items = [self._metadata(entry.tree()) for entry in entries]
                return encode({**kind, "metadata": metadata, "items": items or None})  # null where Go has no list
            case "PartialObjectMetadata":
                raise self._shape_mismatch("a list", f"{self.resource.kind}List")
            case "Table":
                return encode(
                    self._table((version_conversion.to_tree(self.resource, entry) for entry in entries), metadata)
                )
        return None

    def watch_format(self) -> tuple[WatchFormat, object]:
        """The format of a watch, and a key under which watches share encoded texts."""
        match self.form.shape:
            case "PartialObjectMetadata":
                return _MetadataFormat(self), (self.resource.storage, self.form.shape_version)
            case "Table":
                return _TableFormat(self), self
        return ObjectFormat(self.resource), self.resource

    def _shape_mismatch(self, found: str, kind: str) -> api_errors.StatusError:
        """The request asks for the metadata of one object and gets a list, or the other way round."""
        group = self.resource.group.partition(".")[0] or "core"
        what = (
            "unstructured.Unstructured" + "List" * kind.endswith("List") if self.resource.custom else f"{group}.{kind}"
        )
        message = f"you requested {self.form.shape}, but the requested object is {found} (*{what})"
        return api_errors.StatusError(406, "NotAcceptable", message)

    def _metadata(self, tree: Tree) -> Tree:
        version = f"{_META}/{self.form.shape_version}"
        return {"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": tree["metadata"]}

    def _table(self, trees: Iterable[Tree], metadata: Tree, *, with_columns: bool = True) -> Tree:
        now = self.now()
        return {
            "kind": "Table",
            "apiVersion": f"{_META}/{self.form.shape_version}",
            "metadata": metadata,
            "columnDefinitions": columns(self.resource) if with_columns else None,
            "rows": [self._row(tree, now) for tree in trees],
        }

    def _row(self, tree: Tree, now: datetime) -> Tree:
        row: Tree = {"cells": cells(self.resource, tree, now)}
        if conditions := row_conditions(self.resource, tree):
            row["conditions"] = conditions
        row["object"] = self._included_object(tree)
        return row

    def _included_object(self, tree: Tree) -> Tree | None:
        match self.include:
            case "Object":
                return tree
            case "None":
                return None
        return self._metadata(tree)


class _MetadataFormat:
    shared = True

    def __init__(self, shape: OutputShape) -> None:
        self._shape = shape

    def text(self, entry: StoredObject) -> bytes:
        return encode(self._shape._metadata(entry.tree()))

    def bookmark(self, version: int, annotations: Tree) -> Tree:
        return self._shape._metadata(ObjectFormat(self._shape.resource).bookmark(version, annotations))


class _TableFormat:
    """Format of a watch of rows: each event is a Table with one row; only the first has column definitions."""

    shared = False

    def __init__(self, shape: OutputShape) -> None:
        self._shape = shape
        self._with_columns = True

    def text(self, entry: StoredObject) -> bytes:
        tree = version_conversion.to_tree(self._shape.resource, entry)
        table = self._shape._table([tree], {"resourceVersion": str(entry.version)}, with_columns=self._with_columns)
        self._with_columns = False
        return encode(table)

    def bookmark(self, version: int, annotations: Tree) -> Tree:
        bookmark_object = ObjectFormat(self._shape.resource).bookmark(version, annotations)
        table = self._shape._table([], {"resourceVersion": str(version)}, with_columns=self._with_columns)
        self._with_columns = False
        table["rows"] = [{"cells": [], "object": self._shape._metadata(bookmark_object)}]
        return table


def _version(tree: Tree) -> str:
    found: str = tree["metadata"].get("resourceVersion", "")
    return found
