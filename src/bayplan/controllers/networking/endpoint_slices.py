"""Who serves a Service? EndpointSlices with the pods that its selector means, as they come, become ready and go.

A pod's change costs a look-up for each of its labels; a service's sync a walk over the pods there, a moment
after the last change, and a write for each slice that is not as it should be.
"""

from __future__ import annotations

from bayplan.controllers.core.api_types import (
    NODES,
    PODS,
    SERVICES,
    SLICES,
    SeenPod,
    SeenSlice,
    Tree,
    Whole,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import Key, World
from bayplan.controllers.networking.endpoint_builder import (
    MANAGED_BY,
    MANAGER,
    SERVICE_NAME,
    served,
    slice_bodies,
    slice_labels,
)
from bayplan.objects.core import Node

BREATH_S = 0.1


class EndpointSlices(Controller):
    """Keeps the slices of services."""

    name = "endpointslice-controller"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.services = self.feed(SERVICES, Whole)
        self.pods = self.feed(PODS, SeenPod)
        self.nodes = self.feed(NODES, Node)
        self.slices = self.feed(SLICES, SeenSlice)
        self._of_service = self.slices.index("service", _service_of)
        self._choosing = self.services.index("chosen by", _first_choice)
        self.services.listen(self.enqueue)
        self.slices.listen(self._on_slice)
        self.pods.listen(self._on_pod)

    def _on_slice(self, old: SeenSlice | None, new: SeenSlice | None) -> None:
        for item in (old, new):
            if item is not None and (name := _service_of(item)):
                self.queue.add((item.namespace, name.partition("/")[2]), after_s=BREATH_S)

    def _on_pod(self, old: SeenPod | None, new: SeenPod | None) -> None:
        if old is not None and new is not None and _looks(old) == _looks(new):
            return
        for pod in filter(None, (old, new)):
            for label in pod.labels.items():
                for service in self._choosing.get(_choice(pod.namespace, label)):
                    self.queue.add((service.namespace, service.name), after_s=BREATH_S)

    async def sync(self, key: Key) -> float | None:
        service = self.services.get(*key)
        if service is None or not service.spec.get("selector") or service.spec.get("type") == "ExternalName":
            return None  # slices go with their service; those without a selector are somebody else's
        pods = served(service, self.pods.within(service.namespace))
        bodies = slice_bodies(service, pods, lambda name: self.nodes.get("", name))
        there = sorted(self._of_service.get(f"{service.namespace}/{service.name}"), key=lambda each: each.name)
        there = [each for each in there if each.metadata.deletion_timestamp is None]
        for body, found in zip(bodies, there, strict=False):
            await self._correct(service, found, body)
        for body in bodies[len(there) :]:
            await self._make(service, body)
        for found in there[len(bodies) :]:
            await self.delete(SLICES, found)
        return None

    async def _correct(self, service: Whole, found: SeenSlice, body: Tree) -> None:
        labels = slice_labels(service)
        same = (found.endpoints or [], found.ports or []) == (body["endpoints"], body["ports"])
        if same and found.metadata.labels == labels:
            return
        stale = {key: None for key in found.metadata.labels if key not in labels}
        content = {"endpoints": body["endpoints"], "ports": body["ports"]}
        await self.write(SLICES, found, {"metadata": {"labels": {**stale, **labels}}, **content})

    async def _make(self, service: Whole, body: Tree) -> None:
        meta = {
            "generateName": f"{service.name}-",
            "labels": slice_labels(service),
            "ownerReferences": [owner_reference(SERVICES, service)],
        }
        whole = {"apiVersion": SLICES.api_version, "kind": "EndpointSlice", "metadata": meta, **body}
        await self.client.create(SLICES, whole, namespace=service.namespace)


def _choice(namespace: str, label: tuple[str, str]) -> str:
    return f"{namespace}/{label[0]}={label[1]}"


def _first_choice(service: Whole) -> str:
    """One label that every pod behind a service has: pods find their services by it, however many there are."""
    selector: dict[str, str] = service.spec.get("selector") or {}
    return _choice(service.namespace, min(selector.items())) if selector else ""


def _service_of(item: SeenSlice) -> str:
    """Namespace and name of the service that a slice of ours belongs to."""
    labels = item.metadata.labels
    if labels.get(MANAGED_BY) != MANAGER:
        return ""
    return f"{item.namespace}/{labels.get(SERVICE_NAME, '')}"


def _looks(pod: SeenPod) -> tuple[object, ...]:
    """What an endpoint tells of a pod."""
    return pod.status.pod_ip, pod.ready, pod.terminating, pod.finished, pod.labels, pod.spec.node_name
