"""The same requests to kube-scheduler's server and to Bayplan's, on one API server: equal responses, equal metrics."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import Client, resource_of
from bayplan.clock import SystemClock
from bayplan.objects.core import Pod
from bayplan.objects.kinds import kind_of
from bayplan.server import (
    ALWAYS_ALLOW_PATHS,
    AccessControl,
    Authenticator,
    Authorizer,
    ClientAuthorityOptions,
    ClientAuthorityReloader,
    SecureServingOptions,
    Server,
    ServerViews,
    election_check,
    handlers_check,
    shutdown_check,
)
from bayplan.telemetry.access_metrics import AccessMetrics
from bayplan.telemetry.metrics import MetricsRegistry
from bayplan.telemetry.plugin_timings import PluginTimings
from bayplan.telemetry.pod_resources import render_pod_resources
from bayplan.telemetry.process_metrics import (
    LeaderMetrics,
    ProcessMetrics,
    RequestMetrics,
    add_build_info,
    add_features,
)
from bayplan.telemetry.scheduler_metrics import SchedulerMetrics
from cluster.run import Cluster, free_ports
from support.harness.async_tests import async_test
from support.harness.deadlines import DEADLINE_S
from support.harness.health_server import client_tls_context, get
from support.harness.metrics_scrape import parse_families

PROFILE = "reference"
GATES = ("SchedulerQueueingHints", "SchedulerAsyncPreemption", "DRAExtendedResource", "DRADeviceBindingConditions")


@dataclass(frozen=True)
class Reference:
    """A running kube-scheduler."""

    port: int
    cluster: Cluster


@pytest.fixture(scope="module")
def reference(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """kube-scheduler with its own scheduler name, so that it ignores pods of other tests."""
    (port,) = free_ports(1)
    kubeconfig = cluster.kubeconfig()
    config = tmp_path_factory.mktemp("scheduler") / "config.yaml"
    tree = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "leaderElection": {"leaderElect": True, "resourceName": PROFILE},
        "profiles": [{"schedulerName": PROFILE}],
    }
    config.write_text(json.dumps(tree))
    cluster.run(
        "kube-scheduler",
        f"--config={config}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
    )
    running = Reference(port, cluster)
    asyncio.run(_until_ready(running))
    yield running
    cluster.end("kube-scheduler")


async def _until_ready(reference: Reference) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if (await get(reference, "/readyz")).status == 200:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)


@asynccontextmanager
async def ours(cluster: Cluster, views: ServerViews | None = None) -> AsyncIterator[Server]:
    """Bayplan's server, which uses the same API server."""
    clock = SystemClock()
    election = election_check(PROFILE, lambda: 0.0)
    known = views or ServerViews(
        metrics=MetricsRegistry(),
        healthz=[election],
        readyz=[election, shutdown_check(lambda: False), handlers_check(lambda: True)],
        configuration=dict,
        set_verbosity=lambda _: None,
    )
    async with Client(cluster.target(), clock=clock, chance=random.Random(0), timeout_s=10.0) as client:
        judges = Authenticator(client, clock), Authorizer(client, clock, always_allowed=ALWAYS_ALLOW_PATHS)
        access = AccessControl(*judges, AccessMetrics(MetricsRegistry(), clock.monotonic_s))
        server = Server(known, SecureServingOptions(address="127.0.0.1", port=0), access, clock=clock)
        keeper = ClientAuthorityReloader(
            ClientAuthorityOptions(tolerate_lookup_failure=False), client, clock, server.trust
        )
        await keeper.refresh()
        await server.start()
        try:
            yield server
        finally:
            await server.close()


# responses


@dataclass(frozen=True)
class Question:
    path: str
    user: str = ""
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def asked(self, cluster: Cluster) -> dict[str, str]:
        token = cluster.tokens.get(self.user, self.user)
        return {**({"Authorization": f"Bearer {token}"} if token else {}), **self.headers}


QUESTIONS = {
    "health": Question("/healthz"),
    "health in words": Question("/healthz?verbose"),
    "life in words": Question("/livez?verbose"),
    "readiness in words": Question("/readyz?verbose"),
    "readiness without a check": Question("/readyz?verbose&exclude=shutdown&exclude=nothing"),
    "a check by a stranger": Question("/healthz/leaderElection"),
    "a check": Question("/readyz/sched-handler-sync", "admin"),
    "a check that is not there": Question("/livez/leaderElection", "admin"),
    "metrics by a stranger": Question("/metrics"),
    "metrics by a stranger with curl": Question("/metrics", headers={"User-Agent": "curl/8.0"}),
    "metrics without permission": Question("/metrics", "limited"),
    "metrics with a wrong token": Question("/metrics", "nonsense"),
    "health with a wrong token": Question("/healthz", "nonsense"),
    "health with a token": Question("/healthz", "limited"),
    "nothing by a stranger": Question("/nothing"),
    "nothing": Question("/nothing", "admin"),
    "the root": Question("/", "admin"),
    "another method": Question("/healthz", "admin", "POST", {}, b"x"),
    "another method by a stranger": Question("/metrics", method="DELETE"),
    "a head": Question("/healthz", method="HEAD"),
    "verbosity read": Question("/debug/flags/v", "admin"),
    "verbosity set": Question("/debug/flags/v", "admin", "PUT", {}, b"0"),
    "verbosity set to nonsense": Question("/debug/flags/v", "admin", "PUT", {}, b"loud"),
    "a path that is escaped": Question("/health%7A"),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=list(QUESTIONS))
@async_test
async def test_answers(reference: Reference, question: Question) -> None:
    asked: dict[str, Any] = {
        "method": question.method,
        "headers": question.asked(reference.cluster),
        "body": question.body,
    }
    theirs = await get(reference, question.path, **asked)
    async with ours(reference.cluster) as server:
        found = await get(server, question.path, **asked)
    assert (found.status, found.text) == (theirs.status, theirs.text)
    for name in ("content-type", "x-content-type-options", "cache-control", "content-length"):
        assert found.headers.get(name) == theirs.headers.get(name)


@async_test
async def test_a_client_certificate_of_the_clusters_authority(reference: Reference, tmp_path: Path) -> None:
    cluster = reference.cluster
    masters = client_tls_context(tmp_path, cluster.authority.user("jane", "system:masters"))
    nobody = client_tls_context(tmp_path, cluster.authority.user("joe"))
    async with ours(cluster) as server:
        for context, status in ((masters, 200), (nobody, 403)):
            theirs, found = [await get(each, "/metrics", context=context) for each in (reference, server)]
            assert (found.status, theirs.status) == (status, status)
        assert found.text == theirs.text


# Metrics


def everything() -> MetricsRegistry:
    """All our metrics, each used once with every label that it has."""
    registry = MetricsRegistry()
    SchedulerMetrics(registry, PluginTimings(), gates=GATES)
    ProcessMetrics(registry, started_at=0.0)
    LeaderMetrics(registry)
    RequestMetrics(registry)
    add_build_info(registry, version="0", emulated="1.36.4")
    add_features(registry, [("SchedulerQueueingHints", "", True)])
    for family in registry:
        family.labels(*("x" for _ in family.label_names))
    return registry


OURS_TOO = re.compile(
    r"scheduler_|leader_election_master|kubernetes_|process_|version_info|rest_client_requests_total|"
    r"rest_client_request_duration|(registered|disabled|hidden)_metrics_total"
)


def manifests(namespace: str) -> list[dict[str, Any]]:
    def pod(name: str, **spec: Any) -> dict[str, Any]:
        container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1500m", "memory": "100Mi"}}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"schedulerName": PROFILE, "containers": [container], **spec},
        }

    sidecar = {"name": "s", "image": "x", "restartPolicy": "Always", "resources": {"limits": {"cpu": "250m"}}}
    return [
        pod("fits"),
        pod("fits-too", initContainers=[sidecar]),
        pod("nowhere", nodeSelector={"no": "where"}),
        pod("gated", schedulingGates=[{"name": "example.com/wait"}]),
    ]


@pytest.fixture(scope="module")
def busy(reference: Reference) -> Iterator[Reference]:
    """kube-scheduler after it has placed some pods and refused some."""
    cluster = reference.cluster
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    cluster.kubectl("create", "namespace", PROFILE)
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "reference-node"}})
    patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
    cluster.kubectl("patch", "node", "reference-node", "--subresource=status", "--type=merge", "-p", patch)
    cluster.apply(*manifests(PROFILE))
    cluster.kubectl(
        "wait",
        "-n",
        PROFILE,
        "--for=condition=PodScheduled",
        f"--timeout={DEADLINE_S:.0f}s",
        "pod/fits",
        "pod/fits-too",
    )
    yield reference
    cluster.kubectl("delete", "pods", "-n", PROFILE, "--all", "--force", "--grace-period=0")
    cluster.kubectl("delete", "namespace", PROFILE, "--wait=false")
    cluster.kubectl("delete", "node", "reference-node")


@async_test
async def test_metrics_have_the_same_names_kinds_labels_buckets_and_help(busy: Reference) -> None:
    admin = {"Authorization": f"Bearer {busy.cluster.tokens['admin']}"}
    theirs = parse_families((await get(busy, "/metrics", headers=admin)).text)
    found = parse_families(b"".join(everything().render()).decode())
    assert {name for name in theirs if OURS_TOO.match(name)} - set(found) == set()
    for name in set(theirs) & set(found):
        assert found[name].head == theirs[name].head
        assert found[name].labels == theirs[name].labels
        if theirs[name].bounds:
            assert found[name].bounds == theirs[name].bounds
    assert len(set(theirs) & set(found)) > 30


@async_test
async def test_pod_resource_metrics(busy: Reference) -> None:
    cluster = busy.cluster
    admin = {"Authorization": f"Bearer {cluster.tokens['admin']}"}
    async with Client(cluster.target(), clock=SystemClock(), chance=random.Random(0)) as client:
        listed = await client.list(resource_of(kind_of(Pod)))
    mine = b"".join(render_pod_resources([each for each in listed.items if isinstance(each, Pod)])).decode()
    theirs = await get(busy, "/metrics/resources", headers=admin)
    assert f'namespace="{PROFILE}",node="reference-node",pod="fits"' in mine
    assert sorted(mine.splitlines()) == sorted(theirs.text.splitlines())


@async_test
async def test_a_scrape_with_the_headers_of_prometheus(busy: Reference) -> None:
    admin = {"Authorization": f"Bearer {busy.cluster.tokens['admin']}", "Accept-Encoding": "gzip"}
    theirs = await get(busy, "/metrics", headers=admin)
    async with ours(busy.cluster, ServerViews(metrics=everything())) as server:
        found = await get(server, "/metrics", headers=admin)
    for name in ("content-type", "content-encoding", "cache-control"):
        assert found.headers[name] == theirs.headers[name]
    assert "scheduler_pending_pods" in parse_families(gzip.decompress(found.body).decode())
