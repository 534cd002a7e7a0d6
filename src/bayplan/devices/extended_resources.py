"""Which devices does a pod ask for that asks for an extended resource backed by a DeviceClass?

Such a pod gets one special claim for all its resources of that kind. It exists in memory only, without requests, until
a node is chosen: what it asks for depends on the node, since a node may have the resource from a device plugin.

Cost: a pass over the containers for each resource, for pods that use this at all.
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
IN_MEMORY_NAME = "<extended-resources>"  # no valid name of an object, so that it cannot be one

ClassByResource = Mapping[str, DeviceClass]
"""Resource name to class: see `classes`."""


@dataclass(frozen=True, slots=True)
class SpecialClaimRequests:
    """What a pod's special claim asks for on a node, and which container uses which request."""

    requests: tuple[DeviceRequest, ...] = ()
    mappings: tuple[ContainerExtendedResourceRequest, ...] = ()


def extended_requests(pod: Pod) -> dict[str, int]:
    """The pod's requests that a class may stand behind, without those for nothing."""
    return {
        name: amount for name, amount in filter_requests(pod).items() if amount and is_dra_extended_resource_name(name)
    }


def uses_classes(requests: Iterable[str], classes: ClassByResource) -> bool:
    """Whether any of the pod's extended resources has a class."""
    return any(name in classes for name in requests)


def find_special_claim(pod: Pod, claims: Iterable[ResourceClaim]) -> ResourceClaim | None:
    """The special claim that an earlier attempt has left for the pod."""
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
    """The special claim as it is for one node."""
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=requests))
    return msgspec.structs.replace(claim, spec=spec)


def special_claim_requests(pod: Pod, resources: Iterable[str], classes: ClassByResource) -> SpecialClaimRequests:
    """The requests of the special claim for those resources that the node leaves to devices."""
    requests: list[DeviceRequest] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    for resource in sorted(resources):
        if resource in classes:
            found = _requests_of_resource(pod, resource, classes[resource].name)
            requests += found.requests
            mappings += found.mappings
    return SpecialClaimRequests(tuple(sorted(requests, key=lambda request: request.name)), tuple(mappings))


def _requests_of_resource(pod: Pod, resource: str, class_name: str) -> SpecialClaimRequests:
    """Containers that run side by side ask each for themselves. Init containers run alone, one after the other: they
    borrow from those that start later, and what is still missing is asked once, for the one that lacks most."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    brief = {number for number, init in enumerate(pod.spec.init_containers) if not init.is_sidecar}
    lasting: dict[int, _ContainerRequest] = {}
    for number, container in enumerate(containers):
        wish = None if number in brief else _container_request(number, container, resource)
        if wish is not None:
            lasting[number] = wish
    largest, short = _init_container_request(containers, sorted(brief), resource, lasting)
    wishes = [*([] if largest is None else [largest]), *lasting.values()]
    mappings = [_mapping(containers[number], resource, wish.name) for number, wish in lasting.items()]
    return SpecialClaimRequests(tuple(wish.request(class_name) for wish in wishes), (*mappings, *short))


@dataclass(frozen=True, slots=True)
class _ContainerRequest:
    """So many devices for one container, under a name."""

    name: str
    count: int

    def request(self, class_name: str) -> DeviceRequest:
        exactly = ExactDeviceRequest(device_class_name=class_name, allocation_mode="ExactCount", count=self.count)
        return DeviceRequest(name=self.name, exactly=exactly)


def _container_request(number: int, container: Container, resource: str) -> _ContainerRequest | None:
    """What a container asks for; None if nothing, or no whole number."""
    text = container.resources.requests.get(resource)
    count = None if text is None else parse_quantity(text).as_integer()
    if not count:
        return None
    place = sorted(container.resources.requests).index(resource)
    return _ContainerRequest(f"container-{number}-request-{place}", count)


def _init_container_request(
    containers: Sequence[Container], brief: Sequence[int], resource: str, lasting: Mapping[int, _ContainerRequest]
) -> tuple[_ContainerRequest | None, list[ContainerExtendedResourceRequest]]:
    """The one request for all plain init containers, if they need more than they can borrow; and who uses what."""
    missing: dict[int, _ContainerRequest] = {}
    borrowed: dict[int, list[_ContainerRequest]] = {}
    for number in brief:
        wish = _container_request(number, containers[number], resource)
        if wish is None:
            continue
        lent = 0
        lenders = borrowed.setdefault(number, [])
        for later, lender in lasting.items():
            if later > number and lent < wish.count:
                lenders.append(lender)
                lent += lender.count
        if lent < wish.count:
            missing[number] = _ContainerRequest(wish.name, wish.count - lent)
    largest = max(missing.values(), key=lambda wish: wish.count, default=None)
    mappings = []
    for number, lenders in borrowed.items():
        own = [largest] if number in missing and largest is not None else []
        mappings += [_mapping(containers[number], resource, wish.name) for wish in (*lenders, *own)]
    return largest, mappings


def _mapping(container: Container, resource: str, request: str) -> ContainerExtendedResourceRequest:
    return ContainerExtendedResourceRequest(container_name=container.name, resource_name=resource, request_name=request)
