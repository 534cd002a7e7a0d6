"""In which shape are objects shown: whole, their metadata alone, or as rows of a Table?

Asked for every get, list and watch. Whole objects are the stored texts; the other shapes read each object.
Cost: none for whole objects; one decoding an object otherwise, and its cells for a Table.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bayplan.cluster.entries import Entry, encode
from bayplan.cluster.kinds import Resource, Tree
from bayplan.cluster.negotiating import Wanted
from bayplan.cluster.watching import Form, ObjectForm

_META = "meta.k8s.io"


def metadata_of(tree: Tree, version: str = "v1") -> Tree:
    return {"kind": "PartialObjectMetadata", "apiVersion": f"{_META}/{version}", "metadata": tree["metadata"]}


def one(resource: Resource, text: bytes, form: Wanted) -> bytes:
    """A single object, given as the text of the whole."""
    del resource
    if form.shape == "PartialObjectMetadata":
        return encode(metadata_of(msgspec.json.decode(text), form.shape_version))
    return text


def many(entries: Sequence[Entry], metadata: Tree, form: Wanted) -> bytes | None:
    """A list in another shape than whole objects; None where whole objects are wanted."""
    if form.shape == "PartialObjectMetadataList":
        items = [metadata_of(entry.tree(), form.shape_version) for entry in entries]
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": f"{_META}/{form.shape_version}"}
        return encode({**kind, "metadata": metadata, "items": items})
    return None


class MetadataForm:
    """A watch of metadata alone."""

    shared = True

    def __init__(self, resource: Resource, version: str) -> None:
        self._resource = resource
        self._version = version

    def text(self, entry: Entry) -> bytes:
        return encode(metadata_of(entry.tree(), self._version))

    def bookmark(self, version: int, annotations: Tree) -> Tree:
        whole = ObjectForm(self._resource).bookmark(version, annotations)
        return metadata_of(whole, self._version)


def watch_form(resource: Resource, form: Wanted) -> tuple[Form, object]:
    """How a watch shows objects, and a key under which its texts can be shared."""
    if form.shape == "PartialObjectMetadata":
        return MetadataForm(resource, form.shape_version), (resource.storage, form.shape_version)
    return ObjectForm(resource), resource
