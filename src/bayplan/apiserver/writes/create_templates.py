"""Is this new object like others before it, but for its name? Then it is cast, and not made.

Asked by every create. Pods of one workload and the events about them come as texts that differ in a name and little
else, and what the rules make of one of them they make of all: they read a name to find fault with it and for nothing
else. So a mould is kept of what was stored, with a hole wherever two of a kind differ, and with the state of every
place that the rules looked at: a namespace or a priority class that changes breaks it. The first of a kind is only
noted, of the second a mould is made, the third is made and held against the mould, all others are cast.
What is unusual in any way (parameters, warnings, a hole with something odd in it) goes the long way each time.
Cost: some 10 µs an object that is cast, where making a pod takes over a hundred; 3 µs for one that is not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from bayplan.apiserver.content_negotiation import JSON
from bayplan.apiserver.requests import Ask
from bayplan.apiserver.resources.kinds import Resource, Tree
from bayplan.apiserver.schema.scalars import ScalarError, canonical_micro_time
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.store import Objects, PlaceName, Store
from bayplan.apiserver.storage.store_lookup import StoreLookup
from bayplan.apiserver.storage.stored_objects import Entry, Extractor, encode
from bayplan.apiserver.validation.names import dns_label, dns_subdomain
from bayplan.apiserver.writes.metadata import new_uid, timestamp
from bayplan.apiserver.writes.writer import Written
from bayplan.clock import Clock

MOST = 1024
MOST_BYTES = 16 << 10
_LONGEST_NOTE = 1024
_MARK = "\ue000"
_HOLE = re.compile(f"{_MARK}([a-z0-9 ]+){_MARK}".encode())
is_plain = re.compile(r"[ !#-\[\]-~]+").fullmatch
"""Texts that stand in JSON as they are."""

Values = dict[bytes, bytes]
"""What goes into each hole."""
Given = dict[bytes, str]
Path = tuple[str | int, ...]
Seen = tuple[tuple[Objects, int], ...]
"""How often the places had changed that the rules looked at."""
NoMould = Literal["noted", "hopeless"]
"""In place of a mould: one of the kind has been here, or no mould can be made of it."""


class _Named(msgspec.Struct):
    name: str = ""


class _Regarding(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class _NewPod(msgspec.Struct):
    metadata: _Named


class _NewEvent(msgspec.Struct, rename="camel"):
    metadata: _Named
    regarding: _Regarding
    note: str = ""
    event_time: str = ""


def _holes_of_pod(pod: _NewPod) -> Given | None:
    name = pod.metadata.name
    return {b"name": name} if not dns_label(name) else None


def _holes_of_event(event: _NewEvent) -> Given | None:
    about = event.regarding
    if dns_subdomain(event.metadata.name) or len(event.note) > _LONGEST_NOTE:
        return None
    try:
        if canonical_micro_time(event.event_time) != event.event_time:
            return None
    except ScalarError:
        return None
    given = {b"name": event.metadata.name, b"about": about.name, b"uid of it": about.uid, b"note": event.note}
    given |= {b"version of it": about.resource_version, b"event time": event.event_time}
    return {hole: text for hole, text in given.items() if text}


class _Shape(NamedTuple):
    """What may differ between two new objects of a kind."""

    decode: Callable[[bytes], Any]
    holes: Callable[[Any], Given | None]
    """The texts that differ; None where one of them would not be taken as it is."""
    kept_in: Mapping[bytes, Path]
    """Where the stored form has them."""


_SHAPES: Mapping[tuple[str, str, str], _Shape] = {
    ("", "v1", "pods"): _Shape(msgspec.json.Decoder(_NewPod).decode, _holes_of_pod, {b"name": ("metadata", "name")}),
    ("events.k8s.io", "v1", "events"): _Shape(
        msgspec.json.Decoder(_NewEvent).decode,
        _holes_of_event,
        {
            b"name": ("metadata", "name"),
            b"about": ("involvedObject", "name"),
            b"uid of it": ("involvedObject", "uid"),
            b"version of it": ("involvedObject", "resourceVersion"),
            b"note": ("message",),
            b"event time": ("eventTime",),
        },
    ),
}
_SERVERS_OWN: Mapping[bytes, tuple[Path, ...]] = {
    b"uid": (("metadata", "uid"),),
    b"now": (("metadata", "creationTimestamp"), ("metadata", "managedFields", 0, "time")),
    b"version": (("metadata", "resourceVersion"),),
}
"""What the server writes into every object anew."""


Key = tuple[str, str, str, str, bytes]
"""Kind, version, namespace and manager, and the body without what may differ."""


class Sought(NamedTuple):
    """What a body has in common with others, and what it has for itself."""

    key: Key
    name: str
    values: Values


class Mould(msgspec.Struct, eq=False):
    """What objects of one kind have in common."""

    kept: bytes
    shown: bytes
    model: Entry
    fields: Mapping[str, bytes]
    """Those by which objects are selected that are holes."""
    seen: Seen
    proven: bool = False

    @classmethod
    def of(cls, resource: Resource, entry: Entry, text: bytes, extract: Extractor | None, seen: Seen) -> Mould:
        """Of an object, and of its text with marks where others differ."""
        model = replace(entry, raw=text)
        chosen_by = extract(model.tree()) if extract is not None else {}
        fields = {field: text[1:-1].encode() for field, text in chosen_by.items() if text[:1] == _MARK}
        return cls(with_holes(text), with_holes(version_conversion.whole(resource, model)), entry, fields, seen)

    def proves(self, values: Values, written: Written) -> bool:
        """Whether what was made would have been cast just so."""
        made = written.entry
        assert made is not None
        cast = self.entry(made.name, made.uid, made.version, values)
        return self.holds() and astuple(cast) == astuple(made) and self.shown % values == written.text

    def holds(self) -> bool:
        """Whether the rules would see what they saw."""
        for place, changes in self.seen:  # noqa: SIM110 (a generator costs more than the question)
            if place.changes != changes:
                return False
        return True

    def entry(self, name: str, uid: str, version: int, values: Values) -> Entry:
        model, fields = self.model, self.model.fields
        if self.fields:
            fields = dict(fields)
            for field, hole in self.fields.items():
                fields[field] = values[hole].decode()
        return Entry(model.namespace, name, version, self.kept % values, model.labels, fields, uid, model.owners)


class Moulds:
    """The moulds of one cluster."""

    def __init__(self, store: Store, lookup: StoreLookup, clock: Clock, chance: random.Random) -> None:
        self._store = store
        self._lookup = lookup
        self._clock = clock
        self._chance = chance
        self._known: dict[Key, Mould | NoMould] = {}

    def sought(self, ask: Ask, body: bytes) -> Sought | None:
        """What to look for; None where the object has to be made in any case."""
        resource = ask.resource
        shape = _SHAPES.get((resource.group, resource.version, resource.plural))
        if shape is None or ask.query or ask.path.subresource or len(body) > MOST_BYTES or b"\0" in body:
            return None
        if ask.headers.get("Content-Type") != JSON:
            return None
        try:
            given = shape.holes(shape.decode(body))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        if given is None:
            return None
        values: Values = {}
        rest = body
        for hole, text in given.items():
            value = text.encode()
            quoted = b'"%b"' % value
            if body.count(quoted) != 1 or not is_plain(text):
                return None  # which of them is the one that differs could not be told
            rest = rest.replace(quoted, b"\0%b\0" % hole)
            values[hole] = value
        key = (resource.kind, resource.api_version, ask.namespace, ask.manager, rest)
        return Sought(key, given[b"name"], values)

    def cast(self, ask: Ask, sought: Sought) -> Written | None:
        """The object, stored; None where it has to be made, which is listened to from here on."""
        mould = self._known.get(sought.key)
        if isinstance(mould, Mould) and mould.proven and mould.holds():
            place = self._store.uncommitted(ask.resource.storage)
            if place.get(ask.namespace, sought.name) is None:
                return self._cast(mould, place.name, sought)
        self._lookup.asked.clear()
        return None

    def _cast(self, mould: Mould, name: PlaceName, sought: Sought) -> Written:
        now, uid, version = timestamp(self._clock.now()), new_uid(self._chance), self._store.newest + 1
        values = {**sought.values, **_own(now, uid, version)}
        entry = self._store.take(name, mould.entry(sought.name, uid, version, values))
        return Written(mould.shown % values, {}, created=True, entry=entry)

    def learn(self, ask: Ask, sought: Sought, written: Written) -> None:
        """An object was made, and there was nothing to say about it."""
        known, made = self._known.get(sought.key), written.entry
        if made is None or known == "hopeless":
            return
        if known is None:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[sought.key] = "noted"
        elif isinstance(known, Mould) and known.proves(_values(sought, made), written):
            known.proven = True
        else:
            place = self._store.uncommitted(ask.resource.storage)
            seen = tuple((each, each.changes) for each in self._lookup.asked.values())
            self._known[sought.key] = mould_of(ask.resource, place, made, sought, seen) or "hopeless"


def mould_of(resource: Resource, place: Objects, entry: Entry, sought: Sought, seen: Seen) -> Mould | None:
    """A mould of one object; None where something else in it may depend on what differs."""
    tree = entry.tree()
    if encode(tree) != entry.raw or len(tree["metadata"].get("managedFields", ())) != 1 or entry.deleting:
        return None
    for hole, way in _SHAPES[resource.group, resource.version, resource.plural].kept_in.items():
        if hole in sought.values and exchanged(tree, way, marked(hole)).encode() != sought.values[hole]:
            return None
    for hole, ways in _SERVERS_OWN.items():
        texts = {exchanged(tree, way, marked(hole)).encode() for way in ways}
        # A time or a uid that stands elsewhere too was put there by a rule.
        if len(texts) != 1 or (hole != b"version" and entry.raw.count(texts.pop()) != len(ways)):
            return None
    return Mould.of(resource, entry, encode(tree), place.extract, seen)


def _values(sought: Sought, made: Entry) -> Values:
    return {**sought.values, **_own(made.tree()["metadata"]["creationTimestamp"], made.uid, made.version)}


def _own(now: str, uid: str, version: int) -> Values:
    return {b"now": now.encode(), b"uid": uid.encode(), b"version": b"%d" % version}


def marked(hole: bytes) -> str:
    return f"{_MARK}{hole.decode()}{_MARK}"


def exchanged(tree: Tree, way: Path, text: str) -> str:
    """What stood there before."""
    holder: Any = tree
    for step in way[:-1]:
        holder = holder[step]
    before: str = holder[way[-1]]
    holder[way[-1]] = text
    return before


def with_holes(marked: bytes) -> bytes:
    """A text into which values go by `%`."""
    return _HOLE.sub(rb"%(\1)b", marked.replace(b"%", b"%%"))
