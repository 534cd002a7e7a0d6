"""Base of the ReplicaSet, DaemonSet and Job controllers: pod events, expectations, creation and deletion of pods.

A pod change enqueues its owner; a pod without an owner enqueues the owners that may adopt it. Pods are created in
growing batches. The controller counts again when the watch has delivered them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from bayplan.client import GroupVersionResource
from bayplan.controllers.core.api_types import PODS, PodFields, Tree, UntypedObject
from bayplan.controllers.core.controller import Controller, raise_first_error, slow_start_batch
from bayplan.controllers.core.expectations import Expectations
from bayplan.controllers.core.owner_refs import claim_objects, selector_of
from bayplan.controllers.core.shared_informers import SharedInformerFactory
from bayplan.errors import ApiError, Forbidden, NotFound
from bayplan.objects.meta import KubeObject

BATCH_THRESHOLD = 10
BATCH_PERIOD_S = 0.05
"""Owners of many pods are enqueued with this delay: a thousand starting pods cause ten status writes at most."""


class OwnedPodsController(Controller):
    """Base of controllers whose objects own pods."""

    resource: ClassVar[GroupVersionResource]

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        assert self.resource.kind is not None
        self._kind = self.resource.kind.name
        self.owners = self.informer(self.resource, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self.expectations = Expectations(informers.clock)
        self.owners.add_handler(self._on_owner)
        self.pods.add_handler(self._on_pod)

    # Event handlers.

    def _on_owner(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None and old is not None:
            self.expectations.delete(old.uid)
        self.enqueue(old, new)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        if old is not None and new is not None and old.metadata.owner_references != new.metadata.owner_references:
            self._enqueue_owner(old)
        owner = pod.metadata.controller
        if owner is None:
            if new is not None and (old is None or old.labels != new.labels or old.metadata.controller is not None):
                self._enqueue_matching_owners(new)
            return
        if owner.kind != self._kind:
            return
        if old is None:
            self.expectations.creation_observed(owner.uid)
        if new is None or new.terminating:
            self.expectations.deletion_observed(owner.uid, pod.uid)
        many = self.pods.count_owned_by(owner.uid) > BATCH_THRESHOLD
        self.queue.add((pod.namespace, owner.name), after_s=BATCH_PERIOD_S if many else 0.0)

    def _enqueue_owner(self, pod: PodFields) -> None:
        owner = pod.metadata.controller
        if owner is not None and owner.kind == self._kind:
            self.queue.add((pod.namespace, owner.name))

    def _enqueue_matching_owners(self, pod: PodFields) -> None:
        for each in self.owners.by_namespace(pod.namespace):
            if selector_of(each).matches(pod.labels):
                self.enqueue(None, each)

    # Pods.

    async def claim_pods(self, owner: UntypedObject) -> list[PodFields]:
        """Adopt and release pods, and return the owner's pods. Finished pods are not adopted."""
        return await claim_objects(
            self.client, self.pods, self.resource, owner, selector_of(owner), wanted=lambda pod: not pod.finished
        )

    async def create_pods(self, owner: UntypedObject, bodies: Sequence[Tree], *, record_each: bool = True) -> None:
        """Create pods in growing batches. Raises the first refusal."""
        self.expectations.expect_creations(owner.uid, len(bodies))

        async def send(index: int) -> None:
            try:
                answer = await self.client.create(PODS, bodies[index], namespace=owner.namespace)
            except BaseException as fault:
                self.expectations.lower_creations(owner.uid)
                if isinstance(fault, ApiError) and not is_namespace_terminating(fault):
                    self.record_event(
                        self.resource, owner, "FailedCreate", f"Error creating: {fault.details}", warning=True
                    )
                raise
            if record_each:
                created = msgspec.json.decode(answer, type=KubeObject)
                self.record_event(self.resource, owner, "SuccessfulCreate", f"Created pod: {created.name}")

        calls, faults = await slow_start_batch(len(bodies), send)
        self.expectations.lower_creations(owner.uid, len(bodies) - calls)
        raise_first_error([fault for fault in faults if not is_namespace_terminating(fault)])

    async def delete_pods(self, owner: UntypedObject, pods: Sequence[PodFields]) -> None:
        """Delete pods in growing batches. Raises the first refusal."""
        for pod in pods:
            self.expectations.expect_deletion(owner.uid, pod.uid)

        async def send(index: int) -> None:
            pod = pods[index]
            try:
                await self.client.delete(PODS, namespace=pod.namespace, name=pod.name, uid=pod.uid)
            except NotFound:
                self.expectations.deletion_observed(owner.uid, pod.uid)
            except ApiError as fault:
                self.expectations.deletion_observed(owner.uid, pod.uid)
                self.record_event(
                    self.resource, owner, "FailedDelete", f"Error deleting: {fault.details}", warning=True
                )
                raise
            else:
                self.record_event(self.resource, owner, "SuccessfulDelete", f"Deleted pod: {pod.name}")

        calls, faults = await slow_start_batch(len(pods), send, first=16)
        for pod in pods[calls:]:
            self.expectations.deletion_observed(owner.uid, pod.uid)
        raise_first_error(faults)


def is_namespace_terminating(fault: BaseException) -> bool:
    """Whether a create failed because the namespace is being deleted; such a failure is not reported."""
    return isinstance(fault, Forbidden) and "being terminated" in str(fault)
