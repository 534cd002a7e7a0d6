"""Decoder of watch events and lists, one per resource. A single invalid object never stops it.

The informer calls it for each event of a watch and each page of a list. A valid event costs one typed decode, about
10 µs for a pod of 6 KB. When that fails, the event is decoded in steps: an object that cannot be decoded becomes an
`UndecodableObject` with its name and the reason, and the rest is processed. Device objects of v1beta1 are converted to
v1."""

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
"""Bytes of a list that are decoded without a pause: some 150 pods, about 2 ms."""

T = TypeVar("T")

Key = tuple[str, str]
"""Namespace and name of an object."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_ITEMS = b'"items":['


@dataclass(frozen=True, slots=True)
class UndecodableObject:
    key: Key
    uid: str
    resource_version: str
    reason: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and its object."""

    type: str
    object: KubeObject | UndecodableObject | ApiStatus


@dataclass(frozen=True, slots=True)
class ListPage:
    """A list, or one page of it. Its items are not decoded yet."""

    resource_version: str
    continue_token: str
    """Token of the next page; empty on the last page."""
    text: bytes
    start: int
    end: int
    """Bounds of the items in `text`, so that a large page is not copied."""


class ListMeta(Api, frozen=True):
    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class _RawList(Api, frozen=True):
    metadata: ListMeta = ListMeta()
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
    def __init__(self, resource: GroupVersionResource) -> None:
        assert resource.kind is not None, f"{resource} is only written"
        self.struct: type[KubeObject] = resource.kind.struct
        self._convert: Callable[[Any], Any] | None = _V1BETA1_CONVERSIONS.get((resource.api_version, resource.plural))
        event: Any = _TypedWatchEvent[self.struct]  # type: ignore[name-defined]
        many: Any = list[self.struct]  # type: ignore[name-defined]
        self._one: msgspec.json.Decoder[KubeObject] = msgspec.json.Decoder(self.struct)
        self._event: msgspec.json.Decoder[_TypedWatchEvent[KubeObject]] = msgspec.json.Decoder(event)
        self._many: msgspec.json.Decoder[list[KubeObject]] = msgspec.json.Decoder(many)

    def event(self, line: bytes) -> WatchEvent:
        """Decode one line of a watch. Raises `msgspec.DecodeError` when it is not JSON."""
        if self._convert is None:
            try:
                event = self._event.decode(line)
            except msgspec.ValidationError:
                pass
            else:
                # The object of an ERROR is a Status. A struct without required fields could accept it as its own.
                if event.type != "ERROR":
                    return WatchEvent(event.type, event.object)
        raw = msgspec.json.decode(line, type=_RawEvent)
        if raw.type == "ERROR":
            return WatchEvent(raw.type, _status(raw.object))
        return WatchEvent(raw.type, self.object(bytes(raw.object)))

    def object(self, data: bytes) -> KubeObject | UndecodableObject:
        if self._convert is None:
            try:
                return self._one.decode(data)
            except msgspec.ValidationError:
                pass  # `convert` finds the reason
        try:
            return convert(self._convert_tree(msgspec.json.decode(data)), self.struct)
        except ObjectError as fault:
            return _undecodable(data, str(fault))

    def slices(self, page: ListPage) -> Iterator[list[KubeObject | UndecodableObject]]:
        """Decode the items of a list, in slices that each hold the event loop for a short time."""
        text, at = page.text, page.start
        between = b"}," + text[at : text.find(b":", at, page.end) + 1]  # all items of a list start with the same key
        while at < page.end:
            end = _boundary(page, between, at + DECODE_SLICE_BYTES)
            while (objects := self._slice(text[at:end])) is None and end < page.end:
                end = _boundary(page, between, end + 1)  # this boundary was inside an item
            if objects is None:
                raise msgspec.DecodeError("the items of the list are not JSON")
            yield objects
            at = end + 1

    def _slice(self, items: bytes) -> list[KubeObject | UndecodableObject] | None:
        text = b"[" + items + b"]"
        try:
            if self._convert is None:
                return list(self._many.decode(text))
        except msgspec.ValidationError:
            pass
        except msgspec.DecodeError:
            return None
        try:
            return [self.object(bytes(raw)) for raw in msgspec.json.decode(text, type=list[msgspec.Raw])]
        except msgspec.DecodeError:
            return None

    def _convert_tree(self, tree: Any) -> Any:
        return self._convert(tree) if self._convert is not None else tree


@cache
def decoder_of(resource: GroupVersionResource) -> Decoder:
    """Return the cached decoder of a resource."""
    return Decoder(resource)


def read_page(body: bytes) -> ListPage:
    """Decode a list without its items. Raises `msgspec.DecodeError` when the body is not a list."""
    if len(body) > DECODE_SLICE_BYTES and (page := _large_page(body)) is not None:
        return page
    found = msgspec.json.decode(body, type=_RawList)
    items = bytes(found.items)
    start, end = (1, len(items) - 1) if items.startswith(b"[") else (0, 0)  # a list without items may say null
    return ListPage(found.metadata.resource_version, found.metadata.continue_token, items, start, end)


def _large_page(body: bytes) -> ListPage | None:
    """Decode a list without scanning its items, which could hold the loop for a second. Typed lists end with
    `items`."""
    start = body.find(_ITEMS, 0, DECODE_SLICE_BYTES) + len(_ITEMS)
    end = body.rfind(b"]", len(body) - 64)
    if start < len(_ITEMS) or end < start or body[end:].split() not in ([b"]}"], [b"]", b"}"]):
        return None
    try:
        found = msgspec.json.decode(body[:start] + b"]}", type=_RawList)
    except msgspec.DecodeError:
        return None
    return ListPage(found.metadata.resource_version, found.metadata.continue_token, body, start, end)


def is_initial_events_end(event: WatchEvent) -> bool:
    """Whether a bookmark marks the end of the initial events."""
    found = event.object
    return isinstance(found, KubeObject) and found.metadata.annotations.get(INITIAL_EVENTS_END) == "true"


def _boundary(page: ListPage, between: bytes, start: int) -> int:
    """Return the next comma that seems to separate two items, or the end."""
    found = page.text.find(between, start, page.end)
    return found + 1 if found >= 0 else page.end


def _status(raw: msgspec.Raw) -> ApiStatus:
    try:
        return msgspec.json.decode(raw, type=ApiStatus)
    except msgspec.ValidationError:
        return ApiStatus(message="the server sent an error that cannot be decoded", code=500)


def _undecodable(data: bytes, reason: str) -> UndecodableObject:
    try:
        meta = msgspec.json.decode(data, type=_BareObject).metadata
    except msgspec.DecodeError:
        meta = _ObjectIdentity()
    return UndecodableObject((meta.namespace, meta.name), meta.uid, meta.resource_version, reason)


def _claim_from_v1beta1(claim: Any) -> Any:
    """Convert a claim. v1beta1 has the fields of an exact request in the request itself; v1 has them under
    `exactly`."""
    return _change_each(claim, ("spec", "devices", "requests"), _request_from_v1beta1)


def _request_from_v1beta1(request: dict[str, Any]) -> dict[str, Any]:
    common = {key: value for key, value in request.items() if key in ("name", "firstAvailable")}
    exactly = {key: value for key, value in request.items() if key not in common}
    return {**common, "exactly": exactly} if exactly else common


def _slice_from_v1beta1(piece: Any) -> Any:
    """Convert a slice. v1beta1 has the attributes and capacities of a device under `basic`."""
    return _change_each(piece, ("spec", "devices"), _device_from_v1beta1)


def _device_from_v1beta1(device: dict[str, Any]) -> dict[str, Any]:
    basic = device.get("basic")
    rest = {key: value for key, value in device.items() if key != "basic"}
    return {**rest, **basic} if isinstance(basic, dict) else rest


def _change_each(tree: Any, path: tuple[str, ...], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the tree with each object of the list at `path` changed. Other values stay, for the decoder to report."""
    if not path:
        return [change(each) if isinstance(each, dict) else each for each in tree] if isinstance(tree, list) else tree
    if not isinstance(tree, dict) or path[0] not in tree:
        return tree
    return {**tree, path[0]: _change_each(tree[path[0]], path[1:], change)}


_V1BETA1_CONVERSIONS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("resource.k8s.io/v1beta1", "resourceclaims"): _claim_from_v1beta1,
    ("resource.k8s.io/v1beta1", "resourceslices"): _slice_from_v1beta1,
}
