"""PersistentVolume controller: binds claims and volumes, provisions hostPath volumes, and reclaims released ones.

A claim of a class with WaitForFirstConsumer waits for the scheduler, which reserves a volume or selects a node; any
other claim gets the smallest volume that fits. Volumes of provisioner `bayplan.dev/hostpath` are created here, without
storage behind them. A claim's sync walks the volumes of its class.
"""

from __future__ import annotations

from collections import defaultdict

from bayplan.client import Client
from bayplan.controllers.core.api_types import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    PersistentVolumeFields,
    StorageClassFields,
    Tree,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.errors import AlreadyExists, NotFound
from bayplan.objects.volumes import PersistentVolumeClaim
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.volume_matcher import HOST_PATH_PROVISIONER, CandidateVolumes, is_reserved_for

DEFAULT_CLASS_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
COMPLETED = "pv.kubernetes.io/bind-completed"
BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
DEFAULT_CLASS: Tree = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "standard", "annotations": {DEFAULT_CLASS_ANNOTATION: "true"}},
    "provisioner": HOST_PATH_PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
}
_NO_VOLUME_MESSAGE = "no persistent volumes available for this claim and no storage class is set"
_LOST_MESSAGE = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
_EXTERNAL_MESSAGE = (
    "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system "
    "administrator. If volume creation is delayed, please verify that the provisioner is running and correctly "
    "registered."
)
Claim = PersistentVolumeClaim


async def make_default_class(client: Client) -> None:
    """Create the default class `standard`, whose volumes have no storage, for clusters without one."""
    try:
        await client.create(STORAGE_CLASSES, DEFAULT_CLASS)
    except AlreadyExists:
        return


class PersistentVolumeBinder(Controller):
    """Binds claims to volumes. A key without a namespace names a volume."""

    name = "persistentvolume-binder-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.claims = self.informer(PERSISTENT_VOLUME_CLAIMS, Claim)
        self.volumes = self.informer(PERSISTENT_VOLUMES, PersistentVolumeFields)
        self.classes = self.informer(STORAGE_CLASSES, StorageClassFields)
        self._unbound: set[Key] = set()
        self._volumes_by_class: dict[str, set[str]] = defaultdict(set)
        self.claims.add_handler(self._on_claim)
        self.volumes.add_handler(self._on_volume)
        self.classes.add_handler(self._on_class)

    @classmethod
    def component(cls) -> str:
        return "persistentvolume-controller"

    # Event handlers.

    def _on_claim(self, old: Claim | None, new: Claim | None) -> None:
        item = new if new is not None else old
        assert item is not None
        key = (item.namespace, item.name)
        if new is None or new.status.phase == "Bound":
            self._unbound.discard(key)
        else:
            self._unbound.add(key)
        self.queue.add(key)
        if item.spec.volume_name:
            self.queue.add(("", item.spec.volume_name))

    def _on_volume(self, old: PersistentVolumeFields | None, new: PersistentVolumeFields | None) -> None:
        for item in (old, new):
            if item is not None and item.spec.claim_ref is not None:
                self.queue.add((item.spec.claim_ref.namespace, item.spec.claim_ref.name))
        if old is not None:
            self._volumes_by_class[old.spec.storage_class_name].discard(old.name)
        if new is None:
            return
        self._volumes_by_class[new.spec.storage_class_name].add(new.name)
        self.queue.add(("", new.name))
        if new.status.phase == "Available" and (old is None or old.status.phase != "Available"):
            self._wake_unbound()

    def _on_class(self, _: StorageClassFields | None, __: StorageClassFields | None) -> None:
        self._wake_unbound()

    def _wake_unbound(self) -> None:
        for key in self._unbound:
            self.queue.add(key)

    async def sync(self, key: Key) -> float | None:
        if not key[0]:
            await self._sync_volume(key[1])
            return None
        claim = self.claims.get(*key)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            return None
        if COMPLETED in claim.metadata.annotations:
            await self._sync_bound(claim)
        elif claim.spec.volume_name:
            await self._sync_named(claim)
        else:
            await self._sync_unbound(claim)
        return None

    # Claims.

    async def _sync_unbound(self, claim: Claim) -> None:
        if claim.spec.storage_class_name is None:
            default = self._default_class()
            if default is not None:
                await self.write(PERSISTENT_VOLUME_CLAIMS, claim, {"spec": {"storageClassName": default.name}})
                return
        name = claim.spec.storage_class_name or ""
        storage_class = self.classes.get("", name) if name else None
        waits = storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer"
        volume = self._find_volume(claim, reserved_only=waits)
        if volume is not None:
            await self._bind(volume, claim)
            return
        await self._set_pending(claim)
        if waits and SELECTED_NODE not in claim.metadata.annotations:
            note = "waiting for first consumer to be created before binding"
            self.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "WaitForFirstConsumer", note)
        elif not name:
            self.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "FailedBinding", _NO_VOLUME_MESSAGE)
        elif storage_class is None:
            note = f'storageclass.storage.k8s.io "{name}" not found'
            self.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "ProvisioningFailed", note, warning=True)
        else:
            await self._provision(claim, storage_class)

    def _default_class(self) -> StorageClassFields | None:
        found = [
            each for each in self.classes.all() if each.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION) == "true"
        ]
        return max(found, key=lambda each: (str(each.metadata.creation_timestamp), each.name), default=None)

    def _find_volume(self, claim: Claim, *, reserved_only: bool) -> PersistentVolumeFields | None:
        names = self._volumes_by_class.get(claim.spec.storage_class_name or "", ())
        volumes = [volume for name in names if (volume := self.volumes.get("", name)) is not None]
        if reserved_only:
            volumes = [volume for volume in volumes if is_reserved_for(volume, claim)]
        try:
            found = CandidateVolumes(claim, sorted(volumes, key=lambda each: each.name)).matches_any_node()
        except VolumeError as fault:
            self.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "FailedBinding", str(fault), warning=True)
            return None
        return found if isinstance(found, PersistentVolumeFields) else None

    async def _sync_named(self, claim: Claim) -> None:
        volume = self.volumes.get("", claim.spec.volume_name)
        if volume is not None and (volume.spec.claim_ref is None or is_reserved_for(volume, claim)):
            await self._bind(volume, claim)
            return
        await self._set_pending(claim)
        if volume is not None:
            note = f'volume "{volume.name}" already bound to a different claim.'
            self.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "FailedBinding", note, warning=True)

    async def _sync_bound(self, claim: Claim) -> None:
        volume = self.volumes.get("", claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None and (volume.spec.claim_ref is None or is_reserved_for(volume, claim)):
            await self._bind(volume, claim)
            return
        if volume is None and claim.spec.volume_name and await self._volume_exists(claim.spec.volume_name):
            return  # the watch has not delivered the volume yet
        if claim.status.phase != "Lost":
            await self.write(PERSISTENT_VOLUME_CLAIMS, claim, {"status": {"phase": "Lost"}}, subresource="status")
            self.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "ClaimLost", _LOST_MESSAGE, warning=True)

    async def _volume_exists(self, name: str) -> bool:
        try:
            await self.client.get_raw(PERSISTENT_VOLUMES, "", name)
        except NotFound:
            return False
        return True

    async def _set_pending(self, claim: Claim) -> None:
        if claim.status.phase != "Pending":
            await self.write(PERSISTENT_VOLUME_CLAIMS, claim, {"status": {"phase": "Pending"}}, subresource="status")

    async def _bind(self, volume: PersistentVolumeFields, claim: Claim) -> None:
        """Bind both to each other. The volume comes first, so that no other claim takes it."""
        await self._bind_volume(volume, claim)
        meta: Tree = {}
        if COMPLETED not in claim.metadata.annotations:
            meta = {"annotations": {COMPLETED: "yes"}}
            if not claim.spec.volume_name:
                meta["annotations"][BY_CONTROLLER] = "yes"
        patch: Tree = {"metadata": meta} if meta else {}
        if claim.spec.volume_name != volume.name:
            patch["spec"] = {"volumeName": volume.name}
        if patch:
            await self.write(PERSISTENT_VOLUME_CLAIMS, claim, patch)
            return  # the watch delivers the claim again, for its status
        if claim.status.phase != "Bound":
            fields = {"accessModes": list(volume.spec.access_modes), "capacity": dict(volume.spec.capacity)}
            await self.write(
                PERSISTENT_VOLUME_CLAIMS, claim, {"status": {"phase": "Bound", **fields}}, subresource="status"
            )

    async def _bind_volume(self, volume: PersistentVolumeFields, claim: Claim) -> None:
        ref = volume.spec.claim_ref
        if ref is not None and ref.uid == claim.metadata.uid:
            return
        meta: Tree = {} if ref is not None else {"annotations": {BY_CONTROLLER: "yes"}}
        await self.write(PERSISTENT_VOLUMES, volume, {"metadata": meta, "spec": {"claimRef": _reference(claim)}})

    # Volumes.

    async def _sync_volume(self, name: str) -> None:
        volume = self.volumes.get("", name)
        if volume is None:
            return
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            await self._set_phase(volume, "Available")
            return
        claim = self.claims.get(ref.namespace, ref.name)
        if claim is None or claim.metadata.uid != ref.uid:
            if not await self._claim_is_deleted(ref.namespace, ref.name, ref.uid):
                return
            await self._set_phase(volume, "Released")
            await self._reclaim(volume)
        elif claim.spec.volume_name == volume.name:
            await self._set_phase(volume, "Bound")

    async def _claim_is_deleted(self, namespace: str, name: str, uid: str) -> bool:
        """Whether the claim is deleted, according to the API server: a released volume may be deleted."""
        try:
            found = await self.client.get_raw(PERSISTENT_VOLUME_CLAIMS, namespace, name)
        except NotFound:
            return True
        return bool(found["metadata"]["uid"] != uid)

    async def _set_phase(self, volume: PersistentVolumeFields, phase: str) -> None:
        if volume.status.phase != phase:
            await self.write(PERSISTENT_VOLUMES, volume, {"status": {"phase": phase}}, subresource="status")

    async def _reclaim(self, volume: PersistentVolumeFields) -> None:
        provisioned_here = volume.metadata.annotations.get(PROVISIONED_BY) == HOST_PATH_PROVISIONER
        is_delete = volume.spec.persistent_volume_reclaim_policy == "Delete"
        if provisioned_here and is_delete and volume.metadata.deletion_timestamp is None:
            await self.delete(PERSISTENT_VOLUMES, volume)

    # Provisioning.

    async def _provision(self, claim: Claim, storage_class: StorageClassFields) -> None:
        provisioner = storage_class.provisioner
        wanted = {STORAGE_PROVISIONER: provisioner, BETA_STORAGE_PROVISIONER: provisioner}
        if claim.metadata.annotations.get(STORAGE_PROVISIONER) != provisioner:
            await self.write(PERSISTENT_VOLUME_CLAIMS, claim, {"metadata": {"annotations": wanted}})
            return  # continues when the watch delivers the annotation
        if provisioner != HOST_PATH_PROVISIONER:
            self.record_event(
                PERSISTENT_VOLUME_CLAIMS, claim, "ExternalProvisioning", _EXTERNAL_MESSAGE.format(provisioner)
            )
            return
        body = hostpath_volume(claim, storage_class)
        try:
            await self.client.create(PERSISTENT_VOLUMES, body)
        except AlreadyExists:
            return
        note = f"Successfully provisioned volume {body['metadata']['name']}"
        self.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "ProvisioningSucceeded", note)


def hostpath_volume(claim: Claim, storage_class: StorageClassFields) -> Tree:
    """Build a volume for a claim, on the selected node if there is one."""
    name = f"pvc-{claim.metadata.uid}"
    spec: Tree = {
        "capacity": {"storage": claim.spec.resources.requests.get("storage", "0")},
        "accessModes": list(claim.spec.access_modes),
        "persistentVolumeReclaimPolicy": storage_class.reclaim_policy or "Delete",
        "storageClassName": storage_class.name,
        "volumeMode": claim.spec.volume_mode or "Filesystem",
        "claimRef": _reference(claim),
        "hostPath": {"path": f"/var/lib/bayplan/volumes/{name}", "type": "DirectoryOrCreate"},
    }
    node = claim.metadata.annotations.get(SELECTED_NODE)
    if node:
        field = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [field]}]}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: HOST_PATH_PROVISIONER}},
        "spec": spec,
    }


def _reference(claim: Claim) -> Tree:
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
    }
