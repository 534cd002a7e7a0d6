"""`bayplan.Cluster` in scripts, notebooks and tests, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bayplan import Cluster
from bayplan.app.api import WaitTimedOut
from bayplan.errors import ObjectError, UsageError
from support.harness.async_tests import async_test


def pod(name: str, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def gang(name: str, size: int) -> dict[str, Any]:
    """A gang of pods of which no two fit on one node."""
    task = {"name": "worker", "replicas": size, "template": {"spec": pod(name, "3", restartPolicy="Never")["spec"]}}
    spec = {"schedulerName": "volcano", "minAvailable": size, "tasks": [task]}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def stateful_set(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod(name)["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


@async_test
async def test_pods_run_or_are_reported_unschedulable(tmp_path: Path) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod("from-a-file")))
    async with Cluster(nodes=["web=1", "gpu=1:cpu=64"], zones=2) as cluster:
        applied = await cluster.apply(pod("small"), json.dumps(pod("big", "40")), file, pod("giant", "100"))
        assert [str(each) for each in applied] == [
            f"pod/{name} created" for name in ("small", "big", "from-a-file", "giant")
        ]
        assert await cluster.wait_placed("big") == "gpu-0"
        running = await cluster.wait_for(lambda each: each.status.phase == "Running", "big")
        assert running.spec.node_name == "gpu-0"
        assert "the only node that fits" in cluster.why("big")
        assert (await cluster.wait_unschedulable("giant")).startswith("0/2 nodes are available: 2 Insufficient cpu.")
        assert cluster.why("unknown") == "the scheduler has not decided about it"
        assert [each.name for each in await cluster.pods()] == ["big", "from-a-file", "giant", "small"]
        with pytest.raises(WaitTimedOut, match=r"default/giant did not have a node within 0\.01 s"):
            await cluster.wait_placed("giant", timeout_s=0.01)
        with pytest.raises(WaitTimedOut, match=r"default/small did not become unschedulable within 0\.01 s"):
            await cluster.wait_unschedulable("small", timeout_s=0.01)


@async_test
async def test_controllers_create_pods() -> None:
    async with Cluster(nodes=2) as cluster:
        await cluster.apply(stateful_set("db", 2))
        assert await cluster.wait_placed("db-1", timeout_s=60) in ("node-0", "node-1")
        assert [each.name for each in await cluster.pods(selector="app=db")] == ["db-0", "db-1"]


@async_test
async def test_a_claim_gets_a_volume_from_the_default_class() -> None:
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": storage}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    async with Cluster(nodes=1) as cluster:
        await cluster.apply(claim, pod("user", volumes=volumes))
        running = await cluster.wait_for(lambda each: each.status.phase == "Running", "user")
        assert running.spec.node_name == "node-0"


@async_test
async def test_without_a_scheduler_no_pod_is_placed() -> None:
    async with Cluster(nodes=1, scheduler=False, controllers=False) as cluster:
        await cluster.apply(pod("lonely"))
        await cluster.wait_for(lambda each: each.status.phase == "Pending", "lonely")
        with pytest.raises(WaitTimedOut, match="default/lonely did not have a node"):
            await cluster.wait_placed("lonely", timeout_s=0.05)
        with pytest.raises(UsageError, match="has no scheduler"):
            cluster.why("lonely")


def test_a_cluster_without_an_event_loop_runs_in_a_thread() -> None:
    taint = {"key": "gpu", "effect": "NoSchedule"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "mine"}, "spec": {"taints": [taint]}}
    with Cluster(nodes=["web=1", node]) as cluster:
        cluster.run(cluster.apply(pod("web"), pod("guest", tolerations=[{"operator": "Exists"}], nodeName="mine")))
        assert cluster.run(cluster.wait_placed("web")) == "web-0"
        assert cluster.run(cluster.wait_placed("guest")) == "mine"
        server = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        assert server == cluster.url
        folder = cluster.kubeconfig.parent
    assert not folder.exists()
    with pytest.raises(UsageError, match="is not started"):
        _ = cluster.url


@async_test
async def test_wrong_calls_are_errors() -> None:
    cluster = Cluster(nodes=0)
    with pytest.raises(UsageError, match="is not started"):
        _ = cluster.client
    async with cluster:
        with pytest.raises(UsageError, match="is up already"):
            await cluster.start()
        with pytest.raises(UsageError, match="use await"):
            cluster.run(cluster.pods())
        with pytest.raises(ObjectError, match=r"no metadata\.name"):
            await cluster.apply({"apiVersion": "v1", "kind": "Pod"})
        with pytest.raises(ObjectError, match='the server has no kind "Ship" in v1'):
            await cluster.apply({"apiVersion": "v1", "kind": "Ship", "metadata": {"name": "maria"}})


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        pytest.param("many", "^nodes='many': 'many' is no number of nodes", id="no-pool"),
        pytest.param(["a=1", "B_=2"], "^nodes='B_=2': 'B_' is no name for nodes", id="no-pool-name"),
        pytest.param([7], "a Node manifest as a mapping", id="no-manifest"),
        pytest.param([{"kind": "Node"}], "has no metadata.name", id="no-name"),
        pytest.param(["a=1", "a=2"], "two pools of the name a", id="twins"),
    ],
)
def test_invalid_nodes_are_usage_errors(nodes: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Cluster(nodes=nodes)


def test_invalid_configurations_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"config='nope.yaml' is not a configuration; give a file as Path\('nope.yaml'\)"
    ):
        Cluster(config="nope.yaml")
    with pytest.raises(UsageError, match=r"batch='nope.conf' is not a configuration; give a file as Path"):
        Cluster(batch="nope.conf")
    with pytest.raises(
        UsageError, match=r"config: .*/nope cannot be read: No such file or directory; give a readable file"
    ):
        Cluster(config=tmp_path / "nope")
    with pytest.raises(UsageError, match="leave out scheduler=False"):
        Cluster(batch=True, scheduler=False)


CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: gang}, {name: predicates}, {name: nodeorder}]
"""


@pytest.mark.parametrize("batch", [True, CONF], ids=["default", "text"])
@async_test
async def test_gangs_start_as_a_whole_or_not_at_all(batch: bool | str) -> None:
    async with Cluster(nodes="node=2:cpu=4", batch=batch) as cluster:
        await cluster.apply(pod("single"), gang("large", 3), gang("small", 2))
        assert await cluster.wait_placed("single")
        assert cluster.why("single").startswith("best of 2")
        nodes = {await cluster.wait_placed(f"small-worker-{number}") for number in range(2)}
        assert nodes == {"node-0", "node-1"}
        assert [each.name for each in await cluster.pods() if each.spec.node_name] == [
            "single",
            "small-worker-0",
            "small-worker-1",
        ]


def test_a_failed_start_removes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Cluster(nodes=0) as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port}"), Cluster(nodes=0, port=port):
            pass
    assert list(tmp_path.iterdir()) == []
