"""Pods that only request a part of a GPU share one: admission, scheduler and binder, each in its own process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api import Refused, Tree
from cluster.run import Cluster
from support.e2e.binder_harness import BY_BINDER, BinderHarness
from support.e2e.scheduler_harness import short_backoff_config
from support.e2e.scheduler_process import wait_until
from support.e2e.webhooks import run_webhooks

SHARING = BY_BINDER.replace("[{name: BindRequestBinder}]", "[{name: GpuSharing}, {name: BindRequestBinder}]")
NAME = "runai/shared-gpu-configmap"


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def half(harness: BinderHarness, name: str, fraction: str = "0.5", **spec: str) -> Tree:
    pod = harness.pod(name, **spec)
    pod["metadata"]["annotations"] = {"gpu-fraction": fraction}
    return pod


def replica_set(harness: BinderHarness, name: str) -> Tree:
    """A ReplicaSet with zero replicas; the test creates its pods."""
    template = {"metadata": {"labels": {"of": name}}, "spec": {"containers": [{"name": "main", "image": "main"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"of": name}}, "template": template}
    tree = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}
    flags = ("--filename=-", f"--namespace={harness.namespace}", "--output=json")
    made = json.loads(harness.cluster.kubectl("create", *flags, stdin=json.dumps(tree)))
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": made["metadata"]["uid"]}


def is_asked(harness: BinderHarness) -> bool:
    """Whether the webhook registrations are in effect: a real server takes a moment."""
    flags = ("--image=main", "--annotations=gpu-fraction=0.5", "--dry-run=server", "--output=yaml")
    return NAME in harness.cluster.kubectl("run", "probe", f"--namespace={harness.namespace}", *flags)


def environment(harness: BinderHarness, name: str) -> dict[str, str]:
    """The environment variable that a kubelet would set in the pod's container."""
    found = {}
    (container,) = harness.api.pod(name)["spec"]["containers"]
    for source in container["envFrom"]:
        found |= harness.api.get("ConfigMap", source["configMapRef"]["name"])["data"]
    for each in container["env"]:
        named = each["valueFrom"]["configMapKeyRef"]
        found[each["name"]] = harness.api.get("ConfigMap", named["name"])["data"][named["key"]]
    return found


def test_two_halves_share_a_device_and_get_its_environment(harness: BinderHarness, tmp_path: Path) -> None:
    """The second pod is created as by a controller: its name is generated after admission, and its ConfigMaps have the
    owner's.
    """
    (node,) = harness.add_nodes(1, labels={"nvidia.com/gpu.memory": "16000"})
    amounts = {"nvidia.com/gpu": "1"}
    harness.api.patch("Node", node, {"status": {"capacity": amounts, "allocatable": amounts}}, sub="status")
    harness.ensure_reservations()
    with run_webhooks(harness.cluster, tmp_path / "certificate", "/gpus/mutate,/gpus/validate"):
        wait_until(lambda: is_asked(harness), "the registrations count")
        second = half(harness, "half-two")
        second["metadata"] |= {"generateName": "web-5d8f-", "ownerReferences": [replica_set(harness, "web-5d8f")]}
        del second["metadata"]["name"]
        made = harness.api.create(half(harness, "half-one"), second)
        with pytest.raises(Refused, match=r"validategpus\.bayplan\.dev.* denied the request: pod .*/too-much: "):
            harness.api.create(half(harness, "too-much", "1.5"))
        (theirs,) = harness.api.create(half(harness, "theirs", "1.5", schedulerName="other-scheduler"))
    assert theirs["metadata"]["annotations"] == {"gpu-fraction": "1.5"}
    beginnings = [pod["metadata"]["annotations"][NAME] for pod in made]
    assert [each.rsplit("-", 3)[0] for each in beginnings] == ["half-one", "web-5d8f"]
    names = [pod["metadata"]["name"] for pod in made]
    with harness.run_scheduler(config=short_backoff_config(SHARING)), harness.binder():
        wait_until(lambda: all(harness.find("BindRequest", name) for name in names), "both have a request")
        (group,) = {harness.find("BindRequest", name)["spec"]["selectedGPUGroups"][0] for name in names}
        harness.report_device(group, "GPU-7")
        for name in names:
            harness.wait_for_end(name, "Succeeded")
        expected = {"NVIDIA_VISIBLE_DEVICES": "GPU-7", "GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50"}
        assert [environment(harness, name) for name in names] == [expected, expected]
        assert len(harness.reservations(group)) == 1
        for name in names:
            harness.api.delete("Pod", name, now=True)
        harness.api.delete_all("BindRequest", names)
        wait_until(lambda: not harness.reservations(group), "the device is free again")
    harness.release(group)
