"""Slices, classes, claims and allocators for tests about devices.

`device("a", model="x")` is a device with attributes; `make_slice(device("a"), node="n")` publishes it; `exactly(2)` is
a request, `first_row(...)` one with alternatives; `make_claim(...)` takes requests in order and names them r0, r1, …
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.devices.allocator import Allocation, Allocator, NotAllocatable
from bayplan.devices.assumptions import AllocatedDevices
from bayplan.devices.claims import FINALIZER
from bayplan.devices.pools import PoolIndex
from bayplan.devices.selectors import DeviceSelectors
from bayplan.objects.core import Node, Pod, PodResourceClaim
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.resource import (
    AllocationResult,
    CounterSet,
    Device,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceSlice,
)
from support.builders.framework import make_node

DRIVER = "gpu.example.com"

SELECTORS = DeviceSelectors()


def device(
    name: str, *, consumes: Mapping[str, str] | None = None, api: Mapping[str, Any] | None = None, **attributes: Any
) -> Device:
    """A device.

    `attributes` are strings, numbers or booleans; `consumes` are counters of the set "set"; `api` are other fields as
    in a manifest.
    """
    manifest: dict[str, Any] = {"name": name, **(api or {})}
    manifest["attributes"] = {key: {_type_of(value): value} for key, value in attributes.items()}
    if consumes is not None:
        counters = {counter: {"value": value} for counter, value in consumes.items()}
        manifest["consumesCounters"] = [{"counterSet": "set", "counters": counters}]
    return msgspec.convert(manifest, Device)


def _type_of(value: object) -> str:
    return {bool: "bool", int: "int", str: "string"}[type(value)]


def make_slice(
    *devices: Device,
    node: str | None = None,
    pool: str | None = None,
    name: str | None = None,
    driver: str = DRIVER,
    generation: int = 1,
    of: int = 1,
    counters: Mapping[str, str] | None = None,
    **spec: Any,
) -> ResourceSlice:
    """A slice of a pool of `of` slices, local to `node` unless `spec` overrides that; `counters` make the set "set"."""
    pool = pool or node or "pool"
    manifest: dict[str, Any] = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": of},
        **spec,
    }
    if node is not None:
        manifest["nodeName"] = node
    if counters is not None:
        sets = {"name": "set", "counters": {key: {"value": value} for key, value in counters.items()}}
        manifest["sharedCounters"] = [msgspec.to_builtins(msgspec.convert(sets, CounterSet))]
    made = msgspec.convert({"metadata": {"name": name or f"{pool}-slice"}, "spec": manifest}, ResourceSlice)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, devices=devices))


def make_class(name: str = "gpu", *expressions: str, created: str | None = None, **spec: Any) -> DeviceClass:
    """A class that selects by these expressions; `spec` are fields of its spec."""
    meta = msgspec.convert({"name": name, **({"creationTimestamp": created} if created else {})}, ObjectMeta)
    return DeviceClass(metadata=meta, spec=DeviceClassSpec(selectors=selectors(*expressions), **spec))


def selectors(*expressions: str) -> tuple[DeviceSelector, ...]:
    return tuple(msgspec.convert({"cel": {"expression": text}}, DeviceSelector) for text in expressions)


def subrequest(count: int | str = 1, *expressions: str, of: str = "gpu", **fields: Any) -> dict[str, Any]:
    """The common part of plain requests and alternatives; the count may be "all"."""
    wanted: dict[str, Any] = {"deviceClassName": of, **fields}
    wanted["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    wanted.update({"allocationMode": "All"} if count == "all" else {"allocationMode": "ExactCount", "count": count})
    return wanted


def exactly(count: int | str = 1, *expressions: str, of: str = "gpu", **fields: Any) -> DeviceRequest:
    """A request for some devices of a class."""
    return DeviceRequest(exactly=msgspec.convert(subrequest(count, *expressions, of=of, **fields), ExactDeviceRequest))


def first_of(*alternatives: Mapping[str, Any]) -> DeviceRequest:
    """A request with alternatives s0, s1, …, each made by `wanting`."""
    named = [{"name": f"s{number}", **alternative} for number, alternative in enumerate(alternatives)]
    return msgspec.convert({"firstAvailable": named}, DeviceRequest)


def make_claim(
    *requests: DeviceRequest,
    name: str = "claim",
    constraints: Iterable[Mapping[str, Any]] = (),
    allocation: AllocationResult | None = None,
    config: Sequence[Mapping[str, Any]] = (),
    version: str = "",
    **status: Any,
) -> ResourceClaim:
    """A claim of namespace "default"; requests are named r0, r1, … in their order."""
    named = tuple(msgspec.structs.replace(item, name=f"r{number}") for number, item in enumerate(requests))
    devices = DeviceClaim(
        requests=named,
        constraints=tuple(msgspec.convert(item, DeviceConstraint) for item in constraints),
        config=tuple(msgspec.convert(item, DeviceClaimConfiguration) for item in config),
    )
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", resource_version=version),
        spec=ResourceClaimSpec(devices=devices),
        status=ResourceClaimStatus(allocation=allocation, **status),
    )


def make_allocation(*results: Mapping[str, Any], **fields: Any) -> AllocationResult:
    """An allocation of these devices: `make_allocation({"device": "a", "pool": "n"})`."""
    listed = [{"request": "r0", "driver": DRIVER, **result} for result in results]
    return msgspec.convert({"devices": {"results": listed}, **fields}, AllocationResult)


def make_toleration(**fields: str) -> DeviceToleration:
    return DeviceToleration(**fields)


def allocate(
    slices: Iterable[ResourceSlice],
    *claims: ResourceClaim,
    classes: Iterable[DeviceClass] | None = None,
    in_use: AllocatedDevices | None = None,
    node: Node | None = None,
    **options: Any,
) -> Allocation | NotAllocatable:
    """Allocate the claims on a node "n", by default with one class "gpu" that matches every device."""
    known = {item.name: item for item in (classes if classes is not None else [make_class()])}
    allocator = Allocator(PoolIndex(slices), known, in_use if in_use is not None else AllocatedDevices(), SELECTORS)
    return allocator.allocate(node or make_node("n"), claims, **options)


def allocated_devices(outcome: Allocation | NotAllocatable) -> list[str] | str:
    """The allocated devices, as "request=device" in order, claim after claim; or why there is no allocation."""
    if isinstance(outcome, NotAllocatable):
        return outcome.reason
    return [f"{pick.alternative.name}={pick.device.id.device}" for picks in outcome.picks for pick in picks]


def protected_claim(name: str) -> ResourceClaim:
    """A claim for one device, which already has the finalizer, so its allocation is one write."""
    claim = make_claim(exactly(1), name=name, version="1")
    metadata = msgspec.structs.replace(claim.metadata, finalizers=(FINALIZER,))
    return msgspec.structs.replace(claim, metadata=metadata)


def using_claim(pod: Pod, name: str) -> Pod:
    claims = (PodResourceClaim(name="gpu", resource_claim_name=name),)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=claims))
