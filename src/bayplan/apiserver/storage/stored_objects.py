"""What does the store keep of an object? Its JSON text, and beside it the little that lists and watches select by.

The text is the truth: it is what clients are sent, it takes a fifth of the memory of a tree, and reading it gives one
that nobody else holds, more cheaply than copying one. `kind` and `apiVersion` are not in it; the version that a client
asks for puts them in front. Cost: one encoding a write, one decoding a `tree()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import intern
from typing import Any

import msgspec

from bayplan.apiserver.resources.kinds import Tree

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_NO_FIELDS: Mapping[str, str] = {}

FieldExtractor = Callable[[Tree], dict[str, str]]
"""The fields that objects of a kind can be selected by, beyond their names."""

encode: Callable[[Any], bytes] = _ENCODER.encode


class StoredObject(msgspec.Struct, eq=False, gc=False):
    """One object in one state."""

    namespace: str
    name: str
    version: int
    raw: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    uid: str
    owners: tuple[str, ...] = ()
    deleting: bool = False

    def tree(self) -> Tree:
        """The object, without kind and apiVersion; yours to change."""
        found: Tree = _DECODER.decode(self.raw)
        return found

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def make_stored_object(
    tree: Tree, version: int, extract: FieldExtractor | None = None, before: StoredObject | None = None
) -> StoredObject:
    """Put an object into the form that is kept. Its metadata gets the version; kind and apiVersion are left out.

    `before` is an earlier state of the object, whose labels and fields are kept where they did not change.
    """
    metadata: Tree = tree["metadata"]
    metadata["resourceVersion"] = str(version)
    kept = {"metadata": metadata}
    kept |= {key: value for key, value in tree.items() if key not in ("kind", "apiVersion", "metadata")}
    return _make(kept, version, encode(kept), extract, before)


def load_stored_object(raw: bytes, version: int, extract: FieldExtractor | None = None) -> StoredObject:
    """The same, from a text that was kept elsewhere."""
    return _make(_DECODER.decode(raw), version, raw, extract)


def _make(
    tree: Tree, version: int, raw: bytes, extract: FieldExtractor | None, before: StoredObject | None = None
) -> StoredObject:
    metadata = tree["metadata"]
    labels = metadata.get("labels")
    known_labels, known_fields = (before.labels, before.fields) if before is not None else (_NO_FIELDS, _NO_FIELDS)
    return StoredObject(
        namespace=intern(metadata.get("namespace") or ""),
        name=metadata["name"],
        version=version,
        raw=raw,
        labels=_interned(labels, known_labels) if labels else _NO_FIELDS,
        fields=_interned(extract(tree), known_fields) if extract is not None else _NO_FIELDS,
        uid=metadata.get("uid") or "",
        owners=tuple(owner["uid"] for owner in metadata.get("ownerReferences") or () if "uid" in owner),
        deleting="deletionTimestamp" in metadata,
    )


def _interned(texts: Mapping[str, str], known: Mapping[str, str]) -> Mapping[str, str]:
    """Ten thousand pods of one workload have the same labels: their texts are kept once."""
    if texts == known:
        return known
    return {intern(key): intern(value) for key, value in texts.items() if isinstance(value, str)}
