"""Requests to a running `bayplan scheduler` and a running kube-scheduler: health, metrics, configuration, flags."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.build import program
from cluster.run import Cluster, free_ports
from support.e2e.scheduler_harness import SchedulerHarness
from support.e2e.scheduler_process import Endpoint, run_scheduler, wait_until
from support.fakes.certificates import Authority
from support.harness.deadlines import DEADLINE_S
from support.harness.health_server import Reply, get
from support.harness.metrics_scrape import MetricFamily, parse_families

THEIRS, OURS = "theirs", "ours"


def config(who: str) -> str:
    """The output without the names that differ between both."""
    return f"""
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{kubeconfig: KUBECONFIG}}
leaderElection: {{leaderElect: true, resourceName: {who}}}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
profiles: [{{schedulerName: {who}}}]
"""


@dataclass(frozen=True)
class Both:
    """Two schedulers that have done the same."""

    cluster: Cluster
    ours: Endpoint
    theirs: Endpoint

    def ask(self, who: Endpoint, path: str, user: str = "admin", **more: str) -> Reply:
        token = self.cluster.tokens.get(user, user)
        headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **more}
        return asyncio.run(get(who, path, headers=headers))

    def scrapes(self) -> tuple[dict[str, MetricFamily], dict[str, MetricFamily]]:
        ours, theirs = (parse_families(self.ask(who, "/metrics").text) for who in (self.ours, self.theirs))
        return ours, theirs


@contextmanager
def kube_scheduler(cluster: Cluster, folder: Path) -> Iterator[Endpoint]:
    (port,) = free_ports(1)
    way = cluster.kubeconfig()
    path = folder / "theirs.yaml"
    path.write_text(config(THEIRS).replace("KUBECONFIG", str(way)))
    ways = [f"--{flag}={way}" for flag in ("authentication-kubeconfig", "authorization-kubeconfig")]
    cluster.run("kube-scheduler", f"--config={path}", *ways, f"--secure-port={port}", "--bind-address=127.0.0.1")
    try:
        yield Endpoint(port)
    finally:
        cluster.end("kube-scheduler")


@pytest.fixture(scope="module")
def both(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Both have placed pods, refused pods, preempted one, and have gated ones, each on its own nodes."""
    folder = tmp_path_factory.mktemp("serving")
    harnesses = {}
    for who in (THEIRS, OURS):
        cluster.kubectl("create", "namespace", f"serving-{who}")
        harnesses[who] = SchedulerHarness(cluster, f"serving-{who}", folder)
        harnesses[who].add_nodes(2, cpu="2")
        harnesses[who].priority("strong", 1000)
    (port,) = free_ports(1)
    serving = (f"--secure-port={port}", "--bind-address=127.0.0.1")
    with kube_scheduler(cluster, folder) as theirs, run_scheduler(cluster, folder, *serving, config=config(OURS)):
        found = Both(cluster, Endpoint(port), theirs)
        for endpoint in (theirs, found.ours):
            wait_until(lambda endpoint=endpoint: is_up(found, endpoint), "it serves and leads")  # type: ignore[misc]
        for who, harness in harnesses.items():
            work(harness, who)
        for harness in harnesses.values():
            harness.wait_bound(["strong", "small"])
            wait_until(lambda harness=harness: "PodScheduled" in status_text(harness, "nowhere"), "it has a reason")  # type: ignore[misc]
        for endpoint in (theirs, found.ours):
            wait_until(lambda endpoint=endpoint: has_settled(found, endpoint), "all is counted")  # type: ignore[misc]
        yield found
    for harness in harnesses.values():
        harness.close()


def is_up(both: Both, who: Endpoint) -> bool:
    try:
        text = both.ask(who, "/metrics").text
    except OSError:
        return False
    leads = parse_families(text).get("leader_election_master_status")
    return leads is not None and leads.value() == 1 and both.ask(who, "/readyz").status == 200


def has_settled(both: Both, who: Endpoint) -> bool:
    found = parse_families(both.ask(who, "/metrics").text)
    return found["scheduler_schedule_attempts_total"].value(result="scheduled") == 6


def status_text(harness: SchedulerHarness, name: str) -> str:
    return json.dumps(harness.api.pod(name)["status"])


def named(node: str) -> dict[str, Any]:
    """An affinity to a node by its name, which PreFilter narrows to."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def spread() -> dict[str, Any]:
    """A spread constraint over a label that no node has."""
    rule = {"maxSkew": 1, "topologyKey": "example.com/rack", "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**rule, "labelSelector": {"matchLabels": {"app": "none"}}}]}


REFUSED: dict[str, dict[str, Any]] = {
    **{f"alike-{number}": {"nodeSelector": {"disk": "none"}} for number in range(4)},
    "elsewhere": named("nowhere"),
    "claimless": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "none"}}]},
    "spread": spread(),
}
"""Pods that PreFilter or Filter rejects, some of them equal; no event of this test requeues them."""


def work(harness: SchedulerHarness, who: str) -> None:
    """Pods with every outcome, one after another, so that both schedulers do the same."""
    for number in range(4):
        harness.api.create(harness.pod(f"fits-{number}", cpu="900m", schedulerName=who))
        harness.wait_bound([f"fits-{number}"])
    harness.api.create(harness.pod("small", cpu="1m", schedulerName=who))
    harness.wait_bound(["small"])
    gate = {"schedulingGates": [{"name": "example.com/wait"}]}
    harness.api.create(harness.pod("gated", schedulerName=who, **gate))
    harness.api.create(harness.pod("nowhere", schedulerName=who, nodeSelector={"disk": "none"}))
    for name, spec in REFUSED.items():
        harness.api.create(harness.pod(name, schedulerName=who, **spec))
        wait_until(lambda name=name: "PodScheduled" in status_text(harness, name), "it has a reason")  # type: ignore[misc]
    strong = f"{harness.label[:40]}-strong"
    harness.api.create(harness.pod("strong", cpu="1", schedulerName=who, priorityClassName=strong))


# authorization


@pytest.mark.parametrize(
    ("path", "anonymous"),
    [
        ("/healthz", 200),
        ("/livez", 200),
        ("/readyz", 200),
        ("/readyz?verbose", 200),
        ("/metrics", 403),
        ("/metrics/resources", 403),
        ("/metrics/slis", 403),
        ("/configz", 403),
        ("/statusz", 403),
        ("/flagz", 403),
        ("/healthz/leaderElection", 403),
        ("/nothing", 403),
    ],
)
def test_paths_need_authorization(both: Both, path: str, anonymous: int) -> None:
    for user, status in (("admin", 404 if path == "/nothing" else 200), ("limited", anonymous), ("", anonymous)):
        ours, theirs = (both.ask(who, path, user) for who in (both.ours, both.theirs))
        assert (ours.status, theirs.status) == (status, status), user
        if status == 403:
            assert ours.text == theirs.text
    wrong = 401
    assert both.ask(both.ours, path, "nonsense").status == both.ask(both.theirs, path, "nonsense").status == wrong


@pytest.mark.parametrize("path", ["/healthz?verbose", "/livez?verbose", "/readyz?verbose", "/readyz?exclude=shutdown"])
def test_health_in_words(both: Both, path: str) -> None:
    assert both.ask(both.ours, path).text == both.ask(both.theirs, path).text


# Metrics

ALL = (
    "schedule_attempts_total",
    "scheduling_attempt_duration_seconds",
    "scheduling_algorithm_duration_seconds",
    "event_handling_duration_seconds",
    "preemption_victims",
    "preemption_attempts_total",
    "pending_pods",
    "inflight_events",
    "goroutines",
    "batch_attempts_total",
    "get_node_hint_duration_seconds",
    "pod_scheduling_sli_duration_seconds",
    "pod_scheduling_attempts",
    "pod_scheduled_after_flush_total",
    "framework_extension_point_duration_seconds",
    "plugin_execution_duration_seconds",
    "queueing_hint_execution_duration_seconds",
    "queue_incoming_pods_total",
    "cache_size",
    "unschedulable_pods",
    "plugin_evaluation_total",
    "preemption_goroutines_duration_seconds",
    "preemption_goroutines_execution_total",
)
"""Metrics of every run: the other ones need a gate, a plugin with Permit, or devices."""

WITHOUT_COUNTERPART = {
    r"go_.*": "tells of Go's runtime",
    r"workqueue_.*": "tells of client-go's queues; what waits here is in scheduler_pending_pods",
    r"rest_client_(exec|rate|request_(retries|size)|response|transport|dns|tls).*": "tells of the inside of client-go",
    r"aggregator_.*|apiserver_.*|authentication_token_cache_.*": "tells of the library that API servers are made of",
    r"cardinality_enforcement_.*": "counts labels that an allow-list did not know",
    r"scheduler_(batch_cache_flushed_total|store_schedule_results_duration_seconds)": "nothing is stored to be flushed",
}


def test_metrics_are_those_of_kube_scheduler(both: Both) -> None:
    ours, theirs = both.scrapes()
    missing = {name for name in theirs if not any(re.fullmatch(each, name) for each in WITHOUT_COUNTERPART)}
    assert missing - ours.keys() == set()
    assert {f"scheduler_{name}" for name in ALL} - ours.keys() == set()
    for name in ours.keys() & theirs.keys():
        assert (ours[name].head, ours[name].labels) == (theirs[name].head, theirs[name].labels), name
        if theirs[name].bounds:
            assert ours[name].bounds == theirs[name].bounds, name
    strange = {name for name in ours.keys() - theirs.keys() if name.startswith("scheduler_")}
    assert strange == set()


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("schedule_attempts_total", {"result": "scheduled"}),
        ("scheduling_attempt_duration_seconds", {"result": "scheduled"}),
        ("pod_scheduling_attempts", {}),
        ("pod_scheduling_sli_duration_seconds", {"attempts": "1"}),
        ("preemption_victims", {}),
        ("preemption_attempts_total", {}),
        ("preemption_goroutines_execution_total", {"result": "success"}),
        ("pending_pods", {"queue": "gated"}),
        ("pending_pods", {"queue": "unschedulable"}),
        ("pending_pods", {"queue": "active"}),
        ("queue_incoming_pods_total", {"event": "UnschedulablePodAdd", "queue": "active"}),
        ("queue_incoming_pods_total", {"event": "UnschedulablePodAdd", "queue": "unschedulable"}),
        ("queue_incoming_pods_total", {"event": "ScheduleAttemptFailure"}),
        ("unschedulable_pods", {"plugin": "NodeAffinity"}),
        ("unschedulable_pods", {"plugin": "SchedulingGates"}),
        ("inflight_events", {}),
        ("goroutines", {"operation": "binding"}),
        ("get_node_hint_duration_seconds", {}),
        ("cache_size", {"type": "nodes"}),
        ("cache_size", {"type": "assumed_pods"}),
        *(
            ("framework_extension_point_duration_seconds", {"extension_point": point, "status": status})
            for point, status in (
                ("PreFilter", "Success"),
                ("PreFilter", "UnschedulableAndUnresolvable"),
                ("Filter", "Success"),
                ("PreScore", "Success"),
                ("Score", "Success"),
                ("Reserve", "Success"),
                ("Permit", "Success"),
                ("PreBindPreFlight", "Skip"),
                ("PreBind", "Success"),
                ("Bind", "Success"),
                ("PostBind", "Success"),
                ("PostFilter", "Success"),
                ("PostFilter", "Unschedulable"),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value.values()),
)
def test_both_count_the_same(both: Both, name: str, labels: dict[str, str]) -> None:
    ours, theirs = (found[f"scheduler_{name}"] for found in both.scrapes())
    assert ours.value(**labels) == theirs.value(**labels)


def test_other_metrics_are_plausible(both: Both) -> None:
    ours, theirs = both.scrapes()
    attempts = ours["scheduler_schedule_attempts_total"].value()
    assert attempts >= 8  # six bindings, one before its preemption, one unschedulable
    for name in ("scheduling_algorithm_duration_seconds", "scheduling_attempt_duration_seconds"):
        assert ours[f"scheduler_{name}"].value() == attempts
    points = ours["scheduler_framework_extension_point_duration_seconds"]
    assert points.value(extension_point="PreFilter") == attempts
    assert points.value(extension_point="Filter") == attempts - 1, "of one PreFilter has said enough"
    assert points.label_values("profile") == {OURS}
    handled, theirs_handled = (each["scheduler_event_handling_duration_seconds"] for each in (ours, theirs))
    assert handled.label_values("event") >= theirs_handled.label_values("event") - {"AssignedPodUpdateTolerations"}
    requests = ours["rest_client_requests_total"]
    assert requests.value(code="201", method="POST") >= 2 * 6, "a binding and an event each"
    assert requests.label_values("host") == {both.cluster.url.removeprefix("https://")}
    assert ours["process_cpu_seconds_total"].value() > 0
    assert ours["process_resident_memory_bytes"].value() > 10_000_000


def test_gates_are_reported_like_upstream(both: Both) -> None:
    ours, theirs = (found["kubernetes_feature_enabled"].values for found in both.scrapes())
    assert ours
    assert ours.items() <= theirs.items()


def test_pod_resource_metrics_are_served_by_the_leader(both: Both) -> None:
    ours, theirs = (both.ask(who, "/metrics/resources").text for who in (both.ours, both.theirs))
    assert sorted(ours.splitlines()) == sorted(theirs.splitlines())
    assert 'pod="strong"' in ours


# Configuration, flags, status


def test_the_configuration_in_force(both: Both) -> None:
    ours, theirs = (both.ask(who, "/configz").json["componentconfig"] for who in (both.ours, both.theirs))
    assert ours == json.loads(json.dumps(theirs).replace(f'"{THEIRS}"', f'"{OURS}"'))


CHANGED = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: KUBECONFIG}
leaderElection: {leaderElect: false}
extenders:
- {urlPrefix: "http://127.0.0.1:9/a", ignorable: true, managedResources: [{name: x.com/gpu, ignoredByScheduler: true}]}
- {urlPrefix: "http://127.0.0.1:9/b", managedResources: [{name: x.com/b, ignoredByScheduler: true}, {name: x.com/seen}]}
profiles:
- schedulerName: many
  plugins: {multiPoint: {disabled: [{name: PodTopologySpread}]}}
  pluginConfig:
  - {name: VolumeBinding, args: {bindTimeoutSeconds: 5}}
  - {name: NodeResourcesFit, args: {ignoredResources: [x.com/other]}}
  - {name: PodTopologySpread, args: {defaultingType: List}}
  - {name: NodeName}
  - {name: NodePorts, args: {b: 1}}
  - {name: NoSuch, args: {a: 1}}
- {schedulerName: none, percentageOfNodesToScore: 7}
"""
"""For configurations that are not written as they are used: extenders change them, and arguments of disabled plugins.
"""


def test_both_write_the_same_configuration(cluster: Cluster, tmp_path: Path) -> None:
    given = tmp_path / "given.yaml"
    given.write_text(CHANGED.replace("KUBECONFIG", str(cluster.kubeconfig())))
    written = {who: tmp_path / f"{who}.yaml" for who in (OURS, THEIRS)}
    ours = [sys.executable, "-m", "bayplan", "scheduler"]
    theirs = [str(program("kube-scheduler")), "--authentication-skip-lookup"]
    for who, command in ((OURS, ours), (THEIRS, theirs)):
        flags = [f"--config={given}", f"--write-config-to={written[who]}"]
        subprocess.run([*command, *flags], check=True, capture_output=True, timeout=DEADLINE_S)
    found = {who: yaml.safe_load(path.read_text()) for who, path in written.items()}
    assert found[OURS] == found[THEIRS]
    many = {each["name"]: each["args"] for each in found[OURS]["profiles"][0]["pluginConfig"]}
    assert list(many) == sorted(many)
    assert many["NodeResourcesFit"]["ignoredResources"] == ["x.com/gpu", "x.com/b"]


def test_both_show_what_extenders_have_changed(cluster: Cluster, tmp_path: Path) -> None:
    way = cluster.kubeconfig()
    given = tmp_path / "given.yaml"
    given.write_text(CHANGED.replace("KUBECONFIG", str(way)))
    ports = free_ports(2)
    ways = [f"--{flag}={way}" for flag in ("authentication-kubeconfig", "authorization-kubeconfig")]
    serving = [[f"--secure-port={port}", "--bind-address=127.0.0.1"] for port in ports]
    cluster.run("configz", f"--config={given}", *ways, *serving[1], program_name="kube-scheduler")
    try:
        with run_scheduler(cluster, tmp_path, *serving[0], config=CHANGED):
            found = Both(cluster, Endpoint(ports[0]), Endpoint(ports[1]))
            for endpoint in (found.ours, found.theirs):
                wait_until(lambda endpoint=endpoint: shows(found, endpoint), "it serves")  # type: ignore[misc]
            ours, theirs = (found.ask(who, "/configz").json["componentconfig"] for who in (found.ours, found.theirs))
    finally:
        cluster.end("configz")
    assert ours == theirs
    assert [each["name"] for each in ours["profiles"][0]["pluginConfig"]][:2] == ["VolumeBinding", "NodeResourcesFit"]
    assert ours["profiles"][0]["pluginConfig"][1]["args"]["ignoredResources"] == ["x.com/gpu", "x.com/b"]


def shows(both: Both, who: Endpoint) -> bool:
    try:
        return both.ask(who, "/configz").status == 200
    except OSError:
        return False


def test_flags(both: Both) -> None:
    accept = {"Accept": "application/json;g=config.k8s.io;v=v1beta1;as=Flagz"}
    ours, theirs = (both.ask(who, "/flagz", **accept).json for who in (both.ours, both.theirs))
    assert {key: value for key, value in ours.items() if key != "flags"} == {
        key: value for key, value in theirs.items() if key != "flags"
    }
    mine, others = ours["flags"], theirs["flags"]
    assert mine.keys() >= others.keys() - {"help", "version"}
    own_flags = {"config", "secure-port", "authentication-kubeconfig", "authorization-kubeconfig", "help", "version"}
    assert {key: mine[key] for key in others.keys() - own_flags} == {
        key: others[key] for key in others.keys() - own_flags
    }


def test_status(both: Both) -> None:
    accept = {"Accept": "application/json;g=config.k8s.io;v=v1beta1;as=Statusz"}
    ours, theirs = (both.ask(who, "/statusz", **accept).json for who in (both.ours, both.theirs))
    varying = ("startTime", "uptimeSeconds", "goVersion")
    assert ours.keys() == theirs.keys()
    for tree in (ours, theirs):
        assert all(tree.pop(key) for key in varying)
    assert ours == theirs
    shapes = [re.sub(r"[\d.:]+|: |=| ", "", both.ask(who, "/statusz").text) for who in (both.ours, both.theirs)]
    assert [line.split("version")[0] for line in shapes[0].splitlines()[:3]] == [
        line.split("version")[0] for line in shapes[1].splitlines()[:3]
    ]


def test_an_election_is_reported_like_upstream(both: Both) -> None:
    def event(who: str) -> dict[str, Any]:
        found = json.loads(both.cluster.kubectl("-n", "kube-system", "get", "events", "-o", "json"))["items"]
        (tree,) = [each for each in found if each["involvedObject"]["name"] == who]
        for key in ("firstTimestamp", "lastTimestamp", "metadata"):
            assert tree.pop(key)
        for key in ("uid", "resourceVersion"):
            assert tree["involvedObject"].pop(key)
        tree["message"] = tree["message"].partition(" ")[2]
        found_tree: dict[str, Any] = json.loads(json.dumps(tree).replace(who, "who"))
        return found_tree

    assert event(OURS) == event(THEIRS)


# start


def started(cluster: Cluster, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bayplan", "scheduler", "--kubeconfig", str(cluster.kubeconfig()), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The error message of the exiting process."""
    assert done.returncode == 1, done.stderr
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert "Traceback" not in done.stderr
    return line.removeprefix("error: ")


def test_a_port_that_is_taken(both: Both) -> None:
    done = started(both.cluster, f"--secure-port={both.ours.port}", "--bind-address=127.0.0.1")
    assert said(done) == (
        f"cannot listen on 127.0.0.1:{both.ours.port}: Address already in use; free the port or choose another with "
        "--secure-port"
    )


def test_a_certificate_that_cannot_be_used(cluster: Cluster, tmp_path: Path) -> None:
    pair = Authority().server("localhost")
    (tmp_path / "tls.crt").write_text(pair.certificate)
    missing = started(
        cluster, f"--tls-cert-file={tmp_path}/tls.crt", f"--tls-private-key-file={tmp_path}/tls.key", "--secure-port=1"
    )
    assert "tls.key" in said(missing)
    (tmp_path / "tls.key").write_text(Authority().server("localhost").key)
    other = started(
        cluster, f"--tls-cert-file={tmp_path}/tls.crt", f"--tls-private-key-file={tmp_path}/tls.key", "--secure-port=1"
    )
    assert "is unusable" in said(other)


def test_a_configuration_map_that_may_not_be_read(cluster: Cluster) -> None:
    (port,) = free_ports(1)
    done = started(
        cluster,
        f"--authentication-kubeconfig={cluster.kubeconfig('limited')}",
        "--authentication-tolerate-lookup-failure=false",
        f"--secure-port={port}",
    )
    assert "extension-apiserver-authentication" in said(done)
