"""The binder is started again with another namespace for reservations: who shares devices at that moment lives on."""

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
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    mine.add_nodes(1, room={"nvidia.com/gpu": "4"})
    mine.ensure_reservations()
    yield mine
    mine.close()


@pytest.fixture
def group(corner: BinderHarness) -> Iterator[str]:
    name = f"group-{corner.label[-40:]}".strip("-")
    yield name
    corner.release(name)


def test_running_pods_stay_and_others_come_to_their_device(corner: BinderHarness, group: str) -> None:
    corner.sharing("web", group)
    with corner.binder():
        corner.report_device(group)
        corner.wait_for_end("web", "Succeeded")
    (held,) = corner.reservations(group)
    is_up = {"status": {"phase": "Running"}}
    corner.api.patch("Pod", "web", is_up, sub="status")
    Api(corner.cluster, RESERVATIONS).patch("Pod", held["metadata"]["name"], is_up, sub="status")
    settings, home = corner.folder / "moved.yaml", f"holders-{corner.namespace[-40:]}"
    kind = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
    settings.write_text(f"{kind}resourceReservation: {{namespace: {home}}}\n")
    with corner.binder(f"--settings={settings}"):
        said = f"namespace {RESERVATIONS} has GPU reservations, and new ones are created in namespace {home}"
        wait_until(lambda: said in corner.binder_log(), "it says that they are elsewhere", why=corner.binder_log)
        corner.sharing("second", group)
        corner.wait_for_end("second", "Succeeded")  # before that the groups of the node were looked after
        pod = corner.api.pod("web")
        assert (node_name(pod), pod["metadata"].get("deletionTimestamp")) == (corner.nodes[0], None)
        assert [each["metadata"]["uid"] for each in corner.reservations(group)] == [held["metadata"]["uid"]]
        corner.check_invariants()
