"""NodeVolumeLimits: nodes attach no more volumes than their drivers can."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.cache.cache import Cache
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.status import Code
from bayplan.objects.core import Pod
from bayplan.objects.volumes import AwsElasticBlockStore, AzureDisk, AzureFile, IscsiVolume, Volume
from bayplan.plugins.node_volume_limits.plugin import REASON, NodeVolumeLimits
from bayplan.snapshot import NodeTable, PodInfo
from bayplan.volumes.errors import VolumeError
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
from support.builders.volumes import (
    claim_volume,
    ephemeral,
    make_attachment,
    make_claim,
    make_class,
    make_csi_node,
    make_volume,
    volume_pod,
)

FULL = rejected(REASON)
N1, N2 = make_node("n1"), make_node("n2")
EBS = Volume(name="disk", aws_elastic_block_store=AwsElasticBlockStore("vol-1"))


def bound(*names: str) -> list[Any]:
    """Claims, each with a CSI volume of its own."""
    claims = [make_claim(name, volume=f"pv-{name}") for name in names]
    return [*claims, *(make_volume(f"pv-{name}", handle=name) for name in names)]


def ask(pod: Pod, *pods: Pod, objects: list[Any]) -> dict[str, Any]:
    return run_filter(NodeVolumeLimits, pod, N1, N2, pods=pods, objects=objects)


def limited(count: int | None = 1) -> Any:
    return make_csi_node("n1", csi_example_com=count)


POD = volume_pod(claim_volume("a"))
USER = volume_pod(claim_volume("b"), name="user", node="n1")


@pytest.mark.parametrize(
    ("pod", "user", "csi_node", "answer"),
    [
        pytest.param(POD, None, limited(1), FEASIBLE, id="room"),
        pytest.param(POD, None, limited(0), FULL, id="no room at all"),
        pytest.param(POD, USER, limited(1), FULL, id="taken"),
        pytest.param(POD, USER, limited(2), FEASIBLE, id="room for two"),
        pytest.param(POD, USER, limited(None), FEASIBLE, id="no limit"),
        pytest.param(POD, USER, make_csi_node("n1", other=0), FEASIBLE, id="another driver"),
        pytest.param(
            POD, volume_pod(claim_volume("a"), name="user", node="n1"), limited(1), FEASIBLE, id="shared volume"
        ),
        pytest.param(
            volume_pod(claim_volume("a"), claim_volume("b", "w")), None, limited(1), FULL, id="two of its own"
        ),
        pytest.param(
            volume_pod(claim_volume("a"), claim_volume("a", "w")), None, limited(1), FEASIBLE, id="one volume twice"
        ),
    ],
)
def test_limits(pod: Pod, user: Pod | None, csi_node: Any, answer: Any) -> None:
    pods = [] if user is None else [user]
    assert ask(pod, *pods, objects=[*bound("a", "b"), csi_node]) == {"n1": answer, "n2": FEASIBLE}


def test_a_limit_of_one_driver_does_not_concern_another() -> None:
    other = [make_claim("b", volume="pv-b"), make_volume("pv-b", handle="b", driver="other")]
    objects = [*bound("a"), *other, make_csi_node("n1", csi_example_com=1, other=1)]
    assert ask(POD, USER, objects=objects)["n1"] == FEASIBLE


def test_volumes_to_provision_count_too() -> None:
    objects = [make_claim("a"), make_claim("b"), make_class(), limited(1)]
    assert ask(POD, objects=objects)["n1"] == FEASIBLE
    assert ask(POD, USER, objects=objects)["n1"] == FULL


def test_attachments_count_once_with_the_pods_and_twice_with_the_new_pod() -> None:
    b_attached = make_attachment("x", "n1", "pv-b")
    assert ask(POD, USER, objects=[*bound("a", "b"), limited(2), b_attached])["n1"] == FEASIBLE
    assert ask(POD, objects=[*bound("a", "b"), limited(1), b_attached])["n1"] == FULL
    assert ask(POD, objects=[*bound("a"), limited(1), make_attachment("x", "n1", "pv-a")])["n1"] == FULL


def test_in_tree_disks_count_where_the_node_has_a_csi_node() -> None:
    user = volume_pod(EBS, name="user", node="n1")
    other = volume_pod(Volume(aws_elastic_block_store=AwsElasticBlockStore("aws://x/vol-2")))
    assert ask(other, user, objects=[make_csi_node("n1", ebs_csi_aws_com=1)]) == {"n1": FULL, "n2": FEASIBLE}
    same = volume_pod(Volume(aws_elastic_block_store=AwsElasticBlockStore("aws://x/vol-1")))
    assert ask(same, user, objects=[make_csi_node("n1", ebs_csi_aws_com=1)])["n1"] == FEASIBLE


def test_a_missing_claim_is_a_rejection_and_another_fault_an_error() -> None:
    text = 'looking up PVC default/a: persistentvolumeclaim "a" not found'
    assert ask(POD, objects=[limited()]) == {"n1": unresolvable(text), "n2": unresolvable(text)}
    blob = volume_pod(Volume(name="v", azure_disk=AzureDisk("d", "u", "Shared")))
    fault = (
        'running "NodeVolumeLimits" filter plugin: converting volume(v) from inline to csi: '
        "kind(Shared) is not supported in csi migration"
    )
    assert ask(blob, objects=[limited()]) == {"n1": errored(fault), "n2": FEASIBLE}


def test_an_invalid_pod_on_a_node_is_an_error_there_even_with_room() -> None:
    stranger = volume_pod(ephemeral("tmp"), name="user", node="n1")
    fault = (
        'running "NodeVolumeLimits" filter plugin: '
        "PVC default/user-tmp was not created for pod default/user (pod is not owner)"
    )
    claim = make_claim("user-tmp")
    assert ask(POD, stranger, objects=[*bound("a"), claim, limited(99)]) == {"n1": errored(fault), "n2": FEASIBLE}
    assert ask(POD, stranger, objects=[*bound("a"), claim, limited(None)])["n1"] == FEASIBLE
    assert ask(POD, stranger, objects=[*bound("a"), limited(99)])["n1"] == FEASIBLE


@pytest.mark.parametrize(
    ("volume", "skipped"),
    [
        pytest.param(Volume(name="token"), True, id="nothing"),
        pytest.param(Volume(iscsi=IscsiVolume()), True, id="no driver"),
        pytest.param(Volume(azure_file=AzureFile()), False, id="migratable"),
        pytest.param(claim_volume("c"), False, id="claim"),
        pytest.param(ephemeral(), False, id="ephemeral"),
        pytest.param(EBS, False, id="in-tree disk"),
    ],
)
def test_skipped_pods(volume: Volume, skipped: bool) -> None:
    plugin = make_plugin(NodeVolumeLimits)
    status = plugin.pre_filter(make_cycle(volume_pod(volume)))
    assert (status is not None and status.code is Code.SKIP) is skipped
    assert (plugin.signature(volume_pod(volume)) == ()) is skipped


def test_results_follow_the_cluster() -> None:
    cache = Cache()
    cache.add_node(N1)
    for item in (*bound("a", "b"), limited(1)):
        cache.upsert(item)
    snapshot = cache.snapshot()
    plugin = make_plugin(NodeVolumeLimits, handle=FakeHandle(cache.catalog))

    def answer() -> bool:
        cache.refresh(snapshot)
        verdicts = make_filtering(plugin).filter_table(Cycle(PodInfo(POD), snapshot), snapshot.table)
        return verdicts.status(0).ok

    assert answer()
    cache.add_pod(USER)
    assert not answer()
    cache.upsert(limited(2))
    assert answer()
    cache.upsert(make_attachment("x", "n1", "pv-a"))
    assert not answer()
    cache.delete(make_attachment("x", "n1", "pv-a"))
    assert answer()
    cache.upsert(limited(1))
    assert not answer()
    cache.remove_pod(USER)
    assert answer()
    cache.remove_node("n1")
    cache.add_node(N2)
    cache.add_node(N1)
    cache.add_pod(USER)
    cache.refresh(snapshot)
    verdicts = make_filtering(plugin).filter_table(Cycle(PodInfo(POD), snapshot), snapshot.table)
    assert {name: verdicts.status(row).ok for row, name in enumerate(snapshot.nodes.names)} == {"n2": True, "n1": False}


def test_a_fork_uses_its_own_pods() -> None:
    snapshot = make_snapshot([N2, N1], [USER], [*bound("a", "b"), limited(1)])
    plugin = make_plugin(NodeVolumeLimits, handle=FakeHandle(snapshot.catalog))
    filtering, cycle = make_filtering(plugin), make_cycle(POD, snapshot)
    assert not filtering.filter_table(cycle, snapshot.table).status(1).ok
    fork = snapshot.nodes.fork([1])
    assert not filtering.filter_table(cycle, NodeTable(fork)).status(0).ok
    fork.remove_pod(0, PodInfo(USER))
    assert filtering.filter_table(cycle, NodeTable(fork)).status(0).ok


@pytest.mark.parametrize(
    ("resource", "pod", "old", "new", "expected"),
    [
        pytest.param("storage.k8s.io/CSINode", POD, limited(1), limited(2), "Queue", id="limit raised"),
        pytest.param("storage.k8s.io/CSINode", POD, limited(2), limited(1), "Skip", id="limit lowered"),
        pytest.param("storage.k8s.io/CSINode", POD, limited(1), limited(None), "Skip", id="limit gone"),
        pytest.param("storage.k8s.io/CSINode", POD, make_csi_node("n1"), limited(1), "Queue", id="new driver"),
        pytest.param("Pod", POD, USER, None, "Queue", id="user gone"),
        pytest.param("Pod", POD, volume_pod(claim_volume("b")), None, "Skip", id="never placed"),
        pytest.param("Pod", POD, volume_pod(claim_volume("b"), nominated="n1"), None, "Queue", id="nominated"),
        pytest.param("Pod", POD, volume_pod(node="n1"), None, "Skip", id="had no volumes"),
        pytest.param("Pod", POD, volume_pod(EBS, node="n1"), None, "Queue", id="had a disk"),
        pytest.param("PersistentVolumeClaim", POD, None, make_claim("a"), "Queue", id="own claim"),
        pytest.param("PersistentVolumeClaim", POD, None, make_claim("b"), "Skip", id="another claim"),
        pytest.param("PersistentVolumeClaim", POD, None, make_claim("a", namespace="ml"), "Skip", id="elsewhere"),
        pytest.param(
            "PersistentVolumeClaim", volume_pod(ephemeral("t")), None, make_claim("pod-t"), "Queue", id="own ephemeral"
        ),
        pytest.param(
            "storage.k8s.io/VolumeAttachment", POD, make_attachment("x", "n", "pv"), None, "Queue", id="detached"
        ),
        pytest.param(
            "storage.k8s.io/VolumeAttachment",
            volume_pod(ephemeral()),
            make_attachment("x", "n", "pv"),
            None,
            "Skip",
            id="ephemeral volumes are not asked",
        ),
        pytest.param(
            "storage.k8s.io/VolumeAttachment",
            volume_pod(EBS),
            make_attachment("x", "n", "pv", attacher="ebs.csi.aws.com"),
            None,
            "Queue",
            id="the disk's driver",
        ),
        pytest.param(
            "storage.k8s.io/VolumeAttachment",
            volume_pod(EBS),
            make_attachment("x", "n", "pv"),
            None,
            "Skip",
            id="another driver",
        ),
    ],
)
def test_hints(resource: str, pod: Pod, old: Any, new: Any, expected: str) -> None:
    assert evaluate_hints(NodeVolumeLimits, resource, pod, old, new)[-1] == expected


def test_a_disk_without_translation_fails_the_hint_and_queues_the_pod() -> None:
    pod = volume_pod(Volume(azure_disk=AzureDisk("d", "u", "Shared")))
    with pytest.raises(VolumeError, match=r"kind\(Shared\)"):
        evaluate_hints(NodeVolumeLimits, "storage.k8s.io/VolumeAttachment", pod, make_attachment("x", "n", "pv"), None)
