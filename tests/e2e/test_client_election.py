"""Leader election on a real API server: takeover when the holder ends, dies or is stopped, also with kube-scheduler."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import Client, ElectionTimings, LeaderElector
from bayplan.clock import SystemClock
from bayplan.errors import LeaseLost
from cluster.run import Cluster
from support.harness.async_tests import async_test, wait_until

QUICK = ElectionTimings(lease_s=9.0, renew_s=6.0, retry_s=0.5)
"""Shorter than upstream's, and long enough for a busy machine."""


def client_of(cluster: Cluster) -> Client:
    return Client(cluster.target(), clock=SystemClock(), chance=random.Random(0), timeout_s=3.0)


def candidate(client: Client, namespace: str, identity: str) -> LeaderElector:
    return LeaderElector(client, identity=identity, namespace=namespace, timings=QUICK)


def lease(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("-n", namespace, "get", "lease", "kube-scheduler", "-o", "json"))
    return dict(found["spec"])


@async_test
async def test_a_lease_is_taken_over(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster) as one, client_of(cluster) as two:
        first, second = candidate(one, namespace, "first"), candidate(two, namespace, "second")
        await first.acquire()
        holding = asyncio.create_task(first.renew_until_lost())
        waiting = asyncio.create_task(second.acquire())
        began = one.clock.uptime_s()
        await wait_until(lambda: one.clock.uptime_s() - first.age_s() > began + QUICK.lease_s)  # renewals keep it
        assert not waiting.done()
        first.check()
        assert second.leader == "first"
        holding.cancel()
        await waiting
        second.check()
        with pytest.raises(LeaseLost):
            first.check()
        spec = await asyncio.to_thread(lease, cluster, namespace)
        assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("second", 1, 9)


@async_test
async def test_a_lease_outlives_a_restart_of_the_server(cluster: Cluster, namespace: str) -> None:
    patient = ElectionTimings(lease_s=60.0, renew_s=40.0, retry_s=0.5)
    async with client_of(cluster) as client:
        election = LeaderElector(client, identity="me", namespace=namespace, timings=patient)
        await election.acquire()
        holding = asyncio.create_task(election.renew_until_lost())
        await asyncio.to_thread(cluster.end, "kube-apiserver", kill=True)
        await asyncio.to_thread(cluster.start_api_server)
        back = client.clock.uptime_s()
        await wait_until(lambda: holding.done() or client.clock.uptime_s() - election.age_s() > back)
        election.check()
        assert not holding.done()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


WRITER = """
import asyncio, random, sys
from pathlib import Path
from bayplan.client import Client, ElectionTimings, LeaderElector, PODS, load_connection_config
from bayplan.clock import SystemClock
from bayplan.errors import LeaseLost

async def main(kubeconfig, namespace):
    target = load_connection_config(Path(kubeconfig), env={})
    clock = SystemClock()
    lease = Client(target, clock=clock, chance=random.Random(0), timeout_s=3.0)
    client = Client(target, clock=clock, chance=random.Random(0), qps=-1)
    timings = ElectionTimings(lease_s=9, renew_s=6, retry_s=0.5)
    election = LeaderElector(lease, identity="first", namespace=namespace, timings=timings)
    client.set_guard(election)
    await election.acquire()
    holding = asyncio.create_task(election.renew_until_lost())
    async def write():
        number = 0
        while True:
            number += 1
            await client.patch(PODS, {"metadata": {"labels": {"n": str(number)}}}, namespace=namespace, name="p")
    writers = [asyncio.create_task(write()) for _ in range(8)]
    print("leading", flush=True)
    done, _ = await asyncio.wait([holding, *writers], return_when=asyncio.FIRST_COMPLETED)
    assert all(isinstance(each.exception(), LeaseLost) for each in done), done
    print("lost", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@async_test
async def test_a_stopped_process_resumes_without_writing(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": namespace},
            "spec": {"containers": [{"name": "c", "image": "none"}], "schedulerName": "nobody"},
        }
    )
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    command = [sys.executable, str(script), str(cluster.kubeconfig()), namespace]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == "leading\n"
        first = await asyncio.to_thread(pod_version, cluster, namespace)
        while await asyncio.to_thread(pod_version, cluster, namespace) == first:
            pass  # it writes
        process.send_signal(signal.SIGSTOP)
        async with client_of(cluster) as client:
            second = candidate(client, namespace, "second")
            await second.acquire()
            before = await asyncio.to_thread(pod_version, cluster, namespace)
            taken = await asyncio.to_thread(lease, cluster, namespace)
            process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(process.stdout.readline) == "lost\n"
            assert await asyncio.to_thread(process.wait) == 0
            assert await asyncio.to_thread(pod_version, cluster, namespace) == before
            assert await asyncio.to_thread(lease, cluster, namespace) == taken
    finally:
        process.kill()
        process.wait()


def pod_version(cluster: Cluster, namespace: str) -> str:
    return cluster.kubectl("-n", namespace, "get", "pod", "p", "-o", "jsonpath={.metadata.resourceVersion}")


@async_test
async def test_a_lease_is_shared_with_kube_scheduler(cluster: Cluster, namespace: str) -> None:
    """kube-scheduler waits while we lead, and Bayplan takes over when it ends."""
    async with client_of(cluster) as client:
        ours = candidate(client, namespace, "ours")
        await ours.acquire()
        holding = asyncio.create_task(ours.renew_until_lost())
        config = cluster.kubeconfig()
        process = cluster.run(
            "kube-scheduler",
            *(f"--{flag}={config}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")),
            "--secure-port=0",
            "--leader-elect=true",
            "--leader-elect-lease-duration=9s",
            "--leader-elect-renew-deadline=6s",
            "--leader-elect-retry-period=500ms",
            f"--leader-elect-resource-namespace={namespace}",
        )
        await wait_until(lambda: "Attempting to acquire leader lease" in cluster.log("kube-scheduler", last=1 << 20))
        began = client.clock.uptime_s()
        await wait_until(lambda: client.clock.uptime_s() - ours.age_s() > began + QUICK.lease_s)
        ours.check()
        assert process.poll() is None
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        again = candidate(client, namespace, "again")
        while (await asyncio.to_thread(lease, cluster, namespace))["holderIdentity"] in ("", "ours"):
            pass
        waiting = asyncio.create_task(again.acquire())
        await asyncio.to_thread(cluster.end, "kube-scheduler")
        await waiting
        assert (await asyncio.to_thread(lease, cluster, namespace))["leaseTransitions"] == 2
