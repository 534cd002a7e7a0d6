"""What have ReplicaSets, DaemonSets and Jobs in common? They count their pods, make some and delete some.

A pod's change wakes its owner; a pod without one wakes whoever may adopt it. Creations go out in growing batches and
are expected back on the watch before anybody counts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from bayplan.client import Resource
from bayplan.controllers.core.api_types import (
    PODS,
    SeenPod,
    Tree,
    Whole,
)
from bayplan.controllers.core.controller import Controller, first_fault, slowly
from bayplan.controllers.core.expectations import Expectations
from bayplan.controllers.core.owner_refs import claimed, selector_of
from bayplan.controllers.core.shared_informers import World
from bayplan.errors import ApiError, Forbidden, NotFound
from bayplan.objects.meta import KubeObject

FEW = 10
BREATH_S = 0.05
"""Owners of many pods hear of changes together: a thousand pods that start make ten writes of a status, no more."""


class PodOwner(Controller):
    """A controller of a kind that owns pods."""

    resource: ClassVar[Resource]

    def __init__(self, world: World) -> None:
        super().__init__(world)
        assert self.resource.kind is not None
        self._kind = self.resource.kind.name
        self.owners = self.feed(self.resource, Whole)
        self.pods = self.feed(PODS, SeenPod)
        self.expected = Expectations(world.clock)
        self.owners.listen(self._on_owner)
        self.pods.listen(self._on_pod)

    # What is heard.

    def _on_owner(self, old: Whole | None, new: Whole | None) -> None:
        if new is None and old is not None:
            self.expected.forget(old.uid)
        self.enqueue(old, new)

    def _on_pod(self, old: SeenPod | None, new: SeenPod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        if old is not None and new is not None and old.metadata.owner_references != new.metadata.owner_references:
            self._wake(old)
        owner = pod.metadata.controller
        if owner is None:
            if new is not None and (old is None or old.labels != new.labels or old.metadata.controller is not None):
                self._wake_adopters(new)
            return
        if owner.kind != self._kind:
            return
        if old is None:
            self.expected.saw_new(owner.uid)
        if new is None or new.terminating:
            self.expected.saw_end(owner.uid, pod.uid)
        many = self.pods.count_owned_by(owner.uid) > FEW
        self.queue.add((pod.namespace, owner.name), after_s=BREATH_S if many else 0.0)

    def _wake(self, pod: SeenPod) -> None:
        owner = pod.metadata.controller
        if owner is not None and owner.kind == self._kind:
            self.queue.add((pod.namespace, owner.name))

    def _wake_adopters(self, pod: SeenPod) -> None:
        for each in self.owners.within(pod.namespace):
            if selector_of(each).matches(pod.labels):
                self.enqueue(None, each)

    # What is done.

    async def own_pods(self, owner: Whole) -> list[SeenPod]:
        """The owner's pods, after adopting and letting go; a pod that has ended is not adopted."""
        return await claimed(
            self.client, self.pods, self.resource, owner, selector_of(owner), wanted=lambda pod: not pod.finished
        )

    async def create_pods(self, owner: Whole, bodies: Sequence[Tree], *, tell_each: bool = True) -> None:
        """Make these pods, a few at first. Raises what the server says of the first that it refuses."""
        self.expected.creating(owner.uid, len(bodies))

        async def one(index: int) -> None:
            try:
                answer = await self.client.create(PODS, bodies[index], namespace=owner.namespace)
            except BaseException as fault:
                self.expected.not_created(owner.uid)
                if isinstance(fault, ApiError) and not namespace_ends(fault):
                    self.say(self.resource, owner, "FailedCreate", f"Error creating: {fault.details}", warning=True)
                raise
            if tell_each:
                made = msgspec.json.decode(answer, type=KubeObject)
                self.say(self.resource, owner, "SuccessfulCreate", f"Created pod: {made.name}")

        tried, faults = await slowly(len(bodies), one)
        self.expected.not_created(owner.uid, len(bodies) - tried)
        first_fault([fault for fault in faults if not namespace_ends(fault)])

    async def delete_pods(self, owner: Whole, pods: Sequence[SeenPod]) -> None:
        """Delete these pods."""
        for pod in pods:
            self.expected.deleting(owner.uid, pod.uid)

        async def one(index: int) -> None:
            pod = pods[index]
            try:
                await self.client.delete(PODS, namespace=pod.namespace, name=pod.name, uid=pod.uid)
            except NotFound:
                self.expected.saw_end(owner.uid, pod.uid)
            except ApiError as fault:
                self.expected.saw_end(owner.uid, pod.uid)
                self.say(self.resource, owner, "FailedDelete", f"Error deleting: {fault.details}", warning=True)
                raise
            else:
                self.say(self.resource, owner, "SuccessfulDelete", f"Deleted pod: {pod.name}")

        tried, faults = await slowly(len(pods), one, first=16)
        for pod in pods[tried:]:
            self.expected.saw_end(owner.uid, pod.uid)
        first_fault(faults)


def namespace_ends(fault: BaseException) -> bool:
    """Whether the namespace is being deleted: nothing can be made there, and nothing need be said of it."""
    return isinstance(fault, Forbidden) and "being terminated" in str(fault)
