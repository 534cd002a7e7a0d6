"""Probes are answered during a session of ten thousand pods; metrics, profiles and dumps tell what goes on."""

from __future__ import annotations

import gc
import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_builders import make_group, make_member
from batch_corner import GANGS, BatchCorner
from batch_world import engine_of
from bayplan.batch.outcome import Outcome
from bayplan.testing.builders import make_node
from cluster.run import Cluster, free_ports
from scheduling import until


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchCorner]:
    mine = BatchCorner(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def test_metrics_profiles_and_dumps(corner: BatchCorner) -> None:
    corner.add_nodes(1, cpu="4")
    health, numbers = free_ports(2)
    flags = (
        "--enable-healthz",
        f"--healthz-address=127.0.0.1:{health}",
        "--enable-metrics",
        "--enable-pprof",
        f"--listen-address=127.0.0.1:{numbers}",
        f"--cache-dump-dir={corner.folder}",
        "-v=3",
    )
    with corner.scheduling(*flags) as process:
        names = corner.gang("job", 2)
        corner.bound(names)
        until(lambda: page(health, "/readyz") == "ok", "it is ready")
        assert page(health, "/livez") == "ok"
        text = page(numbers, "/metrics")
        assert "volcano_pods_bound_total 2" in text
        assert 'volcano_action_scheduling_latency_milliseconds_count{action="allocate"}' in text
        assert 'volcano_queue_allocated_milli_cpu{queue_name="default"}' in text
        assert "function calls" in page(numbers, "/debug/pprof/profile?seconds=0.2")
        assert "Stack for" in page(numbers, "/debug/pprof/goroutine")
        believed = corner.believed(process)
        job = believed["jobs"][f"{corner.namespace}/job"]
        assert (job["queue"], sum(job["tasks"].values())) == ("default", 2)
        process.send_signal(signal.SIGUSR1)
        until(lambda: bool(list(corner.folder.glob("snapshot-*.json"))), "the dump is written")
        (dump,) = corner.folder.glob("snapshot-*.json")
        until(lambda: dump.read_text().endswith("}"), "all of it")
        assert f"{corner.namespace}/job" in json.loads(dump.read_text())["jobs"]
        assert '"Successfully bound pod to node"' in corner.log()


def test_no_step_of_a_session_of_ten_thousand_pods_holds_the_loop_for_long() -> None:
    """In processor time, so that a busy machine tells the same: a probe waits for one step, and for a slice."""
    size = 50
    nodes = [make_node(f"node-{number}", cpu=64) for number in range(500)]
    groups = [make_group(f"gang-{number}", min_member=size) for number in range(200)]
    pods = [
        make_member(f"{group.name}-w-{number}", group.name, requests={"cpu": "1"})
        for group in groups
        for number in range(size)
    ]
    engine = engine_of(conf=GANGS, nodes=nodes, pods=pods, objects=groups)
    gc.collect()
    gc.freeze()  # as the process does once everything is known
    try:
        for expected in (len(pods), 0):
            outcome, held, start_s = Outcome(), 0.0, time.thread_time()
            for _ in engine.turns(outcome):
                held, start_s = max(held, time.thread_time() - start_s), time.thread_time()
            held = max(held, time.thread_time() - start_s)
            assert len(outcome.binds) == expected
            assert held < 0.1
    finally:
        gc.unfreeze()
