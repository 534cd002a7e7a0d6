"""The configuration and a plugin file change while gangs come and go: no session fails because of it."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.run import Cluster, free_ports
from support.e2e.batch_harness import GANGS, BatchSchedulerHarness
from support.e2e.scheduler_process import wait_until
from support.harness.deadlines import DEADLINE_S

PLUGIN = """
class Favourite:
    name = "favourite"

    def __init__(self, arguments):
        pass

    def on_session_open(self, session):
        session.add_node_order_fn(self.name, lambda task, node: 1000.0 if node.name.endswith("SUFFIX") else 0.0)
"""


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


@contextmanager
def load(harness: BatchSchedulerHarness) -> Iterator[list[str]]:
    """Create gangs of two, one after another, and delete them; yields their pods."""
    made: list[str] = []
    over = threading.Event()

    def work() -> None:
        number = 0
        while not over.is_set():
            names = harness.gang(f"load-{number}", 2, cpu="100m")
            harness.wait_bound(names)
            harness.api.delete_all("Pod", names)
            harness.api.delete_all("PodGroup", [f"load-{number}"])
            made.extend(names)
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()


def sessions(port: int) -> int:
    """Number of sessions, by the metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        text = answer.read().decode()
    name = "volcano_e2e_scheduling_latency_milliseconds_count"
    return int(float(next(line.split()[1] for line in text.splitlines() if line.startswith(name))))


def test_configuration_and_plugins_change_under_load(harness: BatchSchedulerHarness, tmp_path: Path) -> None:
    nodes = harness.add_nodes(3, cpu="8")
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o755)
    file = plugins / "favourite.py"

    def write(text: str) -> None:
        fresh = tmp_path / ".fresh.py"
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.replace(file)

    def placed(name: str) -> str:
        (pod,) = harness.gang(name, 1, cpu="100m")
        harness.wait_bound([pod])
        return harness.nodes_of([pod])[0]

    write(PLUGIN.replace("SUFFIX", "-0"))
    (port,) = free_ports(1)
    flags = ("--enable-metrics", f"--listen-address=127.0.0.1:{port}", f"--plugins-dir={plugins}")
    with harness.run_batch(*flags) as process, load(harness) as made:
        wait_until(lambda: len(made) >= 2, "the load runs")
        harness.write_conf(GANGS.replace("  - name: nodeorder\n", "  - name: favourite\n"))
        wait_until(lambda: harness.log().count("is in force") >= 3, "the new configuration is in force")
        assert placed("first") == nodes[0]
        write(PLUGIN.replace("SUFFIX", "-1"))
        wait_until(lambda: "plugins are reloaded" in harness.log(), "the plugin is reloaded")
        assert placed("second") == nodes[1]
        write("class Favourite(:\n")
        harness.write_conf("actions: nonsense")
        wait_until(lambda: "plugins are not reloaded" in harness.log(), "the broken file is named")
        wait_until(lambda: "nonsense" in harness.log(), "the broken configuration is named")
        before, start_s = sessions(port), time.monotonic()
        assert placed("third") == nodes[1]  # the last valid ones stay in use
        wait_until(lambda: sessions(port) >= before + 5, "sessions go on")
        so_far = len(made)
        wait_until(lambda: len(made) >= so_far + 2, "so does the load")
        assert process.poll() is None, json.dumps({"after_s": time.monotonic() - start_s})
        assert "aborted" not in harness.log(), "every session came to its end"
    harness.check_no_overcommit()
