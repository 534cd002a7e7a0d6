"""May a claim or a volume go that somebody deleted? Only when no pod uses the claim, and no claim the volume."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.client import Resource
from bayplan.controllers.core.api_types import (
    CLAIMS,
    PODS,
    VOLUMES,
    SeenPod,
    SeenVolume,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, World
from bayplan.objects.meta import KubeObject
from bayplan.objects.volumes import PersistentVolumeClaim

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"


async def _drop(controller: Controller, resource: Resource, item: KubeObject, finalizer: str) -> None:
    kept = [each for each in item.metadata.finalizers if each != finalizer]
    await controller.write(resource, item, {"metadata": {"finalizers": kept or None}})


class ClaimProtection(Controller):
    """Lets claims go that no pod uses."""

    name = "persistentvolumeclaim-protection-controller"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.claims = self.feed(CLAIMS, PersistentVolumeClaim)
        self.pods = self.feed(PODS, SeenPod)
        self.claims.listen(self._on_claim)
        self.pods.listen(self._on_pod)

    def _on_claim(self, _: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is not None and _held(new, CLAIM_FINALIZER):
            self.enqueue(None, new)

    def _on_pod(self, old: SeenPod | None, new: SeenPod | None) -> None:
        if old is None or (new is not None and not new.finished):
            return
        for name in claim_names(old):
            found = self.claims.get(old.namespace, name)
            if found is not None and _held(found, CLAIM_FINALIZER):
                self.enqueue(None, found)

    async def sync(self, key: Key) -> float | None:
        found = self.claims.get(*key)
        if found is None or not _held(found, CLAIM_FINALIZER):
            return None
        users = (pod for pod in self.pods.within(found.namespace) if not pod.finished)
        if not any(found.name in claim_names(pod) for pod in users):
            await _drop(self, CLAIMS, found, CLAIM_FINALIZER)
        return None


class VolumeProtection(Controller):
    """Lets volumes go that no claim has."""

    name = "persistentvolume-protection-controller"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.volumes = self.feed(VOLUMES, SeenVolume)
        self.volumes.listen(self.enqueue)

    async def sync(self, key: Key) -> float | None:
        found = self.volumes.get(*key)
        if found is not None and _held(found, VOLUME_FINALIZER) and found.status.phase != "Bound":
            await _drop(self, VOLUMES, found, VOLUME_FINALIZER)
        return None


def _held(item: KubeObject, finalizer: str) -> bool:
    return item.metadata.deletion_timestamp is not None and finalizer in item.metadata.finalizers


def claim_names(pod: SeenPod) -> Iterable[str]:
    """The claims that a pod uses, those that are made for it included."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.name}-{volume.name}"
