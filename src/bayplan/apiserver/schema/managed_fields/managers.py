"""Reads and writes `metadata.managedFields`.

`Managers` has the content of the entries during a write; `entries` writes them back in upstream's order. If one entry
is invalid, all are ignored. Cost: a few dict operations per entry.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bayplan.apiserver.schema.managed_fields import field_sets
from bayplan.apiserver.schema.managed_fields.field_sets import FieldSet
from bayplan.codec.go_text import json_text, quote

Tree = dict[str, Any]

APPLY, UPDATE = "Apply", "Update"
MAX_UPDATERS = 10
_ANCIENT_CHANGES = "ancient-changes"


class Manager(NamedTuple):
    """The writer of an entry.

    `version` is empty for appliers, which stay the same manager whatever version they use.
    """

    name: str
    operation: str
    version: str = ""
    subresource: str = ""

    @property
    def identity(self) -> str:
        """The key by which upstream sorts managers."""
        fields = {"manager": self.name, "operation": self.operation, "apiVersion": self.version}
        return json_text({**{key: value for key, value in fields.items() if value}, **self._below})

    @property
    def _below(self) -> Tree:
        return {"subresource": self.subresource} if self.subresource else {}

    def __str__(self) -> str:
        """The manager as conflict messages name it."""
        text = quote(self.name)
        if self.subresource:
            text += f" with subresource {quote(self.subresource)}"
        return f"{text} using {self.version}" if self.operation == UPDATE else text


class ManagedFieldSet(NamedTuple):
    fields: FieldSet
    api_version: str
    time: str = ""


Managers = dict[Manager, ManagedFieldSet]


def managers_of(entries: Any) -> Managers:
    """The content of the entries; empty if one of them is invalid."""
    found: Managers = {}
    for entry in entries or ():
        if not _is_valid_entry(entry):
            return {}
        operation, version = entry["operation"], entry["apiVersion"]
        name = Manager(
            entry.get("manager", ""), operation, version if operation == UPDATE else "", entry.get("subresource", "")
        )
        found[name] = ManagedFieldSet(entry.get("fieldsV1") or {}, version, entry.get("time") or "")
    return found


def _is_valid_entry(entry: Any) -> bool:
    return bool(
        isinstance(entry, dict)
        and entry.get("operation") in (APPLY, UPDATE)
        and entry.get("apiVersion")
        and entry.get("fieldsType") == "FieldsV1"
    )


def is_reset(entries: Any) -> bool:
    """Whether a client asks to reset all entries: an empty list, or one empty entry."""
    return isinstance(entries, list) and (not entries or entries == [{}])


def entries(managers: Managers) -> list[Tree]:
    """The entries as they are stored: appliers first, then by time and name."""
    return [_entry(manager, managers[manager]) for manager in sorted(managers, key=lambda each: _rank(each, managers))]


def _rank(manager: Manager, managers: Managers) -> tuple[str, ...]:
    owned = managers[manager]
    return manager.operation, owned.time, manager.name, owned.api_version, manager.subresource


def _entry(manager: Manager, owned: ManagedFieldSet) -> Tree:
    entry: Tree = {"manager": manager.name, "operation": manager.operation, "apiVersion": owned.api_version}
    if owned.time:
        entry["time"] = owned.time
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": owned.fields}
    if manager.subresource:
        entry["subresource"] = manager.subresource
    return entry


def cap_update_managers(managers: Managers) -> Managers:
    """Merge the oldest updaters of each version, once there are more than ten updaters."""
    updaters = [each for each in managers if each.operation == UPDATE]
    excess = len(updaters) - MAX_UPDATERS
    if excess <= 0:
        return managers
    left, first = dict(managers), dict[str, Manager]()
    for manager in sorted(updaters, key=lambda each: (managers[each].time, each.identity)):
        if excess <= 0:
            break
        owned = managers[manager]
        if owned.api_version not in first:
            first[owned.api_version] = manager
            continue
        bucket = Manager(_ANCIENT_CHANGES, UPDATE, owned.api_version)
        if bucket not in left:
            left[bucket] = left.pop(first[owned.api_version])
        both = field_sets.union(owned.fields, left[bucket].fields)
        left[bucket] = ManagedFieldSet(both, owned.api_version, owned.time)
        if manager != bucket:
            del left[manager]
        excess -= 1
    return left


def remove_fields(managers: Managers, removed: FieldSet, *, spare: Manager | None = None) -> Managers:
    """The managers without those fields. A manager without fields is dropped."""
    if not removed:
        return managers
    left: Managers = {}
    for manager, owned in managers.items():
        if manager == spare:
            left[manager] = owned
            continue
        rest = field_sets.difference(owned.fields, removed)
        if rest is owned.fields:
            left[manager] = owned
        elif rest:
            left[manager] = owned._replace(fields=rest)
    return left
