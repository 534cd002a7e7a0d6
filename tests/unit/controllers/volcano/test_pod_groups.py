"""The group of a set's pods follows what they and the set say, on the embedded cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bayplan.client import MERGE_PATCH
from bayplan.controllers.core.api_types import PODS, STATEFUL_SETS
from bayplan.controllers.volcano.resources import POD_GROUPS
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.volcano_controllers import (
    NAMESPACES,
    VolcanoControllersHarness,
    async_test,
    run_controllers,
)

Tree = dict[str, Any]
ONLY = ("volcano-podgroup-controller", "volcano-queue-controller")
QUEUE = "scheduling.volcano.sh/queue-name"
SPEC: Tree = {"containers": [{"name": "c", "image": "db"}]}


@asynccontextmanager
async def here_at(folder: Path) -> AsyncIterator[VolcanoControllersHarness]:
    async with (
        run_embedded_cluster(folder) as cluster,
        cluster.client() as client,
        run_controllers(client.target, "ml", only=ONLY, stand_in=False) as here,
    ):
        yield here


async def stateful_set(here: VolcanoControllersHarness, **annotations: str) -> Tree:
    template = {"metadata": {"labels": {"app": "db"}}, "spec": SPEC}
    spec = {"serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template}
    made = await here.make(STATEFUL_SETS, {"metadata": {"name": "db", "annotations": annotations}, "spec": spec})
    await change(here, {"status": {"replicas": 0, "updateRevision": "one"}}, subresource="status")
    return made


async def change(here: VolcanoControllersHarness, patch: Tree, *, subresource: str = "") -> None:
    """The set, as its own controller or its owner changes it."""
    chosen: Tree = {"namespace": "ml", "name": "db", "subresource": subresource, "kind": MERGE_PATCH}
    await here.client.patch(STATEFUL_SETS, patch, **chosen)


async def pod_of(
    here: VolcanoControllersHarness,
    made: Tree,
    name: str,
    revision: str,
    *,
    labels: Tree | None = None,
    **annotations: str,
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": made["metadata"]["uid"]}
    metadata: Tree = {"name": name, "annotations": annotations, "ownerReferences": [{**owner, "controller": True}]}
    metadata["labels"] = {"app": "db", "controller-revision-hash": revision, **(labels or {})}
    await here.make(PODS, {"metadata": metadata, "spec": {**SPEC, "schedulerName": "volcano"}})


def group_of(made: Tree) -> str:
    return f"podgroup-{made['metadata']['uid']}"


def annotations_of(group: Tree) -> Tree:
    found: Tree = group["metadata"].get("annotations") or {}
    return found


@async_test
async def test_a_new_template_moves_the_group_and_leaves_its_status(tmp_path: Path) -> None:
    async with here_at(tmp_path) as here:
        made = await stateful_set(here, **{"volcano.sh/sla-waiting-time": "1h"})
        old = {QUEUE: "qa", "volcano.sh/preemptable": "true", "volcano.sh/revocable-zone": "*"}
        await pod_of(here, made, "db-0", "one", labels={"volcano.sh/cooldown-time": "5s"}, **old)
        group = await here.until(POD_GROUPS, group_of(made), lambda g: g["spec"]["queue"] == "qa")
        assert group["metadata"]["labels"] == {"volcano.sh/cooldown-time": "5s"}
        noted = {
            "metadata": {"annotations": {"volcano.sh/job-allocated-hypernode": "rack-1"}},
            "status": {"phase": "Running", "running": 1},
        }
        await here.client.patch(POD_GROUPS, noted, namespace="ml", name=group_of(made), kind=MERGE_PATCH)

        # The set's last word comes first: the pod that names another queue must be enough.
        await change(here, {"status": {"replicas": 1, "updateRevision": "two"}}, subresource="status")
        await pod_of(here, made, "db-1", "two", **{QUEUE: "qb", "volcano.sh/preemptable": "false"})
        moved = await here.until(POD_GROUPS, group_of(made), lambda g: g["spec"]["queue"] == "qb")
        assert annotations_of(moved) == {
            "volcano.sh/job-allocated-hypernode": "rack-1",
            "volcano.sh/preemptable": "false",
            "volcano.sh/sla-waiting-time": "1h",
        }
        assert (moved["metadata"].get("labels") or {}, moved["status"]) == ({}, noted["status"])
        assert moved["metadata"]["uid"] == group["metadata"]["uid"]

        await change(here, {"metadata": {"annotations": {"volcano.sh/sla-waiting-time": "2h"}}})
        await here.until(
            POD_GROUPS, group_of(made), lambda g: annotations_of(g).get("volcano.sh/sla-waiting-time") == "2h"
        )
        await change(here, {"metadata": {"annotations": {"volcano.sh/sla-waiting-time": None}}})
        await here.until(POD_GROUPS, group_of(made), lambda g: "volcano.sh/sla-waiting-time" not in annotations_of(g))


@async_test
async def test_pods_that_name_a_queue_no_more_go_where_new_ones_would(tmp_path: Path) -> None:
    async with here_at(tmp_path) as here:
        made = await stateful_set(here)
        await pod_of(here, made, "db-0", "one", **{QUEUE: "qa"})
        await here.until(POD_GROUPS, group_of(made), lambda g: g["spec"]["queue"] == "qa")
        await change(here, {"status": {"replicas": 1, "updateRevision": "two"}}, subresource="status")
        await pod_of(here, made, "db-1", "two")
        await here.until(POD_GROUPS, group_of(made), lambda g: g["spec"]["queue"] == "default")

        # A queue that a webhook filled in from the namespace stays, whatever else the group follows.
        named = {"metadata": {"annotations": {QUEUE: "ours"}}}
        await here.client.patch(NAMESPACES, named, name="ml", kind=MERGE_PATCH)
        filled = {"spec": {"queue": "ours"}}
        await here.client.patch(POD_GROUPS, filled, namespace="ml", name=group_of(made), kind=MERGE_PATCH)
        await change(here, {"metadata": {"annotations": {"scheduling.volcano.sh/group-min-member": "2"}}})
        group = await here.until(POD_GROUPS, group_of(made), lambda g: g["spec"]["minMember"] == 2)
        assert group["spec"]["queue"] == "ours"


@async_test
async def test_a_group_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    async with here_at(tmp_path) as here:
        made = await stateful_set(here)
        theirs = {"metadata": {"name": "theirs"}, "spec": {"minMember": 7, "queue": "qa"}}
        before = await here.make(POD_GROUPS, theirs)
        await pod_of(here, made, "db-0", "one", **{QUEUE: "qb", "scheduling.k8s.io/group-name": "theirs"})
        await change(here, {"metadata": {"annotations": {"scheduling.volcano.sh/group-min-member": "2"}}})
        await here.make(PODS, {"metadata": {"name": "last"}, "spec": {**SPEC, "schedulerName": "volcano"}})
        last = await here.pods(lambda pods: "scheduling.k8s.io/group-name" in annotations_of(pods["last"]))
        names = {each["metadata"]["name"] for each in await here.list(POD_GROUPS)}
        assert names == {"theirs", f"podgroup-{last['last']['metadata']['uid']}"}
        assert await here.get(POD_GROUPS, "theirs") == before
