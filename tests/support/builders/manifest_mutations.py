"""Changed copies of a manifest: every field emptied, spoilt, doubled or taken away, one at a time.

The recording of a real API server's answers and the test that holds our rules against it both make them, so that the
recording needs to keep no more than where and how a copy was changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

Path = tuple[str | int, ...]
SPOILT = "Bad_Value!"
LONG = "x" * 70
GONE = "-"
_NEAR = 4
"""How deep texts are made long, too; most are held to one rule whatever their length."""
MAPS = ("labels", "annotations", "matchLabels", "selector", "nodeSelector", "data", "parameters", "volumeAttributes")
NAMES = (("metadata", "name"), ("metadata", "namespace"), ("metadata", "generateName"))


def changes(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Where to put which value; `GONE` takes the field away, and at the end of a list a new value comes in."""
    if path[:1] in (("kind",), ("apiVersion",), ("status",)) or path in NAMES:
        return
    if path[-1:] == ("nodePort",):  # a dry run does not look at these
        return
    if isinstance(tree, dict):
        if path and path != ("metadata",):
            yield path, GONE
        if path and path[-1] in MAPS and tree:
            yield (*path, "bad key!"), "v"
        for key, value in tree.items():
            if key not in ("managedFields", "uid", "resourceVersion", "creationTimestamp", "generation"):
                yield from changes(value, (*path, key))
    elif isinstance(tree, list):
        yield path, GONE
        if tree:
            yield path, [*tree, tree[0]]
        for index, value in enumerate(tree):
            yield from changes(value, (*path, index))
    else:
        yield from ((path, value) for value in _others(tree) if value != LONG or len(path) <= _NEAR)


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [GONE, not value]
    if isinstance(value, int):
        return [GONE, -1, 0, 70000]
    if isinstance(value, str) and value[:1].isdigit():
        return [GONE, SPOILT, "-1", "0"]
    return [GONE, SPOILT, LONG] if isinstance(value, str) else [GONE]


def fresh(tree: Any) -> Any:
    """A copy of a tree of plain values; `deepcopy` would take ten times as long."""
    return msgspec.json.decode(msgspec.json.encode(tree))


def changed(tree: Any, path: Path, value: Any) -> Any:
    """A copy with the value there."""
    copy = fresh(tree)
    place = copy
    for step in path[:-1]:
        place = place[step]
    if value != GONE:
        place[path[-1]] = value
    elif isinstance(place, list):
        del place[int(path[-1])]
    else:
        place.pop(path[-1], None)
    return copy
