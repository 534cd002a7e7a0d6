"""The bare loop: makes the writes of a scheduler and decides nothing. Its throughput is the upper limit of a scheduler.

Runs in a separate process, as schedulers do. It reads the pods, opens a pod watch whose events it ignores, then binds
the pods to nodes in turn and writes an event for each, `at_once` of them concurrently.
"""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bayplan.client import Client, Selection, load_connection_config
from bayplan.client.resources import resource_of
from bayplan.clock import SystemClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of

QPS, BURST = 5000.0, 10_000
_LINGER_S = 3600.0
"""The parent process takes its last sample in this time and then ends this process."""


async def loop(kubeconfig: str, namespace: str, at_once: int) -> None:
    target = load_connection_config(Path(kubeconfig), env={})
    chance = random.Random(0)
    async with Client(target, clock=SystemClock(), chance=chance, qps=QPS, burst=BURST) as client:
        listed = await client.list(resource_of(kind_of(Pod)), Selection(namespace=namespace))
        found = (await client.list(resource_of(kind_of(Node)))).items
        nodes = [item.name for item in found if isinstance(item, Node)]
        pods = [item for item in listed.items if isinstance(item, Pod) and not item.spec.node_name]
        watching = asyncio.ensure_future(_watch(client, listed.resource_version))
        waiting = iter(list(enumerate(pods)))

        async def worker() -> None:
            for number, pod in waiting:
                node = nodes[number % len(nodes)]
                await client.bind(pod.namespace, pod.name, node, uid=pod.uid)
                await client.transport.request("POST", _events(pod.namespace), _event(pod, node))

        await asyncio.gather(*(worker() for _ in range(at_once)))
        watching.cancel()
        await asyncio.sleep(_LINGER_S)


async def _watch(client: Client, version: str) -> None:
    path = f"/api/v1/pods?watch=true&resourceVersion={version}"
    async with client.transport.stream(path, quiet_s=3600.0) as stream:
        while await stream.read():
            pass


def _events(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


def _event(pod: Pod, node: str) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{pod.name}.{pod.uid}", "namespace": pod.namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": "default-scheduler",
            "reportingInstance": "default-scheduler-bare",
            "action": "Binding",
            "reason": "Scheduled",
            "type": "Normal",
            "note": f"Successfully assigned {pod.namespace}/{pod.name} to {node}",
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "resourceVersion": pod.metadata.resource_version,
            },
        }
    )


if __name__ == "__main__":
    asyncio.run(loop(sys.argv[1], sys.argv[2], int(sys.argv[3])))
