"""Writes on a real API server: accepted ones, and those refused because of a conflict."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from bayplan.client import CORE_EVENTS, EVENTS, JSON_PATCH, MERGE_PATCH, PODS, Client, resource_of
from bayplan.clock import SystemClock
from bayplan.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from cluster.run import Cluster
from support.harness.async_tests import async_test

NODES = resource_of(kind_of(Node))


def client_of(cluster: Cluster, user: str = "admin") -> Client:
    return Client(cluster.target(user), clock=SystemClock(), chance=random.Random(0))


def pod(name: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "none"}], "schedulerName": "nobody"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def created(client: Client, namespace: str, name: str = "p") -> Pod:
    return msgspec.json.decode(await client.create(PODS, pod(name), namespace=namespace), type=Pod)


@async_test
async def test_a_pod_is_bound_once(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client:
        made = await created(client, namespace)
        with pytest.raises(Conflict):
            await client.bind(namespace, "p", "n1", uid="another")
        await client.bind(namespace, "p", "n1", uid=made.metadata.uid)
        assert (await client.get(Pod, namespace, "p")).spec.node_name == "n1"
        with pytest.raises(Conflict, match="already assigned"):
            await client.bind(namespace, "p", "n2", uid=made.metadata.uid)
        with pytest.raises(NotFound):
            await client.bind(namespace, "absent", "n1")


@async_test
async def test_conditions_are_merged_by_type(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client:
        made = await created(client, namespace)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/0 nodes"}
        patch = {"metadata": {"uid": made.metadata.uid}, "status": {"conditions": [condition]}}
        await client.patch(PODS, patch, namespace=namespace, name="p", subresource="status")
        await client.patch(PODS, patch, namespace=namespace, name="p", subresource="status")
        found = await client.get(Pod, namespace, "p")
        assert [(each.type, each.reason) for each in found.status.conditions] == [("PodScheduled", "Unschedulable")]
        wrong = {"metadata": {"uid": "another"}, "status": {}}
        with pytest.raises(Invalid, match=r"metadata\.uid"):
            await client.patch(PODS, wrong, namespace=namespace, name="p", subresource="status")


@async_test
async def test_merge_and_json_patches(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client:
        await created(client, namespace)
        await client.patch(PODS, {"metadata": {"labels": {"a": "b"}}}, namespace=namespace, name="p", kind=MERGE_PATCH)
        steps = json.dumps([{"op": "replace", "path": "/metadata/labels/a", "value": "c"}]).encode()
        await client.patch(PODS, steps, namespace=namespace, name="p", kind=JSON_PATCH)
        assert (await client.get(Pod, namespace, "p")).metadata.labels == {"a": "c"}


@async_test
async def test_an_update_of_an_old_version_is_refused(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client:
        await created(client, namespace)
        tree = await client.get_raw(PODS, namespace, "p")
        tree["metadata"]["annotations"] = {"who": "first"}
        newer = await client.update(PODS, tree)
        tree["metadata"]["annotations"] = {"who": "second"}
        with pytest.raises(Conflict):
            await client.update(PODS, tree)
        assert newer["metadata"]["annotations"] == {"who": "first"}


@async_test
async def test_only_the_pod_with_the_uid_is_deleted(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client:
        made = await created(client, namespace)
        with pytest.raises(Conflict):
            await client.delete(PODS, namespace=namespace, name="p", uid="another", grace_s=0)
        await client.delete(PODS, namespace=namespace, name="p", uid=made.metadata.uid, grace_s=0)
        with pytest.raises(NotFound):
            await client.get(Pod, namespace, "p")


@async_test
async def test_refusals_say_why(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client:
        await created(client, namespace)
        with pytest.raises(AlreadyExists):
            await created(client, namespace)
        with pytest.raises(Invalid, match="name"):
            await created(client, namespace, "No_Such_Name")
    async with client_of(cluster, "limited") as stranger:
        with pytest.raises(ApiError, match='User "limited" cannot create resource "pods/binding"') as caught:
            await stranger.bind(namespace, "p", "n")
        assert (caught.value.code, caught.value.reason) == (403, "Forbidden")
        assert "token" not in str(caught.value)


@async_test
async def test_events_are_created_and_their_series_patched(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client:
        made = await created(client, namespace)
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "p.1234", "namespace": namespace},
            "eventTime": "2026-01-02T03:04:05.000006Z",
            "reportingController": "default-scheduler",
            "reportingInstance": "default-scheduler-host",
            "action": "Scheduling",
            "reason": "FailedScheduling",
            "regarding": {
                "kind": "Pod",
                "namespace": namespace,
                "name": "p",
                "uid": made.metadata.uid,
                "apiVersion": "v1",
            },
            "note": "0/0 nodes are available",
            "type": "Warning",
        }
        await client.create(EVENTS, event, namespace=namespace)
        series = {"series": {"count": 2, "lastObservedTime": "2026-01-02T03:05:05.000006Z"}}
        await client.patch(EVENTS, series, namespace=namespace, name="p.1234")
        stored = await client.get_raw(CORE_EVENTS, namespace, "p.1234")
        assert stored["message"] == "0/0 nodes are available"
        assert stored["series"]["count"] == 2
    assert "FailedScheduling" in cluster.kubectl("-n", namespace, "describe", "pod", "p")
