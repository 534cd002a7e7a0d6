"""A live cluster is recorded, and the decisions that its schedulers made are made again."""

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
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def bayplan(*arguments: object, may_differ: bool = False) -> str:
    command = [sys.executable, "-m", "bayplan", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in ((0, 1) if may_differ else (0,)), done.stderr
    return done.stdout


def recorded(corner: BatchSchedulerHarness, name: str = "cluster.jsonl.gz", *options: str) -> Path:
    path = corner.folder / name
    told = bayplan("record", path, f"--kubeconfig={corner.cluster.kubeconfig()}", *options)
    assert " decisions" in told
    return path


@contextmanager
def following(corner: BatchSchedulerHarness, path: Path) -> Iterator[None]:
    """`bayplan record --follow`, from when it has seen the cluster until Ctrl-C; then it has written the file."""
    command = [sys.executable, "-m", "bayplan", "record", path, "--follow"]
    kubeconfig = f"--kubeconfig={corner.cluster.kubeconfig()}"
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


def replayed(corner: BatchSchedulerHarness, path: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The nodes that a replay gives to this test's pods, and what differs about them: others may have left some."""
    found = json.loads(bayplan("replay", path, "-o", "json", may_differ=True))
    mine = f"{corner.namespace}/"
    nodes = {each["pod"]: each.get("node", "") for each in found["replayed"] if each["pod"].startswith(mine)}
    return nodes, [each for each in found["differences"] if each["pod"].startswith(mine)]


def shown(corner: BatchSchedulerHarness) -> dict[str, str]:
    return {f"{corner.namespace}/{name}": node_name(pod) for name, pod in corner.api.pods().items()}


def waits(corner: BatchSchedulerHarness, *names: str) -> None:
    for name in names:
        wait_until(lambda name=name: bool(condition(corner.api.pod(name)).get("message")), f"{name} is told why")  # type: ignore[misc]


def test_pods_that_were_scheduled_live_are_replayed_to_the_same_nodes(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(2, cpu="4")
    corner.add_nodes(2, cpu="8")
    with corner.run_scheduler():
        for number, cpu in enumerate(("1", "2", "500m", "3", "1", "2")):
            corner.api.create(corner.pod(f"one-{number}", cpu=cpu))
            corner.wait_bound([f"one-{number}"])
        corner.api.create(*(corner.pod(f"many-{number}", cpu="250m") for number in range(20)))
        corner.api.create(corner.pod("giant", cpu="64"))
        corner.wait_bound([f"many-{number}" for number in range(20)])
        waits(corner, "giant")
    path = recorded(corner)
    nodes, differences = replayed(corner, path)
    assert differences == []
    assert nodes == shown(corner)
    assert nodes[f"{corner.namespace}/giant"] == ""


def test_what_happens_while_a_cluster_is_followed_is_replayed(corner: BatchSchedulerHarness) -> None:
    small, *_ = corner.add_nodes(1, cpu="2")
    corner.add_nodes(1, cpu="8")
    path = corner.folder / "story.jsonl.gz"
    decided = {}
    with corner.run_scheduler(), following(corner, path):
        for name, cpu in (("first", "7"), ("second", "1")):
            corner.api.create(corner.pod(name, cpu=cpu))
            corner.wait_bound([name])
            decided[f"{corner.namespace}/{name}"] = node_name(corner.api.pod(name))
        corner.api.create(corner.pod("third", cpu="6"))
        waits(corner, "third")
        corner.api.delete_all("Pod", ["first"])
        corner.wait_bound(["third"])  # where the first was, which nobody sees any more
        decided[f"{corner.namespace}/third"] = node_name(corner.api.pod("third"))
    assert decided[f"{corner.namespace}/third"] != small
    assert f"{corner.namespace}/first" not in shown(corner)
    assert replayed(corner, path) == (decided, [])


HANDING = """
class Handing:
    name = "Handing"

    def mutate_bind_request(self, cycle, node_name):
        return {"handing.kai.scheduler/pod": cycle.pod.name}
"""


def test_what_plugins_handed_to_the_binder_is_recorded_and_replayed(corner: BinderHarness) -> None:
    corner.add_nodes(2)
    plugins = corner.folder / "plugins"
    plugins.mkdir(mode=0o755)
    (plugins / "handing.py").write_text(HANDING)
    profiles = BY_BINDER.replace("[{name: BindRequestBinder}]", "[{name: Handing}, {name: BindRequestBinder}]")
    with corner.run_scheduler(f"--plugins-dir={plugins}", config=short_backoff_config(profiles)), corner.binder():
        corner.api.create(corner.pod("web"))
        request = corner.wait_for_end("web", "Succeeded")
    assert request["metadata"]["annotations"] == {"handing.kai.scheduler/pod": "web"}
    found = json.loads(bayplan("replay", recorded(corner), "-o", "json", may_differ=True))
    (web,) = (each for each in found["replayed"] if each["pod"] == f"{corner.namespace}/web")
    assert web["annotations"] == request["metadata"]["annotations"]
    assert web["node"] == request["spec"]["selectedNode"]


def test_gangs_that_were_scheduled_live_are_replayed_to_the_same_nodes(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(2, cpu="4")
    corner.add_nodes(1, cpu="6")
    with corner.run_batch():
        for name, size in (("one", 3), ("two", 4)):
            corner.wait_bound(corner.gang(name, size))
        giant = corner.gang("giant", 3, cpu="5")
        waits(corner, *giant)
    path = recorded(corner, "gangs.jsonl.gz", f"--scheduler-conf={corner.conf}")
    nodes, differences = replayed(corner, path)
    assert differences == []
    assert nodes == shown(corner)


def test_both_engines_are_recorded_without_names_and_asked_what_if(corner: BatchSchedulerHarness) -> None:
    node, *_ = corner.add_nodes(3, cpu="4")
    with corner.run_combined():
        for number in range(3):
            corner.api.create(corner.pod(f"single-{number}", cpu="1"))
            corner.wait_bound([f"single-{number}"])
            corner.wait_bound(corner.gang(f"gang-{number}", 2))
        giant = corner.gang("giant", 4, cpu="3")
        waits(corner, *giant)
    options = (f"--scheduler-conf={corner.conf}",)
    path = recorded(corner, "both.jsonl", *options)
    assert replayed(corner, path) == (shown(corner), [])
    anonymous = recorded(corner, "anonymous.jsonl", "--anonymous", *options)
    assert corner.label not in anonymous.read_text()
    named, unnamed = (json.loads(bayplan("replay", each, "-o", "json", may_differ=True)) for each in (path, anonymous))
    assert (named["decisions"], named["different"]) == (unnamed["decisions"], unnamed["different"])
    change = corner.folder / "change.yaml"
    change.write_text(CHANGE.replace("NODE", node))
    asked = ("whatif", "-f", change, "-o", "json", *options)
    live = json.loads(bayplan(*asked, f"--kubeconfig={corner.cluster.kubeconfig()}"))
    landed = {each["pod"]: each["then"] for each in live["lands"] if each["pod"].startswith(f"{corner.namespace}/")}
    assert set(landed) == {f"{corner.namespace}/{name}" for name in giant}
    assert all(place.startswith(f"{node}-copy-") for place in landed.values())
    kept = json.loads(bayplan(*asked, "--from", path))
    assert [each["pod"] for each in kept["lands"]] == [each["pod"] for each in live["lands"]]
