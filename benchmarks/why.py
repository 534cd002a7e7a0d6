"""Benchmark of "why" in process: time of an explanation on a large cluster, and its cost for the scheduling loop.

    python benchmarks/why.py             5,000 nodes and 50,000 pods, about a minute
    python benchmarks/why.py --quick     few nodes, as a smoke test

Each case is a pod that fits on no node for another reason, explained while pods are placed on the same engine. Times
are the thread's own CPU time. Prints a table and writes build/bench/why.json; docs/benchmarks.md describes the
measurements.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import thread_time

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.app import known_plugins
from bayplan.cache import Cache
from bayplan.clock import SystemClock
from bayplan.config.load import load_default
from bayplan.explain.pod_explainer import PodExplainer
from bayplan.objects.core import Node, Pod
from bayplan.scheduler.engine import PodEngine
from bayplan.telemetry.answers import Answer
from bayplan.testing import make_affinity, make_node, make_pod, make_spread

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "why.json"
NODES, PODS_A_NODE = 5_000, 10
BUDGET_MS = 200.0
BUDGET_STEP_MS = 10.0
BUDGET_SHARE = 0.01
_RUNS = 5
_PLACED = 2_000
ASKED_EVERY_S = 10.0
"""Assumed interval of the requests, for the share of the loop: six requests a minute."""


@dataclass(frozen=True, slots=True)
class Found:
    """One case: time of an explanation, its longest step on the loop, and the suggested changes."""

    case: str
    answer_ms: float
    longest_step_ms: float
    changes: int
    share: float

    def holds(self) -> bool:
        return self.answer_ms < BUDGET_MS and self.share < BUDGET_SHARE


def cluster_node(number: int) -> Node:
    taints = ["pool=batch:NoSchedule"] if number % 10 == 0 else []
    labels = {"disk": "ssd" if number % 3 else "hdd", "app": "web"}
    return make_node(f"node-{number}", cpu="16", memory="64Gi", zone=f"zone-{number % 3}", labels=labels, taints=taints)


def running_pod(number: int, nodes: int) -> Pod:
    labels = {"app": f"app-{number % 50}"}
    return make_pod(
        f"pod-{number}", node=f"node-{number % nodes}", cpu="1400m", memory="5Gi", labels=labels, priority=number % 2
    )


def cases() -> dict[str, Pod]:
    """Pods that fit on no node, each for a different reason."""
    web = {"app": "app-1"}
    return {
        "too large": make_pod("large", cpu="20", memory="4Gi"),
        "selector that no node meets": make_pod("picky", cpu="1", node_selector={"disk": "nvme"}),
        "large and picky": make_pod("both", cpu="20", node_selector={"disk": "nvme"}),
        "lower priorities in the way": make_pod("strong", cpu="4", priority=10, preemption_policy="Never"),
        "near pods that are nowhere": make_pod("near", cpu="1", affinity=make_affinity(near={"app": "none"})),
        "spread and too large": make_pod("spread", cpu="20", labels=web, spread=[make_spread(labels=web)]),
        "claim that is missing": make_pod("claims", cpu="1", claims=["data"]),
    }


def engine_of(nodes: int) -> PodEngine:
    cache = Cache()
    for number in range(nodes):
        cache.add_node(cluster_node(number))
    for number in range(nodes * PODS_A_NODE):
        cache.add_pod(running_pod(number, nodes))
    registry = known_plugins()
    return PodEngine(load_default(registry.args_kinds), registry, cache, clock=SystemClock(), chance=random.Random(0))


def asked(explainer: PodExplainer, pod: Pod) -> tuple[float, float, Answer]:
    """Total seconds, seconds of the longest step, and the explanation."""
    work = explainer.explain_pending(pod)
    total_s = longest_s = 0.0
    while True:
        start_s = thread_time()
        try:
            next(work)
        except StopIteration as done:
            answer: Answer = done.value
            return total_s + thread_time() - start_s, longest_s, answer
        took_s = thread_time() - start_s
        total_s, longest_s = total_s + took_s, max(longest_s, took_s)


def measured(engine: PodEngine, name: str, pod: Pod) -> Found:
    explainer = PodExplainer(engine, SystemClock())
    engine.place(pod)
    runs = []
    for run in range(_RUNS):
        engine.place(make_pod(f"between-{name}-{run}", cpu="100m"))  # the cluster changes between the runs
        runs.append(asked(explainer, pod))
    answer_s = statistics.median(total for total, _, _ in runs)
    return Found(
        name,
        answer_s * 1e3,
        statistics.median(longest for _, longest, _ in runs) * 1e3,
        len(runs[-1][2].changes) or len(runs[-1][2].together),
        answer_s / ASKED_EVERY_S,
    )


@click.command()
@click.option("--nodes", type=int, default=NODES, show_default=True, help="Number of nodes, with ten pods each.")
@click.option("--quick", is_flag=True, help="Few nodes, as a smoke test.")
@click.option("--check", is_flag=True, help="Exit with code 1 if a budget is exceeded.")
def main(nodes: int, quick: bool, check: bool) -> None:
    """Measure explanations by "why"."""
    nodes = 100 if quick else nodes
    engine = engine_of(nodes)
    gc.collect()
    gc.freeze()
    for number in range(_PLACED if not quick else 50):
        engine.place(make_pod(f"warm-{number}", cpu="100m"))
    found = [measured(engine, name, pod) for name, pod in cases().items()]
    table = Table("case", "answer ms", "longest step ms", "suggested", f"of the loop, asked every {ASKED_EVERY_S:g} s")
    for each in found:
        table.add_row(
            each.case, f"{each.answer_ms:.1f}", f"{each.longest_step_ms:.1f}", str(each.changes), f"{each.share:.2%}"
        )
    Console().print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    result = {"nodes": nodes, "pods": nodes * PODS_A_NODE, "cases": [asdict(each) for each in found]}
    OUTPUT.write_text(json.dumps(result, indent=2))
    if check and not quick and not all(each.holds() for each in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
