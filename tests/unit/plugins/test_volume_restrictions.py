"""VolumeRestrictions: disks with one user for each node, claims with one user in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.framework.api.status import Code
from bayplan.objects.core import Pod
from bayplan.objects.volumes import GcePersistentDisk, Volume
from bayplan.plugins.volume_restrictions import CLAIM_IN_USE, DISK_CONFLICT, STATE, VolumeRestrictions
from bayplan.snapshot import NodeInfo, PodInfo
from support.builders.framework import (
    FEASIBLE,
    FakeHandle,
    errored,
    evaluate_hints,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_snapshot,
    rejected,
    run_filter,
    unresolvable,
)
from support.builders.volumes import claim_volume, make_claim, volume_pod

DISK = Volume(name="disk", gce_persistent_disk=GcePersistentDisk("d"))
ALONE = make_claim("alone", modes=("ReadWriteOncePod",))
SHARED = make_claim("shared", modes=("ReadWriteMany",))
N1, N2 = make_node("n1"), make_node("n2")


def ask(pod: Pod, *pods: Pod, objects: Any = (ALONE, SHARED)) -> dict[str, Any]:
    return run_filter(VolumeRestrictions, pod, N1, N2, pods=pods, objects=objects)


def test_a_disk_in_use_rejects_its_node_only() -> None:
    assert ask(volume_pod(DISK), volume_pod(DISK, name="user", node="n1")) == {
        "n1": rejected(DISK_CONFLICT),
        "n2": FEASIBLE,
    }


def test_an_exclusive_claim_in_use_rejects_every_node() -> None:
    answers = ask(volume_pod(claim_volume("alone")), volume_pod(claim_volume("alone"), name="user", node="n2"))
    assert answers == {"n1": rejected(CLAIM_IN_USE), "n2": rejected(CLAIM_IN_USE)}


def test_the_disk_conflict_is_reported_before_the_claim() -> None:
    pod = volume_pod(DISK, claim_volume("alone"))
    user = volume_pod(DISK, claim_volume("alone"), name="user", node="n1")
    assert ask(pod, user) == {"n1": rejected(DISK_CONFLICT), "n2": rejected(CLAIM_IN_USE)}


@pytest.mark.parametrize(
    "user",
    [
        pytest.param(volume_pod(claim_volume("shared"), name="user", node="n1"), id="shared claim"),
        pytest.param(volume_pod(claim_volume("alone"), name="user", namespace="ml", node="n1"), id="another namespace"),
        pytest.param(volume_pod(claim_volume("alone"), name="user"), id="not on a node"),
    ],
)
def test_claims_that_do_not_matter_are_skipped(user: Pod) -> None:
    snapshot = make_snapshot([N1], [user], [ALONE, SHARED])
    plugin = make_plugin(VolumeRestrictions, handle=FakeHandle(snapshot.catalog))
    status = plugin.pre_filter(make_cycle(volume_pod(claim_volume("alone"), claim_volume("shared")), snapshot))
    assert status.code is Code.SKIP


def test_a_missing_claim_rejects_the_pod() -> None:
    text = 'persistentvolumeclaim "alone" not found'
    assert ask(volume_pod(claim_volume("alone")), objects=()) == {"n1": unresolvable(text), "n2": unresolvable(text)}


def test_added_pods_are_counted_by_claim_name_only() -> None:
    user = volume_pod(claim_volume("alone"), claim_volume("alone", "again"), name="user", node="n1")
    namesake = volume_pod(claim_volume("alone"), name="namesake", namespace="ml")
    snapshot = make_snapshot([N1], [user], [ALONE])
    plugin = make_plugin(VolumeRestrictions, handle=FakeHandle(snapshot.catalog))
    cycle = make_cycle(volume_pod(claim_volume("alone")), snapshot)
    assert plugin.pre_filter(cycle) is None
    assert cycle.get(STATE).uses == 1
    trial, node = cycle.clone(), NodeInfo(snapshot.nodes, 0)
    plugin.remove_pod(trial, PodInfo(user), node)
    assert trial.get(STATE).uses == -1  # two volumes of one pod: both are subtracted
    plugin.add_pod(trial, PodInfo(namesake), node)
    plugin.add_pod(trial, PodInfo(volume_pod(claim_volume("shared"))), node)
    assert trial.get(STATE).uses == 0
    assert cycle.get(STATE).uses == 1


def test_without_pre_filter_it_fails_on_nodes_without_a_disk_conflict() -> None:
    snapshot = make_snapshot([N1, N2], [volume_pod(DISK, name="user", node="n1")])
    plugin = make_plugin(VolumeRestrictions, handle=FakeHandle(snapshot.catalog))
    cycle = make_cycle(volume_pod(DISK), snapshot)
    verdicts = make_filtering(plugin).filter_table(cycle, snapshot.table)
    text = 'running "VolumeRestrictions" filter plugin: cannot read "PreFilterVolumeRestrictions" from cycleState'
    found = [(verdicts.status(row).code.label, verdicts.status(row).reasons) for row in range(2)]
    assert found == [rejected(DISK_CONFLICT), errored(text)]


def test_only_pods_without_claims_and_disks_share_answers() -> None:
    plugin = make_plugin(VolumeRestrictions)
    assert plugin.signature(volume_pod(Volume(name="token"))) == plugin.signature(volume_pod())
    assert plugin.signature(volume_pod(DISK)) is None
    assert plugin.signature(volume_pod(claim_volume("c"))) is None


@pytest.mark.parametrize(
    ("deleted", "expected"),
    [
        pytest.param(volume_pod(DISK, name="x"), "Queue", id="held our disk"),
        pytest.param(volume_pod(claim_volume("alone"), name="x"), "Queue", id="held our claim"),
        pytest.param(volume_pod(claim_volume("other"), name="x"), "Skip", id="another claim"),
        pytest.param(volume_pod(DISK, claim_volume("alone"), name="x", namespace="ml"), "Skip", id="another namespace"),
    ],
)
def test_which_deleted_pods_may_help(deleted: Pod, expected: str) -> None:
    assert evaluate_hints(VolumeRestrictions, "Pod", volume_pod(DISK, claim_volume("alone")), deleted, None) == [
        expected
    ]


def test_which_new_claims_may_help() -> None:
    def hint(name: str, namespace: str = "default") -> list[str]:
        pod = volume_pod(claim_volume("c"))
        return evaluate_hints(
            VolumeRestrictions, "PersistentVolumeClaim", pod, None, make_claim(name, namespace=namespace)
        )

    assert (hint("c"), hint("d"), hint("c", "ml")) == (["Queue"], ["Skip"], ["Skip"])
