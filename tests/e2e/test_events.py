"""Events on a real API server: equal to those that kube-scheduler itself writes for the same pods."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from bayplan.client import CORE_EVENTS, EVENTS, Client, EventSink, GroupVersionResource, event_resource
from bayplan.clock import SystemClock
from bayplan.objects.core import Pod
from bayplan.telemetry.events import EventRecorder
from cluster.run import Cluster
from support.harness.async_tests import async_test

NODE = "events-node"


def client_of(cluster: Cluster) -> Client:
    return Client(cluster.target(), clock=SystemClock(), chance=random.Random(0), qps=-1)


@asynccontextmanager
async def recorder_to(
    client: Client, resource: GroupVersionResource = EVENTS
) -> AsyncIterator[tuple[EventRecorder, EventSink]]:
    sink = EventSink(client, resource=resource)
    sending = asyncio.create_task(sink.run())
    host = socket.gethostname()
    try:
        yield (
            EventRecorder("default-scheduler", host=host, clock=client.clock, chance=client.chance, post=sink.post),
            sink,
        )
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def node() -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    ready = {"type": "Ready", "status": "True"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"for": "events"}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }


def pod(name: str, cpu: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}]
    spec = {"containers": containers, "nodeSelector": {"for": "events"}, "terminationGracePeriodSeconds": 0} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def events(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    text = await asyncio.to_thread(cluster.kubectl, "-n", namespace, "get", "events.events.k8s.io", "-o", "json")
    found: list[dict[str, Any]] = json.loads(text)["items"]
    return found


async def events_until(
    cluster: Cluster, namespace: str, enough: Callable[[set[tuple[str, str]]], bool]
) -> list[dict[str, Any]]:
    """The expected events of a namespace, once they exist: (reason, name of the pod)."""
    while True:
        found = await events(cluster, namespace)
        if enough({(each["reason"], each["regarding"]["name"]) for each in found}):
            return found


def shape(event: dict[str, Any]) -> dict[str, Any]:
    """An event without the fields that differ between two writes; these are checked for presence and form."""
    event = json.loads(json.dumps(event))
    meta = event.pop("metadata")
    assert re.fullmatch(rf"{re.escape(event['regarding']['name'])}\.[0-9a-f]{{16}}", meta["name"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event.pop("eventTime"))
    assert event["regarding"].pop("resourceVersion").isdecimal()
    return {"namespace": meta["namespace"], **event}


@async_test
async def test_events_are_those_of_kube_scheduler(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client:
        config = cluster.kubeconfig()
        flags = [
            f"--{flag}={config}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        ]
        priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        cluster.apply(node(), priority | {"metadata": {"name": "events-high"}, "value": 1000})
        cluster.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(pod("fits", "600m")))
        cluster.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(pod("large", "9")))
        cluster.run("kube-scheduler", *flags, "--secure-port=0", "--leader-elect=false")
        try:
            wanted = {("Scheduled", "fits"), ("FailedScheduling", "large")}
            await events_until(cluster, namespace, wanted.issubset)
            bound = await client.get(Pod, namespace, "fits")
            strong = pod("strong", "700m", priorityClassName="events-high")
            cluster.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(strong))
            theirs = await events_until(cluster, namespace, {("Preempted", "fits"), ("Scheduled", "strong")}.issubset)
        finally:
            cluster.end("kube-scheduler")
        large = await client.get(Pod, namespace, "large")
        preemptor = await client.get(Pod, namespace, "strong")
        chosen = [
            each for each in theirs if (each["reason"], each["regarding"]["name"]) != ("FailedScheduling", "strong")
        ]
        notes = {(each["reason"], each["regarding"]["name"]): each["note"] for each in chosen}
        async with recorder_to(client) as (recorder, sink):
            recorder.record_scheduled(bound, NODE)
            recorder.record_scheduled(preemptor, NODE)
            recorder.record_failed_scheduling(large, notes["FailedScheduling", "large"])
            recorder.record_preempted(bound, preemptor, f"Preempted by pod {preemptor.uid} on node {NODE}")
            await sink.drain()
            assert (sink.stored, sink.refused) == (4, 0)
        known = {each["metadata"]["name"] for each in theirs}
        ours = [each for each in await events(cluster, namespace) if each["metadata"]["name"] not in known]
        assert {_key(each): shape(each) for each in ours} == {_key(each): shape(each) for each in chosen}
        assert len(ours) == 4


def _key(event: dict[str, Any]) -> tuple[str, str]:
    return event["reason"], event["regarding"]["name"]


@async_test
async def test_a_series_is_stored(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client, recorder_to(client) as (recorder, sink):
        lone = pod("lone", "1", schedulerName="nobody")
        cluster.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(lone))
        found = await client.get(Pod, namespace, "lone")
        assert event_resource(await client.discover(also=[EVENTS])) is EVENTS
        for _ in range(3):
            recorder.record_failed_scheduling(found, "0/0 nodes are available: " + "é" * 1024)
            await sink.drain()
        assert (sink.stored, sink.refused) == (2, 0)
        (event,) = await events(cluster, namespace)
        assert event["series"]["count"] == 2
        assert len(event["note"].encode()) <= 1024
        assert "FailedScheduling" in cluster.kubectl("-n", namespace, "describe", "pod", "lone")


@async_test
async def test_a_server_without_the_group_gets_core_events(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as client, recorder_to(client, CORE_EVENTS) as (recorder, sink):
        lone = pod("lone", "1", schedulerName="nobody")
        cluster.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(lone))
        found = await client.get(Pod, namespace, "lone")
        for _ in range(3):
            recorder.record_failed_scheduling(found, "0/0 nodes are available")
            await sink.drain()
        assert (sink.stored, sink.refused) == (3, 0)
        described = cluster.kubectl("-n", namespace, "describe", "pod", "lone")
        assert re.search(r"FailedScheduling\s+\S+ \(x3 over \S+\)\s+default-scheduler\s+0/0 nodes", described), (
            described
        )
