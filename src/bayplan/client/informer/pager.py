"""What exists of a resource? Lists in pages that survive the history moving on between two of them.

Asked at start and after a gap in a watch, where the server does not stream lists. A page is decoded in slices, with a
turn for everybody else between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from bayplan.client.http.transport import Transport
from bayplan.client.informer.decoder import Decoder, UndecodableObject, read_page
from bayplan.client.resources import GroupVersionResource, query
from bayplan.errors import ApiError, Gone
from bayplan.objects.meta import KubeObject

PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class ListResult:
    """All objects of a resource at one version."""

    items: list[KubeObject | UndecodableObject]
    resource_version: str


async def list_all(
    transport: Transport,
    resource: GroupVersionResource,
    decoder: Decoder,
    *,
    since: str = "0",
    namespace: str = "",
    field_selector: str = "",
    label_selector: str = "",
    page: int = PAGE_SIZE,
) -> ListResult:
    """Everything, at a version not older than `since`: "0" is whatever the server remembers, "" the very latest.

    When a page's version expires before the next is asked for, the list starts over at the latest version, whole: the
    server could answer for pages that do not belong together otherwise.
    """
    selectors = {"fieldSelector": field_selector or None, "labelSelector": label_selector or None}
    while True:
        items: list[KubeObject | UndecodableObject] = []
        following, version = "", ""
        try:
            while True:
                options = _first_query(since, page) if not following else _next_query(following, page)
                body = await _page(transport, resource.path(namespace) + query({**options, **selectors}))
                found = read_page(body)
                await _collect(items, decoder.slices(found))
                version = version or found.resource_version
                if not found.continue_token:
                    return ListResult(items, version)
                following = found.continue_token
        except Gone:
            if not following:
                raise  # the version itself is gone: only the caller knows what to ask for instead
            since, page = "", 0
        except msgspec.DecodeError as fault:
            raise ApiError(f"GET {resource.path(namespace)} did not answer with a list: {fault}") from None


def _first_query(since: str, page: int) -> dict[str, str | int | bool | None]:
    options: dict[str, str | int | bool | None] = {"limit": page or None}
    if since:
        # Without the match a limit would make the server take the version for the one and only.
        options |= {"resourceVersion": since, "resourceVersionMatch": "NotOlderThan"}
    return options


def _next_query(following: str, page: int) -> dict[str, str | int | bool | None]:
    return {"limit": page, "continue": following}


async def _page(transport: Transport, path: str) -> bytes:
    return (await transport.request("GET", path)).body


async def _collect(
    items: list[KubeObject | UndecodableObject], slices: Iterable[list[KubeObject | UndecodableObject]]
) -> None:
    for objects in slices:
        items.extend(objects)
        await asyncio.sleep(0)
