"""Metrics of a binder, and of an engine that has no binder, over HTTP."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.run import Cluster, free_ports
from support.e2e.binder_harness import SETTINGS, BinderHarness
from support.e2e.scheduler_process import wait_until
from support.harness.deadlines import DEADLINE_S


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def scraped(port: int, sample: str) -> float:
    """One sample; 0 if the server does not run yet, or has no such metric. Other tests of the cluster may add to it."""
    with suppress(OSError):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{sample} ")), 0.0)
    return 0.0


def test_metrics_of_a_binder(harness: BinderHarness) -> None:
    (node,) = harness.add_nodes(1)
    (port,) = free_ports(1)
    harness.pod_with_request("good", node)
    harness.pod_with_request("bad", node, receivedResourceType="Slice")
    with harness.binder(f"--listen-address=127.0.0.1:{port}"):
        harness.wait_for_end("good", "Succeeded")
        harness.wait_for_end("bad", "Failed")
        for result in ("bound", "given_up"):
            assert scraped(port, f'kai_binder_bind_attempts_total{{result="{result}"}}') >= 1
        for phase in ("Succeeded", "Failed"):
            counted = f'kai_binder_bind_requests{{phase="{phase}"}}'
            wait_until(lambda counted=counted: scraped(port, counted) >= 1, f"one request is {phase}")


def test_an_engine_without_a_binder_reports_stale_requests(harness: BinderHarness) -> None:
    harness.add_nodes(1)
    (port,) = free_ports(1)
    flags = ("--enable-metrics", f"--listen-address=127.0.0.1:{port}")
    with harness.run_batch_with_requests(*flags, settings=f"{SETTINGS}staleRequestSeconds: 1\n"):
        harness.gang("web", 1)
        wait_until(lambda: scraped(port, "kai_bindrequests_stale") >= 1, "the request is stale")
