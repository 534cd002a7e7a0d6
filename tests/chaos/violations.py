"""A violation as the report has it: the text, the histories of its objects, the writes and the faults around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chaos.invariants.base import Violation
from chaos.objects import Tree
from chaos.proxy.server import WriteLog
from chaos.record import Record

_BEFORE_S = 90.0
_MOST_WRITES, _MOST_FAULTS = 400, 200


def describe(
    violation: Violation, record: Record, writes: WriteLog, faults: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    since_s = violation.at_s - _BEFORE_S
    keys = {history.key for each in violation.objects if (history := record.history(each)) is not None}
    return {
        "invariant": violation.invariant,
        "at": round(violation.at_s, 2),
        "text": violation.text,
        "histories": [_history(record, each) for each in dict.fromkeys(violation.objects)],
        "writes": _writes(writes, keys, since_s)[-_MOST_WRITES:],
        "faults": [each for each in faults if each.get("at", since_s) >= since_s][-_MOST_FAULTS:],
    }


def _history(record: Record, uid: str) -> dict[str, Any]:
    history = record.history(uid)
    if history is None:
        return {"uid": uid, "versions": []}
    versions = [
        {"at": round(each.at_s, 3), "type": each.type, "version": each.version, "object": _brief(each.tree())}
        for each in history.versions
    ]
    return {"kind": history.kind, "key": history.key, "uid": uid, "versions": versions}


def _brief(tree: Tree) -> Tree:
    """The object without what never matters for a violation."""
    meta = {key: value for key, value in tree["metadata"].items() if key not in ("managedFields", "uid")}
    return {**{key: value for key, value in tree.items() if key not in ("apiVersion", "kind")}, "metadata": meta}


def _writes(log: WriteLog, keys: set[str], since_s: float) -> list[dict[str, Any]]:
    """Writes whose path or body names one of the objects."""
    names = {key.rpartition("/")[2] for key in keys}
    found = []
    for line in log.lines:
        if line.at_s < since_s:
            continue
        path = line.path.split("/")
        body = line.body.decode(errors="replace")
        if names.intersection(path) or any(f'"{each}"' in body for each in names):
            entry = {"at": round(line.at_s, 3), "by": line.slot, "request": f"{line.method} {line.path}"}
            found.append({**entry, "code": line.code, "fault": line.fault, "body": body[:1500]})
    return found
