"""Recording of a live cluster, and replay of the decisions of its schedulers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.run import Cluster
from support.e2e.batch_harness import BatchSchedulerHarness
from support.e2e.binder_harness import BY_BINDER, BinderHarness
from support.e2e.scheduler_harness import short_backoff_config
from support.e2e.scheduler_process import condition, node_name, wait_until
from support.harness.deadlines import DEADLINE_S

CHANGE = """
apiVersion: bayplan.dev/v1alpha1
kind: WhatIf
nodes: {add: [{like: NODE, count: 4}]}
"""


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def bayplan(*arguments: object, may_differ: bool = False) -> str:
    command = [sys.executable, "-m", "bayplan", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in ((0, 1) if may_differ else (0,)), done.stderr
    return done.stdout


def recorded(harness: BatchSchedulerHarness, name: str = "cluster.jsonl.gz", *options: str) -> Path:
    path = harness.folder / name
    output = bayplan("record", path, f"--kubeconfig={harness.cluster.kubeconfig()}", *options)
    assert " decisions" in output
    return path


@contextmanager
def following(harness: BatchSchedulerHarness, path: Path) -> Iterator[None]:
    """`bayplan record --follow`, from its first complete state until Ctrl-C; then the file is complete."""
    command = [sys.executable, "-m", "bayplan", "record", path, "--follow"]
    kubeconfig = f"--kubeconfig={harness.cluster.kubeconfig()}"
    with subprocess.Popen(
        [*command, kubeconfig], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as recorder:
        try:
            assert recorder.stderr is not None
            began = any(line.startswith("recording ") for line in recorder.stderr)
            assert began
            yield
            recorder.send_signal(signal.SIGINT)
            out, _ = recorder.communicate(timeout=DEADLINE_S)
        finally:
            recorder.kill()
    assert recorder.returncode == 0
    assert " decisions, " in out


def replayed(harness: BatchSchedulerHarness, path: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The nodes that a replay gives to this test's pods, and the differences; the cluster may have other tests'
    objects.
    """
    found = json.loads(bayplan("replay", path, "-o", "json", may_differ=True))
    mine = f"{harness.namespace}/"
    nodes = {each["pod"]: each.get("node", "") for each in found["replayed"] if each["pod"].startswith(mine)}
    return nodes, [each for each in found["differences"] if each["pod"].startswith(mine)]


def shown(harness: BatchSchedulerHarness) -> dict[str, str]:
    return {f"{harness.namespace}/{name}": node_name(pod) for name, pod in harness.api.pods().items()}


def waits(harness: BatchSchedulerHarness, *names: str) -> None:
    for name in names:
        wait_until(lambda name=name: bool(condition(harness.api.pod(name)).get("message")), f"{name} has a reason")  # type: ignore[misc]


def test_live_pods_are_replayed_to_the_same_nodes(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(2, cpu="4")
    harness.add_nodes(2, cpu="8")
    with harness.run_scheduler():
        for number, cpu in enumerate(("1", "2", "500m", "3", "1", "2")):
            harness.api.create(harness.pod(f"one-{number}", cpu=cpu))
            harness.wait_bound([f"one-{number}"])
        harness.api.create(*(harness.pod(f"many-{number}", cpu="250m") for number in range(20)))
        harness.api.create(harness.pod("giant", cpu="64"))
        harness.wait_bound([f"many-{number}" for number in range(20)])
        waits(harness, "giant")
    path = recorded(harness)
    nodes, differences = replayed(harness, path)
    assert differences == []
    assert nodes == shown(harness)
    assert nodes[f"{harness.namespace}/giant"] == ""


def test_changes_while_following_are_replayed(harness: BatchSchedulerHarness) -> None:
    small, *_ = harness.add_nodes(1, cpu="2")
    harness.add_nodes(1, cpu="8")
    path = harness.folder / "story.jsonl.gz"
    decided = {}
    with harness.run_scheduler(), following(harness, path):
        for name, cpu in (("first", "7"), ("second", "1")):
            harness.api.create(harness.pod(name, cpu=cpu))
            harness.wait_bound([name])
            decided[f"{harness.namespace}/{name}"] = node_name(harness.api.pod(name))
        harness.api.create(harness.pod("third", cpu="6"))
        waits(harness, "third")
        harness.api.delete_all("Pod", ["first"])
        harness.wait_bound(["third"])  # the node of the first pod, which is deleted
        decided[f"{harness.namespace}/third"] = node_name(harness.api.pod("third"))
    assert decided[f"{harness.namespace}/third"] != small
    assert f"{harness.namespace}/first" not in shown(harness)
    assert replayed(harness, path) == (decided, [])


HANDING = """
class Handing:
    name = "Handing"

    def mutate_bind_request(self, cycle, node_name):
        return {"handing.kai.scheduler/pod": cycle.pod.name}
"""


def test_annotations_for_the_binder_are_recorded_and_replayed(harness: BinderHarness) -> None:
    harness.add_nodes(2)
    plugins = harness.folder / "plugins"
    plugins.mkdir(mode=0o755)
    (plugins / "handing.py").write_text(HANDING)
    profiles = BY_BINDER.replace("[{name: BindRequestBinder}]", "[{name: Handing}, {name: BindRequestBinder}]")
    with harness.run_scheduler(f"--plugins-dir={plugins}", config=short_backoff_config(profiles)), harness.binder():
        harness.api.create(harness.pod("web"))
        request = harness.wait_for_end("web", "Succeeded")
    assert request["metadata"]["annotations"] == {"handing.kai.scheduler/pod": "web"}
    found = json.loads(bayplan("replay", recorded(harness), "-o", "json", may_differ=True))
    (web,) = (each for each in found["replayed"] if each["pod"] == f"{harness.namespace}/web")
    assert web["annotations"] == request["metadata"]["annotations"]
    assert web["node"] == request["spec"]["selectedNode"]


def test_live_gangs_are_replayed_to_the_same_nodes(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(2, cpu="4")
    harness.add_nodes(1, cpu="6")
    with harness.run_batch():
        for name, size in (("one", 3), ("two", 4)):
            harness.wait_bound(harness.gang(name, size))
        giant = harness.gang("giant", 3, cpu="5")
        waits(harness, *giant)
    path = recorded(harness, "gangs.jsonl.gz", f"--scheduler-conf={harness.conf}")
    nodes, differences = replayed(harness, path)
    assert differences == []
    assert nodes == shown(harness)


def test_both_engines_are_recorded_without_names_and_asked_what_if(harness: BatchSchedulerHarness) -> None:
    node, *_ = harness.add_nodes(3, cpu="4")
    with harness.run_combined():
        for number in range(3):
            harness.api.create(harness.pod(f"single-{number}", cpu="1"))
            harness.wait_bound([f"single-{number}"])
            harness.wait_bound(harness.gang(f"gang-{number}", 2))
        giant = harness.gang("giant", 4, cpu="3")
        waits(harness, *giant)
    options = (f"--scheduler-conf={harness.conf}",)
    path = recorded(harness, "both.jsonl", *options)
    assert replayed(harness, path) == (shown(harness), [])
    anonymous = recorded(harness, "anonymous.jsonl", "--anonymous", *options)
    assert harness.label not in anonymous.read_text()
    named, unnamed = (json.loads(bayplan("replay", each, "-o", "json", may_differ=True)) for each in (path, anonymous))
    assert (named["decisions"], named["different"]) == (unnamed["decisions"], unnamed["different"])
    change = harness.folder / "change.yaml"
    change.write_text(CHANGE.replace("NODE", node))
    asked = ("whatif", "-f", change, "-o", "json", *options)
    live = json.loads(bayplan(*asked, f"--kubeconfig={harness.cluster.kubeconfig()}"))
    landed = {each["pod"]: each["then"] for each in live["lands"] if each["pod"].startswith(f"{harness.namespace}/")}
    assert set(landed) == {f"{harness.namespace}/{name}" for name in giant}
    assert all(place.startswith(f"{node}-copy-") for place in landed.values())
    kept = json.loads(bayplan(*asked, "--from", path))
    assert [each["pod"] for each in kept["lands"]] == [each["pod"] for each in live["lands"]]
