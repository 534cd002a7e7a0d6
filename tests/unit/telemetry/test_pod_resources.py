"""Resource requests and limits of pods, one line a pod and resource."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.objects.core import Pod
from bayplan.telemetry.pod_resources import render_pod_resources, unit_of


def pod(name: str, container_resources: dict[str, Any], **spec: Any) -> Pod:
    phase = spec.pop("phase", "Pending")
    tree = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "c", "resources": container_resources}],
            "schedulerName": "default-scheduler",
            **spec,
        },
        "status": {"phase": phase},
    }
    return msgspec.convert(tree, Pod)


def values(*pods: Pod) -> dict[str, str]:
    lines = b"".join(render_pod_resources(pods)).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")


def test_requests_and_limits_with_their_units() -> None:
    bound = pod(
        "a",
        {
            "requests": {"cpu": "100m", "memory": "128Mi", "example.com/gpu": "2", "hugepages-2Mi": "4Mi"},
            "limits": {"cpu": "2", "ephemeral-storage": "0"},
        },
        nodeName="n1",
        priority=7,
    )
    labels = 'namespace="default",node="n1",pod="a",priority="7",resource="{}",scheduler="default-scheduler",unit="{}"'
    assert values(bound) == {
        f"kube_pod_resource_limit{{{labels.format('cpu', 'cores')}}}": "2",
        f"kube_pod_resource_request{{{labels.format('cpu', 'cores')}}}": "0.1",
        f"kube_pod_resource_request{{{labels.format('example.com/gpu', '')}}}": "2",
        f"kube_pod_resource_request{{{labels.format('hugepages-2Mi', 'bytes')}}}": "4.194304e+06",
        f"kube_pod_resource_request{{{labels.format('memory', 'bytes')}}}": "1.34217728e+08",
    }


def test_only_metrics_with_values_have_a_header() -> None:
    text = b"".join(render_pod_resources([pod("a", {"requests": {"cpu": "1"}})])).decode()
    assert text.startswith(
        "# HELP kube_pod_resource_request [STABLE] Resources requested by workloads on the cluster, "
    )
    assert "\n# TYPE kube_pod_resource_request gauge\n" in text
    assert "kube_pod_resource_limit" not in text
    assert 'priority=""' in text


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        pytest.param({"phase": "Succeeded", "nodeName": "n1"}, False, id="over"),
        pytest.param({"phase": "Failed", "nodeName": "n1"}, False, id="failed"),
        pytest.param({"phase": "Failed"}, True, id="failed before it had a node"),
        pytest.param({"phase": "Running", "nodeName": "n1"}, True, id="running"),
    ],
)
def test_terminated_pods_are_omitted(where: dict[str, str], shown: bool) -> None:
    assert bool(values(pod("a", {"requests": {"cpu": "1"}}, **where))) is shown


def test_limits_include_init_containers_overhead_and_pod_level_resources() -> None:
    started = pod(
        "a",
        {"limits": {"cpu": "1", "memory": "1Gi"}},
        initContainers=[
            {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}},
            {"name": "init", "resources": {"limits": {"cpu": "3"}}},
        ],
        overhead={"cpu": "500m", "ephemeral-storage": "1Gi"},
        resources={"limits": {"memory": "2Gi", "example.com/gpu": "1"}},
    )
    assert [(name.split('resource="')[1].split('"')[0], value) for name, value in values(started).items()] == [
        ("cpu", "4.5"),
        ("memory", "2.147483648e+09"),
        ("cpu", "0.5"),
        ("ephemeral-storage", "1.073741824e+09"),
    ]


@pytest.mark.parametrize(
    ("name", "unit"),
    [("cpu", "cores"), ("storage", "bytes"), ("attachable-volumes-csi-x", "integer"), ("example.com/gpu", "")],
)
def test_the_unit_of_a_resource(name: str, unit: str) -> None:
    assert unit_of(name) == unit
