"""Are the numbered pods of a StatefulSet there, in order, with their claims? One step at a time, unless parallel.

Pods are made from the lowest number up and taken from the highest down, each after its predecessors are ready; an
update replaces them from the highest down to the partition. Names are known beforehand, so nothing is made twice. A
sync costs a walk over the set's pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bayplan.controllers.core.api_types import (
    CLAIMS,
    PODS,
    REVISIONS,
    STATEFUL_SETS,
    Revision,
    SeenPod,
    Tree,
    Whole,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.owner_refs import claimed, selector_of
from bayplan.controllers.core.shared_informers import Key, World
from bayplan.controllers.workloads.controller_revisions import HASH_LABEL, beyond_history, latest_revision
from bayplan.controllers.workloads.stateful_plan import (
    Delete,
    Make,
    Plan,
    plan,
)
from bayplan.controllers.workloads.stateful_pods import (
    claims_of,
    numbered_pod,
    ordinal_of,
    owned_claim,
    wants_claims_gone,
)
from bayplan.errors import AlreadyExists, ApiError, NotFound
from bayplan.objects.volumes import PersistentVolumeClaim

_REVISION_LABEL = "controller.kubernetes.io/hash"


class StatefulSets(Controller):
    """Keeps numbered pods."""

    name = "statefulset-controller"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sets = self.feed(STATEFUL_SETS, Whole)
        self.pods = self.feed(PODS, SeenPod)
        self.revisions = self.feed(REVISIONS, Revision)
        self.claims = self.feed(CLAIMS, PersistentVolumeClaim)
        self.sets.listen(self.enqueue)
        self.pods.listen(self._on_pod)

    def _on_pod(self, old: SeenPod | None, new: SeenPod | None) -> None:
        for pod in (old, new):
            owner = pod.metadata.controller if pod is not None else None
            if pod is not None and owner is not None and owner.kind == "StatefulSet":
                self.queue.add((pod.namespace, owner.name))
        if new is not None and new.metadata.controller is None:
            for each in self.sets.within(new.namespace):
                if ordinal_of(each, new.name) is not None and selector_of(each).matches(new.labels):
                    self.enqueue(None, each)

    async def sync(self, key: Key) -> float | None:
        found = self.sets.get(*key)
        if found is None:
            return None
        pods = await claimed(
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
        planned = plan(found, pods, current.name, update.name, self.clock.now())
        failure: ApiError | None = None
        try:
            await self._carry_out(found, planned, current, update)
        except ApiError as fault:
            failure = fault
        await self.write_status(STATEFUL_SETS, found, planned.status)
        if failure is not None:
            raise failure
        await self._forget_revisions(found, pods, revisions, {current.name, update.name})
        return planned.again_s

    async def _carry_out(self, found: Whole, planned: Plan, current: Revision, update: Revision) -> None:
        if found.terminating:
            return
        for step in planned.steps:
            if isinstance(step, Make):
                await self._make(found, step, current if step.revision == current.name else update)
            else:
                await self._delete(found, step)

    # One pod.

    async def _make(self, found: Whole, step: Make, revision: Revision) -> None:
        body = numbered_pod(found, step.ordinal, revision)
        name = body["metadata"]["name"]
        for claim in claims_of(found, step.ordinal):
            await self._claim(found, name, claim)
        try:
            await self.client.create(PODS, body, namespace=found.namespace)
        except AlreadyExists:
            return  # ours, on its way to us; or somebody else's, whose end we hear of
        except ApiError as fault:
            self._tell(found, "create", name, fault)
            raise
        self._tell(found, "create", name)

    async def _claim(self, found: Whole, pod: str, body: Tree) -> None:
        name = body["metadata"]["name"]
        if self.claims.get(found.namespace, name) is not None:
            return
        try:
            await self.client.create(CLAIMS, body, namespace=found.namespace)
        except AlreadyExists:
            return
        except ApiError as fault:
            note = f"create Claim {name} for Pod {pod} in StatefulSet {found.name} failed error: {fault.details}"
            self.say(STATEFUL_SETS, found, "FailedCreate", note, warning=True)
            raise
        note = f"create Claim {name} Pod {pod} in StatefulSet {found.name} success"
        self.say(STATEFUL_SETS, found, "SuccessfulCreate", note)

    async def _delete(self, found: Whole, step: Delete) -> None:
        if step.for_good and wants_claims_gone(found, "whenScaled"):
            await self._give_claims_to(found, step.pod)
        if step.reason:
            self.say(STATEFUL_SETS, found, step.reason, step.note, warning=step.reason == "RecreatingFailedPod")
        try:
            await self.delete(PODS, step.pod)
        except ApiError as fault:
            self._tell(found, "delete", step.pod.name, fault)
            raise
        self._tell(found, "delete", step.pod.name)

    async def _give_claims_to(self, found: Whole, pod: SeenPod) -> None:
        """The claims of a pod that goes for good go with it."""
        ordinal = ordinal_of(found, pod.name)
        names = [each["metadata"]["name"] for each in claims_of(found, ordinal or 0)]
        patches = [
            self.client.patch(CLAIMS, owned_claim(pod), namespace=pod.namespace, name=name)
            for name in names
            if self.claims.get(pod.namespace, name) is not None
        ]
        for answer in await asyncio.gather(*patches, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer

    def _tell(self, found: Whole, verb: str, pod: str, fault: ApiError | None = None) -> None:
        outcome = "successful" if fault is None else f"failed error: {fault.details}"
        reason = f"{'Successful' if fault is None else 'Failed'}{verb.capitalize()}"
        note = f"{verb} Pod {pod} in StatefulSet {found.name} {outcome}"
        self.say(STATEFUL_SETS, found, reason, note, warning=fault is not None)

    # Revisions.

    async def _forget_revisions(
        self, found: Whole, pods: Sequence[SeenPod], revisions: Sequence[Revision], used: set[str]
    ) -> None:
        living = used | {pod.labels.get(HASH_LABEL, "") for pod in pods}
        for each in beyond_history(revisions, living, int(found.spec.get("revisionHistoryLimit", 10))):
            await self.delete(REVISIONS, each)
