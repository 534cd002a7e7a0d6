"""Settings of GPU reservation pods."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bayplan.binder.gpu.reservations import DEVICE_INDEX_ANNOTATION, reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.client import GroupVersionResource
from bayplan.config.bayplan_settings import load_settings
from bayplan.objects.kai.bind_request import BindRequest
from support.harness.reconciler import PODS, ReconcilerHarness, Tree, run_with_reconciler

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


async def start_reserving(harness: ReconcilerHarness, namespace: str) -> tuple[asyncio.Future[Any], Tree]:
    """Start an attempt that waits for a reservation's device; returns it with the reservation."""
    pod = await harness.pod("web", annotations={"runai/shared-gpu-configmap": "web-gpu"})
    part = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}}
    await harness.request(pod, selectedGPUGroups=["g-1"], **part)
    await harness.deliver_event(BindRequest, "web")
    syncing = asyncio.ensure_future(harness.reconciler.reconcile(("default", "web")))
    while (made := await harness.find(PODS, NAME, namespace)) is None:
        assert not syncing.done(), await harness.status()
        await asyncio.sleep(0.01)
    return syncing, made


def test_a_reservation_has_the_fields_of_the_settings(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.make(RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        syncing, made = await start_reserving(harness, "gpu-holders")
        (container,) = made["spec"]["containers"]
        assert (made["metadata"]["labels"]["app"], made["spec"]["serviceAccountName"]) == ("holder", "holder")
        assert (container["image"], made["spec"]["runtimeClassName"]) == ("registry.example/holder:1", "nvidia")
        assert container["resources"]["requests"]["cpu"] == "1m"
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "100Mi"}
        fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}
        assert fields == {
            "POD_NAME": "metadata.name",
            "POD_NAMESPACE": "metadata.namespace",
            "NODE_NAME": "spec.nodeName",
        }
        await harness.patch(
            PODS, NAME, {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: "GPU-7"}}}, namespace="gpu-holders"
        )
        await syncing
        assert await harness.node_of("web") == "n1"

    settings = load_settings(SETTINGS, "s.yaml").resource_reservation
    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), reserving=settings)


def test_a_reservation_has_kai_schedulers_image_and_minimal_resources_by_default(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        syncing, made = await start_reserving(harness, "kai-resource-reservation")
        syncing.cancel()
        await asyncio.wait([syncing])
        (container,) = made["spec"]["containers"]
        assert container["image"].startswith("ghcr.io/kai-scheduler/kai-scheduler/resourcereservation:v")
        assert container["resources"] == {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
        assert "runtimeClassName" not in made["spec"]
        assert made["metadata"]["labels"]["app"] == "kai-resource-reservation"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())
