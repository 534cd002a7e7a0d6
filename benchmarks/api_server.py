"""Benchmark of the embedded API server: processor time of each request type on one core, over HTTPS.

    python benchmarks/api_server.py             all measurements, about three minutes
    python benchmarks/api_server.py --quick     small amounts, as a smoke test
    python benchmarks/api_server.py --data-sync full     objects in a file, every group commit synced

The server is a separate process, started from the command line; this process creates the load. The figures are the
processor time of the server, so the load and other processes do not count; only the start and the writes that wait for
the disk are wall-clock times. Prints a table and writes build/bench/api.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import aiohttp
import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.calibration import Calibration
from benchmarks.embedded_cluster import CONNECTIONS, PODS, Tree, cpu_s, home_below, pod, post_all, session_with

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "api.json"
WATCHES = 20
_LARGE = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """One figure. `budget` is its maximum, or its minimum if `more` is better."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    more: bool = False
    amount: int = 0

    def holds(self, calibration: float) -> bool | None:
        if self.budget is None:
            return None
        return self.value * calibration >= self.budget if self.more else self.value <= self.budget * calibration

    def as_json(self, calibration: float) -> Tree:
        return {
            "question": self.name,
            "amount": self.amount,
            "value": round(self.value, 3),
            "unit": self.unit,
            "budget": self.budget,
            "holds": self.holds(calibration),
        }


class Server:
    """`bayplan cluster up` in its own folder."""

    def __init__(self, folder: Path, data_sync: str | None = None) -> None:
        """`data_sync`: keep the objects in a file, with commits of this kind; None keeps them in memory."""
        self._data = ["--data", str(folder / "objects.db"), "--data-sync", data_sync] if data_sync else []
        self._env = {**os.environ, "XDG_STATE_HOME": str(folder)}
        self._home = home_below(folder)
        self.pid = 0

    def start(self) -> float:
        """Start the server; return the seconds until it is ready."""
        began = perf_counter()
        self._run("up", "--detach", "--nodes", "0", "--no-scheduler", "--no-controllers", *self._data)
        took = perf_counter() - began
        self.pid = json.loads((self._home / "running.json").read_text())["pid"]
        return took

    @property
    def kubeconfig(self) -> Path:
        return self._home / "kubeconfig"

    def stop(self) -> None:
        self._run("down")

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "bayplan", "cluster", *arguments]
        subprocess.run(command, env=self._env, check=True, stdout=subprocess.DEVNULL)

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / _LARGE

    def session(self) -> AbstractAsyncContextManager[aiohttp.ClientSession]:
        return session_with(self._home)


def node(number: int) -> Tree:
    amounts = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": {"topology.kubernetes.io/zone": f"zone-{number % 3}"}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


small_pod = partial(pod, cpu="500m", memory="512Mi")


def lease(number: int) -> Tree:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": f"lease-{number}"},
        "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 40},
    }


async def cost(server: Server, work: Callable[[], Awaitable[object]]) -> float:
    """Processor time, in seconds, that the server uses for `work`."""
    before = server.cpu_s()
    await work()
    return server.cpu_s() - before


async def measure_nodes(server: Server, count: int) -> Found:
    async with server.session() as session:
        took = await cost(server, lambda: post_all(session, "/api/v1/nodes", map(node, range(count))))
    return Found("create nodes", took * 5000 / count, "s for 5,000", 10.0, amount=count)


async def measure_writes(server: Server, count: int) -> list[Found]:
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    async with server.session() as session:
        began = perf_counter()
        took = await cost(server, lambda: post_all(session, path, map(lease, range(count))))
        waited = perf_counter() - began
    return [
        Found("small writes", count / took, "a second", 2000.0, more=True, amount=count),
        Found("small writes, by the clock", count / waited, "a second", amount=count),
    ]


async def measure_watches(server: Server, count: int) -> Found:
    """Cost of a watch delivery, without the write that causes it."""
    path = "/api/v1/namespaces/default/configmaps"

    def config_maps(prefix: str) -> Iterator[Tree]:
        for number in range(count):
            yield {"metadata": {"name": f"{prefix}-{number}"}, "data": {"key": "value" * 20}}

    async with server.session() as session:
        alone = await cost(server, lambda: post_all(session, path, config_maps("a")))
        watches = [asyncio.create_task(_drain(session, path, count)) for _ in range(WATCHES)]
        await asyncio.sleep(1.0)

        async def watched() -> None:
            await post_all(session, path, config_maps("b"))
            await asyncio.gather(*watches)

        together = await cost(server, watched)
    deliveries = count * WATCHES
    return Found(
        "watch deliveries", deliveries / max(together - alone, 0.01), "a second", 10_000.0, more=True, amount=deliveries
    )


async def _drain(session: aiohttp.ClientSession, path: str, count: int) -> None:
    """Watch until this many objects of the second run were delivered."""
    async with session.get(
        path, params={"watch": "true", "fieldSelector": "metadata.name!=kube-root-ca.crt"}
    ) as answer:
        seen = 0
        async for chunk in answer.content.iter_any():
            seen += chunk.count(b'"name":"b-')
            if seen >= count:
                return


STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
_THEN = "2026-01-01T00:00:00Z"


def binding(number: int) -> Tree:
    return {"metadata": {"name": f"life-{number}"}, "target": {"kind": "Node", "name": f"node-{number % 50}"}}


def started(number: int) -> Tree:
    """The pod status that a kubelet writes when it accepts the pod."""
    conditions = [{"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": _THEN}]
    return {"status": {"conditions": conditions, "startTime": _THEN, "hostIP": f"10.0.0.{number % 50}"}}


def running(number: int) -> Tree:
    """The pod status that a kubelet writes when the containers run."""
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _THEN}
        for kind in ("Initialized", "Ready", "ContainersReady")
    ]
    container = {
        "name": "main",
        "state": {"running": {"startedAt": _THEN}},
        "ready": True,
        "restartCount": 0,
        "image": "example.com/app:1",
        "imageID": "",
        "started": True,
    }
    address = f"10.1.{number % 250}.{number // 250}"
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "containerStatuses": [container]}
    return {"status": {**status, "conditions": conditions}}


async def measure_lives(server: Server, count: int) -> Found:
    """Cost of a pod from its creation until it runs, with two more watches open: four writes, eight deliveries."""

    async def live(session: aiohttp.ClientSession, number: int) -> None:
        here = f"{PODS}/life-{number}"
        made = small_pod(number)
        made["metadata"]["name"] = f"life-{number}"
        for method, path, body, headers in (
            ("POST", PODS, made, {}),
            ("POST", f"{here}/binding", binding(number), {}),
            ("PATCH", f"{here}/status", started(number), STRATEGIC),
            ("PATCH", f"{here}/status", running(number), STRATEGIC),
        ):
            async with session.request(method, path, json=body, headers=headers) as answer:
                text = await answer.read()
                if answer.status not in (200, 201):
                    raise click.ClickException(f"{path}: {answer.status} {text.decode()}")

    async with server.session() as session:
        watches = [asyncio.create_task(_await_running(session, count)) for _ in range(2)]
        await asyncio.sleep(1.0)
        waiting = iter(range(count))

        async def work() -> None:
            for number in waiting:
                await live(session, number)

        async def lives() -> None:
            await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
            await asyncio.gather(*watches)

        took = await cost(server, lives)
    return Found("a pod until it runs", 1000 * took / count, "ms of processor", amount=count)


async def _await_running(session: aiohttp.ClientSession, count: int) -> None:
    async with session.get("/api/v1/pods", params={"watch": "true"}) as answer:
        seen, rest = 0, b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            seen += sum(b'"phase":"Running"' in line for line in lines)
            if seen >= count:
                return


async def measure_memory(server: Server, count: int) -> list[Found]:
    before = server.resident_mb()
    async with server.session() as session:
        took = await cost(server, lambda: post_all(session, PODS, map(small_pod, range(count))))
        grown = server.resident_mb() - before
        listing = await cost(server, lambda: _read(session, f"{PODS}?resourceVersion=0"))
    return [
        Found("create pods", count / took, "a second", amount=count),
        Found("memory of pods", grown * 50_000 / count, "MB for 50,000", 2048.0, amount=count),
        Found("list pods", 1000 * listing * 50_000 / count, "ms for 50,000", amount=count),
    ]


async def _read(session: aiohttp.ClientSession, path: str) -> None:
    async with session.get(path) as answer:
        async for _ in answer.content.iter_any():
            pass


async def measure(server: Server, *, quick: bool) -> list[Found]:
    scale = 20 if quick else 1
    found = [await measure_nodes(server, 5000 // scale), *await measure_writes(server, 10_000 // scale)]
    found.append(await measure_watches(server, 2000 // scale))
    found.append(await measure_lives(server, 4000 // scale))
    return [*found, *await measure_memory(server, 50_000 // scale)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Small amounts, as a smoke test.")
@click.option("--check", is_flag=True, help="Exit with an error if a budget is exceeded.")
@click.option(
    "--data-sync", type=click.Choice(["full", "normal"]), help="Keep the objects in a file.  [default: in memory]"
)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    help="The file for the JSON.  [default: build/bench/api.json]",
)
def main(quick: bool, check: bool, data_sync: str | None, file: Path) -> None:
    """Measure the embedded API server. Budgets are multiplied by the machine's calibration."""
    calibration = Calibration()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), data_sync)
        first = server.start()
        try:
            found = [Found("ready from the command line", first, "s", 2.0, amount=1)]
            found += asyncio.run(measure(server, quick=quick))
        finally:
            server.stop()
    calibration.measure_again()
    report = {
        "calibration": round(calibration.value, 3),
        "data_sync": data_sync,
        "figures": [each.as_json(calibration.value) for each in found],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _print(found, calibration.value)
    click.echo(f"written to {file}")
    broken = [each.name for each in found if each.holds(calibration.value) is False]
    if check and broken:
        raise click.ClickException(f"over budget: {', '.join(broken)}")


def _print(found: list[Found], calibration: float) -> None:
    table = Table("question", "how many", "found", "unit", "budget", "holds", box=None, pad_edge=False)
    for each in found:
        holds = {True: "yes", False: "NO", None: ""}[each.holds(calibration)]
        budget = "" if each.budget is None else f"{each.budget:,g}"
        table.add_row(each.name, f"{each.amount:,}", f"{each.value:,.2f}", each.unit, budget, holds)
    Console().print(table)
    click.echo(f"calibration {calibration:.2f}")


if __name__ == "__main__":
    main()
