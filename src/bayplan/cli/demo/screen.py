"""Screen of the demo: a plan of the nodes that is redrawn on a terminal, or plain lines elsewhere.

On a terminal the plan stays at the bottom and printed lines scroll up; each node is one symbol whose height shows its
usage. In a pipe, a log, a dumb or narrow terminal and with NO_COLOR only the first placements of a step are printed.
Cost: ten frames a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from bayplan.cli.cluster_monitor import ClusterMonitor, NodeRequests
from bayplan.cli.output.terminal import plain_console, stdout_console, supports_redraw
from bayplan.objects.resources import CPU

_FRAME_S = 0.1
_MAX_PLACEMENT_LINES = 3
"""Number of placements that are printed for each step."""
_USAGE_SYMBOLS = "·▁▂▃▄▅▆▇█"


class Screen:
    """The output of the demo. Enter it, `run` it in a task, and print to it."""

    def __init__(self, view: ClusterMonitor) -> None:
        self._view = view
        self.watched = supports_redraw(stdout_console())
        self._console = stdout_console() if self.watched else plain_console()
        self._live: Live | None = None
        self._waiting = ""
        self._printed = 0
        self._placements_seen = 0
        self._steps = 0
        self._started_s = time.monotonic()

    def __enter__(self) -> Screen:
        if self.watched:
            self._live = Live(self._frame(), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave the last plan on the terminal and stop drawing."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
            self._console.print(self._plan())

    async def run(self) -> None:
        """Draw until cancelled."""
        while True:
            self._print_placements()
            if self._live is not None:
                self._live.update(self._frame(), refresh=True)
            await asyncio.sleep(_FRAME_S)

    def print_line(self, text: str) -> None:
        self._print_placements()
        self._console.print(Text(f"  {text}"), soft_wrap=True)

    def print_step(self, text: str) -> None:
        self._steps += 1
        self._printed = 0
        seconds = time.monotonic() - self._started_s
        title = Text.assemble((f"\n{self._steps}. {text}", "bold"), (f" ({seconds:.1f} s)", "dim"))
        self._console.print(title)

    async def wait_for_count(self, what: str, count: int, now: Callable[[], int]) -> None:
        """Wait until the count is reached, and show the progress."""
        while (reached := now()) < count:
            self._waiting = f"{reached} of {count} {what}"
            await asyncio.sleep(_FRAME_S / 2)
        self._waiting = ""
        self.print_line(f"{reached} of {count} {what}")

    def _print_placements(self) -> None:
        new = self._view.placements - self._placements_seen
        self._placements_seen = self._view.placements
        for pod in list(self._view.placed)[-new:] if new else ():
            if self._printed < _MAX_PLACEMENT_LINES:
                self._printed += 1
                node = self._view.nodes.get(pod.spec.node_name)
                zone = f" in {node.zone}" if node is not None and node.zone else ""
                self._console.print(Text(f"  {pod.key} placed on {pod.spec.node_name}{zone}", style="green"))
            elif self._printed == _MAX_PLACEMENT_LINES:
                self._printed += 1
                self._console.print(Text("  …", style="dim"))

    def _frame(self) -> RenderableType:
        return Group(Text(), self._plan(), Text(self._waiting, style="yellow"))

    def _plan(self) -> RenderableType:
        """One symbol a node, one line a zone."""
        zones: dict[str, list[NodeRequests]] = {}
        for node in sorted(self._view.nodes.values(), key=lambda each: each.name):
            zones.setdefault(node.zone, []).append(node)
        lines = [Text("one symbol a node, by requested CPUs:", style="dim")]
        for zone in sorted(zones):
            pods = sum(node.pods for node in zones[zone])
            symbols = Text.assemble(*(_node_symbol(node) for node in zones[zone]))
            lines.append(Text.assemble(f"{zone or 'no zone'} ", symbols, f" {pods} pods"))
        waiting = self._view.pending_counts()
        rate = self._view.decisions_per_second()
        pending = waiting.active + waiting.unschedulable + waiting.gated
        lines.append(Text(f"{pending} pending, {rate:.0f} decisions a second", style="dim"))
        return Group(*lines)


def _node_symbol(node: NodeRequests) -> tuple[str, str]:
    share = node.share(CPU)
    level = min(len(_USAGE_SYMBOLS) - 1, -int(-share * (len(_USAGE_SYMBOLS) - 1) // 1)) if node.pods else 0
    return _USAGE_SYMBOLS[level], "red" if share > 0.95 else "yellow" if share > 0.6 else "cyan"
