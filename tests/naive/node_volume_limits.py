"""Naive twin of NodeVolumeLimits, one node at a time."""

from __future__ import annotations

from hypothesis import strategies as st

from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import (
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    VolumeAttachment,
)
from bayplan.objects.volumes import (
    AwsElasticBlockStore,
    AzureDisk,
    AzureFile,
    CinderVolume,
    GcePersistentDisk,
    IscsiVolume,
    PortworxVolume,
    Volume,
)
from bayplan.plugins.node_volume_limits.plugin import NodeVolumeLimits
from naive.storage import (
    CLASS,
    ZONE,
    class_of,
    find_claim,
    find_class,
    find_volume,
    made_for,
    not_made_for,
    owners,
    some_volumes,
)
from naive.twin import Case, Cluster, Twin
from support.builders.framework import FEASIBLE, FilterResult, errored, make_node, rejected, unresolvable
from support.builders.volumes import make_attachment, make_claim, make_class, make_csi_node, make_volume, volume_pod

CSI = "csi.example.com"
TRANSLATED = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
Counted = set[tuple[str, str]]
"""Volumes by driver and handle."""


class MissingError(Exception):
    """The incoming pod names a claim that does not exist."""


class BrokenError(Exception):
    """A volume cannot be resolved."""


def from_in_tree(source: Volume | PersistentVolumeSpec, zone: str = "UNSPECIFIED") -> tuple[str, str] | None:
    """Driver and handle of an in-tree disk."""
    if source.aws_elastic_block_store is not None:
        return "ebs.csi.aws.com", source.aws_elastic_block_store.volume_id.rsplit("/", maxsplit=1)[-1]
    if source.gce_persistent_disk is not None:
        handle = f"projects/UNSPECIFIED/zones/{zone}/disks/{source.gce_persistent_disk.pd_name}"
        return "pd.csi.storage.gke.io", handle
    if source.azure_disk is not None:
        return "disk.csi.azure.com", source.azure_disk.disk_uri
    if source.cinder is not None:
        return "cinder.csi.openstack.org", source.cinder.volume_id
    if source.portworx_volume is not None:
        return "pxd.portworx.com", source.portworx_volume.volume_id
    return None


def of_volume(volume: PersistentVolume, *, translates: bool) -> tuple[str, str] | None:
    if volume.spec.csi is not None:
        return volume.spec.csi.driver, volume.spec.csi.volume_handle
    return from_in_tree(volume.spec, volume.metadata.labels.get(ZONE, "UNSPECIFIED")) if translates else None


def of_claim(cluster: Cluster, claim: PersistentVolumeClaim, *, translates: bool) -> tuple[str, str] | None:
    volume = find_volume(cluster, claim.spec.volume_name)
    if volume is not None:
        return of_volume(volume, translates=translates)
    storage_class = find_class(cluster, class_of(claim))
    if storage_class is None:
        return None
    driver = storage_class.provisioner
    if driver in TRANSLATED:
        return (TRANSLATED[driver], f"to be made for {claim.key}") if translates else None
    return driver, f"to be made for {claim.key}"


def count(cluster: Cluster, pod: Pod, *, translates: bool, new: bool) -> Counted:
    found: Counted = set()
    for volume in pod.spec.volumes:
        named = volume.persistent_volume_claim
        if named is None and volume.ephemeral is None:
            driver_and_handle = from_in_tree(volume) if translates else None
        else:
            name = f"{pod.name}-{volume.name}" if named is None else named.claim_name
            claim = find_claim(cluster, pod.namespace, name)
            if claim is None:
                if new:
                    raise MissingError(
                        f'looking up PVC {pod.namespace}/{name}: persistentvolumeclaim "{name}" not found'
                    )
                continue
            if named is None and not made_for(pod, claim):
                raise BrokenError(not_made_for(pod, claim))
            driver_and_handle = of_claim(cluster, claim, translates=translates)
        if driver_and_handle is not None:
            found.add(driver_and_handle)
    return found


def attached_by_objects(cluster: Cluster, node: Node) -> Counted:
    found: Counted = set()
    for attachment in cluster.of(VolumeAttachment):
        volume = find_volume(cluster, attachment.spec.source.persistent_volume_name or "")
        if attachment.spec.node_name == node.name and volume is not None and volume.spec.csi is not None:
            found.add((attachment.spec.attacher, volume.spec.csi.volume_handle))
    return found


def is_full(case: Case, node: Node) -> bool:
    cluster = case.cluster
    csi_node = next((each for each in cluster.of(CsiNode) if each.name == node.name), None)
    new = count(cluster, case.pod, translates=csi_node is not None, new=True)
    limits = {} if csi_node is None else {each.name: each.allocatable for each in csi_node.spec.drivers}
    limits = {name: room.count for name, room in limits.items() if room is not None and room.count is not None}
    if not new or not limits:
        return False
    by_pods: Counted = set()
    for pod in cluster.pods_on(node):
        by_pods |= count(cluster, pod, translates=True, new=False)
    present = [driver for driver, _ in by_pods]
    present += [driver for driver, _ in attached_by_objects(cluster, node) - by_pods]
    wanted = [driver for driver, _ in new - by_pods]
    return any(driver in limits and present.count(driver) + wanted.count(driver) > limits[driver] for driver in wanted)


def judge(case: Case, node: Node) -> FilterResult:
    try:
        return rejected("node(s) exceed max volume count") if is_full(case, node) else FEASIBLE
    except MissingError as missing:
        return unresolvable(str(missing))
    except BrokenError as fault:
        return errored(f'running "NodeVolumeLimits" filter plugin: {fault}')


# random cases

INLINE = st.sampled_from(
    (
        Volume(aws_elastic_block_store=AwsElasticBlockStore(volume_id="vol-1")),
        Volume(aws_elastic_block_store=AwsElasticBlockStore(volume_id="aws://zone-a/vol-1")),
        Volume(aws_elastic_block_store=AwsElasticBlockStore(volume_id="aws://zone-a/vol-2")),
        Volume(gce_persistent_disk=GcePersistentDisk(pd_name="d1")),
        Volume(gce_persistent_disk=GcePersistentDisk(pd_name="d2")),
        Volume(azure_disk=AzureDisk(disk_uri="d1")),
        Volume(cinder=CinderVolume(volume_id="d1")),
        Volume(portworx_volume=PortworxVolume(volume_id="d1")),
        Volume(azure_file=AzureFile(share_name="d1")),
        Volume(iscsi=IscsiVolume(iqn="d1")),
    )
)
VOLUMES: tuple[PersistentVolume, ...] = (
    make_volume("v0", handle="h0"),
    make_volume("v1", handle="h1"),
    make_volume("v2", handle="h1"),
    make_volume("v3", handle="h0", driver="other.example.com"),
    make_volume("v4", aws_elastic_block_store=AwsElasticBlockStore(volume_id="aws://zone-b/vol-1")),
    make_volume("v5", gce_persistent_disk=GcePersistentDisk(pd_name="d1")),
    make_volume("v6", gce_persistent_disk=GcePersistentDisk(pd_name="d1"), labels={ZONE: "zone-a"}),
    make_volume("v7", iscsi=IscsiVolume(iqn="h0")),
)
CLASSES = (
    make_class("made"),
    make_class("ebs", provisioner="kubernetes.io/aws-ebs"),
    make_class("cinder", provisioner="kubernetes.io/cinder"),
)
CLAIMED = tuple(f"c{number}" for number in range(4))
DRIVERS = (CSI, "ebs.csi.aws.com", "pd.csi.storage.gke.io", "cinder.csi.openstack.org", "other.example.com")
ROOM = st.sampled_from((1, 2, 1, 2, 3, 0, None))
LIMITS = st.fixed_dictionaries({CSI: ROOM, "ebs.csi.aws.com": ROOM}, optional=dict.fromkeys(DRIVERS[2:], ROOM))


@st.composite
def claims(draw: st.DrawFn, name: str, made_for_pod: Pod | None = None) -> PersistentVolumeClaim:
    return make_claim(
        name,
        volume=draw(st.sampled_from((*(each.name for each in VOLUMES), "v0", "v1", "gone", "", "", ""))),
        storage_class=draw(st.sampled_from(("made", "ebs", "cinder", None))),
        annotations=draw(st.sampled_from(({},) * 5 + ({CLASS: "made"}, {CLASS: ""}))),
        owners=() if made_for_pod is None else draw(owners(made_for_pod)),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    total = draw(st.integers(1, 3))
    names = [f"n{number}" for number in range(total)]
    wanted = some_volumes(*CLAIMED, *draw(st.sampled_from(((),) * 9 + (("gone",),))), more=INLINE)
    pods = [
        volume_pod(*draw(wanted), name=f"p{number}", node=draw(st.sampled_from(names)))
        for number in range(draw(st.integers(1, 5)))
    ]
    pod = volume_pod(*draw(wanted), name="incoming")
    scratch = [each for each in (pod, *pods) if draw(st.sampled_from((True,) * 20 + (False,)))]
    with_csi = [name for name in names if draw(st.sampled_from((True, True, True, False)))]
    objects: list[KubeObject] = [
        *VOLUMES,
        *CLASSES,
        *(draw(claims(name)) for name in CLAIMED),
        *(draw(claims(f"{each.name}-scratch", each)) for each in scratch),
        *(make_csi_node(name, **draw(LIMITS)) for name in with_csi),
    ]
    for number in range(draw(st.integers(1, 4))):
        volume = draw(st.sampled_from(("v0", "v1", "v0", "v1", "v2", "v3", "v4", "gone", None)))
        attacher = draw(st.sampled_from((CSI, CSI, "other.example.com")))
        objects.append(make_attachment(f"a{number}", draw(st.sampled_from(names)), volume, attacher=attacher))
    return Case(pod, Cluster(tuple(map(make_node, names)), tuple(pods), tuple(objects)))


TWIN = Twin(NodeVolumeLimits, cases(), judge)
