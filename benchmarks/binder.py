"""Benchmark of binding through BindRequests on a real API server, beside direct binding and a loop of the same writes.

    python benchmarks/binder.py                 seven rounds of 1,000 pods at 200 nodes, ten workers; eleven minutes
    python benchmarks/binder.py --pods 500 --rounds 1
    python benchmarks/binder.py --check         exit with an error if a goal is missed

Prints a table of medians with their ratios, and writes build/bench/binder.json with all rounds. A machine's speed
changes from minute to minute: the same pods may cost half as much again. So each round measures all ways, the ways that
are compared by processor time alternate in going first, and there are enough rounds for a meaningful median. The pods
exist before a program starts. Throughput is counted from the first pod that the watch shows on a node to the last, and
a second time to the moment at which everything is written: both events of each pod, its condition, the result on its
request. The loop writes all of that with each pod. The programs send events when the binder leaves them time, so only
the second number compares equal work; the goal applies to both. The loop makes the writes of scheduler and binder in
its own process, as they do. The binder starts before the scheduler.

The scheduler's cost per pod is measured twice: with these pods, which exist at once, and with as many that arrive one
after another. The slower pods arrive, the more each costs: a directly bound pod costs three times as much at a hundred
a second as with a thousand that exist already. Direct binding binds eight times as many of the latter in a second as
the binder, so the pace of both ways is equal only for pods that arrive one by one. The goal applies to both.

The processor time of a process counts from the moment at which the scheduler may decide: it has synced its caches and
waits for a lease that the benchmark holds until then. The first bound pod would be a wrong start, because a scheduler
has decided about a tenth of the pods by then, or about none. The time counts until everything is written, events
included: otherwise the slower way would pay for events that the faster one still has to send. The time that a process
uses while idle for as long is subtracted.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # `tests` has the cluster fixture
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
"""Share of the loop's pods per second; multiple of the scheduler's cost per pod with direct binding."""
PACE = 100.0
"""Pods a second in the paced measurement: fewer than the binder can bind."""
WORKERS = 10
IDLE_S = 5.0
IDLE_SHARE = 0.02
"""Processor share below which a process counts as idle with synced caches."""
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
    """Result of one way to bind."""

    way: str
    pods: int
    pods_a_second: float
    written_a_second: float
    """The same, until everything about the pods is written."""
    scheduler_ms_a_pod: float
    binder_ms_a_pod: float
    paced_ms_a_pod: float = 0.0
    """The scheduler's cost per pod when pods arrive one after another."""


class BindBenchmark:
    """Creates the pending pods and watches their bindings."""

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
        await for_each(
            range(self.nodes),
            lambda number: self.client.create(NODES, {"metadata": {"name": f"node-{number}"}, "status": status}),
        )

    async def measure_throughput(self, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
        """Pods a second, bound and with everything written. `work` binds; it is cancelled when that is done."""
        await for_each(range(self.pods), self._create)
        async with self._watching():
            working = asyncio.ensure_future(work())
            try:
                await self._await_written()
                written_s = self.clock.monotonic_s()
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        await self._clear()
        times = sorted(self._seen.values())
        return (len(times) - 1) / (times[-1] - times[0]), len(times) / (written_s - times[0])

    async def measure_paced_cost(self, processes: Sequence[subprocess.Popen[bytes]]) -> list[float]:
        """Processor time of the running processes while pods arrive one after another, until all are bound."""
        async with self._watching(), asyncio.TaskGroup() as group:
            meter, began_s = Meter(self.clock, processes), self.clock.monotonic_s()
            for number in range(self.pods):
                await self.clock.sleep(began_s + number / PACE - self.clock.monotonic_s())
                group.create_task(self._create(number))
            await self._await_written()
            spent = await meter.spent_s()
        await self._clear()
        return spent

    async def _create(self, number: int) -> None:
        container = {"name": "main", "image": "example.com/main:1", "resources": {"requests": {"cpu": "10m"}}}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        await self.client.create(PODS, {"metadata": {"name": f"pod-{number}"}, "spec": spec}, namespace=SPACE)

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Watch the pods, with empty results."""
        self._seen, self._all = {}, asyncio.Event()
        informer = self.client.informer(resource_of(kind_of(Pod)), self._saw, selection=Selection(namespace=SPACE))
        watching = asyncio.ensure_future(informer.run())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _await_written(self) -> None:
        async with asyncio.timeout(600):
            await self._all.wait()
            await self._await_results()

    def _saw(self, _: KubeObject | None, new: KubeObject | None) -> None:
        if isinstance(new, Pod) and new.spec.node_name and new.uid not in self._seen:
            self._seen[new.uid] = self.clock.monotonic_s()
            if len(self._seen) == self.pods:
                self._all.set()

    async def _await_results(self) -> None:
        """Wait until every pod has its events, one or two, and every request has its final status."""
        while await self._count(EVENTS, b'"reason":"Scheduled"') < self.pods:
            await asyncio.sleep(0.25)
        requests = await self._count(REQUESTS, b'"kind":"BindRequest"')
        while requests and await self._count(REQUESTS, b'"phase":"Succeeded"') < requests:
            await asyncio.sleep(0.25)
        while requests and await self._count(EVENTS, b'"reason":"Bound"') < requests:
            await asyncio.sleep(0.25)

    async def await_binder(self) -> None:
        """Wait until the binder has failed a request for a pod that does not exist."""
        absent = Pod(metadata=ObjectMeta(name="absent", namespace=SPACE, uid="absent"))
        request = new_request(absent, "node-0", annotations={}, backoff_limit=1)
        await self.client.create(REQUESTS, manifest(request), namespace=SPACE)
        while not await self._count(REQUESTS, b'"phase":"Failed"'):
            await asyncio.sleep(0.1)
        await self.client.delete(REQUESTS, name=absent.name, namespace=SPACE)

    async def hold_lease(self) -> None:
        """Hold the lease, so that no scheduler decides."""
        spec = {
            "holderIdentity": "benchmark",
            "leaseDurationSeconds": 3600,
            "renewTime": format_micro_time(self.clock.now()),
        }
        await self.client.create(LEASES, {"metadata": {"name": LEASE}, "spec": spec}, namespace=LEASE_SPACE)

    async def release_lease(self) -> None:
        """Delete the lease: a waiting scheduler may decide, and a later one finds no holder."""
        await self.client.delete(LEASES, name=LEASE, namespace=LEASE_SPACE)

    async def _count(self, resource: GroupVersionResource, text: bytes) -> int:
        return (await self.client.transport.request("GET", resource.path(SPACE))).body.count(text)

    async def _clear(self) -> None:
        for resource in (PODS, REQUESTS, EVENTS):
            body = json.dumps({"gracePeriodSeconds": 0}).encode()
            await self.client.transport.request("DELETE", resource.path(SPACE), body)


async def for_each(items: Any, work: Callable[[Any], Awaitable[Any]], workers: int = 32) -> None:
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(workers)))


def connect(target: ConnectionConfig) -> Client:
    return Client(target, clock=SystemClock(), chance=random.Random(0), qps=1e6, burst=1_000_000)


def program(folder: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """One Bayplan process."""
    return run(folder / f"{arguments[0]}.log", "-m", "bayplan", *arguments)


@contextmanager
def run(log_file: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process, ended by its own pid."""
    with log_file.open("ab") as log:
        process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


class Meter:
    """Processor time of processes, less the time that they use while idle."""

    def __init__(self, clock: Clock, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._clock, self._processes = clock, processes
        self._before, self._since_s = self._now(), self._clock.monotonic_s()

    async def spent_s(self) -> list[float]:
        """Of each process until now; the process must be idle for a while afterwards."""
        busy_s, after = self._clock.monotonic_s() - self._since_s, self._now()
        await asyncio.sleep(IDLE_S)
        idle = [(now - then) / IDLE_S for now, then in zip(self._now(), after, strict=True)]
        return [now - then - busy_s * share for now, then, share in zip(after, self._before, idle, strict=True)]

    def _now(self) -> list[float]:
        return [cpu_s(each.pid) for each in self._processes]


@asynccontextmanager
async def programs(
    bench: BindBenchmark, folder: Path, *, with_binder: bool
) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """`bayplan scheduler` alone, or with `bayplan binder`, started and waiting for the lease."""
    config = folder / ("requests.yaml" if with_binder else "direct.yaml")
    config.write_text(CONFIG.format(kubeconfig=bench.cluster.kubeconfig(), plugins=BY_BINDER if with_binder else ""))
    flags = ("--no-leader-elect", f"--kubeconfig={bench.cluster.kubeconfig()}", "--kube-api-qps=100000")
    with ExitStack() as running:
        found = []
        if with_binder:
            found.append(running.enter_context(program(folder, "binder", *flags, "--kube-api-burst=100000")))
            await bench.await_binder()
        deciding = ("scheduler", "--config", str(config), "--secure-port=0")
        found.insert(0, running.enter_context(program(folder, *deciding)))
        await await_idle(found[0])
        yield found


async def measure_programs(bench: BindBenchmark, folder: Path, *, with_binder: bool) -> Measured:
    """Measure the programs. Their start does not count."""
    spent: list[float] = []

    async def work() -> None:
        async with programs(bench, folder, with_binder=with_binder) as processes:
            await bench.release_lease()
            meter = Meter(bench.clock, processes)
            try:
                await asyncio.Event().wait()
            finally:
                spent[:] = await meter.spent_s()

    await bench.hold_lease()
    rates = await bench.measure_throughput(work)
    await bench.release_lease()  # the lease is held by the scheduler now
    async with programs(bench, folder, with_binder=with_binder) as processes:
        paced_s = await bench.measure_paced_cost(processes)
    await bench.release_lease()
    scheduler_ms, binder_ms = (1e3 * seconds / bench.pods for seconds in (*spent, 0.0)[:2])
    way = "BindRequests" if with_binder else "direct"
    return Measured(way, bench.pods, *rates, scheduler_ms, binder_ms, 1e3 * paced_s[0] / bench.pods)


async def await_idle(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has started and is idle."""
    share = 1.0
    while share > IDLE_SHARE:
        before_s = cpu_s(process.pid)
        await asyncio.sleep(1.0)
        share = cpu_s(process.pid) - before_s


async def measure_loop(bench: BindBenchmark, folder: Path) -> Measured:
    """Measure a loop that decides nothing and makes the same writes."""

    async def work() -> None:
        loop = ("--loop", str(bench.cluster.kubeconfig()), "--nodes", str(bench.nodes))
        with run(folder / "loop.log", __file__, *loop):
            await asyncio.Event().wait()

    return Measured("bare loop", bench.pods, *await bench.measure_throughput(work), 0.0, 0.0)


async def loop(kubeconfig: Path, nodes: int) -> None:
    """Bind every pending pod, ten at a time, with all writes of scheduler and binder about each."""
    async with connect(load_connection_config(kubeconfig, env={})) as client:
        listed = await client.list(resource_of(kind_of(Pod)), Selection(namespace=SPACE))
        pods = [each for each in listed.items if isinstance(each, Pod)]
        await for_each(enumerate(pods), lambda each: bind(client, each[1], f"node-{each[0] % nodes}"), WORKERS)


async def bind(client: Client, pod: Pod, node: str) -> None:
    made = await client.create_typed(
        BindRequest, manifest(new_request(pod, node, annotations={}, backoff_limit=3)), namespace=SPACE
    )
    noted = {"received-resource-type": "Regular"}
    await client.bind(SPACE, pod.name, node, uid=pod.uid, annotations=noted)
    now = format_time(client.clock.now())
    condition = {"type": "PodBound", "status": "True", "reason": "Bound", "lastTransitionTime": now}
    where = {"name": pod.name, "namespace": SPACE, "subresource": "status"}
    status = {"phase": "Succeeded", "reason": "", "failedAttempts": 0}
    done = [
        {"op": "test", "path": "/metadata/uid", "value": made.metadata.uid},
        {"op": "add", "path": "/status", "value": status},
    ]
    await asyncio.gather(
        client.patch(PODS, {"status": {"conditions": [condition]}}, kind=STRATEGIC_PATCH, **where),
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
    """Results of all ways, one after another."""

    loop: Measured
    direct: Measured
    requests: Measured


async def measure(folder: Path, pods: int, nodes: int, rounds: int) -> list[Round]:
    with Cluster(folder / "cluster") as cluster:
        async with connect(cluster.target()) as client:
            bench = BindBenchmark(cluster, client, pods, nodes)
            await bench.set_up()
            return [await measure_round(bench, folder, number) for number in range(rounds)]


async def measure_round(bench: BindBenchmark, folder: Path, number: int) -> Round:
    bare = await measure_loop(bench, folder)
    first = await measure_programs(bench, folder, with_binder=bool(number % 2))
    second = await measure_programs(bench, folder, with_binder=not number % 2)
    return Round(bare, *((second, first) if number % 2 else (first, second)))


def median_of(measured: Sequence[Measured]) -> Measured:
    """The median of each number of one way over all rounds."""
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
@click.option("--check", is_flag=True, help="Exit with code 1 if a goal is missed.")
@click.option("--loop", "kubeconfig", type=click.Path(path_type=Path), hidden=True, help="Run as the bare loop.")
def main(pods: int, nodes: int, rounds: int, check: bool, kubeconfig: Path | None) -> None:
    """Measure, print and write the results."""
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
    report = {"machine": machine(), "ways": [asdict(each) for each in ways], "rounds": [asdict(each) for each in found]}
    OUTPUT.write_text(json.dumps({**report, **shares, **costs}, indent=1))
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
