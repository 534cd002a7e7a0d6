"""Is the first report about a pod like those about others? Then the pod's new state is cast, and not made.

Asked by every patch. A kubelet says the same of all pods of a workload, but for an address, the ids of containers and
the time, and pods of a workload are the same but for a name, a uid, a node and the time. What a report makes of a pod
depends on these in two ways only: they are copied, and managers stand in the order of their times. So both texts are
looked for with names left out and with times told by their order, which says also which of them are equal; for a pair
that is known there is a mould of the result, as in `moulds`. Whatever is unusual goes the long way.
Cost: some 40 µs a report, where patching takes over 150.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from bayplan.clock import Clock
from bayplan.cluster.asking import Ask
from bayplan.cluster.entries import Entry, encode
from bayplan.cluster.kinds import Resource, Tree
from bayplan.cluster.looking import StoreLookup
from bayplan.cluster.metadata import timestamp
from bayplan.cluster.moulds import MOST, MOST_BYTES, Hopeless, Mould, Seen, Values, exchanged, is_plain, marked
from bayplan.cluster.rules.names import ip
from bayplan.cluster.schema.patching import STRATEGIC_PATCH
from bayplan.cluster.schema.scalars import ScalarError, canonical_time
from bayplan.cluster.store import Place, Store
from bayplan.cluster.writing import Written

_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Timed(msgspec.Struct, rename="camel"):
    time: str = ""
    last_transition_time: str = ""


class _Began(msgspec.Struct, rename="camel"):
    started_at: str = ""


class _State(msgspec.Struct):
    running: _Began = msgspec.field(default_factory=_Began)


class _Container(msgspec.Struct, rename={"container_id": "containerID"}):
    container_id: str = ""
    state: _State = msgspec.field(default_factory=_State)


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    creation_timestamp: str = ""
    managed_fields: list[_Timed] = []


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(
    msgspec.Struct, rename={"start_time": "startTime", "pod_ip": "podIP", "container_statuses": "containerStatuses"}
):
    start_time: str = ""
    pod_ip: str = ""
    conditions: list[_Timed] = []
    container_statuses: list[_Container] = []


class _Live(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status


class _Report(msgspec.Struct):
    metadata: _Metadata
    status: _Status


_live = msgspec.json.Decoder(_Live).decode
_report = msgspec.json.Decoder(_Report).decode

Key = tuple[str, str, bytes, bytes, bytes]
"""Namespace and manager, pod and report without what differs, and where the moment stands among the times."""


class SoughtState(NamedTuple):
    key: Key
    live: Entry
    values: Values


class StatusMoulds:
    """The moulds of first reports of one cluster."""

    def __init__(self, store: Store, lookup: StoreLookup, clock: Clock) -> None:
        self._store = store
        self._lookup = lookup
        self._clock = clock
        self._known: dict[Key, Mould | Hopeless] = {}

    def sought(self, ask: Ask, body: bytes) -> SoughtState | None:
        """What to look for; None where the state has to be made in any case."""
        if ask.path.subresource != "status" or ask.resource.storage != ("", "pods") or ask.query:
            return None
        if ask.headers.get("Content-Type") != STRATEGIC_PATCH or len(body) > MOST_BYTES:
            return None
        if b"\0" in body or b"\\" in body:  # our own sign, or a text that is spelled in another way
            return None
        live = self._store.place(ask.resource.storage).get(ask.namespace, ask.name)
        if live is None or len(live.raw) > MOST_BYTES:
            return None
        try:
            pod, report = _live(live.raw), _report(body)
        except _UNREADABLE:
            return None
        if report.metadata.uid != live.uid or pod.status.start_time or pod.status.pod_ip or ip(report.status.pod_ip):
            return None
        return self._cut(ask, live, pod, report, body)

    def _cut(self, ask: Ask, live: Entry, pod: _Live, report: _Report, body: bytes) -> SoughtState | None:
        now = timestamp(self._clock.now())
        times = _times(pod, report)
        if times is None:
            return None
        values: Values = {b"name": live.name.encode(), b"uid": live.uid.encode(), b"node": pod.spec.node_name.encode()}
        text = live.raw
        for hole, value in {**values, b"version": b"%d" % live.version}.items():
            quoted = b'"%b"' % value
            if not value or text.count(quoted) != 1 or body.count(quoted) != (hole == b"uid"):
                return None  # which of them is the one that differs could not be told
            text = text.replace(quoted, b"\0%b\0" % hole)
        body = body.replace(b'"%b"' % values[b"uid"], b"\0uid\0")
        for at, container in enumerate(report.status.container_statuses):
            hole = b"container %d" % at
            values[hole] = value = container.container_id.encode()
            quoted = b'"%b"' % value
            if not is_plain(container.container_id) or body.count(quoted) != 1 or quoted in live.raw:
                return None
            body = body.replace(quoted, b"\0%b\0" % hole)
        values[b"address"] = address = report.status.pod_ip.encode()
        body = body.replace(b'"%b"' % address, b"\0address\0")
        for rank, time in enumerate(sorted({*times, now})):
            hole = b"time %d" % rank
            values[hole] = value = time.encode()
            quoted, mark = b'"%b"' % value, b"\0%b\0" % hole
            text, body = text.replace(quoted, mark), body.replace(quoted, mark)
            if time == now:
                moment = hole
        if not is_plain(ask.name) or not is_plain(pod.spec.node_name):
            return None
        return SoughtState((ask.namespace, ask.manager, text, body, moment), live, values)

    def cast(self, ask: Ask, sought: SoughtState) -> Written | None:
        """The new state, stored; None where it has to be made, which is listened to from here on."""
        mould = self._known.get(sought.key)
        if isinstance(mould, Mould) and mould.proven and mould.holds():
            version, live = self._store.version + 1, sought.live
            values = {**sought.values, b"version": b"%d" % version}
            place = self._store.place(ask.resource.storage)
            entry = self._store.take(place, mould.entry(live.name, live.uid, version, values))
            return Written(mould.shown % values, {}, entry=entry)
        self._lookup.asked.clear()
        return None

    def learn(self, ask: Ask, sought: SoughtState, written: Written) -> None:
        """A state was made, and there was nothing to say about it."""
        known, made = self._known.get(sought.key), written.entry
        if made is None or made is sought.live or known == "hopeless":
            return
        if timestamp(self._clock.now()).encode() != sought.values[sought.key[-1]]:
            return  # a second passed meanwhile, and nobody knows which of both was written down
        values = {**sought.values, b"version": b"%d" % made.version}
        if known is None:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[sought.key] = "noted"
        elif isinstance(known, Mould) and known.proves(values, written):
            known.proven = True
        else:
            place = self._store.place(ask.resource.storage)
            seen = tuple((each, each.changes) for each in self._lookup.asked.values())
            self._known[sought.key] = state_mould(ask.resource, place, made, values, seen) or "hopeless"


def _times(pod: _Live, report: _Report) -> list[str] | None:
    """All that are told; None where one would be written in another way than it was sent."""
    known = [pod.metadata.creation_timestamp]
    known += [each.time for each in pod.metadata.managed_fields]
    known += [each.last_transition_time for each in pod.status.conditions]
    told = [report.status.start_time]
    told += [each.last_transition_time for each in report.status.conditions]
    told += [each.state.running.started_at for each in report.status.container_statuses]
    try:
        for each in told:
            if not each or canonical_time(each) != each:
                return None
    except ScalarError:
        return None
    return known + told if all(known) else None


def state_mould(resource: Resource, place: Place, made: Entry, values: Values, seen: Seen) -> Mould | None:
    """A mould of one state; None where something else in it may depend on what differs."""
    tree = made.tree()
    if encode(tree) != made.raw:
        return None
    by_text = {value: hole for hole, value in values.items() if hole.startswith(b"time ")}
    for holder, key in _places_of_times(tree):
        hole = by_text.get(str(holder.get(key)).encode())
        if hole is None:
            return None
        holder[key] = marked(hole)
    containers = [hole for hole in values if hole.startswith(b"container ")]
    ids = [(hole, ("status", "containerStatuses", at, "containerID")) for at, hole in enumerate(containers)]
    for hole, way in (*_KEPT_IN, *ids):
        if exchanged(tree, way, marked(hole)).encode() != values[hole]:
            return None
    # Who told the address manages an element that is called by it.
    element = b'{\\"ip\\":\\"%b\\"}'
    text = encode(tree).replace(element % values[b"address"], element % marked(b"address").encode())
    if any(text.count(value) for value in (*by_text, values[b"uid"], values[b"address"])):
        return None  # it stands where nobody would have looked for it
    return Mould.of(resource, made, text, place.extract, seen)


_KEPT_IN: tuple[tuple[bytes, tuple[str | int, ...]], ...] = (
    (b"name", ("metadata", "name")),
    (b"uid", ("metadata", "uid")),
    (b"version", ("metadata", "resourceVersion")),
    (b"node", ("spec", "nodeName")),
    (b"address", ("status", "podIP")),
    (b"address", ("status", "podIPs", 0, "ip")),
)


def _places_of_times(tree: Tree) -> list[tuple[dict[str, Any], str]]:
    status = tree["status"]
    found = [(tree["metadata"], "creationTimestamp"), (status, "startTime")]
    found += [(each, "time") for each in tree["metadata"].get("managedFields", ())]
    found += [(each, "lastTransitionTime") for each in status.get("conditions", ())]
    running = ((each.get("state") or {}).get("running") for each in status.get("containerStatuses", ()))
    return found + [(each, "startedAt") for each in running if each is not None]
