"""One watch request as a stream of events, and the time after which a silent watch counts as dead.

Called by `informer`. A watch ends at its timeout, when the connection dies, or when the requested history is compacted;
the caller decides what follows. The caller may ask for only the last of several changes of one object in one chunk.
Cost per event: one decode.

A watch can be silently dead: the connection is open, the peer acknowledges everything, and nothing is delivered any
more, for example behind a proxy that lost its other side. TCP keepalive does not see that, HTTP/1.1 has no ping, and a
real kube-apiserver sends a bookmark only about once a minute. The list of a kind does not prove anything either: its
resourceVersion moves with every write of any kind. Therefore watches are short. Each one asks the server to end it
after `WATCH_TIMEOUT_RANGE_S`, and the next one starts from the last version seen, on the same connection. Whatever a
dead watch missed, the next one delivers. A watch without a byte for `MAX_SILENCE_S` has outlived the end that the
server promised: it is dead, its connection is cut, and the next one takes a new connection.

The resume version stays fresh, so that a resume does not end in 410 Gone and a relist: two seconds before the end of a
watch the server sends a bookmark if objects of the kind have changed meanwhile, even if the selector matches none of
them. A kind that does not change keeps its history.

Cost: one request per watch every 16 to 20 s, answered from the server's watch cache without etcd; no list, no write,
no handshake. Watches on a server in this process cannot die silently and last for minutes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Sequence

import msgspec

from bayplan.client.http.transport import Transport
from bayplan.client.informer.decoder import Decoder, WatchEvent
from bayplan.client.resources import GroupVersionResource, query

log = logging.getLogger(__name__)

MAX_SILENCE_S = 25.0
"""Seconds without a byte after which a watch counts as dead. With the resume this stays below 30 s."""

WATCH_TIMEOUT_RANGE_S = (16, 20)
"""Shortest and longest time that a watch asks for. A random time in between spreads the requests of a process."""

LONG_WATCH_TIMEOUT_RANGE_S = (300, 600)
"""The same for a watch that begins with a list, which may take minutes, and for a server in this process."""


def watch_timeout_s(chance: random.Random, *, long: bool) -> int:
    """The `timeoutSeconds` of the next watch."""
    return chance.randint(*(LONG_WATCH_TIMEOUT_RANGE_S if long else WATCH_TIMEOUT_RANGE_S))


_CHANGED, _META, _VERSION, _UID = b'{"type":"MODIFIED",', b'"metadata":{', b'"resourceVersion":', b'"uid":"'


class LineSplitter:
    """Splits chunks into lines. One object may span several chunks."""

    def __init__(self) -> None:
        self._unfinished: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without line ends."""
        *whole, last = piece.split(b"\n")
        if whole and self._unfinished:
            whole[0] = b"".join((*self._unfinished, whole[0]))
            self._unfinished.clear()
        if last:
            self._unfinished.append(last)
        return [line for line in whole if line]


def drop_superseded(lines: Sequence[bytes]) -> Sequence[bytes]:
    """Drop changes of objects that a later line changes again; the order stays.

    No line is decoded. Two lines belong to one object if they are equal up to its resourceVersion and the uid comes
    before it, as API servers write kinds of Go structs. All other lines, adds and deletes among them, stay.
    """
    if len(lines) < 2:
        return lines
    after: set[bytes] = set()
    remaining = []
    for line in reversed(lines):
        if not line.startswith(_CHANGED):
            after.clear()  # an object that leaves a selection and returns needs both of its events
        elif prefix := _object_prefix(line):
            if prefix in after:
                continue
            after.add(prefix)
        remaining.append(line)
    remaining.reverse()
    return remaining


def _object_prefix(line: bytes) -> bytes:
    """Prefix of a line that is the same for all changes of one object and of no other; empty if unknown."""
    start = line[: line.find(_VERSION)]
    before, _, own = start.partition(_META)
    is_own = _UID in own and b"[" not in start and b"{" not in own and before.count(b"{") == 2
    return start if is_own else b""


async def watch(
    transport: Transport,
    resource: GroupVersionResource,
    decoder: Decoder,
    *,
    since: str,
    timeout_s: int,
    namespace: str = "",
    field_selector: str = "",
    label_selector: str = "",
    with_initial: bool = False,
    only_latest: bool = False,
) -> AsyncGenerator[WatchEvent, None]:
    """Yield the events after a version. `with_initial`: first all existing objects, at `since` or later, as ADDED."""
    options: dict[str, str | int | bool | None] = {
        "watch": True,
        "allowWatchBookmarks": True,
        "timeoutSeconds": timeout_s,
        "resourceVersion": since or None,
        "fieldSelector": field_selector or None,
        "labelSelector": label_selector or None,
    }
    if with_initial:
        options |= {"sendInitialEvents": True, "resourceVersionMatch": "NotOlderThan"}
    path = resource.path(namespace) + query(options)
    lines = LineSplitter()
    async with transport.stream(path, quiet_s=MAX_SILENCE_S) as stream:
        while piece := await stream.read():
            complete: Sequence[bytes] = lines.feed(piece)
            for line in drop_superseded(complete) if only_latest else complete:
                try:
                    event = decoder.event(line)
                except msgspec.DecodeError:
                    # The line has no readable version: the next watch starts from the same version.
                    log.warning("a line of the watch on %s is not JSON; restarting the watch", resource)
                    return
                yield event
