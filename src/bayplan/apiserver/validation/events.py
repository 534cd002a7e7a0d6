"""Validation of events.

Core events have few checks unless they have an `eventTime`; `events.k8s.io/v1` has all of them.
"""

from __future__ import annotations

from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.go_struct_text import struct_text
from bayplan.apiserver.validation.metadata import check_metadata, check_metadata_update
from bayplan.apiserver.validation.names import dns_subdomain, label_key
from bayplan.codec.field_errors import IMMUTABLE, FieldErrorList

_EVENTS_V1_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_IMMUTABLE_FIELDS = (
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)


def _get(item: Tree, name: str, *, new: bool) -> Any:
    return item.get(_EVENTS_V1_NAMES.get(name, name) if new else name)


def check_core_event(out: FieldErrorList, item: Tree) -> None:
    _check_event(out, item, new=False)


def check_core_event_update(out: FieldErrorList, item: Tree, old: Tree) -> None:  # noqa: ARG001
    _check_event(out, item, new=False)


def _check_event(out: FieldErrorList, item: Tree, *, new: bool) -> None:
    namespace = item["metadata"].get("namespace", "")
    involved = (_get(item, "involvedObject", new=new) or {}).get("namespace", "")
    path = "involvedObject.namespace"
    if not item.get("eventTime"):
        fits = namespace in ("", "default") if not involved else namespace == involved
        if not fits:
            out.invalid(path, involved, "does not match event.namespace")
    else:
        if not involved and namespace not in ("default", "kube-system"):
            out.invalid(path, involved, "does not match event.namespace")
        _check_new_fields(out, item, new=new)
    out.each_invalid("namespace", namespace, dns_subdomain(namespace))


def _check_new_fields(out: FieldErrorList, item: Tree, *, new: bool) -> None:
    field = "reportingController" if new else "reportingComponent"
    controller = item.get(field) or ""
    if not controller:
        out.required(field)
    out.each_invalid(field, controller, label_key(controller))
    for name in ("reportingInstance", "action", "reason"):
        text = item.get(name) or ""
        if not text:
            out.required(name)
        if len(text) > 128:
            out.invalid(name, "", "can have at most 128 characters")
    if len(_get(item, "message", new=new) or "") > 1024:
        out.invalid("message", "", "can have at most 1024 characters")


def check_events_v1(out: FieldErrorList, item: Tree) -> None:
    _check_event(out, item, new=True)
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    _check_series(out, item)
    if not item.get("eventTime"):
        out.required("eventTime")
    kind = item.get("type", "")
    if kind not in ("Normal", "Warning"):
        out.invalid("type", "", f"has invalid value: {kind}")
    for name in ("firstTimestamp", "lastTimestamp", "count"):
        if _get(item, name, new=True):
            out.invalid(name, "", "needs to be unset")
    if _get(item, "source", new=True):
        out.invalid("source", "", "needs to be unset")


def _check_series(out: FieldErrorList, item: Tree) -> None:
    series = item.get("series")
    if series is not None:
        if series.get("count", 0) < 2:
            out.invalid("series.count", "", "should be at least 2")
        if not series.get("lastObservedTime"):
            out.required("series.lastObservedTime")


def check_events_v1_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    _check_event(out, item, new=True)
    check_metadata_update(out, item["metadata"], old["metadata"])
    if item.get("series") != old.get("series"):
        _check_series(out, item)
    for name in _IMMUTABLE_FIELDS:
        shown = "reportingController" if name == "reportingComponent" else name
        new, before = _get(item, name, new=True), _get(old, name, new=True)
        if new != before:
            out.invalid(shown, _value_text(name, new), IMMUTABLE)


def _value_text(name: str, value: Any) -> Any:
    if name in ("involvedObject", "related"):
        return struct_text("core.ObjectReference", value)
    if name == "source":
        return struct_text("core.EventSource", value)
    if name in ("firstTimestamp", "lastTimestamp", "eventTime"):
        return value
    return value or (0 if name == "count" else "")
