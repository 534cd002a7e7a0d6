"""PVC and PV protection: remove the finalizer of a deleted claim that no pod uses, and of an unbound volume."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.client import GroupVersionResource
from bayplan.controllers.core.api_types import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    PersistentVolumeFields,
    PodFields,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.objects.meta import KubeObject
from bayplan.objects.volumes import PersistentVolumeClaim

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"


async def _remove_finalizer(
    controller: Controller, resource: GroupVersionResource, item: KubeObject, finalizer: str
) -> None:
    finalizers = [each for each in item.metadata.finalizers if each != finalizer]
    await controller.write(resource, item, {"metadata": {"finalizers": finalizers or None}})


class PvcProtectionController(Controller):
    """Removes the finalizer of deleted claims that no pod uses."""

    name = "persistentvolumeclaim-protection-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.claims = self.informer(PERSISTENT_VOLUME_CLAIMS, PersistentVolumeClaim)
        self.pods = self.informer(PODS, PodFields)
        self.claims.add_handler(self._on_claim)
        self.pods.add_handler(self._on_pod)

    def _on_claim(self, _: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is not None and _waits_for_finalizer(new, CLAIM_FINALIZER):
            self.enqueue(None, new)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        if old is None or (new is not None and not new.finished):
            return
        for name in claim_names(old):
            found = self.claims.get(old.namespace, name)
            if found is not None and _waits_for_finalizer(found, CLAIM_FINALIZER):
                self.enqueue(None, found)

    async def sync(self, key: Key) -> float | None:
        found = self.claims.get(*key)
        if found is None or not _waits_for_finalizer(found, CLAIM_FINALIZER):
            return None
        users = (pod for pod in self.pods.by_namespace(found.namespace) if not pod.finished)
        if not any(found.name in claim_names(pod) for pod in users):
            await _remove_finalizer(self, PERSISTENT_VOLUME_CLAIMS, found, CLAIM_FINALIZER)
        return None


class PvProtectionController(Controller):
    """Removes the finalizer of deleted volumes that are not bound."""

    name = "persistentvolume-protection-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.volumes = self.informer(PERSISTENT_VOLUMES, PersistentVolumeFields)
        self.volumes.add_handler(self.enqueue)

    async def sync(self, key: Key) -> float | None:
        found = self.volumes.get(*key)
        if found is not None and _waits_for_finalizer(found, VOLUME_FINALIZER) and found.status.phase != "Bound":
            await _remove_finalizer(self, PERSISTENT_VOLUMES, found, VOLUME_FINALIZER)
        return None


def _waits_for_finalizer(item: KubeObject, finalizer: str) -> bool:
    return item.metadata.deletion_timestamp is not None and finalizer in item.metadata.finalizers


def claim_names(pod: PodFields) -> Iterable[str]:
    """Names of the claims of a pod, including those of its ephemeral volumes."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.name}-{volume.name}"
