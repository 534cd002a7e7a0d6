"""What is in a live cluster at this moment? Everything that a decision can depend on, and when pods were bound.

Asked once a recording or what-if. One list a kind, in pages; nothing is written and nothing is watched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from bayplan.client import EVENTS, Client, UndecodableObject
from bayplan.client.resources import GroupVersionResource, query
from bayplan.errors import ApiError, Forbidden, NotFound
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import KINDS
from bayplan.objects.meta import Api, KubeObject

_PAGE = 500
_REQUIRED_KINDS = (Node, Pod)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _BoundPodReference(Api, frozen=True):
    uid: str = ""


class _EventMeta(Api, frozen=True):
    name: str = ""


class _ScheduledEvent(Api, frozen=True):
    metadata: _EventMeta = _EventMeta()
    reason: str = ""
    regarding: _BoundPodReference = _BoundPodReference()
    event_time: datetime | None = None
    deprecated_first_timestamp: datetime | None = None

    @property
    def at(self) -> datetime | None:
        """When the event was recorded. A core event has whole seconds; recorders put the nanoseconds into its name."""
        first = self.deprecated_first_timestamp
        if self.event_time is not None or first is None:
            return self.event_time
        try:
            named = _EPOCH + timedelta(microseconds=int(self.metadata.name.rpartition(".")[2], 16) // 1000)
        except (ValueError, OverflowError):
            return first
        return named if timedelta(0) <= named - first < timedelta(seconds=1) else first


class _EventListMeta(Api, frozen=True):
    following: str = msgspec.field(default="", name="continue")


class _EventList(Api, frozen=True):
    metadata: _EventListMeta = _EventListMeta()
    items: tuple[_ScheduledEvent, ...] = ()


@dataclass(slots=True)
class ClusterContents:
    """A cluster as it was read."""

    objects: list[KubeObject] = field(default_factory=list)
    bound_at: dict[str, datetime] = field(default_factory=dict)
    """By uid of a pod."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, a sentence each."""
    resources: list[GroupVersionResource] = field(default_factory=list)
    """What could."""


async def read_cluster(client: Client) -> ClusterContents:
    """Read all of it. Who may not read nodes or pods is refused; other kinds that are closed to us are noted."""
    seen = ClusterContents()
    offered = await client.discover(KINDS)
    for kind in KINDS:
        resource = offered.get(kind)
        if resource is None:
            continue
        try:
            listed = await client.list(resource)
        except Forbidden as fault:
            if kind.struct in _REQUIRED_KINDS:
                raise
            seen.notes.append(f"{kind.plural} are left out: {fault.details}")
            continue
        seen.resources.append(resource)
        for item in listed.items:
            if isinstance(item, UndecodableObject):
                seen.notes.append(f"left out: {item.reason}")
            else:
                seen.objects.append(item)
    await _read_events(client, seen)
    return seen


async def _read_events(client: Client, seen: ClusterContents) -> None:
    following = ""
    try:
        while True:
            path = EVENTS.path() + query({"limit": _PAGE, "continue": following or None})
            page = msgspec.json.decode((await client.transport.request("GET", path)).body, type=_EventList)
            for event in page.items:
                if event.reason == "Scheduled" and event.regarding.uid and (at := event.at) is not None:
                    # The last is of the node that it is on: a pod that the binder gave up was assigned before.
                    seen.bound_at[event.regarding.uid] = max(at, seen.bound_at.get(event.regarding.uid, at))
            following = page.metadata.following
            if not following:
                return
    except (Forbidden, NotFound) as fault:
        seen.notes.append(f"events are left out, so times are known to the second only: {fault.details}")
    except msgspec.DecodeError as fault:
        raise ApiError(f"GET {EVENTS.path()} did not answer with events: {fault}") from None
