"""Each operation of a benchmark has the effect on the in-memory cluster that upstream's harness has on a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import calibration
from benchmarks.perf import background, in_memory_cluster
from benchmarks.perf.configs import load_all
from benchmarks.perf.in_memory_cluster import AttemptFailed
from benchmarks.perf.operations import Run, Stuck, UnsupportedOperation
from benchmarks.scheduler_perf import cli
from click.testing import CliRunner

from bayplan.objects.core import Pod
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.storage import CsiNode
from support.builders.framework import replace_fields

FILES = {
    "node.yaml": """
kind: Node
metadata: {generateName: node-}
status: {capacity: {cpu: "4", memory: 32Gi, pods: "110"}}
""",
    "named-node.yaml": """
apiVersion: v1
kind: Node
metadata: {name: "fixed-{{.Index}}"}
spec: {unschedulable: true}
status: {capacity: {cpu: "1", pods: "9"}}
""",
    "open-node.yaml": """
apiVersion: v1
kind: Node
metadata: {name: "fixed-{{.Index}}"}
status: {capacity: {cpu: "1", pods: "9"}}
""",
    "pod.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: pod-, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, resources: {requests: {cpu: 900m}}}]
""",
    "high.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: high-}
spec:
  priority: 10
  containers: [{name: c, resources: {requests: {cpu: "3"}}}]
""",
    "gated.yaml": """
apiVersion: v1
kind: Pod
metadata: {name: "gated-{{.Index}}", labels: {type: gated}}
spec:
  schedulingGates: [{name: hold}]
  containers: [{name: c}]
""",
    "ungated.yaml": """
apiVersion: v1
kind: Pod
metadata: {name: "gated-{{.Index}}", labels: {type: gated}}
spec:
  containers: [{name: c}]
""",
    "finalized.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: final-, finalizers: [example.com/wait]}
spec:
  containers: [{name: c}]
""",
    "namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {labels: {team: devops}}",
    "service.yaml": "apiVersion: v1\nkind: Service\nmetadata: {generateName: svc-}\nspec: {selector: {app: web}}",
    "pv.yaml": """
kind: PersistentVolume
spec: {accessModes: [ReadOnlyMany], capacity: {storage: 1Gi}, csi: {driver: ebs.csi.aws.com}}
""",
    "aws.yaml": """
kind: PersistentVolume
spec: {accessModes: [ReadOnlyMany], capacity: {storage: 1Gi}, awsElasticBlockStore: {volumeID: x}}
""",
    "pvc.yaml": """
kind: PersistentVolumeClaim
metadata: {annotations: {pv.kubernetes.io/bind-completed: "true"}}
spec: {accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Gi}}}
""",
    "class.yaml": """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: test-class}
spec: {selectors: [{cel: {expression: device.driver == "driver.example.com"}}], extendedResourceName: example.com/gpu}
""",
    "claim-template.yaml": """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec:
  spec:
    devices:
      requests: [{name: req, exactly: {deviceClassName: test-class, tolerations: [{key: t, operator: Exists}]}}]
""",
    "claim.yaml": """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: "claim-{{.Index}}"}
spec: {devices: {requests: [{name: req, exactly: {deviceClassName: test-class}}]}}
""",
    "rule.yaml": """
apiVersion: resource.k8s.io/v1alpha3
kind: DeviceTaintRule
metadata: {name: all}
spec: {taint: {key: t, value: v, effect: NoSchedule}}
""",
    "claimed.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: claimed-}
spec:
  containers: [{name: c, resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]
""",
    "sharing.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: sharing-}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimName: claim-0}]
""",
    "extended.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: extended-}
spec:
  containers: [{name: c, resources: {requests: {example.com/gpu: 1}, limits: {example.com/gpu: 1}}}]
""",
    "config.yaml": """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: default-scheduler, plugins: {multiPoint: {disabled: [{name: ImageLocality}]}}}]
""",
    "custom.yaml": "apiVersion: example.com/v1\nkind: Something\nmetadata: {name: x}",
}

NODES = {"opcode": "createNodes", "count": 2, "nodeTemplatePath": "node.yaml"}
Operations = Sequence[dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder: Path, operations: Operations, **case: Any) -> Run:
    """A benchmark of these operations, run to its end."""
    found = ready(folder, operations, **case)
    found.run()
    return found


def ready(folder: Path, operations: Operations, *, params: dict[str, Any] | None = None, **case: Any) -> Run:
    workload = {"name": "w", "params": params or {}}
    config = [{"name": "Case", "workloadTemplate": list(operations), "workloads": [workload], **case}]
    (folder / "performance-config.yaml").write_text(json.dumps(config), encoding="utf-8")
    (loaded,) = load_all(folder)
    return Run(loaded, loaded.workloads[0], steady_s=0.02)


def pods(count: int, template: str = "pod.yaml", **more: Any) -> dict[str, Any]:
    return {"opcode": "createPods", "count": count, "podTemplatePath": template, **more}


def placed(found: Run, namespace: str) -> list[Pod]:
    return [pod for pod in found.world.pods.values() if pod.namespace == namespace and pod.spec.node_name]


# creating


def test_pods_are_placed_and_measured(folder: Path) -> None:
    found = run(folder, [NODES, pods(2), pods(3, collectMetrics=True)])
    (measured,) = found.measurements
    assert (measured.name, measured.scheduled, measured.failed) == ("namespace-2", 3, 0)
    assert len(placed(found, "namespace-1")) == 2
    assert measured.as_json()["pods_per_s"] > 0
    assert measured.as_json()["p99_us"] >= measured.as_json()["p50_us"] > 0
    assert found.nodes == 2


def test_without_a_template_nodes_and_pods_are_upstreams_own(folder: Path) -> None:
    found = run(folder, [{"opcode": "createNodes", "count": 1}, {"opcode": "createPods", "count": 40}])
    (node,) = found.world.cache.snapshot().nodes.nodes[:1]
    assert node.status.allocatable == {"pods": "110", "cpu": "4", "memory": "32Gi"}
    assert node.labels["kubernetes.io/hostname"] == node.name
    assert len(placed(found, "namespace-1")) == 40


def test_the_default_template_is_that_of_the_case(folder: Path) -> None:
    operations = [NODES, {"opcode": "createPods", "count": 1, "namespace": "n"}]
    (pod,) = placed(run(folder, operations, defaultPodTemplatePath="pod.yaml"), "n")
    assert pod.labels == {"app": "web"}


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        pytest.param(
            {"labelNodePrepareStrategy": {"labelKey": "zone", "labelValues": ["a", "b"]}}, ["a", "b", "a"], id="in turn"
        ),
        pytest.param({"uniqueNodeLabelStrategy": {"labelKey": "zone"}}, None, id="unique"),
    ],
)
def test_nodes_get_labels(folder: Path, strategy: dict[str, Any], values: list[str] | None) -> None:
    found = run(folder, [{**NODES, "count": 3, **strategy}])
    labels = [node.labels["zone"] for node in found.world.cache.snapshot().nodes.nodes[:3]]
    assert labels == values if values is not None else len(set(labels)) == 3


def test_nodes_say_what_they_can_attach(folder: Path) -> None:
    strategy = {
        "nodeAllocatable": {"attachable": "9"},
        "csiNodeAllocatable": {"d": {"count": 9}},
        "migratedPlugins": ["p"],
    }
    found = run(folder, [{**NODES, "nodeAllocatableStrategy": strategy}])
    (csi, _) = found.world.cache.catalog.table(CsiNode).values()
    assert csi.spec.drivers[0].allocatable is not None
    assert csi.spec.drivers[0].allocatable.count == 9
    assert "p" in csi.metadata.annotations.values()
    node = found.world.cache.node(csi.name)
    assert node is not None
    assert (node.status.allocatable["attachable"], node.status.allocatable["cpu"]) == ("9", "4")


def test_declared_features_are_distinguished(folder: Path) -> None:
    found = run(folder, [NODES], params={"numNodeDeclaredFeatures": 3})
    node = found.world.cache.snapshot().nodes.nodes[0]
    assert node.status.declared_features == ("Feature1", "Feature2", "Feature3")
    assert "no pod needs them" in found.notes[0]
    assert (
        run(folder, [NODES], params={"numNodeDeclaredFeatures": 3}, featureGates={"NodeDeclaredFeatures": False}).notes
        == []
    )


def test_pod_sets_fill_namespaces_that_have_labels(folder: Path) -> None:
    names = {"opcode": "createNamespaces", "prefix": "ns", "count": 2, "namespaceTemplatePath": "namespace.yaml"}
    sets = {"opcode": "createPodSets", "count": 2, "namespacePrefix": "ns", "createPodsOp": pods(2)}
    found = run(folder, [NODES, names, sets])
    assert [len(placed(found, name)) for name in ("ns-0", "ns-1")] == [2, 2]
    assert found.world.cache.catalog.namespaces["ns-1"].metadata.labels["team"] == "devops"


@pytest.mark.parametrize("volume", ["pv.yaml", "aws.yaml"])
def test_pods_get_volumes_that_are_bound_to_their_claims(folder: Path, volume: str) -> None:
    paths = {"persistentVolumeTemplatePath": volume, "persistentVolumeClaimTemplatePath": "pvc.yaml"}
    found = run(folder, [NODES, pods(2, namespace="n", **paths)])
    catalog = found.world.cache.catalog
    assert sorted(catalog.persistent_volume_claims) == ["n/pvc-0", "n/pvc-1"]
    claimed = catalog.persistent_volumes["n-vol-1"].spec.claim_ref
    assert claimed is not None
    assert claimed.name == "pvc-1"
    assert len(placed(found, "n")) == 2


def test_any_object_can_be_created(folder: Path) -> None:
    found = run(folder, [{"opcode": "createAny", "templatePath": "service.yaml", "namespace": "n", "count": 2}])
    assert all(key.startswith("n/svc-") for key in found.world.cache.catalog.services)
    assert len(found.world.cache.catalog.services) == 2


def test_the_case_may_bring_a_configuration(folder: Path) -> None:
    found = run(folder, [NODES], schedulerConfigPath="config.yaml")
    assert "ImageLocality" not in found.world.engine.framework("default-scheduler").profile.instances


# devices

DRIVER = {
    "opcode": "createResourceDriver",
    "driverName": "driver.example.com",
    "nodes": "node-*",
    "maxClaimsPerNode": 2,
}
CLASS = {"opcode": "createAny", "templatePath": "class.yaml"}
TEMPLATE = {"opcode": "createAny", "templatePath": "claim-template.yaml", "namespace": "n"}


def devices_in_use(found: Run) -> int:
    claims = found.world.cache.devices.claims.values()
    return sum(len(each.status.allocation.devices.results) for each in claims if each.status.allocation is not None)


def test_claims_are_made_from_templates_and_get_devices(folder: Path) -> None:
    rule = {"opcode": "createAny", "templatePath": "rule.yaml"}
    found = run(folder, [NODES, rule, DRIVER, CLASS, TEMPLATE, pods(4, "claimed.yaml", namespace="n")])
    assert len(placed(found, "n")) == 4
    assert devices_in_use(found) == 4
    (tainted, _) = found.world.cache.catalog.resource_slices.values()
    assert [each.key for each in tainted.spec.devices[0].taints] == ["t"]


def test_more_claims_than_devices_are_stuck(folder: Path) -> None:
    with pytest.raises(Stuck, match="cannot allocate all claims"):
        run(folder, [NODES, DRIVER, CLASS, TEMPLATE, pods(5, "claimed.yaml", namespace="n")])


def test_claims_can_be_allocated_without_pods(folder: Path) -> None:
    claims = {"opcode": "createAny", "templatePath": "claim.yaml", "namespace": "n", "count": 4}
    found = run(folder, [NODES, DRIVER, CLASS, claims, {"opcode": "allocResourceClaims", "namespace": "n"}])
    assert devices_in_use(found) == 4
    with pytest.raises(Stuck, match="no node has devices left"):
        run(folder, [NODES, DRIVER, CLASS, {**claims, "count": 5}, {"opcode": "allocResourceClaims", "namespace": "n"}])


def test_pods_share_a_claim_and_the_last_one_gives_it_back(folder: Path) -> None:
    claim = {"opcode": "createAny", "templatePath": "claim.yaml", "namespace": "n"}
    found = run(folder, [NODES, DRIVER, CLASS, claim, pods(3, "sharing.yaml", namespace="n")])
    users = placed(found, "n")
    (known,) = found.world.cache.catalog.table(ResourceClaim).values()
    assert len(known.status.reserved_for) == 3
    for pod in users:
        assert devices_in_use(found) == 1
        found.world.delete(pod)
    assert devices_in_use(found) == 0


def test_extended_resources_are_served_by_devices(folder: Path) -> None:
    found = run(folder, [NODES, DRIVER, CLASS, pods(4, "extended.yaml", namespace="n")])
    assert devices_in_use(found) == 4
    for pod in placed(found, "n"):
        found.world.remove_pod(pod)
    assert not found.world.cache.devices.claims


def test_a_steady_state_creates_and_deletes_again_and_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch, 0.0001)
    steady = pods(3, "claimed.yaml", namespace="n", steadyState=True, duration="1s", collectMetrics=True)
    found = run(folder, [NODES, DRIVER, CLASS, TEMPLATE, steady])
    (measured,) = found.measurements
    assert measured.scheduled >= 3
    assert not found.world.pods
    assert not found.world.cache.devices.claims


# changing and waiting


def test_victims_leave_and_the_preemptor_takes_their_place(folder: Path) -> None:
    found = run(folder, [NODES, pods(8, namespace="low"), pods(2, "high.yaml", namespace="high", collectMetrics=True)])
    (measured,) = found.measurements
    assert len(placed(found, "high")) == 2
    assert len(placed(found, "low")) == 2
    assert (measured.scheduled, measured.failed) == (2, 2)


def test_gated_pods_wait_until_their_gates_are_gone(folder: Path) -> None:
    gated = pods(3, "gated.yaml", namespace="n", skipWaitToCompletion=True)
    attempted = {"opcode": "barrier", "stageRequirement": "Attempted"}
    waiting = run(folder, [NODES, gated, attempted])
    assert not placed(waiting, "n")
    with pytest.raises(Stuck, match="gated"):
        run(folder, [NODES, gated, {"opcode": "barrier"}])
    update = {
        "opcode": "updateAny",
        "templatePath": "ungated.yaml",
        "namespace": "n",
        "count": 3,
        "updatePerSecond": 10,
    }
    found = run(folder, [NODES, gated, attempted, update, {"opcode": "barrier", "labelSelector": {"type": "gated"}}])
    assert len(placed(found, "n")) == 3


def test_a_changed_node_wakes_pods(folder: Path) -> None:
    closed = {"opcode": "createNodes", "count": 1, "nodeTemplatePath": "named-node.yaml"}
    opened = {"opcode": "updateAny", "templatePath": "open-node.yaml", "count": 1}
    waiting = pods(1, namespace="n", skipWaitToCompletion=True)
    start = {"opcode": "startCollectingMetrics", "name": "all", "namespaces": ["n"], "labelSelector": {"app": "web"}}
    found = run(folder, [start, closed, waiting, {"opcode": "barrier", "stageRequirement": "Attempted"}, opened,
                         {"opcode": "barrier", "namespaces": ["n"]}, {"opcode": "stopCollectingMetrics"}])  # fmt: skip
    (measured,) = found.measurements
    assert (measured.name, measured.scheduled, measured.failed) == ("all", 1, 1)


def test_pods_are_deleted_at_once_or_one_after_the_other(folder: Path) -> None:
    delete = {"opcode": "deletePods", "namespace": "n"}
    assert not placed(run(folder, [NODES, pods(3, namespace="n"), delete]), "n")
    assert not placed(run(folder, [NODES, pods(3, namespace="n"), {**delete, "deletePodsPerSecond": 100}]), "n")
    other = {**delete, "labelSelector": {"app": "other"}}
    assert len(placed(run(folder, [NODES, pods(3, namespace="n"), other]), "n")) == 3


def test_slow_deletions_make_room_while_others_wait(folder: Path) -> None:
    delete = {"opcode": "deletePods", "namespace": "n", "deletePodsPerSecond": 2, "skipWaitToCompletion": True}
    found = run(folder, [NODES, pods(8, namespace="n"), delete, pods(8, namespace="m")])
    assert len(placed(found, "m")) == 8


def test_pods_with_finalizers_linger(folder: Path) -> None:
    delete = {"opcode": "deletePods", "namespace": "n"}
    found = run(folder, [NODES, pods(2, "finalized.yaml", namespace="n"), delete])
    assert all(pod.terminating for pod in placed(found, "n"))
    found = run(
        folder,
        [NODES, pods(2, "finalized.yaml", namespace="n", skipWaitToCompletion=True), delete, {"opcode": "sleep"}],
    )
    assert len(found.world.pods) == 2
    assert not placed(found, "n")


def test_churn_creates_without_an_end_or_again_and_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = ticking(monkeypatch, 0.3)
    churn = {"opcode": "churn", "mode": "create", "number": 2, "templatePaths": ["finalized.yaml"], "namespace": "c"}
    found = run(folder, [NODES, churn, pods(4, namespace="n")])
    assert next(now) > 0
    assert 1 <= sum(pod.namespace == "c" for pod in found.world.pods.values()) <= 2
    again = {**churn, "mode": "recreate", "number": 1, "templatePaths": ["node.yaml", "service.yaml", "pod.yaml"]}
    (folder / "node.yaml").write_text(f"apiVersion: v1\n{FILES['node.yaml']}", encoding="utf-8")
    found = run(folder, [NODES, again, pods(6, namespace="n")])
    assert found.nodes in (2, 3)
    assert len(found.world.cache.catalog.services) == found.nodes - 2


def ticking(monkeypatch: pytest.MonkeyPatch, step_s: float) -> Iterator[float]:
    """A clock that advances a little at each read."""
    moments = iter(step_s * number for number in range(1, 1_000_000))
    for module in (background, in_memory_cluster):
        monkeypatch.setattr(module, "perf_counter", lambda: next(moments))
    return moments


def test_an_empty_measurement_is_noted(folder: Path) -> None:
    start = {"opcode": "startCollectingMetrics", "namespaces": ["default"]}
    found = run(folder, [NODES, start, DRIVER, {"opcode": "stopCollectingMetrics"}])
    assert found.measurements[0].as_json()["p50_us"] is None
    assert "no pod is placed" in found.notes[0]


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        pytest.param([{"opcode": "restartApiServer"}], "restartApiServer is not possible", id="unknown operation"),
        pytest.param([{"opcode": "createAny", "templatePath": "custom.yaml"}], "Something", id="unknown kind"),
        pytest.param([{"opcode": "stopCollectingMetrics"}], "was not started", id="stop without start"),
        pytest.param(
            [{"opcode": "startCollectingMetrics", "namespaces": ["n"]}] * 2, "before the last", id="two starts"
        ),
    ],
)
def test_unsupported_operations_are_named(folder: Path, operations: Operations, words: str) -> None:
    with pytest.raises(UnsupportedOperation, match=words):
        run(folder, operations)


def test_unschedulable_pods_end_a_wait(folder: Path) -> None:
    with pytest.raises(Stuck, match="Insufficient cpu"):
        run(folder, [NODES, pods(9)])
    churn = {"opcode": "churn", "mode": "create", "templatePaths": ["service.yaml"], "intervalMilliseconds": 5000}
    with pytest.raises(Stuck, match="Insufficient cpu"):
        run(folder, [NODES, churn, pods(9)])


def test_without_nodes_an_attempt_is_an_error(folder: Path) -> None:
    with pytest.raises(AttemptFailed, match="no nodes available"):
        run(folder, [pods(1)])


def test_pods_change_without_losing_their_node(folder: Path) -> None:
    found = run(folder, [NODES, pods(1, "ungated.yaml", namespace="n")])
    (pod,) = placed(found, "n")
    found.world.update(replace_fields(pod, metadata={"labels": {"new": "label"}}, spec={"node_name": ""}))
    (now,) = placed(found, "n")
    assert (now.labels, now.spec.node_name) == ({"new": "label"}, pod.spec.node_name)
    known = found.world.cache.pod(pod.uid)
    assert known is not None
    assert known.labels == {"new": "label"}


# the command


def command(folder: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*arguments, "--source", str(folder)], catch_exceptions=False)
    return result.exit_code, result.stdout


@pytest.fixture
def benchmark_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(calibration, "run_s", lambda: calibration.REFERENCE_S)
    ready(folder, [NODES, pods(2, collectMetrics=True)])
    config = json.loads((folder / "performance-config.yaml").read_text(encoding="utf-8"))
    config[0]["workloads"][0] |= {"labels": ["performance"], "threshold": 270}
    config.append({"name": "Odd", "workloadTemplate": [{"opcode": "fly"}], "workloads": [{"name": "w"}]})
    (folder / "performance-config.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_the_command_lists(benchmark_folder: Path) -> None:
    code, output = command(benchmark_folder, "list", "-o", "json")
    assert code == 0
    assert [(each["test"], each["labels"]) for each in json.loads(output)] == [("Case", ["performance"]), ("Odd", [])]
    assert "270" in command(benchmark_folder, "list", "--label", "performance")[1]


def test_the_command_runs_and_writes(benchmark_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "out" / "perf.json"
    code, output = command(benchmark_folder, "run", "Case", "-o", "json", "--file", str(file))
    assert code == 0
    assert json.loads(output) == json.loads(file.read_text(encoding="utf-8"))
    (found,) = json.loads(output)["workloads"]
    assert (found["test"], found["ran"], found["reason"], found["nodes"]) == ("Case", True, None, 2)
    assert found["upstream_threshold_pods_per_s"] == 270
    assert found["measurements"][0]["pods"] == 2


def test_a_failed_benchmark_is_reported_and_the_next_one_runs(benchmark_folder: Path, tmp_path: Path) -> None:
    code, output = command(benchmark_folder, "run", "all", "--label", "", "--file", str(tmp_path / "p.json"))
    assert code == 1
    assert "Odd/w: not run: operation fly is not possible in one process" in output
    assert "Case" in output
