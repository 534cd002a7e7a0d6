"""A pod without a reservation of its device is deleted, and an event gives the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bayplan.app.binder import BinderSettings, binder_lease, binder_process
from bayplan.client import MERGE_PATCH
from bayplan.objects.kai.bind_request import HANDLED_BY_BAYPLAN, HANDLED_BY_LABEL
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.objects.kai.gpu_sharing import GROUP_LABEL
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.reconciler import DEFINITIONS, PODS, pod_tree

_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_POD = "/api/v1/namespaces/default/pods/web"


@async_test
async def test_a_pod_without_a_reservation_gets_an_event_with_the_reason(tmp_path: Path) -> None:
    settings = BinderSettings(lease=binder_lease(leader_elect=False))
    async with run_embedded_cluster(tmp_path) as serving, serving.client() as client:
        await client.create(DEFINITIONS, bind_request_definition())
        tree = pod_tree("web", labels={GROUP_LABEL: "g", HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}, spec={"nodeName": "n1"})
        await client.create(PODS, tree, namespace="default")
        running = {"status": {"phase": "Running"}}
        await client.patch(PODS, running, name="web", namespace="default", subresource="status", kind=MERGE_PATCH)
        async with binder_process(settings, serving.target()) as process:
            working = asyncio.ensure_future(process.run())
            try:
                async with asyncio.timeout(20):
                    while (await serving.request("GET", _POD)).code != 404:
                        await asyncio.sleep(0.02)
                    while not (events := (await serving.request("GET", _EVENTS)).json["items"]):
                        await asyncio.sleep(0.02)
            finally:
                working.cancel()
                await asyncio.wait([working])
    (event,) = events
    assert (event["type"], event["reason"], event["regarding"]["name"]) == ("Warning", "GPUNotReserved", "web")
    assert event["note"] == (
        "Pod default/web is deleted: no pod reserves the device of its GPU group g any more, and another could get it"
    )
