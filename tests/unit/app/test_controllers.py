"""Controllers that work only while they hold a lease, and give it up when they end."""

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
async def test_the_lease_is_held_while_they_work_and_given_up_at_the_end(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        chance = random.Random(1)
        async with controllers_process(client.target, only=ONLY, leader_elect=True, chance=chance) as process:
            running = asyncio.create_task(process.run())
            await process.synced()
            assert process.election is not None
            held = await client.get_raw(LEASES, LEASE_NAMESPACE, LEASE_NAME)
            assert held["spec"]["holderIdentity"] == process.election.identity
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        given_up = await client.get_raw(LEASES, LEASE_NAMESPACE, LEASE_NAME)
        assert given_up["spec"].get("holderIdentity", "") == ""


@async_test
async def test_pods_of_every_scheduler_that_was_named_get_groups(tmp_path: Path) -> None:
    only, names = ("volcano-podgroup-controller",), ("night", "day")
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        await install_volcano_crds(client)
        here = VolcanoControllersHarness(client, "default")
        async with controllers_process(client.target, only=only, schedulers=names) as process:
            running = asyncio.create_task(process.run())
            made = {}
            for name in ("volcano", *names):
                spec = {"schedulerName": name, "containers": [{"name": "main", "image": "busybox"}]}
                made[name] = await here.make(PODS, {"metadata": {"name": name}, "spec": spec})
            for name in names:
                await here.until(POD_GROUPS, f"podgroup-{made[name]['metadata']['uid']}", bool)
            assert len(await here.list(POD_GROUPS)) == len(names)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@async_test
async def test_what_owners_say_counts_for_groups_unless_told_otherwise(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        await install_volcano_crds(client)
        here = VolcanoControllersHarness(client, "default")
        container = {"name": "main", "image": "busybox"}
        labels = {"app": "web"}
        template = {"metadata": {"labels": labels}, "spec": {"schedulerName": "volcano", "containers": [container]}}
        metadata = {"name": "web", "annotations": {"scheduling.volcano.sh/group-min-member": "2"}}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
        owner = await here.make(REPLICA_SETS, {"metadata": metadata, "spec": spec})
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner["metadata"]["uid"]}
        pod = {"metadata": {"name": "web-1", "ownerReferences": [{**reference, "controller": True}]}}
        await here.make(PODS, {**pod, "spec": template["spec"]})
        name, only, seen = f"podgroup-{owner['metadata']['uid']}", ("volcano-podgroup-controller",), [0]
        for inherits in (False, True):
            async with controllers_process(client.target, only=only, inherits=inherits) as process:
                running = asyncio.create_task(process.run())
                group = await here.until(POD_GROUPS, name, lambda group: group["spec"]["minMember"] != seen[-1])
                seen.append(group["spec"]["minMember"])
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert seen == [0, 1, 2]
