"""`bayplan podgroup`: Volcano's PodGroups, as in `vcctl`."""

from __future__ import annotations

import click

from bayplan.cli.commands.volcano.vcctl import (
    ServerArguments,
    Tree,
    list_trees,
    output_option,
    print_columns,
    print_objects,
    require_name,
    run_with_server,
    vcctl_options,
)
from bayplan.cli.output.printers import print_value
from bayplan.client import Client
from bayplan.controllers.core.api_types import PODS
from bayplan.controllers.volcano.resources import POD_GROUPS
from bayplan.objects.volcano.constants import GROUP_NAME

_HEADER = ("Name", "Phase", "MinMember", "Running", "Succeeded", "Failed", "Queue", "Created")
_namespace_option = click.option(
    "-n", "--namespace", default="default", show_default=True, help="The namespace of the group."
)


@click.group("podgroup")
def command() -> None:
    """List, view and delete pod groups.

    \b
    Examples:
      bayplan podgroup list --all-namespaces
      bayplan podgroup view train-0d6f
    """


@command.command("list")
@_namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="List pod groups of all namespaces.")
@click.option("-q", "--queue", default="", help="Only pod groups of this queue.")
@output_option
@vcctl_options
def list_(namespace: str, all_namespaces: bool, queue: str, output: str | None, where: ServerArguments) -> None:
    """List pod groups.

    \b
    Examples:
      bayplan podgroup list
      bayplan podgroup list -A -q ml -o json
    """
    space = "" if all_namespaces else namespace
    found: list[Tree] = run_with_server(where, lambda client: list_trees(client, POD_GROUPS, space))
    groups = [group for group in found if not queue or _queue(group) == queue]
    header = ("Namespace", *_HEADER) if all_namespaces else _HEADER
    print_objects(
        groups,
        output,
        header,
        lambda group: [*([group["metadata"]["namespace"]] if all_namespaces else []), *_row(group)],
    )


def _queue(group: Tree) -> str:
    return str((group.get("spec") or {}).get("queue") or "default")


def _row(group: Tree) -> list[object]:
    spec, status = group.get("spec") or {}, group.get("status") or {}
    counts = [status.get(key, 0) for key in ("running", "succeeded", "failed")]
    created = group["metadata"].get("creationTimestamp", "")
    return [
        group["metadata"]["name"],
        status.get("phase", ""),
        spec.get("minMember", 0),
        *counts,
        _queue(group),
        created,
    ]


@command.command("view")
@click.argument("group", required=False)
@click.option("-N", "--name", help="The name of the group.")
@_namespace_option
@output_option
@vcctl_options
def view(group: str | None, name: str | None, namespace: str, output: str | None, where: ServerArguments) -> None:
    """Show a pod group: its status, its conditions with the scheduler's messages, and its pods.

    \b
    Examples:
      bayplan podgroup view train-0d6f
      bayplan podgroup view -N train-0d6f -n ml -o yaml
    """
    chosen = require_name(group, name, "pod group")

    async def read(client: Client) -> tuple[Tree, list[Tree]]:
        found = await client.get_raw(POD_GROUPS, namespace, chosen)
        pods = await list_trees(client, PODS, namespace)
        members = [pod for pod in pods if (pod["metadata"].get("annotations") or {}).get(GROUP_NAME) == chosen]
        return found, members

    found, pods = run_with_server(where, read)
    if output is not None:
        print_value(found, output)
        return
    print_columns([_HEADER, _row(found)])
    conditions = (found.get("status") or {}).get("conditions") or []
    click.echo("Conditions:" if conditions else "Conditions: <none>")
    for each in conditions:
        click.echo(f"  {each.get('type')}={each.get('status')}  {each.get('reason', '')}: {each.get('message', '')}")
    click.echo("Pods:" if pods else "Pods: <none>")
    for pod in pods:
        place = pod["spec"].get("nodeName") or "<no node>"
        click.echo(f"  {pod['metadata']['name']}  {pod['status'].get('phase', '')}  {place}")


@command.command("delete")
@click.argument("group", required=False)
@click.option("-N", "--name", help="The name of the group.")
@_namespace_option
@vcctl_options
def delete(group: str | None, name: str | None, namespace: str, where: ServerArguments) -> None:
    """Delete a pod group. Its pods stay.

    \b
    Examples:
      bayplan podgroup delete train-0d6f
    """
    chosen = require_name(group, name, "pod group")
    run_with_server(where, lambda client: client.delete(POD_GROUPS, name=chosen, namespace=namespace))
    click.echo(f"delete podgroup {chosen} successfully")
