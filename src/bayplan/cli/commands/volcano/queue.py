"""`bayplan queue`: Volcano's queues, as in `vcctl queue`."""

from __future__ import annotations

import asyncio
from collections import Counter

import click

from bayplan.cli.commands.volcano.vcctl import (
    QUEUE_COUNT_PHASES,
    ServerArguments,
    Tree,
    count_pod_groups_by_queue,
    list_trees,
    output_option,
    print_objects,
    require_name,
    run_with_server,
    send_command,
    vcctl_options,
)
from bayplan.cli.output.printers import print_value
from bayplan.client import MERGE_PATCH, Client
from bayplan.controllers.volcano.resources import POD_GROUPS, QUEUES
from bayplan.errors import UsageError
from bayplan.objects.volcano.constants import CLOSE_QUEUE, CLOSED, OPEN, OPEN_QUEUE

_HEADER = ("Name", "Weight", "State", "Parent", *QUEUE_COUNT_PHASES)
_name_option = click.option("-n", "--name", help="The name of the queue.")
_COMMAND_NAMESPACE = "default"
"""The namespace of Commands for queues: queues have no namespace, Commands have one."""


@click.group("queue")
def command() -> None:
    """List, create, open, close and delete queues.

    \b
    Examples:
      bayplan queue list
      bayplan queue create ml --weight 4
      bayplan queue operate ml --action close
    """


@command.command("list")
@output_option
@vcctl_options
def list_(where: ServerArguments, output: str | None) -> None:
    """List all queues with the number of their pod groups by phase.

    \b
    Examples:
      bayplan queue list
      bayplan queue list -o yaml
    """

    async def read(client: Client) -> tuple[list[Tree], list[Tree]]:
        queues, groups = await asyncio.gather(list_trees(client, QUEUES), list_trees(client, POD_GROUPS))
        return queues, groups

    queues, groups = run_with_server(where, read)
    counts = count_pod_groups_by_queue(groups)
    print_objects(queues, output, _HEADER, lambda queue: _row(queue, counts.get(queue["metadata"]["name"], Counter())))


def _row(queue: Tree, counts: Counter[str]) -> list[object]:
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    columns = (spec.get("weight", 0), status.get("state", ""), spec.get("parent", ""))
    return [queue["metadata"]["name"], *columns, *(counts[phase] for phase in QUEUE_COUNT_PHASES)]


@command.command("get")
@click.argument("queue", required=False)
@_name_option
@output_option
@vcctl_options
def get(queue: str | None, name: str | None, where: ServerArguments, output: str | None) -> None:
    """Show one queue.

    \b
    Examples:
      bayplan queue get default
      bayplan queue get -n default -o json
    """
    chosen = require_name(queue, name, "queue")

    async def read(client: Client) -> tuple[Tree, list[Tree]]:
        return await client.get_raw(QUEUES, "", chosen), await list_trees(client, POD_GROUPS)

    found, groups = run_with_server(where, read)
    if output is not None:
        print_value(found, output)
    else:
        print_objects(
            [found], None, _HEADER, lambda each: _row(each, count_pod_groups_by_queue(groups).get(chosen, Counter()))
        )


@command.command("create")
@click.argument("queue", required=False)
@_name_option
@click.option("-w", "--weight", type=click.IntRange(1, 65535), default=1, show_default=True, help="Its weight.")
@click.option("-S", "--state", type=click.Choice([OPEN, CLOSED]), default=OPEN, show_default=True)
@click.option("--parent", default="", help="The parent queue. Default: root.")
@vcctl_options
def create(queue: str | None, name: str | None, weight: int, state: str, parent: str, where: ServerArguments) -> None:
    """Create a queue.

    \b
    Examples:
      bayplan queue create ml --weight 4
      bayplan queue create -n ml-team --parent ml
    """
    chosen = require_name(queue, name, "queue")
    spec = {"weight": weight, "reclaimable": True, **({"parent": parent} if parent else {})}

    async def create_queue(client: Client) -> None:
        body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": chosen}, "spec": spec}
        await client.create(QUEUES, body)
        if state != OPEN:
            patch = {"status": {"state": state}}
            await client.patch(QUEUES, patch, name=chosen, subresource="status", kind=MERGE_PATCH)

    run_with_server(where, create_queue)
    click.echo(f"create queue {chosen} successfully")


@command.command("operate")
@click.argument("queue", required=False)
@_name_option
@click.option("-a", "--action", required=True, type=click.Choice(["open", "close", "update"]), help="The action.")
@click.option("-w", "--weight", type=click.IntRange(0, 65535), default=0, help="With update: the new weight.")
@vcctl_options
def operate(queue: str | None, name: str | None, action: str, weight: int, where: ServerArguments) -> None:
    """Open or close a queue, or change its weight.

    \b
    Examples:
      bayplan queue operate ml --action close
      bayplan queue operate -n ml -a update -w 8
    """
    chosen = require_name(queue, name, "queue")
    if action == "update" and not weight:
        raise UsageError(f"when update queue {chosen}, weight must be specified, the value must be greater than 0")

    async def act(client: Client) -> None:
        if action == "update":
            await client.patch(QUEUES, {"spec": {"weight": weight}}, name=chosen, kind=MERGE_PATCH)
            return
        found = await client.get_raw(QUEUES, "", chosen)
        order = OPEN_QUEUE if action == "open" else CLOSE_QUEUE
        await send_command(client, QUEUES, found, order, _COMMAND_NAMESPACE)

    run_with_server(where, act)
    click.echo(f"{action} queue {chosen} successfully")


@command.command("delete")
@click.argument("queue", required=False)
@_name_option
@vcctl_options
def delete(queue: str | None, name: str | None, where: ServerArguments) -> None:
    """Delete a queue. Its jobs stay, and wait for a queue with this name.

    \b
    Examples:
      bayplan queue delete ml
      bayplan queue delete -n ml
    """
    chosen = require_name(queue, name, "queue")
    run_with_server(where, lambda client: client.delete(QUEUES, name=chosen))
    click.echo(f"delete queue {chosen} successfully")
