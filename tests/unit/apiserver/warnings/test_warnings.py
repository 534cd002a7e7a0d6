"""Warnings. The texts are those of kube-apiserver 1.36 for the same objects."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from support.harness.apiserver_store import ApiserverStore, Tree, pod

HALF = 'fractional byte value "1500m" is invalid, must be an integer'
RECYCLED = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
NULL = "a null labelSelector results in matching no pod"
ZONE = "failure-domain.beta.kubernetes.io/zone"
ON_HOST = {"containerPort": 80, "hostPort": 80}
USE_ZONE = 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead'


def warnings_of(body: Tree) -> list[str]:
    world = ApiserverStore()
    write = world.write(body["kind"], body["apiVersion"].rpartition("/")[0])
    world.writer.create(write, deepcopy(body))
    return write.warnings


def pod_with(**spec: Any) -> Tree:
    made = pod("p")
    made["spec"] |= spec
    return made


def container(**more: Any) -> list[Tree]:
    return [{"name": "c", "image": "example.com/c:1", **more}]


def containers(*ports: list[Tree]) -> list[Tree]:
    """A container for each list of ports."""
    return [{"name": f"c{number}", "image": "example.com/c:1", "ports": each} for number, each in enumerate(ports)]


def volume(**source: Any) -> list[Tree]:
    return [{"name": "v", **source}]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, [], id="nothing to say"),
        pytest.param({"nodeSelector": {ZONE: "a"}}, [f"spec.nodeSelector[{ZONE}]: {USE_ZONE}"], id="an old label"),
        pytest.param(
            {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}]},
            [
                f"spec.topologySpreadConstraints[0].topologyKey: {ZONE} is {USE_ZONE}",
                f"spec.topologySpreadConstraints[0].labelSelector: {NULL}",
            ],
            id="spread without selector over old labels",
        ),
        pytest.param(
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]}}},
            [f"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: {NULL}"],
            id="affinity without selector",
        ),
        pytest.param(
            {"containers": container(env=[{"name": "A", "value": "a"}, {"name": "A", "value": "b"}])},
            ['spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply'],
            id="a variable twice",
        ),
        pytest.param(
            {"containers": container(env=[{"name": "A", "value": "a"}, {"name": "A", "value": "$(A)b"}])},
            [],
            id="a variable made of itself",
        ),
        pytest.param(
            {"containers": container(resources={"limits": {"memory": "1500m"}})},
            [f"spec.containers[0].resources.{part}[memory]: {HALF}" for part in ("limits", "requests")],
            id="half a byte",
        ),
        pytest.param(
            {"containers": container(ports=[{"containerPort": 80}, {"containerPort": 80, "hostPort": 80}])},
            ["spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]"],
            id="a port on the host and not",
        ),
        pytest.param(
            {"containers": containers([{"containerPort": 80}], [{"containerPort": 80}])},
            ["spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]"],
            id="a port of two containers",
        ),
        pytest.param(
            {"containers": containers([{"containerPort": 80}], [{"containerPort": 80, "protocol": "UDP"}])},
            [],
            id="a port of two protocols",
        ),
        pytest.param(
            {"containers": containers([ON_HOST], [ON_HOST | {"hostIP": "10.0.0.1"}])},
            ["spec.containers[1].ports[0]: dangerously ambiguous port definition with spec.containers[0].ports[0]"],
            id="a port on every address of the host and on one",
        ),
        pytest.param(
            {"containers": containers([ON_HOST | {"hostIP": "10.0.0.1"}], [ON_HOST | {"hostIP": "10.0.0.2"}])},
            [],
            id="a port on two addresses of the host",
        ),
        pytest.param(
            {"containers": containers([ON_HOST], [ON_HOST | {"hostPort": 81}])},
            [],
            id="a port on two ports of the host",
        ),
        pytest.param(
            {"containers": containers([{"containerPort": 80, "name": "web"}], [{"containerPort": 81, "name": "web"}])},
            [
                (
                    'spec.containers[1].ports[0]: duplicate port name "web" with spec.containers[0].ports[0], '
                    "services and probes that select ports by name will use spec.containers[0].ports[0]"
                )
            ],
            id="a name for two ports",
        ),
        pytest.param(
            {"containers": containers([{"containerPort": 80, "name": "a"}], [{"containerPort": 81, "name": "b"}])},
            [],
            id="two names for two ports",
        ),
        pytest.param(
            {
                "volumes": volume(
                    secret={"secretName": "s", "items": [{"key": "a", "path": "d"}, {"key": "b", "path": "d/e"}]}
                )
            },
            ['volume "v" (Secret "s"): overlapping paths: "d/e" with "d"'],
            id="a file where a folder is",
        ),
        pytest.param(
            {"volumes": volume(gitRepo={"repository": "r"})},
            ["spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"],
            id="a kind of volume that is gone",
        ),
    ],
)
def test_pod_warnings(spec: Tree, expected: list[str]) -> None:
    assert warnings_of(pod_with(**spec)) == expected


@pytest.mark.parametrize(
    ("mode", "completions", "parallelism", "has_warning"),
    [
        pytest.param("Indexed", 100_001, 10_001, True, id="above both"),
        pytest.param("Indexed", 100_000, 10_001, False, id="completions at the limit"),
        pytest.param("Indexed", 100_001, 10_000, False, id="parallelism at the limit"),
        pytest.param("NonIndexed", 100_001, 10_001, False, id="not indexed"),
    ],
)
@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_a_large_job_has_a_warning(kind: str, mode: str, completions: int, parallelism: int, has_warning: bool) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": container()}}
    spec = {"completionMode": mode, "completions": completions, "parallelism": parallelism, "template": template}
    body: Tree = {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "j", "namespace": "default"}}
    body["spec"] = spec if kind == "Job" else {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    found = [each for each in warnings_of(body) if "number of completions higher than 10^5" in each]
    assert [each.partition(":")[0] for each in found] == (
        [] if not has_warning else ["spec" if kind == "Job" else "spec.jobTemplate.spec"]
    )


def test_templates_and_names_of_workloads_have_warnings() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod_with(nodeSelector={ZONE: "a"})["spec"]}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "dotted.name"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    name, label = warnings_of(body)
    assert name.startswith("metadata.name: this is used in Pod names and hostnames, which can result in surprising")
    assert label == f"spec.template.spec.nodeSelector[{ZONE}]: {USE_ZONE}"


def test_a_pod_update_has_no_warnings() -> None:
    world = ApiserverStore()
    world.create(pod_with(nodeSelector={ZONE: "a"}))
    write = world.write("Pod")
    world.writer.update(write, "p", lambda live: {**live, "metadata": {**live["metadata"], "labels": {"a": "b"}}})
    assert write.warnings == []


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        pytest.param(
            "PersistentVolume",
            {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Recycle",
                "nfs": {"server": "192.0.2.1", "path": "/"},
            },
            [f"spec.persistentVolumeReclaimPolicy: {RECYCLED}"],
            id="a volume that is recycled",
        ),
        pytest.param(
            "Service",
            {"clusterIP": "None", "ports": [{"port": 80}], "sessionAffinity": "ClientIP"},
            ["spec.SessionAffinity is ignored for headless services"],
            id="affinity to a service without address",
        ),
    ],
)
def test_warnings_of_other_kinds(kind: str, spec: Tree, expected: list[str]) -> None:
    assert warnings_of({"apiVersion": "v1", "kind": kind, "metadata": {"name": "n"}, "spec": spec}) == expected
