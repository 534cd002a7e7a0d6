"""In-memory replacements of the API server and the controllers that the benchmarks need, without delay.

The API server performs writes, one controller creates device claims from templates and releases them, another one
applies device taint rules. Each is a few lines here; called when pods come and go, and when a plugin writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from bayplan.cache import Cache
from bayplan.devices import claim_intents
from bayplan.errors import BayplanError
from bayplan.framework.preemption.dry_run import ClearNomination, EvictVictim
from bayplan.objects.core import Pod, PodResourceClaimStatus
from bayplan.objects.defaults import with_defaults
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject, ObjectMeta, OwnerReference
from bayplan.objects.resource import (
    AllocationResult,
    DeviceTaint,
    ResourceClaim,
    ResourceClaimConsumer,
    ResourceClaimSpec,
    ResourceSlice,
)
from bayplan.testing.recorded_writes import RecordedWrites
from benchmarks.perf.templates import Names


class UnknownWrite(BayplanError):
    """A plugin writes an intent that these benchmarks do not support."""


class Changes(Protocol):
    """Receives the changes of objects."""

    cache: Cache
    claims: ClaimController

    def put(self, item: KubeObject) -> None: ...
    def drop(self, item: KubeObject) -> None: ...
    def delete(self, item: KubeObject) -> None: ...
    def clear_nomination(self, pod: Pod) -> None: ...


def owner_of(pod: Pod) -> OwnerReference:
    return OwnerReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid, controller=True)


class ClaimController:
    """Creates device claims from templates, and deallocates devices when their users are deleted."""

    def __init__(self, changes: Changes, names: Names) -> None:
        self._changes = changes
        self._names = names
        self._templates: dict[str, ResourceClaimSpec] = {}
        self._used: defaultdict[str, set[str]] = defaultdict(set)  # by the uid of a pod: claims, by namespace/name

    def add_template(self, namespace: str, raw: Mapping[str, Any]) -> None:
        claim = convert({"spec": (raw.get("spec") or {}).get("spec") or {}}, ResourceClaim)
        self._templates[f"{namespace}/{raw['metadata']['name']}"] = claim.spec

    def with_claims(self, pod: Pod) -> Pod:
        """The pod, with the names of its generated claims in its status."""
        statuses = []
        for reference in pod.spec.resource_claims:
            spec = self._templates.get(f"{pod.namespace}/{reference.resource_claim_template_name}")
            if spec is None:
                continue
            name = self._names.after(f"{pod.name}-{reference.name}-")
            meta = ObjectMeta(
                name=name, namespace=pod.namespace, uid=f"claim-{name}", owner_references=(owner_of(pod),)
            )
            self.note(pod, f"{pod.namespace}/{name}")
            self._changes.put(with_defaults(ResourceClaim(meta, spec)))
            statuses.append(PodResourceClaimStatus(reference.name, name))
        if not statuses:
            return pod
        return replace(pod, status=replace(pod.status, resource_claim_statuses=tuple(statuses)))

    def note(self, pod: Pod, key: str) -> None:
        """Record that the pod uses a claim, or owns it."""
        self._used[pod.uid].add(key)

    def release(self, pod: Pod) -> None:
        """Handle the deletion of a pod: delete its own claims, and deallocate claims without other users."""
        for key in sorted(self._used.pop(pod.uid, ())):
            claim = self._changes.cache.devices.claims.get(key)
            if claim is None:
                continue
            if any(owner.uid == pod.uid for owner in claim.metadata.owner_references):
                self._changes.drop(claim)
                continue
            users = tuple(user for user in claim.status.reserved_for if user.uid != pod.uid)
            allocation = claim.status.allocation if users else None
            self._changes.put(replace(claim, status=replace(claim.status, reserved_for=users, allocation=allocation)))


class TaintController:
    """Applies rules to devices: a rule without a selector taints every device."""

    def __init__(self) -> None:
        self._taints: list[DeviceTaint] = []

    def add_rule(self, raw: Mapping[str, Any]) -> None:
        spec = raw.get("spec") or {}
        if spec.get("deviceSelector"):
            raise UnknownWrite("a DeviceTaintRule with a selector is not supported")
        taint = spec.get("taint") or {}
        self._taints.append(DeviceTaint(taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")))

    def tainted(self, found: ResourceSlice) -> ResourceSlice:
        if not self._taints:
            return found
        devices = tuple(replace(each, taints=(*each.taints, *self._taints)) for each in found.spec.devices)
        return replace(found, spec=replace(found.spec, devices=devices))


class PerformedWrites(RecordedWrites):
    """An API server for the writes of plugins: each is performed at once, and no history is kept."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names
        self.changes: Changes | None = None  # set once the cluster exists, whose constructor needs the writes

    async def perform(self, intent: object) -> Any:
        match intent:
            case claim_intents.ReserveClaim(claim, pod, _, allocation):
                return self._reserved(claim, pod, allocation)
            case claim_intents.CreateSpecialClaim(claim, pod):
                return self._created(claim, pod)
            case claim_intents.RecordSpecialClaim():
                return None
        raise UnknownWrite(f"{type(intent).__name__} is not supported")

    def submit(self, intent: object) -> None:
        assert self.changes is not None
        match intent:
            case EvictVictim(victim=victim):
                self.changes.delete(victim)
            case ClearNomination(pod=pod):
                self.changes.clear_nomination(pod)
            case claim_intents.DeleteClaim(claim):
                self.changes.drop(claim)
            case claim_intents.DeallocateClaim(claim):
                self.changes.put(replace(claim, status=replace(claim.status, allocation=None, reserved_for=())))
            case _:
                raise UnknownWrite(f"{type(intent).__name__} is not supported")

    def _reserved(self, claim: ResourceClaim, pod: Pod, allocation: AllocationResult | None) -> ResourceClaim:
        assert self.changes is not None
        user = ResourceClaimConsumer(resource="pods", name=pod.name, uid=pod.uid)
        known = self.changes.cache.devices.claims.get(claim.key, claim)
        status = replace(
            known.status,
            allocation=allocation or known.status.allocation,
            reserved_for=(*known.status.reserved_for, user),
        )
        written = replace(known, status=status)
        self.changes.claims.note(pod, written.key)
        self.changes.put(written)
        return written

    def _created(self, claim: ResourceClaim, pod: Pod) -> ResourceClaim:
        assert self.changes is not None
        name = self._names.after(f"{pod.name}-extended-resources-")
        created = replace(claim, metadata=replace(claim.metadata, name=name, uid=f"claim-{name}"))
        self.changes.put(created)
        return created
