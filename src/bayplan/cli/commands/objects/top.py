"""`bayplan top`: a live table of nodes, pending pods and the rate of decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bayplan.cli.cluster_monitor import ClusterMonitor, NodeRequests
from bayplan.cli.connection import ClusterConnection, run_with_client
from bayplan.cli.flags.connection_options import connection_options
from bayplan.cli.output import terminal
from bayplan.cli.output.printers import print_value
from bayplan.cli.output.terminal import progress
from bayplan.client import Client
from bayplan.objects.resources import CPU, MEMORY, PODS, is_extended_resource_name

_BAR_WIDTH = 12
_WIDE_WIDTH = 100
_UNLIMITED_WIDTH = 100_000
_GIB = 1 << 30
SORTS = ("cpu", "memory", "pods", "name")


@click.command("top")
@click.option("--interval", type=click.FloatRange(0.1, 60.0), default=1.0, show_default=True, help="Seconds.")
@click.option("--sort", type=click.Choice(SORTS), default="cpu", show_default=True, help="Order of the nodes.")
@click.option("--once", is_flag=True, help="Print once and exit; the default without a terminal.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json: all data, once.")
@connection_options
def command(interval: float, sort: str, once: bool, output: str, connection: ClusterConnection) -> None:
    """Watch a cluster: used and free resources of nodes, pending pods, decisions a second, until Ctrl-C.

    Used resources are requests, as the scheduler accounts them. A decision is a pod that got a node, or one that was
    reported unschedulable. GPUs and other devices have a column each, as many as fit.

    \b
    Examples:
      bayplan top
      bayplan top --sort memory --interval 0.5
      bayplan top --once --context staging
      bayplan top -o json
    """
    with suppress(click.Abort):  # the normal end
        run_with_client(connection, lambda client: _top(client, interval, sort, once=once, as_json=output == "json"))


async def _top(client: Client, interval: float, sort: str, *, once: bool, as_json: bool) -> None:
    view = ClusterMonitor(client)
    console = terminal.stdout_console()
    with progress(f"reading {client.target.server}"):
        await _check_reachable(client)
    monitor_task = asyncio.create_task(view.run())
    try:
        with progress(f"reading {client.target.server}"):
            await _wait_synced(view, monitor_task)
        if as_json:
            print_value(as_data(view, sort), "json")
            return
        if once or not console.is_terminal:
            console.print(render_screen(view, sort, console, rows=None), crop=False)
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while not monitor_task.done():
                live.update(render_screen(view, sort, console, rows=console.height - 5), refresh=True)
                await client.clock.sleep(interval)
        monitor_task.result()
    finally:
        monitor_task.cancel()
        await asyncio.gather(monitor_task, return_exceptions=True)


async def _check_reachable(client: Client) -> None:
    """Send one request of each kind. It fails if the server is unreachable, while watches retry forever."""
    await client.transport.request("GET", "/api/v1/nodes?limit=1")
    await client.transport.request("GET", "/api/v1/pods?limit=1")


async def _wait_synced(view: ClusterMonitor, monitor_task: asyncio.Task[None]) -> None:
    ready = asyncio.create_task(view.ready())
    await asyncio.wait((ready, monitor_task), return_when=asyncio.FIRST_COMPLETED)
    if monitor_task.done():
        monitor_task.result()


def render_screen(view: ClusterMonitor, sort: str, console: Console, *, rows: int | None) -> RenderableType:
    """The screen, adapted to the width of the terminal; at most `rows` nodes."""
    nodes = sort_nodes((each for each in view.nodes.values() if each.has_object), sort)
    shown = nodes if rows is None else nodes[: max(rows, 1)]
    devices = device_resources(nodes)
    table, fit = _fit_table(shown, devices, console)
    parts: list[RenderableType] = [_headline(nodes), _pending_line(view), Text(), table]
    if fit < len(devices):
        parts.append(Text(f"hidden columns: {', '.join(devices[fit:])}; -o json shows all", style="dim"))
    if len(shown) < len(nodes):
        parts.append(Text(f"and {len(nodes) - len(shown)} more nodes", style="dim"))
    return Group(*parts)


def as_data(view: ClusterMonitor, sort: str) -> dict[str, Any]:
    """The same as data: CPUs in cores, memory in bytes, everything else in its own units."""
    waiting = view.pending_counts()
    nodes = sort_nodes((each for each in view.nodes.values() if each.has_object), sort)
    return {
        "nodes": [_node_data(node) for node in nodes],
        "waiting": {"active": waiting.active, "unschedulable": waiting.unschedulable, "gated": waiting.gated},
        "decisionsPerSecond": view.decisions_per_second(),
    }


def _node_data(node: NodeRequests) -> dict[str, Any]:
    amounts = {
        name: {
            "used": node.pods if name == PODS else _units(name, node.requested.get(name, 0)),
            "total": _units(name, total),
        }
        for name, total in node.allocatable.items()
    }
    health = {"ready": node.ready, "unschedulable": node.unschedulable}
    return {"name": node.name, "zone": node.zone, **health, "resources": amounts}


def _units(resource: str, amount: int) -> float:
    return amount / 1000 if resource == CPU else amount


def device_resources(nodes: Iterable[NodeRequests]) -> list[str]:
    """Extended resources such as nvidia.com/gpu."""
    return sorted({name for node in nodes for name in node.allocatable if is_extended_resource_name(name)})


def node_status(node: NodeRequests) -> str:
    """Conditions that keep pods off the node, in kubectl's words; empty if there are none."""
    marks = ("" if node.ready else "NotReady", "SchedulingDisabled" if node.unschedulable else "")
    return ",".join(filter(None, marks))


def sort_nodes(nodes: Iterable[NodeRequests], sort: str) -> list[NodeRequests]:
    """The fullest nodes first; equal ones by name."""
    keys = {"cpu": lambda node: node.share(CPU), "memory": lambda node: node.share(MEMORY), "pods": lambda n: n.pods}
    found = sorted(nodes, key=lambda node: node.name)
    return found if sort == "name" else sorted(found, key=keys[sort], reverse=True)


def _headline(nodes: Sequence[NodeRequests]) -> Text:
    ready, pods = sum(node.ready for node in nodes), sum(node.pods for node in nodes)
    cpu, memory = (f"{_share(nodes, each):.0%}" for each in (CPU, MEMORY))
    return Text(f"nodes {ready}/{len(nodes)} ready   pods {pods:,}   cpu {cpu}   memory {memory}", style="bold")


def _share(nodes: Sequence[NodeRequests], resource: str) -> float:
    offered = sum(node.allocatable.get(resource, 0) for node in nodes)
    return sum(node.requested.get(resource, 0) for node in nodes) / offered if offered else 0.0


def _pending_line(view: ClusterMonitor) -> Text:
    pending = view.pending_counts()
    return Text.assemble(
        f"pending: {pending.active:,} in queue, ",
        (f"{pending.unschedulable:,} unschedulable", "yellow" if pending.unschedulable else ""),
        f", {pending.gated:,} gated   decisions: {view.decisions_per_second():,.0f}/s",
    )


def _fit_table(nodes: Sequence[NodeRequests], devices: Sequence[str], console: Console) -> tuple[Table, int]:
    """The table with bars and as many device columns as fit the terminal, and the number of these columns."""
    narrow = not _fits(_table(nodes, (), console, narrow=False), console)
    for count in range(len(devices), -1, -1):
        table = _table(nodes, devices[:count], console, narrow=narrow)
        if not count or _fits(table, console):
            break
    return table, count


def _fits(table: Table, console: Console) -> bool:
    endless = Console(width=_UNLIMITED_WIDTH)
    return Measurement.get(endless, endless.options, table).maximum <= console.width


def _table(nodes: Sequence[NodeRequests], devices: Sequence[str], console: Console, *, narrow: bool) -> Table:
    wide = console.width >= _WIDE_WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NODE", no_wrap=True)
    marked = any(map(node_status, nodes))
    if marked:
        table.add_column("STATUS", no_wrap=True)
    if wide:
        table.add_column("ZONE", no_wrap=True)
    for title in ("PODS", "CPU", "MEMORY"):
        table.add_column(title, no_wrap=True, justify="right")
        if not narrow and title != "PODS":
            table.add_column("", no_wrap=True)
            table.add_column("FREE", no_wrap=True, justify="right")
    for name in devices:
        table.add_column(_title(name, devices), no_wrap=True, justify="right")
    for node in nodes:
        style = "red" if not node.ready else "dim" if node.unschedulable else ""
        cells: list[RenderableType] = [Text(node.name, style=style)]
        if marked:
            cells.append(Text(node_status(node) or "Ready", style=style))
        if wide:
            cells.append(node.zone)
        cells.append(f"{node.pods}/{node.allocatable.get(PODS, 0)}")
        for resource in (CPU, MEMORY):
            cells.append(f"{node.share(resource):.0%}")
            if not narrow:
                cells += [usage_bar(node.share(resource)), _free_cell(node, resource)]
        cells += [_usage_cell(node, name) for name in devices]
        table.add_row(*cells)
    return table


def _title(device: str, devices: Sequence[str]) -> str:
    """The device without its domain, unless another device has the same name."""
    own = device.rpartition("/")[2]
    alone = sum(each.rpartition("/")[2] == own for each in devices) == 1
    return (own if alone else device).upper()


def _usage_cell(node: NodeRequests, resource: str) -> str:
    """Used and total; `-` for a node without the resource."""
    return f"{node.requested.get(resource, 0)}/{node.allocatable[resource]}" if resource in node.allocatable else "-"


def usage_bar(share: float, width: int = _BAR_WIDTH) -> Text:
    filled = min(width, round(share * width))
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "cyan"
    return Text.assemble(("█" * filled, style), ("░" * (width - filled), "dim"))


def _free_cell(node: NodeRequests, resource: str) -> str:
    left = max(node.allocatable.get(resource, 0) - node.requested.get(resource, 0), 0)
    return f"{left / 1000:.1f}" if resource == CPU else f"{left / _GIB:.1f}Gi"
