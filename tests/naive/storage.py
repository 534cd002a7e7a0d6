"""Lookup of storage objects by a scan over all of them, and the small pools of random storage objects."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from bayplan.objects.core import Pod
from bayplan.objects.meta import OwnerReference
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.objects.volumes import Volume
from naive.twin import Cluster
from support.builders.volumes import claim_volume, ephemeral, owner_references

CLASS = "volume.beta.kubernetes.io/storage-class"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"


def find_claim(cluster: Cluster, namespace: str, name: str) -> PersistentVolumeClaim | None:
    return next((each for each in cluster.of(PersistentVolumeClaim) if each.key == f"{namespace}/{name}"), None)


def find_volume(cluster: Cluster, name: str) -> PersistentVolume | None:
    return next((each for each in cluster.of(PersistentVolume) if each.name == name), None)


def find_class(cluster: Cluster, name: str) -> StorageClass | None:
    return next((each for each in cluster.of(StorageClass) if each.name == name), None)


def class_of(item: PersistentVolumeClaim | PersistentVolume) -> str:
    return item.metadata.annotations.get(CLASS, item.spec.storage_class_name or "")


def claim_names(pod: Pod, *, with_ephemeral: bool) -> Iterator[tuple[str, bool]]:
    """The claims of a pod's volumes, each with whether the volume is an ephemeral one."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None and with_ephemeral:
            yield f"{pod.name}-{volume.name}", True


def made_for(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    return any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references)


def not_made_for(pod: Pod, claim: PersistentVolumeClaim) -> str:
    return f"PVC {claim.key} was not created for pod {pod.namespace}/{pod.name} (pod is not owner)"


# random objects


def some_volumes(*claims: str, more: st.SearchStrategy[Volume] | None = None) -> st.SearchStrategy[tuple[Volume, ...]]:
    """Volumes of a pod: of claims, an ephemeral one, other types."""
    kinds = st.sampled_from([*map(claim_volume, claims), ephemeral()])
    return st.lists(kinds if more is None else kinds | more, min_size=1, max_size=3).map(tuple)


def owners(pod: Pod) -> st.SearchStrategy[tuple[OwnerReference, ...]]:
    """Owners of the claim of an ephemeral volume; nearly always the pod."""
    return st.sampled_from((owner_references(pod),) * 20 + ((),))
