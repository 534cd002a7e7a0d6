"""Whose are device claims, and for how long? Made of templates for pods, and free again once nobody uses them.

A pod that names a template gets a claim of its own, and its status says which. A claim that is reserved for pods that
are gone or have ended is taken from them, and its devices with the last of them. Who schedules pods reserves claims for
them; that is done here only for pods that came to a node in another way.
Cost: lookups; the server is asked for a pod of which no watch has told, since its devices must not be given away.
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
"""The annotation of a claim that was made for a pod: for which of its entries."""
MAX_RESERVED_FOR = 256
MAX_BASE_LENGTH = 57
"""Of a name: a hyphen and five characters come after it."""


class ResourceClaimController(Controller):
    """Makes claims for pods, and frees those that nobody uses."""

    name = "resourceclaim-controller"

    def __init__(self, world: SharedInformerFactory) -> None:
        super().__init__(world)
        self.claims = self.informer(RESOURCE_CLAIMS, UntypedObject)
        self.templates = self.informer(RESOURCE_CLAIM_TEMPLATES, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self._users: defaultdict[Key, set[Key]] = defaultdict(set)
        """By claim: the pods that name it."""
        self._made: dict[tuple[str, str], str] = {}
        """By uid of the pod and entry: what we have made. The watch may not have told of it yet."""
        self.wanting: WorkQueue[Key] = WorkQueue(
            f"{self.name} for pod",
            self._create_claims,
            clock=world.clock,
            chance=world.chance,
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
        await self.synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self.wanting.run())

    # what is heard ----------------------------------------------------------------------------------------------

    def _on_claim(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        item = new if new is not None else old
        assert item is not None
        key = (item.namespace, item.name)
        if new is not None:
            self.queue.add(key)
        else:
            self.forget(item.uid)
            if (owner := item.metadata.controller) is not None:
                self._made.pop((owner.uid, item.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION, "")), None)
        for user in self._users.get(key, ()):
            self.wanting.add(user)

    def _on_template(self, _: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None:
            return
        for pod in self.pods.by_namespace(new.namespace):
            if any(each.resource_claim_template_name == new.name for each in pod.spec.resource_claims):
                self.wanting.add((pod.namespace, pod.name))

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
            self.wanting.add(key)
        if new is None:
            for entry in pod.spec.resource_claims:
                self._made.pop((pod.uid, entry.name), None)

    # claims that are in use, or not any more --------------------------------------------------------------------

    async def sync(self, key: Key) -> float | None:
        claim = self.get_latest(self.claims, key)
        if claim is None:
            return None
        users: list[Tree] = claim.status.get("reservedFor") or []
        kept = [each for each in users if await self._is_used_by(claim.namespace, each)]
        is_leaving = claim.terminating and FINALIZER in claim.metadata.finalizers
        if len(kept) < len(users) or (is_leaving and not kept):
            claim = await self._set_reserved_for(claim, kept)
        if not kept and not claim.terminating and self._owner_pod_is_gone(claim):
            await self.delete(RESOURCE_CLAIMS, claim)
        return None

    async def _is_used_by(self, namespace: str, user: Tree) -> bool:
        """Whether a user may still need its devices. Of users that are no pods nothing is known here."""
        if user.get("apiGroup") or user.get("resource") != "pods":
            return True
        pod: Pod | None = self.pods.get(namespace, user["name"])
        if pod is None:
            try:
                pod = await self.client.get(Pod, namespace, user["name"])
            except NotFound:
                return False
        return pod.uid == user["uid"] and not _is_done(pod)

    async def _set_reserved_for(self, claim: UntypedObject, kept: list[Tree]) -> UntypedObject:
        """Leave these users; without any the devices are given back, and nothing keeps the claim from being deleted.

        Claims that others than schedulers have allocated have no such finalizer, and keep their devices."""
        is_protected = FINALIZER in claim.metadata.finalizers
        status: Tree = {"reservedFor": kept or None}
        if is_protected and not kept:
            status |= {"allocation": None, "devices": None}
        if any(claim.status.get(name) != value for name, value in status.items()):
            claim = await self._write(claim, {"status": status}, "status")
        if is_protected and not claim.status.get("allocation"):
            rest = [each for each in claim.metadata.finalizers if each != FINALIZER]
            claim = await self._write(claim, {"metadata": {"finalizers": rest or None}})
        return claim

    async def _write(self, claim: UntypedObject, patch: Tree, subresource: str = "") -> UntypedObject:
        answer = await self.write(RESOURCE_CLAIMS, claim, patch, subresource=subresource)
        return msgspec.json.decode(answer, type=UntypedObject) if claim.terminating else self.remember_write(answer)

    def _owner_pod_is_gone(self, claim: UntypedObject) -> bool:
        """Whether it was made for a pod that does not need it. A pod of which nothing is known may be yet to come; if
        it is gone the garbage collector knows."""
        owner = claim.metadata.controller
        if owner is None or (owner.api_version, owner.kind) != ("v1", "Pod"):
            return False
        pod = self.pods.get(claim.namespace, owner.name)
        return pod is not None and (pod.uid != owner.uid or _is_done(pod))

    # pods that need claims --------------------------------------------------------------------------------------

    async def _create_claims(self, key: Key) -> float | None:
        pod = self.pods.get(*key)
        if pod is None or not pod.active or self.informers.is_missing(RESOURCE_CLAIMS):
            return None
        told = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
        made: list[Tree] = []
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_template_name is None or self._has_claim(pod, entry, told):
                continue
            name = await self._claim_for(pod, entry)
            if name is not None and name != told.get(entry.name):
                made.append({"name": entry.name, "resourceClaimName": name})
        if made:
            body = {"metadata": {"uid": pod.uid}, "status": {"resourceClaimStatuses": made}}
            with not_found_as_conflict():
                await self.client.patch(
                    PODS, body, name=pod.name, namespace=pod.namespace, subresource="status", kind=STRATEGIC_PATCH
                )
        if pod.spec.node_name:
            for name in entries_by_claim(pod):
                await self._reserve(pod, name)
        return None

    def _has_claim(self, pod: PodFields, entry: PodResourceClaim, told: dict[str, str | None]) -> bool:
        """Whether the pod says which claim it has, or that it needs none, and that is so."""
        if entry.name not in told:
            return False
        name = told[entry.name]
        if name is None:
            return True
        claim = self.claims.get(pod.namespace, name)
        return claim is not None and _is_made_for(claim, pod)

    async def _claim_for(self, pod: PodFields, entry: PodResourceClaim) -> str | None:
        """The claim of an entry: one that we have made before, or a new one. None where there is no template yet."""
        for each in self.claims.owned_by(pod.uid):
            if each.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION) == entry.name and not each.terminating:
                return each.name
        if (known := self._made.get((pod.uid, entry.name))) is not None:
            return known
        name = entry.resource_claim_template_name or ""
        template = self.templates.get(pod.namespace, name)
        if template is None:
            missing = f'resourceclaimtemplate.{RESOURCE_CLAIM_TEMPLATES.group} "{name}" not found'
            self._record_failure(pod, entry, f'resource claim template "{name}": {missing}')
            return None  # we are told when it comes
        try:
            answer = await self.client.create(
                RESOURCE_CLAIMS, _claim_from_template(template, pod, entry), namespace=pod.namespace
            )
        except ApiError as fault:
            self._record_failure(pod, entry, f"create ResourceClaim : {fault.details}")
            raise
        made = msgspec.json.decode(answer, type=UntypedObject).name
        self._made[pod.uid, entry.name] = made
        return made

    def _record_failure(self, pod: PodFields, entry: PodResourceClaim, words: str) -> None:
        self.record_event(
            PODS, pod, "FailedResourceClaimCreation", f"PodResourceClaim {entry.name}: {words}", warning=True
        )

    async def _reserve(self, pod: PodFields, name: str) -> None:
        """The pod has come to its node without anybody who reserved its claim."""
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
    """Whether it will not run any more, or never has: its devices can go."""
    return pod.status.phase in ("Succeeded", "Failed") or (pod.terminating and not pod.spec.node_name)


def _is_made_for(claim: UntypedObject, pod: Pod) -> bool:
    owner = claim.metadata.controller
    return owner is not None and owner.uid == pod.uid


def _claims_of(pod: Pod | None) -> Iterator[Key]:
    """The claims that a pod uses, as far as they are made."""
    if pod is None:
        return
    for name in entries_by_claim(pod):
        yield pod.namespace, name
    special = pod.status.extended_resource_claim_status
    if special is not None and special.resource_claim_name:
        yield pod.namespace, special.resource_claim_name


def _claim_from_template(template: UntypedObject, pod: Pod, entry: PodResourceClaim) -> Tree:
    """The claim that a template makes for an entry of a pod, which owns it."""
    given: Tree = template.spec.get("metadata") or {}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": _name_base(pod.name, entry.name),
            "labels": given.get("labels") or {},
            "annotations": {**(given.get("annotations") or {}), POD_CLAIM_NAME_ANNOTATION: entry.name},
            "ownerReferences": [owner],
        },
        "spec": template.spec.get("spec") or {},
    }


def _name_base(pod: str, entry: str) -> str:
    """What names begin with. Of two that are too long together each is cut in proportion, so that both can be read."""
    whole = f"{pod}-{entry}-"
    if len(whole) <= MAX_BASE_LENGTH:
        return whole
    return f"{pod[: len(pod) * MAX_BASE_LENGTH // len(whole)]}-{entry[: len(entry) * MAX_BASE_LENGTH // len(whole)]}"
