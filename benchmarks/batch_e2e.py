"""Benchmark of the batch engine on a real API server: gangs per second, beside a loop that makes only the same writes.

    python benchmarks/batch_e2e.py                      100 gangs of 50 at 1,000 nodes; some minutes
    python benchmarks/batch_e2e.py --gangs 200          10,000 pods in one session
    python benchmarks/batch_e2e.py --gangs 4 --size 5 --nodes 20

Prints a table and writes build/bench/batch_e2e.json. The engine writes more than the loop: the status of every pod
group and of the queue. Meanwhile `/livez` is requested ten times a second. docs/benchmarks.md describes the
measurements.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # `tests` has the cluster fixture
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.client import Client
from bayplan.clock import SystemClock
from bayplan.errors import NotFound
from benchmarks.live.bare_loop import BURST, QPS
from benchmarks.live.cluster_setup import ClusterSetup
from benchmarks.live.comparison import FLAGS, ContenderResult, ProgressSink, measure_contender
from benchmarks.live.contenders import CONCURRENCIES, Contender, bare_loop
from benchmarks.live.initial_state import InitialState
from benchmarks.live.liveness_probes import LIMIT_MS, Probes, run_probes
from benchmarks.perf.templates import Raw
from benchmarks.progress import Progress
from benchmarks.report import machine, print_wide
from cluster.run import Cluster, free_ports

LOOP_TURNS = Path(__file__).resolve().parent / "live" / "loop_turns.py"
OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "batch_e2e.json"
GOAL = 0.8
"""Share of the bare loop's pods per second."""

_NAMESPACE = "gangs"
_VOLCANO = "scheduling.volcano.sh/v1beta1"


def stage_of(gangs: int, size: int, nodes: int) -> InitialState:
    """Nodes, pod groups and pending pods."""
    pods = [_pod(gang, number) for gang in range(gangs) for number in range(size)]
    return InitialState(
        config=None,
        trees=[*_nodes(nodes), *_groups(gangs, size)],
        pods=pods,
        measured=frozenset(f"{_NAMESPACE}/{pod['metadata']['name']}" for pod in pods),
        nodes=nodes,
        namespace=_NAMESPACE,
        claims={},
        claim_names={},
        beside=(),
    )


def _nodes(count: int) -> Iterator[Raw]:
    room = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    for number in range(count):
        name = f"node-{number}"
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        }


def _groups(count: int, size: int) -> Iterator[Raw]:
    for number in range(count):
        meta = {"name": f"gang-{number}", "namespace": _NAMESPACE}
        spec = {"minMember": size, "queue": "default"}
        yield {"apiVersion": _VOLCANO, "kind": "PodGroup", "metadata": meta, "spec": spec}


def _pod(gang: int, number: int) -> Raw:
    asked = {"requests": {"cpu": "500m", "memory": "500Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"gang-{gang}-worker-{number}",
            "namespace": _NAMESPACE,
            "annotations": {"scheduling.k8s.io/group-name": f"gang-{gang}"},
        },
        "spec": {
            "schedulerName": "volcano",
            "containers": [{"name": "main", "image": "example.com/main:1", "resources": asked}],
        },
    }


def batch_engine(cluster: Cluster, health: int, turns: Path | None) -> Contender:
    """Serves health on this port. `turns`: the file for the longest turns of its event loop, if wanted."""
    flags = [
        "--enable-healthz",
        f"--healthz-address=127.0.0.1:{health}",
        f"--kubeconfig={cluster.kubeconfig()}",
        "--leader-elect=false",
        f"--kube-api-qps={QPS:g}",
        f"--kube-api-burst={BURST}",
    ]
    command = ["-m", "bayplan"] if turns is None else [str(LOOP_TURNS), str(turns)]
    return Contender("bayplan-batch", [sys.executable, *command, "batch", "run", *flags])


@dataclass(frozen=True, slots=True)
class BatchComparison:
    """Results: the engine, its liveness probes, and the loops."""

    ours: ContenderResult
    probes: Probes
    loops: list[ContenderResult]
    longest_turns: list[dict[str, Any]]


def compare(
    initial: InitialState, folder: Path, progress: ProgressSink, *, with_turns: bool = False
) -> BatchComparison:
    """Measure the engine, then loops of several widths, on one cluster."""
    with Cluster(folder, flags=FLAGS) as cluster:
        command = [sys.executable, "-m", "bayplan", "crds", "--install", "--kubeconfig", str(cluster.kubeconfig())]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return asyncio.run(_compare(cluster, initial, progress, folder / "turns.json" if with_turns else None))


async def _compare(
    cluster: Cluster, initial: InitialState, progress: ProgressSink, turns: Path | None
) -> BatchComparison:
    clock = SystemClock()
    async with Client(
        cluster.target(), clock=clock, chance=random.Random(0), qps=-1.0, user_agent="bayplan-benchmark"
    ) as client:
        await _served(client)
        setup = ClusterSetup(client, initial)
        progress(f"putting up {len(initial.trees):,} objects")
        await setup.put_up()
        (health,) = free_ports(1)
        with run_probes(f"http://127.0.0.1:{health}/livez") as probes:
            ours = await measure_contender(
                client, setup, initial, batch_engine(cluster, health, turns), cluster, progress
            )
        loops = []
        for at_once in CONCURRENCIES:
            await setup.clear()
            loops.append(
                await measure_contender(
                    client, setup, initial, bare_loop(cluster, _NAMESPACE, at_once), cluster, progress
                )
            )
    return BatchComparison(ours, probes, loops, json.loads(turns.read_text()) if turns is not None else [])


async def _served(client: Client) -> None:
    """Wait until the API server serves the CRDs, a moment after their creation."""
    while True:
        try:
            answer = await client.transport.request("GET", f"/apis/{_VOLCANO}")
            if b'"podgroups"' in answer.body:
                return
        except NotFound:
            pass
        await client.clock.sleep(0.1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--gangs", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--size", type=click.IntRange(min=1), default=50, show_default=True, help="Pods of a gang.")
@click.option("--nodes", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option(
    "--turns", "with_turns", is_flag=True, help="Also time every turn of the event loop; lowers throughput a little."
)
@click.option("--check", is_flag=True, help="Exit with an error if the goal is missed.")
def main(gangs: int, size: int, nodes: int, with_turns: bool, check: bool) -> None:
    """Measure, print, and write the results."""
    with Progress().show() as progress, tempfile.TemporaryDirectory(prefix="bayplan-bench-") as folder:
        found_by = compare(stage_of(gangs, size, nodes), Path(folder) / "cluster", progress, with_turns=with_turns)
    ours, loops, probes = found_by.ours, found_by.loops, found_by.probes
    limit = max(loops, key=lambda each: each.pods_per_s)
    found: dict[str, Any] = {
        "machine": machine(),
        "gangs": gangs,
        "size": size,
        "nodes": nodes,
        "ratio_limit": round(ours.pods_per_s / limit.pods_per_s, 3),
        "ratio_with_events": round(_with_events(ours) / _with_events(limit), 3),
        "ratio_processor": round(_processor_us(limit) / _processor_us(ours), 3),
        "livez": probes.found,
        "longest_turns": found_by.longest_turns,
        "bayplan": ours.as_json(),
        "bare_loop": {**limit.as_json(), "by_concurrency": {each.name: each.as_json() for each in loops}},
    }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=1))
    _print(found, ours, loops)
    missed = []
    if ours.unbound or found["ratio_limit"] < GOAL:
        missed.append(f"{found['ratio_limit']} of the bare loop, {GOAL} wanted")
    if not probes.in_time:
        missed.append(f"/livez took {probes.found['longest_ms']} ms, at most {LIMIT_MS:g} wanted")
    for each in missed:
        click.echo(f"a goal is missed: {each}", err=True)
    if missed and check:
        sys.exit(1)


def _with_events(reached: ContenderResult) -> float:
    """Pods a second until the last event about them is stored: the loop writes each event at once, the engine later."""
    return len(reached.bound_at_s) / (reached.lasted_s + reached.stored_after_s)


def _processor_us(reached: ContenderResult) -> float:
    """Processor time per pod on both sides of the connection; the limit if both share the machine."""
    return reached.cpu_us + 1e6 * reached.server_cpu_s / len(reached.bound_at_s)


def _print(found: dict[str, Any], ours: ContenderResult, loops: list[ContenderResult]) -> None:
    table = Table(title=f"{found['gangs']} gangs of {found['size']} at {found['nodes']:,} nodes")
    for column in ("", "pods/s", "last gang after", "CPU a pod", "unbound"):
        table.add_column(column, justify="right" if column else "left")
    for each in (ours, *loops):
        table.add_row(
            each.name, f"{each.pods_per_s:,.0f}", f"{each.lasted_s:.2f} s", f"{each.cpu_us:,.0f} µs", str(each.unbound)
        )
    print_wide(table)
    click.echo(
        f"{found['ratio_limit']} of the bare loop's pods a second, {found['ratio_with_events']} with the events about "
        "them, which the engine sends when the pods are bound; by the processor time of both sides together, "
        f"which neighbours do not change, {found['ratio_processor']}"
    )
    for turn in found["longest_turns"][:1]:
        click.echo(f"the longest turn of the loop took {turn['ms']} ms of the processor: {turn['what']}")
    asked = found["livez"]
    click.echo(
        f"/livez, asked {asked['probes']} times: half within {asked['p50_ms']} ms, all in {asked['longest_ms']} ms"
    )


if __name__ == "__main__":
    main()
