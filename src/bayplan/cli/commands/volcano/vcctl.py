"""Functions that `bayplan queue`, `job` and `podgroup` share: lists, commands and output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from bayplan.cli.connection import run_with_target
from bayplan.cli.flags.connection_options import resolve_server, server_options
from bayplan.cli.output.printers import print_value
from bayplan.client import Client, GroupVersionResource
from bayplan.controllers.volcano.resources import COMMANDS
from bayplan.errors import UsageError

Tree = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

QUEUE_COUNT_PHASES = ("Inqueue", "Pending", "Running", "Unknown", "Completed")
"""The phases of pod groups, as vcctl shows them for a queue."""


def vcctl_options(command: F) -> F:
    """Options of the API server, passed as one `where` to `run_with_server`."""

    def joined(*args: Any, kubeconfig: Path | None, context: str, master: str, **given: Any) -> Any:
        return command(*args, where=(kubeconfig, context, master), **given)

    joined.__name__, joined.__doc__ = command.__name__, command.__doc__
    joined.__dict__.update(command.__dict__)
    return server_options(joined)  # type: ignore[return-value]


ServerArguments = tuple[Path | None, str, str]


def run_with_server(where: ServerArguments, work: Callable[[Client], Any]) -> Any:
    return run_with_target(resolve_server(*where), work)


def output_option(command: F) -> F:
    return click.option("-o", "--output", type=click.Choice(["json", "yaml"]), help="Print the objects.")(command)


def require_name(argument: str | None, option: str | None, what: str) -> str:
    """The name, given as an option as in vcctl, or as an argument."""
    name = argument or option
    if not name:
        raise UsageError(f"no {what} selected; give its name")
    return name


async def list_trees(client: Client, resource: GroupVersionResource, namespace: str = "") -> list[Tree]:
    answer = await client.transport.request("GET", resource.path(namespace))
    items: list[Tree] = msgspec.json.decode(answer.body).get("items") or []
    assert resource.kind is not None
    return [{"apiVersion": resource.api_version, "kind": resource.kind.name, **item} for item in items]


async def send_command(client: Client, resource: GroupVersionResource, item: Tree, action: str, namespace: str) -> None:
    """Create a Command for an object, which the controllers carry out."""
    assert resource.kind is not None
    meta = item["metadata"]
    target = {"apiVersion": resource.api_version, "kind": resource.kind.name, "name": meta["name"], "uid": meta["uid"]}
    owner = {**target, "controller": True, "blockOwnerDeletion": True}
    owners = [owner] if meta.get("namespace", "") == namespace else []  # an owner must be in the same namespace
    body = {
        "apiVersion": COMMANDS.api_version,
        "kind": "Command",
        "metadata": {"generateName": f"{meta['name']}-{action.lower()}-", "ownerReferences": owners},
        "action": action,
        "target": owner,
    }
    await client.create(COMMANDS, body, namespace=namespace)


def print_objects(
    items: Sequence[Tree], output: str | None, header: Sequence[str], row: Callable[[Tree], Sequence[Any]]
) -> None:
    """Print objects as a table, or as JSON or YAML."""
    if output is not None:
        print_value({"apiVersion": "v1", "kind": "List", "items": list(items)}, output)
    elif not items:
        click.echo("No resources found")
    else:
        print_columns([list(header), *(list(row(item)) for item in items)])


def print_columns(rows: Sequence[Sequence[Any]]) -> None:
    """Print columns as wide as their widest cell, separated by three spaces."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in texts) for index in range(len(texts[0]))]
    for row in texts:
        line = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def count_pod_groups_by_queue(groups: Iterable[Tree]) -> dict[str, Counter[str]]:
    """Number of pod groups by queue and phase."""
    found: dict[str, Counter[str]] = {}
    for group in groups:
        queue = (group.get("spec") or {}).get("queue") or "default"
        found.setdefault(queue, Counter())[(group.get("status") or {}).get("phase") or ""] += 1
    return found
