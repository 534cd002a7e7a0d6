from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from bayplan.batch.handle import HttpReply, HttpStatusError
from bayplan.batch.model.nodes import NodeUsage
from bayplan.batch.node_usage.metrics_sources import (
    AdaptorSource,
    ElasticsearchSource,
    MetricsError,
    MetricsRequest,
    PrometheusSource,
    UsageSample,
    UsageView,
    collect,
    interval_s,
    metrics_source,
)
from bayplan.clock import ManualClock

NOW = datetime(2024, 6, 1, 12, 0, 0, 250_000, tzinfo=UTC)
PROMETHEUS = {"type": "prometheus", "address": "http://prom:9090/base/"}
ELASTIC = {"type": "elasticsearch", "address": "https://es:9200"}


def requests(metrics: dict[str, str], *nodes: str) -> list[MetricsRequest]:
    source = metrics_source(metrics)
    assert source is not None
    return list(source.requests(nodes, NOW))


def collect_samples(
    metrics: dict[str, str], answer: Callable[[MetricsRequest], Any], *nodes: str
) -> dict[str, UsageSample]:
    """One round with a system that answers each request in this way."""

    async def fetch(request: MetricsRequest, timeout_s: float) -> HttpReply:  # noqa: ARG001
        found = answer(request)
        if isinstance(found, HttpReply):
            return found
        return HttpReply(200, found if isinstance(found, bytes) else msgspec.json.encode(found))

    source = metrics_source(metrics)
    assert source is not None
    return asyncio.run(collect(source, nodes, fetch, NOW))


@pytest.mark.parametrize(
    ("metrics", "kind"),
    [
        pytest.param({}, type(None), id="not-configured"),
        pytest.param(PROMETHEUS, PrometheusSource, id="prometheus"),
        pytest.param(ELASTIC, ElasticsearchSource, id="elasticsearch"),
        pytest.param({"type": "prometheus_adaptor"}, AdaptorSource, id="custom-metrics"),
    ],
)
def test_sources(metrics: dict[str, str], kind: type[Any]) -> None:
    assert type(metrics_source(metrics)) is kind


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        pytest.param(
            {"type": "graphite"}, "data cannot be collected from the graphite monitoring system", id="unknown"
        ),
        pytest.param({"type": "prometheus"}, "metrics address is empty", id="no-prometheus-address"),
        pytest.param({"type": "elasticsearch", "address": ""}, "metrics address is empty", id="no-elastic-address"),
    ],
)
def test_invalid_sections(metrics: dict[str, str], message: str) -> None:
    with pytest.raises(MetricsError, match=message):
        metrics_source(metrics)


@pytest.mark.parametrize(
    ("text", "expected"), [("1m", 60.0), ("500ms", 0.5), ("", 30.0), ("0s", 30.0), ("-5s", 30.0), ("soon", 30.0)]
)
def test_interval(text: str, expected: float) -> None:
    assert interval_s({"interval": text}) == expected


def test_prometheus_gets_two_requests_per_node() -> None:
    cpu, memory = requests(PROMETHEUS, "n1")
    assert cpu.url == memory.url == "http://prom:9090/base/api/v1/query"
    assert (cpu.method, cpu.verify_tls) == ("POST", True)
    assert cpu.headers == {"Content-Type": "application/x-www-form-urlencoded"}
    assert cpu.body == (
        b"query=avg_over_time%28clamp_min%28100%20-%20%28avg%20by%20%28instance%29%20%28rate%28node_cpu_seconds_total"
        b"%7Bmode%3D%22idle%22%2Cinstance%3D%22n1%22%7D%5B5m%5D%29%29%20%2A%20100%29%2C%200%29%5B10m%3A30s%5D%29"
        b"&time=1717243200.250"
    )
    assert memory.body.startswith(
        b"query=100%2Aavg_over_time%28%28%281-node_memory_MemAvailable_bytes%7Binstance%3D%22n1%22%7D%2F"
        b"node_memory_MemTotal_bytes%7Binstance%3D%22n1%22%7D%29%29%5B10m%3A30s%5D%29&time="
    )


def vector(*values: str) -> dict[str, Any]:
    rows = [{"metric": {"instance": "n1"}, "value": [1717243200.25, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": rows}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(vector("12.5"), 12.5, id="one-row"),
        pytest.param(vector("12.5", "99"), 12.5, id="the-first-row"),
        pytest.param(vector(), 0.0, id="no-data-reads-as-idle"),
        pytest.param({"data": {"resultType": "scalar", "result": [1.5, "7"]}}, 0.0, id="no-vector"),
        pytest.param(vector("1e1"), 10.0, id="exponent"),
    ],
)
def test_prometheus_answers(answer: dict[str, Any], expected: float) -> None:
    found = collect_samples(PROMETHEUS, lambda request: answer if request.measure == "cpu" else vector("3"), "n1")
    assert found == {"n1": UsageSample(NOW, expected, 3.0)}


def test_elasticsearch_gets_one_request_per_node() -> None:
    metrics = {
        **ELASTIC,
        "elasticsearch.username": "u",
        "elasticsearch.password": "p",
        "tls.insecureSkipVerify": "true",
    }
    (request,) = requests(metrics, "n1")
    assert (request.url, request.method) == ("https://es:9200/metricbeat-*/_search", "POST")
    assert request.headers == {"Content-Type": "application/json", "Authorization": "Basic dTpw"}
    assert not request.verify_tls
    body = msgspec.json.decode(request.body)
    assert body["size"] == 0
    assert body["query"]["bool"]["must"] == [
        {"range": {"@timestamp": {"gte": "now-10m", "lt": "now"}}},
        {"term": {"host.hostname": "n1"}},
    ]
    assert body["aggs"] == {
        "cpu": {"avg": {"field": "host.cpu.usage"}},
        "mem": {"avg": {"field": "system.memory.actual.used.pct"}},
    }


def test_elasticsearch_settings() -> None:
    own = {
        "elasticsearch.index": "beats",
        "elasticsearch.hostnameFieldName": "agent.name",
        "elasticsearch.username": "u",
    }
    (request,) = requests({**ELASTIC, **own}, "n1")
    assert request.url == "https://es:9200/beats/_search"
    assert "Authorization" not in request.headers  # a user name without a password is not sent
    assert request.verify_tls
    assert msgspec.json.decode(request.body)["query"]["bool"]["must"][1] == {"term": {"agent.name": "n1"}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({"aggregations": {"cpu": {"value": 0.25}, "mem": {"value": 0.5}}}, (25.0, 50.0), id="shares"),
        pytest.param({"aggregations": {"cpu": {"value": None}}}, (0.0, 0.0), id="no-data-reads-as-idle"),
    ],
)
def test_elasticsearch_answers(answer: dict[str, Any], expected: tuple[float, float]) -> None:
    assert collect_samples(ELASTIC, lambda _: answer, "n1") == {"n1": UsageSample(NOW, *expected)}


def test_custom_metrics_contain_all_nodes_in_one_response() -> None:
    measured_at = NOW - timedelta(seconds=20)

    def answer(request: MetricsRequest) -> dict[str, Any]:
        assert (request.method, request.url) == (
            "GET",
            f"/apis/custom.metrics.k8s.io/v1beta2/nodes/*/node_{request.measure}_usage_avg",
        )
        value = "250m" if request.measure == "cpu" else "1"
        items = [
            {"describedObject": {"kind": "Node", "name": name}, "timestamp": measured_at, "value": value}
            for name in ("n1", "stranger")
        ]
        return {"kind": "MetricValueList", "items": items}

    found = collect_samples({"type": "prometheus_adaptor"}, answer, "n1", "n2")
    assert found == {"n1": UsageSample(measured_at, 25.0, 100.0), "n2": UsageSample(NOW)}


@pytest.mark.parametrize(
    ("metrics", "answer"),
    [
        pytest.param(PROMETHEUS, b"<html>", id="no-json"),
        pytest.param(PROMETHEUS, vector("twelve"), id="no-number"),
        pytest.param(PROMETHEUS, {"data": {"resultType": "vector", "result": [{}]}}, id="a-row-without-a-value"),
        pytest.param(ELASTIC, {"aggregations": {"cpu": {"value": "x"}}}, id="no-average"),
        pytest.param(ELASTIC, b" " * (1 << 20) + b"{}", id="too-much"),
        pytest.param(
            {"type": "prometheus_adaptor"}, {"items": [{"timestamp": NOW, "value": "much"}]}, id="no-quantity"
        ),
    ],
)
def test_invalid_answers(metrics: dict[str, str], answer: Any) -> None:
    with pytest.raises(MetricsError):
        collect_samples(metrics, lambda _: answer, "n1")


@pytest.mark.parametrize("status", [204, 401, 503])
def test_an_error_status_is_reported_with_its_url(status: int) -> None:
    with pytest.raises(HttpStatusError, match=f"http://prom:9090/base/api/v1/query answered with HTTP status {status}"):
        collect_samples(PROMETHEUS, lambda _: HttpReply(status, b"{}"), "n1")


def test_samples_age_and_are_replaced() -> None:
    clock = ManualClock(NOW)
    view = UsageView(clock)
    assert not len(view)
    view.replace_samples({"n1": UsageSample(NOW, 25.0, 50.0)})
    clock.advance(40.0)
    assert dict(view) == {"n1": NodeUsage(40.0, {"10m": 25.0}, {"10m": 50.0})}
    view.replace_samples({"n2": UsageSample(clock.now())})
    assert list(view) == ["n2"]
    assert view["n2"].age_s == 0.0
