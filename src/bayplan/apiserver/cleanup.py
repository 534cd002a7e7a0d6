"""What happens by itself after a deletion? The work that a cluster's own controllers do on every kind.

Dependents of what is gone are deleted, or orphaned, or waited for (`ownerReferences`); a namespace that is deleted is
emptied, after a pause, and then removed; claims and volumes lose the finalizers that protect them once nobody uses
them; a new namespace gets its service account and the cluster's certificate; roles that are put together of others
follow them.
Changes are noted down when they are committed and worked off in turns of the loop, so that no request waits for them.
Decisions rest on the uncommitted state. After a commit that failed everything is looked at again.
Cost: two dictionary writes a change; an index of uids.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.auth.rbac import aggregated_rules
from bayplan.apiserver.requests import (
    MASTERS_GROUP,
    RequestUser,
    WriteOptions,
    WriteRequest,
)
from bayplan.apiserver.resources.kinds import ResourceRegistry, ServedResource, Tree
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.crd_registry import CRD_RESOURCE, crd_resources
from bayplan.apiserver.storage.store import (
    CommittedObjects,
    GroupResource,
    ResourceObjects,
    Store,
)
from bayplan.apiserver.storage.stored_objects import StoredObject
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent
from bayplan.apiserver.writes.deletion import (
    CRD_CLEANUP_FINALIZER,
    FOREGROUND,
    ORPHAN,
    DeleteOptions,
)
from bayplan.apiserver.writes.writer import ObjectWriter

LOG = logging.getLogger(__name__)

NAMESPACES: GroupResource = ("", "namespaces")
PODS: GroupResource = ("", "pods")
EVENTS: GroupResource = ("", "events")
CLUSTER_ROLES: GroupResource = ("rbac.authorization.k8s.io", "clusterroles")
CLAIMS: GroupResource = ("", "persistentvolumeclaims")
VOLUMES: GroupResource = ("", "persistentvolumes")
_PROTECTS = {CLAIMS: "kubernetes.io/pvc-protection", VOLUMES: "kubernetes.io/pv-protection"}
_FURNITURE = frozenset({("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")})
_AT_ONCE = 50
PAUSE_S = 2.0
"""How long a namespace that is deleted keeps what is in it. Who deletes a manifest deletes the namespace in it first,
and then, one by one, what he put there: that must not be gone before he comes to it. Upstream waits five seconds."""
_GATHERER = "clusterrole-aggregation-controller"
_CLEANUP_USER = RequestUser("system:bayplan:housekeeping", (MASTERS_GROUP,))


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """One object, wherever it is now."""

    place: GroupResource
    namespace: str
    name: str


class Cleanup:
    """Looks after what was deleted."""

    def __init__(
        self,
        store: Store,
        writer: ObjectWriter,
        resources: ResourceRegistry,
        furnish: Callable[[str], None] | None = None,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._store = store
        self._writer = writer
        self._resources = resources
        self._furnish = furnish
        self._pause_s = pause_s
        self._pauses: dict[str, bool] = {}  # of namespaces, by uid: whether they are over
        self._living: dict[str, ObjectKey] = {}
        self._dependents: dict[str, dict[ObjectKey, None]] = defaultdict(dict)
        self._leaving: dict[ObjectKey, None] = {}
        self._queue: deque[ObjectKey] = deque()
        self._queued: set[ObjectKey] = set()
        self._scheduled = False
        self._stopped = False
        for place in store.all_committed():
            self._note_all(place)
        store.add_commit_listener(self._changed)
        store.on_recovery(self._start_again)

    def stop(self) -> None:
        """Write nothing any more."""
        self._stopped = True

    def _start_again(self) -> None:
        """Look at everything again: what was written before the failed commit is rolled back."""
        for place in self._store.all_committed():
            self._note_all(place)
        self._gather_roles(self._store.committed(CLUSTER_ROLES))
        self.wake()

    def _note_all(self, place: CommittedObjects) -> None:
        for entry in place.entries():
            self._note(_where(place, entry), entry)

    # Hearing of changes.

    def _changed(self, place: CommittedObjects, change: WatchCacheEvent) -> None:
        where = _where(place, change.entry)
        if place.name == CLUSTER_ROLES:
            self._gather_roles(place)
        if change.type == "DELETED":
            self._forget(where, change)
        else:
            self._note(where, change.entry, change.before)

    def _note(self, where: ObjectKey, entry: StoredObject, before: StoredObject | None = None) -> None:
        self._living[entry.uid] = where
        for owner in entry.owners:
            self._dependents[owner][where] = None
        if entry.deleting and (where.place in _PROTECTS or where.place == CRD_RESOURCE):
            self._leaving[where] = None
        owners_before = before.owners if before is not None else ()
        fresh_namespace = before is None and where.place == NAMESPACES
        if entry.deleting or fresh_namespace or entry.owners != owners_before:
            self._enqueue(where)

    def _forget(self, where: ObjectKey, change: WatchCacheEvent) -> None:
        entry = change.before or change.entry
        self._pauses.pop(entry.uid, None)
        if self._living.get(entry.uid) == where:
            del self._living[entry.uid]
        for dependent in self._dependents.pop(entry.uid, ()):
            self._enqueue(dependent)
        for owner in entry.owners:
            if (siblings := self._dependents.get(owner)) is not None:
                siblings.pop(where, None)
                if (parent := self._living.get(owner)) is not None:
                    self._enqueue(parent)  # it may have waited for this one
        if where.namespace:
            self._enqueue(ObjectKey(NAMESPACES, "", where.namespace))
        self._leaving.pop(where, None)
        for each in self._leaving:
            self._enqueue(each)

    def _enqueue(self, where: ObjectKey) -> None:
        if where in self._queued:
            return
        self._queued.add(where)
        self._queue.append(where)
        self.wake()

    # Working.

    def wake(self) -> None:
        """See to it that the work is done, once there is a loop."""
        if self._queue and not self._scheduled:
            try:
                asyncio.get_running_loop().call_soon(self._turn)
            except RuntimeError:
                return  # nothing runs yet; whoever starts the loop wakes us
            self._scheduled = True

    def _turn(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        for _ in range(min(_AT_ONCE, len(self._queue))):
            where = self._queue.popleft()
            self._queued.discard(where)
            try:
                self._look_after(where)
            except StatusError as refusal:
                LOG.warning("%s %s/%s is left as it is: %s", where.place[1], where.namespace, where.name, refusal)
        self.wake()

    def _look_after(self, where: ObjectKey) -> None:
        resource = self._resource(where.place)
        entry = self._store.uncommitted(where.place).get(where.namespace, where.name)
        if resource is None or entry is None:
            return
        if where.place == NAMESPACES:
            self._look_after_namespace(resource, entry)
        elif where.place == CLUSTER_ROLES and not entry.deleting:
            self._gather_rules(resource, entry)
        if entry.deleting:
            self._finish(resource, entry)
        elif entry.owners:
            self._check_owners(resource, entry)

    # Owners and dependents.

    def _check_owners(self, resource: ServedResource, entry: StoredObject) -> None:
        tree = version_conversion.to_tree(resource, entry)
        owners: list[Tree] = tree["metadata"].get("ownerReferences") or []
        living = [each for each in owners if self._lives(entry, each)]
        if any(not self._waits(each["uid"]) for each in living):
            if len(living) < len(owners):
                self._revise(resource, entry, lambda live: _with_owners(live, living))
            return
        self._delete(resource, entry, "Foreground" if living else "Background")

    def _lives(self, entry: StoredObject, owner: Tree) -> bool:
        where = self._living.get(owner.get("uid", ""))
        return where is not None and where.namespace in ("", entry.namespace)

    def _waits(self, uid: str) -> bool:
        """Whether the object is to go after its dependents."""
        where = self._living[uid]
        entry = self._store.uncommitted(where.place).get(where.namespace, where.name)
        return entry is not None and entry.deleting and FOREGROUND in _finalizers(entry)

    def _finish(self, resource: ServedResource, entry: StoredObject) -> None:
        """Do what the finalizers that are ours to do ask for, and take them away."""
        finalizers = _finalizers(entry)
        done = set()
        if ORPHAN in finalizers:
            for place, dependent in self._of_owner(entry):
                rest = [each for each in _owners(dependent) if each.get("uid") != entry.uid]
                self._revise(place, dependent, lambda live, rest=rest: _with_owners(live, rest))  # type: ignore[misc]
            done.add(ORPHAN)
        if FOREGROUND in finalizers and not self._holds_back(entry):
            done.add(FOREGROUND)
        protection = _PROTECTS.get(resource.storage, "")
        if protection in finalizers and not self._in_use(resource, entry):
            done.add(protection)
        if CRD_CLEANUP_FINALIZER in finalizers and self._emptied(entry):
            done.add(CRD_CLEANUP_FINALIZER)
        if done:
            self._revise(resource, entry, lambda live: _without_finalizers(live, done))

    def _holds_back(self, entry: StoredObject) -> bool:
        """Delete the dependents; whether one of them keeps its owner from going."""
        blocks = False
        for resource, dependent in list(self._of_owner(entry)):
            reference = next(each for each in _owners(dependent) if each.get("uid") == entry.uid)
            blocks |= bool(reference.get("blockOwnerDeletion"))
            if not dependent.deleting:
                self._check_owners(resource, dependent)
        if not blocks:
            return False
        return any(
            each.get("blockOwnerDeletion")
            for _, dependent in self._of_owner(entry)
            for each in _owners(dependent)
            if each.get("uid") == entry.uid
        )

    def _of_owner(self, entry: StoredObject) -> Iterator[tuple[ServedResource, StoredObject]]:
        for where in list(self._dependents.get(entry.uid, ())):
            resource = self._resource(where.place)
            found = self._store.uncommitted(where.place).get(where.namespace, where.name)
            if resource is not None and found is not None and entry.uid in found.owners:
                yield resource, found

    def _emptied(self, definition: StoredObject) -> bool:
        """Delete the objects of a kind that is about to go; whether none is left."""
        for resource in crd_resources(definition.tree()):
            place = self._store.uncommitted(resource.storage)
            for each in list(place.entries()):
                if not each.deleting:
                    self._delete(resource, each, "Background")
            return next(place.entries(), None) is None
        return True

    # Roles that are put together of others.

    def _gather_roles(self, place: CommittedObjects) -> None:
        """Any of them may be put together of the one that has changed."""
        for entry in place.entries():
            if b'"aggregationRule"' in entry.raw:
                self._enqueue(_where(place, entry))

    def _gather_rules(self, resource: ServedResource, entry: StoredObject) -> None:
        role = entry.tree()
        if role.get("aggregationRule") is None:
            return
        rules = aggregated_rules(role, [each.tree() for each in self._store.uncommitted(CLUSTER_ROLES).entries()])
        if rules != (role.get("rules") or []):
            self._revise(resource, entry, lambda live: {**live, "rules": rules}, manager=_GATHERER)

    # Claims and volumes.

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

    # Namespaces.

    def _look_after_namespace(self, resource: ServedResource, entry: StoredObject) -> None:
        if not entry.deleting:
            if self._furnish is not None:
                self._furnish(entry.name)
            return
        if not self._pauses.get(entry.uid) and self._holds_anything(entry.name):
            self._pause(entry)
            return
        left = False
        for kind, place in self._namespaced():
            for each in list(place.entries(entry.name)):
                if not each.deleting:
                    self._delete(kind, each, "Background")
            left = left or next(place.entries(entry.name), None) is not None
        if not left:
            self._revise(resource, entry, _without_namespace_finalizers, subresource="finalize")

    def _namespaced(self) -> Iterator[tuple[ServedResource, ResourceObjects]]:
        for place in self._store.all_committed():
            kind = self._resource(place.name)
            if kind is not None and kind.namespaced:
                yield kind, self._store.uncommitted(place.name)

    def _holds_anything(self, namespace: str) -> bool:
        """Whether there is more in it than every namespace starts with."""
        return any(
            (place.name[1], entry.name) not in _FURNITURE
            for _, place in self._namespaced()
            if place.name != EVENTS
            for entry in place.entries(namespace)
        )

    def _pause(self, namespace: StoredObject) -> None:
        if namespace.uid in self._pauses:
            return
        self._pauses[namespace.uid] = False

        def over() -> None:
            if namespace.uid in self._pauses:
                self._pauses[namespace.uid] = True
                self._enqueue(ObjectKey(NAMESPACES, "", namespace.name))

        asyncio.get_running_loop().call_later(self._pause_s, over)

    # Writing.

    def _resource(self, place: GroupResource) -> ServedResource | None:
        return self._resources.first_stored_in(place)

    def _delete(self, resource: ServedResource, entry: StoredObject, policy: str) -> None:
        write = WriteRequest(resource, entry.namespace, _CLEANUP_USER, WriteOptions(), _CLEANUP_USER.name)
        self._writer.delete(write, entry.name, DeleteOptions(policy=policy, uid=entry.uid))

    def _revise(
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


def _where(place: CommittedObjects, entry: StoredObject) -> ObjectKey:
    return ObjectKey(place.name, entry.namespace, entry.name)


def _finalizers(entry: StoredObject) -> list[str]:
    found: list[str] = entry.tree()["metadata"].get("finalizers") or []
    return found


def _owners(entry: StoredObject) -> list[Tree]:
    found: list[Tree] = entry.tree()["metadata"].get("ownerReferences") or []
    return found


def _with_owners(tree: Tree, owners: list[Tree]) -> Tree:
    tree["metadata"]["ownerReferences"] = owners
    if not owners:
        del tree["metadata"]["ownerReferences"]
    return tree


def _without_finalizers(tree: Tree, done: set[str]) -> Tree:
    left = [each for each in tree["metadata"].get("finalizers") or () if each not in done]
    tree["metadata"]["finalizers"] = left
    if not left:
        del tree["metadata"]["finalizers"]
    return tree


def _without_namespace_finalizers(tree: Tree) -> Tree:
    left = [each for each in tree["spec"].get("finalizers") or () if each != "kubernetes"]
    tree["spec"] = {**tree["spec"], "finalizers": left} if left else {}
    return tree
