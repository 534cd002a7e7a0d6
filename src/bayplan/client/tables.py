"""Tables of the API server (`meta.k8s.io/v1 Table`), as kubectl reads them.

The server chooses the columns of every kind, including those of CustomResourceDefinitions, so this module knows no
kind. Cost: one request, or one watch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from bayplan.client.http.api_status import ApiStatus, status_error
from bayplan.client.http.transport import JSON, Transport
from bayplan.client.informer.watcher import MAX_SILENCE_S, WATCH_TIMEOUT_RANGE_S, LineSplitter
from bayplan.client.resources import GroupVersionResource, query
from bayplan.errors import ApiError

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


class TableColumn(msgspec.Struct, frozen=True):
    name: str = ""
    type: str = ""
    priority: int = 0
    """Columns above 0 are shown only in wide output."""


class _TableObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _TableRowObject(msgspec.Struct, frozen=True):
    metadata: _TableObjectMeta = _TableObjectMeta()


class TableRow(msgspec.Struct, frozen=True):
    cells: tuple[Any, ...] = ()
    object: _TableRowObject = _TableRowObject()


class Table(msgspec.Struct, frozen=True, rename="camel"):
    """Rows of one kind. A watch sends the columns with its first event only."""

    kind: str = ""
    metadata: _TableObjectMeta = _TableObjectMeta()
    column_definitions: tuple[TableColumn, ...] | None = None
    rows: tuple[TableRow, ...] = ()

    @property
    def version(self) -> str:
        return self.metadata.resource_version

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        return self.column_definitions or ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    """Selection of objects of one kind. An empty namespace selects all namespaces."""

    resource: GroupVersionResource
    namespace: str = ""
    name: str = ""
    label_selector: str = ""
    field_selector: str = ""

    def path(self, **options: str | int | bool | None) -> str:
        """Path of one object, or of a list."""
        path = self.resource.path(self.namespace, self.name)
        return path + query(options) if self.name else self.listing(**options)

    def listing(self, **options: str | int | bool | None) -> str:
        """Path of the collection; the name becomes a field selector."""
        fields = [self.field_selector] if self.field_selector else []
        fields += [f"metadata.name={self.name}"] if self.name else []
        selectors = {"labelSelector": self.label_selector or None, "fieldSelector": ",".join(fields) or None}
        return self.resource.path(self.namespace) + query({**selectors, **options})


class _TableEvent(msgspec.Struct, frozen=True):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw()


async def read_table(transport: Transport, wanted: TableQuery) -> Table:
    answer = await transport.request("GET", wanted.path(), accept=TABLE)
    return _table(answer.body, wanted)


async def watch_objects(
    transport: Transport, wanted: TableQuery, since: str, *, accept: str = JSON
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Yield the events after a version until the watch times out: type, and object as JSON text."""
    path = wanted.listing(
        watch=True, allowWatchBookmarks=True, timeoutSeconds=max(WATCH_TIMEOUT_RANGE_S), resourceVersion=since or None
    )
    lines = LineSplitter()
    async with transport.stream(path, quiet_s=MAX_SILENCE_S, accept=accept) as stream:
        while piece := await stream.read():
            for line in lines.feed(piece):
                event = msgspec.json.decode(line, type=_TableEvent)
                if event.type == "ERROR":
                    raise status_error(f"watch on {wanted.resource}", msgspec.json.decode(event.object, type=ApiStatus))
                yield event.type, bytes(event.object)


async def watch_table(transport: Transport, wanted: TableQuery, since: str) -> AsyncGenerator[tuple[str, Table], None]:
    """Yield the same events, each as a table."""
    async with aclosing(watch_objects(transport, wanted, since, accept=TABLE)) as events:
        async for event_type, text in events:
            yield event_type, _table(text, wanted)


def _table(body: bytes, wanted: TableQuery) -> Table:
    try:
        table = msgspec.json.decode(body, type=Table)
    except msgspec.DecodeError:
        table = Table()
    if table.kind != "Table":
        raise ApiError(f"the server returned no table of {wanted.resource}; use -o json or -o yaml")
    return table
