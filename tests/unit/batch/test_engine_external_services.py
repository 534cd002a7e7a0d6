"""A batch engine as users build it, with external services: a configuration file that changes, HTTP services on
sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from bayplan.app import build_batch_engine, filled_cache, usage_collector
from bayplan.batch.engine import BatchEngine
from bayplan.clock import ManualClock
from bayplan.objects.defaults import with_all_defaults
from bayplan.testing import make_gang, make_node, make_queue
from support.fakes.http_server import FakeHttpServer, Reply, Request
from support.harness.async_tests import async_test

ACTIONS = 'actions: "enqueue, allocate"\n'
NODES = [make_node("idle", cpu=8), make_node("busy", cpu=8)]


def engine_with(file: Path, size: int = 1, **more: Any) -> BatchEngine:
    """One gang, two nodes, and the configuration of a file."""
    objects = [*NODES, make_queue("default"), *make_gang("train", size, cpu=1).objects]
    cluster = list(with_all_defaults(objects))
    engine = build_batch_engine(file, filled_cache(cluster), **more)
    for item in cluster:
        engine.handle_update(item)
    return engine


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return tmp_path / "volcano-scheduler.conf"


# Configuration file


def test_a_changed_file_is_in_force_from_the_next_session_on(conf: Path) -> None:
    conf.write_text("actions: backfill\ntiers: [{plugins: [{name: gang}]}]")
    engine = engine_with(conf)
    assert engine.run_session().binds == {}
    conf.write_text(ACTIONS + "tiers: [{plugins: [{name: gang}, {name: predicates}]}]")
    assert set(engine.run_session().binds) == {"default/train-0"}


def test_a_file_that_is_replaced_like_a_config_map(tmp_path: Path, conf: Path) -> None:
    for number, text in enumerate(("actions: backfill", ACTIONS)):
        (tmp_path / str(number)).write_text(text.ljust(40))
        os.utime(tmp_path / str(number), ns=(1, 1))  # the same size and time: only the link differs
    conf.symlink_to("0")
    engine = engine_with(conf)
    assert engine.load_configuration().actions == ("backfill",)
    (tmp_path / "new").symlink_to("1")
    (tmp_path / "new").replace(conf)
    assert engine.load_configuration().actions == ("enqueue", "allocate")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "actions: ''",
            "failed to find Action ; `actions` is missing or empty, or contains an empty name",
            id="no-actions",
        ),
        pytest.param("", "failed to find Action ; `actions` is missing or empty", id="empty"),
        pytest.param("actions: alocate", "failed to find Action alocate; known actions: enqueue, ", id="misspelt"),
        pytest.param("actions: [", "see docs/batch-configuration.md", id="no-yaml"),
        pytest.param(None, "cannot be read", id="gone"),
    ],
)
def test_an_invalid_file_leaves_the_last_valid_configuration_in_force_and_is_logged(
    conf: Path, text: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    conf.write_text(ACTIONS)
    engine = engine_with(conf)
    engine.run_session()
    if text is None:
        conf.unlink()
    else:
        conf.write_text(text)
    for _ in range(2):
        (fault,) = engine.run_session().faults
        assert words in fault
        assert str(conf) in fault
        assert fault.endswith("; the previous configuration stays in force")
        assert engine.configuration.actions == ("enqueue", "allocate")
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == [fault]  # logged once
    conf.write_text(ACTIONS + "# corrected")
    assert engine.run_session().faults == []


def test_a_missing_file_at_the_start_leaves_the_built_in_configuration_in_force(conf: Path) -> None:
    engine = engine_with(conf)
    outcome = engine.run_session()
    assert set(outcome.binds) == {"default/train-0"}
    (fault,) = outcome.faults
    assert "volcano-scheduler.conf cannot be read" in fault


# Extender


class Extender(BaseHTTPRequestHandler):
    """Accepts tasks on the node `busy` only."""

    calls: list[str]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        self.calls.append(self.path)
        refused = {"status": "not here", "code": 2} if request["node"]["Name"] == "idle" else {}
        body = msgspec.json.encode(refused)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Not logged."""


@pytest.fixture
def extender() -> Iterator[ThreadingHTTPServer]:
    Extender.calls = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Extender)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def write_extender_conf(conf: Path, port: int, more: str = "") -> None:
    conf.write_text(
        ACTIONS
        + f"""tiers:
- plugins:
  - name: gang
  - name: predicates
  - name: extender
    arguments:
      extender.urlPrefix: http://127.0.0.1:{port}/ext
      extender.predicateVerb: predicate
      {more}
"""
    )


def test_an_extender_is_called_by_http(conf: Path, extender: ThreadingHTTPServer) -> None:
    write_extender_conf(conf, extender.server_port)
    engine = engine_with(conf, size=2)
    outcome = engine.run_session()
    assert outcome.binds == {"default/train-0": "busy", "default/train-1": "busy"}
    assert outcome.faults == []
    assert set(Extender.calls) == {"/ext/predicate"}
    engine.close()


def test_a_session_can_call_its_extender_inside_an_event_loop(conf: Path, extender: ThreadingHTTPServer) -> None:
    write_extender_conf(conf, extender.server_port)
    engine = engine_with(conf)

    async def session() -> dict[str, str]:
        return engine.run_session().binds

    assert asyncio.run(session()) == {"default/train-0": "busy"}
    engine.close()


def test_an_unreachable_extender_is_reported(conf: Path, extender: ThreadingHTTPServer) -> None:
    port = extender.server_port
    extender.shutdown()  # otherwise the thread that waits on the socket keeps it open
    extender.server_close()
    write_extender_conf(conf, port, "extender.ignorable: true")
    engine = engine_with(conf)
    outcome = engine.run_session()
    assert set(outcome.binds) == {"default/train-0"}
    assert f"dial tcp 127.0.0.1:{port}: connect: connection refused" in outcome.faults[0]
    engine.close()


# Metrics


def write_metrics_conf(conf: Path, kind: str, url: str, more: str = "") -> None:
    conf.write_text(
        ACTIONS
        + f"""tiers:
- plugins:
  - name: gang
  - name: predicates
  - name: usage
metrics:
  type: {kind}
  address: {url}
{more}"""
    )


def prometheus(request: Request) -> Reply:
    load = "95" if b"busy" in request.body else "5"
    result = [{"metric": {}, "value": [1.0, load]}]
    return Reply(200, {"status": "success", "data": {"resultType": "vector", "result": result}})


def elasticsearch(request: Request) -> Reply:
    busy = request.json["query"]["bool"]["must"][1]["term"]["host.hostname"] == "busy"
    return Reply(200, {"aggregations": {"cpu": {"value": 0.95 if busy else 0.05}, "mem": {"value": 0.05}}})


@pytest.mark.parametrize(
    ("kind", "route", "request_line"),
    [
        pytest.param("prometheus", prometheus, "POST /api/v1/query", id="prometheus"),
        pytest.param("elasticsearch", elasticsearch, "POST /metricbeat-*/_search", id="elasticsearch"),
    ],
)
def test_usage_is_collected_by_http(conf: Path, kind: str, route: Any, request_line: str) -> None:
    @async_test
    async def collect() -> None:
        async with FakeHttpServer(route) as server:
            more = "  elasticsearch.username: me\n  elasticsearch.password: secret\n"
            write_metrics_conf(conf, kind, server.url, more if kind == "elasticsearch" else "")
            engine = engine_with(conf, size=2)
            async with usage_collector(engine) as collector:
                assert await collector.collect_once()
            assert set(server.request_lines()) == {request_line}
            if kind == "elasticsearch":
                assert server.requests[0].headers["authorization"] == "Basic bWU6c2VjcmV0"
        outcome = engine.run_session()
        assert outcome.binds == {"default/train-0": "idle", "default/train-1": "idle"}
        assert engine.handle.usage["busy"].cpu == {"10m": 95.0}

    collect()


@async_test
async def test_custom_metrics_are_requested_with_the_client_of_the_api_server() -> None:
    def values(request: Request) -> Reply:
        share = "950m" if "cpu" in request.path else "50m"
        item = {"describedObject": {"name": "busy"}, "timestamp": "2026-01-01T00:00:00Z", "value": share}
        return Reply(200, {"items": [item]})

    async with FakeHttpServer(values) as server:
        clock = ManualClock()
        engine = build_batch_engine(_metrics_only("prometheus_adaptor"), filled_cache(NODES), clock=clock)
        async with server.client() as api, usage_collector(engine, api=api) as collector:
            assert await collector.collect_once()
        assert engine.handle.usage["busy"].cpu == {"10m": 95.0}
        assert server.request_lines()[0] == "GET /apis/custom.metrics.k8s.io/v1beta2/nodes/*/node_cpu_usage_avg"
    async with usage_collector(engine) as alone:
        assert not await alone.collect_once()
    assert "there is no client for it" in engine.handle.usage_fault


def _metrics_only(kind: str, address: str = "") -> Any:
    from bayplan.batch import BatchConfiguration

    return BatchConfiguration(metrics={"type": kind, "address": address, "interval": "7s"})


@async_test
async def test_a_failed_round_keeps_the_readings_and_sessions_report_it() -> None:
    clock = ManualClock()
    async with FakeHttpServer(prometheus) as server:
        engine = build_batch_engine(_metrics_only("prometheus", server.url), filled_cache(NODES), clock=clock)
        async with usage_collector(engine, clock=clock) as collector:
            assert await collector.collect_once()
            server.route = lambda _: Reply(503)
            assert not await collector.collect_once()
            (fault,) = engine.run_session().faults
            assert "answered with HTTP status 503" in fault
            assert fault.endswith("; earlier readings stay in use while they are recent")
            assert engine.handle.usage["busy"].cpu == {"10m": 95.0}
            server.route = prometheus
            assert await collector.collect_once()
            assert engine.run_session().faults == []


@async_test
async def test_rounds_follow_the_configured_interval() -> None:
    clock = ManualClock()
    async with FakeHttpServer(prometheus) as server:
        engine = build_batch_engine(_metrics_only("prometheus", server.url), filled_cache(NODES), clock=clock)
        async with usage_collector(engine) as collector:  # the requests use the real clock
            collector = type(collector)(engine, collector._fetch, clock)
            running = asyncio.ensure_future(collector.run())
            for rounds in (1, 2, 3):
                while not clock.sleepers:
                    await asyncio.sleep(0)
                assert len(server.requests) == rounds * 4  # two nodes, two measures
                clock.advance(6.9)
                assert clock.sleepers
                clock.advance(0.1)
                while clock.sleepers:
                    await asyncio.sleep(0)
            running.cancel()


@async_test
async def test_a_round_that_takes_too_long_is_aborted() -> None:
    clock = ManualClock()

    def slow(request: Request) -> Reply:
        clock.advance(31)
        return prometheus(request)

    async with FakeHttpServer(slow) as server:
        engine = build_batch_engine(_metrics_only("prometheus", server.url), filled_cache(NODES), clock=clock)
        async with usage_collector(engine) as collector:
            collector = type(collector)(engine, collector._fetch, clock)
            assert not await collector.collect_once()
        assert "60 s were not enough to query all nodes" in engine.handle.usage_fault
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("graphite", "data cannot be collected from the graphite monitoring system", id="unknown"),
        pytest.param("prometheus", "metrics address is empty", id="nowhere"),
        pytest.param("", "", id="not-configured"),
    ],
)
@async_test
async def test_unsupported_metrics_configurations(kind: str, words: str) -> None:
    engine = build_batch_engine(_metrics_only(kind), filled_cache(NODES))
    async with usage_collector(engine) as collector:
        assert not await collector.collect_once()
    assert words in engine.handle.usage_fault
    assert bool(words) == bool(engine.handle.usage_fault)
