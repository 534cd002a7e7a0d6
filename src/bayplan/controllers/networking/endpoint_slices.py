"""EndpointSlice controller: keeps the EndpointSlices of each Service in step with the pods of its selector.

A pod change costs one lookup per label. A service's sync runs shortly after the last change; it walks the pods of the
namespace and writes each slice that differs.
"""

from __future__ import annotations

from bayplan.controllers.core.api_types import (
    ENDPOINT_SLICES,
    NODES,
    PODS,
    SERVICES,
    EndpointSliceFields,
    PodFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.networking.endpoint_builder import (
    MANAGED_BY,
    MANAGER,
    SERVICE_NAME,
    backing_pods,
    slice_bodies,
    slice_labels,
)
from bayplan.objects.core import Node

BATCH_PERIOD_S = 0.1


class EndpointSliceController(Controller):
    name = "endpointslice-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.services = self.informer(SERVICES, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self.nodes = self.informer(NODES, Node)
        self.slices = self.informer(ENDPOINT_SLICES, EndpointSliceFields)
        self._slices_by_service = self.slices.index("service", _service_of)
        self._services_by_label = self.services.index("chosen by", _selector_index_key)
        self.services.add_handler(self.enqueue)
        self.slices.add_handler(self._on_slice)
        self.pods.add_handler(self._on_pod)

    def _on_slice(self, old: EndpointSliceFields | None, new: EndpointSliceFields | None) -> None:
        for item in (old, new):
            if item is not None and (name := _service_of(item)):
                self.queue.add((item.namespace, name.partition("/")[2]), after_s=BATCH_PERIOD_S)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        if old is not None and new is not None and _endpoint_fields(old) == _endpoint_fields(new):
            return
        for pod in filter(None, (old, new)):
            for label in pod.labels.items():
                for service in self._services_by_label.get(_label_index_key(pod.namespace, label)):
                    self.queue.add((service.namespace, service.name), after_s=BATCH_PERIOD_S)

    async def sync(self, key: Key) -> float | None:
        service = self.services.get(*key)
        if service is None or not service.spec.get("selector") or service.spec.get("type") == "ExternalName":
            return None  # slices are garbage collected with their service; without a selector the user writes them
        pods = backing_pods(service, self.pods.by_namespace(service.namespace))
        bodies = slice_bodies(service, pods, lambda name: self.nodes.get("", name))
        slices = self._slices_by_service.get(f"{service.namespace}/{service.name}")
        existing = sorted(slices, key=lambda each: each.name)
        existing = [each for each in existing if each.metadata.deletion_timestamp is None]
        for body, found in zip(bodies, existing, strict=False):
            await self._reconcile(service, found, body)
        for body in bodies[len(existing) :]:
            await self._create(service, body)
        for found in existing[len(bodies) :]:
            await self.delete(ENDPOINT_SLICES, found)
        return None

    async def _reconcile(self, service: UntypedObject, found: EndpointSliceFields, body: Tree) -> None:
        labels = slice_labels(service)
        same = (found.endpoints or [], found.ports or []) == (body["endpoints"], body["ports"])
        if same and found.metadata.labels == labels:
            return
        stale = {key: None for key in found.metadata.labels if key not in labels}
        content = {"endpoints": body["endpoints"], "ports": body["ports"]}
        await self.write(ENDPOINT_SLICES, found, {"metadata": {"labels": {**stale, **labels}}, **content})

    async def _create(self, service: UntypedObject, body: Tree) -> None:
        meta = {
            "generateName": f"{service.name}-",
            "labels": slice_labels(service),
            "ownerReferences": [owner_reference(SERVICES, service)],
        }
        tree = {"apiVersion": ENDPOINT_SLICES.api_version, "kind": "EndpointSlice", "metadata": meta, **body}
        await self.client.create(ENDPOINT_SLICES, tree, namespace=service.namespace)


def _label_index_key(namespace: str, label: tuple[str, str]) -> str:
    return f"{namespace}/{label[0]}={label[1]}"


def _selector_index_key(service: UntypedObject) -> str:
    """One label that every pod of a service has: the index by which pods find their services."""
    selector: dict[str, str] = service.spec.get("selector") or {}
    return _label_index_key(service.namespace, min(selector.items())) if selector else ""


def _service_of(item: EndpointSliceFields) -> str:
    """Namespace and name of the service of a slice that this controller manages."""
    labels = item.metadata.labels
    if labels.get(MANAGED_BY) != MANAGER:
        return ""
    return f"{item.namespace}/{labels.get(SERVICE_NAME, '')}"


def _endpoint_fields(pod: PodFields) -> tuple[object, ...]:
    return pod.status.pod_ip, pod.ready, pod.terminating, pod.finished, pod.labels, pod.spec.node_name
