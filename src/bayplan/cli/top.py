"""`bayplan top`: a live table of nodes, of pods that wait and of decisions a second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bayplan.cli.cluster_view import ClusterView, NodeUse
from bayplan.cli.connection import Connection, asked, connection_options
from bayplan.cli.terminal import output, progress
from bayplan.client import Client
from bayplan.objects.resources import CPU, MEMORY, PODS

_BAR = 12
_NARROW = 60
_WIDE = 100
_GIB = 1 << 30
SORTS = ("cpu", "memory", "pods", "name")


@click.command("top")
@click.option("--interval", type=click.FloatRange(0.1, 60.0), default=1.0, show_default=True, help="Seconds.")
@click.option("--sort", type=click.Choice(SORTS), default="cpu", show_default=True, help="Which nodes come first.")
@click.option("--once", is_flag=True, help="Print it once and end; without a terminal that is what it does.")
@connection_options
def command(interval: float, sort: str, once: bool, connection: Connection) -> None:
    """Watch a cluster: nodes with what is used and free, pods that wait, decisions a second. Ctrl-C ends it.

    What is used is what pods ask for, as a scheduler counts it. A decision is a pod that got a node, or one that was
    told why it gets none.

    \b
    Examples:
      bayplan top
      bayplan top --sort memory --interval 0.5
      bayplan top --once --context staging
    """
    with suppress(click.Abort):  # that is how it ends
        asked(connection, lambda client: _top(client, interval, sort, once=once))


async def _top(client: Client, interval: float, sort: str, *, once: bool) -> None:
    view = ClusterView(client)
    console = output()
    with progress(f"reading {client.target.server}"):
        await _reached(client)
    following = asyncio.create_task(view.run())
    try:
        with progress(f"reading {client.target.server}"):
            await _synced(view, following)
        if once or not console.is_terminal:
            console.print(picture(view, sort, console, rows=None), crop=False)
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while not following.done():
                live.update(picture(view, sort, console, rows=console.height - 5), refresh=True)
                await client.clock.sleep(interval)
        following.result()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _reached(client: Client) -> None:
    """Who cannot be asked at all is found out by asking once: watches never give up, and say so each time."""
    await client.transport.request("GET", "/api/v1/nodes?limit=1")
    await client.transport.request("GET", "/api/v1/pods?limit=1")


async def _synced(view: ClusterView, following: asyncio.Task[None]) -> None:
    """Wait for the first picture."""
    ready = asyncio.create_task(view.ready())
    await asyncio.wait((ready, following), return_when=asyncio.FIRST_COMPLETED)
    if following.done():
        following.result()


def picture(view: ClusterView, sort: str, console: Console, *, rows: int | None) -> RenderableType:
    """All of it, as wide as the terminal lets it be; at most so many nodes."""
    nodes = ordered((each for each in view.nodes.values() if each.known), sort)
    shown = nodes if rows is None else nodes[: max(rows, 1)]
    parts: list[RenderableType] = [_headline(nodes), _waiting(view), Text(), _table(shown, console)]
    if len(shown) < len(nodes):
        parts.append(Text(f"and {len(nodes) - len(shown)} more nodes", style="dim"))
    return Group(*parts)


def ordered(nodes: Iterable[NodeUse], sort: str) -> list[NodeUse]:
    """The fullest first; equal ones by name."""
    keys = {"cpu": lambda node: node.share(CPU), "memory": lambda node: node.share(MEMORY), "pods": lambda n: n.pods}
    found = sorted(nodes, key=lambda node: node.name)
    return found if sort == "name" else sorted(found, key=keys[sort], reverse=True)


def _headline(nodes: Sequence[NodeUse]) -> Text:
    ready, pods = sum(node.ready for node in nodes), sum(node.pods for node in nodes)
    cpu, memory = (f"{_share(nodes, each):.0%}" for each in (CPU, MEMORY))
    return Text(f"nodes {ready}/{len(nodes)} ready   pods {pods:,}   cpu {cpu}   memory {memory}", style="bold")


def _share(nodes: Sequence[NodeUse], resource: str) -> float:
    offered = sum(node.offered.get(resource, 0) for node in nodes)
    return sum(node.used.get(resource, 0) for node in nodes) / offered if offered else 0.0


def _waiting(view: ClusterView) -> Text:
    waiting = view.waiting()
    return Text.assemble(
        f"waiting: {waiting.active:,} to be tried, ",
        (f"{waiting.unschedulable:,} unschedulable", "yellow" if waiting.unschedulable else ""),
        f", {waiting.gated:,} gated   decisions: {view.decisions_a_second():,.0f}/s",
    )


def _table(nodes: Sequence[NodeUse], console: Console) -> Table:
    narrow, wide = console.width < _NARROW, console.width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NODE", no_wrap=True)
    if wide:
        table.add_column("ZONE", no_wrap=True)
    for title in ("PODS", "CPU", "MEMORY"):
        table.add_column(title, no_wrap=True, justify="right")
        if not narrow and title != "PODS":
            table.add_column("", no_wrap=True)
            table.add_column("FREE", no_wrap=True, justify="right")
    for node in nodes:
        style = "" if node.ready and not node.unschedulable else "dim" if node.unschedulable else "red"
        cells: list[RenderableType] = [Text(node.name, style=style)]
        if wide:
            cells.append(node.zone)
        cells.append(f"{node.pods}/{node.offered.get(PODS, 0)}")
        for resource in (CPU, MEMORY):
            cells.append(f"{node.share(resource):.0%}")
            if not narrow:
                cells += [gauge(node.share(resource)), _free(node, resource)]
        table.add_row(*cells)
    return table


def gauge(share: float, width: int = _BAR) -> Text:
    filled = min(width, round(share * width))
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "cyan"
    return Text.assemble(("█" * filled, style), ("░" * (width - filled), "dim"))


def _free(node: NodeUse, resource: str) -> str:
    left = max(node.offered.get(resource, 0) - node.used.get(resource, 0), 0)
    return f"{left / 1000:.1f}" if resource == CPU else f"{left / _GIB:.1f}Gi"
