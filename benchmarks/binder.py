"""How fast are pods bound through BindRequests on a real API server, beside direct binding and a loop of such writes?

    python benchmarks/binder.py                 seven rounds of 1,000 pods at 200 nodes, ten workers; eleven minutes
    python benchmarks/binder.py --pods 500 --rounds 1
    python benchmarks/binder.py --check         fail where a goal is missed

Prints a table of medians, compares them, and writes build/bench/binder.json with all rounds. A machine is not the same
from one minute to the next: the same pods cost half as much again, and by no fault of theirs. So each round measures
all ways, those that are compared by their processor's time take turns at going first, and there are enough rounds for
a median to mean something. Pods are there before anybody starts; counted is from the first that the watch shows on a
node to the last, and to the moment at which everything is written: both events of each pod, its condition, the word on
its request. The loop writes all of that with each pod, our programs send events when the binder leaves them time for
it, so that only the second number compares the same work; the goal is held against both. The loop makes the writes of
scheduler and binder, in a process of its own as they do. The binder is at work before the scheduler is.

What a pod costs the scheduler is measured twice: of these pods, which are there at once, and of as many that come one
after another. The slower pods come the more each costs: one that is bound directly takes three times as much where a
hundred come a second as where a thousand are there. Of those direct binding has bound eight times as many in a second
as the binder, so that the pace is the same in both ways only where pods come one by one. The goal is held against both.

The processor's time of a process is counted from the moment at which the scheduler may decide: it has seen everything
and waits for a lease that is ours until then. From the first pod that is bound on it would be wrong: a scheduler has
decided about a tenth of the pods by then, or about none, as it happens. It goes on until everything is told, events
too: who is slower to bind would else pay for events that the other still has to send. What a process takes for as long
while idle is no cost of pods: it is taken off.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the recipe for a cluster lives there
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.client import (
    EVENTS,
    JSON_PATCH,
    LEASES,
    PODS,
    STRATEGIC_PATCH,
    Client,
    ConnectionConfig,
    GroupVersionResource,
    Selection,
    load_connection_config,
    resource_of,
)
from bayplan.clock import Clock, SystemClock
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest, manifest, new_request
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject, ObjectMeta, format_micro_time, format_time
from benchmarks.embedded_cluster import cpu_s
from benchmarks.report import machine, print_wide
from cluster.run import Cluster

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "binder.json"
GOAL, MOST_CPU = 0.8, 1.2
"""Of what the loop binds in a second; of what a pod costs the scheduler that binds directly."""
PACE = 100.0
"""Pods a second where they come one after another: fewer than the binder can bind."""
WORKERS = 10
IDLE_S = 5.0
AT_REST = 0.02
"""The share of a processor below which a process has seen everything, and waits."""
LEASE, LEASE_SPACE = "kube-scheduler", "kube-system"
SPACE = "bound"
REQUESTS = resource_of(kind_of(BindRequest))
DEFINITIONS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
NAMESPACES = GroupVersionResource("", "v1", "namespaces", namespaced=False)
NODES = GroupVersionResource("", "v1", "nodes", namespaced=False)
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{kubeconfig: {kubeconfig}, qps: 100000, burst: 100000}}
leaderElection: {{leaderElect: true, retryPeriod: 1s}}
profiles:
- schedulerName: default-scheduler
{plugins}
"""
BY_BINDER = """  plugins:
    multiPoint:
      enabled: [{name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One way to bind."""

    way: str
    pods: int
    pods_a_second: float
    written_a_second: float
    """The same until everything about them is written."""
    scheduler_ms_a_pod: float
    binder_ms_a_pod: float
    paced_ms_a_pod: float = 0.0
    """The scheduler's, where pods come one after another."""


class Stage:
    """Pods that wait, and who sees them bound."""

    def __init__(self, cluster: Cluster, client: Client, pods: int, nodes: int) -> None:
        self.cluster, self.client, self.pods, self.nodes = cluster, client, pods, nodes
        self.clock = client.clock
        self._seen: dict[str, float] = {}
        self._all = asyncio.Event()

    async def set_up(self) -> None:
        await self.client.create(DEFINITIONS, bind_request_definition())
        await self.client.create(NAMESPACES, {"metadata": {"name": SPACE}})
        room = {"cpu": "64", "memory": "256Gi", "pods": "500"}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"capacity": room, "allocatable": room, "conditions": ready}
        await at_once(
            range(self.nodes),
            lambda number: self.client.create(NODES, {"metadata": {"name": f"node-{number}"}, "status": status}),
        )

    async def bound_by(self, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
        """Pods a second, bound and with everything written. `work` binds, and is cancelled when that is done."""
        await at_once(range(self.pods), self._create)
        async with self._watching():
            working = asyncio.ensure_future(work())
            try:
                await self._bound_and_told()
                written_s = self.clock.monotonic_s()
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        await self._clear()
        times = sorted(self._seen.values())
        return (len(times) - 1) / (times[-1] - times[0]), len(times) / (written_s - times[0])

    async def bound_one_by_one(self, processes: Sequence[subprocess.Popen[bytes]]) -> list[float]:
        """What it costs processes that are at work already that pods come one after another, until all are bound."""
        async with self._watching(), asyncio.TaskGroup() as group:
            meter, began_s = Meter(self.clock, processes), self.clock.monotonic_s()
            for number in range(self.pods):
                await self.clock.sleep(began_s + number / PACE - self.clock.monotonic_s())
                group.create_task(self._create(number))
            await self._bound_and_told()
            spent = await meter.spent_s()
        await self._clear()
        return spent

    async def _create(self, number: int) -> None:
        container = {"name": "main", "image": "example.com/main:1", "resources": {"requests": {"cpu": "10m"}}}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        await self.client.create(PODS, {"metadata": {"name": f"pod-{number}"}, "spec": spec}, namespace=SPACE)

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """See pods as they are bound, beginning anew."""
        self._seen, self._all = {}, asyncio.Event()
        informer = self.client.informer(resource_of(kind_of(Pod)), self._saw, selection=Selection(namespace=SPACE))
        watching = asyncio.ensure_future(informer.run())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _bound_and_told(self) -> None:
        async with asyncio.timeout(600):
            await self._all.wait()
            await self._told()

    def _saw(self, _: KubeObject | None, new: KubeObject | None) -> None:
        if isinstance(new, Pod) and new.spec.node_name and new.uid not in self._seen:
            self._seen[new.uid] = self.clock.monotonic_s()
            if len(self._seen) == self.pods:
                self._all.set()

    async def _told(self) -> None:
        """Until every pod has its events, one or two, and no request waits for the word of its end."""
        while await self._count(EVENTS, b'"reason":"Scheduled"') < self.pods:
            await asyncio.sleep(0.25)
        requests = await self._count(REQUESTS, b'"kind":"BindRequest"')
        while requests and await self._count(REQUESTS, b'"phase":"Succeeded"') < requests:
            await asyncio.sleep(0.25)
        while requests and await self._count(EVENTS, b'"reason":"Bound"') < requests:
            await asyncio.sleep(0.25)

    async def binder_is_up(self) -> None:
        """Until it has given up a request for a pod that there never was."""
        nobody = Pod(metadata=ObjectMeta(name="nobody", namespace=SPACE, uid="nobody"))
        request = new_request(nobody, "node-0", annotations={}, backoff_limit=1)
        await self.client.create(REQUESTS, manifest(request), namespace=SPACE)
        while not await self._count(REQUESTS, b'"phase":"Failed"'):
            await asyncio.sleep(0.1)
        await self.client.delete(REQUESTS, name=nobody.name, namespace=SPACE)

    async def keep_lease(self) -> None:
        """Let no scheduler decide."""
        spec = {
            "holderIdentity": "nobody",
            "leaseDurationSeconds": 3600,
            "renewTime": format_micro_time(self.clock.now()),
        }
        await self.client.create(LEASES, {"metadata": {"name": LEASE}, "spec": spec}, namespace=LEASE_SPACE)

    async def give_lease(self) -> None:
        """Let a scheduler decide, and have no other that waits for it later find it taken."""
        await self.client.delete(LEASES, name=LEASE, namespace=LEASE_SPACE)

    async def _count(self, resource: GroupVersionResource, text: bytes) -> int:
        return (await self.client.transport.request("GET", resource.path(SPACE))).body.count(text)

    async def _clear(self) -> None:
        for resource in (PODS, REQUESTS, EVENTS):
            body = json.dumps({"gracePeriodSeconds": 0}).encode()
            await self.client.transport.request("DELETE", resource.path(SPACE), body)


async def at_once(items: Any, work: Callable[[Any], Awaitable[Any]], workers: int = 32) -> None:
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(workers)))


def connected(target: ConnectionConfig) -> Client:
    return Client(target, clock=SystemClock(), chance=random.Random(0), qps=1e6, burst=1_000_000)


def program(folder: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """One of our programs."""
    return run(folder / f"{arguments[0]}.log", "-m", "bayplan", *arguments)


@contextmanager
def run(told: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Python's, ended by its own id."""
    with told.open("ab") as log:
        process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


class Meter:
    """Processor time of processes, without what they take for as long while idle."""

    def __init__(self, clock: Clock, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._clock, self._processes = clock, processes
        self._before, self._since_s = self._now(), self._clock.monotonic_s()

    async def spent_s(self) -> list[float]:
        """Of each process until now; then it has to be idle for a while."""
        busy_s, after = self._clock.monotonic_s() - self._since_s, self._now()
        await asyncio.sleep(IDLE_S)
        idle = [(now - then) / IDLE_S for now, then in zip(self._now(), after, strict=True)]
        return [now - then - busy_s * share for now, then, share in zip(after, self._before, idle, strict=True)]

    def _now(self) -> list[float]:
        return [cpu_s(each.pid) for each in self._processes]


@asynccontextmanager
async def programs(stage: Stage, folder: Path, *, with_binder: bool) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """`bayplan scheduler` alone, or with `bayplan binder`, that have started and wait."""
    config = folder / ("requests.yaml" if with_binder else "direct.yaml")
    config.write_text(CONFIG.format(kubeconfig=stage.cluster.kubeconfig(), plugins=BY_BINDER if with_binder else ""))
    flags = ("--no-leader-elect", f"--kubeconfig={stage.cluster.kubeconfig()}", "--kube-api-qps=100000")
    with ExitStack() as running:
        found = []
        if with_binder:
            found.append(running.enter_context(program(folder, "binder", *flags, "--kube-api-burst=100000")))
            await stage.binder_is_up()
        deciding = ("scheduler", "--config", str(config), "--secure-port=0")
        found.insert(0, running.enter_context(program(folder, *deciding)))
        await at_rest(found[0])
        yield found


async def by_programs(stage: Stage, folder: Path, *, with_binder: bool) -> Measured:
    """Our programs. What they need to start is not counted."""
    spent: list[float] = []

    async def work() -> None:
        async with programs(stage, folder, with_binder=with_binder) as processes:
            await stage.give_lease()
            meter = Meter(stage.clock, processes)
            try:
                await asyncio.Event().wait()
            finally:
                spent[:] = await meter.spent_s()

    await stage.keep_lease()
    rates = await stage.bound_by(work)
    await stage.give_lease()  # the scheduler's by now
    async with programs(stage, folder, with_binder=with_binder) as processes:
        paced_s = await stage.bound_one_by_one(processes)
    await stage.give_lease()
    scheduler_ms, binder_ms = (1e3 * seconds / stage.pods for seconds in (*spent, 0.0)[:2])
    way = "BindRequests" if with_binder else "direct"
    return Measured(way, stage.pods, *rates, scheduler_ms, binder_ms, 1e3 * paced_s[0] / stage.pods)


async def at_rest(process: subprocess.Popen[bytes]) -> None:
    """Until a process has started, and has nothing left to do."""
    share = 1.0
    while share > AT_REST:
        before_s = cpu_s(process.pid)
        await asyncio.sleep(1.0)
        share = cpu_s(process.pid) - before_s


async def by_loop(stage: Stage, folder: Path) -> Measured:
    """A loop that decides nothing and makes the same writes."""

    async def work() -> None:
        loop = ("--loop", str(stage.cluster.kubeconfig()), "--nodes", str(stage.nodes))
        with run(folder / "loop.log", __file__, *loop):
            await asyncio.Event().wait()

    return Measured("bare loop", stage.pods, *await stage.bound_by(work), 0.0, 0.0)


async def loop(kubeconfig: Path, nodes: int) -> None:
    """Bind every pod that waits, ten at a time, with all that scheduler and binder write about each."""
    async with connected(load_connection_config(kubeconfig, env={})) as client:
        listed = await client.list(resource_of(kind_of(Pod)), Selection(namespace=SPACE))
        pods = [each for each in listed.items if isinstance(each, Pod)]
        await at_once(enumerate(pods), lambda each: bind(client, each[1], f"node-{each[0] % nodes}"), WORKERS)


async def bind(client: Client, pod: Pod, node: str) -> None:
    made = await client.create_typed(
        BindRequest, manifest(new_request(pod, node, annotations={}, backoff_limit=3)), namespace=SPACE
    )
    noted = {"received-resource-type": "Regular"}
    await client.bind(SPACE, pod.name, node, uid=pod.uid, annotations=noted)
    now = format_time(client.clock.now())
    told = {"type": "PodBound", "status": "True", "reason": "Bound", "lastTransitionTime": now}
    where = {"name": pod.name, "namespace": SPACE, "subresource": "status"}
    status = {"phase": "Succeeded", "reason": "", "failedAttempts": 0}
    done = [
        {"op": "test", "path": "/metadata/uid", "value": made.metadata.uid},
        {"op": "add", "path": "/status", "value": status},
    ]
    await asyncio.gather(
        client.patch(PODS, {"status": {"conditions": [told]}}, kind=STRATEGIC_PATCH, **where),
        client.patch(REQUESTS, json.dumps(done).encode(), kind=JSON_PATCH, **where),
        *(client.create(EVENTS, event(client, pod, reason), namespace=SPACE) for reason in ("Scheduled", "Bound")),
    )


def event(client: Client, pod: Pod, reason: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{pod.name}.{reason.lower()}.{random.getrandbits(32):x}", "namespace": SPACE},
        "eventTime": format_micro_time(client.clock.now()),
        "reportingController": "loop",
        "reportingInstance": "loop-1",
        "action": "Binding",
        "reason": reason,
        "regarding": {"kind": "Pod", "namespace": SPACE, "name": pod.name, "uid": pod.uid, "apiVersion": "v1"},
        "note": f"Successfully assigned {pod.key}",
        "type": "Normal",
    }


@dataclass(frozen=True, slots=True)
class Round:
    """All ways, one after another."""

    loop: Measured
    direct: Measured
    requests: Measured


async def measure(folder: Path, pods: int, nodes: int, rounds: int) -> list[Round]:
    with Cluster(folder / "cluster") as cluster:
        async with connected(cluster.target()) as client:
            stage = Stage(cluster, client, pods, nodes)
            await stage.set_up()
            return [await measure_round(stage, folder, number) for number in range(rounds)]


async def measure_round(stage: Stage, folder: Path, number: int) -> Round:
    bare = await by_loop(stage, folder)
    first = await by_programs(stage, folder, with_binder=bool(number % 2))
    second = await by_programs(stage, folder, with_binder=not number % 2)
    return Round(bare, *((second, first) if number % 2 else (first, second)))


def median_of(measured: Sequence[Measured]) -> Measured:
    """One way in all rounds, each number by itself."""
    middle = statistics.median
    return Measured(
        measured[0].way,
        measured[0].pods,
        middle(each.pods_a_second for each in measured),
        middle(each.written_a_second for each in measured),
        middle(each.scheduler_ms_a_pod for each in measured),
        middle(each.binder_ms_a_pod for each in measured),
        middle(each.paced_ms_a_pod for each in measured),
    )


@click.command()
@click.option("--pods", default=1000, show_default=True)
@click.option("--nodes", default=200, show_default=True)
@click.option("--rounds", default=7, show_default=True)
@click.option("--check", is_flag=True, help="End with 1 where a goal is missed.")
@click.option("--loop", "kubeconfig", type=click.Path(path_type=Path), hidden=True, help="Be the bare loop.")
def main(pods: int, nodes: int, rounds: int, check: bool, kubeconfig: Path | None) -> None:
    """Measure, print and write down."""
    if kubeconfig is not None:
        asyncio.run(loop(kubeconfig, nodes))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), pods, nodes, rounds))
    ways = [median_of([getattr(each, way) for each in found]) for way in ("loop", "direct", "requests")]
    bare, direct, requests = ways
    shares = {
        "of_loop": requests.pods_a_second / bare.pods_a_second,
        "of_loop_written": requests.written_a_second / bare.written_a_second,
    }
    costs = {
        "cpu_of_direct": requests.scheduler_ms_a_pod / direct.scheduler_ms_a_pod,
        "cpu_of_direct_paced": requests.paced_ms_a_pod / direct.paced_ms_a_pod,
    }
    show(ways, *shares.values(), *costs.values())
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    told = {"machine": machine(), "ways": [asdict(each) for each in ways], "rounds": [asdict(each) for each in found]}
    OUTPUT.write_text(json.dumps({**told, **shares, **costs}, indent=1))
    missed = [f"{name}: {share:.2f}, at least {GOAL} wanted" for name, share in shares.items() if share < GOAL]
    missed += [f"{name}: {cost:.2f}, at most {MOST_CPU} wanted" for name, cost in costs.items() if cost > MOST_CPU]
    for each in missed:
        click.echo(f"a goal is missed: {each}", err=True)
    if missed and check:
        sys.exit(1)


def show(ways: Sequence[Measured], share: float, written: float, cost: float, paced_cost: float) -> None:
    table = Table(
        "way", "pods/s", "written/s", "scheduler ms/pod", "binder ms/pod", f"scheduler ms/pod at {PACE:.0f} a second"
    )
    for each in ways:
        rates = (each.pods_a_second, each.written_a_second)
        numbers = (*rates, each.scheduler_ms_a_pod, each.binder_ms_a_pod, each.paced_ms_a_pod)
        table.add_row(each.way, *(f"{number:.2f}" for number in numbers))
    print_wide(table)
    click.echo(
        f"of the loop: {share:.2f} bound, {written:.2f} with everything written (at least {GOAL}); scheduler's CPU of "
        f"direct: {cost:.2f} (at most {MOST_CPU}), {paced_cost:.2f} where pods come one after another"
    )


if __name__ == "__main__":
    main()
