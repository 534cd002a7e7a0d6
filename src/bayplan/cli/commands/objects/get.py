"""`bayplan get`: what there is in a cluster, as tables that the server makes, or as JSON and YAML."""

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
"""So many times in a row nobody is there at all: then the server has ended, and is not just busy."""
_MAX_OUTAGE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequest:
    """What the options ask for."""

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
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In all namespaces.")
@click.option("-l", "--selector", "labels", default="", help="By labels: app=web,tier!=cache.")
@click.option("--field-selector", "fields", default="", help="By fields: spec.nodeName=node-3,status.phase=Pending.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "json", "yaml", "name"]),
    default=None,
    help="wide: more columns; json, yaml: all of it; name: names alone.",
)
@click.option("-w", "--watch", is_flag=True, help="Go on and show what changes, until Ctrl-C.")
@click.option("--no-headers", is_flag=True, help="Rows alone.")
@click.option("--show-managed-fields", is_flag=True, help="With json and yaml: who owns which field.")
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
    """Show what there is in a cluster: your own, or the one of `bayplan cluster up`.

    Kinds have the names that kubectl has for them (pods, po, deploy, deployments.apps, all), those of
    CustomResourceDefinitions too; the server says which columns matter.

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
    """A selection that the server cannot make, as a sentence with what it can."""
    try:
        yield
    except Invalid as fault:
        advice = "correct what you ask for"
        if request.fields and "field" in fault.details:
            advice = (
                "--field-selector takes metadata.name and metadata.namespace, and some fields more of some kinds, such "
                "as spec.nodeName and status.phase of pods; -l selects by labels"
            )
        elif request.labels:
            advice = "-l takes labels such as app=web,tier!=cache or 'tier in (web,api)'"
        raise ApiError(f"{fault.details}; {advice}", code=fault.code, reason=fault.reason) from None


async def _get(client: Client, what: Sequence[str], request: GetRequest) -> None:
    with progress(f"asking {client.target.server}"):
        catalogue = await discover_rest_mapper(client.transport)
    chosen = [
        (kind, name) for word, name in parse_targets(what) for kind in (catalogue.matching_kinds(word) if word else ())
    ]
    if any(name for _, name in chosen) and request.all_namespaces:
        raise UsageError("an object of one name is in one namespace; leave out -A, or the name")
    wanted = [(kind, request.to_query(kind, name, client.target.namespace)) for kind, name in chosen]
    if request.watch and len(wanted) != 1:
        raise UsageError("--watch shows one kind, or one object; name one")
    with _explain_selector_errors(request):
        if request.watch:
            await _watch(client, *wanted[0], request)
        elif request.output in ("json", "yaml"):
            await _print_objects(client, wanted, request)
        else:
            await _print_tables(client, wanted, request)


def parse_targets(what: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Kinds, each with a name or none: `pods`, `pods,nodes`, `pod a b`, `pod/a node/b`."""
    if any("/" in word for word in what):
        for word in what:
            kind, slash, name = word.partition("/")
            if not slash or not kind or not name:
                raise UsageError(f'"{word}" is no object; write all of them as KIND/NAME, or KIND and then names')
            yield kind, name
        return
    kinds, *names = what
    for kind in filter(None, kinds.split(",")):
        yield from ((kind, name) for name in names or [""])


# tables


async def _print_tables(client: Client, wanted: Sequence[tuple[KindMapping, TableQuery]], request: GetRequest) -> None:
    with progress(f"asking {client.target.server}"):
        tables = await asyncio.gather(*(read_table(client.transport, each) for _, each in wanted))
    shown = _merge_tables([(kind, table) for (kind, _), table in zip(wanted, tables, strict=True) if table.rows])
    if not shown:
        where = "" if request.all_namespaces else f" in the namespace {request.namespace or client.target.namespace}"
        namespaced = any(kind.resource.namespaced for kind, _ in wanted)
        click.echo(f"there are none{where if namespaced else ''}", err=True)
        return
    several = len({kind.resource for kind, _ in shown}) > 1
    for number, (kind, table) in enumerate(shown):
        if number and request.output != "name":
            click.echo()
        _Printer(kind, request, prefixed=several).show(table)


def _merge_tables(tables: Sequence[tuple[KindMapping, Table]]) -> list[tuple[KindMapping, Table]]:
    """Objects that were asked for one by one, as one table a kind."""
    found: dict[object, tuple[KindMapping, Table]] = {}
    for kind, table in tables:
        known = found.get(kind.resource)
        rows = (*known[1].rows, *table.rows) if known else table.rows
        found[kind.resource] = kind, msgspec.structs.replace(table, rows=rows)
    return list(found.values())


class _Printer:
    """Rows of one kind, in columns that stay where they are."""

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


# objects


async def _print_objects(client: Client, wanted: Sequence[tuple[KindMapping, TableQuery]], request: GetRequest) -> None:
    items: list[dict[str, Any]] = []
    with progress(f"asking {client.target.server}"):
        for kind, each in wanted:
            answer = await client.transport.request("GET", each.path())
            items.extend(_items(msgspec.json.decode(answer.body), kind))
    shown = [_printable_object(item, request) for item in items]
    if len(wanted) == 1 and wanted[0][1].name:
        print_value(shown[0], request.output)
    else:
        whole = {"apiVersion": "v1", "items": shown, "kind": "List", "metadata": {"resourceVersion": ""}}
        print_value(whole, request.output)


def _items(tree: dict[str, Any], kind: KindMapping) -> list[dict[str, Any]]:
    """The objects of an answer; those of a list do not say what they are."""
    if "items" not in tree or not str(tree.get("kind", "")).endswith("List"):
        return [tree]
    head = {"apiVersion": kind.resource.api_version, "kind": kind.kind}
    return [{**head, **item} for item in tree["items"] or ()]


def _printable_object(tree: dict[str, Any], request: GetRequest) -> dict[str, Any]:
    if not request.managed_fields:
        tree.get("metadata", {}).pop("managedFields", None)
    return tree


# watching


async def _watch(client: Client, kind: KindMapping, wanted: TableQuery, request: GetRequest) -> None:
    """Show what is there and what changes, over the ends of single watches too; who stays away is not waited for."""
    printer = _Printer(kind, request)
    version = ""
    away = _WatchOutage(client.clock)
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
            async with aclosing(_follow(client, kind, wanted, request, printer, version)) as versions:
                async for shown in versions:
                    version = shown
            away.record_success()
        except Gone:
            version = ""  # too much has happened since: what is there is shown anew
        except ApiError as fault:
            if 400 <= fault.code < 500:
                raise
            if client.clock.monotonic_s() - began_s > _RETRY_S:
                away.record_success()  # the watch stood for a while before it was cut
            away.record_failure(fault)
            await client.clock.sleep(_RETRY_S)


class _WatchOutage:
    """How long has nobody answered? Told once a time, and no longer waited for when it lasts."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._unanswered = 0

    def record_failure(self, fault: ApiError) -> None:
        """Say that the watch was cut, or raise what keeps it so."""
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
            click.echo(f"the watch was cut ({fault}); going on", err=True)
        self._unanswered += isinstance(fault, Unreachable) and not fault.sent
        if self._unanswered >= _MAX_FAILED_WATCHES or now_s - self._since_s >= _MAX_OUTAGE_S:
            raise fault

    def record_success(self) -> None:
        self._since_s, self._unanswered = None, 0


async def _follow(
    client: Client, kind: KindMapping, wanted: TableQuery, request: GetRequest, printer: _Printer, since: str
) -> AsyncGenerator[str, None]:
    """Print one watch to its end; after each event yield the version up to which everything is printed."""
    if request.output in ("json", "yaml"):
        async with aclosing(watch_objects(client.transport, wanted, since)) as objects:
            async for happened, text in objects:
                tree = msgspec.json.decode(text)
                if happened != "BOOKMARK":
                    print_value(_printable_object(_items(tree, kind)[0], request), request.output)
                if version := tree.get("metadata", {}).get("resourceVersion"):
                    yield version
        return
    async with aclosing(watch_table(client.transport, wanted, since)) as events:
        async for happened, table in events:
            if happened != "BOOKMARK":
                printer.show(table)
            version = table.version or (table.rows[0].object.metadata.resource_version if table.rows else "")
            if version:
                yield version
