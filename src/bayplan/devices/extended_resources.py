"""Claims for extended resources that a DeviceClass backs.

Such a pod gets one special claim for all its resources of that kind. Until a node is chosen, it exists only in memory
and without requests: the requests depend on the node, since a device plugin of the node may provide the resource.

Cost: one pass over the containers per resource, only for pods with such resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bayplan.codec.quantity import parse_quantity
from bayplan.objects.core import Container, ContainerExtendedResourceRequest, Pod
from bayplan.objects.meta import ObjectMeta, OwnerReference
from bayplan.objects.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from bayplan.objects.resources import filter_requests, is_dra_extended_resource_name

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
IN_MEMORY_NAME = "<extended-resources>"  # not a valid object name, so that no object can have it

ClassByResource = Mapping[str, DeviceClass]
"""Class by resource name; see `classes`."""


@dataclass(frozen=True, slots=True)
class SpecialClaimRequests:
    """The requests of a pod's special claim on a node, and the request of each container."""

    requests: tuple[DeviceRequest, ...] = ()
    mappings: tuple[ContainerExtendedResourceRequest, ...] = ()


def extended_requests(pod: Pod) -> dict[str, int]:
    """The pod's non-zero requests for names that a class may back."""
    return {
        name: amount for name, amount in filter_requests(pod).items() if amount and is_dra_extended_resource_name(name)
    }


def uses_classes(requests: Iterable[str], classes: ClassByResource) -> bool:
    """Whether any of the pod's extended resources has a class."""
    return any(name in classes for name in requests)


def find_special_claim(pod: Pod, claims: Iterable[ResourceClaim]) -> ResourceClaim | None:
    """The special claim that an earlier attempt has created for the pod."""
    for claim in claims:
        if claim.metadata.annotations.get(ANNOTATION) == "true" and any(
            owner.controller and owner.name == pod.name and owner.uid == pod.uid
            for owner in claim.metadata.owner_references
        ):
            return claim
    return None


def new_special_claim(pod: Pod) -> ResourceClaim:
    """A special claim in memory, without requests. The API server will give it a name and a uid of its own."""
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid, controller=True)
    return ResourceClaim(
        metadata=ObjectMeta(
            name=IN_MEMORY_NAME,
            namespace=pod.namespace,
            uid=f"{pod.uid}{IN_MEMORY_NAME}",
            annotations={ANNOTATION: "true"},
            owner_references=(owner,),
        )
    )


def is_in_memory(claim: ResourceClaim) -> bool:
    return claim.name == IN_MEMORY_NAME


def with_requests(claim: ResourceClaim, requests: tuple[DeviceRequest, ...]) -> ResourceClaim:
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=requests))
    return msgspec.structs.replace(claim, spec=spec)


def special_claim_requests(pod: Pod, resources: Iterable[str], classes: ClassByResource) -> SpecialClaimRequests:
    """The requests of the special claim for the resources that the node itself does not provide."""
    requests: list[DeviceRequest] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    for resource in sorted(resources):
        if resource in classes:
            found = _requests_of_resource(pod, resource, classes[resource].name)
            requests += found.requests
            mappings += found.mappings
    return SpecialClaimRequests(tuple(sorted(requests, key=lambda request: request.name)), tuple(mappings))


def _requests_of_resource(pod: Pod, resource: str, class_name: str) -> SpecialClaimRequests:
    """The requests of all containers for one resource.

    Containers that run side by side have a request each. Init containers run one after the other: they share the
    devices of containers that start later. One more request covers what is still missing, for the init container that
    lacks most.
    """
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    init_numbers = {number for number, init in enumerate(pod.spec.init_containers) if not init.is_sidecar}
    long_running: dict[int, _ContainerRequest] = {}
    for number, container in enumerate(containers):
        container_request = None if number in init_numbers else _container_request(number, container, resource)
        if container_request is not None:
            long_running[number] = container_request
    largest, init_mappings = _init_container_request(containers, sorted(init_numbers), resource, long_running)
    container_requests = [*([] if largest is None else [largest]), *long_running.values()]
    mappings = [
        _mapping(containers[number], resource, container_request.name)
        for number, container_request in long_running.items()
    ]
    return SpecialClaimRequests(
        tuple(container_request.request(class_name) for container_request in container_requests),
        (*mappings, *init_mappings),
    )


@dataclass(frozen=True, slots=True)
class _ContainerRequest:
    """A number of devices for one container, under a request name."""

    name: str
    count: int

    def request(self, class_name: str) -> DeviceRequest:
        exactly = ExactDeviceRequest(device_class_name=class_name, allocation_mode="ExactCount", count=self.count)
        return DeviceRequest(name=self.name, exactly=exactly)


def _container_request(number: int, container: Container, resource: str) -> _ContainerRequest | None:
    """The request of a container; None if it has none or it is not an integer."""
    text = container.resources.requests.get(resource)
    count = None if text is None else parse_quantity(text).as_integer()
    if not count:
        return None
    place = sorted(container.resources.requests).index(resource)
    return _ContainerRequest(f"container-{number}-request-{place}", count)


def _init_container_request(
    containers: Sequence[Container],
    init_numbers: Sequence[int],
    resource: str,
    long_running: Mapping[int, _ContainerRequest],
) -> tuple[_ContainerRequest | None, list[ContainerExtendedResourceRequest]]:
    """The one request for all plain init containers, if they need more than they can share, and the mappings."""
    missing: dict[int, _ContainerRequest] = {}
    shared: dict[int, list[_ContainerRequest]] = {}
    for number in init_numbers:
        container_request = _container_request(number, containers[number], resource)
        if container_request is None:
            continue
        shared_count = 0
        sharing = shared.setdefault(number, [])
        for later, other in long_running.items():
            if later > number and shared_count < container_request.count:
                sharing.append(other)
                shared_count += other.count
        if shared_count < container_request.count:
            missing[number] = _ContainerRequest(container_request.name, container_request.count - shared_count)
    largest = max(missing.values(), key=lambda container_request: container_request.count, default=None)
    mappings = []
    for number, sharing in shared.items():
        own = [largest] if number in missing and largest is not None else []
        mappings += [
            _mapping(containers[number], resource, container_request.name) for container_request in (*sharing, *own)
        ]
    return largest, mappings


def _mapping(container: Container, resource: str, request: str) -> ContainerExtendedResourceRequest:
    return ContainerExtendedResourceRequest(container_name=container.name, resource_name=resource, request_name=request)
