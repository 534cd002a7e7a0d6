"""The pod group of a set follows its pods and annotations, on the embedded cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bayplan.client import MERGE_PATCH
from bayplan.controllers.core.api_types import PODS, STATEFUL_SETS
from bayplan.controllers.volcano.resources import POD_GROUPS
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.volcano_controllers import NAMESPACES, VolcanoControllersHarness, async_test, run_controllers

Tree = dict[str, Any]
ONLY = ("volcano-podgroup-controller", "volcano-queue-controller")
QUEUE = "scheduling.volcano.sh/queue-name"
SPEC: Tree = {"containers": [{"name": "c", "image": "db"}]}


@asynccontextmanager
async def run_pod_group_controller(folder: Path) -> AsyncIterator[VolcanoControllersHarness]:
    async with (
        run_embedded_cluster(folder) as cluster,
        cluster.client() as client,
        run_controllers(client.target, "ml", only=ONLY, stand_in=False) as harness,
    ):
        yield harness


async def stateful_set(harness: VolcanoControllersHarness, **annotations: str) -> Tree:
    template = {"metadata": {"labels": {"app": "db"}}, "spec": SPEC}
    spec = {"serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template}
    stateful_set_ = await harness.make(
        STATEFUL_SETS, {"metadata": {"name": "db", "annotations": annotations}, "spec": spec}
    )
    await change(harness, {"status": {"replicas": 0, "updateRevision": "one"}}, subresource="status")
    return stateful_set_


async def change(harness: VolcanoControllersHarness, patch: Tree, *, subresource: str = "") -> None:
    """Patch the set, as its controller or its user does."""
    options: Tree = {"namespace": "ml", "name": "db", "subresource": subresource, "kind": MERGE_PATCH}
    await harness.client.patch(STATEFUL_SETS, patch, **options)


async def create_pod(
    harness: VolcanoControllersHarness,
    stateful_set_: Tree,
    name: str,
    revision: str,
    *,
    labels: Tree | None = None,
    **annotations: str,
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": stateful_set_["metadata"]["uid"]}
    metadata: Tree = {"name": name, "annotations": annotations, "ownerReferences": [{**owner, "controller": True}]}
    metadata["labels"] = {"app": "db", "controller-revision-hash": revision, **(labels or {})}
    await harness.make(PODS, {"metadata": metadata, "spec": {**SPEC, "schedulerName": "volcano"}})


def group_of(stateful_set_: Tree) -> str:
    return f"podgroup-{stateful_set_['metadata']['uid']}"


def annotations_of(group: Tree) -> Tree:
    found: Tree = group["metadata"].get("annotations") or {}
    return found


@async_test
async def test_a_new_template_updates_the_group_and_keeps_its_status(tmp_path: Path) -> None:
    async with run_pod_group_controller(tmp_path) as harness:
        stateful_set_ = await stateful_set(harness, **{"volcano.sh/sla-waiting-time": "1h"})
        old = {QUEUE: "qa", "volcano.sh/preemptable": "true", "volcano.sh/revocable-zone": "*"}
        await create_pod(harness, stateful_set_, "db-0", "one", labels={"volcano.sh/cooldown-time": "5s"}, **old)
        group = await harness.until(POD_GROUPS, group_of(stateful_set_), lambda g: g["spec"]["queue"] == "qa")
        assert group["metadata"]["labels"] == {"volcano.sh/cooldown-time": "5s"}
        scheduler_patch = {
            "metadata": {"annotations": {"volcano.sh/job-allocated-hypernode": "rack-1"}},
            "status": {"phase": "Running", "running": 1},
        }
        await harness.client.patch(
            POD_GROUPS, scheduler_patch, namespace="ml", name=group_of(stateful_set_), kind=MERGE_PATCH
        )

        # The set's update comes first: the pod with the new queue must be enough.
        await change(harness, {"status": {"replicas": 1, "updateRevision": "two"}}, subresource="status")
        await create_pod(harness, stateful_set_, "db-1", "two", **{QUEUE: "qb", "volcano.sh/preemptable": "false"})
        updated = await harness.until(POD_GROUPS, group_of(stateful_set_), lambda g: g["spec"]["queue"] == "qb")
        assert annotations_of(updated) == {
            "volcano.sh/job-allocated-hypernode": "rack-1",
            "volcano.sh/preemptable": "false",
            "volcano.sh/sla-waiting-time": "1h",
        }
        assert (updated["metadata"].get("labels") or {}, updated["status"]) == ({}, scheduler_patch["status"])
        assert updated["metadata"]["uid"] == group["metadata"]["uid"]

        await change(harness, {"metadata": {"annotations": {"volcano.sh/sla-waiting-time": "2h"}}})
        await harness.until(
            POD_GROUPS, group_of(stateful_set_), lambda g: annotations_of(g).get("volcano.sh/sla-waiting-time") == "2h"
        )
        await change(harness, {"metadata": {"annotations": {"volcano.sh/sla-waiting-time": None}}})
        await harness.until(
            POD_GROUPS, group_of(stateful_set_), lambda g: "volcano.sh/sla-waiting-time" not in annotations_of(g)
        )


@async_test
async def test_pods_without_a_queue_move_to_the_default_queue(tmp_path: Path) -> None:
    async with run_pod_group_controller(tmp_path) as harness:
        stateful_set_ = await stateful_set(harness)
        await create_pod(harness, stateful_set_, "db-0", "one", **{QUEUE: "qa"})
        await harness.until(POD_GROUPS, group_of(stateful_set_), lambda g: g["spec"]["queue"] == "qa")
        await change(harness, {"status": {"replicas": 1, "updateRevision": "two"}}, subresource="status")
        await create_pod(harness, stateful_set_, "db-1", "two")
        await harness.until(POD_GROUPS, group_of(stateful_set_), lambda g: g["spec"]["queue"] == "default")

        # A queue that a webhook filled in from the namespace stays.
        namespace_patch = {"metadata": {"annotations": {QUEUE: "ours"}}}
        await harness.client.patch(NAMESPACES, namespace_patch, name="ml", kind=MERGE_PATCH)
        group_patch = {"spec": {"queue": "ours"}}
        await harness.client.patch(
            POD_GROUPS, group_patch, namespace="ml", name=group_of(stateful_set_), kind=MERGE_PATCH
        )
        await change(harness, {"metadata": {"annotations": {"scheduling.volcano.sh/group-min-member": "2"}}})
        group = await harness.until(POD_GROUPS, group_of(stateful_set_), lambda g: g["spec"]["minMember"] == 2)
        assert group["spec"]["queue"] == "ours"


@async_test
async def test_a_foreign_group_is_ignored(tmp_path: Path) -> None:
    async with run_pod_group_controller(tmp_path) as harness:
        stateful_set_ = await stateful_set(harness)
        foreign = {"metadata": {"name": "theirs"}, "spec": {"minMember": 7, "queue": "qa"}}
        before = await harness.make(POD_GROUPS, foreign)
        await create_pod(
            harness, stateful_set_, "db-0", "one", **{QUEUE: "qb", "scheduling.k8s.io/group-name": "theirs"}
        )
        await change(harness, {"metadata": {"annotations": {"scheduling.volcano.sh/group-min-member": "2"}}})
        await harness.make(PODS, {"metadata": {"name": "last"}, "spec": {**SPEC, "schedulerName": "volcano"}})
        last = await harness.pods(lambda pods: "scheduling.k8s.io/group-name" in annotations_of(pods["last"]))
        names = {each["metadata"]["name"] for each in await harness.list(POD_GROUPS)}
        assert names == {"theirs", f"podgroup-{last['last']['metadata']['uid']}"}
        assert await harness.get(POD_GROUPS, "theirs") == before
