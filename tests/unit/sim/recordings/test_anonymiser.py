"""Anonymiser: decisions stay the same, and no name of the cluster is left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
import yaml

from bayplan.app import read_objects
from bayplan.objects.core import Pod
from bayplan.objects.defaults import with_all_defaults
from bayplan.objects.meta import KubeObject
from bayplan.plugins.gpu.gpu_requests import GPU_COUNT, GPU_INDEX, GPU_MODEL, GpuMilliRequest, request_annotations
from bayplan.sim.offline.offline_cluster import EngineSetup, OfflineCluster, pending_pods
from bayplan.sim.recordings.anonymiser import Anonymiser
from bayplan.sim.recordings.recording_file import RecordedDecision, object_manifest
from bayplan.sim.virtual_time.policies import policy_manifest
from bayplan.testing import make_node, make_pod
from bayplan.testing.batch_builders import make_gang, make_hyper_node, make_queue
from docs.fences import ROOT

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def decide(
    objects: Sequence[KubeObject], preferred: dict[str, str] | None = None, setup: EngineSetup | None = None
) -> list[RecordedDecision]:
    with OfflineCluster(objects, setup or EngineSetup(), now=NOON) as offline:
        offline.preferred_nodes.update(preferred or {})
        return offline.run_until_stable(pending_pods(objects, offline)).decisions


@pytest.mark.parametrize("example", ["cluster", "batch"])
def test_decisions_of_the_examples_stay_the_same(example: str) -> None:
    objects = read_objects([ROOT / "examples" / example])
    names = Anonymiser(objects)
    before = [names.rename_decision(decision) for decision in decide(objects)]
    nodes = {decision.pod: decision.node for decision in before if decision.node}
    after = decide([names.rename_object(item) for item in objects], nodes)
    assert [(each.pod, each.node, each.evicted) for each in after] == [
        (each.pod, each.node, each.evicted) for each in before
    ]


def test_allocations_of_shared_gpus_stay_the_same() -> None:
    """Requests for devices, assigned devices and models are kept."""
    gpus = {GPU_COUNT: 2, "cpu": "64", "memory": "64Gi", "pods": 110}
    nodes = [
        make_node(f"falcon-{model}", labels={GPU_MODEL: model, "team": "falcon"}, allocatable=gpus)
        for model in ("T4", "P100")
    ]
    annotations = request_annotations(GpuMilliRequest(700, 1, "V100|P100"))
    held = make_pod("falcon-0", node="falcon-P100", annotations=annotations | {GPU_INDEX: "0"}, cpu=1)
    objects = [*nodes, held, *(make_pod(f"falcon-{number}", annotations=annotations, cpu=1) for number in (1, 2))]
    names = Anonymiser(objects)
    setup = EngineSetup(configuration=yaml.safe_dump(policy_manifest("bestfit", [])))
    before, after = (decide(each, setup=setup) for each in (objects, [names.rename_object(item) for item in objects]))
    assert [each.node for each in before] == ["falcon-P100", ""]
    assert [(each.pod, each.node) for each in after] == [
        (each.pod, each.node) for each in map(names.rename_decision, before)
    ]
    assert "falcon" not in json.dumps([object_manifest(names.rename_object(item)) for item in objects])


SECRETS = ("acme", "payroll", "falcon", "registry.acme.example")


def objects_with_secrets() -> list[KubeObject]:
    taint = "acme.example/falcon=payroll:NoSchedule"
    node = make_node(
        "acme-node-1",
        zone="acme-zone",
        labels={"acme.example/team": "falcon", "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m7"},
        taints=[taint],
        images={"registry.acme.example/payroll:v1": 5},
    )
    pod = make_pod(
        "payroll-7",
        namespace="falcon",
        labels={"app": "payroll"},
        annotations={"acme.example/owner": "payroll", "kubectl.kubernetes.io/last-applied-configuration": "acme"},
        image="registry.acme.example/payroll:v1",
        node_selector={"acme.example/team": "falcon", "kubernetes.io/os": "linux"},
    )
    gang = make_gang("falcon-train", 2, namespace="falcon", queue="payroll-queue", cpu=1)
    hyper_node = make_hyper_node("acme-rack", pattern="^acme-node-[0-9]$")
    return list(with_all_defaults([node, pod, make_queue("payroll-queue"), hyper_node, *gang.objects]))


def test_no_name_label_or_image_is_left() -> None:
    objects = objects_with_secrets()
    names = Anonymiser(objects)
    text = json.dumps([object_manifest(names.rename_object(item)) for item in objects])
    assert [secret for secret in SECRETS if secret in text] == []
    assert '"linux"' in text
    assert '"m7"' in text


def test_references_between_objects_are_kept() -> None:
    objects = objects_with_secrets()
    names = Anonymiser(objects)
    trees = [object_manifest(names.rename_object(item)) for item in objects]
    node, pod, queue, hyper_node, group, member, *_ = trees
    (key,) = (key for key in node["metadata"]["labels"] if key.startswith("key-"))
    assert pod["spec"]["nodeSelector"] == {key: node["metadata"]["labels"][key], "kubernetes.io/os": "linux"}
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == node["metadata"]["name"]
    assert pod["spec"]["containers"][0]["image"] == node["status"]["images"][0]["names"][0]
    assert group["spec"]["queue"] == queue["metadata"]["name"]
    assert member["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
    assert member["metadata"]["namespace"] == pod["metadata"]["namespace"] == group["metadata"]["namespace"]
    assert hyper_node["spec"]["members"][0]["selector"]["regexMatch"][
        "pattern"
    ] == f"^({node['metadata']['name']})$".replace("-", "\\-")


def test_order_of_names_and_numbers_of_pods_are_kept() -> None:
    names = ["web-10", "web-2", "api-3", "web-9"]
    pods = list(with_all_defaults(make_pod(name) for name in names))
    anonymiser = Anonymiser(pods)
    found = {pod.name: item.name for pod in pods if isinstance(item := anonymiser.rename_object(pod), Pod)}
    assert sorted(names, key=found.__getitem__) == sorted(names)
    assert [found[name].rpartition("-")[2] for name in names] == ["10", "2", "3", "9"]
