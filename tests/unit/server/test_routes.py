"""Content of each path, compared letter by letter with kube-scheduler 1.36.4."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from bayplan.clock import ManualClock
from bayplan.objects.core import Pod
from bayplan.server import Check, ComponentInfo, ServerViews, election_check, handlers_check, shutdown_check
from bayplan.telemetry.metrics import Counter, MetricsRegistry
from support.harness.async_tests import async_test
from support.harness.health_server import get, run_server

STARTED = datetime(2026, 11, 15, 11, 34, 53, tzinfo=UTC)
WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is "
    "for debugging purposes only.\n"
)


NO_FOO = 'warn: some health checks cannot be excluded: no matches for "foo"\n'


def views(**more: Any) -> ServerViews:
    election = election_check("kube-scheduler", lambda: 0.0)
    known: dict[str, Any] = {
        "metrics": MetricsRegistry(),
        "healthz": [election],
        "readyz": [election, shutdown_check(lambda: False), handlers_check(lambda: True)],
        "started_at": 1794742493.83,
    }
    return ServerViews(**{**known, **more})


# Health.


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/healthz", "ok"),
        ("/healthz?verbose", "[+]leaderElection ok\nhealthz check passed\n"),
        ("/livez?verbose", "[+]ping ok\nlivez check passed\n"),
        ("/livez?verbose&exclude=ping", "[+]ping excluded: ok\nlivez check passed\n"),
        ("/readyz?verbose=1", "[+]leaderElection ok\n[+]shutdown ok\n[+]sched-handler-sync ok\nreadyz check passed\n"),
        (
            "/readyz?verbose&exclude=shutdown&exclude=foo",
            f"[+]leaderElection ok\n[+]shutdown excluded: ok\n[+]sched-handler-sync ok\n{NO_FOO}readyz check passed\n",
        ),
        ("/readyz?exclude=shutdown", "ok"),
        ("/readyz/shutdown", "ok"),
        ("/readyz/shutdown?verbose", "ok"),
    ],
)
@async_test
async def test_health_checks_pass(path: str, body: str) -> None:
    async with run_server(views()) as server:
        reply = await get(server, path)
        assert (reply.status, reply.text) == (200, body)
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        assert reply.headers["cache-control"] == "no-cache, private"
        assert reply.headers["content-length"] == str(len(body))


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (election_check("kube-scheduler", lambda: 21.0), "failed election to renew leadership on lease kube-scheduler"),
        (shutdown_check(lambda: True), "process is shutting down"),
        (handlers_check(lambda: False), "handlers are not fully synchronized"),
    ],
)
@async_test
async def test_the_reason_of_a_failed_check_is_only_on_its_own_path(check: Check, problem: str) -> None:
    async with run_server(views(readyz=[Check("first", lambda: ""), check])) as server:
        reply = await get(server, "/readyz")
        assert reply.status == 500
        assert reply.text == f"[+]first ok\n[-]{check.name} failed: reason withheld\nreadyz check failed\n"
        assert reply.headers["x-content-type-options"] == "nosniff"
        single = await get(server, f"/readyz/{check.name}")
        assert (single.status, single.text) == (500, f"internal server error: {problem}\n")
        assert (await get(server, f"/readyz?exclude={check.name}")).text == "ok"


def test_a_lease_may_be_overdue_for_20_seconds() -> None:
    assert election_check("x", lambda: 20.0).error() == ""


@async_test
async def test_check_results_are_counted() -> None:
    failing = False
    async with run_server(views(livez=[Check("beat", lambda: "none" if failing else "")])) as server:
        await get(server, "/livez")
        failing = True
        await get(server, "/livez")
        text = (await get(server, "/metrics/slis")).text
        assert "# HELP process_start_time_seconds [ALPHA] Start time" in text
        assert "\nprocess_start_time_seconds 1.79474249383e+09\n" in text
        assert '\nkubernetes_healthcheck{name="beat",type="livez"} 0\n' in text
        assert '\nkubernetes_healthchecks_total{name="beat",status="error",type="livez"} 1\n' in text
        assert '\nkubernetes_healthchecks_total{name="beat",status="success",type="livez"} 1\n' in text
        assert "registered_metrics_total" not in text


# Paths and methods.


@pytest.mark.parametrize("path", ["/", "/nope", "/metrics/", "/HEALTHZ", "/healthz/", "/readyz/nope", "//healthz"])
@async_test
async def test_unknown_paths_are_not_found(path: str) -> None:
    async with run_server(views()) as server:
        reply = await get(server, path)
        assert (reply.status, reply.text) == (404, "404 page not found\n")
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        assert reply.headers["x-content-type-options"] == "nosniff"


@async_test
async def test_missing_views_have_no_path() -> None:
    async with run_server(ServerViews(metrics=MetricsRegistry())) as server:
        assert server.paths == [
            "/healthz",
            "/healthz/ping",
            "/livez",
            "/livez/ping",
            "/metrics",
            "/metrics/slis",
            "/readyz",
            "/readyz/ping",
        ]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "OPTIONS"])
@async_test
async def test_every_method_reads(method: str) -> None:
    async with run_server(views()) as server:
        assert (await get(server, "/healthz", method=method)).text == "ok"


@async_test
async def test_head_responses_have_no_body() -> None:
    async with run_server(views()) as server:
        reply = await get(server, "/healthz", method="HEAD")
        assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "2")
        assert (await get(server, "/metrics", method="HEAD")).body == b""


# Metrics.


@async_test
async def test_metrics_and_their_reset() -> None:
    registry, hits = MetricsRegistry(), Counter("hits_total", "Hits.", ("code",))
    registry.add(hits)
    hits.labels("200").inc()
    async with run_server(views(metrics=registry)) as server:
        reply = await get(server, "/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
        assert reply.headers["process-start-time-unix"] == "1794742493"
        assert '\nhits_total{code="200"} 1\n' in reply.text
        assert (await get(server, "/metrics", method="DELETE")).text == "metrics reset\n"
        assert "hits_total" not in (await get(server, "/metrics")).text


@async_test
async def test_the_resources_of_pods() -> None:
    tree = {
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m"}}}]},
    }
    pods = [msgspec.convert(tree, Pod)]
    async with run_server(views(pods=lambda: pods)) as server:
        line = (await get(server, "/metrics/resources")).text.splitlines()[-1]
        assert line == (
            'kube_pod_resource_request{namespace="default",node="",pod="a",priority="",resource="cpu",'
            'scheduler="default-scheduler",unit="cores"} 1.5'
        )
        pods.clear()
        assert (await get(server, "/metrics/resources")).text == ""


# Configuration and status.


@async_test
async def test_the_effective_configuration() -> None:
    tree = {"kind": "KubeSchedulerConfiguration", "parallelism": 16, "profiles": [{"schedulerName": "<a>"}]}
    async with run_server(views(configuration=lambda: tree)) as server:
        reply = await get(server, "/configz")
        assert reply.headers["content-type"] == "application/json"
        assert reply.text == (
            '{"componentconfig":{"kind":"KubeSchedulerConfiguration","parallelism":16,'
            '"profiles":[{"schedulerName":"\\u003ca\\u003e"}]}}'
        )


ABOUT = ComponentInfo(
    component="kube-scheduler", started=STARTED, runtime="python3.11.7", version="1.36.4", emulated="1.36"
)


def zpages() -> tuple[ServerViews, ManualClock]:
    clock = ManualClock(STARTED)
    clock.advance(3600 * 25 + 61)
    flags: Callable[[], dict[str, str]] = lambda: {"v": "2", "authentication-skip-lookup": "false"}  # noqa: E731
    return views(about=ABOUT, flags=flags, configuration=dict), clock


@pytest.mark.parametrize("accept", ["", "text/plain", "*/*", "text/html;q=0.9, */*"])
@async_test
async def test_status_as_text(accept: str) -> None:
    known, clock = zpages()
    async with run_server(known, clock=clock) as server:
        reply = await get(server, "/statusz", headers={"Accept": accept} if accept else {})
        assert reply.text == (
            f"\nkube-scheduler statusz\n{WARNING}\n"
            "Started: Sun Nov 15 11:34:53 UTC 2026\nUp: 25 hr 01 min 01 sec\nGo version: python3.11.7\n"
            "Binary version: 1.36.4\nEmulation version: 1.36\n"
            "Paths: /configz /flagz /healthz /livez /metrics /readyz\n"
        )
        flags = await get(server, "/flagz")
        assert flags.text == f"\nkube-scheduler flagz\n{WARNING}authentication-skip-lookup=false\nv=2\n"
        assert flags.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(("version", "is_deprecated"), [("v1alpha1", True), ("v1beta1", False)])
@async_test
async def test_status_as_json(version: str, is_deprecated: bool) -> None:
    known, clock = zpages()
    async with run_server(known, clock=clock) as server:
        accept = f"application/json;v={version};g=config.k8s.io;as=Statusz"
        reply = await get(server, "/statusz", headers={"Accept": accept})
        assert reply.headers["content-type"] == f"application/json;g=config.k8s.io;v={version};as=Statusz"
        assert reply.json == {
            "kind": "Statusz",
            "apiVersion": f"config.k8s.io/{version}",
            "metadata": {"name": "kube-scheduler"},
            "startTime": "2026-11-15T11:34:53Z",
            "uptimeSeconds": 90061,
            "goVersion": "python3.11.7",
            "binaryVersion": "1.36.4",
            "emulationVersion": "1.36",
            "paths": ["/configz", "/flagz", "/healthz", "/livez", "/metrics", "/readyz"],
        }
        deprecated = '299 - "This version of the statusz endpoint is deprecated. Please use a newer version."'
        assert reply.headers.get("warning") == (deprecated if is_deprecated else None)


@async_test
async def test_flags_as_yaml() -> None:
    known, clock = zpages()
    async with run_server(known, clock=clock) as server:
        accept = "application/yaml; v=v1beta1; g=config.k8s.io; as=Flagz"
        reply = await get(server, "/flagz", headers={"Accept": accept})
        assert reply.text == (
            "apiVersion: config.k8s.io/v1beta1\nflags:\n  authentication-skip-lookup: 'false'\n  v: '2'\n"
            "kind: Flagz\nmetadata:\n  name: kube-scheduler\n"
        )


@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "text/html",
        "application/json;v=v1;g=config.k8s.io;as=Statusz",
        "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
    ],
)
@async_test
async def test_unsupported_media_types_are_refused(accept: str) -> None:
    known, clock = zpages()
    async with run_server(known, clock=clock) as server:
        reply = await get(server, "/statusz", headers={"Accept": accept})
        assert reply.status == 406
        assert reply.json["message"] == (
            "only the following media types are accepted: application/json, application/yaml, text/plain"
        )
        assert reply.json["reason"] == "NotAcceptable"


@pytest.mark.parametrize(
    ("method", "body", "status", "answer"),
    [
        ("PUT", b"7", 200, "successfully set klog.logging.verbosity to 7\n"),
        ("PUT", b"xx", 400, 'strconv.ParseUint: parsing "xx": invalid syntax\n'),
        ("PUT", b"", 400, 'strconv.ParseUint: parsing "": invalid syntax\n'),
        ("GET", b"", 406, "unsupported http method\n"),
    ],
)
@async_test
async def test_setting_the_verbosity(method: str, body: bytes, status: int, answer: str) -> None:
    verbosities: list[int] = []
    async with run_server(views(set_verbosity=verbosities.append)) as server:
        reply = await get(server, "/debug/flags/v", method=method, body=body)
        assert (reply.status, reply.text) == (status, answer)
        assert reply.headers["content-type"] == "text/plain"
        assert verbosities == ([7] if status == 200 else [])
