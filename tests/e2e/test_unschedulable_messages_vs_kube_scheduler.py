"""The same unschedulable pods for kube-scheduler and Bayplan, at once, on one API server: equal messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cluster.api import Tree
from cluster.run import Cluster
from support.e2e.scheduler_harness import SchedulerHarness, short_backoff_config
from support.e2e.scheduler_process import condition, wait_until

THEIRS, OURS = "theirs", "ours"

Spec = dict[str, Any]


@contextlib.contextmanager
def kube_scheduler(cluster: Cluster, harness: SchedulerHarness) -> Iterator[None]:
    config = harness.folder / "theirs.yaml"
    way = cluster.kubeconfig()
    config.write_text(short_backoff_config(f"profiles: [{{schedulerName: {THEIRS}}}]").replace("KUBECONFIG", str(way)))
    ways = [f"--{flag}={way}" for flag in ("authentication-kubeconfig", "authorization-kubeconfig")]
    cluster.run("kube-scheduler", f"--config={config}", *ways, "--secure-port=0")
    try:
        yield
    finally:
        cluster.end("kube-scheduler")


def unschedulable(weak_priority: str, patient_priority: str) -> dict[str, Spec]:
    """Pods that are unschedulable, each for a different reason."""
    hostname = "kubernetes.io/hostname"
    app = {"labelSelector": {"matchLabels": {"app": "placed"}}, "topologyKey": hostname}
    no_pod = {**app, "labelSelector": {"matchLabels": {"app": "x"}}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    spread = {"maxSkew": 1, "topologyKey": "missing-key", "whenUnsatisfiable": "DoNotSchedule"}
    claims = [{"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}]
    expression = {"key": "disk", "operator": "In", "values": ["none"]}
    affine = {required: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return {
        "cpu": {"cpu": "64"},
        "cpu-now": {"cpu": "3"},
        "selector": {"nodeSelector": {"disk": "none"}},
        "affinity": {"affinity": {"nodeAffinity": affine}},
        "pod-affinity": {"affinity": {"podAffinity": {required: [no_pod]}}},
        "anti-affinity": {"affinity": {"podAntiAffinity": {required: [app]}}},
        "spread": {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {"app": "x"}}}]},
        "claim": {"volumes": claims},
        "port": {"containers": [ported()]},
        "never": {"cpu": "3", "priorityClassName": patient_priority},
        "weak": {"cpu": "3", "priorityClassName": weak_priority},
        "device": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "stuck"}]},
    }


def stuck_claim() -> Tree:
    exactly = {"deviceClassName": "no-such-class", "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "stuck"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def ported() -> Tree:
    return {"name": "main", "image": "none", "ports": [{"containerPort": 80, "hostPort": 8080}]}


def test_both_have_equal_messages_for_unschedulable_pods(cluster: Cluster, harness: SchedulerHarness) -> None:
    nodes = harness.add_nodes(3)
    harness.api.patch("Node", nodes[2], {"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}})
    weak, patient = harness.priority("weak", -5), harness.priority("patient", 500, preemptionPolicy="Never")
    for number, name in enumerate(nodes):
        placed = harness.pod(f"placed-{number}", cpu="2", labels={"app": "placed"}, containers=[ported()])
        placed["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
        placed["spec"]["nodeName"] = name
        harness.api.create(placed)
    specs = unschedulable(weak, patient)
    harness.api.create(stuck_claim())
    with (
        kube_scheduler(cluster, harness),
        harness.run_scheduler(config=short_backoff_config(f"profiles: [{{schedulerName: {OURS}}}]")),
    ):
        for name, spec in specs.items():
            harness.api.create(*(harness.pod(f"{name}-{who}", schedulerName=who, **spec) for who in (THEIRS, OURS)))
        wanted = {f"{name}-{who}" for name in specs for who in (THEIRS, OURS)}
        wait_until(
            lambda: all(condition(each) for name, each in harness.api.pods().items() if name in wanted),
            "every pod has a reason",
            why=lambda: str([name for name, each in harness.api.pods().items() if not condition(each)]),
        )
        wait_until(lambda: wanted <= events_by_pod(harness).keys(), "every pod has an event")
    found, events = harness.api.pods(), events_by_pod(harness)
    for name in specs:
        ours, theirs = condition(found[f"{name}-{OURS}"]), condition(found[f"{name}-{THEIRS}"])
        for each in (ours, theirs):
            del each["lastTransitionTime"]
        assert ours == theirs, name
        our_event, their_event = events[f"{name}-{OURS}"], events[f"{name}-{THEIRS}"]
        assert our_event["note"] == their_event["note"].replace(f"-{THEIRS}", f"-{OURS}"), name
        for field in ("type", "reason", "action"):
            assert our_event[field] == their_event[field], name
        assert (our_event["reportingController"], their_event["reportingController"]) == (OURS, THEIRS)


def events_by_pod(harness: SchedulerHarness) -> dict[str, Tree]:
    failed = [each for each in harness.api.list("Event") if each["reason"] == "FailedScheduling"]
    return {each["regarding"]["name"]: each for each in failed}
