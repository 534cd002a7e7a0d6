"""`bayplan delete`: objects by file, by name or by labels, and wait until they are gone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from bayplan.cli.commands.objects.apply import read_objects
from bayplan.cli.commands.objects.get import parse_targets
from bayplan.cli.connection import ClusterConnection, run_with_client
from bayplan.cli.flags.connection_options import connection_options, namespace_option
from bayplan.cli.flags.shell_completion import complete_kinds
from bayplan.cli.output.terminal import progress
from bayplan.client import Applier, Client, KindMapping, TableQuery, discover_rest_mapper, watch_objects
from bayplan.errors import Conflict, Gone, NotFound, TimedOut, UsageError

_CASCADES = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}


@dataclass(frozen=True, slots=True)
class _DeletionTarget:
    """One object that is to go."""

    kind: KindMapping
    namespace: str
    name: str
    uid: str = ""


class _DeletedMeta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _DeletedObject(msgspec.Struct, frozen=True):
    metadata: _DeletedMeta = _DeletedMeta()


class _DeletedList(msgspec.Struct, frozen=True):
    items: tuple[_DeletedObject, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeleteOptions:
    grace_s: int | None
    propagation: str
    wait: bool
    ignore_missing: bool


@click.command("delete")
@click.argument("what", nargs=-1, metavar="[KIND [NAME]...]", shell_complete=complete_kinds)
@click.option("-f", "--filename", "files", type=click.Path(path_type=Path), multiple=True, help="What manifests name.")
@namespace_option
@click.option("-l", "--selector", "labels", default="", help="All of a kind that have these labels: app=web.")
@click.option("--all", "every", is_flag=True, help="All of a kind in the namespace.")
@click.option("--grace-period", "grace_s", type=click.IntRange(0), default=None, help="Seconds to stop in; 0: at once.")
@click.option(
    "--cascade",
    type=click.Choice(list(_CASCADES)),
    default="background",
    show_default=True,
    help="What becomes of objects that belong to it.",
)
@click.option("--wait/--no-wait", default=True, help="Return when it is gone.  [default: wait]")
@click.option("--ignore-not-found", "ignore_missing", is_flag=True, help="What is not there is no error.")
@connection_options
def command(
    what: tuple[str, ...],
    files: tuple[Path, ...],
    namespace: str,
    labels: str,
    every: bool,
    grace_s: int | None,
    cascade: str,
    wait: bool,
    ignore_missing: bool,
    connection: ClusterConnection,
) -> None:
    """Delete objects of a cluster: by name, by labels, or what manifests name.

    \b
    Examples:
      bayplan delete pod web-0
      bayplan delete -f examples/workloads
      bayplan delete pods -l app=web --no-wait
      bayplan delete deploy/web --cascade orphan
      bayplan delete jobs --all -n batch
    """
    if bool(what) == bool(files):
        raise UsageError("name what to delete, or files with -f, and not both; such as bayplan delete pod web-0")
    objects = read_objects(files) if files else []
    how = _DeleteOptions(grace_s=grace_s, propagation=_CASCADES[cascade], wait=wait, ignore_missing=ignore_missing)

    async def work(client: Client) -> None:
        if objects:
            applier = Applier(client, namespace=namespace, everything_there=bool(namespace))
            # Backwards: a namespace or a definition stands above what is in it.
            found = [_DeletionTarget(*await applier.locate(raw.tree, raw.place)) for raw in reversed(objects)]
        else:
            found = await _find_targets(client, what, namespace or client.target.namespace, labels, every=every)
        await _delete(client, found, how)

    run_with_client(connection, work)


async def _find_targets(
    client: Client, what: Sequence[str], namespace: str, labels: str, *, every: bool
) -> list[_DeletionTarget]:
    catalogue = await discover_rest_mapper(client.transport)
    found: list[_DeletionTarget] = []
    for word, name in parse_targets(what):
        for kind in catalogue.matching_kinds(word):
            own = namespace if kind.resource.namespaced else ""
            if name and (labels or every):
                raise UsageError("a name says all; leave out -l and --all")
            if name:
                found.append(_DeletionTarget(kind, own, name))
                continue
            if not labels and not every:
                raise UsageError(f"which {word}? name them, or say -l LABELS or --all")
            listing = TableQuery(resource=kind.resource, namespace=own, label_selector=labels).path()
            answer = await client.transport.request("GET", listing)
            items = msgspec.json.decode(answer.body, type=_DeletedList).items
            found.extend(
                _DeletionTarget(kind, each.metadata.namespace, each.metadata.name, each.metadata.uid) for each in items
            )
    if not found:
        click.echo("there is nothing to delete", err=True)
    return found


async def _delete(client: Client, doomed: Sequence[_DeletionTarget], how: _DeleteOptions) -> None:
    going: list[tuple[_DeletionTarget, str]] = []
    with progress(f"deleting {len(doomed)} object(s)"):
        for each in doomed:
            uid = await _delete_one(client, each, how)
            if uid is not None:
                click.echo(f"{each.kind.matches_name(each.name)} deleted")
                going.append((each, uid))
        if how.wait:
            for each, uid in going:
                await _wait_until_deleted(client, each, uid)


async def _delete_one(client: Client, doomed: _DeletionTarget, how: _DeleteOptions) -> str | None:
    """Delete it; its uid, or None when it was not there."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": how.propagation}
    if how.grace_s is not None:
        options["gracePeriodSeconds"] = how.grace_s
    path = doomed.kind.resource.path(doomed.namespace, doomed.name)
    try:
        known = await client.transport.request("GET", path)
        uid = doomed.uid or msgspec.json.decode(known.body, type=_DeletedObject).metadata.uid
        options["preconditions"] = {"uid": uid}
        await client.transport.request("DELETE", path, msgspec.json.encode(options))
    except NotFound:
        if how.ignore_missing or doomed.uid:  # of those that were found by labels one may have gone by itself
            return None
        raise
    except Conflict:
        if doomed.uid:
            return None  # another one has taken its name since
        raise
    return uid


async def _wait_until_deleted(client: Client, doomed: _DeletionTarget, uid: str) -> None:
    """Wait until the object is gone, or another one has taken its name."""
    path = doomed.kind.resource.path(doomed.namespace, doomed.name)
    wanted = TableQuery(resource=doomed.kind.resource, namespace=doomed.namespace, name=doomed.name)
    while True:
        try:
            answer = await client.transport.request("GET", path)
        except NotFound:
            return
        known = msgspec.json.decode(answer.body, type=_DeletedObject)
        if known.metadata.uid != uid:
            return
        try:
            async with aclosing(watch_objects(client.transport, wanted, known.metadata.resource_version)) as events:
                async for happened, _ in events:
                    if happened == "DELETED":
                        return
        except (Gone, TimedOut):
            continue  # the next turn reads the object again
