"""Metrics systems for measured node usage: requests, response parsing, and the view of the results.

The `metrics` section of the configuration names the system: `prometheus`, `elasticsearch` or `prometheus_adaptor` (the
custom metrics API). This module sends nothing: the caller passes `collect` a `fetch`, which sends a request and returns
the response. A failed round leaves the view unchanged. A reading ages from its measurement on, and plugins decide when
it is too old. A node unknown to the system counts as idle, as in Volcano. Cost: one or two requests per node and round.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from bayplan.batch.config.argument_specs import Argument, argument_problems, did_you_mean
from bayplan.batch.handle import HttpReply
from bayplan.batch.model.nodes import NodeUsage
from bayplan.clock import Clock
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.codec.quantity import QuantityError, QuantityText, parse_quantity
from bayplan.errors import BayplanError

T = TypeVar("T")

PERIOD = "10m"
"""The averaging period of readings; no other period is collected."""

DEFAULT_INTERVAL_S = 30.0
ROUND_TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 1 << 20

PROMETHEUS, ELASTICSEARCH, PROMETHEUS_ADAPTOR = "prometheus", "elasticsearch", "prometheus_adaptor"

_CPU_QUERY = (
    "avg_over_time(clamp_min(100 - (avg by (instance) "
    '(rate(node_cpu_seconds_total{{mode="idle",instance="{node}"}}[5m])) * 100), 0)[{period}:30s])'
)
_MEMORY_QUERY = (
    '100*avg_over_time(((1-node_memory_MemAvailable_bytes{{instance="{node}"}}'
    '/node_memory_MemTotal_bytes{{instance="{node}"}}))[{period}:30s])'
)
_ADAPTOR_PATH = "/apis/custom.metrics.k8s.io/v1beta2/nodes/*/"
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


METRICS = (
    Argument("type", str, ""),
    Argument("address", str, ""),
    Argument("interval", timedelta, "30s"),
    Argument("tls.insecureSkipVerify", str, "false"),
    Argument("elasticsearch.index", str, "metricbeat-*"),
    Argument("elasticsearch.hostnameFieldName", str, "host.hostname"),
    Argument("elasticsearch.username", str, ""),
    Argument("elasticsearch.password", str, ""),
)
"""The keys of a `metrics` section."""


class MetricsError(BayplanError):
    """The node usage cannot be collected."""


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    """A request to the metrics system. A URL that begins with a slash is a path of the API server."""

    url: str
    node: str = ""  # the node; "": all nodes
    measure: str = ""  # `cpu` or `memory`; "": both
    method: str = "POST"
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    verify_tls: bool = True


Fetch = Callable[[MetricsRequest, float], Awaitable[HttpReply]]
"""Sends a request and waits at most this many seconds for the response."""


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Measured usage of a node, in percent."""

    at: datetime
    cpu: float = 0.0
    memory: float = 0.0


Measurement = tuple[str, Mapping[str, Any]]
"""A node and the fields of its reading in one response."""


class MetricsSource(Protocol):
    def requests(self, nodes: Iterable[str], now: datetime) -> Iterator[MetricsRequest]: ...

    def read(self, request: MetricsRequest, answer: bytes) -> Iterator[Measurement]: ...


def metrics_source(metrics: Mapping[str, str]) -> MetricsSource | None:
    """The source that the `metrics` section configures; None without one."""
    kind = metrics.get("type", "")
    if not kind:
        return None
    if kind == PROMETHEUS_ADAPTOR:
        return AdaptorSource()
    if kind not in (PROMETHEUS, ELASTICSEARCH):
        known = f"{ELASTICSEARCH}, {PROMETHEUS}, and {PROMETHEUS_ADAPTOR}"
        raise MetricsError(
            f"data cannot be collected from the {kind} monitoring system. The supported monitoring systems are {known}"
        )
    if not metrics.get("address"):
        raise MetricsError("metrics address is empty")
    return PrometheusSource(metrics) if kind == PROMETHEUS else ElasticsearchSource(metrics)


def metrics_problems(metrics: Mapping[str, str]) -> Iterator[str]:
    """Unknown keys of a `metrics` section, and the reason if nothing can be collected: one message each."""
    yield from argument_problems("metrics", METRICS, metrics)
    try:
        metrics_source(metrics)
    except MetricsError as fault:
        kind, known = metrics["type"], (PROMETHEUS, ELASTICSEARCH, PROMETHEUS_ADAPTOR)
        yield f"metrics: {fault}{'' if kind in known else did_you_mean(kind, known)}"


def interval_s(metrics: Mapping[str, str]) -> float:
    """Seconds between two rounds."""
    try:
        seconds = parse_duration(metrics.get("interval", "")).seconds
    except DurationError:
        return DEFAULT_INTERVAL_S
    return seconds if seconds > 0 else DEFAULT_INTERVAL_S


class PrometheusSource:
    """Metrics of the Prometheus node exporter; the label `instance` must be the node name."""

    def __init__(self, metrics: Mapping[str, str]) -> None:
        self._url = metrics["address"].rstrip("/") + "/api/v1/query"
        self._verify = _verify_tls(metrics)

    def requests(self, nodes: Iterable[str], now: datetime) -> Iterator[MetricsRequest]:
        for node in nodes:
            for measure, query in (("cpu", _CPU_QUERY), ("memory", _MEMORY_QUERY)):
                form = {"query": query.format(node=node, period=PERIOD), "time": f"{now.timestamp():.3f}"}
                yield MetricsRequest(
                    self._url,
                    node=node,
                    measure=measure,
                    body=_form_encode(form),
                    headers={"Content-Type": "application/x-www-form-urlencoded"},
                    verify_tls=self._verify,
                )

    def read(self, request: MetricsRequest, answer: bytes) -> Iterator[Measurement]:
        if _decode(answer, _PrometheusAnswer).data.result_type != "vector":
            return
        for row in _decode(answer, _PrometheusVectorAnswer).data.result[:1]:
            yield request.node, {request.measure: float(row.value[1])}


class ElasticsearchSource:
    """Documents of Metricbeat."""

    def __init__(self, metrics: Mapping[str, str]) -> None:
        index = metrics.get("elasticsearch.index") or "metricbeat-*"
        self._url = f"{metrics['address'].rstrip('/')}/{index}/_search"
        self._host_field = metrics.get("elasticsearch.hostnameFieldName") or "host.hostname"
        self._verify = _verify_tls(metrics)
        self._headers = {"Content-Type": "application/json"}
        user, password = metrics.get("elasticsearch.username", ""), metrics.get("elasticsearch.password", "")
        if user and password:
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"

    def requests(self, nodes: Iterable[str], now: datetime) -> Iterator[MetricsRequest]:  # noqa: ARG002
        for node in nodes:
            body = msgspec.json.encode(self._query(node))
            yield MetricsRequest(self._url, node=node, body=body, headers=self._headers, verify_tls=self._verify)

    def _query(self, node: str) -> dict[str, Any]:
        recent = {"range": {"@timestamp": {"gte": f"now-{PERIOD}", "lt": "now"}}}
        return {
            "size": 0,
            "query": {"bool": {"must": [recent, {"term": {self._host_field: node}}]}},
            "aggs": {
                "cpu": {"avg": {"field": "host.cpu.usage"}},
                "mem": {"avg": {"field": "system.memory.actual.used.pct"}},
            },
        }

    def read(self, request: MetricsRequest, answer: bytes) -> Iterator[Measurement]:
        found = _decode(answer, _ElasticsearchAnswer).aggregations
        yield request.node, {"cpu": (found.cpu.value or 0.0) * 100, "memory": (found.mem.value or 0.0) * 100}


class AdaptorSource:
    """The custom metrics API of the cluster, as prometheus-adapter serves it: all nodes in one response."""

    def requests(self, nodes: Iterable[str], now: datetime) -> Iterator[MetricsRequest]:  # noqa: ARG002
        for measure in ("cpu", "memory"):
            yield MetricsRequest(f"{_ADAPTOR_PATH}node_{measure}_usage_avg", measure=measure, method="GET")

    def read(self, request: MetricsRequest, answer: bytes) -> Iterator[Measurement]:
        for item in _decode(answer, _MetricValues).items:
            try:
                share = parse_quantity(item.value).as_float()
            except QuantityError as fault:
                raise MetricsError(f"{request.url}: {fault}") from None
            yield item.described_object.name, {"at": item.timestamp, request.measure: share * 100}


async def collect(source: MetricsSource, nodes: Sequence[str], fetch: Fetch, now: datetime) -> dict[str, UsageSample]:
    """Run one round and return a reading for each node. Raises the errors of `fetch`, `HttpStatusError` or
    `MetricsError`."""
    found = {node: UsageSample(now) for node in nodes}
    for request in source.requests(nodes, now):
        reply = await fetch(request, ROUND_TIMEOUT_S)
        for node, fields in source.read(request, reply.body_or_error(request.url)):
            if node in found:
                found[node] = replace(found[node], **fields)
    return found


class UsageView(Mapping[str, NodeUsage]):
    """Readings as plugins see them, each with its current age."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._readings: dict[str, UsageSample] = {}

    def replace_samples(self, readings: Mapping[str, UsageSample]) -> None:
        """Store the result of a round; nodes without a reading are removed."""
        self._readings = dict(readings)

    def __getitem__(self, node: str) -> NodeUsage:
        reading = self._readings[node]
        age_s = (self._clock.now() - reading.at).total_seconds()
        return NodeUsage(age_s, {PERIOD: reading.cpu}, {PERIOD: reading.memory})

    def __iter__(self) -> Iterator[str]:
        return iter(self._readings)

    def __len__(self) -> int:
        return len(self._readings)


# Responses, limited to the fields that are read

_Number = Annotated[str, msgspec.Meta(pattern=r"^([+-]?[0-9.]+([eE][+-]?[0-9]+)?|NaN|[+-]?Inf)$")]


class _PrometheusData(msgspec.Struct, rename="camel"):
    result_type: str = ""


class _PrometheusAnswer(msgspec.Struct):
    data: _PrometheusData = msgspec.field(default_factory=_PrometheusData)


class _PrometheusRow(msgspec.Struct):
    value: tuple[float, _Number]


class _PrometheusVector(msgspec.Struct):
    result: list[_PrometheusRow] = []


class _PrometheusVectorAnswer(msgspec.Struct):
    data: _PrometheusVector


class _Average(msgspec.Struct):
    value: float | None = None


class _Averages(msgspec.Struct):
    cpu: _Average = msgspec.field(default_factory=_Average)
    mem: _Average = msgspec.field(default_factory=_Average)


class _ElasticsearchAnswer(msgspec.Struct):
    aggregations: _Averages = msgspec.field(default_factory=_Averages)


class _DescribedObject(msgspec.Struct):
    name: str = ""


class _MetricValue(msgspec.Struct, rename="camel"):
    timestamp: datetime
    value: QuantityText
    described_object: _DescribedObject = msgspec.field(default_factory=_DescribedObject)


class _MetricValues(msgspec.Struct):
    items: list[_MetricValue] = []


def _decode(answer: bytes, kind: type[T]) -> T:
    if len(answer) > MAX_ANSWER_BYTES:
        raise MetricsError(f"the metrics system answered with {len(answer)} bytes; the limit is {MAX_ANSWER_BYTES}")
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as fault:
        raise MetricsError(f"the metrics system answered with an unexpected body: {fault}") from None


def _verify_tls(metrics: Mapping[str, str]) -> bool:
    return metrics.get("tls.insecureSkipVerify") != "true"


def _form_encode(fields: Mapping[str, str]) -> bytes:
    return "&".join(f"{key}={_percent_encode(value)}" for key, value in fields.items()).encode()


def _percent_encode(text: str) -> str:
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode())
