"""ResourceClaim controller: creates claims from templates for pods, and releases claims that no pod uses.

A pod with a template gets its own claim, whose name is written to the pod's status. Deleted and finished pods are
removed from a claim's reservations; the last removal deallocates it. The scheduler reserves claims for pods; this
controller does so only for pods that were bound in another way. Cost: lookups. The API server is asked for a pod that
is not in the store, because its devices must not be released by mistake.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from bayplan.client import STRATEGIC_PATCH
from bayplan.client.work_queue import WorkQueue
from bayplan.controllers.core.api_types import (
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    PodFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.controller import FIRST_RETRY_S, Controller, not_found_as_conflict
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.devices.claims import FINALIZER, entries_by_claim
from bayplan.errors import ApiError, NotFound
from bayplan.objects.core import Pod, PodResourceClaim

POD_CLAIM_NAME_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a generated claim with the pod's entry that it was created for."""
MAX_RESERVED_FOR = 256
MAX_BASE_LENGTH = 57
"""Maximum length of a name before the generated suffix of a hyphen and five characters."""


class ResourceClaimController(Controller):
    """Creates claims for pods, and releases unused ones."""

    name = "resourceclaim-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.claims = self.informer(RESOURCE_CLAIMS, UntypedObject)
        self.templates = self.informer(RESOURCE_CLAIM_TEMPLATES, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self._users: defaultdict[Key, set[Key]] = defaultdict(set)
        """Pods that use each claim."""
        self._created: dict[tuple[str, str], str] = {}
        """Names of created claims by pod uid and entry. The watch may not have delivered them yet."""
        self.pod_queue: WorkQueue[Key] = WorkQueue(
            f"{self.name} for pod",
            self._create_claims,
            clock=informers.clock,
            chance=informers.chance,
            workers=self.workers,
            first_retry_s=FIRST_RETRY_S,
        )
        self.claims.add_handler(self._on_claim)
        self.templates.add_handler(self._on_template)
        self.pods.add_handler(self._on_pod)

    @classmethod
    def component(cls) -> str:
        return "resource_claim"

    async def run(self) -> None:
        await self.wait_synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self.pod_queue.run())

    # Event handlers.

    def _on_claim(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        item = new if new is not None else old
        assert item is not None
        key = (item.namespace, item.name)
        if new is not None:
            self.queue.add(key)
        else:
            self.forget(item.uid)
            if (owner := item.metadata.controller) is not None:
                self._created.pop((owner.uid, item.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION, "")), None)
        for user in self._users.get(key, ()):
            self.pod_queue.add(user)

    def _on_template(self, _: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None:
            return
        for pod in self.pods.by_namespace(new.namespace):
            if any(each.resource_claim_template_name == new.name for each in pod.spec.resource_claims):
                self.pod_queue.add((pod.namespace, pod.name))

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        key = (pod.namespace, pod.name)
        for claim in _claims_of(old):
            self._users[claim].discard(key)
            if not self._users[claim]:
                del self._users[claim]
        for claim in _claims_of(new):
            self._users[claim].add(key)
        if new is None or _is_done(new):
            for claim in _claims_of(pod):
                self.queue.add(claim)
        elif new.spec.resource_claims:
            self.pod_queue.add(key)
        if new is None:
            for entry in pod.spec.resource_claims:
                self._created.pop((pod.uid, entry.name), None)

    # Reservations.

    async def sync(self, key: Key) -> float | None:
        claim = self.get_latest(self.claims, key)
        if claim is None:
            return None
        users: list[Tree] = claim.status.get("reservedFor") or []
        remaining = [each for each in users if await self._is_used_by(claim.namespace, each)]
        is_protected_and_deleted = claim.terminating and FINALIZER in claim.metadata.finalizers
        if len(remaining) < len(users) or (is_protected_and_deleted and not remaining):
            claim = await self._set_reserved_for(claim, remaining)
        if not remaining and not claim.terminating and self._owner_pod_is_gone(claim):
            await self.delete(RESOURCE_CLAIMS, claim)
        return None

    async def _is_used_by(self, namespace: str, user: Tree) -> bool:
        """Whether a consumer may still need the devices. A consumer that is not a pod always counts as active."""
        if user.get("apiGroup") or user.get("resource") != "pods":
            return True
        pod: Pod | None = self.pods.get(namespace, user["name"])
        if pod is None:
            try:
                pod = await self.client.get(Pod, namespace, user["name"])
            except NotFound:
                return False
        return pod.uid == user["uid"] and not _is_done(pod)

    async def _set_reserved_for(self, claim: UntypedObject, remaining: list[Tree]) -> UntypedObject:
        """Set the reservations. Without any, the claim is deallocated and its finalizer is removed.

        Claims that were not allocated by the scheduler have no such finalizer, and keep their allocation."""
        is_protected = FINALIZER in claim.metadata.finalizers
        status: Tree = {"reservedFor": remaining or None}
        if is_protected and not remaining:
            status |= {"allocation": None, "devices": None}
        if any(claim.status.get(name) != value for name, value in status.items()):
            claim = await self._write(claim, {"status": status}, "status")
        if is_protected and not claim.status.get("allocation"):
            finalizers = [each for each in claim.metadata.finalizers if each != FINALIZER]
            claim = await self._write(claim, {"metadata": {"finalizers": finalizers or None}})
        return claim

    async def _write(self, claim: UntypedObject, patch: Tree, subresource: str = "") -> UntypedObject:
        answer = await self.write(RESOURCE_CLAIMS, claim, patch, subresource=subresource)
        return msgspec.json.decode(answer, type=UntypedObject) if claim.terminating else self.remember_write(answer)

    def _owner_pod_is_gone(self, claim: UntypedObject) -> bool:
        """Whether the pod that the claim was created for does not need it. The watch may not have delivered an unknown
        pod; the garbage collector deletes the claims of a deleted pod."""
        owner = claim.metadata.controller
        if owner is None or (owner.api_version, owner.kind) != ("v1", "Pod"):
            return False
        pod = self.pods.get(claim.namespace, owner.name)
        return pod is not None and (pod.uid != owner.uid or _is_done(pod))

    # Generated claims.

    async def _create_claims(self, key: Key) -> float | None:
        pod = self.pods.get(*key)
        if pod is None or not pod.active or self.informers.is_missing(RESOURCE_CLAIMS):
            return None
        claim_names = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
        created: list[Tree] = []
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_template_name is None or self._has_claim(pod, entry, claim_names):
                continue
            name = await self._claim_for(pod, entry)
            if name is not None and name != claim_names.get(entry.name):
                created.append({"name": entry.name, "resourceClaimName": name})
        if created:
            body = {"metadata": {"uid": pod.uid}, "status": {"resourceClaimStatuses": created}}
            with not_found_as_conflict():
                await self.client.patch(
                    PODS, body, name=pod.name, namespace=pod.namespace, subresource="status", kind=STRATEGIC_PATCH
                )
        if pod.spec.node_name:
            for name in entries_by_claim(pod):
                await self._reserve(pod, name)
        return None

    def _has_claim(self, pod: PodFields, entry: PodResourceClaim, claim_names: dict[str, str | None]) -> bool:
        """Whether the pod's status names an existing claim for the entry, or says that it needs none."""
        if entry.name not in claim_names:
            return False
        name = claim_names[entry.name]
        if name is None:
            return True
        claim = self.claims.get(pod.namespace, name)
        return claim is not None and _is_made_for(claim, pod)

    async def _claim_for(self, pod: PodFields, entry: PodResourceClaim) -> str | None:
        """Return the claim of an entry, and create it if needed. None while the template does not exist."""
        for each in self.claims.owned_by(pod.uid):
            if each.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION) == entry.name and not each.terminating:
                return each.name
        if (created := self._created.get((pod.uid, entry.name))) is not None:
            return created
        name = entry.resource_claim_template_name or ""
        template = self.templates.get(pod.namespace, name)
        if template is None:
            missing = f'resourceclaimtemplate.{RESOURCE_CLAIM_TEMPLATES.group} "{name}" not found'
            self._record_failure(pod, entry, f'resource claim template "{name}": {missing}')
            return None  # the template's add event enqueues the pod
        try:
            answer = await self.client.create(
                RESOURCE_CLAIMS, _claim_from_template(template, pod, entry), namespace=pod.namespace
            )
        except ApiError as fault:
            self._record_failure(pod, entry, f"create ResourceClaim : {fault.details}")
            raise
        created = msgspec.json.decode(answer, type=UntypedObject).name
        self._created[pod.uid, entry.name] = created
        return created

    def _record_failure(self, pod: PodFields, entry: PodResourceClaim, message: str) -> None:
        self.record_event(
            PODS, pod, "FailedResourceClaimCreation", f"PodResourceClaim {entry.name}: {message}", warning=True
        )

    async def _reserve(self, pod: PodFields, name: str) -> None:
        """Reserve a claim for a pod that was bound without a reservation."""
        claim = self.get_latest(self.claims, (pod.namespace, name))
        if claim is None or not claim.status.get("allocation"):
            return
        is_named = any(each.resource_claim_name == name for each in pod.spec.resource_claims)
        if not is_named and not _is_made_for(claim, pod):
            return
        users: list[Tree] = claim.status.get("reservedFor") or []
        if len(users) < MAX_RESERVED_FOR and not any(each["uid"] == pod.uid for each in users):
            user = {"resource": "pods", "name": pod.name, "uid": pod.uid}
            await self._write(claim, {"status": {"reservedFor": [*users, user]}}, "status")


def _is_done(pod: Pod) -> bool:
    """Whether the pod has finished, or was deleted before it got a node: its devices can be released."""
    return pod.status.phase in ("Succeeded", "Failed") or (pod.terminating and not pod.spec.node_name)


def _is_made_for(claim: UntypedObject, pod: Pod) -> bool:
    owner = claim.metadata.controller
    return owner is not None and owner.uid == pod.uid


def _claims_of(pod: Pod | None) -> Iterator[Key]:
    """Claims that a pod uses, as far as they exist."""
    if pod is None:
        return
    for name in entries_by_claim(pod):
        yield pod.namespace, name
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        yield pod.namespace, extended.resource_claim_name


def _claim_from_template(template: UntypedObject, pod: Pod, entry: PodResourceClaim) -> Tree:
    """Build the claim of a pod's entry from its template. The pod owns it."""
    metadata: Tree = template.spec.get("metadata") or {}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": _name_base(pod.name, entry.name),
            "labels": metadata.get("labels") or {},
            "annotations": {**(metadata.get("annotations") or {}), POD_CLAIM_NAME_ANNOTATION: entry.name},
            "ownerReferences": [owner],
        },
        "spec": template.spec.get("spec") or {},
    }


def _name_base(pod: str, entry: str) -> str:
    """generateName of a claim. Names that are too long are cut in proportion, so that both stay readable."""
    name = f"{pod}-{entry}-"
    if len(name) <= MAX_BASE_LENGTH:
        return name
    return f"{pod[: len(pod) * MAX_BASE_LENGTH // len(name)]}-{entry[: len(entry) * MAX_BASE_LENGTH // len(name)]}"
