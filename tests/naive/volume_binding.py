"""Naive twin of VolumeBinding, one node at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.objects.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement
from bayplan.objects.selectors.label_selectors import compile_label_selector
from bayplan.objects.selectors.node_selectors import compile_node_selector
from bayplan.objects.storage import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeNodeAffinity,
)
from bayplan.objects.volumes import AwsElasticBlockStore, CinderVolume, GcePersistentDisk
from bayplan.plugins.volume_binding.plugin import VolumeBinding
from naive.storage import (
    BETA_REGION,
    BETA_ZONE,
    CLASS,
    REGION,
    ZONE,
    claim_names,
    class_of,
    find_claim,
    find_class,
    find_volume,
    made_for,
    not_made_for,
    owners,
    some_volumes,
)
from naive.twin import Case, Cluster, Twin
from support.builders.framework import FEASIBLE, FilterResult, errored, make_node, unresolvable
from support.builders.volumes import (
    claim_reference,
    make_claim,
    make_class,
    make_csi_node,
    make_driver,
    make_storage_capacity,
    make_volume,
    volume_pod,
)

SELECTED, COMPLETED = "volume.kubernetes.io/selected-node", "pv.kubernetes.io/bind-completed"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
AFFINITY = "node(s) didn't match PersistentVolume's node affinity"
NOT_FOUND = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


# the claims of the pod


def refusal(case: Case) -> str | None:
    """Why no node is feasible."""
    pod = case.pod
    for name, is_ephemeral in claim_names(pod, with_ephemeral=True):
        claim = find_claim(case.cluster, pod.namespace, name)
        if claim is None and is_ephemeral:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if claim.status.phase == "Lost":
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
        if claim.metadata.deletion_timestamp is not None:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if is_ephemeral and not made_for(pod, claim):
            return not_made_for(pod, claim)
    return None


def claims_of(case: Case) -> list[PersistentVolumeClaim]:
    found = (
        find_claim(case.cluster, case.pod.namespace, name) for name, _ in claim_names(case.pod, with_ephemeral=True)
    )
    return [claim for claim in found if claim is not None]


def is_bound(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and COMPLETED in claim.metadata.annotations


def judge(case: Case, node: Node) -> FilterResult:
    refused = refusal(case)
    if refused is not None:
        return unresolvable(refused)
    bound = [claim for claim in claims_of(case) if is_bound(claim)]
    unbound = [claim for claim in claims_of(case) if not is_bound(claim)]
    classes = [find_class(case.cluster, class_of(claim)) for claim in unbound]
    for storage_class in classes:
        if storage_class is not None and storage_class.volume_binding_mode is None:
            text = f'VolumeBindingMode not set for StorageClass "{storage_class.name}"'
            return errored(f'running PreFilter plugin "VolumeBinding": {text}')
    for claim, storage_class in zip(unbound, classes, strict=True):
        waits = storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer"
        if not waits or claim.spec.volume_name:
            return unresolvable("pod has unbound immediate PersistentVolumeClaims")
    reasons = {judge_bound(case.cluster, bound, node), judge_unbound(case.cluster, unbound, node)}
    found = [reason for reason in (AFFINITY, NOT_FOUND, NO_SPACE, GONE) if reason in reasons]
    return unresolvable(*found) if found else FEASIBLE


# bound claims


def judge_bound(cluster: Cluster, claims: Sequence[PersistentVolumeClaim], node: Node) -> str | None:
    for claim in claims:
        volume = find_volume(cluster, claim.spec.volume_name)
        if volume is None:
            return GONE
        if not reaches(translated(cluster, volume, node), node):
            return AFFINITY
    return None


def reaches(terms: Sequence[NodeSelectorTerm] | None, node: Node) -> bool:
    return terms is None or compile_node_selector(NodeSelector(tuple(terms))).matches(node.metadata.labels)


def terms_of(volume: PersistentVolume) -> Sequence[NodeSelectorTerm] | None:
    affinity = volume.spec.node_affinity
    return None if affinity is None or affinity.required is None else affinity.required.node_selector_terms


def translated(cluster: Cluster, volume: PersistentVolume, node: Node) -> Sequence[NodeSelectorTerm] | None:
    """The volume's affinity with the topology keys of the driver that serves it on the node."""
    listed = ""
    for csi_node in cluster.of(CsiNode):
        if csi_node.name == node.name:
            listed = csi_node.metadata.annotations.get(MIGRATED, "")
    terms = terms_of(volume)
    for source, plugin, key in (
        (volume.spec.aws_elastic_block_store, "kubernetes.io/aws-ebs", "topology.ebs.csi.aws.com/zone"),
        (volume.spec.gce_persistent_disk, "kubernetes.io/gce-pd", "topology.gke.io/zone"),
        (volume.spec.cinder, "kubernetes.io/cinder", "topology.cinder.csi.openstack.org/zone"),
    ):
        if source is not None and plugin in listed.split(","):
            return in_words_of(key, terms, volume.metadata.labels)
    return terms


def in_words_of(
    driver_key: str, terms: Sequence[NodeSelectorTerm] | None, labels: dict[str, str]
) -> Sequence[NodeSelectorTerm] | None:
    used = [expression.key for term in terms or () for expression in term.match_expressions]
    order = [key for where in (used, labels) for key in (ZONE, BETA_ZONE) if key in where]
    zone = order[0] if order else ZONE
    renamed = {zone: driver_key, **({BETA_REGION: REGION} if zone == BETA_ZONE else {})}
    more: tuple[NodeSelectorRequirement, ...] = ()
    if zone not in used and zone in labels:
        more = (NodeSelectorRequirement(driver_key, "In", tuple(labels[zone].split("__"))),)
        terms = terms or (NodeSelectorTerm(),)
    if terms is None:
        return None
    return [
        NodeSelectorTerm(
            tuple(
                NodeSelectorRequirement(renamed.get(each.key, each.key), each.operator, each.values)
                for each in term.match_expressions
            )
            + more,
            term.match_fields,
        )
        for term in terms
    ]


# unbound claims


def size_of(claim: PersistentVolumeClaim) -> Quantity:
    return parse_quantity(claim.spec.resources.requests.get("storage", 0))


def judge_unbound(cluster: Cluster, claims: Sequence[PersistentVolumeClaim], node: Node) -> str | None:
    chosen = [claim.metadata.annotations.get(SELECTED) for claim in claims]
    if any(name is not None and name != node.name for name in chosen):
        return NOT_FOUND
    to_make = [claim for claim in claims if SELECTED in claim.metadata.annotations]
    taken: list[str] = []
    for claim in sorted((claim for claim in claims if claim not in to_make), key=size_of):
        volume = find_match(cluster, claim, node, taken)
        if volume is None:
            to_make.append(claim)
        else:
            taken.append(volume.name)
    problems = (cannot_make(cluster, claim, node) for claim in to_make)
    return next((problem for problem in problems if problem is not None), None)


def find_match(
    cluster: Cluster, claim: PersistentVolumeClaim, node: Node, taken: Sequence[str]
) -> PersistentVolume | None:
    candidates = [
        volume
        for volume in cluster.of(PersistentVolume)
        if volume.name not in taken and class_of(volume) == class_of(claim) and suits(volume, claim)
    ]
    for volume in candidates:
        ref = volume.spec.claim_ref
        if ref is not None and f"{ref.namespace}/{ref.name}" == claim.key and ref.uid in ("", claim.metadata.uid):
            return volume if reaches(terms_of(volume), node) else None
    free = [volume for volume in candidates if is_free(volume, claim) and reaches(terms_of(volume), node)]
    return min(free, key=capacity_of, default=None)


def capacity_of(volume: PersistentVolume) -> Quantity:
    return parse_quantity(volume.spec.capacity.get("storage", 0))


def suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    mine, theirs = claim.spec, volume.spec
    return (
        not capacity_of(volume) < size_of(claim)
        and (mine.volume_mode or "Filesystem") == (theirs.volume_mode or "Filesystem")
        and (mine.volume_attributes_class_name or "") == (theirs.volume_attributes_class_name or "")
        and volume.metadata.deletion_timestamp is None
    )


def is_free(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    selector = claim.spec.selector
    return (
        volume.spec.claim_ref is None
        and volume.status.phase == "Available"
        and (selector is None or compile_label_selector(selector).matches(volume.metadata.labels))
        and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
    )


def cannot_make(cluster: Cluster, claim: PersistentVolumeClaim, node: Node) -> str | None:
    storage_class = find_class(cluster, class_of(claim))
    assert storage_class is not None
    if storage_class.provisioner in ("", "kubernetes.io/no-provisioner"):
        return NOT_FOUND
    terms, labels = storage_class.allowed_topologies, node.metadata.labels
    allowed = [
        all(labels.get(expression.key) in expression.values for expression in term.match_label_expressions)
        for term in terms
    ]
    if terms and not any(allowed):
        return NOT_FOUND
    tracked = any(
        driver.name == storage_class.provisioner and driver.spec.storage_capacity for driver in cluster.of(CsiDriver)
    )
    if not tracked or "storage" not in claim.spec.resources.requests:
        return None
    pools = (pool for pool in cluster.of(CsiStorageCapacity) if pool.storage_class_name == storage_class.name)
    return None if any(holds(pool, claim, node) for pool in pools) else NO_SPACE


def holds(pool: CsiStorageCapacity, claim: PersistentVolumeClaim, node: Node) -> bool:
    limit = pool.capacity if pool.maximum_volume_size is None else pool.maximum_volume_size
    if pool.node_topology is None or limit is None or parse_quantity(limit) < size_of(claim):
        return False
    return compile_label_selector(pool.node_topology).matches(node.metadata.labels)


def scores(case: Case, feasible: Sequence[Node]) -> None:
    """Storage capacity is not scored."""


# random cases

HOST, EBS = "kubernetes.io/hostname", "topology.ebs.csi.aws.com/zone"
PLACES = ("us-east-a", "us-east-b")
WHERE = st.sampled_from(PLACES)
NODE_LABELS = st.fixed_dictionaries(
    {ZONE: WHERE}, optional={BETA_ZONE: WHERE, EBS: WHERE, "topology.gke.io/zone": WHERE, REGION: WHERE}
)
EXPRESSIONS = st.builds(
    NodeSelectorRequirement,
    st.sampled_from((ZONE, ZONE, BETA_ZONE, BETA_REGION, EBS)),
    st.sampled_from(("In", "In", "In", "NotIn")),
    st.sampled_from((PLACES, PLACES[:1], PLACES[1:])),
) | st.sampled_from(
    (
        NodeSelectorRequirement(HOST, "In", ("n0",)),
        NodeSelectorRequirement(HOST, "In", ("n1", "n2")),
        NodeSelectorRequirement(HOST, "Exists"),
        NodeSelectorRequirement(HOST, "Exists", ("n0",)),
    )
)
FIELDS = (NodeSelectorRequirement("metadata.name", "In", ("n0",)), NodeSelectorRequirement("metadata.name", "Exists"))
TERMS = st.builds(
    NodeSelectorTerm,
    st.lists(EXPRESSIONS, min_size=1, max_size=2).map(tuple) | st.just(()),
    st.sampled_from(((),) * 6 + ((FIELDS[0],), (FIELDS[1],))),
)
REACH = st.sampled_from((None, VolumeNodeAffinity(), VolumeNodeAffinity(NodeSelector()))) | st.builds(
    VolumeNodeAffinity, st.builds(NodeSelector, st.lists(TERMS, min_size=1, max_size=2).map(tuple))
)
IN_TREE: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    (
        {},
        {"aws_elastic_block_store": AwsElasticBlockStore(volume_id="vol-1")},
        {"aws_elastic_block_store": AwsElasticBlockStore(volume_id="vol-1")},
        {"gce_persistent_disk": GcePersistentDisk(pd_name="d")},
        {"cinder": CinderVolume(volume_id="d")},
    )
)
VOLUME_LABELS = st.fixed_dictionaries(
    {}, optional={"tier": st.sampled_from("ab"), ZONE: WHERE, BETA_ZONE: st.sampled_from((*PLACES, "__".join(PLACES)))}
)
SELECTORS = st.sampled_from(
    (
        *(None,) * 4,
        LabelSelector(),
        LabelSelector(match_labels={"tier": "a"}),
        LabelSelector(match_expressions=(LabelSelectorRequirement(key="tier", operator="NotIn", values=("a",)),)),
    )
)
SIZES = ("500Mi", "1Gi", "2Gi", "3Gi", "4Gi", "5Gi", None)
MODES = st.sampled_from((("ReadWriteOnce",),) * 3 + (("ReadOnlyMany",), ("ReadWriteOnce", "ReadOnlyMany"), ()))
NEAR = st.sampled_from(({}, {ZONE: PLACES[0]}, {ZONE: PLACES[1]}, {HOST: "n1"}))
TOPOLOGIES = st.lists(st.sampled_from(({ZONE: PLACES[0]}, {ZONE: PLACES, HOST: ("n0", "n1")})), max_size=2)
CLAIMED = ("c0", "c1", "c2")


def rarely(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from((usual,) * 40 + others)


@st.composite
def classes(draw: st.DrawFn, name: str, mode: str | None = "WaitForFirstConsumer") -> StorageClass:
    provisioner = draw(st.sampled_from(("csi.example.com",) * 4 + ("kubernetes.io/no-provisioner",) * 5 + ("",)))
    return make_class(name, provisioner=provisioner, mode=mode, topologies=draw(TOPOLOGIES))


@st.composite
def claims(draw: st.DrawFn, name: str, nodes: int, made_for_pod: Pod | None = None) -> PersistentVolumeClaim:
    notes = draw(st.sampled_from(({},) * 6 + ({CLASS: "fast"}, {SELECTED: f"n{draw(st.integers(0, nodes))}"})))
    to = draw(st.sampled_from(("",) * 8 + ("v0", "v1", "v0", "v1", "v2", "gone")))
    return make_claim(
        name,
        size=draw(st.sampled_from(SIZES)),
        storage_class=draw(rarely("slow", *("fast",) * 9, "at-once", "unsaid", None)),
        volume=to,
        bound=draw(rarely(bool(to), False)),
        phase=draw(rarely("", "Lost")),
        deleted=draw(rarely(False, True)),
        annotations=notes,
        modes=draw(MODES),
        selector=draw(SELECTORS),
        volume_mode=draw(rarely(None, *("Filesystem", "Block") * 2)),
        volume_attributes_class_name=draw(rarely(None, *("", "gold") * 2)),
        owners=() if made_for_pod is None else draw(owners(made_for_pod)),
    )


@st.composite
def volumes(draw: st.DrawFn, found: Sequence[PersistentVolumeClaim]) -> list[PersistentVolume]:
    """Volumes of different sizes, because the choice among equal ones is not specified.

    At most one claim is promised.
    """
    made = []
    promised = draw(st.permutations([*found, None, None, None]))
    for number, size in enumerate(draw(st.permutations(SIZES))[: draw(st.integers(1, 4))]):
        claim = promised[number] if number < len(promised) else None
        uid = draw(st.sampled_from((None, None, None, "", "another")))
        volume = make_volume(
            f"v{number}",
            size=size,
            storage_class=draw(rarely("slow", *("fast",) * 9)),
            phase=draw(rarely("Available", "Bound")),
            annotations=draw(rarely({}, {CLASS: "fast"})),
            modes=draw(MODES),
            labels=draw(VOLUME_LABELS),
            claim=None if claim is None else claim_reference(claim, uid=uid),
            deleted=draw(rarely(False, True)),
            node_affinity=draw(REACH),
            volume_mode=draw(rarely(None, *("Filesystem", "Block") * 2)),
            volume_attributes_class_name=draw(rarely(None, *("", "gold") * 2)),
            **draw(IN_TREE),
        )
        made.append(volume)
    return made


@st.composite
def pools(draw: st.DrawFn, number: int) -> CsiStorageCapacity:
    return make_storage_capacity(
        f"pool{number}",
        storage_class=draw(rarely("slow", "fast")),
        near=draw(NEAR),
        reachable=draw(rarely(True, False)),
        capacity=draw(st.sampled_from(SIZES)),
        largest=draw(st.sampled_from((None, None, "1Gi", "3Gi"))),
    )


@st.composite
def csi_nodes(draw: st.DrawFn, name: str) -> CsiNode:
    plugins = ["kubernetes.io/aws-ebs", "kubernetes.io/gce-pd", "kubernetes.io/cinder"]
    listed = draw(st.sampled_from((None, ",".join(plugins), ",".join(plugins), *plugins)))
    return make_csi_node(name, migrated=listed)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(2, 4))
    nodes = tuple(make_node(f"n{number}", labels={**draw(NODE_LABELS), HOST: f"n{number}"}) for number in range(count))
    names = CLAIMED * 3 + draw(rarely((), ("gone",)))
    pod = volume_pod(*draw(some_volumes(*names)), name="incoming")
    found = [draw(claims(name, count)) for name in CLAIMED]
    if draw(rarely(True, False)):
        found.append(draw(claims("incoming-scratch", count, pod)))
    objects = (
        *found,
        *draw(volumes(found)),
        *(draw(classes(name)) for name in ("slow", "fast")),
        make_class("at-once", mode="Immediate"),
        make_class("unsaid", mode=None),
        make_driver(capacity=draw(st.sampled_from((True, False, None)))),
        *(draw(pools(number)) for number in range(draw(st.integers(0, 2)))),
        *(draw(csi_nodes(node.name)) for node in nodes if draw(st.booleans())),
    )
    return Case(pod, Cluster(nodes, (), objects))


TWIN = Twin(VolumeBinding, cases(), judge, scores)
