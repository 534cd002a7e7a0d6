"""Latency of /livez and /metrics while the event loop is busy: the own HTTPS server and aiohttp, side by side.

    python benchmarks/https_server.py             about five minutes
    python benchmarks/https_server.py --quick     few requests, to see that it works

One process runs both servers on one event loop, with the same handlers, the same TLS context and the same other work:
slices of 5 to 20 ms, one in each turn of the loop, as a scheduler with a long queue has them. A second process sends
the requests to the two servers in turns. A request waits for the loop most of the time, so the number of slices between
request and response is counted too; it does not depend on the load of the machine. Prints a table and writes
build/bench/serving.json.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import random
import ssl
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_uint64
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from socket import AF_INET, SOCK_STREAM
from time import perf_counter
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bayplan.clock import SystemClock
from bayplan.errors import ServingError
from bayplan.server import ServerViews, TlsOptions, build_routes
from bayplan.server.health import Handler
from bayplan.server.http.connections import ConnectionHandler
from bayplan.server.http.insecure_server import InsecureServer
from bayplan.server.http.listener import Listener, bind_socket
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import HttpServerResponse
from bayplan.server.http.serving_tls import ServingTls
from bayplan.telemetry.metrics import Histogram, MetricsRegistry, exponential_buckets

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "serving.json"
HOST = "127.0.0.1"
SLICE_S = (0.005, 0.020)
REQUESTS = 200
_IMPORTS = 5
_SERVERS = ("own", "aiohttp")

Ports = dict[str, dict[bool, int]]
"""The port of each server, with and without TLS."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request."""

    name: str
    path: str
    tls: bool
    kept: bool = False
    """Whether all requests use one connection, as those of Prometheus do. Probes of a kubelet open one each."""


CASES = (
    Case("/livez, HTTPS, new connection", "/livez", tls=True),
    Case("/livez, HTTPS, kept connection", "/livez", tls=True, kept=True),
    Case("/livez, HTTP, new connection", "/livez", tls=False),
    Case("/metrics, HTTPS, new connection", "/metrics", tls=True),
    Case("/metrics, HTTPS, kept connection", "/metrics", tls=True, kept=True),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)])

    def __str__(self) -> str:
        return f"{self.p50:.0f}, {self.p99:.0f}"


@dataclass(frozen=True, slots=True)
class Latency:
    """The latencies of one case on one server."""

    ms: Spread
    slices: Spread
    """Number of slices of other work between the request and the response."""

    @classmethod
    def of(cls, runs: Sequence[tuple[float, int]]) -> Latency:
        return cls(Spread.of([seconds * 1e3 for seconds, _ in runs]), Spread.of([slices for _, slices in runs]))


# The process with the servers.


def serve(ports: Connection, slices: Any, stop: Any) -> None:
    asyncio.run(_serve(ports, slices, stop))


async def _serve(ports: Connection, slices: Any, stop: Any) -> None:
    clock = SystemClock()
    routes = build_routes(ServerViews(metrics=metrics()), clock)
    tls = ServingTls(TlsOptions(), clock)

    async def handle(request: HttpRequest) -> HttpServerResponse:
        return routes[request.path](request)

    listener = Listener(ConnectionHandler(handle, tls, clock), "benchmark")
    listener.start(bind_socket((AF_INET, SOCK_STREAM, 0, "", (HOST, 0)), lambda fault: ServingError(str(fault))))
    plain = InsecureServer(f"{HOST}:0", routes, clock=clock)
    await plain.start()
    own = {True: listener.port, False: plain.port}
    ports.send({"own": own, "aiohttp": await start_aiohttp(routes, tls.context())})
    chance = random.Random(0)
    while not stop.is_set():
        end_s = perf_counter() + chance.uniform(*SLICE_S)
        while perf_counter() < end_s:
            pass
        slices.value += 1
        await asyncio.sleep(0)


async def start_aiohttp(routes: dict[str, Handler], tls: ssl.SSLContext) -> dict[bool, int]:
    """Serve the routes with aiohttp, and return its ports."""
    from aiohttp import web

    async def handle(request: web.Request) -> web.StreamResponse:
        query = {key: request.query.getall(key) for key in request.query}
        headers = tuple((name.lower(), value) for name, value in request.headers.items())
        response = routes[request.path](
            HttpRequest(method=request.method, target=request.raw_path, path=request.path, query=query, headers=headers)
        )
        all_headers = {**dict(response.headers), "Content-Type": response.content_type}
        if isinstance(response.body, bytes):
            return web.Response(status=response.status, body=response.body, headers=all_headers)
        assert isinstance(response.body, Iterable)
        stream = web.StreamResponse(status=response.status, headers=all_headers)
        await stream.prepare(request)
        for piece in response.body:
            if piece:
                await stream.write(piece)
            await asyncio.sleep(0)
        await stream.write_eof()
        return stream

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    found = {}
    for context in (tls, None):
        await web.TCPSite(runner, HOST, 0, ssl_context=context).start()
        found[context is not None] = runner.addresses[-1][1]
    return found


def metrics() -> MetricsRegistry:
    """As many lines as the page of a scheduler has: its histograms by plugin, extension point and status."""
    histogram = Histogram(
        "scheduler_plugin_execution_duration_seconds",
        "Duration for running a plugin at a specific extension point.",
        ("plugin", "extension_point", "status"),
        buckets=exponential_buckets(0.00001, 1.5, 20),
    )
    for number in range(80):
        histogram.labels(f"Plugin{number}", "Filter", "Success").observe(0.0001 * number)
    registry = MetricsRegistry()
    registry.add(histogram)
    return registry


# The process with the clients.


def measure(requests: int, progress: Callable[[str], None]) -> dict[str, dict[str, Latency]]:
    """The latencies by case and server."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    slices, stop = context.Value(c_uint64, lock=False), context.Event()
    process = context.Process(target=serve, args=(there, slices, stop))
    process.start()
    try:
        ports: Ports = here.recv()
        found = {}
        for case in CASES:
            progress(case.name)
            runs = measure_case(case, ports, slices, requests)
            found[case.name] = {server: Latency.of(each) for server, each in runs.items()}
        return found
    finally:
        stop.set()
        process.join()


def measure_case(case: Case, ports: Ports, slices: Any, requests: int) -> dict[str, list[tuple[float, int]]]:
    """Seconds and slices of each request, by server."""
    connections = {server: connect(ports[server][case.tls], tls=case.tls) for server in _SERVERS}
    runs: dict[str, list[tuple[float, int]]] = {server: [] for server in _SERVERS}
    for number in range(requests + 1):
        for server in _SERVERS if number % 2 else _SERVERS[::-1]:
            before, start_s = slices.value, perf_counter()
            request(connections[server], case)
            if number:  # the first request of a kept connection opens it
                runs[server].append((perf_counter() - start_s, slices.value - before))
    for connection in connections.values():
        connection.close()
    return runs


def connect(port: int, *, tls: bool) -> http.client.HTTPConnection:
    if not tls:
        return http.client.HTTPConnection(HOST, port)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(HOST, port, context=context)


def request(connection: http.client.HTTPConnection, case: Case) -> None:
    headers = {"Accept-Encoding": "gzip", "Connection": "keep-alive" if case.kept else "close"}
    connection.request("GET", case.path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200 or not body:
        raise click.ClickException(f"{case.path} was answered with {response.status} and {len(body)} bytes")


def import_cost(statement: str, processes: int) -> tuple[float, float]:
    """Seconds and MiB that an import adds to a process with the own server; the median of several processes."""
    script = (
        "import time, bayplan.server\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) / 256\n"
        "before, start = rss(), time.perf_counter()\n"
        f"{statement}\n"
        "print(time.perf_counter() - start, rss() - before)"
    )
    runs = []
    for _ in range(processes):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        runs.append([float(word) for word in done.stdout.split()])
    seconds, mib = (statistics.median(each) for each in zip(*runs, strict=True))
    return seconds, mib


@click.command()
@click.option("--requests", type=int, default=REQUESTS, show_default=True, help="Requests of each kind to each server.")
@click.option("--quick", is_flag=True, help="Few requests, to see that it works.")
@click.option("--file", "path", type=click.Path(path_type=Path), default=OUTPUT, help="File of the results.")
def main(requests: int, quick: bool, path: Path) -> None:
    """Measure the latency of the servers."""
    console = Console()
    found = measure(3 if quick else requests, lambda name: console.print(name, style="dim"))
    table = Table("p50, p99", "own ms", "aiohttp ms", "own / aiohttp", "own slices", "aiohttp slices")
    for name, by_server in found.items():
        own, other = by_server["own"], by_server["aiohttp"]
        ratios = f"{own.ms.p50 / other.ms.p50:.2f}, {own.ms.p99 / other.ms.p99:.2f}"
        table.add_row(name, str(own.ms), str(other.ms), ratios, str(own.slices), str(other.slices))
    console.print(table)
    seconds, mib = import_cost("import aiohttp.web", 1 if quick else _IMPORTS)
    console.print(f"import of aiohttp.web into a process with the own server: {seconds:.2f} s, {mib:.1f} MiB")
    path.parent.mkdir(parents=True, exist_ok=True)
    cases = {name: {server: asdict(each) for server, each in servers.items()} for name, servers in found.items()}
    imports = {"seconds": seconds, "mib": mib}
    path.write_text(json.dumps({"requests": requests, "cases": cases, "aiohttp_import": imports}, indent=2))


if __name__ == "__main__":
    main()
