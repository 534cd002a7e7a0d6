"""Create templates: a create that differs from earlier ones only in names, uids and times reuses their stored bytes.

Called for every create of a pod or an event. Pods of one workload, and the events about them, differ in a name and
little else. The write pipeline treats them alike: it validates a name and uses it for nothing else. A template holds
the stored text with a placeholder at each difference, and the change count of every kind that the rules read. A change
of such a kind, for example of a namespace or a priority class, invalidates it.

The first create of a kind of body is noted. The second becomes a template. The third is written normally and compared
with the template. All later ones come from the template. Requests with query parameters, warnings or unusual values
always take the normal path.
Cost: some 10 µs an object from a template; the normal path takes over 100 µs for a pod. 3 µs without a template.
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
"""Matches texts that JSON writes without escapes."""

PlaceholderValues = dict[bytes, bytes]
"""The values of the placeholders, by placeholder."""
PlaceholderTexts = dict[bytes, str]
FieldPath = tuple[str | int, ...]
KindsRead = tuple[tuple[ResourceObjects, int], ...]
"""The kinds that the rules read, each with its change count at that time."""
NoTemplate = Literal["noted", "hopeless"]
"""Instead of a template: `noted` after the first create, `hopeless` if the object allows no template."""


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
    subject = event.regarding
    if dns_subdomain(event.metadata.name) or len(event.note) > _MAX_NOTE_LENGTH:
        return None
    try:
        if canonical_micro_time(event.event_time) != event.event_time:
            return None
    except ScalarError:
        return None
    texts = {b"name": event.metadata.name, b"about": subject.name, b"uid of it": subject.uid, b"note": event.note}
    texts |= {b"version of it": subject.resource_version, b"event time": event.event_time}
    return {placeholder: text for placeholder, text in texts.items() if text}


class _TemplateKind(NamedTuple):
    """Which texts may differ between two new objects of a kind."""

    decode: Callable[[bytes], Any]
    placeholders: Callable[[Any], PlaceholderTexts | None]
    """Returns the differing texts; None if one of them would not be stored unchanged."""
    stored_paths: Mapping[bytes, FieldPath]
    """Their paths in the stored form."""


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
"""Fields that the server sets in every new object."""


TemplateKey = tuple[str, str, str, str, bytes]
"""Kind, version, namespace, manager, and the body without the differing texts."""


class TemplateInput(NamedTuple):
    """What a body has in common with other creates, and its differing texts."""

    key: TemplateKey
    name: str
    values: PlaceholderValues


class CreateTemplate(msgspec.Struct, eq=False):
    """The common part of equal objects of one kind."""

    stored_format: bytes
    response_format: bytes
    example: StoredObject
    fields: Mapping[str, bytes]
    """Placeholders of the selectable fields that differ."""
    kinds_read: KindsRead
    verified: bool = False

    @classmethod
    def of(
        cls,
        resource: ServedResource,
        entry: StoredObject,
        text: bytes,
        extract: FieldExtractor | None,
        kinds_read: KindsRead,
    ) -> CreateTemplate:
        """Build a template from an object and its text with placeholders."""
        example = replace(entry, raw=text)
        selectable = extract(example.tree()) if extract is not None else {}
        fields = {field: text[1:-1].encode() for field, text in selectable.items() if text[:1] == _MARK}
        return cls(
            to_format_string(text),
            to_format_string(version_conversion.to_json(resource, example)),
            entry,
            fields,
            kinds_read,
        )

    def reproduces(self, values: PlaceholderValues, written: WriteResult) -> bool:
        """Whether the template gives exactly this result of the normal path."""
        stored = written.entry
        assert stored is not None
        rebuilt = self.entry(stored.name, stored.uid, stored.version, values)
        return (
            self.is_current() and astuple(rebuilt) == astuple(stored) and self.response_format % values == written.text
        )

    def is_current(self) -> bool:
        """Whether no kind that the rules read has changed since."""
        for objects, changes in self.kinds_read:  # noqa: SIM110 (a generator costs more than the loop)
            if objects.change_count != changes:
                return False
        return True

    def entry(self, name: str, uid: str, version: int, values: PlaceholderValues) -> StoredObject:
        example, fields = self.example, self.example.fields
        if self.fields:
            fields = dict(fields)
            for field, placeholder in self.fields.items():
                fields[field] = values[placeholder].decode()
        return StoredObject(example.namespace, name, version, self.stored_format % values, example.labels, fields, uid)


class CreateTemplates:
    def __init__(self, store: Store, lookup: StoreLookup, clock: Clock, chance: random.Random) -> None:
        self._store = store
        self._lookup = lookup
        self._clock = clock
        self._chance = chance
        self._templates: dict[TemplateKey, CreateTemplate | NoTemplate] = {}

    def parse(self, request: ResourceRequest, body: bytes) -> TemplateInput | None:
        """Splits a body for the lookup of a template; None if the create must take the normal path."""
        resource = request.resource
        kind = _TEMPLATE_KINDS.get((resource.group, resource.version, resource.plural))
        if kind is None or request.query or request.path.subresource or len(body) > MAX_BODY_BYTES or b"\0" in body:
            return None
        if request.headers.get("Content-Type") != JSON:
            return None
        try:
            texts = kind.placeholders(kind.decode(body))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        if texts is None:
            return None
        values: PlaceholderValues = {}
        rest = body
        for placeholder, text in texts.items():
            value = text.encode()
            quoted = b'"%b"' % value
            if body.count(quoted) != 1 or not is_plain_json_text(text):
                return None  # it is unknown which occurrence differs
            rest = rest.replace(quoted, b"\0%b\0" % placeholder)
            values[placeholder] = value
        key = (resource.kind, resource.api_version, request.namespace, request.manager, rest)
        return TemplateInput(key, texts[b"name"], values)

    def create(self, request: ResourceRequest, parsed: TemplateInput) -> WriteResult | None:
        """Store the object from its template. None without a template: the kinds that the rules read are recorded."""
        template = self._templates.get(parsed.key)
        if isinstance(template, CreateTemplate) and template.verified and template.is_current():
            objects = self._store.uncommitted_objects(request.resource.storage)
            if objects.get(request.namespace, parsed.name) is None:
                return self._create(template, objects.name, parsed)
        self._lookup.kinds_read.clear()
        return None

    def _create(self, template: CreateTemplate, name: GroupResource, parsed: TemplateInput) -> WriteResult:
        now, uid, version = timestamp(self._clock.now()), new_uid(self._chance), self._store.newest_version + 1
        values = {**parsed.values, **_server_values(now, uid, version)}
        entry = self._store.put_entry(name, template.entry(parsed.name, uid, version, values))
        return WriteResult(template.response_format % values, {}, created=True, entry=entry)

    def learn(self, request: ResourceRequest, parsed: TemplateInput, written: WriteResult) -> None:
        """Learn from a normal create that had no warnings."""
        known, stored = self._templates.get(parsed.key), written.entry
        if stored is None or known == "hopeless":
            return
        if known is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            self._templates[parsed.key] = "noted"
        elif isinstance(known, CreateTemplate) and known.reproduces(_all_values(parsed, stored), written):
            known.verified = True
        else:
            objects = self._store.uncommitted_objects(request.resource.storage)
            kinds_read = tuple((each, each.change_count) for each in self._lookup.kinds_read.values())
            self._templates[parsed.key] = (
                make_template(request.resource, objects, stored, parsed, kinds_read) or "hopeless"
            )


def make_template(
    resource: ServedResource,
    objects: ResourceObjects,
    entry: StoredObject,
    parsed: TemplateInput,
    kinds_read: KindsRead,
) -> CreateTemplate | None:
    """Build a template from one object; None if something else in it may depend on the differing texts."""
    tree = entry.tree()
    if encode(tree) != entry.raw or len(tree["metadata"].get("managedFields", ())) != 1 or entry.deleting:
        return None
    for placeholder, path in _TEMPLATE_KINDS[resource.group, resource.version, resource.plural].stored_paths.items():
        if (
            placeholder in parsed.values
            and replace_at(tree, path, placeholder_text(placeholder)).encode() != parsed.values[placeholder]
        ):
            return None
    for placeholder, paths in _SERVER_FIELDS.items():
        texts = {replace_at(tree, path, placeholder_text(placeholder)).encode() for path in paths}
        # A rule has copied a time or a uid that occurs elsewhere too.
        if len(texts) != 1 or (placeholder != b"version" and entry.raw.count(texts.pop()) != len(paths)):
            return None
    return CreateTemplate.of(resource, entry, encode(tree), objects.extract, kinds_read)


def _all_values(parsed: TemplateInput, stored: StoredObject) -> PlaceholderValues:
    return {
        **parsed.values,
        **_server_values(stored.tree()["metadata"]["creationTimestamp"], stored.uid, stored.version),
    }


def _server_values(now: str, uid: str, version: int) -> PlaceholderValues:
    return {b"now": now.encode(), b"uid": uid.encode(), b"version": b"%d" % version}


def placeholder_text(placeholder: bytes) -> str:
    return f"{_MARK}{placeholder.decode()}{_MARK}"


def replace_at(tree: Tree, path: FieldPath, text: str) -> str:
    """Replaces the text at a path. Returns the previous text."""
    holder: Any = tree
    for step in path[:-1]:
        holder = holder[step]
    before: str = holder[path[-1]]
    holder[path[-1]] = text
    return before


def to_format_string(marked: bytes) -> bytes:
    """The text as a bytes format: placeholders become `%(name)b`."""
    return _PLACEHOLDER.sub(rb"%(\1)b", marked.replace(b"%", b"%%"))
