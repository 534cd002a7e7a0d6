"""Mutated copies of a manifest: every field emptied, invalidated, duplicated or removed, one at a time.

Both the recorder of a real API server's responses and the test that compares our validation with them use this module,
so the recording only contains the path and the kind of each mutation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

Path = tuple[str | int, ...]
INVALID_VALUE = "Bad_Value!"
LONG_VALUE = "x" * 70
DELETE = "-"
_NEAR = 4
"""Up to this depth texts are also made too long; most are checked by one rule whatever their length."""
MAPS = ("labels", "annotations", "matchLabels", "selector", "nodeSelector", "data", "parameters", "volumeAttributes")
NAMES = (("metadata", "name"), ("metadata", "namespace"), ("metadata", "generateName"))


def mutations(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Paths and values; `GONE` removes the field, and a path one past the end of a list appends a value."""
    if path[:1] in (("kind",), ("apiVersion",), ("status",)) or path in NAMES:
        return
    if path[-1:] == ("nodePort",):  # a dry run ignores these
        return
    if isinstance(tree, dict):
        if path and path != ("metadata",):
            yield path, DELETE
        if path and path[-1] in MAPS and tree:
            yield (*path, "bad key!"), "v"
        for key, value in tree.items():
            if key not in ("managedFields", "uid", "resourceVersion", "creationTimestamp", "generation"):
                yield from mutations(value, (*path, key))
    elif isinstance(tree, list):
        yield path, DELETE
        if tree:
            yield path, [*tree, tree[0]]
        for index, value in enumerate(tree):
            yield from mutations(value, (*path, index))
    else:
        yield from ((path, value) for value in _others(tree) if value != LONG_VALUE or len(path) <= _NEAR)


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [DELETE, not value]
    if isinstance(value, int):
        return [DELETE, -1, 0, 70000]
    if isinstance(value, str) and value[:1].isdigit():
        return [DELETE, INVALID_VALUE, "-1", "0"]
    return [DELETE, INVALID_VALUE, LONG_VALUE] if isinstance(value, str) else [DELETE]


def copy_tree(tree: Any) -> Any:
    """A copy of a tree of plain values; `deepcopy` would take ten times as long."""
    return msgspec.json.decode(msgspec.json.encode(tree))


def apply_mutation(tree: Any, path: Path, value: Any) -> Any:
    """A copy with the value at the path."""
    copy = copy_tree(tree)
    place = copy
    for step in path[:-1]:
        place = place[step]
    if value != DELETE:
        place[path[-1]] = value
    elif isinstance(place, list):
        del place[int(path[-1])]
    else:
        place.pop(path[-1], None)
    return copy
