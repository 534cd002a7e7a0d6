"""How fast does the core decide? One line a workload, on made-up clusters, in this process.

A decision is timed from the pod handed to the engine until it is assumed, with records and timings on. Prints a table
and writes build/bench/core.json. Every node is looked at.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from bayplan.app import build_engine, configured, filled_cache, known_plugins
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject

PodMaker = Callable[[int], dict[str, Any]]
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def node(number: int) -> KubeObject:
    name = f"node-{number:05}"
    labels = {HOST: name, ZONE: f"zone-{number % 3}", "disk": "ssd" if number % 2 else "hdd"}
    allocatable = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    return convert({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}, Node)


def basic(_: int) -> dict[str, Any]:
    requests = {"cpu": "100m", "memory": "200Mi"}
    return {"containers": [{"name": "main", "image": "app:v1", "resources": {"requests": requests}}]}


def all_different(number: int) -> dict[str, Any]:
    spec = basic(number)
    spec["containers"][0]["resources"] = {"requests": {"cpu": f"{100 + number}m", "memory": f"{200 + number}Mi"}}
    return spec


def node_affinity(number: int) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return basic(number) | {"affinity": {"nodeAffinity": required}}


def spread_hard(number: int) -> dict[str, Any]:
    constraint = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    return basic(number) | {
        "topologySpreadConstraints": [constraint | {"labelSelector": {"matchLabels": {"app": "a"}}}]
    }


def anti_affinity(number: int) -> dict[str, Any]:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}}
    return basic(number) | {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


WORKLOADS: dict[str, PodMaker] = {
    "basic_identical": basic,
    "all_different": all_different,
    "node_affinity": node_affinity,
    "spread_hard": spread_hard,
    "anti_affinity": anti_affinity,
}


def measure(name: str, make: PodMaker, nodes: int, pods: int) -> dict[str, Any]:
    registry = known_plugins()
    cache = filled_cache(node(number) for number in range(nodes))
    engine = build_engine(configured(None, registry), registry, cache, seed=0)
    waiting = [
        convert(
            {"metadata": {"name": f"p{n}", "namespace": "b", "uid": f"u{n}", "labels": {"app": "a"}}, "spec": make(n)},
            Pod,
        )
        for n in range(pods)
    ]
    took = []
    for pod in map(engine.prepare, waiting):
        start = perf_counter()
        placed = engine.place(pod)
        took.append(1e6 * (perf_counter() - start))
        assert placed.node is not None, placed.status
    took.sort()
    return {
        "workload": name,
        "nodes": nodes,
        "pods": pods,
        "decisions_per_s": round(1e6 / statistics.fmean(took)),
        "p50_us": round(took[len(took) // 2]),
        "p99_us": round(took[int(len(took) * 0.99)]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    arguments = parser.parse_args()
    print(f"{'workload':18} {'nodes':>6} {'pods':>6} {'decisions/s':>12} {'p50 µs':>8} {'p99 µs':>8}")  # noqa: T201
    rows = []
    for name in arguments.workload or WORKLOADS:
        row = measure(name, WORKLOADS[name], arguments.nodes, arguments.pods)
        rows.append(row)
        sizes = f"{row['nodes']:6} {row['pods']:6}"
        print(f"{name:18} {sizes} {row['decisions_per_s']:12} {row['p50_us']:8} {row['p99_us']:8}")  # noqa: T201
    out = Path("build/bench/core.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    out.write_text(json.dumps({"workloads": rows, "machine": machine}, indent=2))
    print(f"written to {out}")  # noqa: T201


if __name__ == "__main__":
    main()
