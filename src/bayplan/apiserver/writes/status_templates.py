"""Is a binding, or a kubelet's first report, like those of other pods? Then the pod's new state is cast, and not made.

Asked by every binding and every patch. All pods of a workload are the same but for a name, a uid, a node and the time,
and what is said of them is the same but for these, an address and the ids of containers. What becomes of a pod depends
on them in two ways only: they are copied, and managers stand in the order of their times. So both texts are looked for
with names left out and with times told by their order, which says also which of them are equal; for a pair that is
known there is a mould of the result, as in `moulds`. Whatever is unusual goes the long way.
Cost: some 30 µs a state, where a binding takes 60 and a patch over 150.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from bayplan.apiserver.content_negotiation import JSON
from bayplan.apiserver.requests import ResourceRequest
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.lookup import built_in
from bayplan.apiserver.schema.patches import STRATEGIC_PATCH
from bayplan.apiserver.schema.scalars import ScalarError, canonical_time
from bayplan.apiserver.storage.store import ResourceObjects, Store
from bayplan.apiserver.storage.store_lookup import StoreLookup
from bayplan.apiserver.storage.stored_objects import StoredObject, encode
from bayplan.apiserver.validation.names import ip
from bayplan.apiserver.writes.create_templates import (
    MAX_BODY_BYTES,
    MAX_TEMPLATES,
    CreateTemplate,
    NoTemplate,
    PlaceholderValues,
    ReadPlaces,
    is_plain_json_text,
    placeholder,
    replace_at,
)
from bayplan.apiserver.writes.metadata import timestamp
from bayplan.apiserver.writes.writer import WriteResult
from bayplan.clock import Clock

_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _TimeFields(msgspec.Struct, rename="camel"):
    time: str = ""
    last_transition_time: str = ""


class _RunningState(msgspec.Struct, rename="camel"):
    started_at: str = ""


class _ContainerStateFields(msgspec.Struct):
    running: _RunningState = msgspec.field(default_factory=_RunningState)


class _ContainerStatusBody(msgspec.Struct, rename={"container_id": "containerID"}):
    container_id: str = ""
    state: _ContainerStateFields = msgspec.field(default_factory=_ContainerStateFields)


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    creation_timestamp: str = ""
    managed_fields: list[_TimeFields] = []


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _PodStatusTimes(
    msgspec.Struct, rename={"start_time": "startTime", "pod_ip": "podIP", "container_statuses": "containerStatuses"}
):
    start_time: str = ""
    pod_ip: str = ""
    conditions: list[_TimeFields] = []
    container_statuses: list[_ContainerStatusBody] = []


class _StoredPodState(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _PodStatusTimes


class _StatusPatchBody(msgspec.Struct):
    metadata: _Metadata
    status: _PodStatusTimes


class _ObjectRef(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _BindingBody(msgspec.Struct):
    metadata: _ObjectRef
    target: _ObjectRef


_decode_pod = msgspec.json.Decoder(_StoredPodState).decode
_decode_binding = msgspec.json.Decoder(_BindingBody).decode
_decode_status_patch = msgspec.json.Decoder(_StatusPatchBody).decode

StatusTemplateKey = tuple[str, str, str, bytes, bytes, bytes]
"""The part that is asked for, namespace and manager, pod and body without what differs, and the hole of this moment."""


class Placeholder(NamedTuple):
    """Something that differs, and how often it stands in the pod and in the body."""

    name: bytes
    content: str
    in_pod: int
    in_body: int


class StatusTemplateInput(NamedTuple):
    """What a pod and a body about it have in common with others, and what they have for themselves."""

    key: StatusTemplateKey
    live: StoredObject
    values: PlaceholderValues


class StatusTemplates:
    """The moulds of new states of pods of one cluster."""

    def __init__(self, store: Store, lookup: StoreLookup, clock: Clock) -> None:
        self._store = store
        self._lookup = lookup
        self._clock = clock
        self._known: dict[StatusTemplateKey, CreateTemplate | NoTemplate] = {}

    def parse_status_patch(self, ask: ResourceRequest, body: bytes) -> StatusTemplateInput | None:
        """What to look for when a patch came; None where the state has to be made in any case."""
        live = self._live(ask, body, "status", STRATEGIC_PATCH)
        if live is None:
            return None
        try:
            pod, report = _decode_pod(live.raw), _decode_status_patch(body)
        except _UNREADABLE:
            return None
        status = report.status
        if report.metadata.uid != live.uid or pod.status.start_time or pod.status.pod_ip or ip(status.pod_ip):
            return None
        times = _all_times(pod, report)
        if times is None:
            return None
        holes = [
            Placeholder(b"name", live.name, 1, 0),
            Placeholder(b"uid", live.uid, 1, 1),
            Placeholder(b"node", pod.spec.node_name, 1, 0),
        ]
        holes += [
            Placeholder(b"container %d" % at, each.container_id, 0, 1)
            for at, each in enumerate(status.container_statuses)
        ]
        # An address stands there twice, and nowhere else as `make_status_template` makes sure.
        address = status.pod_ip.encode()
        found = self._sought(ask, live, body.replace(b'"%b"' % address, b"\0address\0"), holes, times)
        if found is not None:
            found.values[b"address"] = address
        return found

    def parse_binding(self, ask: ResourceRequest, body: bytes) -> StatusTemplateInput | None:
        """The same for a binding."""
        live = self._live(ask, body, "binding", JSON)
        if live is None:
            return None
        try:
            pod, binding = _decode_pod(live.raw), _decode_binding(body)
        except _UNREADABLE:
            return None
        times = _all_times(pod)
        if binding.metadata.uid != live.uid or binding.metadata.name != live.name or pod.spec.node_name or not times:
            return None
        holes = [
            Placeholder(b"name", live.name, 1, 1),
            Placeholder(b"uid", live.uid, 1, 1),
            Placeholder(b"node", binding.target.name, 0, 1),
        ]
        return self._sought(ask, live, body, holes, times)

    def _live(self, ask: ResourceRequest, body: bytes, part: str, media: str) -> StoredObject | None:
        """The pod that is meant, if nothing is unusual about how it is asked for."""
        if ask.path.subresource != part or ask.resource.storage != ("", "pods") or ask.query:
            return None
        if ask.headers.get("Content-Type") != media or len(body) > MAX_BODY_BYTES:
            return None
        if b"\0" in body or b"\\" in body:  # our own sign, or a text that is spelled in another way
            return None
        live = self._store.uncommitted(ask.resource.storage).get(ask.namespace, ask.name)
        return live if live is not None and len(live.raw) <= MAX_BODY_BYTES else None

    def _sought(
        self, ask: ResourceRequest, live: StoredObject, body: bytes, holes: list[Placeholder], times: list[str]
    ) -> StatusTemplateInput | None:
        values: PlaceholderValues = {}
        text = live.raw
        for hole, content, in_pod, in_body in (*holes, Placeholder(b"version", str(live.version), 1, 0)):
            values[hole] = value = content.encode()
            quoted = b'"%b"' % value
            if not is_plain_json_text(content) or text.count(quoted) != in_pod or body.count(quoted) != in_body:
                return None  # which of them is the one that differs could not be told
            mark = b"\0%b\0" % hole
            if in_pod:
                text = text.replace(quoted, mark)
            if in_body:
                body = body.replace(quoted, mark)
        now, moment = timestamp(self._clock.now()), b""
        for rank, time in enumerate(sorted({*times, now})):
            hole = b"time %d" % rank
            values[hole] = value = time.encode()
            quoted, mark = b'"%b"' % value, b"\0%b\0" % hole
            text, body = text.replace(quoted, mark), body.replace(quoted, mark)
            if time == now:
                moment = hole
        return StatusTemplateInput((ask.path.subresource, ask.namespace, ask.manager, text, body, moment), live, values)

    def apply(self, ask: ResourceRequest, sought: StatusTemplateInput) -> WriteResult | None:
        """The new state, stored; None where it has to be made, which is listened to from here on."""
        mould = self._known.get(sought.key)
        if isinstance(mould, CreateTemplate) and mould.verified and mould.is_current():
            version, live, values = self._store.newest_version + 1, sought.live, sought.values
            values[b"version"] = b"%d" % version
            entry = self._store.put_entry(ask.resource.storage, mould.entry(live.name, live.uid, version, values))
            return WriteResult(mould.response_format % values, {}, entry=entry)
        self._lookup.places_read.clear()
        return None

    def learn(self, sought: StatusTemplateInput, written: WriteResult) -> None:
        """A state was made, and there was nothing to say about it."""
        known, made = self._known.get(sought.key), written.entry
        if made is None or made is sought.live or known == "hopeless":
            return
        if timestamp(self._clock.now()).encode() != sought.values[sought.key[-1]]:
            return  # a second passed meanwhile, and nobody knows which of both was written down
        values = {**sought.values, b"version": b"%d" % made.version}
        if known is None:
            if len(self._known) >= MAX_TEMPLATES:
                self._known.clear()
            self._known[sought.key] = "noted"
        elif isinstance(known, CreateTemplate) and known.reproduces(values, written):
            known.verified = True
        else:
            pods = built_in("Pod")
            seen = tuple((each, each.change_count) for each in self._lookup.places_read.values())
            self._known[sought.key] = (
                make_status_template(pods, self._store.uncommitted(pods.storage), made, values, seen) or "hopeless"
            )


def _all_times(pod: _StoredPodState, report: _StatusPatchBody | None = None) -> list[str] | None:
    """All that are told; None where one would be written in another way than it was sent."""
    known = [pod.metadata.creation_timestamp]
    known += [each.time for each in pod.metadata.managed_fields]
    known += [each.last_transition_time for each in pod.status.conditions]
    if not all(known):
        return None
    if report is None:
        return known
    told = [report.status.start_time]
    told += [each.last_transition_time for each in report.status.conditions]
    told += [each.state.running.started_at for each in report.status.container_statuses]
    try:
        for each in told:
            if not each or canonical_time(each) != each:
                return None
    except ScalarError:
        return None
    return known + told


def make_status_template(
    resource: ServedResource, place: ResourceObjects, made: StoredObject, values: PlaceholderValues, seen: ReadPlaces
) -> CreateTemplate | None:
    """A mould of one state; None where something else in it may depend on what differs."""
    tree = made.tree()
    if encode(tree) != made.raw:
        return None
    by_text = {value: hole for hole, value in values.items() if hole.startswith(b"time ")}
    for holder, key in _time_paths(tree):
        hole = by_text.get(str(holder.get(key)).encode())
        if hole is None:
            return None
        holder[key] = placeholder(hole)
    containers = [hole for hole in values if hole.startswith(b"container ")]
    ids = [(hole, ("status", "containerStatuses", at, "containerID")) for at, hole in enumerate(containers)]
    addresses = _IP_PATHS if b"address" in values else ()
    for hole, way in (*_PLACEHOLDER_PATHS, *addresses, *ids):
        if replace_at(tree, way, placeholder(hole)).encode() != values[hole]:
            return None
    text = encode(tree)
    if addresses:  # who told it manages an element that is called by it
        element = b'{\\"ip\\":\\"%b\\"}'
        text = text.replace(element % values[b"address"], element % placeholder(b"address").encode())
    if any(text.count(value) for hole, value in values.items() if hole not in (b"name", b"node", b"version")):
        return None  # it stands where nobody would have looked for it
    return CreateTemplate.of(resource, made, text, place.extract, seen)


_PLACEHOLDER_PATHS: tuple[tuple[bytes, tuple[str | int, ...]], ...] = (
    (b"name", ("metadata", "name")),
    (b"uid", ("metadata", "uid")),
    (b"version", ("metadata", "resourceVersion")),
    (b"node", ("spec", "nodeName")),
)
_IP_PATHS: tuple[tuple[bytes, tuple[str | int, ...]], ...] = (
    (b"address", ("status", "podIP")),
    (b"address", ("status", "podIPs", 0, "ip")),
)


def _time_paths(tree: Tree) -> list[tuple[dict[str, Any], str]]:
    status = tree["status"]
    found = [(tree["metadata"], "creationTimestamp")]
    found += [(status, "startTime")] if "startTime" in status else []
    found += [(each, "time") for each in tree["metadata"].get("managedFields", ())]
    found += [(each, "lastTransitionTime") for each in status.get("conditions", ())]
    running = ((each.get("state") or {}).get("running") for each in status.get("containerStatuses", ()))
    return found + [(each, "startedAt") for each in running if each is not None]
