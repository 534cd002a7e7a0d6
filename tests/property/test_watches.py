"""A consumer of coalesced watch events ends with the same state as a consumer of all events."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bayplan.client.informer.watcher import drop_superseded

Line = tuple[str, str, int]
"""Event type, object, and the order of the metadata fields."""

_OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": "of-the-owner"}]}
_ORDERS = (
    ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences"),  # built-in kinds
    ("labels", "name", "namespace", "ownerReferences", "resourceVersion", "uid"),  # kinds of CRDs
    ("ownerReferences", "resourceVersion", "uid", "name", "namespace", "labels"),  # unknown kinds
    ("resourceVersion", "name", "namespace", "uid", "labels", "ownerReferences"),
)
_BEFORE_METADATA = 4
"""The field order of an object that refers to another one before its own metadata."""


def text(line: Line, version: int, uids: dict[str, str]) -> bytes:
    kind, name, order = line
    fields: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": uids.setdefault(name, f"{name}-{version}"),
        "resourceVersion": str(version),
        "labels": {"told": str(version)},
        **_OWNED,
    }
    if kind == "DELETED":
        del uids[name]
    other = {"claimRef": {"uid": "of-another", "resourceVersion": "1"}} if order == _BEFORE_METADATA else {}
    metadata = {field: fields[field] for field in _ORDERS[order % _BEFORE_METADATA]}
    told = {"type": kind, "object": {"kind": "Pod", "apiVersion": "v1", **other, "metadata": metadata, "spec": {}}}
    return json.dumps(told, separators=(",", ":")).encode()


def read(lines: Any) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The final state, and the added and deleted objects."""
    known: dict[str, Any] = {}
    came_and_went = []
    for line in map(json.loads, lines):
        item = line["object"]
        if line["type"] != "MODIFIED":
            came_and_went.append((line["type"], item["metadata"]["uid"]))
        if line["type"] == "DELETED":
            known.pop(item["metadata"]["name"], None)
        else:
            known[item["metadata"]["name"]] = item
    return known, came_and_went


LINES = st.lists(
    st.tuples(
        st.sampled_from(["MODIFIED"] * 5 + ["ADDED", "DELETED", "BOOKMARK"]),
        st.sampled_from(["a", "b", "ab"]),
        st.integers(0, _BEFORE_METADATA),
    ),
    max_size=25,
)


@given(LINES)
def test_coalesced_lines_give_the_same_state(drawn: list[Line]) -> None:
    uids: dict[str, str] = {}
    lines = [text(line, version, uids) for version, line in enumerate(drawn, 1)]
    kept = list(drop_superseded(lines))
    assert read(kept) == read(lines)
    left = iter(lines)
    assert all(line in left for line in kept), "in the order in which they came"


@given(st.lists(st.sampled_from("abcd"), max_size=20))
def test_one_line_is_left_of_each_modified_object(names: list[str]) -> None:
    uids: dict[str, str] = {}
    lines = [text(("MODIFIED", name, 0), version, uids) for version, name in enumerate(names, 1)]
    assert len(drop_superseded(lines)) == len(set(names))
