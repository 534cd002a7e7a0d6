"""Benchmark of the scheduling queue: time of one event with ten thousand unschedulable pods. One line per case.

    python benchmarks/queue_events.py             everything, about a minute
    python benchmarks/queue_events.py --quick     few pods, as a smoke test

Runs in this process. Prints a table and writes build/bench/queue_events.json. docs/benchmarks.md describes the
measurements.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.app import known_plugins
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.config.load import load_default
from bayplan.framework.api.events import ActionType, ClusterEvent, EventResource
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_ADD, ASSIGNED_POD_DELETE
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue import SchedulingQueue
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.live.queue_factory import new_queue
from bayplan.testing import make_affinity, make_node, make_pod
from benchmarks.calibration import Calibration

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "queue_events.json"
PODS = 10_000
FEW_KINDS = 10
BUDGET_FEW_MS = 1.0
BUDGET_MANY_MS = 20.0
BUDGET_SLICE_MS = 10.0
_RUNS = 15


@dataclass(frozen=True, slots=True)
class Case:
    """Pods that one plugin rejected, and an event for its queueing hint.

    `wakes`: the event moves all pods, else none.
    """

    name: str
    plugin: str
    event: ClusterEvent
    old: KubeObject | None
    new: KubeObject | None
    wakes: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    case: Case
    kinds: int
    total_ms: float
    longest_ms: float
    slices: int
    woken: int
    pods: int

    @property
    def budget_ms(self) -> float | None:
        """For the whole event. Moving a pod has no budget, except that of a slice."""
        if self.case.wakes:
            return None
        return BUDGET_FEW_MS if self.kinds == FEW_KINDS else BUDGET_MANY_MS

    def holds(self, calibration: float) -> bool | None:
        if self.pods != PODS:
            return None
        in_time = self.budget_ms is None or self.total_ms <= self.budget_ms * calibration
        return in_time and self.longest_ms <= BUDGET_SLICE_MS * calibration

    def as_json(self, calibration: float) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "plugin": self.case.plugin,
            "event": self.case.event.name,
            "pods": self.pods,
            "kinds": self.kinds,
            "woken": self.woken,
            "total_ms": round(self.total_ms, 3),
            "budget_ms": self.budget_ms,
            "slices": self.slices,
            "longest_slice_ms": round(self.longest_ms, 3),
            "budget_slice_ms": BUDGET_SLICE_MS,
            "holds": self.holds(calibration),
        }


_NODE = make_node("n", cpu=1)
_PLACED = make_pod("placed", node="n")

CASES = (
    Case(
        "a node grew, and not enough",
        "NodeResourcesFit",
        ClusterEvent(EventResource.NODE, ActionType.UPDATE_NODE_ALLOCATABLE),
        _NODE,
        make_node("n", cpu=2),
    ),
    Case(
        "a node lost a taint and has another",
        "TaintToleration",
        ClusterEvent(EventResource.NODE, ActionType.UPDATE_NODE_TAINT),
        make_node("n", taints=["a", "b"]),
        make_node("n", taints=["a"]),
    ),
    Case(
        "a node got a label, and not the right one",
        "NodeAffinity",
        ClusterEvent(EventResource.NODE, ActionType.UPDATE_NODE_LABEL),
        _NODE,
        make_node("n", cpu=1, labels={"kind": "none"}),
    ),
    Case("a pod came that no pod waits for", "InterPodAffinity", ASSIGNED_POD_ADD, None, _PLACED),
    Case("a pod made room for everybody", "NodeResourcesFit", ASSIGNED_POD_DELETE, _PLACED, None, wakes=True),
)


def pod_of_kind(number: int, kind: int) -> Pod:
    """Pods of different kinds differ in every field that a hint of these cases reads."""
    return make_pod(
        f"p{number}",
        cpu=f"{10_000 + kind}m",
        tolerations=[f"kind{kind}"],
        node_selector={"kind": str(kind)},
        affinity=make_affinity(near={"kind": str(kind)}, topology_key="zone"),
    )


def parked(pods: int, kinds: int, plugin: str) -> SchedulingQueue:
    """A queue with this number of pods that a plugin has rejected."""
    clock, registry = ManualClock(), known_plugins()
    engine = PodEngine(
        load_default(args_kinds=registry.args_kinds), registry, Cache(), clock=clock, chance=random.Random(0)
    )
    queue = new_queue(engine, SchedulingQueue, clock=clock)
    for number in range(pods):
        pod = pod_of_kind(number, number % kinds)
        engine.pending[pod.uid] = pod
        queue.add(pod)
    popped = [queue.pop() for _ in range(pods)]
    for queued in popped:
        assert queued is not None
        queue.requeue(queued, [plugin])
    return queue


def measure(case: Case, pods: int, kinds: int) -> Found:
    """The best of a few runs; an event that moves all pods can run only once."""
    queue = parked(pods, kinds, case.plugin)
    gc.collect()
    return min(
        (_once(queue, case, pods, kinds) for _ in range(1 if case.wakes else _RUNS)), key=lambda found: found.total_ms
    )


def _once(queue: SchedulingQueue, case: Case, pods: int, kinds: int) -> Found:
    times, woken = [], 0
    start = thread_time()
    for moved in queue.move_in_slices(case.event, case.old, case.new):
        woken += moved
        end = thread_time()
        times.append(1000 * (end - start))
        start = end
    assert woken == (pods if case.wakes else 0), f"{case.name}: {woken} woken"
    return Found(case, kinds, sum(times), max(times), len(times), woken, pods)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Few pods, as a smoke test.")
@click.option("--check", is_flag=True, help="Exit with an error if a budget is exceeded.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    help="The file for the JSON.  [default: build/bench/queue_events.json]",
)
def main(quick: bool, check: bool, output: str, file: Path) -> None:
    """Measure one event with ten thousand unschedulable pods: of ten kinds, and all different.

    Times are processor time. Budgets are multiplied by the machine's calibration.
    """
    pods = 200 if quick else PODS
    calibration, found = Calibration(), []
    for case in CASES:
        for kinds in (FEW_KINDS, pods):
            calibration.measure_again()
            found.append(measure(case, pods, kinds))
    report = {"calibration": round(calibration.value, 3), "events": [each.as_json(calibration.value) for each in found]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if output == "json":
        click.echo(json.dumps(report, indent=2))
    else:
        _print(found, calibration.value)
        click.echo(f"written to {file}")
    broken = [f"{each.case.name} ({each.kinds} kinds)" for each in found if each.holds(calibration.value) is False]
    if check and broken:
        raise click.ClickException(f"over budget: {', '.join(broken)}")


def _print(found: list[Found], calibration: float) -> None:
    table = Table("event", "kinds", "woken", "ms", "budget", "slices", "longest ms", "holds", box=None, pad_edge=False)
    for each in found:
        holds = {True: "yes", False: "NO", None: ""}[each.holds(calibration)]
        budget = "" if each.budget_ms is None else f"{each.budget_ms:g}"
        cells = (f"{each.total_ms:.2f}", budget, str(each.slices), f"{each.longest_ms:.2f}", holds)
        table.add_row(each.case.name, f"{each.kinds:,}", f"{each.woken:,}", *cells)
    Console().print(table)
    click.echo(f"{found[0].pods:,} parked pods; calibration {calibration:.2f}")


if __name__ == "__main__":
    main()
