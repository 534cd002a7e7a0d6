"""What happens to the objects of a resource from now on? One watch request, as events.

Asked by `informer`. A watch ends by itself after some minutes (the server's wish and ours), when the connection dies or
when the history that was asked for is gone; the caller decides what then. Of several changes of one object that have
come together only the last is told to whoever wants no others. Costs what `decoding` costs an event.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence

import msgspec

from bayplan.client.decoding import Decoder, WatchEvent
from bayplan.client.resources import Resource, query
from bayplan.client.transport import Transport

log = logging.getLogger(__name__)

QUIET_S = 180.0
"""A watch without a byte for so long is dropped and resumed: bookmarks come every minute when all is well."""

_CHANGED, _META, _VERSION, _UID = b'{"type":"MODIFIED",', b'"metadata":{', b'"resourceVersion":', b'"uid":"'


class Lines:
    """Cuts pieces into lines. One object may be larger than any piece."""

    def __init__(self) -> None:
        self._unfinished: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece ends, without their ends."""
        *whole, last = piece.split(b"\n")
        if whole and self._unfinished:
            whole[0] = b"".join((*self._unfinished, whole[0]))
            self._unfinished.clear()
        if last:
            self._unfinished.append(last)
        return [line for line in whole if line]


def latest(lines: Sequence[bytes]) -> Sequence[bytes]:
    """The lines without changes of objects that later ones of them change once more, in their order.

    Nothing is decoded for it: two lines are about one object if they are the same up to its version, and its uid is
    told before that, as API servers do with kinds of their own. Any other line, and what comes or goes, stays.
    """
    if len(lines) < 2:
        return lines
    after: set[bytes] = set()
    kept = []
    for line in reversed(lines):
        if not line.startswith(_CHANGED):
            after.clear()  # what leaves a selection and comes back is told so, and not by its last change alone
        elif whose := _whose(line):
            if whose in after:
                continue
            after.add(whose)
        kept.append(line)
    kept.reverse()
    return kept


def _whose(line: bytes) -> bytes:
    """The beginning of a line that is the same for all changes of one object, and for no other's; empty: unknown."""
    start = line[: line.find(_VERSION)]
    before, _, own = start.partition(_META)
    is_own = _UID in own and b"[" not in start and b"{" not in own and before.count(b"{") == 2
    return start if is_own else b""


async def watch(
    transport: Transport,
    resource: Resource,
    decoder: Decoder,
    *,
    since: str,
    timeout_s: int,
    namespace: str = "",
    field_selector: str = "",
    label_selector: str = "",
    with_initial: bool = False,
    only_latest: bool = False,
    quiet_s: float = QUIET_S,
) -> AsyncGenerator[WatchEvent, None]:
    """The events after a version; `with_initial`: first everything that exists, at that version or later, as ADDED."""
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
    lines = Lines()
    async with transport.stream(path, quiet_s=quiet_s) as stream:
        while piece := await stream.piece():
            told: Sequence[bytes] = lines.feed(piece)
            for line in latest(told) if only_latest else told:
                try:
                    event = decoder.event(line)
                except msgspec.DecodeError:
                    # Nothing of it can be told, not even whose it is: the same version is asked for again.
                    log.warning("a line of the watch on %s is not JSON; the watch starts over", resource)
                    return
                yield event
