"""`bayplan delete`: deletes objects by file, name or labels, and waits until they are gone."""

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
@click.option(
    "-f", "--filename", "files", type=click.Path(path_type=Path), multiple=True, help="Delete the objects of manifests."
)
@namespace_option
@click.option("-l", "--selector", "labels", default="", help="Delete objects with these labels: app=web.")
@click.option("--all", "every", is_flag=True, help="Delete all objects of the resource type in the namespace.")
@click.option("--grace-period", "grace_s", type=click.IntRange(0), default=None, help="Seconds to stop; 0: at once.")
@click.option(
    "--cascade",
    type=click.Choice(list(_CASCADES)),
    default="background",
    show_default=True,
    help="What happens to dependent objects.",
)
@click.option("--wait/--no-wait", default=True, help="Return when the objects are gone.  [default: wait]")
@click.option("--ignore-not-found", "ignore_missing", is_flag=True, help="Missing objects are not an error.")
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
    """Delete objects of a cluster: by name, by labels, or from manifests.

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
            applier = Applier(client, namespace=namespace, enforce_namespace=bool(namespace))
            # In reverse order: a namespace or a CRD comes before its objects.
            found = [_DeletionTarget(*await applier.locate(raw.tree, raw.place)) for raw in reversed(objects)]
        else:
            found = await _find_targets(client, what, namespace or client.target.namespace, labels, every=every)
        await _delete(client, found, how)

    run_with_client(connection, work)


async def _find_targets(
    client: Client, what: Sequence[str], namespace: str, labels: str, *, every: bool
) -> list[_DeletionTarget]:
    mapper = await discover_rest_mapper(client.transport)
    found: list[_DeletionTarget] = []
    for word, name in parse_targets(what):
        for kind in mapper.matching_kinds(word):
            own = namespace if kind.resource.namespaced else ""
            if name and (labels or every):
                raise UsageError("a name selects one object; leave out -l and --all")
            if name:
                found.append(_DeletionTarget(kind, own, name))
                continue
            if not labels and not every:
                raise UsageError(f"no {word} selected; give names, -l LABELS or --all")
            listing = TableQuery(resource=kind.resource, namespace=own, label_selector=labels).path()
            answer = await client.transport.request("GET", listing)
            items = msgspec.json.decode(answer.body, type=_DeletedList).items
            found.extend(
                _DeletionTarget(kind, each.metadata.namespace, each.metadata.name, each.metadata.uid) for each in items
            )
    if not found:
        click.echo("there is nothing to delete", err=True)
    return found


async def _delete(client: Client, target: Sequence[_DeletionTarget], how: _DeleteOptions) -> None:
    deleted: list[tuple[_DeletionTarget, str]] = []
    with progress(f"deleting {len(target)} object(s)"):
        for each in target:
            uid = await _delete_one(client, each, how)
            if uid is not None:
                click.echo(f"{each.kind.matches_name(each.name)} deleted")
                deleted.append((each, uid))
        if how.wait:
            for each, uid in deleted:
                await _wait_until_deleted(client, each, uid)


async def _delete_one(client: Client, target: _DeletionTarget, how: _DeleteOptions) -> str | None:
    """Delete the object. Returns its uid, or None if it did not exist."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": how.propagation}
    if how.grace_s is not None:
        options["gracePeriodSeconds"] = how.grace_s
    path = target.kind.resource.path(target.namespace, target.name)
    try:
        known = await client.transport.request("GET", path)
        uid = target.uid or msgspec.json.decode(known.body, type=_DeletedObject).metadata.uid
        options["preconditions"] = {"uid": uid}
        await client.transport.request("DELETE", path, msgspec.json.encode(options))
    except NotFound:
        if how.ignore_missing or target.uid:  # an object that was selected by labels may be gone already
            return None
        raise
    except Conflict:
        if target.uid:
            return None  # another object has the name now
        raise
    return uid


async def _wait_until_deleted(client: Client, target: _DeletionTarget, uid: str) -> None:
    """Wait until the object is gone, or another object has its name."""
    path = target.kind.resource.path(target.namespace, target.name)
    query = TableQuery(resource=target.kind.resource, namespace=target.namespace, name=target.name)
    while True:
        try:
            answer = await client.transport.request("GET", path)
        except NotFound:
            return
        known = msgspec.json.decode(answer.body, type=_DeletedObject)
        if known.metadata.uid != uid:
            return
        try:
            async with aclosing(watch_objects(client.transport, query, known.metadata.resource_version)) as events:
                async for event_type, _ in events:
                    if event_type == "DELETED":
                        return
        except (Gone, TimedOut):
            continue  # the next turn reads the object again
