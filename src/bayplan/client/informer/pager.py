"""Paged lists of a resource, consistent even when the server compacts its history between two pages.

The informer calls it at start and after a gap, where the server does not support streaming lists. Pages are decoded in
slices, and other tasks run between them.
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
    """List all objects at a version not older than `since`: "0" is any version in the watch cache, "" the latest.

    When the version of the pages expires between two of them, the list starts over at the latest version, unpaged.
    Pages of different versions would not be consistent.
    """
    selectors = {"fieldSelector": field_selector or None, "labelSelector": label_selector or None}
    while True:
        items: list[KubeObject | UndecodableObject] = []
        continue_token, version = "", ""
        try:
            while True:
                options = _first_query(since, page) if not continue_token else _next_query(continue_token, page)
                body = await _page(transport, resource.path(namespace) + query({**options, **selectors}))
                found = read_page(body)
                await _collect(items, decoder.slices(found))
                version = version or found.resource_version
                if not found.continue_token:
                    return ListResult(items, version)
                continue_token = found.continue_token
        except Gone:
            if not continue_token:
                raise  # the first version is gone: the caller chooses another
            since, page = "", 0
        except msgspec.DecodeError as fault:
            raise ApiError(
                f"GET {resource.path(namespace)} did not answer with a list: {fault}; check the server's address"
            ) from None


def _first_query(since: str, page: int) -> dict[str, str | int | bool | None]:
    options: dict[str, str | int | bool | None] = {"limit": page or None}
    if since:
        # Without NotOlderThan the server would read a version with a limit as an exact version.
        options |= {"resourceVersion": since, "resourceVersionMatch": "NotOlderThan"}
    return options


def _next_query(continue_token: str, page: int) -> dict[str, str | int | bool | None]:
    return {"limit": page, "continue": continue_token}


async def _page(transport: Transport, path: str) -> bytes:
    return (await transport.request("GET", path)).body


async def _collect(
    items: list[KubeObject | UndecodableObject], slices: Iterable[list[KubeObject | UndecodableObject]]
) -> None:
    for objects in slices:
        items.extend(objects)
        await asyncio.sleep(0)
