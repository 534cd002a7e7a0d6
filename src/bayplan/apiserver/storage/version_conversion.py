"""How does a stored object look in the version that a client asked for?

Kinds have one shape in all of their versions, save for the names of those versions; only events have two, since the
core group and `events.k8s.io` call their fields differently, and autoscalers, whose first version knew less. Events are
stored in the core form, autoscalers in that of the second version. Versions of a custom
resource differ in what their schemas know; nothing is converted, but what a version does not know it does not show.
Cost: joining two byte strings; for an event of the other group one decoding and one encoding.
"""

from __future__ import annotations

from functools import lru_cache

from bayplan.apiserver.resources.autoscaler_conversion import is_old_autoscaler, to_old
from bayplan.apiserver.resources.kinds import Resource, Tree
from bayplan.apiserver.schema.body_decoding import custom_type
from bayplan.apiserver.storage.stored_objects import Entry, encode

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
_EVENTS_TO_CORE = {other: core for core, other in _CORE_TO_EVENTS.items()}
_ALWAYS_THERE: Tree = {
    "involvedObject": {},
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "reportingComponent": "",
    "reportingInstance": "",
}
_THERE_ELSEWHERE: Tree = {
    "deprecatedSource": {},
    "deprecatedFirstTimestamp": None,
    "deprecatedLastTimestamp": None,
}


@lru_cache(maxsize=1024)
def head(kind: str, api_version: str) -> bytes:
    """What stands before the stored text: the opening brace, kind and apiVersion."""
    return encode({"kind": kind, "apiVersion": api_version})[:-1] + b","


def is_other_event(resource: Resource) -> bool:
    return resource.group == _EVENTS and resource.plural == "events"


def whole(resource: Resource, entry: Entry) -> bytes:
    """The object as a single answer."""
    return head(resource.kind, resource.api_version) + _text(resource, entry)[1:]


def item(resource: Resource, entry: Entry) -> bytes:
    """The object as one of a list: built-in kinds do not repeat what the list says."""
    return whole(resource, entry) if resource.custom else _text(resource, entry)


def tree(resource: Resource, entry: Entry) -> Tree:
    """The object with kind and apiVersion, yours to change."""
    body = entry.tree()
    if is_other_event(resource):
        body = _renamed(body, _CORE_TO_EVENTS, {})
    if is_old_autoscaler(resource):
        return {"kind": resource.kind, **to_old(body)}
    body = {"kind": resource.kind, "apiVersion": resource.api_version, **body}
    return custom_type(resource).pruned(body) if resource.converted else body


def stored(resource: Resource, body: Tree) -> Tree:
    """The form that is kept, of an object in the form that was sent."""
    return _renamed(body, _EVENTS_TO_CORE, _ALWAYS_THERE) if is_other_event(resource) else body


def _text(resource: Resource, entry: Entry) -> bytes:
    if resource.converted or is_old_autoscaler(resource):
        return encode({key: value for key, value in tree(resource, entry).items() if key not in ("kind", "apiVersion")})
    if not is_other_event(resource):
        return entry.raw
    return encode(_renamed(entry.tree(), _CORE_TO_EVENTS, _THERE_ELSEWHERE))


def _renamed(body: Tree, names: dict[str, str], filled: Tree) -> Tree:
    return {**filled, **{names.get(key, key): value for key, value in body.items()}}
