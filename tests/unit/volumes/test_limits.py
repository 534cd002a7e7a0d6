"""Counts of the volumes that a node would have to attach."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.objects.core import Pod
from bayplan.objects.volumes import AwsElasticBlockStore, AzureDisk, AzureFile, GcePersistentDisk, IscsiVolume, Volume
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.limits import (
    MissingClaimError,
    attach_limits,
    attachable_volumes,
    attached_objects,
    attached_volumes,
    attachments_by_node,
    exceeds,
    is_attachable,
    new_volumes,
)
from support.builders.volumes import (
    catalog,
    claim_volume,
    ephemeral,
    make_attachment,
    make_claim,
    make_class,
    make_csi_node,
    make_volume,
    owner_references,
    volume_pod,
)

D = "csi.example.com"
POD = volume_pod(claim_volume("claim"))
EBS = AwsElasticBlockStore("vol-1")


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        pytest.param(claim_volume("c"), True, id="claim"),
        pytest.param(ephemeral(), True, id="ephemeral"),
        pytest.param(Volume(aws_elastic_block_store=EBS), True, id="migrated disk"),
        pytest.param(Volume(azure_file=AzureFile()), True, id="migratable, though it never counts"),
        pytest.param(Volume(iscsi=IscsiVolume()), False, id="no driver"),
        pytest.param(Volume(name="token"), False, id="nothing"),
    ],
)
def test_attachable_volumes(volume: Volume, expected: bool) -> None:
    assert is_attachable(volume) is expected
    assert bool(list(attachable_volumes([volume_pod(volume)]))) is expected


def test_limits_of_a_node() -> None:
    assert attach_limits(None) == {}
    assert attach_limits(make_csi_node("n", a=3, b=None, c_d=0)) == {"a": 3, "c.d": 0}


@pytest.mark.parametrize(
    ("objects", "migrated", "expected"),
    [
        pytest.param([make_claim(volume="pv"), make_volume("pv", handle="h")], True, {f"{D}/h"}, id="csi volume"),
        pytest.param([make_claim(volume="pv"), make_volume("pv", handle="h")], False, {f"{D}/h"}, id="without CSINode"),
        pytest.param([make_claim(volume="pv"), make_volume("pv")], True, set(), id="no driver"),
        pytest.param(
            [make_claim(volume="pv"), make_volume("pv", aws_elastic_block_store=EBS)],
            True,
            {"ebs.csi.aws.com/vol-1"},
            id="in-tree volume",
        ),
        pytest.param(
            [make_claim(volume="pv"), make_volume("pv", aws_elastic_block_store=EBS)], False, set(), id="not migrated"
        ),
        pytest.param(
            [make_claim(volume="pv"), make_volume("pv", azure_disk=AzureDisk("d", "u", "Shared"))],
            True,
            set(),
            id="untranslatable volumes do not count",
        ),
        pytest.param([make_claim(), make_class()], True, {f"{D}/\0-default/claim"}, id="to be made"),
        pytest.param([make_claim(volume="pv"), make_class()], True, {f"{D}/\0-default/claim"}, id="volume not there"),
        pytest.param([make_claim()], True, set(), id="unknown class"),
        pytest.param([make_claim(storage_class=None), make_class()], True, set(), id="no class"),
        pytest.param(
            [make_claim(), make_class(provisioner="kubernetes.io/aws-ebs")],
            True,
            {"ebs.csi.aws.com/\0-default/claim"},
            id="in-tree provisioner",
        ),
        pytest.param(
            [make_claim(), make_class(provisioner="kubernetes.io/aws-ebs")], False, set(), id="provisioner not migrated"
        ),
        pytest.param(
            [make_claim(), make_class(provisioner="kubernetes.io/azure-file")], True, set(), id="provisioner never"
        ),
        pytest.param([make_claim(), make_class(provisioner="")], True, set(), id="no provisioner"),
    ],
)
def test_volume_behind_a_claim(objects: list[Any], migrated: bool, expected: set[str]) -> None:
    assert set(new_volumes(POD, catalog(*objects), migrated=migrated)) == expected


def test_inline_disks_count_only_on_nodes_with_a_csi_node() -> None:
    pod = volume_pod(Volume(aws_elastic_block_store=EBS), Volume(gce_persistent_disk=GcePersistentDisk("d")))
    assert new_volumes(pod, catalog(), migrated=False) == {}
    assert new_volumes(pod, catalog(), migrated=True) == {
        "ebs.csi.aws.com/vol-1": "ebs.csi.aws.com",
        "pd.csi.storage.gke.io/projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d": "pd.csi.storage.gke.io",
    }


OWNER = volume_pod(ephemeral("tmp"), name="web")


@pytest.mark.parametrize(
    ("pod", "objects", "new_fault", "old_fault"),
    [
        pytest.param(
            POD, [], 'looking up PVC default/claim: persistentvolumeclaim "claim" not found', None, id="missing claim"
        ),
        pytest.param(
            OWNER,
            [make_claim("web-tmp")],
            "PVC default/web-tmp was not created for pod default/web (pod is not owner)",
            "PVC default/web-tmp was not created for pod default/web (pod is not owner)",
            id="another owner's claim",
        ),
        pytest.param(OWNER, [make_claim("web-tmp", owners=owner_references(OWNER))], None, None, id="own claim"),
        pytest.param(
            volume_pod(claim_volume("")),
            [],
            "PersistentVolumeClaim had no name",
            "PersistentVolumeClaim had no name",
            id="no name",
        ),
        pytest.param(
            volume_pod(Volume(name="v", azure_disk=AzureDisk("d", "u", "Shared"))),
            [],
            "converting volume(v) from inline to csi: kind(Shared) is not supported in csi migration",
            "converting volume(v) from inline to csi: kind(Shared) is not supported in csi migration",
            id="inline disk without translation",
        ),
    ],
)
def test_faults(pod: Pod, objects: list[Any], new_fault: str | None, old_fault: str | None) -> None:
    lookup = catalog(*objects)
    for ask, fault in (
        (lambda: new_volumes(pod, lookup, migrated=True), new_fault),
        (lambda: attached_volumes(attachable_volumes([pod]), lookup), old_fault),
    ):
        if fault is None:
            ask()
            continue
        with pytest.raises(VolumeError) as caught:
            ask()
        assert str(caught.value) == fault
        assert isinstance(caught.value, MissingClaimError) is ("not found" in fault)


def test_only_volumes_whose_counting_may_fail_are_marked() -> None:
    (claim, disk, own) = attachable_volumes(
        [volume_pod(claim_volume("c"), Volume(aws_elastic_block_store=EBS), ephemeral())]
    )
    assert (claim.may_raise, disk.may_raise, own.may_raise) == (False, True, True)


def test_attachments_that_count() -> None:
    lookup = catalog(
        make_volume("pv", handle="h"),
        make_volume("nfs"),
        make_attachment("a", "n", "pv", attacher="driver"),
        make_attachment("b", "n", "nfs"),
        make_attachment("c", "n", "gone"),
        make_attachment("d", "n", None),
        make_attachment("e", "n", "pv", attacher=""),
        make_attachment("f", "m", "pv"),
    )
    by_node = attachments_by_node(lookup)
    assert {node: len(found) for node, found in by_node.items()} == {"n": 5, "m": 1}
    assert attached_objects(by_node["n"], lookup) == {"driver/h": "driver"}


@pytest.mark.parametrize(
    ("new", "limit", "by_pods", "by_objects", "expected"),
    [
        pytest.param(["a"], 1, [], [], False, id="just fits"),
        pytest.param(["a", "b"], 1, [], [], True, id="two for one"),
        pytest.param(["a"], 1, ["b"], [], True, id="taken by a pod"),
        pytest.param(["a"], 1, ["a"], [], False, id="shared with a pod"),
        pytest.param(["a"], 0, ["a"], [], False, id="nothing new, though over the limit"),
        pytest.param(["a"], 1, [], ["b"], True, id="taken by an attachment"),
        pytest.param(["a"], 2, ["b"], ["b"], False, id="pod and attachment are one"),
        pytest.param(["a"], 1, [], ["a"], True, id="an attachment of the wanted volume counts twice"),
    ],
)
def test_exceeds(new: list[str], limit: int, by_pods: list[str], by_objects: list[str], expected: bool) -> None:
    sets = [{f"d/{name}": "d" for name in names} for names in (new, by_pods, by_objects)]
    assert exceeds(sets[0], {"d": limit}, sets[1], sets[2]) is expected
    assert exceeds(sets[0], {"other": 0}, sets[1], sets[2]) is False
