"""Builders of Kubernetes objects for tests; every field has a default.

`make_pod(cpu="500m", labels={"app": "web"})` is a pending pod with one container, `make_node("a", zone="z1", cpu=4)` a
large node. Short forms replace objects (`taints=["gpu:NoSchedule"]`), and fields without a keyword of their own can be
given by name (`make_pod(host_network=True)`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from bayplan.codec.quantity import QuantityError, QuantityText, parse_quantity
from bayplan.errors import UsageError
from bayplan.objects.core import (
    Affinity,
    Container,
    ContainerImage,
    ContainerPort,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    NodeSpec,
    NodeStatus,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
    PreferredSchedulingTerm,
    ResourceRequirements,
    Taint,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from bayplan.objects.meta import LabelSelector, ObjectMeta, OwnerReference, ResourceList
from bayplan.objects.storage import (
    ClaimReference,
    CsiVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    StorageClass,
    TopologySelectorLabelRequirement,
    TopologySelectorTerm,
    VolumeNodeAffinity,
)
from bayplan.objects.volumes import PersistentVolumeClaimStatus, PersistentVolumeClaimVolume, Volume, VolumeResources
from bayplan.volumes.claims import BIND_COMPLETED

T = TypeVar("T")

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
DEFAULT_ALLOCATABLE: ResourceList = {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"}

Labels = Mapping[str, str]
Choices = Mapping[str, str | Sequence[str]]
"""Label keys, each with one or several accepted values."""


# Pods


def make_container(
    name: str = "main",
    *,
    cpu: QuantityText | None = None,
    memory: QuantityText | None = None,
    requests: ResourceList | None = None,
    **fields: Any,
) -> Container:
    """Make a container; `fields` are those of `Container`."""
    return Container(name=name, resources=ResourceRequirements(requests=_amounts(requests, cpu, memory)), **fields)


def make_pod(
    name: str = "pod",
    *,
    namespace: str = "default",
    uid: str | None = None,
    labels: Labels | None = None,
    annotations: Labels | None = None,
    cpu: QuantityText | None = None,
    memory: QuantityText | None = None,
    requests: ResourceList | None = None,
    image: str = "",
    host_ports: Sequence[int | ContainerPort] = (),
    claims: Sequence[str] = (),
    gates: Sequence[str] = (),
    node: str = "",
    nominated: str = "",
    tolerations: Iterable[Toleration | str] = (),
    spread: Iterable[TopologySpreadConstraint] = (),
    terminating: bool = False,
    owner: OwnerReference | None = None,
    status: PodStatus | None = None,
    **spec: Any,
) -> Pod:
    """Make a pod of one container, unless `containers` is given; it is running if it has a `node`, else pending.

    `requests` are amounts by resource; `cpu` and `memory` are short forms. `claims` are names of volume claims, `gates`
    of scheduling gates. `spec` are fields of `PodSpec`: `priority`, `node_selector`, `affinity`, `scheduler_name`, …
    """
    ports = tuple(
        port if isinstance(port, ContainerPort) else ContainerPort(host_port=port, container_port=port)
        for port in as_list("host_ports", host_ports, int | ContainerPort, "ports, as in [80]")
    )
    spec.setdefault(
        "containers", (make_container(cpu=cpu, memory=memory, requests=requests, image=image, ports=ports),)
    )
    spec.setdefault("volumes", tuple(map(_volume_of, as_list("claims", claims, str, "names of claims"))))
    spec.setdefault("scheduling_gates", tuple(map(PodSchedulingGate, as_list("gates", gates, str, "names of gates"))))
    spec.setdefault("topology_spread_constraints", _make_each("spread", spread, TopologySpreadConstraint))
    spec["tolerations"] = _make_each("tolerations", tolerations, Toleration, make_toleration)
    metadata = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=f"uid-{namespace}-{name}" if uid is None else uid,
        labels=_labels(labels),
        annotations=_labels(annotations),
        creation_timestamp=CREATED,
        deletion_timestamp=CREATED if terminating else None,
        owner_references=(owner,) if owner is not None else (),
    )
    if status is None:
        status = PodStatus(phase="Running" if node else "Pending", nominated_node_name=nominated)
    return check_field_types(Pod(metadata=metadata, spec=PodSpec(node_name=node, **spec), status=status))


def make_toleration(taint: str = "", **fields: Any) -> Toleration:
    """`make_toleration("gpu")` tolerates all taints with the key, `"gpu=a100:NoSchedule"` that taint, "" all taints."""
    key, value, effect = _split_taint(taint)
    if effect and effect not in EFFECTS:
        raise UsageError(f"{taint!r} is not a toleration: the effect is one of {', '.join(EFFECTS)}, or left out")
    defaults = {"key": key, "operator": "Equal" if value else "Exists", "value": value, "effect": effect}
    return Toleration(**{**defaults, **fields})


def make_spread(
    topology_key: str = ZONE, *, labels: Labels | None = None, max_skew: int = 1, required: bool = True, **fields: Any
) -> TopologySpreadConstraint:
    """Make a topology spread constraint for pods with these labels; `required=False` means ScheduleAnyway."""
    return check_field_types(
        TopologySpreadConstraint(
            max_skew=max_skew,
            topology_key=topology_key,
            when_unsatisfiable="DoNotSchedule" if required else "ScheduleAnyway",
            label_selector=LabelSelector(match_labels=_labels(labels)),
            **fields,
        )
    )


def make_affinity(
    *,
    nodes: Choices | None = None,
    near: Labels | None = None,
    apart: Labels | None = None,
    topology_key: str = HOSTNAME,
    weight: int | None = None,
) -> Affinity:
    """Make an affinity to nodes, to pods (`near`) and against pods (`apart`) by labels. `weight`: preferred only."""
    return check_field_types(
        Affinity(
            node_affinity=None if nodes is None else _node_affinity(_term(nodes), weight),
            pod_affinity=None if near is None else _pod_affinity(near, topology_key, weight),
            pod_anti_affinity=None if apart is None else _pod_affinity(apart, topology_key, weight),
        )
    )


def _node_affinity(term: NodeSelectorTerm, weight: int | None) -> NodeAffinity:
    if weight is None:
        return NodeAffinity(required=NodeSelector((term,)))
    return NodeAffinity(preferred=(PreferredSchedulingTerm(weight, term),))


def _pod_affinity(labels: Labels, topology_key: str, weight: int | None) -> PodAffinity:
    term = PodAffinityTerm(topology_key=topology_key, label_selector=LabelSelector(match_labels=_labels(labels)))
    if weight is None:
        return PodAffinity(required=(term,))
    return PodAffinity(preferred=(WeightedPodAffinityTerm(weight, term),))


def _amounts(requests: ResourceList | None, cpu: QuantityText | None, memory: QuantityText | None) -> ResourceList:
    if requests is not None and not isinstance(requests, Mapping):
        raise UsageError(f'amounts are by resource, as in {{"cpu": 2}}; got {requests!r}')
    short = {"cpu": cpu, "memory": memory}
    amounts = {**(requests or {}), **{name: amount for name, amount in short.items() if amount is not None}}
    for name, amount in amounts.items():
        try:
            parse_quantity(amount)
        except QuantityError:
            raise UsageError(f'{name} is {amount!r}, which is not a quantity; write it like 500m, 2 or "4Gi"') from None
    return amounts


def _labels(labels: Labels | None) -> dict[str, str]:
    if labels is not None and not isinstance(labels, Mapping):
        raise UsageError(f'labels and annotations are written as in {{"app": "web"}}; got {labels!r}')
    for key, value in (labels or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"labels and annotations are texts; got {key!r}: {value!r}")
    return dict(labels or {})


def check_field_types(item: T) -> T:
    """Return the object if the type of every field is correct, else raise an error."""
    kind = type(item)
    try:
        msgspec.convert(msgspec.to_builtins(item), kind)
    except (msgspec.ValidationError, TypeError) as fault:
        raise UsageError(f"this is not a valid {kind.__name__}: {fault}") from None
    return item


def as_list(keyword: str, given: Any, kind: Any, what: str) -> list[Any]:
    """Return the value of a keyword as a list of `kind`. A text is an error, because it is a list of letters."""
    if isinstance(given, kind | str | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"{keyword} takes a list of {what}; got {_describe_value(given)}")
    items = list(given)
    for each in items:
        if not isinstance(each, kind):
            raise UsageError(f"{keyword} takes a list of {what}; it contains {_describe_value(each)}")
    return items


def _describe_value(value: Any) -> str:
    if isinstance(value, str | int | float):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"


def _make_each(
    keyword: str, given: Iterable[Any], kind: type[T], maker: Callable[[str], T] | None = None
) -> tuple[T, ...]:
    """Return objects of one type; a short form, given as text, is converted by `maker`."""
    if isinstance(given, str | kind):
        raise UsageError(f"{keyword} takes a list; got {given!r}")
    items = tuple(maker(each) if maker is not None and isinstance(each, str) else each for each in given)
    for each in items:
        if not isinstance(each, kind):
            raise UsageError(
                f"{keyword} takes {kind.__name__}s, as make_{keyword.rstrip('s')} makes them; got {each!r}"
            )
    return items


def _volume_of(claim: str) -> Volume:
    return Volume(name=claim, persistent_volume_claim=PersistentVolumeClaimVolume(claim))


# Nodes


def make_node(
    name: str = "node",
    *,
    labels: Labels | None = None,
    zone: str = "",
    cpu: QuantityText | None = None,
    memory: QuantityText | None = None,
    capacity: ResourceList | None = None,
    allocatable: ResourceList | None = None,
    taints: Iterable[Taint | str] = (),
    unschedulable: bool = False,
    images: Mapping[str, int] | Iterable[ContainerImage] = (),
    features: Iterable[str] = (),
    **status: Any,
) -> Node:
    """Make a large node with its host name as a label. `images` maps names to bytes.

    `capacity` changes or adds amounts, with `cpu` and `memory` as short forms; `allocatable` replaces all amounts.
    """
    if isinstance(images, Mapping):
        images = [ContainerImage(names=(image,), size_bytes=size) for image, size in images.items()]
    base = DEFAULT_ALLOCATABLE if allocatable is None else allocatable
    amounts = _amounts({**base, **(capacity or {})}, cpu, memory)
    node_labels = {HOSTNAME: name, **({ZONE: zone} if zone else {})}
    features = tuple(as_list("features", features, str, "names of features"))
    return check_field_types(
        Node(
            metadata=ObjectMeta(name=name, uid=f"uid-{name}", labels={**node_labels, **_labels(labels)}),
            spec=NodeSpec(unschedulable=unschedulable, taints=_make_each("taints", taints, Taint, make_taint)),
            status=NodeStatus(
                allocatable=amounts, capacity=amounts, images=tuple(images), declared_features=features, **status
            ),
        )
    )


def make_taint(text: str, effect: str = "NoSchedule", value: str = "") -> Taint:
    """Make a taint from kubectl's form `key=value:Effect`; missing parts come from the arguments."""
    key, own_value, own_effect = _split_taint(text)
    if (own_effect or effect) not in EFFECTS:
        raise UsageError(f"{text!r} is not a taint: the effect is one of {', '.join(EFFECTS)}")
    return Taint(key=key, value=own_value or value, effect=own_effect or effect)


def _split_taint(text: str) -> tuple[str, str, str]:
    """Split `key=value:Effect`; value and effect may be missing."""
    rest, _, effect = text.partition(":")
    key, _, value = rest.partition("=")
    return key, value, effect


# Volumes


def make_pvc(
    name: str = "claim",
    *,
    namespace: str = "default",
    uid: str | None = None,
    size: QuantityText | None = "1Gi",
    storage_class: str | None = None,
    volume: str = "",
    bound: bool | None = None,
    phase: str = "",
    modes: Sequence[str] = ("ReadWriteOnce",),
    annotations: Labels | None = None,
    owners: tuple[OwnerReference, ...] = (),
    deleted: bool = False,
    version: str = "1",
    **spec: Any,
) -> PersistentVolumeClaim:
    """Make a claim; with a `volume` it is bound to it unless `bound` is False."""
    all_annotations = dict(annotations or {})
    if bool(volume) if bound is None else bound:
        all_annotations[BIND_COMPLETED] = "yes"
    return PersistentVolumeClaim(
        ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{namespace}-{name}" if uid is None else uid,
            resource_version=version,
            annotations=all_annotations,
            owner_references=owners,
            deletion_timestamp=CREATED if deleted else None,
        ),
        PersistentVolumeClaimSpec(
            access_modes=tuple(modes),
            storage_class_name=storage_class,
            volume_name=volume,
            resources=VolumeResources(requests={} if size is None else {"storage": size}),
            **spec,
        ),
        PersistentVolumeClaimStatus(phase=phase),
    )


def make_pv(
    name: str = "volume",
    *,
    size: QuantityText | None = "1Gi",
    storage_class: str = "",
    phase: str = "Available",
    modes: Sequence[str] = ("ReadWriteOnce",),
    labels: Labels | None = None,
    annotations: Labels | None = None,
    near: Choices | None = None,
    claim: ClaimReference | None = None,
    handle: str = "",
    driver: str = "csi.example.com",
    deleted: bool = False,
    version: str = "1",
    **spec: Any,
) -> PersistentVolume:
    """Make a volume; `near` are labels of nodes that can mount it, `handle` makes it a volume of a CSI `driver`."""
    if near is not None:
        spec["node_affinity"] = VolumeNodeAffinity(NodeSelector((_term(near),)))
    return PersistentVolume(
        ObjectMeta(
            name=name,
            labels=dict(labels or {}),
            annotations=dict(annotations or {}),
            resource_version=version,
            deletion_timestamp=CREATED if deleted else None,
        ),
        PersistentVolumeSpec(
            capacity={} if size is None else {"storage": size},
            access_modes=tuple(modes),
            storage_class_name=storage_class,
            claim_ref=claim,
            csi=CsiVolumeSource(driver, handle) if handle else None,
            **spec,
        ),
        PersistentVolumeStatus(phase=phase),
    )


def make_storage_class(
    name: str = "standard",
    *,
    provisioner: str = "csi.example.com",
    mode: str | None = "WaitForFirstConsumer",
    topologies: Sequence[Choices] = (),
) -> StorageClass:
    """Make a storage class; `topologies` are labels of nodes for which it can provision."""
    terms = tuple(
        TopologySelectorTerm(
            tuple(TopologySelectorLabelRequirement(key, _values(values)) for key, values in term.items())
        )
        for term in topologies
    )
    return StorageClass(ObjectMeta(name=name), provisioner, mode, terms)


def _term(choices: Choices) -> NodeSelectorTerm:
    return NodeSelectorTerm(tuple(NodeSelectorRequirement(key, "In", _values(given)) for key, given in choices.items()))


def _values(values: str | Sequence[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)
