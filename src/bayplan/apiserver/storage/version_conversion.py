"""Conversion of stored objects to the requested version.

The versions of most kinds differ only in the version name. Two kinds have different fields: events, of the core group
and of `events.k8s.io`, and autoscalers, of `v1` and `v2`. Events are stored in the core form, autoscalers in `v2`.
Versions of a custom resource differ in their schemas: fields are not converted, unknown fields are pruned.
Cost: joining two byte strings; for an event of the other group one decode and one encode.
"""

from __future__ import annotations

from functools import lru_cache

from bayplan.apiserver.resources.autoscaler_conversion import is_v1_autoscaler, to_v1
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.schema.body_decoding import custom_type
from bayplan.apiserver.storage.stored_objects import StoredObject, encode

_EVENTS = "events.k8s.io"
_CORE_TO_EVENTS = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_EVENTS_TO_CORE = {events_name: core_name for core_name, events_name in _CORE_TO_EVENTS.items()}
_CORE_EVENT_DEFAULTS: Tree = {
    "involvedObject": {},
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "reportingComponent": "",
    "reportingInstance": "",
}
_EVENTS_GROUP_DEFAULTS: Tree = {
    "deprecatedSource": {},
    "deprecatedFirstTimestamp": None,
    "deprecatedLastTimestamp": None,
}


@lru_cache(maxsize=1024)
def type_meta_json(kind: str, api_version: str) -> bytes:
    """The text in front of the stored one: the opening brace, kind and apiVersion."""
    return encode({"kind": kind, "apiVersion": api_version})[:-1] + b","


def is_events_group(resource: ServedResource) -> bool:
    return resource.group == _EVENTS and resource.plural == "events"


def to_json(resource: ServedResource, entry: StoredObject) -> bytes:
    return type_meta_json(resource.kind, resource.api_version) + _text(resource, entry)[1:]


def to_list_item(resource: ServedResource, entry: StoredObject) -> bytes:
    """The JSON text of a list item: items of built-in kinds omit kind and apiVersion."""
    return to_json(resource, entry) if resource.custom else _text(resource, entry)


def to_tree(resource: ServedResource, entry: StoredObject) -> Tree:
    """The decoded object with kind and apiVersion. The caller may change it."""
    body = entry.tree()
    if is_events_group(resource):
        body = _rename_event_fields(body, _CORE_TO_EVENTS, {})
    if is_v1_autoscaler(resource):
        return {"kind": resource.kind, **to_v1(body)}
    body = {"kind": resource.kind, "apiVersion": resource.api_version, **body}
    return custom_type(resource).prune(body) if resource.has_other_versions else body


def to_storage_version(resource: ServedResource, body: Tree) -> Tree:
    return _rename_event_fields(body, _EVENTS_TO_CORE, _CORE_EVENT_DEFAULTS) if is_events_group(resource) else body


def _text(resource: ServedResource, entry: StoredObject) -> bytes:
    if resource.has_other_versions or is_v1_autoscaler(resource):
        return encode(
            {key: value for key, value in to_tree(resource, entry).items() if key not in ("kind", "apiVersion")}
        )
    if not is_events_group(resource):
        return entry.raw
    return encode(_rename_event_fields(entry.tree(), _CORE_TO_EVENTS, _EVENTS_GROUP_DEFAULTS))


def _rename_event_fields(body: Tree, names: dict[str, str], defaults: Tree) -> Tree:
    return {**defaults, **{names.get(key, key): value for key, value in body.items()}}
