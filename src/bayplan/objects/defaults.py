"""Defaults that an API server sets on objects.

Objects from files have not passed an API server: they lack uids, namespaces, priorities and other defaults. Code that
reads files calls this module; objects from an API server are never changed. Two defaults come from other components: a
node without allocatable resources offers its whole capacity, as its kubelet would report, and an unbound volume is
available. Cost: about ten microseconds per object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any, TypeVar

from msgspec.structs import replace

from bayplan.codec.quantity import Quantity, QuantityText, parse_quantity
from bayplan.errors import ObjectError
from bayplan.objects.core import (
    DEFAULT_SCHEDULER_NAME,
    Container,
    ContainerPort,
    Namespace,
    Node,
    Pod,
    PodSpec,
    ResourceRequirements,
)
from bayplan.objects.field_checks import check_object
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject, ResourceList
from bayplan.objects.resource import DeviceRequest, DeviceSubRequest, ExactDeviceRequest, ResourceClaim
from bayplan.objects.resources import is_hugepages, is_native, is_pod_level, pod_requests
from bayplan.objects.storage import CsiDriver, PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.objects.volcano import types as volcano
from bayplan.objects.workloads import PriorityClass

T = TypeVar("T", bound=KubeObject)
R = TypeVar("R", ExactDeviceRequest, DeviceSubRequest)

DEFAULT_NAMESPACE = "default"
DEFAULT_GRACE_PERIOD_S = 30
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
DEFAULT_CLASS_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
SYSTEM_PRIORITIES: Mapping[str, int] = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def with_all_defaults(objects: Iterable[KubeObject], places: Iterable[str] = ()) -> Iterator[KubeObject]:
    """The objects as an API server would have stored them.

    `places` has the position of each object, file and document, for `ObjectError`: it is raised for objects that an API
    server would refuse.
    """
    known = []
    for item, place in zip(objects, chain(places, repeat("")), strict=False):
        with _place_text(place):
            check_object(item)
            known.append((with_defaults(with_identity(item)), place))
    priorities = {item.name: item for item, _ in known if isinstance(item, PriorityClass)}
    storage = _default_storage_class(item for item, _ in known if isinstance(item, StorageClass))
    for item, place in known:
        if isinstance(item, Pod):
            with _place_text(place):
                yield with_priority(item, priorities)
        elif isinstance(item, PersistentVolumeClaim) and item.spec.storage_class_name is None:
            yield replace(item, spec=replace(item.spec, storage_class_name=storage))
        else:
            yield item


@contextmanager
def _place_text(place: str) -> Iterator[None]:
    try:
        yield
    except ObjectError as fault:
        if not place:
            raise
        raise ObjectError(f"{place}: {fault}") from None


def with_identity(item: T) -> T:
    """The object with a uid, and with a namespace if its kind is namespaced."""
    meta = item.metadata
    kind = kind_of(type(item))
    if not meta.name:
        raise ObjectError(f"a {kind.name} has no metadata.name; add one")
    namespace = meta.namespace or (DEFAULT_NAMESPACE if kind.namespaced else "")
    uid = meta.uid or f"{kind.plural}/{namespace}/{meta.name}"
    return replace(item, metadata=replace(meta, namespace=namespace, uid=uid))


def with_defaults(item: T) -> T:
    """The object with the defaults that do not depend on other objects."""
    fill: Callable[[Any], Any] | None = _DEFAULTERS.get(type(item))
    filled: T = item if fill is None else fill(item)
    return filled


# Priorities.


def with_priority(pod: Pod, classes: Mapping[str, PriorityClass]) -> Pod:
    """The pod with the priority of its class, or of the default class."""
    spec = replace(pod.spec, scheduler_name=pod.spec.scheduler_name or DEFAULT_SCHEDULER_NAME)
    if spec.priority is not None:
        return replace(pod, spec=spec)
    name = spec.priority_class_name
    if name in SYSTEM_PRIORITIES:
        return replace(pod, spec=replace(spec, priority=SYSTEM_PRIORITIES[name]))
    if name and name not in classes:
        raise ObjectError(
            f'pod {pod.key} has priority class "{name}", which does not exist; add the class or remove it from the pod'
        )
    chosen = classes.get(name) or _default_class(classes.values())
    if chosen is None:
        return replace(pod, spec=replace(spec, priority=0))
    policy = spec.preemption_policy or chosen.preemption_policy
    return replace(pod, spec=replace(spec, priority=chosen.value, preemption_policy=policy))


def _default_class(classes: Iterable[PriorityClass]) -> PriorityClass | None:
    """The lowest of several global defaults, as in the API server's admission."""
    return min((each for each in classes if each.global_default), key=lambda each: each.value, default=None)


# Pods.


def _fill_pod(pod: Pod) -> Pod:
    spec = pod.spec
    grace = spec.termination_grace_period_seconds
    containers = tuple(_fill_container(each, spec) for each in spec.containers)
    starting = tuple(_fill_container(each, spec) for each in spec.init_containers)
    filled = replace(
        spec,
        containers=containers,
        init_containers=starting,
        overhead=_round_resources(spec.overhead),
        termination_grace_period_seconds=DEFAULT_GRACE_PERIOD_S if grace is None else grace,
    )
    if spec.resources is not None:
        filled = replace(filled, resources=_pod_level_resources(filled, spec.resources))
    return replace(pod, spec=filled, status=replace(pod.status, phase=pod.status.phase or "Pending"))


def _fill_container(container: Container, spec: PodSpec) -> Container:
    resources = container.resources
    limits = _round_resources(resources.limits)
    requests = {**limits, **_round_resources(resources.requests)}
    return replace(
        container,
        resources=replace(resources, requests=requests, limits=limits),
        ports=tuple(_fill_port(port, host_network=spec.host_network) for port in container.ports),
    )


def _fill_port(port: ContainerPort, *, host_network: bool) -> ContainerPort:
    """With the host network, a container's port is the host's port."""
    host_port = port.host_port or (port.container_port if host_network else 0)
    return replace(port, host_port=host_port, protocol=port.protocol or "TCP")


def _round_resources(resources: ResourceList) -> ResourceList:
    """Amounts as they are stored: multiples of a thousandth."""
    return {name: _round_up(amount) for name, amount in resources.items()}


def _round_up(amount: QuantityText) -> QuantityText:
    quantity = parse_quantity(amount)
    if quantity.exponent >= -3:
        return amount
    thousandths = quantity.milli_value()
    return amount if quantity.compare(Quantity.of_milli(thousandths)) == 0 else f"{thousandths}m"


def _pod_level_resources(spec: PodSpec, resources: ResourceRequirements) -> ResourceRequirements:
    """Resources of the whole pod, with defaults from its containers."""
    requests, limits = _round_resources(resources.requests), _round_resources(resources.limits)
    if requests or limits:
        for name, amount in _sum_containers(spec, lambda each: each.resources.limits).items():
            if is_pod_level(name) and is_hugepages(name) and name not in requests:
                limits.setdefault(name, amount)
    if limits:
        for name, amount in _sum_containers(spec, lambda each: each.resources.requests).items():
            if is_pod_level(name) and is_native(name) and not is_hugepages(name):
                requests.setdefault(name, amount)
        for name, amount in limits.items():
            if is_pod_level(name):
                requests.setdefault(name, amount)
    return replace(resources, requests=requests, limits=limits)


def _sum_containers(spec: PodSpec, amounts_of: Callable[[Container], ResourceList]) -> dict[str, QuantityText]:
    def copy_amounts(container: Container) -> Container:
        return replace(container, resources=ResourceRequirements(requests=amounts_of(container)))

    pod = Pod(
        spec=PodSpec(
            containers=tuple(map(copy_amounts, spec.containers)),
            init_containers=tuple(map(copy_amounts, spec.init_containers)),
        )
    )
    return {name: str(quantity) for name, quantity in pod_requests(pod).items()}


# Other kinds.


def _fill_node(node: Node) -> Node:
    status = node.status
    capacity = _round_resources(status.capacity)
    return replace(
        node, status=replace(status, capacity=capacity, allocatable=_round_resources(status.allocatable) or capacity)
    )


def _fill_namespace(namespace: Namespace) -> Namespace:
    meta = namespace.metadata
    return replace(namespace, metadata=replace(meta, labels={**meta.labels, NAMESPACE_NAME_LABEL: meta.name}))


def _fill_priority_class(item: PriorityClass) -> PriorityClass:
    return replace(item, preemption_policy=item.preemption_policy or "PreemptLowerPriority")


def _fill_volume(volume: PersistentVolume) -> PersistentVolume:
    spec, status = volume.spec, volume.status
    phase = status.phase or ("Available" if spec.claim_ref is None else "Pending")
    mode = spec.volume_mode or "Filesystem"
    return replace(volume, spec=replace(spec, volume_mode=mode), status=replace(status, phase=phase))


def _fill_volume_claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    spec, status = claim.spec, claim.status
    mode = spec.volume_mode or "Filesystem"
    phase = status.phase or "Pending"
    return replace(claim, spec=replace(spec, volume_mode=mode), status=replace(status, phase=phase))


def _fill_storage_class(item: StorageClass) -> StorageClass:
    return replace(item, volume_binding_mode=item.volume_binding_mode or "Immediate")


def _default_storage_class(classes: Iterable[StorageClass]) -> str | None:
    """The class for claims without one: of the default classes the youngest, then the first by name."""
    marked = [each for each in classes if each.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION) == "true"]
    marked.sort(key=lambda each: each.name)
    marked.sort(key=_age_order, reverse=True)
    return marked[0].name if marked else None


def _age_order(item: KubeObject) -> float:
    created = item.metadata.creation_timestamp
    return float("-inf") if created is None else created.timestamp()


def _fill_driver(driver: CsiDriver) -> CsiDriver:
    spec = driver.spec
    attach = True if spec.attach_required is None else spec.attach_required
    return replace(driver, spec=replace(spec, attach_required=attach, storage_capacity=bool(spec.storage_capacity)))


def _fill_device_claim(claim: ResourceClaim) -> ResourceClaim:
    devices = claim.spec.devices
    requests = tuple(_fill_device_request(each) for each in devices.requests)
    return replace(claim, spec=replace(claim.spec, devices=replace(devices, requests=requests)))


def _fill_device_request(request: DeviceRequest) -> DeviceRequest:
    return replace(
        request,
        exactly=None if request.exactly is None else _fill_count(request.exactly),
        first_available=tuple(_fill_count(each) for each in request.first_available),
    )


def _fill_count(request: R) -> R:
    """The default count is one device."""
    mode = request.allocation_mode or "ExactCount"
    count = request.count or (1 if mode == "ExactCount" else 0)
    return replace(request, allocation_mode=mode, count=count)


def _fill_pod_group(group: volcano.PodGroup) -> volcano.PodGroup:
    spec = group.spec
    filled = replace(
        spec,
        queue=spec.queue or volcano.DEFAULT_QUEUE,
        network_topology=_fill_topology(spec.network_topology),
        sub_group_policy=tuple(_fill_sub_groups(each) for each in spec.sub_group_policy),
    )
    return replace(group, spec=filled)


def _fill_topology(topology: volcano.NetworkTopology | None) -> volcano.NetworkTopology | None:
    return None if topology is None else replace(topology, mode=topology.mode or volcano.HARD)


def _fill_sub_groups(policy: volcano.SubGroupPolicy) -> volcano.SubGroupPolicy:
    size, least = policy.sub_group_size, policy.min_sub_groups
    return replace(
        policy,
        network_topology=_fill_topology(policy.network_topology),
        sub_group_size=1 if size is None else size,
        min_sub_groups=0 if least is None else least,
    )


def _fill_queue(queue: volcano.Queue) -> volcano.Queue:
    spec, status = queue.spec, queue.status
    spec = replace(spec, weight=spec.weight or 1, dequeue_strategy=spec.dequeue_strategy or "traverse")
    return replace(queue, spec=spec, status=replace(status, state=status.state or "Open"))


_DEFAULTERS: Mapping[type[KubeObject], Callable[[Any], Any]] = {
    Pod: _fill_pod,
    Node: _fill_node,
    Namespace: _fill_namespace,
    PriorityClass: _fill_priority_class,
    PersistentVolume: _fill_volume,
    PersistentVolumeClaim: _fill_volume_claim,
    StorageClass: _fill_storage_class,
    CsiDriver: _fill_driver,
    ResourceClaim: _fill_device_claim,
    volcano.PodGroup: _fill_pod_group,
    volcano.Queue: _fill_queue,
}
