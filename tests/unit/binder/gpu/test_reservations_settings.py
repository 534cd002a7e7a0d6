"""What users may say of the pods that hold shared GPUs, and that the pods are made so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bayplan.binder.gpu.reservations import DEVICE_INDEX_ANNOTATION, reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.client import GroupVersionResource
from bayplan.config.bayplan_settings import load_settings
from bayplan.objects.kai.bind_request import BindRequest
from support.harness.reconciler import (
    PODS,
    ReconcilerHarness,
    Tree,
    run_with_reconciler,
)

SETTINGS = """
apiVersion: bayplan.dev/v1alpha1
kind: BayplanConfiguration
resourceReservation:
  namespace: gpu-holders
  serviceAccountName: holder
  appLabel: holder
  image: registry.example/holder:1
  runtimeClassName: nvidia
  podResources:
    requests: {cpu: 1m}
    limits: {memory: 100Mi}
"""
RUNTIME_CLASSES = GroupVersionResource("node.k8s.io", "v1", "runtimeclasses", namespaced=False)
NAME = reservation_name("n1", "g-1")


async def reserving(rig: ReconcilerHarness, namespace: str) -> tuple[asyncio.Future[Any], Tree]:
    """An attempt that waits for a reservation to say which device it has, and that reservation."""
    pod = await rig.pod("web", annotations={"runai/shared-gpu-configmap": "web-gpu"})
    part = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}}
    await rig.request(pod, selectedGPUGroups=["g-1"], **part)
    await rig.deliver_event(BindRequest, "web")
    syncing = asyncio.ensure_future(rig.reconciler.reconcile(("default", "web")))
    while (made := await rig.find(PODS, NAME, namespace)) is None:
        assert not syncing.done(), await rig.status()
        await asyncio.sleep(0.01)
    return syncing, made


def test_a_reservation_is_made_as_the_settings_say(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.make(RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        syncing, made = await reserving(rig, "gpu-holders")
        (container,) = made["spec"]["containers"]
        assert (made["metadata"]["labels"]["app"], made["spec"]["serviceAccountName"]) == ("holder", "holder")
        assert (container["image"], made["spec"]["runtimeClassName"]) == ("registry.example/holder:1", "nvidia")
        assert container["resources"]["requests"]["cpu"] == "1m"
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "100Mi"}
        told = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}
        assert told == {
            "POD_NAME": "metadata.name",
            "POD_NAMESPACE": "metadata.namespace",
            "NODE_NAME": "spec.nodeName",
        }
        await rig.patch(
            PODS, NAME, {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: "GPU-7"}}}, namespace="gpu-holders"
        )
        await syncing
        assert await rig.node_of("web") == "n1"

    settings = load_settings(SETTINGS, "s.yaml").resource_reservation
    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), reserving=settings)


def test_a_reservation_has_kai_schedulers_image_and_no_more_than_it_needs_unless_told_otherwise(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        syncing, made = await reserving(rig, "kai-resource-reservation")
        syncing.cancel()
        await asyncio.wait([syncing])
        (container,) = made["spec"]["containers"]
        assert container["image"].startswith("ghcr.io/kai-scheduler/kai-scheduler/resourcereservation:v")
        assert container["resources"] == {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
        assert "runtimeClassName" not in made["spec"]
        assert made["metadata"]["labels"]["app"] == "kai-resource-reservation"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())
