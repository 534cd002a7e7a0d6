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
from bayplan.apiserver.requests import ResourceRequest
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.schema.scalars import ScalarError, canonical_micro_time
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.store import GroupResource, ResourceObjects, Store
from bayplan.apiserver.storage.store_lookup import StoreLookup
from bayplan.apiserver.storage.stored_objects import FieldExtractor, StoredObject, encode
from bayplan.apiserver.validation.names import dns_label, dns_subdomain
from bayplan.apiserver.writes.metadata import new_uid, timestamp
from bayplan.apiserver.writes.writer import WriteResult
from bayplan.clock import Clock

MAX_TEMPLATES = 1024
MAX_BODY_BYTES = 16 << 10
_MAX_NOTE_LENGTH = 1024
_MARK = "\ue000"
_PLACEHOLDER = re.compile(f"{_MARK}([a-z0-9 ]+){_MARK}".encode())
is_plain_json_text = re.compile(r"[ !#-\[\]-~]+").fullmatch
"""Texts that stand in JSON as they are."""

PlaceholderValues = dict[bytes, bytes]
"""What goes into each hole."""
PlaceholderTexts = dict[bytes, str]
FieldPath = tuple[str | int, ...]
ReadPlaces = tuple[tuple[ResourceObjects, int], ...]
"""How often the places had changed that the rules looked at."""
NoTemplate = Literal["noted", "hopeless"]
"""In place of a mould: one of the kind has been here, or no mould can be made of it."""


class _ObjectName(msgspec.Struct):
    name: str = ""


class _EventSubject(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class _NewPod(msgspec.Struct):
    metadata: _ObjectName


class _NewEvent(msgspec.Struct, rename="camel"):
    metadata: _ObjectName
    regarding: _EventSubject
    note: str = ""
    event_time: str = ""


def _pod_placeholders(pod: _NewPod) -> PlaceholderTexts | None:
    name = pod.metadata.name
    return {b"name": name} if not dns_label(name) else None


def _event_placeholders(event: _NewEvent) -> PlaceholderTexts | None:
    about = event.regarding
    if dns_subdomain(event.metadata.name) or len(event.note) > _MAX_NOTE_LENGTH:
        return None
    try:
        if canonical_micro_time(event.event_time) != event.event_time:
            return None
    except ScalarError:
        return None
    given = {b"name": event.metadata.name, b"about": about.name, b"uid of it": about.uid, b"note": event.note}
    given |= {b"version of it": about.resource_version, b"event time": event.event_time}
    return {hole: text for hole, text in given.items() if text}


class _TemplateKind(NamedTuple):
    """What may differ between two new objects of a kind."""

    decode: Callable[[bytes], Any]
    holes: Callable[[Any], PlaceholderTexts | None]
    """The texts that differ; None where one of them would not be taken as it is."""
    kept_in: Mapping[bytes, FieldPath]
    """Where the stored form has them."""


_TEMPLATE_KINDS: Mapping[tuple[str, str, str], _TemplateKind] = {
    ("", "v1", "pods"): _TemplateKind(
        msgspec.json.Decoder(_NewPod).decode, _pod_placeholders, {b"name": ("metadata", "name")}
    ),
    ("events.k8s.io", "v1", "events"): _TemplateKind(
        msgspec.json.Decoder(_NewEvent).decode,
        _event_placeholders,
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
_SERVER_FIELDS: Mapping[bytes, tuple[FieldPath, ...]] = {
    b"uid": (("metadata", "uid"),),
    b"now": (("metadata", "creationTimestamp"), ("metadata", "managedFields", 0, "time")),
    b"version": (("metadata", "resourceVersion"),),
}
"""What the server writes into every object anew."""


TemplateKey = tuple[str, str, str, str, bytes]
"""Kind, version, namespace and manager, and the body without what may differ."""


class TemplateInput(NamedTuple):
    """What a body has in common with others, and what it has for itself."""

    key: TemplateKey
    name: str
    values: PlaceholderValues


class CreateTemplate(msgspec.Struct, eq=False):
    """What objects of one kind have in common."""

    stored_format: bytes
    response_format: bytes
    example: StoredObject
    fields: Mapping[str, bytes]
    """Those by which objects are selected that are holes."""
    places_read: ReadPlaces
    verified: bool = False

    @classmethod
    def of(
        cls,
        resource: ServedResource,
        entry: StoredObject,
        text: bytes,
        extract: FieldExtractor | None,
        seen: ReadPlaces,
    ) -> CreateTemplate:
        """Of an object, and of its text with marks where others differ."""
        model = replace(entry, raw=text)
        chosen_by = extract(model.tree()) if extract is not None else {}
        fields = {field: text[1:-1].encode() for field, text in chosen_by.items() if text[:1] == _MARK}
        return cls(
            to_format_string(text), to_format_string(version_conversion.to_json(resource, model)), entry, fields, seen
        )

    def reproduces(self, values: PlaceholderValues, written: WriteResult) -> bool:
        """Whether what was made would have been cast just so."""
        made = written.entry
        assert made is not None
        cast = self.entry(made.name, made.uid, made.version, values)
        return self.is_current() and astuple(cast) == astuple(made) and self.response_format % values == written.text

    def is_current(self) -> bool:
        """Whether the rules would see what they saw."""
        for place, changes in self.places_read:  # noqa: SIM110 (a generator costs more than the question)
            if place.change_count != changes:
                return False
        return True

    def entry(self, name: str, uid: str, version: int, values: PlaceholderValues) -> StoredObject:
        model, fields = self.example, self.example.fields
        if self.fields:
            fields = dict(fields)
            for field, hole in self.fields.items():
                fields[field] = values[hole].decode()
        return StoredObject(
            model.namespace, name, version, self.stored_format % values, model.labels, fields, uid, model.owners
        )


class CreateTemplates:
    """The moulds of one cluster."""

    def __init__(self, store: Store, lookup: StoreLookup, clock: Clock, chance: random.Random) -> None:
        self._store = store
        self._lookup = lookup
        self._clock = clock
        self._chance = chance
        self._known: dict[TemplateKey, CreateTemplate | NoTemplate] = {}

    def parse(self, ask: ResourceRequest, body: bytes) -> TemplateInput | None:
        """What to look for; None where the object has to be made in any case."""
        resource = ask.resource
        shape = _TEMPLATE_KINDS.get((resource.group, resource.version, resource.plural))
        if shape is None or ask.query or ask.path.subresource or len(body) > MAX_BODY_BYTES or b"\0" in body:
            return None
        if ask.headers.get("Content-Type") != JSON:
            return None
        try:
            given = shape.holes(shape.decode(body))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        if given is None:
            return None
        values: PlaceholderValues = {}
        rest = body
        for hole, text in given.items():
            value = text.encode()
            quoted = b'"%b"' % value
            if body.count(quoted) != 1 or not is_plain_json_text(text):
                return None  # which of them is the one that differs could not be told
            rest = rest.replace(quoted, b"\0%b\0" % hole)
            values[hole] = value
        key = (resource.kind, resource.api_version, ask.namespace, ask.manager, rest)
        return TemplateInput(key, given[b"name"], values)

    def create(self, ask: ResourceRequest, sought: TemplateInput) -> WriteResult | None:
        """The object, stored; None where it has to be made, which is listened to from here on."""
        mould = self._known.get(sought.key)
        if isinstance(mould, CreateTemplate) and mould.verified and mould.is_current():
            place = self._store.uncommitted(ask.resource.storage)
            if place.get(ask.namespace, sought.name) is None:
                return self._create(mould, place.name, sought)
        self._lookup.places_read.clear()
        return None

    def _create(self, mould: CreateTemplate, name: GroupResource, sought: TemplateInput) -> WriteResult:
        now, uid, version = timestamp(self._clock.now()), new_uid(self._chance), self._store.newest_version + 1
        values = {**sought.values, **_server_values(now, uid, version)}
        entry = self._store.put_entry(name, mould.entry(sought.name, uid, version, values))
        return WriteResult(mould.response_format % values, {}, created=True, entry=entry)

    def learn(self, ask: ResourceRequest, sought: TemplateInput, written: WriteResult) -> None:
        """An object was made, and there was nothing to say about it."""
        known, made = self._known.get(sought.key), written.entry
        if made is None or known == "hopeless":
            return
        if known is None:
            if len(self._known) >= MAX_TEMPLATES:
                self._known.clear()
            self._known[sought.key] = "noted"
        elif isinstance(known, CreateTemplate) and known.reproduces(_all_values(sought, made), written):
            known.verified = True
        else:
            place = self._store.uncommitted(ask.resource.storage)
            seen = tuple((each, each.change_count) for each in self._lookup.places_read.values())
            self._known[sought.key] = make_template(ask.resource, place, made, sought, seen) or "hopeless"


def make_template(
    resource: ServedResource, place: ResourceObjects, entry: StoredObject, sought: TemplateInput, seen: ReadPlaces
) -> CreateTemplate | None:
    """A mould of one object; None where something else in it may depend on what differs."""
    tree = entry.tree()
    if encode(tree) != entry.raw or len(tree["metadata"].get("managedFields", ())) != 1 or entry.deleting:
        return None
    for hole, way in _TEMPLATE_KINDS[resource.group, resource.version, resource.plural].kept_in.items():
        if hole in sought.values and replace_at(tree, way, placeholder(hole)).encode() != sought.values[hole]:
            return None
    for hole, ways in _SERVER_FIELDS.items():
        texts = {replace_at(tree, way, placeholder(hole)).encode() for way in ways}
        # A time or a uid that stands elsewhere too was put there by a rule.
        if len(texts) != 1 or (hole != b"version" and entry.raw.count(texts.pop()) != len(ways)):
            return None
    return CreateTemplate.of(resource, entry, encode(tree), place.extract, seen)


def _all_values(sought: TemplateInput, made: StoredObject) -> PlaceholderValues:
    return {**sought.values, **_server_values(made.tree()["metadata"]["creationTimestamp"], made.uid, made.version)}


def _server_values(now: str, uid: str, version: int) -> PlaceholderValues:
    return {b"now": now.encode(), b"uid": uid.encode(), b"version": b"%d" % version}


def placeholder(hole: bytes) -> str:
    return f"{_MARK}{hole.decode()}{_MARK}"


def replace_at(tree: Tree, way: FieldPath, text: str) -> str:
    """What stood there before."""
    holder: Any = tree
    for step in way[:-1]:
        holder = holder[step]
    before: str = holder[way[-1]]
    holder[way[-1]] = text
    return before


def to_format_string(marked: bytes) -> bytes:
    """A text into which values go by `%`."""
    return _PLACEHOLDER.sub(rb"%(\1)b", marked.replace(b"%", b"%%"))
