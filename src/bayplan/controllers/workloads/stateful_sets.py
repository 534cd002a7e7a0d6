"""StatefulSet controller: keeps the numbered pods of a StatefulSet and their claims, one step at a time or in parallel.

Pods are created from the lowest ordinal up and deleted from the highest down, each after its predecessors are ready. An
update replaces them from the highest ordinal down to the partition. Names are fixed, so no pod is created twice. A sync
walks the pods of the set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bayplan.controllers.core.api_types import (
    CONTROLLER_REVISIONS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    STATEFUL_SETS,
    ControllerRevision,
    PodFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.owner_refs import claim_objects, selector_of
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.workloads.controller_revisions import HASH_LABEL, latest_revision, revisions_to_delete
from bayplan.controllers.workloads.stateful_plan import CreateSetPod, DeleteSetPod, StatefulSetPlan, plan
from bayplan.controllers.workloads.stateful_pods import (
    claim_owner_patch,
    claims_of,
    deletes_claims,
    numbered_pod,
    ordinal_of,
)
from bayplan.errors import AlreadyExists, ApiError, NotFound
from bayplan.objects.volumes import PersistentVolumeClaim

_REVISION_LABEL = "controller.kubernetes.io/hash"


class StatefulSetController(Controller):
    name = "statefulset-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.sets = self.informer(STATEFUL_SETS, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self.revisions = self.informer(CONTROLLER_REVISIONS, ControllerRevision)
        self.claims = self.informer(PERSISTENT_VOLUME_CLAIMS, PersistentVolumeClaim)
        self.sets.add_handler(self.enqueue)
        self.pods.add_handler(self._on_pod)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        for pod in (old, new):
            owner = pod.metadata.controller if pod is not None else None
            if pod is not None and owner is not None and owner.kind == "StatefulSet":
                self.queue.add((pod.namespace, owner.name))
        if new is not None and new.metadata.controller is None:
            for each in self.sets.by_namespace(new.namespace):
                if ordinal_of(each, new.name) is not None and selector_of(each).matches(new.labels):
                    self.enqueue(None, each)

    async def sync(self, key: Key) -> float | None:
        found = self.sets.get(*key)
        if found is None:
            return None
        pods = await claim_objects(
            self.client,
            self.pods,
            STATEFUL_SETS,
            found,
            selector_of(found),
            wanted=lambda pod: ordinal_of(found, pod.name) is not None,
        )
        revisions = self.revisions.owned_by(found.uid)
        update = await latest_revision(self.client, STATEFUL_SETS, found, revisions, _REVISION_LABEL)
        current = next((each for each in revisions if each.name == found.status.get("currentRevision")), update)
        next_plan = plan(found, pods, current.name, update.name, self.clock.now())
        failure: ApiError | None = None
        try:
            await self._perform(found, next_plan, current, update)
        except ApiError as fault:
            failure = fault
        await self.write_status(STATEFUL_SETS, found, next_plan.status)
        if failure is not None:
            raise failure
        await self._delete_old_revisions(found, pods, revisions, {current.name, update.name})
        return next_plan.requeue_after_s

    async def _perform(
        self, found: UntypedObject, next_plan: StatefulSetPlan, current: ControllerRevision, update: ControllerRevision
    ) -> None:
        if found.terminating:
            return
        for step in next_plan.steps:
            if isinstance(step, CreateSetPod):
                await self._create_pod(found, step, current if step.revision == current.name else update)
            else:
                await self._delete_pod(found, step)

    # Pods.

    async def _create_pod(self, found: UntypedObject, step: CreateSetPod, revision: ControllerRevision) -> None:
        body = numbered_pod(found, step.ordinal, revision)
        name = body["metadata"]["name"]
        for claim in claims_of(found, step.ordinal):
            await self._claim(found, name, claim)
        try:
            await self.client.create(PODS, body, namespace=found.namespace)
        except AlreadyExists:
            return  # the set's own pod, not delivered yet; or another object, whose deletion the watch delivers
        except ApiError as fault:
            self._record_event(found, "create", name, fault)
            raise
        self._record_event(found, "create", name)

    async def _claim(self, found: UntypedObject, pod: str, body: Tree) -> None:
        name = body["metadata"]["name"]
        if self.claims.get(found.namespace, name) is not None:
            return
        try:
            await self.client.create(PERSISTENT_VOLUME_CLAIMS, body, namespace=found.namespace)
        except AlreadyExists:
            return
        except ApiError as fault:
            note = f"create Claim {name} for Pod {pod} in StatefulSet {found.name} failed error: {fault.details}"
            self.record_event(STATEFUL_SETS, found, "FailedCreate", note, warning=True)
            raise
        note = f"create Claim {name} Pod {pod} in StatefulSet {found.name} success"
        self.record_event(STATEFUL_SETS, found, "SuccessfulCreate", note)

    async def _delete_pod(self, found: UntypedObject, step: DeleteSetPod) -> None:
        if step.scaled_down and deletes_claims(found, "whenScaled"):
            await self._set_claim_owner(found, step.pod)
        if step.reason:
            self.record_event(
                STATEFUL_SETS, found, step.reason, step.note, warning=step.reason == "RecreatingFailedPod"
            )
        try:
            await self.delete(PODS, step.pod)
        except ApiError as fault:
            self._record_event(found, "delete", step.pod.name, fault)
            raise
        self._record_event(found, "delete", step.pod.name)

    async def _set_claim_owner(self, found: UntypedObject, pod: PodFields) -> None:
        """Make a pod that is scaled down the owner of its claims."""
        ordinal = ordinal_of(found, pod.name)
        names = [each["metadata"]["name"] for each in claims_of(found, ordinal or 0)]
        patches = [
            self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim_owner_patch(pod), namespace=pod.namespace, name=name)
            for name in names
            if self.claims.get(pod.namespace, name) is not None
        ]
        for answer in await asyncio.gather(*patches, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer

    def _record_event(self, found: UntypedObject, verb: str, pod: str, fault: ApiError | None = None) -> None:
        outcome = "successful" if fault is None else f"failed error: {fault.details}"
        reason = f"{'Successful' if fault is None else 'Failed'}{verb.capitalize()}"
        note = f"{verb} Pod {pod} in StatefulSet {found.name} {outcome}"
        self.record_event(STATEFUL_SETS, found, reason, note, warning=fault is not None)

    # Revisions.

    async def _delete_old_revisions(
        self, found: UntypedObject, pods: Sequence[PodFields], revisions: Sequence[ControllerRevision], used: set[str]
    ) -> None:
        living = used | {pod.labels.get(HASH_LABEL, "") for pod in pods}
        for each in revisions_to_delete(revisions, living, int(found.spec.get("revisionHistoryLimit", 10))):
            await self.delete(CONTROLLER_REVISIONS, each)
