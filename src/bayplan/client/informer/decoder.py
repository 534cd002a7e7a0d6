"""What does this line or this list say? One decoder a resource, which no single object can stop.

Asked for every event of a watch and every page of a list. A good event costs one typed decode, about 10 µs for a pod of
6 KB. When that fails the event is taken apart: an object that cannot be read becomes an `UndecodableObject` with its
name and the reason, and everything round it goes on. Device objects of v1beta1 are lifted to the shape of v1 on the
way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from bayplan.client.http.api_status import ApiStatus
from bayplan.client.resources import GroupVersionResource
from bayplan.errors import ObjectError
from bayplan.objects.kinds import convert
from bayplan.objects.meta import Api, KubeObject

DECODE_SLICE_BYTES = 1 << 20
"""Bytes of a list that are decoded in one go: some 150 pods, about 2 ms."""

T = TypeVar("T")

Key = tuple[str, str]
"""Namespace and name."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_ITEMS = b'"items":['


@dataclass(frozen=True, slots=True)
class UndecodableObject:
    """An object that is there and cannot be read."""

    key: Key
    uid: str
    resource_version: str
    reason: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and what it is about."""

    type: str
    object: KubeObject | UndecodableObject | ApiStatus


@dataclass(frozen=True, slots=True)
class ListPage:
    """A list, or one page of it, before its items are read."""

    resource_version: str
    continue_token: str
    """The token that asks for the next page; empty on the last."""
    text: bytes
    start: int
    end: int
    """The items are the text between these two: a large page is not copied."""


class _ListMeta(Api, frozen=True):
    resource_version: str = ""
    following: str = msgspec.field(default="", name="continue")


class _RawList(Api, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: msgspec.Raw = msgspec.Raw(b"[]")


class _ObjectIdentity(Api, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class _BareObject(Api, frozen=True):
    metadata: _ObjectIdentity = _ObjectIdentity()


class _RawEvent(Api, frozen=True):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class _TypedWatchEvent(msgspec.Struct, Generic[T], frozen=True):
    type: str
    object: T


class Decoder:
    """Reads the objects of one resource."""

    def __init__(self, resource: GroupVersionResource) -> None:
        assert resource.kind is not None, f"{resource} is only written"
        self.struct: type[KubeObject] = resource.kind.struct
        self._lift: Callable[[Any], Any] | None = _V1BETA1_CONVERSIONS.get((resource.api_version, resource.plural))
        event: Any = _TypedWatchEvent[self.struct]  # type: ignore[name-defined]
        many: Any = list[self.struct]  # type: ignore[name-defined]
        self._one: msgspec.json.Decoder[KubeObject] = msgspec.json.Decoder(self.struct)
        self._event: msgspec.json.Decoder[_TypedWatchEvent[KubeObject]] = msgspec.json.Decoder(event)
        self._many: msgspec.json.Decoder[list[KubeObject]] = msgspec.json.Decoder(many)

    def event(self, line: bytes) -> WatchEvent:
        """One line of a watch. Raises `msgspec.DecodeError` when it is no JSON."""
        if self._lift is None:
            try:
                event = self._event.decode(line)
            except msgspec.ValidationError:
                pass
            else:
                # An ERROR's object is a Status; a struct without required fields could take it for its own.
                if event.type != "ERROR":
                    return WatchEvent(event.type, event.object)
        raw = msgspec.json.decode(line, type=_RawEvent)
        if raw.type == "ERROR":
            return WatchEvent(raw.type, _status(raw.object))
        return WatchEvent(raw.type, self.object(bytes(raw.object)))

    def object(self, data: bytes) -> KubeObject | UndecodableObject:
        """One object."""
        if self._lift is None:
            try:
                return self._one.decode(data)
            except msgspec.ValidationError:
                pass  # what is wrong with it is told below
        try:
            return convert(self._lifted(msgspec.json.decode(data)), self.struct)
        except ObjectError as fault:
            return _unreadable(data, str(fault))

    def slices(self, page: ListPage) -> Iterator[list[KubeObject | UndecodableObject]]:
        """The items of a list, in slices that can be decoded without holding the loop for long."""
        text, at = page.text, page.start
        between = (
            b"}," + text[at : text.find(b":", at, page.end) + 1]
        )  # the items of a list all start with the same key
        while at < page.end:
            end = _boundary(page, between, at + DECODE_SLICE_BYTES)
            while (objects := self._slice(text[at:end])) is None and end < page.end:
                end = _boundary(page, between, end + 1)  # what looked like the start of an item was inside one
            if objects is None:
                raise msgspec.DecodeError("the items of the list are not JSON")
            yield objects
            at = end + 1

    def _slice(self, items: bytes) -> list[KubeObject | UndecodableObject] | None:
        text = b"[" + items + b"]"
        try:
            if self._lift is None:
                return list(self._many.decode(text))
        except msgspec.ValidationError:
            pass
        except msgspec.DecodeError:
            return None
        try:
            return [self.object(bytes(raw)) for raw in msgspec.json.decode(text, type=list[msgspec.Raw])]
        except msgspec.DecodeError:
            return None

    def _lifted(self, tree: Any) -> Any:
        return self._lift(tree) if self._lift is not None else tree


@cache
def decoder_of(resource: GroupVersionResource) -> Decoder:
    """The decoder of a resource, made once."""
    return Decoder(resource)


def read_page(body: bytes) -> ListPage:
    """The frame of a list. Raises `msgspec.DecodeError` when it is none."""
    if len(body) > DECODE_SLICE_BYTES and (page := _large_page(body)) is not None:
        return page
    found = msgspec.json.decode(body, type=_RawList)
    items = bytes(found.items)
    start, end = (1, len(items) - 1) if items.startswith(b"[") else (0, 0)  # a list without items may say null
    return ListPage(found.metadata.resource_version, found.metadata.following, items, start, end)


def _large_page(body: bytes) -> ListPage | None:
    """The frame without looking at the items, which could hold the loop for a second. Typed lists put them last."""
    start = body.find(_ITEMS, 0, DECODE_SLICE_BYTES) + len(_ITEMS)
    end = body.rfind(b"]", len(body) - 64)
    if start < len(_ITEMS) or end < start or body[end:].split() not in ([b"]}"], [b"]", b"}"]):
        return None
    try:
        found = msgspec.json.decode(body[:start] + b"]}", type=_RawList)
    except msgspec.DecodeError:
        return None
    return ListPage(found.metadata.resource_version, found.metadata.following, body, start, end)


def is_initial_events_end(event: WatchEvent) -> bool:
    """Whether a bookmark says that everything that existed has been told."""
    found = event.object
    return isinstance(found, KubeObject) and found.metadata.annotations.get(INITIAL_EVENTS_END) == "true"


def _boundary(page: ListPage, between: bytes, start: int) -> int:
    """The next comma that seems to stand between two items; the end when there is none."""
    found = page.text.find(between, start, page.end)
    return found + 1 if found >= 0 else page.end


def _status(raw: msgspec.Raw) -> ApiStatus:
    try:
        return msgspec.json.decode(raw, type=ApiStatus)
    except msgspec.ValidationError:
        return ApiStatus(message="the server sent an error that cannot be read", code=500)


def _unreadable(data: bytes, reason: str) -> UndecodableObject:
    try:
        meta = msgspec.json.decode(data, type=_BareObject).metadata
    except msgspec.DecodeError:
        meta = _ObjectIdentity()
    return UndecodableObject((meta.namespace, meta.name), meta.uid, meta.resource_version, reason)


def _claim_from_v1beta1(claim: Any) -> Any:
    """v1beta1 asks for exactly one kind of device right in the request; v1 does so under `exactly`."""
    return _with_each(claim, ("spec", "devices", "requests"), _request_from_v1beta1)


def _request_from_v1beta1(request: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in request.items() if key in ("name", "firstAvailable")}
    exactly = {key: value for key, value in request.items() if key not in kept}
    return {**kept, "exactly": exactly} if exactly else kept


def _slice_from_v1beta1(piece: Any) -> Any:
    """v1beta1 keeps what a device has under `basic`."""
    return _with_each(piece, ("spec", "devices"), _device_from_v1beta1)


def _device_from_v1beta1(device: dict[str, Any]) -> dict[str, Any]:
    basic = device.get("basic")
    rest = {key: value for key, value in device.items() if key != "basic"}
    return {**rest, **basic} if isinstance(basic, dict) else rest


def _with_each(tree: Any, path: tuple[str, ...], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The tree with every object of the list under this path changed; what is otherwise is left for the reader."""
    if not path:
        return [change(each) if isinstance(each, dict) else each for each in tree] if isinstance(tree, list) else tree
    if not isinstance(tree, dict) or path[0] not in tree:
        return tree
    return {**tree, path[0]: _with_each(tree[path[0]], path[1:], change)}


_V1BETA1_CONVERSIONS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("resource.k8s.io/v1beta1", "resourceclaims"): _claim_from_v1beta1,
    ("resource.k8s.io/v1beta1", "resourceslices"): _slice_from_v1beta1,
}
