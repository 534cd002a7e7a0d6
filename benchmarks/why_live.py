"""Benchmark of "why" over HTTP: time of an explanation, and its cost for a running scheduler.

    python benchmarks/why_live.py             5,000 nodes and 50,000 pods, about three minutes
    python benchmarks/why_live.py --quick     small amounts, as a smoke test
    python benchmarks/why_live.py --engine batch

An embedded API server and `bayplan scheduler`, or `bayplan batch run` for gangs of one pod each, are separate
processes, started from the command line; this process sends requests over TLS with a token, as `bayplan why` does.
Meanwhile pods are created and placed. Times of responses are wall-clock times; the cost of a response is the processor
time of the scheduler's process with requests, less the time without. Prints a table and writes
build/bench/why_live.json; docs/benchmarks.md describes the measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import click
import msgspec
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.batch.model.tasks import GROUP_NAME
from bayplan.objects.core import Node, Pod
from benchmarks.api_server import Server
from benchmarks.embedded_cluster import PODS, Tree, post_all
from benchmarks.live.bind_watch import Process
from benchmarks.why import ASKED_EVERY_S, BUDGET_MS, BUDGET_SHARE, NODES, PODS_A_NODE, cases, cluster_node, running_pod

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "why_live.json"
PLACED_A_SECOND = 50
"""Rate of the pods that are created meanwhile: a busy cluster on a machine that three processes share."""
_COMING = "comes"
_POD_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
_RUNS = 10
_WAIT_S = 240.0
_BETWEEN_S = 0.2


@dataclass(frozen=True, slots=True)
class Found:
    """One case: wall-clock times of responses, and the scheduler's processor time per response."""

    case: str
    median_ms: float
    longest_ms: float
    cpu_ms: float

    @property
    def share(self) -> float:
        """Share of the loop at one request every `ASKED_EVERY_S` seconds."""
        return self.cpu_ms / 1e3 / ASKED_EVERY_S

    def holds(self) -> bool:
        return self.longest_ms < BUDGET_MS and self.share < BUDGET_SHARE


def tree_of(item: Node | Pod) -> Tree:
    """The manifest of an object."""
    tree: Tree = msgspec.to_builtins(item)
    tree["metadata"].pop("uid", None)
    for container in tree["spec"].get("containers", ()):
        container["image"] = "example.com/app:1"
    if isinstance(item, Pod) and (known := _class_of(item)) is not None:  # the priority comes from the class
        for name in ("priority", "preemptionPolicy"):
            tree["spec"].pop(name, None)
        tree["spec"]["priorityClassName"] = known["metadata"]["name"]
    return {"apiVersion": "v1", "kind": type(item).__name__, **tree}


def _class_of(pod: Pod) -> Tree | None:
    """The priority class that gives a pod its priority."""
    if not (priority := pod.spec.priority):
        return None
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    policy = {"preemptionPolicy": pod.spec.preemption_policy} if pod.spec.preemption_policy else {}
    return {**kind, "metadata": {"name": f"priority-{priority}"}, "value": priority, **policy}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: Sequence[str], kubeconfig: Path, port: int, folder: Path) -> Iterator[int]:
    """A scheduler in a separate process: its pid."""
    flags = ["--kubeconfig", str(kubeconfig), "--secure-port", str(port), "--bind-address", "127.0.0.1"]
    flags += ["--leader-elect=false", "--kube-api-qps", "5000", "--kube-api-burst", "10000"]
    with (folder / "scheduler.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "bayplan", *command, *flags], stdout=log, stderr=log)
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine that explains, and the labels and names by which it selects its pods."""

    command: tuple[str, ...]
    in_gangs: bool = False

    def own(self, tree: Tree, group: str) -> Tree:
        """A pod that this engine places; for the batch engine, a member of the gang `group`."""
        if self.in_gangs:
            tree["spec"]["schedulerName"] = "volcano"
            tree["metadata"].setdefault("annotations", {})[GROUP_NAME] = group
        return tree

    async def prepare(self, session: aiohttp.ClientSession, kubeconfig: Path) -> None:
        """Create a gang for each case, and one for the pods that arrive meanwhile."""
        if not self.in_gangs:
            return
        command = [sys.executable, "-m", "bayplan", "crds", "--install", "--kubeconfig", str(kubeconfig)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        names = [_COMING, *(pod.name for pod in cases().values())]
        await post_all(session, _POD_GROUPS, map(_group, names))


ENGINES = {"pod": Engine(("scheduler",)), "batch": Engine(("batch", "run"), in_gangs=True)}


def _group(name: str) -> Tree:
    kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
    return {**kind, "metadata": {"name": name}, "spec": {"minMember": 1, "queue": "default"}}


async def fill(session: aiohttp.ClientSession, nodes: int, engine: Engine) -> None:
    await post_all(session, "/api/v1/nodes", (tree_of(cluster_node(number)) for number in range(nodes)))
    there, asked = [running_pod(number, nodes) for number in range(nodes * PODS_A_NODE)], list(cases().values())
    classes = {known["metadata"]["name"]: known for known in map(_class_of, [*there, *asked]) if known is not None}
    await post_all(session, "/apis/scheduling.k8s.io/v1/priorityclasses", classes.values())
    await post_all(session, PODS, map(tree_of, there))
    await post_all(session, PODS, (engine.own(tree_of(pod), pod.name) for pod in asked))


class Asker:
    """Requests explanations from one scheduler over one connection."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"https://127.0.0.1:{port}/why/default/"

    async def ask(self, pod: str) -> Tree | None:
        """The response; None if there is none yet."""
        try:
            async with self._session.get(self._url + pod, ssl=False) as answer:
                body = await answer.read()
                found: Tree | None = json.loads(body) if answer.status == 200 else None
                return found
        except aiohttp.ClientConnectionError:
            return None

    async def wait_for(self, pod: str) -> None:
        """Wait until a decision about the pod was recorded."""
        end_s = perf_counter() + _WAIT_S
        while not ((found := await self.ask(pod)) and found["source"] == "record" and found.get("tries")):
            if perf_counter() > end_s:
                raise click.ClickException(f"no decision about {pod} in {_WAIT_S:g} s; the last response: {found}")
            await asyncio.sleep(0.5)

    async def timed_ms(self, pod: str) -> float:
        start_s = perf_counter()
        found = await self.ask(pod)
        assert found is not None
        assert found["state"] == "pending"
        return 1e3 * (perf_counter() - start_s)


@contextlib.asynccontextmanager
async def placing(session: aiohttp.ClientSession, engine: Engine) -> AsyncIterator[None]:
    """Create pods, which are placed, inside the block."""

    async def come() -> None:
        number, due_s = 0, perf_counter()
        while True:
            body = tree_of(running_pod(number, 1))
            body["metadata"]["name"] = f"comes-{number}"
            del body["spec"]["nodeName"]
            body["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "10m"}
            await post_all(session, PODS, [engine.own(body, _COMING)])
            number, due_s = number + 1, due_s + 1 / PLACED_A_SECOND
            await asyncio.sleep(max(0.0, due_s - perf_counter()))

    coming = asyncio.ensure_future(come())
    try:
        yield
    finally:
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await coming


def used_between(process: Process, start_s: float) -> tuple[float, float]:
    """Wall-clock seconds since a sample, and processor seconds."""
    process.look()
    end_s = process.seen[-1][0]
    return end_s - start_s, process.cpu_between(start_s, end_s)


async def rate_of(process: Process, seconds: float) -> float:
    """Processor share of the scheduler without requests."""
    process.look()
    start_s = process.seen[-1][0]
    await asyncio.sleep(seconds)
    took_s, cpu_s = used_between(process, start_s)
    return cpu_s / took_s


async def measured(asker: Asker, process: Process, case: str, pod: str) -> Found:
    """Measure between two windows without requests, so that other activity is in both."""
    before = await rate_of(process, 3.0)
    process.look()
    start_s, took_ms = process.seen[-1][0], []
    for _ in range(_RUNS):
        took_ms.append(await asker.timed_ms(pod))
        await asyncio.sleep(_BETWEEN_S)
    took_s, cpu_s = used_between(process, start_s)
    after = await rate_of(process, 3.0)
    usual_s = took_s * (before + after) / 2
    return Found(case, statistics.median(took_ms), max(took_ms), 1e3 * max(0.0, cpu_s - usual_s) / _RUNS)


async def measure(server: Server, nodes: int, folder: Path, engine: Engine) -> list[Found]:
    port = free_port()
    async with server.session() as session:
        await engine.prepare(session, server.kubeconfig)
        await fill(session, nodes, engine)
        with running(engine.command, server.kubeconfig, port, folder) as pid:
            process, asker = Process(pid), Asker(session, port)
            for pod in cases().values():
                await asker.wait_for(pod.name)
            async with placing(session, engine):
                await asyncio.sleep(2.0)
                return [await measured(asker, process, case, pod.name) for case, pod in cases().items()]


def measured_on_its_own_server(nodes: int, engine: Engine) -> list[Found]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        server.start()
        try:
            return asyncio.run(measure(server, nodes, Path(folder), engine))
        finally:
            server.stop()


def as_json(found: list[Found]) -> list[dict[str, Any]]:
    return [{**asdict(each), "share": each.share, "holds": each.holds()} for each in found]


@click.command()
@click.option("--nodes", type=int, default=NODES, show_default=True, help="Number of nodes, with ten pods each.")
@click.option(
    "--engine", "engines", type=click.Choice(list(ENGINES)), multiple=True, help="Only this one.  [default: both]"
)
@click.option("--quick", is_flag=True, help="Few nodes, as a smoke test.")
@click.option("--check", is_flag=True, help="Exit with code 1 if a budget is exceeded.")
def main(nodes: int, engines: tuple[str, ...], quick: bool, check: bool) -> None:
    """Measure explanations by "why" over HTTP."""
    nodes = 50 if quick else nodes
    found = {name: measured_on_its_own_server(nodes, ENGINES[name]) for name in engines or ENGINES}
    share = f"of the loop, asked every {ASKED_EVERY_S:g} s"
    table = Table("engine", "case", "answer ms", "longest ms", "scheduler's CPU ms", share)
    for name, answers in found.items():
        for each in answers:
            figures = f"{each.median_ms:.1f}", f"{each.longest_ms:.1f}", f"{each.cpu_ms:.1f}", f"{each.share:.2%}"
            table.add_row(name, each.case, *figures)
    Console().print(table)
    about = {"nodes": nodes, "pods": nodes * PODS_A_NODE, "asked_every_s": ASKED_EVERY_S}
    report = {**about, "engines": {name: as_json(answers) for name, answers in found.items()}}
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if check and not quick and not all(each.holds() for answers in found.values() for each in answers):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
