"""Naive twin of VolumeRestrictions: disks and claims with a single user, one node at a time."""

from __future__ import annotations

from hypothesis import strategies as st

from bayplan.objects.core import Node, Pod
from bayplan.objects.volumes import AwsElasticBlockStore, GcePersistentDisk, IscsiVolume, RbdVolume, Volume
from bayplan.plugins.volume_restrictions import VolumeRestrictions
from naive.storage import claim_names, find_claim
from naive.twin import Case, Cluster, Twin, fits_unless
from support.builders.framework import FilterResult, make_node, rejected, unresolvable
from support.builders.volumes import claim_volume, ephemeral, make_claim, volume_pod

IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


def clash(one: Volume, other: Volume) -> bool:
    if one.aws_elastic_block_store is not None and other.aws_elastic_block_store is not None:
        return one.aws_elastic_block_store.volume_id == other.aws_elastic_block_store.volume_id
    if one.gce_persistent_disk is not None and other.gce_persistent_disk is not None:
        disks = one.gce_persistent_disk, other.gce_persistent_disk
        return disks[0].pd_name == disks[1].pd_name and not (disks[0].read_only and disks[1].read_only)
    if one.iscsi is not None and other.iscsi is not None:
        return one.iscsi.iqn == other.iscsi.iqn and not (one.iscsi.read_only and other.iscsi.read_only)
    if one.rbd is not None and other.rbd is not None:
        image = (one.rbd.pool, one.rbd.image) == (other.rbd.pool, other.rbd.image)
        monitor = any(each in other.rbd.monitors for each in one.rbd.monitors)
        return image and monitor and not (one.rbd.read_only and other.rbd.read_only)
    return False


def uses(pod: Pod, namespace: str, name: str) -> bool:
    return pod.namespace == namespace and any(name == used for used, _ in claim_names(pod, with_ephemeral=False))


def judge(case: Case, node: Node) -> FilterResult:
    pod, cluster, exclusive = case.pod, case.cluster, []
    for name, _ in claim_names(pod, with_ephemeral=False):
        claim = find_claim(cluster, pod.namespace, name)
        if claim is None:
            return unresolvable(f'persistentvolumeclaim "{name}" not found')
        if "ReadWriteOncePod" in claim.spec.access_modes:
            exclusive.append(name)
    theirs = [volume for other in cluster.pods_on(node) for volume in other.spec.volumes]
    held = any(clash(mine, other) for mine in pod.spec.volumes for other in theirs)
    placed = [other for each in cluster.nodes for other in cluster.pods_on(each)]
    in_use = any(uses(other, pod.namespace, name) for name in exclusive for other in placed)
    return fits_unless((held, rejected("node(s) had no available disk")), (in_use, rejected(IN_USE)))


# random cases

READ_ONLY = st.booleans()
MONITORS = st.sampled_from((("m1",), ("m1", "m2"), ("m2",), ()))
DISKS = st.one_of(
    st.builds(GcePersistentDisk, pd_name=st.sampled_from("ab"), read_only=READ_ONLY).map(
        lambda disk: Volume(gce_persistent_disk=disk)
    ),
    st.builds(AwsElasticBlockStore, volume_id=st.sampled_from("ab"), read_only=READ_ONLY).map(
        lambda disk: Volume(aws_elastic_block_store=disk)
    ),
    st.builds(IscsiVolume, iqn=st.sampled_from("ab"), lun=st.integers(0, 1), read_only=READ_ONLY).map(
        lambda disk: Volume(iscsi=disk)
    ),
    st.builds(
        RbdVolume, monitors=MONITORS, image=st.sampled_from("ab"), pool=st.sampled_from("ppq"), read_only=READ_ONLY
    ).map(lambda disk: Volume(rbd=disk)),
)
NAMES = ("c0", "c1")
CLAIMED = st.sampled_from((*map(claim_volume, NAMES * 3), ephemeral()))
VOLUMES = (
    st.lists(DISKS, min_size=1, max_size=3) | st.lists(CLAIMED, max_size=2) | st.lists(DISKS | CLAIMED, max_size=3)
)
MODES = st.sampled_from((("ReadWriteOncePod",), ("ReadWriteOnce",), ("ReadOnlyMany", "ReadWriteOncePod"), ()))
NAMESPACES = st.sampled_from(("default", "default", "other"))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 3))
    nodes = tuple(make_node(f"n{number}") for number in range(count))
    pods = tuple(
        volume_pod(
            *draw(VOLUMES), name=f"p{number}", namespace=draw(NAMESPACES), node=f"n{draw(st.integers(0, count))}"
        )
        for number in range(draw(st.integers(1, 5)))
    )
    missing = draw(st.sampled_from((None,) * 20 + NAMES))
    claims = tuple(make_claim(name, modes=draw(MODES)) for name in NAMES if name != missing)
    return Case(volume_pod(*draw(VOLUMES), name="incoming"), Cluster(nodes, pods, claims))


TWIN = Twin(VolumeRestrictions, cases(), judge)
