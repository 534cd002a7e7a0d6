"""Reads the state of a live cluster: every object that a decision can depend on, and the times of bindings.

Used once per recording or what-if. Cost: one paginated list per kind; nothing is written and nothing is watched.
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
        """Time of the event. A core event has seconds only; recorders put the nanoseconds into its name."""
        first = self.deprecated_first_timestamp
        if self.event_time is not None or first is None:
            return self.event_time
        try:
            precise_time = _EPOCH + timedelta(microseconds=int(self.metadata.name.rpartition(".")[2], 16) // 1000)
        except (ValueError, OverflowError):
            return first
        return precise_time if timedelta(0) <= precise_time - first < timedelta(seconds=1) else first


class _EventListMeta(Api, frozen=True):
    continue_token: str = msgspec.field(default="", name="continue")


class _EventList(Api, frozen=True):
    metadata: _EventListMeta = _EventListMeta()
    items: tuple[_ScheduledEvent, ...] = ()


@dataclass(slots=True)
class ClusterContents:
    objects: list[KubeObject] = field(default_factory=list)
    bound_at: dict[str, datetime] = field(default_factory=dict)
    """Time of binding by pod uid."""
    notes: list[str] = field(default_factory=list)
    """Warnings about objects that could not be read, one sentence each."""
    resources: list[GroupVersionResource] = field(default_factory=list)
    """The resources that could be read."""


async def read_cluster(client: Client) -> ClusterContents:
    """Read the cluster. Missing permission for nodes or pods is an error; for other kinds it is a note."""
    contents = ClusterContents()
    resources = await client.discover(KINDS)
    for kind in KINDS:
        resource = resources.get(kind)
        if resource is None:
            continue
        try:
            listed = await client.list(resource)
        except Forbidden as fault:
            if kind.struct in _REQUIRED_KINDS:
                raise
            contents.notes.append(f"{kind.plural} are left out: {fault.details}")
            continue
        contents.resources.append(resource)
        for item in listed.items:
            if isinstance(item, UndecodableObject):
                contents.notes.append(f"left out: {item.reason}")
            else:
                contents.objects.append(item)
    await _read_events(client, contents)
    return contents


async def _read_events(client: Client, contents: ClusterContents) -> None:
    continue_token = ""
    try:
        while True:
            path = EVENTS.path() + query({"limit": _PAGE, "continue": continue_token or None})
            page = msgspec.json.decode((await client.transport.request("GET", path)).body, type=_EventList)
            for event in page.items:
                if event.reason == "Scheduled" and event.regarding.uid and (at := event.at) is not None:
                    # The latest event counts: the binder may have failed to bind the pod to an earlier node.
                    contents.bound_at[event.regarding.uid] = max(at, contents.bound_at.get(event.regarding.uid, at))
            continue_token = page.metadata.continue_token
            if not continue_token:
                return
    except (Forbidden, NotFound) as fault:
        contents.notes.append(f"events are left out, so times are known to the second only: {fault.details}")
    except msgspec.DecodeError as fault:
        raise ApiError(f"GET {EVENTS.path()} did not answer with events: {fault}") from None
