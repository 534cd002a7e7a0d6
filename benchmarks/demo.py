"""Benchmark of the first use: time until a pod is bound, and throughput of a whole cluster in one process.

    python benchmarks/demo.py             both, about a minute
    python benchmarks/demo.py --quick     few pods, as a smoke test

The first figure is the wall-clock time from `bayplan demo` on the command line to the line about the first bound pod.
For the second, `bayplan cluster up` runs API server, controllers, 1,000 nodes and scheduler in one process; pods are
created over HTTPS from this one, and the clock stops when a watch shows the last of them Running. A second run of the
same samples the stack of the process, to attribute the processor time. Both run with the compiled kernel if it is on
the path (`make bench-demo` puts it there), and the table says so. Prints a table and writes build/bench/demo.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import aiohttp
import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.app.event_loop import new_event_loop
from benchmarks.calibration import Calibration
from benchmarks.embedded_cluster import PODS, cpu_s, home_below, pod, post_all, session_with
from benchmarks.report import kernel_in_use

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "demo.json"
NODES = 1000
POD_COUNT = 10_000
FIRST_POD_S = 10.0
LEAST_A_SECOND = 500.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """One run of pods through a whole cluster."""

    pods: int
    seconds: float
    cpu_s: float
    """Processor time of the cluster's process, from the first request until the last pod was Running."""

    @property
    def a_second(self) -> float:
        return self.pods / self.seconds

    @property
    def cpu_us_a_pod(self) -> float:
        return self.cpu_s / self.pods * 1e6


def first_pod_s() -> float:
    """Seconds from the command line to the first bound pod."""
    began = perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "bayplan", "demo"], stdout=subprocess.PIPE, text=True, env=_unbuffered()
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if " placed on " in line:
                took = perf_counter() - began
                demo.terminate()
                demo.communicate()
                return took
    raise click.ClickException("the demo ended without a pod on a node")


def _unbuffered() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


@contextmanager
def cluster_up(folder: Path, nodes: int, sampling: Path | None) -> Iterator[tuple[int, Path]]:
    """A whole cluster in a separate process: its pid and its folder."""
    env = {**_unbuffered(), "XDG_STATE_HOME": str(folder)}
    module = (
        ["-m", "bayplan"]
        if sampling is None
        else [str(Path(__file__).with_name("sampling_profiler.py")), str(sampling)]
    )
    command = [sys.executable, *module, "cluster", "up", "--nodes", str(nodes), "--zones", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("Ctrl-C stops it"):
                    break
            else:
                raise click.ClickException("the cluster did not come up")
            yield process.pid, home_below(folder)
        finally:
            process.terminate()
            process.wait(30)


tiny_pod = partial(pod, cpu="100m", memory="64Mi")


async def fill(home: Path, pid: int, pods: int, *, sampled: bool) -> Throughput:
    """Create pods, and wait until the last of them is Running."""
    async with session_with(home) as session:
        watching = asyncio.Event()
        running = asyncio.create_task(_all_running(session, pods, watching))
        await watching.wait()
        if sampled:
            os.kill(pid, signal.SIGUSR1)
        began, before = perf_counter(), cpu_s(pid)
        await post_all(session, PODS, map(tiny_pod, range(pods)))
        await running
        return Throughput(pods, perf_counter() - began, cpu_s(pid) - before)


async def _all_running(session: aiohttp.ClientSession, pods: int, watching: asyncio.Event) -> None:
    """Watch for Running pods; the field selector makes the watch cost one line a pod."""
    chosen = {"watch": "true", "fieldSelector": "status.phase=Running", "resourceVersion": "0"}
    async with session.get(PODS, params=chosen) as answer:
        watching.set()
        seen = 0
        async for piece in answer.content.iter_any():
            seen += piece.count(b'"type":"ADDED"')
            if seen >= pods:
                return
    raise click.ClickException(f"the watch ended after {seen} pods")


def throughput(nodes: int, pods: int, sampling: Path | None = None) -> Throughput:
    with tempfile.TemporaryDirectory() as folder, cluster_up(Path(folder), nodes, sampling) as (pid, home):
        return asyncio.run(fill(home, pid, pods, sampled=sampling is not None))


def where_the_time_goes(nodes: int, pods: int) -> tuple[Throughput, dict[str, float]]:
    """Share of the samples of each part of the process, the largest first."""
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples.json"
        run = throughput(nodes, pods, samples)
        counts: dict[str, int] = json.loads(samples.read_text())
    total = sum(counts.values())
    return run, {part: count / total for part, count in sorted(counts.items(), key=lambda each: -each[1])}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Few pods, as a smoke test.")
@click.option("--check", is_flag=True, help="Exit with an error if a budget is exceeded.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    help="The file for the JSON.  [default: build/bench/demo.json]",
)
def main(quick: bool, check: bool, file: Path) -> None:
    """Measure the first five minutes of use. Budgets are multiplied by the machine's calibration."""
    calibration = Calibration()
    nodes, pods = (50, 500) if quick else (NODES, POD_COUNT)
    first = first_pod_s()
    run = throughput(nodes, pods)
    sampled, parts = where_the_time_goes(nodes, pods)
    calibration.measure_again()
    scale = calibration.value
    held = {"first pod": first <= FIRST_POD_S * scale, "pods a second": run.a_second * scale >= LEAST_A_SECOND}
    report = {
        "calibration": round(scale, 3),
        "kernel": kernel_in_use(),
        "loop": _loop(),
        "first_pod_s": round(first, 2),
        "nodes": nodes,
        "pods": pods,
        "pods_a_second": round(run.a_second, 1),
        "cpu_us_a_pod": round(run.cpu_us_a_pod),
        "pods_a_cpu_second": round(run.pods / run.cpu_s),
        "cpu_us_a_pod_sampled": round(sampled.cpu_us_a_pod),
        "parts": {part: round(share, 4) for part, share in parts.items()},
        "holds": held,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _print(first, run, parts, nodes, held)
    kernel = "compiled" if kernel_in_use() else "plain Python"
    click.echo(f"calibration {scale:.2f}; modules of the hot path: {kernel}; loop: {_loop()}; written to {file}")
    broken = [name for name, holds in held.items() if not holds]
    if check and broken and not quick:
        raise click.ClickException(f"over budget: {', '.join(broken)}")


def _loop() -> str:
    """Name of the event loop implementation."""
    with closing(new_event_loop()) as loop:
        return type(loop).__module__.partition(".")[0]


def _print(first: float, run: Throughput, parts: dict[str, float], nodes: int, held: dict[str, bool]) -> None:
    said = {True: "yes", False: "NO"}
    table = Table("question", "found", "budget", "holds", box=None, pad_edge=False)
    table.add_row("first pod of the demo", f"{first:.1f} s", f"{FIRST_POD_S:g} s", said[held["first pod"]])
    table.add_row(
        f"pods Running a second, {nodes:,} nodes, one process",
        f"{run.a_second:,.0f}",
        f"{LEAST_A_SECOND:,.0f}",
        said[held["pods a second"]],
    )
    table.add_row("processor time a pod", f"{run.cpu_us_a_pod:,.0f} µs", "", "")
    table.add_row("pods a second of processor time", f"{1e6 / run.cpu_us_a_pod:,.0f}", "", "")
    Console().print(table)
    click.echo("\nprocessor time by part:")
    shares = Table("part", "share", "µs a pod", box=None, pad_edge=False)
    for part, share in parts.items():
        shares.add_row(part, f"{share:.0%}", f"{share * run.cpu_us_a_pod:,.0f}")
    Console().print(shares)


if __name__ == "__main__":
    main()
