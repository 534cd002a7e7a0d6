"""Soak test of a scheduler: growth of its memory, and the longest turn of its event loop.

    python benchmarks/soak.py                     200,000 pods through 1,000 nodes, on a real API server
    python benchmarks/soak.py --pods 20000 --nodes 100

Prints the results, writes build/bench/soak.json and exits with an error if a limit is exceeded.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # `tests` has the cluster fixture
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.client import Client
from bayplan.clock import SystemClock
from benchmarks.live.bind_watch import Process
from benchmarks.live.cluster_setup import ClusterSetup
from benchmarks.live.contenders import Contender, bayplan
from benchmarks.live.initial_state import InitialState
from benchmarks.live.pod_churn import NAMESPACE, PodChurn
from benchmarks.progress import Progress
from benchmarks.report import machine
from cluster.run import BENCHMARK_FLAGS, Cluster

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "bench" / "soak.json"
LOOP_TURNS = ROOT / "benchmarks" / "live" / "loop_turns.py"
PODS, NODES, ALIVE = 200_000, 1_000, 2_000
MARK = 0.25
"""The share of pods after which memory must not grow: 50,000 of 200,000."""
MORE_AT_MOST = 1.05
HOLD_MS = 100.0
_SAMPLES = 40
_AROUND = 3


@dataclass
class MemorySamples:
    """Memory by number of pods that have passed."""

    pods: int
    pid: int
    progress: Progress
    started_s: float = field(default_factory=perf_counter)
    resident: list[tuple[int, float]] = field(default_factory=list)

    def passed(self, count: int) -> None:
        if count % max(1, self.pods // _SAMPLES) == 0 or count == self.pods:
            self.resident.append((count, Process(self.pid).resident_mib()))
            rate = count / (perf_counter() - self.started_s)
            self.progress(f"{count:,} pods passed, {rate:,.0f} a second; {self.resident[-1][1]:,.1f} MiB")

    def around(self, share: float) -> float:
        """The median of a few samples: a single one may include memory that is about to be freed."""
        place = min(range(len(self.resident)), key=lambda number: abs(self.resident[number][0] - share * self.pods))
        nearby = self.resident[max(0, place - _AROUND + 1) : place + 1]
        return median(mib for _, mib in nearby)


async def soak(cluster: Cluster, pods: int, nodes: int, alive: int, progress: Progress) -> dict[str, Any]:
    target, chance = cluster.target(), random.Random(0)
    turns = cluster.folder / "turns.json"
    plain = bayplan(cluster, None)
    contender = Contender("bayplan", [sys.executable, str(LOOP_TURNS), str(turns), *plain.arguments[3:]])
    async with Client(target, clock=SystemClock(), chance=chance, qps=-1.0, user_agent="bayplan-soak") as client:
        progress(f"making {nodes:,} nodes")
        await ClusterSetup(client, _initial(nodes)).put_up()
        with contender.running(cluster.folder) as pid:
            seen = MemorySamples(pods, pid, progress)
            await PodChurn(client, pods, alive, seen.passed).run()
            await asyncio.sleep(2.0)  # the last write of `loop_turns`
            longest: Sequence[dict[str, Any]] = json.loads(turns.read_text())
    mark, end = seen.around(MARK), seen.around(1.0)
    return {
        "pods": pods,
        "nodes": nodes,
        "alive": alive,
        "pods_per_s": round(pods / (perf_counter() - seen.started_s), 1),
        "memory_mark_mib": round(mark, 1),
        "memory_end_mib": round(end, 1),
        "memory_ratio": round(end / mark, 4),
        "memory_limit": MORE_AT_MOST,
        "longest_hold_ms": longest[0]["ms"],
        "longest_hold_limit_ms": HOLD_MS,
        "longest_holds": longest,
        "memory_mib": [{"pods": count, "mib": round(mib, 1)} for count, mib in seen.resident],
        "machine": machine(),
    }


def _initial(nodes: int) -> InitialState:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    return InitialState([namespace, *map(_node, range(nodes))], [], {}, {}, NAMESPACE, frozenset(), [], nodes, None)


def _node(number: int) -> dict[str, Any]:
    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": labels},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--pods", type=click.IntRange(min=100), default=PODS, show_default=True)
@click.option("--nodes", type=click.IntRange(min=1), default=NODES, show_default=True)
@click.option("--alive", type=click.IntRange(min=1), default=ALIVE, show_default=True, help="Pods at the same time.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    help="The file for the JSON.  [default: build/bench/soak.json]",
)
def main(pods: int, nodes: int, alive: int, file: Path) -> None:
    """Send pods with unique labels through a cluster, and check the limits of the scheduler.

    Memory at the end may be 5 % above its value after a quarter of the pods; no turn of the event loop may take 100 ms
    of processor time, excluding time that the host took away.
    """
    with (
        Progress().show() as progress,
        tempfile.TemporaryDirectory(prefix="bayplan-soak-") as folder,
        Cluster(Path(folder) / "cluster", flags=BENCHMARK_FLAGS) as cluster,
    ):
        found = asyncio.run(soak(cluster, pods, nodes, alive, progress))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    mark, end, ratio = (found[f"memory_{name}"] for name in ("mark_mib", "end_mib", "ratio"))
    click.echo(f"{pods:,} pods through {nodes:,} nodes, {found['pods_per_s']:,.0f} a second")
    click.echo(f"memory: {mark:,.1f} MiB after {MARK:.0%} of them, {end:,.1f} MiB in the end, {ratio:.3f} of it")
    longest = found["longest_holds"][0]
    click.echo(
        f"the longest turn of the loop: {longest['ms']:.1f} ms besides {longest['stolen_ms']:.1f} ms that were stolen, "
        f"{longest['collecting_ms']:.1f} ms for garbage, {longest['at_s']:.0f} s after the start ({longest['what']})"
    )
    click.echo(f"written to {file}")
    if ratio > MORE_AT_MOST or found["longest_hold_ms"] > HOLD_MS:
        raise click.ClickException(f"memory may be {MORE_AT_MOST:g} of its mark, a hold {HOLD_MS:g} ms")


if __name__ == "__main__":
    main()
