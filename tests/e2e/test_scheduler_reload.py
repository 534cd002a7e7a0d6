"""Plugins of a folder that is mounted like a ConfigMap, changed while `bayplan scheduler` runs on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.scheduler_process import condition, node, node_name, pod, pods, run_scheduler, wait_until

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: KUBECONFIG, qps: 5000, burst: 10000}
leaderElection: {leaderElect: false}
podMaxBackoffSeconds: 1
profiles: [{plugins: {multiPoint: {enabled: [{name: Mine}]}}}]
"""
REFUSES = """
from bayplan.framework.api.status import unschedulable

class Mine:
    name = "Mine"
    events_to_register = ()

    def filter(self, cycle, node):
        return unschedulable("not in this version")
"""
PERMITS = REFUSES.replace('return unschedulable("not in this version")', "return None")
BROKEN = "class Mine(:\n"


class Mounted:
    """A folder as the kubelet mounts a ConfigMap: a link to a folder that is replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._version = 0
        folder.mkdir(mode=0o755)

    def put(self, source: str) -> None:
        self._version += 1
        new = self.folder / f"..{self._version}"
        new.mkdir(mode=0o755)
        (new / "mine.py").write_text(source)
        (new / "mine.py").chmod(0o644)
        link = self.folder / "..data_tmp"
        link.symlink_to(new.name)
        link.replace(self.folder / "..data")
        if not (self.folder / "mine.py").is_symlink():
            (self.folder / "mine.py").symlink_to("..data/mine.py")


@pytest.fixture
def a_node(cluster: Cluster) -> Iterator[str]:
    name = "node-of-reload"
    cluster.apply(node(name))
    yield name
    cluster.kubectl("delete", "node", name)


def test_a_changed_plugin_is_loaded_and_requeues_pods_that_the_old_one_rejected(
    cluster: Cluster, namespace: str, a_node: str, tmp_path: Path
) -> None:
    only = {"nodeSelector": {"kubernetes.io/hostname": a_node}}
    mounted = Mounted(tmp_path / "plugins")
    mounted.put(REFUSES)

    def log() -> str:
        (path,) = tmp_path.glob("scheduler-*.log")
        return path.read_text()

    with run_scheduler(cluster, tmp_path, "--plugins-dir", str(mounted.folder), config=CONFIG) as process:
        cluster.apply(pod("first", namespace, **only))
        wait_until(lambda: bool(condition(pods(cluster, namespace)["first"])), "the pod has a condition")
        assert "not in this version" in condition(pods(cluster, namespace)["first"])["message"]
        mounted.put(BROKEN)
        wait_until(lambda: "the previous ones stay in use" in log(), "the broken file is logged")
        cluster.apply(pod("second", namespace, **only))
        wait_until(lambda: bool(condition(pods(cluster, namespace)["second"])), "the last good plugin goes on")
        mounted.put(PERMITS)
        wait_until(lambda: all(map(node_name, pods(cluster, namespace).values())), "both pods have a node")
        assert process.poll() is None
        assert log().count("the previous ones stay in use") == 1
