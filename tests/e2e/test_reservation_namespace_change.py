"""A restart of the binder with another reservation namespace: pods that share devices keep running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api import Api
from cluster.run import Cluster
from support.e2e.bind_watcher import RESERVATIONS
from support.e2e.binder_harness import BinderHarness
from support.e2e.scheduler_process import node_name, wait_until


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    mine.add_nodes(1, room={"nvidia.com/gpu": "4"})
    mine.ensure_reservations()
    yield mine
    mine.close()


@pytest.fixture
def group(harness: BinderHarness) -> Iterator[str]:
    name = f"group-{harness.label[-40:]}".strip("-")
    yield name
    harness.release(name)


def test_running_pods_stay_and_new_ones_share_their_device(harness: BinderHarness, group: str) -> None:
    harness.create_gpu_sharing_pod("web", group)
    with harness.binder():
        harness.report_device(group)
        harness.wait_for_end("web", "Succeeded")
    (held,) = harness.reservations(group)
    is_up = {"status": {"phase": "Running"}}
    harness.api.patch("Pod", "web", is_up, sub="status")
    Api(harness.cluster, RESERVATIONS).patch("Pod", held["metadata"]["name"], is_up, sub="status")
    settings, home = harness.folder / "moved.yaml", f"holders-{harness.namespace[-40:]}"
    kind = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
    settings.write_text(f"{kind}resourceReservation: {{namespace: {home}}}\n")
    with harness.binder(f"--settings={settings}"):
        said = f"namespace {RESERVATIONS} has GPU reservations, and new ones are created in namespace {home}"
        wait_until(lambda: said in harness.binder_log(), "it says that they are elsewhere", why=harness.binder_log)
        harness.create_gpu_sharing_pod("second", group)
        harness.wait_for_end("second", "Succeeded")  # before that the binder has synced the groups of the node
        pod = harness.api.pod("web")
        assert (node_name(pod), pod["metadata"].get("deletionTimestamp")) == (harness.nodes[0], None)
        assert [each["metadata"]["uid"] for each in harness.reservations(group)] == [held["metadata"]["uid"]]
        harness.check_invariants()
