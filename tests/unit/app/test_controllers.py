"""Controllers work only while they hold a lease, and release it at their end."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from bayplan.app.controllers import LEASE_NAME, LEASE_NAMESPACE, controllers_process
from bayplan.client import LEASES
from bayplan.controllers.core.api_types import PODS, REPLICA_SETS
from bayplan.controllers.volcano.resources import POD_GROUPS
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.volcano_controllers import VolcanoControllersHarness, install_volcano_crds

ONLY = ("serviceaccount-controller",)


@async_test
async def test_the_lease_is_held_during_work_and_released_at_the_end(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        chance = random.Random(1)
        async with controllers_process(client.target, only=ONLY, leader_elect=True, chance=chance) as process:
            running = asyncio.create_task(process.run())
            await process.wait_synced()
            assert process.election is not None
            lease = await client.get_raw(LEASES, LEASE_NAMESPACE, LEASE_NAME)
            assert lease["spec"]["holderIdentity"] == process.election.identity
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        released = await client.get_raw(LEASES, LEASE_NAMESPACE, LEASE_NAME)
        assert released["spec"].get("holderIdentity", "") == ""


@async_test
async def test_pods_of_every_named_scheduler_get_pod_groups(tmp_path: Path) -> None:
    only, names = ("volcano-podgroup-controller",), ("night", "day")
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        await install_volcano_crds(client)
        harness = VolcanoControllersHarness(client, "default")
        async with controllers_process(client.target, only=only, schedulers=names) as process:
            running = asyncio.create_task(process.run())
            pods = {}
            for name in ("volcano", *names):
                spec = {"schedulerName": name, "containers": [{"name": "main", "image": "busybox"}]}
                pods[name] = await harness.make(PODS, {"metadata": {"name": name}, "spec": spec})
            for name in names:
                await harness.until(POD_GROUPS, f"podgroup-{pods[name]['metadata']['uid']}", bool)
            assert len(await harness.list(POD_GROUPS)) == len(names)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@async_test
async def test_pod_groups_inherit_annotations_of_owners_if_enabled(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        await install_volcano_crds(client)
        harness = VolcanoControllersHarness(client, "default")
        container = {"name": "main", "image": "busybox"}
        labels = {"app": "web"}
        template = {"metadata": {"labels": labels}, "spec": {"schedulerName": "volcano", "containers": [container]}}
        metadata = {"name": "web", "annotations": {"scheduling.volcano.sh/group-min-member": "2"}}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
        owner = await harness.make(REPLICA_SETS, {"metadata": metadata, "spec": spec})
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner["metadata"]["uid"]}
        pod = {"metadata": {"name": "web-1", "ownerReferences": [{**reference, "controller": True}]}}
        await harness.make(PODS, {**pod, "spec": template["spec"]})
        name, only, min_members = f"podgroup-{owner['metadata']['uid']}", ("volcano-podgroup-controller",), [0]
        for inherits in (False, True):
            async with controllers_process(client.target, only=only, inherits=inherits) as process:
                running = asyncio.create_task(process.run())
                group = await harness.until(
                    POD_GROUPS, name, lambda group: group["spec"]["minMember"] != min_members[-1]
                )
                min_members.append(group["spec"]["minMember"])
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert min_members == [0, 1, 2]
