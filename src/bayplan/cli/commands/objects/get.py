"""`bayplan get`: objects of a cluster as tables of the server, or as JSON and YAML."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from bayplan.cli.connection import ClusterConnection, run_with_client
from bayplan.cli.flags.connection_options import connection_options, namespace_option
from bayplan.cli.flags.shell_completion import complete_kinds
from bayplan.cli.output.printers import print_value
from bayplan.cli.output.terminal import TablePrinter, cell_text, progress
from bayplan.client import (
    Client,
    KindMapping,
    Table,
    TableQuery,
    discover_rest_mapper,
    read_table,
    watch_objects,
    watch_table,
)
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, Gone, Invalid, Unreachable, UsageError

_RETRY_S = 1.0
_MAX_FAILED_WATCHES = 5
"""After this many refused connections in a row the server has ended and is not only overloaded."""
_MAX_OUTAGE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequest:
    namespace: str = ""
    all_namespaces: bool = False
    labels: str = ""
    fields: str = ""
    output: str = ""
    watch: bool = False
    has_header: bool = True
    managed_fields: bool = False

    def to_query(self, kind: KindMapping, name: str, default_namespace: str) -> TableQuery:
        namespace = "" if self.all_namespaces else self.namespace or default_namespace
        return TableQuery(
            resource=kind.resource,
            namespace=namespace if kind.resource.namespaced else "",
            name=name,
            label_selector=self.labels,
            field_selector=self.fields,
        )


@click.command("get")
@click.argument("what", nargs=-1, required=True, metavar="KIND [NAME]...", shell_complete=complete_kinds)
@namespace_option
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="List objects of all namespaces.")
@click.option("-l", "--selector", "labels", default="", help="Select by labels: app=web,tier!=cache.")
@click.option(
    "--field-selector", "fields", default="", help="Select by fields: spec.nodeName=node-3,status.phase=Pending."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "json", "yaml", "name"]),
    default=None,
    help="wide: more columns; json, yaml: listing objects; name: names only.",
)
@click.option("-w", "--watch", is_flag=True, help="Show changes until Ctrl-C.")
@click.option("--no-headers", is_flag=True, help="Print no column titles.")
@click.option("--show-managed-fields", is_flag=True, help="With json and yaml: include managedFields.")
@connection_options
def command(
    what: tuple[str, ...],
    namespace: str,
    everywhere: bool,
    labels: str,
    fields: str,
    output: str | None,
    watch: bool,
    no_headers: bool,
    show_managed_fields: bool,
    connection: ClusterConnection,
) -> None:
    """Show objects of a cluster: your own, or the one of `bayplan cluster up`.

    Resource types have kubectl's names (pods, po, deploy, deployments.apps, all), also those of
    CustomResourceDefinitions; the server chooses the columns.

    \b
    Examples:
      bayplan get pods
      bayplan get nodes -o wide
      bayplan get deploy,po -A -l app=web
      bayplan get pod/web-0 -o yaml
      bayplan get pods --watch
      bayplan get pods --field-selector status.phase=Pending --context staging
    """
    request = GetRequest(
        namespace=namespace,
        all_namespaces=everywhere,
        labels=labels,
        fields=fields,
        output=output or "",
        watch=watch,
        has_header=not no_headers,
        managed_fields=show_managed_fields,
    )
    run_with_client(connection, lambda client: _get(client, what, request))


@contextmanager
def _explain_selector_errors(request: GetRequest) -> Iterator[None]:
    """An unsupported selector becomes an error with the supported ones."""
    try:
        yield
    except Invalid as fault:
        advice = "correct the selector"
        if request.fields and "field" in fault.details:
            advice = (
                "--field-selector supports metadata.name and metadata.namespace, and further fields of some types, "
                "such as spec.nodeName and status.phase of pods; -l selects by labels"
            )
        elif request.labels:
            advice = "-l supports labels such as app=web,tier!=cache or 'tier in (web,api)'"
        raise ApiError(f"{fault.details}; {advice}", code=fault.code, reason=fault.reason) from None


async def _get(client: Client, what: Sequence[str], request: GetRequest) -> None:
    with progress(f"reading {client.target.server}"):
        mapper = await discover_rest_mapper(client.transport)
    chosen = [
        (kind, name) for word, name in parse_targets(what) for kind in (mapper.matching_kinds(word) if word else ())
    ]
    if any(name for _, name in chosen) and request.all_namespaces:
        raise UsageError("an object with a name is in one namespace; leave out -A or the name")
    wanted = [(kind, request.to_query(kind, name, client.target.namespace)) for kind, name in chosen]
    if request.watch and len(wanted) != 1:
        raise UsageError("--watch shows one resource type or one object; give one")
    with _explain_selector_errors(request):
        if request.watch:
            await _watch(client, *wanted[0], request)
        elif request.output in ("json", "yaml"):
            await _print_objects(client, wanted, request)
        else:
            await _print_tables(client, wanted, request)


def parse_targets(what: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Resource types, each with a name or none: `pods`, `pods,nodes`, `pod a b`, `pod/a node/b`."""
    if any("/" in word for word in what):
        for word in what:
            kind, slash, name = word.partition("/")
            if not slash or not kind or not name:
                raise UsageError(f'"{word}" is not an object; give KIND/NAME for all, or KIND followed by names')
            yield kind, name
        return
    kinds, *names = what
    for kind in filter(None, kinds.split(",")):
        yield from ((kind, name) for name in names or [""])


# Tables.


async def _print_tables(client: Client, wanted: Sequence[tuple[KindMapping, TableQuery]], request: GetRequest) -> None:
    with progress(f"reading {client.target.server}"):
        tables = await asyncio.gather(*(read_table(client.transport, each) for _, each in wanted))
    shown = _merge_tables([(kind, table) for (kind, _), table in zip(wanted, tables, strict=True) if table.rows])
    if not shown:
        where = "" if request.all_namespaces else f" in the namespace {request.namespace or client.target.namespace}"
        namespaced = any(kind.resource.namespaced for kind, _ in wanted)
        click.echo(f"no objects found{where if namespaced else ''}", err=True)
        return
    several = len({kind.resource for kind, _ in shown}) > 1
    for number, (kind, table) in enumerate(shown):
        if number and request.output != "name":
            click.echo()
        _Printer(kind, request, prefixed=several).show(table)


def _merge_tables(tables: Sequence[tuple[KindMapping, Table]]) -> list[tuple[KindMapping, Table]]:
    """Merge tables of single objects to one table per resource type."""
    found: dict[object, tuple[KindMapping, Table]] = {}
    for kind, table in tables:
        known = found.get(kind.resource)
        rows = (*known[1].rows, *table.rows) if known else table.rows
        found[kind.resource] = kind, msgspec.structs.replace(table, rows=rows)
    return list(found.values())


class _Printer:
    """Prints rows of one resource type in fixed columns."""

    def __init__(self, kind: KindMapping, request: GetRequest, *, prefixed: bool = False) -> None:
        self._kind = kind
        self._request = request
        self._prefixed = prefixed
        self._shown: list[int] = []
        self._grid: TablePrinter | None = None

    def show(self, table: Table) -> None:
        if self._request.output == "name":
            for row in table.rows:
                click.echo(self._kind.matches_name(row.object.metadata.name))
            return
        if self._grid is None:
            self._grid = self._start_table(table)
        self._grid.show([self._cells(row) for row in table.rows])

    def _start_table(self, table: Table) -> TablePrinter:
        wide = self._request.output == "wide"
        self._shown = [number for number, column in enumerate(table.columns) if wide or column.priority == 0]
        titles = [table.columns[number].name for number in self._shown]
        return TablePrinter(
            ["namespace", *titles] if self._shows_namespace else titles, headed=self._request.has_header
        )

    @property
    def _shows_namespace(self) -> bool:
        return self._request.all_namespaces and self._kind.resource.namespaced

    def _cells(self, row: Any) -> list[str]:
        cells = [cell_text(row.cells[number]) for number in self._shown if number < len(row.cells)]
        if self._prefixed and cells:
            cells[0] = self._kind.matches_name(cells[0])
        return [row.object.metadata.namespace, *cells] if self._shows_namespace else cells


# Objects.


async def _print_objects(client: Client, wanted: Sequence[tuple[KindMapping, TableQuery]], request: GetRequest) -> None:
    items: list[dict[str, Any]] = []
    with progress(f"reading {client.target.server}"):
        for kind, each in wanted:
            answer = await client.transport.request("GET", each.path())
            items.extend(_items(msgspec.json.decode(answer.body), kind))
    shown = [_printable_object(item, request) for item in items]
    if len(wanted) == 1 and wanted[0][1].name:
        print_value(shown[0], request.output)
    else:
        listing = {"apiVersion": "v1", "items": shown, "kind": "List", "metadata": {"resourceVersion": ""}}
        print_value(listing, request.output)


def _items(tree: dict[str, Any], kind: KindMapping) -> list[dict[str, Any]]:
    """The objects of a response. Items of a list get the kind and apiVersion that they lack."""
    if "items" not in tree or not str(tree.get("kind", "")).endswith("List"):
        return [tree]
    head = {"apiVersion": kind.resource.api_version, "kind": kind.kind}
    return [{**head, **item} for item in tree["items"] or ()]


def _printable_object(tree: dict[str, Any], request: GetRequest) -> dict[str, Any]:
    if not request.managed_fields:
        tree.get("metadata", {}).pop("managedFields", None)
    return tree


# Watch.


async def _watch(client: Client, kind: KindMapping, wanted: TableQuery, request: GetRequest) -> None:
    """Show objects and their changes. Restarts a watch that ends; gives up when the server stays outage."""
    printer = _Printer(kind, request)
    version = ""
    outage = _WatchOutage(client.clock)
    while True:
        if not version:
            table = await read_table(client.transport, wanted)
            version = table.version
            if request.output in ("json", "yaml"):
                await _print_objects(client, [(kind, wanted)], request)
            elif table.rows:
                printer.show(table)
        try:
            began_s = client.clock.monotonic_s()
            async with aclosing(_print_watch(client, kind, wanted, request, printer, version)) as versions:
                async for shown in versions:
                    version = shown
            outage.record_success()
        except Gone:
            version = ""  # the history is gone: list again
        except ApiError as fault:
            if 400 <= fault.code < 500:
                raise
            if client.clock.monotonic_s() - began_s > _RETRY_S:
                outage.record_success()  # the watch worked for a while
            outage.record_failure(fault)
            await client.clock.sleep(_RETRY_S)


class _WatchOutage:
    """Tracks an outage of the watch: reports it once, and raises its error when it lasts."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._refused_connections = 0

    def record_failure(self, fault: ApiError) -> None:
        """Report the first failure of an outage; raise the error of a long one."""
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
            click.echo(f"the watch was interrupted ({fault}); retrying", err=True)
        self._refused_connections += isinstance(fault, Unreachable) and not fault.sent
        if self._refused_connections >= _MAX_FAILED_WATCHES or now_s - self._since_s >= _MAX_OUTAGE_S:
            raise fault

    def record_success(self) -> None:
        self._since_s, self._refused_connections = None, 0


async def _print_watch(
    client: Client, kind: KindMapping, wanted: TableQuery, request: GetRequest, printer: _Printer, since: str
) -> AsyncGenerator[str, None]:
    """Print the events of one watch. After each event yield the resource version that is printed."""
    if request.output in ("json", "yaml"):
        async with aclosing(watch_objects(client.transport, wanted, since)) as objects:
            async for event_type, text in objects:
                tree = msgspec.json.decode(text)
                if event_type != "BOOKMARK":
                    print_value(_printable_object(_items(tree, kind)[0], request), request.output)
                if version := tree.get("metadata", {}).get("resourceVersion"):
                    yield version
        return
    async with aclosing(watch_table(client.transport, wanted, since)) as events:
        async for event_type, table in events:
            if event_type != "BOOKMARK":
                printer.show(table)
            version = table.version or (table.rows[0].object.metadata.resource_version if table.rows else "")
            if version:
                yield version
