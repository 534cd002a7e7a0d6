"""Conflicts between disks of two pods on a node."""

from __future__ import annotations

import pytest

from bayplan.objects.volumes import AwsElasticBlockStore, GcePersistentDisk, IscsiVolume, RbdVolume, Volume
from bayplan.volumes.conflicts import conflicts_with, has_conflicting_disk_type
from support.builders.volumes import claim_volume, volume_pod


def gce(name: str, *, read_only: bool = False) -> Volume:
    return Volume(gce_persistent_disk=GcePersistentDisk(name, read_only))


def ebs(name: str, *, read_only: bool = False) -> Volume:
    return Volume(aws_elastic_block_store=AwsElasticBlockStore(name, read_only))


def iscsi(iqn: str, lun: int = 0, *, read_only: bool = False) -> Volume:
    return Volume(iscsi=IscsiVolume("portal", iqn, lun, read_only))


def rbd(monitors: str, image: str = "i", pool: str = "p", *, read_only: bool = False) -> Volume:
    return Volume(rbd=RbdVolume(tuple(monitors), image, pool, read_only))


@pytest.mark.parametrize(
    ("own", "other", "conflict"),
    [
        pytest.param(gce("a"), gce("a"), True, id="gce"),
        pytest.param(gce("a"), gce("b"), False, id="gce other disk"),
        pytest.param(gce("a", read_only=True), gce("a", read_only=True), False, id="gce both read"),
        pytest.param(gce("a", read_only=True), gce("a"), True, id="gce only ours reads"),
        pytest.param(gce("a"), gce("a", read_only=True), True, id="gce only other reads"),
        pytest.param(ebs("a", read_only=True), ebs("a", read_only=True), True, id="ebs never twice"),
        pytest.param(ebs("a"), ebs("b"), False, id="ebs other disk"),
        pytest.param(iscsi("q", 1), iscsi("q", 2), True, id="iscsi by iqn, whatever the lun"),
        pytest.param(iscsi("q", read_only=True), iscsi("q", read_only=True), False, id="iscsi both read"),
        pytest.param(iscsi("q", read_only=True), iscsi("q"), True, id="iscsi only ours reads"),
        pytest.param(iscsi("q"), iscsi("q", read_only=True), True, id="iscsi only other reads"),
        pytest.param(rbd("ab"), rbd("bc"), True, id="rbd with a common monitor"),
        pytest.param(rbd("ab"), rbd("cd"), False, id="rbd without"),
        pytest.param(rbd("a", "x"), rbd("a", "y"), False, id="rbd other image"),
        pytest.param(rbd("a", pool="x"), rbd("a", pool="y"), False, id="rbd other pool"),
        pytest.param(rbd("a", read_only=True), rbd("a", read_only=True), False, id="rbd both read"),
        pytest.param(rbd("a", read_only=True), rbd("a"), True, id="rbd only ours reads"),
        pytest.param(rbd("a"), rbd("a", read_only=True), True, id="rbd only other reads"),
        pytest.param(gce("a"), ebs("a"), False, id="different kinds"),
        pytest.param(claim_volume("a"), claim_volume("a"), False, id="claims are not guarded here"),
    ],
)
def test_conflicts(own: Volume, other: Volume, conflict: bool) -> None:
    pods = (volume_pod(name="empty"), volume_pod(Volume(name="token"), other))
    assert conflicts_with(volume_pod(claim_volume("x"), own), pods) is conflict


def test_disks_that_can_conflict() -> None:
    assert all(
        has_conflicting_disk_type(volume_pod(claim_volume("c"), disk))
        for disk in (gce("a"), ebs("a"), iscsi("a"), rbd("a"))
    )
    assert not has_conflicting_disk_type(volume_pod(claim_volume("c"), Volume(name="token")))
