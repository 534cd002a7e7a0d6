"""Pods that say nothing but how much of a GPU they want share one: admission, scheduler and binder, each a process."""

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
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def half(corner: BinderHarness, name: str, fraction: str = "0.5", **spec: str) -> Tree:
    pod = corner.pod(name, **spec)
    pod["metadata"]["annotations"] = {"gpu-fraction": fraction}
    return pod


def replica_set(corner: BinderHarness, name: str) -> Tree:
    """One that makes no pods itself, as its pods name it."""
    template = {"metadata": {"labels": {"of": name}}, "spec": {"containers": [{"name": "main", "image": "main"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"of": name}}, "template": template}
    tree = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}
    flags = ("--filename=-", f"--namespace={corner.namespace}", "--output=json")
    made = json.loads(corner.cluster.kubectl("create", *flags, stdin=json.dumps(tree)))
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": made["metadata"]["uid"]}


def is_asked(corner: BinderHarness) -> bool:
    """Whether the registrations count already: a real server takes a moment."""
    flags = ("--image=main", "--annotations=gpu-fraction=0.5", "--dry-run=server", "--output=yaml")
    return NAME in corner.cluster.kubectl("run", "probe", f"--namespace={corner.namespace}", *flags)


def environment(corner: BinderHarness, name: str) -> dict[str, str]:
    """What a kubelet would put into the pod's container."""
    found = {}
    (container,) = corner.api.pod(name)["spec"]["containers"]
    for source in container["envFrom"]:
        found |= corner.api.get("ConfigMap", source["configMapRef"]["name"])["data"]
    for each in container["env"]:
        named = each["valueFrom"]["configMapKeyRef"]
        found[each["name"]] = corner.api.get("ConfigMap", named["name"])["data"][named["key"]]
    return found


def test_two_halves_share_a_device_and_are_told_which(corner: BinderHarness, tmp_path: Path) -> None:
    """The second as a controller makes it: its name is drawn after admission, and its ConfigMaps have the owner's."""
    (node,) = corner.add_nodes(1, labels={"nvidia.com/gpu.memory": "16000"})
    amounts = {"nvidia.com/gpu": "1"}
    corner.api.patch("Node", node, {"status": {"capacity": amounts, "allocatable": amounts}}, sub="status")
    corner.ensure_reservations()
    with run_webhooks(corner.cluster, tmp_path / "certificate", "/gpus/mutate,/gpus/validate"):
        wait_until(lambda: is_asked(corner), "the registrations count")
        second = half(corner, "half-two")
        second["metadata"] |= {"generateName": "web-5d8f-", "ownerReferences": [replica_set(corner, "web-5d8f")]}
        del second["metadata"]["name"]
        made = corner.api.create(half(corner, "half-one"), second)
        with pytest.raises(Refused, match=r"validategpus\.bayplan\.dev.* denied the request: pod .*/too-much: "):
            corner.api.create(half(corner, "too-much", "1.5"))
        (theirs,) = corner.api.create(half(corner, "theirs", "1.5", schedulerName="somebody"))
    assert theirs["metadata"]["annotations"] == {"gpu-fraction": "1.5"}
    beginnings = [pod["metadata"]["annotations"][NAME] for pod in made]
    assert [each.rsplit("-", 3)[0] for each in beginnings] == ["half-one", "web-5d8f"]
    names = [pod["metadata"]["name"] for pod in made]
    with corner.run_scheduler(config=short_backoff_config(SHARING)), corner.binder():
        wait_until(lambda: all(corner.find("BindRequest", name) for name in names), "both have a request")
        (group,) = {corner.find("BindRequest", name)["spec"]["selectedGPUGroups"][0] for name in names}
        corner.report_device(group, "GPU-7")
        for name in names:
            corner.wait_for_end(name, "Succeeded")
        told = {"NVIDIA_VISIBLE_DEVICES": "GPU-7", "GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50"}
        assert [environment(corner, name) for name in names] == [told, told]
        assert len(corner.reservations(group)) == 1
        for name in names:
            corner.api.delete("Pod", name, now=True)
        corner.api.delete_all("BindRequest", names)
        wait_until(lambda: not corner.reservations(group), "the device is free again")
    corner.release(group)
