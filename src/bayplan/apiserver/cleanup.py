"""Cleanup after deletions, for every kind. The controllers of a cluster do this work otherwise.

`EmbeddedCluster` starts it unless the controllers run. It garbage-collects dependents (`ownerReferences`: background,
foreground, orphan). It empties a deleted namespace after a pause and then removes it. It removes the protection
finalizers of claims and volumes that are no longer in use. It creates the service account and the CA certificate of a
new namespace, and it aggregates ClusterRoles.

Committed changes enter a work queue, which is processed in callbacks of the event loop, so no request waits for it.
Decisions read the uncommitted objects. After a failed commit every object is indexed and checked again. Cost: two
dictionary writes for each change, and an index of uids.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.auth.rbac import aggregated_rules
from bayplan.apiserver.requests import MASTERS_GROUP, RequestUser, WriteOptions, WriteRequest
from bayplan.apiserver.resources.kinds import ResourceRegistry, ServedResource, Tree
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.crd_registry import CRD_RESOURCE, crd_resources
from bayplan.apiserver.storage.store import CommittedObjects, GroupResource, ResourceObjects, Store
from bayplan.apiserver.storage.stored_objects import StoredObject
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent
from bayplan.apiserver.writes.deletion import CRD_CLEANUP_FINALIZER, FOREGROUND, ORPHAN, DeleteOptions
from bayplan.apiserver.writes.writer import ObjectWriter

LOG = logging.getLogger(__name__)

NAMESPACES: GroupResource = ("", "namespaces")
PODS: GroupResource = ("", "pods")
EVENTS: GroupResource = ("", "events")
CLUSTER_ROLES: GroupResource = ("rbac.authorization.k8s.io", "clusterroles")
CLAIMS: GroupResource = ("", "persistentvolumeclaims")
VOLUMES: GroupResource = ("", "persistentvolumes")
_PROTECTS = {CLAIMS: "kubernetes.io/pvc-protection", VOLUMES: "kubernetes.io/pv-protection"}
_DEFAULT_OBJECTS = frozenset({("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")})
_BATCH_SIZE = 50
PAUSE_S = 2.0
"""Seconds for which a deleted namespace keeps its content. `kubectl delete -f` deletes the namespace of a manifest
first and then the objects in it one by one; these must still exist then. Upstream waits five seconds."""
_AGGREGATION_MANAGER = "clusterrole-aggregation-controller"
_CLEANUP_USER = RequestUser("system:bayplan:housekeeping", (MASTERS_GROUP,))


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """Identifies one object."""

    group_resource: GroupResource
    namespace: str
    name: str


class Cleanup:
    """Work queue and index of owners of the cleanup."""

    def __init__(
        self,
        store: Store,
        writer: ObjectWriter,
        resources: ResourceRegistry,
        create_missing: Callable[[str], None] | None = None,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._store = store
        self._writer = writer
        self._resources = resources
        self._create_missing = create_missing
        self._pause_s = pause_s
        self._pause_over: dict[str, bool] = {}  # by uid of the namespace; True when the pause is over
        self._keys_by_uid: dict[str, ObjectKey] = {}
        self._dependents: dict[str, dict[ObjectKey, None]] = defaultdict(dict)
        self._protected: dict[ObjectKey, None] = {}
        self._queue: deque[ObjectKey] = deque()
        self._queued: set[ObjectKey] = set()
        self._scheduled = False
        self._stopped = False
        for objects in store.all_committed():
            self._index_all(objects)
        store.add_commit_listener(self._on_change)
        store.on_recovery(self._recover)

    def stop(self) -> None:
        """Stop all writes."""
        self._stopped = True

    def _recover(self) -> None:
        """Index and check all objects again: the writes since the failed commit are rolled back."""
        for objects in self._store.all_committed():
            self._index_all(objects)
        self._enqueue_aggregated_roles(self._store.committed(CLUSTER_ROLES))
        self.wake()

    def _index_all(self, objects: CommittedObjects) -> None:
        for entry in objects.entries():
            self._index(_object_key(objects, entry), entry)

    # Events

    def _on_change(self, objects: CommittedObjects, change: WatchCacheEvent) -> None:
        key = _object_key(objects, change.entry)
        if objects.name == CLUSTER_ROLES:
            self._enqueue_aggregated_roles(objects)
        if change.type == "DELETED":
            self._forget(key, change)
        else:
            self._index(key, change.entry, change.before)

    def _index(self, key: ObjectKey, entry: StoredObject, before: StoredObject | None = None) -> None:
        self._keys_by_uid[entry.uid] = key
        for owner in entry.owners:
            self._dependents[owner][key] = None
        if entry.deleting and (key.group_resource in _PROTECTS or key.group_resource == CRD_RESOURCE):
            self._protected[key] = None
        owners_before = before.owners if before is not None else ()
        fresh_namespace = before is None and key.group_resource == NAMESPACES
        if entry.deleting or fresh_namespace or entry.owners != owners_before:
            self._enqueue(key)

    def _forget(self, key: ObjectKey, change: WatchCacheEvent) -> None:
        entry = change.before or change.entry
        self._pause_over.pop(entry.uid, None)
        if self._keys_by_uid.get(entry.uid) == key:
            del self._keys_by_uid[entry.uid]
        for dependent in self._dependents.pop(entry.uid, ()):
            self._enqueue(dependent)
        for owner in entry.owners:
            if (siblings := self._dependents.get(owner)) is not None:
                siblings.pop(key, None)
                if (parent := self._keys_by_uid.get(owner)) is not None:
                    self._enqueue(parent)  # it may wait for this dependent
        if key.namespace:
            self._enqueue(ObjectKey(NAMESPACES, "", key.namespace))
        self._protected.pop(key, None)
        for each in self._protected:
            self._enqueue(each)

    def _enqueue(self, key: ObjectKey) -> None:
        if key in self._queued:
            return
        self._queued.add(key)
        self._queue.append(key)
        self.wake()

    # Work queue

    def wake(self) -> None:
        """Schedule the processing of the work queue, if an event loop runs."""
        if self._queue and not self._scheduled:
            try:
                asyncio.get_running_loop().call_soon(self._process_batch)
            except RuntimeError:
                return  # no event loop yet; `EmbeddedCluster` calls `wake` after its start
            self._scheduled = True

    def _process_batch(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        for _ in range(min(_BATCH_SIZE, len(self._queue))):
            key = self._queue.popleft()
            self._queued.discard(key)
            try:
                self._reconcile(key)
            except StatusError as refusal:
                where = f"{key.group_resource[1]} {key.namespace}/{key.name}"
                LOG.warning("%s: cleanup failed, the object is not changed: %s", where, refusal)
        self.wake()

    def _reconcile(self, key: ObjectKey) -> None:
        resource = self._resource(key.group_resource)
        entry = self._store.uncommitted(key.group_resource).get(key.namespace, key.name)
        if resource is None or entry is None:
            return
        if key.group_resource == NAMESPACES:
            self._reconcile_namespace(resource, entry)
        elif key.group_resource == CLUSTER_ROLES and not entry.deleting:
            self._aggregate_rules(resource, entry)
        if entry.deleting:
            self._process_finalizers(resource, entry)
        elif entry.owners:
            self._check_owners(resource, entry)

    # Owners and dependents

    def _check_owners(self, resource: ServedResource, entry: StoredObject) -> None:
        tree = version_conversion.to_tree(resource, entry)
        owners: list[Tree] = tree["metadata"].get("ownerReferences") or []
        living = [each for each in owners if self._owner_exists(entry, each)]
        if any(not self._awaits_dependents(each["uid"]) for each in living):
            if len(living) < len(owners):
                self._update(resource, entry, lambda live: _set_owner_references(live, living))
            return
        self._delete(resource, entry, "Foreground" if living else "Background")

    def _owner_exists(self, entry: StoredObject, owner: Tree) -> bool:
        key = self._keys_by_uid.get(owner.get("uid", ""))
        return key is not None and key.namespace in ("", entry.namespace)

    def _awaits_dependents(self, uid: str) -> bool:
        """Whether the object is deleted in the foreground, that is, after its dependents."""
        key = self._keys_by_uid[uid]
        entry = self._store.uncommitted(key.group_resource).get(key.namespace, key.name)
        return entry is not None and entry.deleting and FOREGROUND in _finalizers(entry)

    def _process_finalizers(self, resource: ServedResource, entry: StoredObject) -> None:
        """Do the work of the finalizers that this class handles, then remove these finalizers."""
        finalizers = _finalizers(entry)
        finished = set()
        if ORPHAN in finalizers:
            for kind, dependent in self._dependents_of(entry):
                rest = [each for each in _owners(dependent) if each.get("uid") != entry.uid]
                self._update(kind, dependent, lambda live, rest=rest: _set_owner_references(live, rest))  # type: ignore[misc]
            finished.add(ORPHAN)
        if FOREGROUND in finalizers and not self._delete_dependents(entry):
            finished.add(FOREGROUND)
        protection = _PROTECTS.get(resource.storage, "")
        if protection in finalizers and not self._in_use(resource, entry):
            finished.add(protection)
        if CRD_CLEANUP_FINALIZER in finalizers and self._delete_custom_objects(entry):
            finished.add(CRD_CLEANUP_FINALIZER)
        if finished:
            self._update(resource, entry, lambda live: _remove_finalizers(live, finished))

    def _delete_dependents(self, entry: StoredObject) -> bool:
        """Delete the dependents. Returns whether one of them blocks the deletion of its owner."""
        blocks = False
        for resource, dependent in list(self._dependents_of(entry)):
            reference = next(each for each in _owners(dependent) if each.get("uid") == entry.uid)
            blocks |= bool(reference.get("blockOwnerDeletion"))
            if not dependent.deleting:
                self._check_owners(resource, dependent)
        if not blocks:
            return False
        return any(
            each.get("blockOwnerDeletion")
            for _, dependent in self._dependents_of(entry)
            for each in _owners(dependent)
            if each.get("uid") == entry.uid
        )

    def _dependents_of(self, entry: StoredObject) -> Iterator[tuple[ServedResource, StoredObject]]:
        for key in list(self._dependents.get(entry.uid, ())):
            resource = self._resource(key.group_resource)
            found = self._store.uncommitted(key.group_resource).get(key.namespace, key.name)
            if resource is not None and found is not None and entry.uid in found.owners:
                yield resource, found

    def _delete_custom_objects(self, definition: StoredObject) -> bool:
        """Delete the objects of a kind whose definition is being deleted. Returns whether none is left."""
        for resource in crd_resources(definition.tree()):
            objects = self._store.uncommitted(resource.storage)
            for each in list(objects.entries()):
                if not each.deleting:
                    self._delete(resource, each, "Background")
            return next(objects.entries(), None) is None
        return True

    # ClusterRole aggregation

    def _enqueue_aggregated_roles(self, objects: CommittedObjects) -> None:
        """Enqueue every aggregated ClusterRole: it may include the rules of the changed one."""
        for entry in objects.entries():
            if b'"aggregationRule"' in entry.raw:
                self._enqueue(_object_key(objects, entry))

    def _aggregate_rules(self, resource: ServedResource, entry: StoredObject) -> None:
        role = entry.tree()
        if role.get("aggregationRule") is None:
            return
        rules = aggregated_rules(role, [each.tree() for each in self._store.uncommitted(CLUSTER_ROLES).entries()])
        if rules != (role.get("rules") or []):
            self._update(resource, entry, lambda live: {**live, "rules": rules}, manager=_AGGREGATION_MANAGER)

    # Claims and volumes

    def _in_use(self, resource: ServedResource, entry: StoredObject) -> bool:
        if resource.storage == VOLUMES:
            return (entry.tree().get("status") or {}).get("phase") == "Bound"
        pods = self._store.uncommitted(PODS).entries(entry.namespace)
        wanted = f'"claimName":"{entry.name}"'.encode()
        return any(
            wanted in pod.raw and pod.fields.get("status.phase") not in ("Succeeded", "Failed")
            for pod in pods
            if pod.fields.get("spec.nodeName")
        )

    # Namespaces

    def _reconcile_namespace(self, resource: ServedResource, entry: StoredObject) -> None:
        if not entry.deleting:
            if self._create_missing is not None:
                self._create_missing(entry.name)
            return
        if not self._pause_over.get(entry.uid) and self._has_content(entry.name):
            self._start_pause(entry)
            return
        left = False
        for kind, objects in self._namespaced():
            for each in list(objects.entries(entry.name)):
                if not each.deleting:
                    self._delete(kind, each, "Background")
            left = left or next(objects.entries(entry.name), None) is not None
        if not left:
            self._update(resource, entry, _remove_namespace_finalizers, subresource="finalize")

    def _namespaced(self) -> Iterator[tuple[ServedResource, ResourceObjects]]:
        for objects in self._store.all_committed():
            kind = self._resource(objects.name)
            if kind is not None and kind.namespaced:
                yield kind, self._store.uncommitted(objects.name)

    def _has_content(self, namespace: str) -> bool:
        """Whether the namespace has objects beyond events and its default objects."""
        return any(
            (objects.name[1], entry.name) not in _DEFAULT_OBJECTS
            for _, objects in self._namespaced()
            if objects.name != EVENTS
            for entry in objects.entries(namespace)
        )

    def _start_pause(self, namespace: StoredObject) -> None:
        if namespace.uid in self._pause_over:
            return
        self._pause_over[namespace.uid] = False

        def end_pause() -> None:
            if namespace.uid in self._pause_over:
                self._pause_over[namespace.uid] = True
                self._enqueue(ObjectKey(NAMESPACES, "", namespace.name))

        asyncio.get_running_loop().call_later(self._pause_s, end_pause)

    # Writes

    def _resource(self, group_resource: GroupResource) -> ServedResource | None:
        return self._resources.first_stored_in(group_resource)

    def _delete(self, resource: ServedResource, entry: StoredObject, policy: str) -> None:
        write = WriteRequest(resource, entry.namespace, _CLEANUP_USER, WriteOptions(), _CLEANUP_USER.name)
        self._writer.delete(write, entry.name, DeleteOptions(policy=policy, uid=entry.uid))

    def _update(
        self,
        resource: ServedResource,
        entry: StoredObject,
        revision: Callable[[Tree], Tree],
        *,
        subresource: str = "",
        manager: str = _CLEANUP_USER.name,
    ) -> None:
        write = WriteRequest(resource, entry.namespace, _CLEANUP_USER, WriteOptions(), manager, subresource)
        if self._store.uncommitted(resource.storage).get(entry.namespace, entry.name) is not None:
            self._writer.update(write, entry.name, revision)


def _object_key(objects: CommittedObjects, entry: StoredObject) -> ObjectKey:
    return ObjectKey(objects.name, entry.namespace, entry.name)


def _finalizers(entry: StoredObject) -> list[str]:
    found: list[str] = entry.tree()["metadata"].get("finalizers") or []
    return found


def _owners(entry: StoredObject) -> list[Tree]:
    found: list[Tree] = entry.tree()["metadata"].get("ownerReferences") or []
    return found


def _set_owner_references(tree: Tree, owners: list[Tree]) -> Tree:
    tree["metadata"]["ownerReferences"] = owners
    if not owners:
        del tree["metadata"]["ownerReferences"]
    return tree


def _remove_finalizers(tree: Tree, finished: set[str]) -> Tree:
    left = [each for each in tree["metadata"].get("finalizers") or () if each not in finished]
    tree["metadata"]["finalizers"] = left
    if not left:
        del tree["metadata"]["finalizers"]
    return tree


def _remove_namespace_finalizers(tree: Tree) -> Tree:
    left = [each for each in tree["spec"].get("finalizers") or () if each != "kubernetes"]
    tree["spec"] = {**tree["spec"], "finalizers": left} if left else {}
    return tree
