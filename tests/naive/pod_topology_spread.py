"""Naive twin of PodTopologySpread, one node at a time: dictionaries of counts instead of columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from bayplan.objects.core import (
    Affinity,
    Node,
    NodeAffinity,
    Pod,
    Service,
    ServiceSpec,
    Toleration,
    TopologySpreadConstraint,
)
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference
from bayplan.objects.selectors.label_selectors import LabelMatcher, compile_label_selector
from bayplan.objects.selectors.node_selectors import required_node_affinity
from bayplan.objects.taints import tolerates
from bayplan.objects.workloads import ReplicaSet, ReplicaSetSpec
from bayplan.plugins.pod_topology_spread import args as arguments
from bayplan.plugins.pod_topology_spread.go_logarithm import natural_log
from bayplan.plugins.pod_topology_spread.plugin import PodTopologySpread
from naive.twin import SOUND_TERMS, Case, Cluster, Twin, fits_unless, node_affinities
from support.builders.framework import FilterResult, make_node, make_pod, rejected, taint, unresolvable

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
SYSTEM = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOST, when_unsatisfiable="ScheduleAnyway"),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE, when_unsatisfiable="ScheduleAnyway"),
)


# the constraints of the pod


def constraints(case: Case, action: str) -> list[tuple[TopologySpreadConstraint, LabelMatcher]]:
    own = case.pod.spec.topology_spread_constraints
    if own:
        return [(each, own_selector(each, case.pod)) for each in own if each.when_unsatisfiable == action]
    defaults: Iterable[TopologySpreadConstraint] = SYSTEM if case.args is None else case.args.constraints
    together = siblings(case)
    if not together.match_labels and not together.match_expressions:
        return []
    return [(each, compile_label_selector(together)) for each in defaults if each.when_unsatisfiable == action]


def own_selector(constraint: TopologySpreadConstraint, pod: Pod) -> LabelMatcher:
    selector = constraint.label_selector
    if selector is None:
        return compile_label_selector(None)
    more = tuple(
        LabelSelectorRequirement(key=key, operator="In", values=(pod.labels[key],))
        for key in constraint.match_label_keys
        if key in pod.labels
    )
    return compile_label_selector(
        LabelSelector(match_labels=selector.match_labels, match_expressions=selector.match_expressions + more)
    )


def siblings(case: Case) -> LabelSelector:
    labels: dict[str, str] = {}
    for service in case.cluster.of(Service):
        wanted = service.spec.selector
        if service.namespace == case.pod.namespace and all(case.pod.labels.get(key) == wanted[key] for key in wanted):
            labels.update(wanted)
    expressions: tuple[LabelSelectorRequirement, ...] = ()
    for owner in case.pod.metadata.owner_references:
        for replica_set in case.cluster.of(ReplicaSet):
            same = (replica_set.namespace, replica_set.name) == (case.pod.namespace, owner.name)
            if owner.controller and same and replica_set.spec.selector is not None:
                expressions += tuple(
                    LabelSelectorRequirement(key=key, operator="In", values=(value,))
                    for key, value in replica_set.spec.selector.match_labels.items()
                )
    return LabelSelector(match_labels=labels, match_expressions=expressions)


# the counted pods and nodes


def included(constraint: TopologySpreadConstraint, pod: Pod, node: Node) -> bool:
    wanted = required_node_affinity(pod).matches(node.metadata.labels, node.name)
    if constraint.node_affinity_policy != "Ignore" and not wanted:
        return False
    repelling = [each for each in node.spec.taints if each.effect in ("NoSchedule", "NoExecute")]
    bearable = all(any(tolerates(each, repels) for each in pod.spec.tolerations) for repels in repelling)
    return constraint.node_taints_policy != "Honor" or bearable


def pods_meant(case: Case, selector: LabelMatcher, node: Node) -> int:
    if selector.everything:
        return 0
    return sum(
        pod.namespace == case.pod.namespace and not pod.terminating and selector.matches(pod.labels)
        for pod in case.cluster.pods_on(node)
    )


# results


def judge(case: Case, node: Node) -> FilterResult:
    hard = constraints(case, "DoNotSchedule")
    keys = [constraint.topology_key for constraint, _ in hard]
    for constraint, selector in hard:
        key = constraint.topology_key
        if key not in node.metadata.labels:
            missing = "node(s) didn't match pod topology spread constraints (missing required label)"
            return unresolvable(missing)
        counts: dict[str, int] = {}
        for each in case.cluster.nodes:
            if all(wanted in each.metadata.labels for wanted in keys) and included(constraint, case.pod, each):
                value = each.metadata.labels[key]
                counts[value] = counts.get(value, 0) + pods_meant(case, selector, each)
        fewest = min(counts.values(), default=2**31 - 1)
        if len(counts) < (1 if constraint.min_domains is None else constraint.min_domains):
            fewest = 0
        mine = counts.get(node.metadata.labels[key], 0) + int(selector.matches(case.pod.labels))
        if mine - fewest > constraint.max_skew:
            return rejected("node(s) didn't match pod topology spread constraints")
    return fits_unless()


def scores(case: Case, feasible: Sequence[Node]) -> dict[str, int] | None:
    soft = constraints(case, "ScheduleAnyway")
    if not soft:
        return None
    require_all = bool(case.pod.spec.topology_spread_constraints) or case.args is not None
    keys = [constraint.topology_key for constraint, _ in soft]

    def keyed(node: Node) -> bool:
        return all(key in node.metadata.labels for key in keys)

    kept = [node for node in feasible if not require_all or keyed(node)]
    raw = {node.name: 0.0 for node in feasible}
    for constraint, selector in soft:
        counts, size = charged(
            case, constraint, selector, kept, [n for n in case.cluster.nodes if not require_all or keyed(n)]
        )
        weight = natural_log(size + 2)
        for node in feasible:
            value = node.metadata.labels.get(constraint.topology_key)
            if value is not None:
                count = pods_meant(case, selector, node) if constraint.topology_key == HOST else counts[value]
                raw[node.name] += count * weight + (constraint.max_skew - 1)
    rounded = {name: _half_up(score) for name, score in raw.items()}
    return normalized({node.name: rounded[node.name] for node in kept}, [node.name for node in feasible])


def charged(
    case: Case, constraint: TopologySpreadConstraint, selector: LabelMatcher, kept: list[Node], counted: list[Node]
) -> tuple[Counter[str], int]:
    if constraint.topology_key == HOST:
        return Counter(), len(kept)
    values = {node.metadata.labels.get(constraint.topology_key, "") for node in kept}
    counts: Counter[str] = Counter()
    for node in counted:
        value = node.metadata.labels.get(constraint.topology_key)
        if value in values and included(constraint, case.pod, node):
            counts[str(value)] += pods_meant(case, selector, node)
    return counts, len(values)


def normalized(kept: dict[str, int], names: list[str]) -> dict[str, int]:
    largest, least = max(kept.values(), default=0), min(kept.values(), default=0)
    if largest <= 0:
        return {name: 100 if name in kept else 0 for name in names}
    return {name: 100 * (largest + least - kept[name]) // largest if name in kept else 0 for name in names}


def _half_up(score: float) -> int:
    whole = math.floor(score)
    return whole + (score - whole >= 0.5)


# random cases

APPS = st.sampled_from(({}, {"app": "web"}, {"app": "web", "version": "2"}, {"app": "db"}))
SELECTORS = st.sampled_from(
    (
        None,
        LabelSelector(),
        LabelSelector(match_labels={"app": "web"}),
        LabelSelector(match_labels={"app": "web"}),
        LabelSelector(match_expressions=(LabelSelectorRequirement(key="version", operator="DoesNotExist"),)),
    )
)
CONSTRAINTS = st.builds(
    TopologySpreadConstraint,
    max_skew=st.integers(1, 3),
    topology_key=st.sampled_from((HOST, ZONE, "rack")),
    when_unsatisfiable=st.sampled_from(("DoNotSchedule", "ScheduleAnyway")),
    label_selector=SELECTORS,
    min_domains=st.sampled_from((None, None, 1, 3)),
    node_affinity_policy=st.sampled_from((None, "Honor", "Ignore")),
    node_taints_policy=st.sampled_from((None, "Honor", "Ignore")),
    match_label_keys=st.sampled_from(((), (), ("version",), ("nobody",))),
)
NAMESPACES = st.sampled_from(("default", "default", "default", "other"))
LISTED = st.builds(
    arguments.PodTopologySpreadArgs,
    default_constraints=st.lists(
        st.builds(
            arguments.TopologySpreadConstraint,
            max_skew=st.integers(1, 2),
            topology_key=st.sampled_from((HOST, ZONE, "rack")),
            when_unsatisfiable=st.sampled_from(("DoNotSchedule", "ScheduleAnyway")),
        ),
        max_size=2,
    ).map(tuple),
    defaulting_type=st.just("List"),
)
OWNER = OwnerReference(kind="ReplicaSet", name="rs", api_version="apps/v1", controller=True)
OBJECTS = st.sampled_from(
    (
        (),
        (Service(metadata=ObjectMeta(name="s", namespace="default"), spec=ServiceSpec(selector={"app": "web"})),),
        (
            Service(metadata=ObjectMeta(name="s", namespace="default"), spec=ServiceSpec(selector={})),
            Service(metadata=ObjectMeta(name="t", namespace="other"), spec=ServiceSpec(selector={"app": "web"})),
            ReplicaSet(
                metadata=ObjectMeta(name="rs", namespace="default"),
                spec=ReplicaSetSpec(selector=LabelSelector(match_labels={"version": "2"})),
            ),
        ),
    )
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 5))
    nodes = tuple(draw(_node(f"n{number}")) for number in range(count))
    pods = tuple(draw(_placed(f"p{number}", count)) for number in range(draw(st.integers(0, 7))))
    tolerated = (Toleration(key="t", operator="Exists"),)
    pod = make_pod(
        "incoming",
        labels=draw(APPS),
        owner=draw(st.sampled_from((None, OWNER))),
        topology_spread_constraints=tuple(draw(st.lists(CONSTRAINTS, max_size=3))),
        tolerations=draw(st.sampled_from(((), tolerated))),
        affinity=Affinity(node_affinity=draw(_affinity())),
    )
    return Case(pod, Cluster(nodes, pods, draw(OBJECTS)), draw(st.none() | LISTED))


def _affinity() -> st.SearchStrategy[NodeAffinity | None]:
    return st.none() | node_affinities(SOUND_TERMS)


@st.composite
def _node(draw: st.DrawFn, name: str) -> Node:
    zones = st.sampled_from(("z1", "z2", "z3"))
    labels: dict[str, Any] = {HOST: name, ZONE: draw(zones), "rack": draw(zones), "disk": draw(st.sampled_from("ab"))}
    for key in draw(st.sets(st.sampled_from((HOST, ZONE, "rack")), max_size=1)):
        del labels[key]
    return make_node(
        name, labels=labels, taints=draw(st.sampled_from(((), (), (taint("t"),), (taint("u", "NoExecute"),))))
    )


@st.composite
def _placed(draw: st.DrawFn, name: str, nodes: int) -> Pod:
    return make_pod(
        name,
        namespace=draw(NAMESPACES),
        labels=draw(APPS),
        node=f"n{draw(st.integers(0, nodes - 1))}",
        terminating=draw(st.sampled_from((False, False, True))),
    )


TWIN = Twin(PodTopologySpread, cases(), judge, scores)
