"""Topology spread: constraints, filter, scores and hints."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.framework.api.status import SKIP, Code
from bayplan.objects.core import (
    Node,
    Pod,
    ReplicationController,
    ReplicationControllerSpec,
    Service,
    ServiceSpec,
    Toleration,
    TopologySpreadConstraint,
)
from bayplan.objects.meta import KubeObject, LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference
from bayplan.objects.workloads import ReplicaSet, ReplicaSetSpec, StatefulSet, StatefulSetSpec
from bayplan.plugins.pod_topology_spread import args as arguments
from bayplan.plugins.pod_topology_spread.constraints import default_selector
from bayplan.plugins.pod_topology_spread.plugin import HARD_STATE, PodTopologySpread
from bayplan.snapshot import Catalog
from support.builders.framework import (
    FEASIBLE,
    FakeHandle,
    errored,
    evaluate_hints,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_pod,
    make_snapshot,
    rejected,
    replace_fields,
    run_filter,
    run_score,
    taint,
    unresolvable,
)

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
SKEW = rejected("node(s) didn't match pod topology spread constraints")
KEYLESS = unresolvable("node(s) didn't match pod topology spread constraints (missing required label)")
WEB = LabelSelector(match_labels={"app": "web"})
MALFORMED = LabelSelector(match_expressions=(LabelSelectorRequirement(key="a", operator="Nope"),))


def hard(key: str = ZONE, **fields: Any) -> TopologySpreadConstraint:
    fields = {"max_skew": 1, "label_selector": WEB, "when_unsatisfiable": "DoNotSchedule", **fields}
    return TopologySpreadConstraint(topology_key=key, **fields)


def soft(key: str = ZONE, **fields: Any) -> TopologySpreadConstraint:
    return hard(key, when_unsatisfiable="ScheduleAnyway", **fields)


def web(name: str = "incoming", *constraints: TopologySpreadConstraint, node: str = "", **fields: Any) -> Pod:
    return make_pod(name, labels={"app": "web"}, node=node, topology_spread_constraints=constraints, **fields)


def node(name: str, zone: str = "", **fields: Any) -> Node:
    labels = {HOST: name, **({ZONE: zone} if zone else {})}
    return make_node(name, labels=labels, **fields)


A, B, C = node("a", "z1"), node("b", "z2"), node("c")


def on(**counts: int) -> list[Pod]:
    """Return these numbers of pods of the app on each node."""
    return [web(f"{name}{number}", node=name) for name, count in counts.items() for number in range(count)]


# filtering


@pytest.mark.parametrize(
    ("constraints", "counts", "answers"),
    [
        pytest.param((hard(),), {}, [FEASIBLE, FEASIBLE, KEYLESS], id="nobody-yet"),
        pytest.param((hard(),), {"a": 1}, [SKEW, FEASIBLE, KEYLESS], id="one-ahead"),
        pytest.param((hard(max_skew=2),), {"a": 1}, [FEASIBLE, FEASIBLE, KEYLESS], id="wider-skew"),
        pytest.param((hard(),), {"a": 1, "b": 1}, [FEASIBLE, FEASIBLE, KEYLESS], id="even"),
        pytest.param((hard(),), {"c": 9}, [FEASIBLE, FEASIBLE, KEYLESS], id="nodes-without-the-key-do-not-count"),
        pytest.param((hard(min_domains=3),), {"a": 1, "b": 1}, [SKEW, SKEW, KEYLESS], id="too-few-domains"),
        pytest.param((hard(min_domains=2),), {"a": 1, "b": 1}, [FEASIBLE, FEASIBLE, KEYLESS], id="enough-domains"),
        pytest.param((hard(HOST),), {"c": 1}, [FEASIBLE, FEASIBLE, SKEW], id="by-host"),
        pytest.param((hard(), hard(HOST)), {"a": 1}, [SKEW, FEASIBLE, KEYLESS], id="two-constraints"),
        pytest.param(
            (hard(HOST), hard()), {"c": 1}, [FEASIBLE, FEASIBLE, KEYLESS], id="only-nodes-with-all-keys-count"
        ),
        pytest.param((soft(),), {"a": 9}, [FEASIBLE, FEASIBLE, FEASIBLE], id="soft-ones-refuse-nobody"),
        pytest.param(
            (hard(label_selector=None),), {"a": 9}, [FEASIBLE, FEASIBLE, KEYLESS], id="no-selector-means-nobody"
        ),
        pytest.param(
            (hard(label_selector=LabelSelector()),),
            {"a": 9},
            [FEASIBLE, FEASIBLE, KEYLESS],
            id="an-empty-selector-counts-nobody-but-the-pod-itself",
        ),
        pytest.param(
            (hard(match_label_keys=("version",)),),
            {"a": 5},
            [SKEW, FEASIBLE, KEYLESS],
            id="keys-the-pod-lacks-are-ignored",
        ),
    ],
)
def test_skew(constraints: tuple[TopologySpreadConstraint, ...], counts: dict[str, int], answers: list[Any]) -> None:
    pod = web("incoming", *constraints)
    found = run_filter(PodTopologySpread, pod, A, B, C, pods=on(**counts))
    assert found == dict(zip("abc", answers, strict=True))


def test_a_pod_that_its_own_constraint_does_not_match() -> None:
    pod = make_pod("incoming", labels={"app": "db"}, topology_spread_constraints=(hard(),))
    assert run_filter(PodTopologySpread, pod, A, B, pods=on(a=1)) == {"a": FEASIBLE, "b": FEASIBLE}


def test_terminating_pods_and_other_namespaces_do_not_count() -> None:
    pods = [web("going", node="a", terminating=True), web("foreign", node="a", namespace="other")]
    assert run_filter(PodTopologySpread, web("incoming", hard()), A, B, pods=pods) == {"a": FEASIBLE, "b": FEASIBLE}


def test_values_of_the_pods_own_labels_narrow_the_selector() -> None:
    pod = make_pod(
        labels={"app": "web", "version": "2"}, topology_spread_constraints=(hard(match_label_keys=("version",)),)
    )
    assert run_filter(PodTopologySpread, pod, A, B, pods=on(a=3)) == {"a": FEASIBLE, "b": FEASIBLE}


def test_nodes_that_the_pod_cannot_use_do_not_count() -> None:
    pod = web("incoming", hard(), node_selector={HOST: "a"})
    assert run_filter(PodTopologySpread, pod, A, B, pods=on(a=3))["a"] == FEASIBLE, "z2 is no domain for this pod"
    counted = web("incoming", hard(node_affinity_policy="Ignore"), node_selector={HOST: "a"})
    assert run_filter(PodTopologySpread, counted, A, B, pods=on(a=3))["a"] == SKEW


def test_tainted_nodes_count_unless_taints_are_honored() -> None:
    tainted = node("b", "z2", taints=[taint("t")])
    assert run_filter(PodTopologySpread, web("incoming", hard()), A, tainted, pods=on(a=1))["a"] == SKEW
    honoring = hard(node_taints_policy="Honor")
    assert run_filter(PodTopologySpread, web("incoming", honoring), A, tainted, pods=on(a=1))["a"] == FEASIBLE
    tolerating = web("incoming", honoring, tolerations=(Toleration(key="t", operator="Exists"),))
    assert run_filter(PodTopologySpread, tolerating, A, tainted, pods=on(a=1))["a"] == SKEW


def test_a_pod_without_constraints_is_skipped() -> None:
    plugin = make_plugin(PodTopologySpread)
    assert plugin.pre_filter(make_cycle(make_pod())) is SKIP
    assert plugin.pre_filter(make_cycle(web("incoming", soft()))) is SKIP


def test_a_malformed_selector_is_an_error() -> None:
    plugin = make_plugin(PodTopologySpread)
    status = plugin.pre_filter(make_cycle(web("incoming", hard(label_selector=MALFORMED))))
    assert status.code is Code.ERROR
    assert status.message.startswith("obtaining pod's hard topology spread constraints: ")
    cycle = make_cycle(web("incoming", soft(label_selector=MALFORMED)))
    status = plugin.pre_score(cycle, cycle.snapshot.table)
    assert status.message.startswith("obtaining pod's soft topology spread constraints: ")


def test_filter_without_pre_filter_is_an_error() -> None:
    snapshot = make_snapshot([A])
    cycle = make_cycle(web("incoming", hard()), snapshot)
    status = make_filtering(make_plugin(PodTopologySpread)).filter_table(cycle, snapshot.table).status(0)
    expected = (
        'running "PodTopologySpread" filter plugin: reading "PreFilterPodTopologySpread" from cycleState: not found'
    )
    assert (status.code.label, status.reasons) == errored(expected)


def test_a_removed_pod_that_never_counted_lowers_the_count_nevertheless() -> None:
    going = web("going", node="a", terminating=True)
    snapshot = make_snapshot([A, B], [going])
    filtering, cycle = make_filtering(make_plugin(PodTopologySpread)), make_cycle(web("incoming", hard()), snapshot)
    filtering.pre_filter(cycle)
    fork = snapshot.nodes.fork([0])
    filtering.remove_pod(cycle, fork, fork.pods[0][0])
    (domains,) = cycle.get(HARD_STATE).domains
    assert domains.minimum() == -1


# defaults


def service(selector: dict[str, str], namespace: str = "default") -> Service:
    return Service(
        metadata=ObjectMeta(name=f"s{len(selector)}", namespace=namespace), spec=ServiceSpec(selector=selector)
    )


def named(name: str = "owner") -> ObjectMeta:
    return ObjectMeta(name=name, namespace="default")


def owned(kind: str, api_version: str, *, controller: bool = True) -> Pod:
    owner = OwnerReference(kind=kind, name="owner", api_version=api_version, controller=controller)
    return make_pod(labels={"app": "web", "tier": "1"}, owner=owner)


@pytest.mark.parametrize(
    ("pod", "objects", "matching"),
    [
        pytest.param(web(), [], None, id="belongs-to-nothing"),
        pytest.param(web(), [service({"app": "web"})], {"app": "web"}, id="service"),
        pytest.param(web(), [service({"app": "db"})], None, id="service-of-others"),
        pytest.param(web(), [service({"app": "web"}, "other")], None, id="service-elsewhere"),
        pytest.param(web(), [service({})], None, id="service-without-a-selector"),
        pytest.param(
            owned("ReplicaSet", "apps/v1"),
            [ReplicaSet(metadata=named(), spec=ReplicaSetSpec(selector=WEB))],
            {"app": "web"},
            id="replica-set",
        ),
        pytest.param(
            owned("ReplicaSet", "apps/v1"),
            [service({"tier": "1"}), ReplicaSet(metadata=named(), spec=ReplicaSetSpec(selector=WEB))],
            {"app": "web", "tier": "1"},
            id="service-and-replica-set",
        ),
        pytest.param(
            owned("StatefulSet", "apps/v1"),
            [StatefulSet(metadata=named(), spec=StatefulSetSpec(selector=WEB))],
            {"app": "web"},
            id="stateful-set",
        ),
        pytest.param(
            owned("ReplicationController", "v1"),
            [ReplicationController(metadata=named(), spec=ReplicationControllerSpec(selector={"app": "web"}))],
            {"app": "web"},
            id="replication-controller",
        ),
        pytest.param(owned("ReplicaSet", "apps/v1"), [], None, id="owner-is-gone"),
        pytest.param(
            owned("ReplicaSet", "extensions/v1beta1"),
            [ReplicaSet(metadata=named(), spec=ReplicaSetSpec(selector=WEB))],
            None,
            id="another-version-of-the-kind",
        ),
        pytest.param(
            owned("ReplicaSet", "apps/v1", controller=False),
            [ReplicaSet(metadata=named(), spec=ReplicaSetSpec(selector=WEB))],
            None,
            id="an-owner-that-does-not-control",
        ),
        pytest.param(
            owned("ReplicaSet", "apps/v1"),
            [ReplicaSet(metadata=named(), spec=ReplicaSetSpec(selector=None))],
            None,
            id="an-owner-that-selects-nothing",
        ),
        pytest.param(
            owned("ReplicaSet", "apps/v1"),
            [service({"app": "web"}), ReplicaSet(metadata=named(), spec=ReplicaSetSpec(selector=MALFORMED))],
            {"app": "web"},
            id="an-owner-whose-selector-makes-no-sense-adds-nothing",
        ),
    ],
)
def test_default_selector(pod: Pod, objects: list[KubeObject], matching: dict[str, str] | None) -> None:
    selector = default_selector(pod, Catalog(objects))
    if matching is None:
        assert selector.everything
        return
    assert selector.matches(matching)
    for key in matching:
        assert not selector.matches({**matching, key: "other"})


LISTED = arguments.PodTopologySpreadArgs(
    defaulting_type="List",
    default_constraints=(
        arguments.TopologySpreadConstraint(max_skew=1, topology_key=ZONE, when_unsatisfiable="DoNotSchedule"),
    ),
)


def test_listed_defaults_may_reject() -> None:
    found = run_filter(PodTopologySpread, web(), A, B, pods=on(a=1), objects=[service({"app": "web"})], args=LISTED)
    assert found == {"a": SKEW, "b": FEASIBLE}


def test_own_constraints_replace_the_defaults_altogether() -> None:
    pod = web("incoming", soft())
    found = run_filter(PodTopologySpread, pod, A, B, pods=on(a=5), objects=[service({"app": "web"})], args=LISTED)
    assert found == {"a": FEASIBLE, "b": FEASIBLE}


# scoring


@pytest.mark.parametrize(
    ("constraints", "counts", "scores"),
    [
        pytest.param((soft(),), {}, {"a": 100, "b": 100, "c": 0}, id="nobody-yet"),
        pytest.param((soft(),), {"a": 1}, {"a": 0, "b": 100, "c": 0}, id="one-ahead"),
        pytest.param((soft(),), {"a": 3, "b": 1}, {"a": 25, "b": 100, "c": 0}, id="least-gets-most"),
        pytest.param((soft(max_skew=5),), {"a": 1}, {"a": 80, "b": 100, "c": 0}, id="skew-softens"),
        pytest.param((soft(HOST),), {"a": 2, "c": 1}, {"a": 0, "b": 100, "c": 33}, id="by-host"),
        pytest.param((soft(), soft(HOST)), {"a": 2}, {"a": 0, "b": 100, "c": 0}, id="both"),
    ],
)
def test_scores(
    constraints: tuple[TopologySpreadConstraint, ...], counts: dict[str, int], scores: dict[str, int]
) -> None:
    assert run_score(PodTopologySpread, web("incoming", *constraints), A, B, C, pods=on(**counts)) == scores


def test_system_defaults_do_not_ignore_nodes_without_a_zone() -> None:
    scores = run_score(PodTopologySpread, web(), A, B, C, pods=on(a=2), objects=[service({"app": "web"})])
    # ln 5 = 1.609 for both keys: a 2*1.609+2 + 2*1.609+4 = 12, b 2+4 = 6, c has no zone and 2 for its host
    assert scores == {"a": 16, "b": 66, "c": 100}


def test_nothing_to_score() -> None:
    assert run_score(PodTopologySpread, web("incoming", hard()), A, B) == {}
    assert run_score(PodTopologySpread, web(), A, B) == {}


def test_scores_without_prescore_are_errors() -> None:
    plugin, cycle = make_plugin(PodTopologySpread), make_cycle(web("incoming", soft()))
    expected = 'reading "PreScorePodTopologySpread" from cycleState: not found'
    assert plugin.score_nodes(cycle, cycle.snapshot.table).message == expected
    assert plugin.normalize(cycle, cycle.snapshot.table, None).message == expected


# hints

PENDING = web("incoming", hard())
HONORING = web("incoming", hard(node_taints_policy="Honor"))
NEIGHBOUR = web("neighbour", node="a")
STRANGER = make_pod("neighbour", labels={"app": "db"}, node="a")


@pytest.mark.parametrize(
    ("pod", "old", "new", "hint"),
    [
        pytest.param(PENDING, None, NEIGHBOUR, "Queue", id="a-counted-pod-comes"),
        pytest.param(PENDING, NEIGHBOUR, None, "Queue", id="a-counted-pod-goes"),
        pytest.param(PENDING, None, STRANGER, "Skip", id="another-pod-comes"),
        pytest.param(PENDING, STRANGER, None, "Skip", id="another-pod-goes"),
        pytest.param(PENDING, None, web("x"), "Skip", id="a-pod-on-no-node"),
        pytest.param(PENDING, None, web("x", nominated="a"), "Queue", id="a-nominated-pod"),
        pytest.param(PENDING, None, web("x", node="a", namespace="other"), "Skip", id="another-namespace"),
        pytest.param(PENDING, STRANGER, NEIGHBOUR, "Queue", id="starts-to-count"),
        pytest.param(PENDING, NEIGHBOUR, STRANGER, "Queue", id="stops-to-count"),
        pytest.param(
            PENDING,
            NEIGHBOUR,
            replace_fields(NEIGHBOUR, metadata={"labels": {"app": "web", "x": "y"}}),
            "Skip",
            id="still-counts",
        ),
        pytest.param(PENDING, NEIGHBOUR, NEIGHBOUR, "Skip", id="labels-are-the-same"),
        pytest.param(PENDING, make_pod("neighbour"), NEIGHBOUR, "Skip", id="was-on-no-node-before"),
        pytest.param(
            PENDING,
            PENDING,
            replace_fields(PENDING, metadata={"labels": {"app": "db"}}),
            "Queue",
            id="the-pod-itself-changes",
        ),
        pytest.param(
            PENDING,
            PENDING,
            replace_fields(PENDING, spec={"tolerations": (Toleration(key="t"),)}),
            "Skip",
            id="tolerations-do-not-matter-here",
        ),
        pytest.param(
            HONORING,
            HONORING,
            replace_fields(HONORING, spec={"tolerations": (Toleration(key="t"),)}),
            "Queue",
            id="tolerations-matter-where-taints-are-honoured",
        ),
        pytest.param(web(), None, NEIGHBOUR, "Skip", id="no-hard-constraint"),
    ],
)
def test_pod_hints(pod: Pod, old: Pod | None, new: Pod | None, hint: str) -> None:
    assert evaluate_hints(make_plugin(PodTopologySpread), "Pod", pod, old, new) == [hint]


@pytest.mark.parametrize(
    ("pod", "old", "new", "hint"),
    [
        pytest.param(PENDING, None, A, "Queue", id="a-node-with-the-key-comes"),
        pytest.param(PENDING, None, C, "Skip", id="a-node-without-the-key-comes"),
        pytest.param(PENDING, A, None, "Queue", id="a-node-with-the-key-goes"),
        pytest.param(PENDING, C, None, "Skip", id="a-node-without-the-key-goes"),
        pytest.param(PENDING, node("x"), node("x", "z"), "Queue", id="gets-the-key"),
        pytest.param(PENDING, node("x", "z"), node("x"), "Queue", id="loses-the-key"),
        pytest.param(PENDING, node("x", "z"), node("x", "y"), "Queue", id="moves"),
        pytest.param(PENDING, node("x", "z"), node("x", "z"), "Skip", id="stays"),
        pytest.param(PENDING, node("x", "z"), node("x", "z", taints=[taint("t")]), "Queue", id="taints-change"),
        pytest.param(PENDING, node("x"), node("x", taints=[taint("t")]), "Skip", id="taints-change-without-the-key"),
        pytest.param(web(), None, C, "Queue", id="no-hard-constraint-any-node-comes"),
        pytest.param(web(), node("x"), node("x", taints=[taint("t")]), "Queue", id="no-hard-constraint-taints-change"),
        pytest.param(web(), node("x"), node("x", "z"), "Skip", id="no-hard-constraint-labels-change"),
    ],
)
def test_node_hints(pod: Pod, old: Node | None, new: Node | None, hint: str) -> None:
    assert evaluate_hints(make_plugin(PodTopologySpread), "Node", pod, old, new) == [hint]


def test_hints_of_listed_defaults() -> None:
    handle = FakeHandle(Catalog([service({"app": "web"})]))
    plugin = make_plugin(PodTopologySpread, args=LISTED, handle=handle)
    assert evaluate_hints(plugin, "Pod", web(), None, NEIGHBOUR) == ["Queue"]
    assert evaluate_hints(plugin, "Node", web(), None, C) == ["Skip"]


# signatures


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(web("a", hard()), web("b", hard()), True, id="another-name"),
        pytest.param(web("a", hard()), web("a", soft()), False, id="another-constraint"),
        pytest.param(web("a"), make_pod("a", labels={"app": "db"}), False, id="other-labels"),
        pytest.param(web("a"), web("a", namespace="other"), False, id="another-namespace"),
        pytest.param(web("a"), web("a", node_selector={"x": "y"}), False, id="other-nodes"),
        pytest.param(web("a"), web("a", tolerations=(Toleration(key="t"),)), False, id="other-tolerations"),
        pytest.param(
            owned("ReplicaSet", "apps/v1"), make_pod(labels={"app": "web", "tier": "1"}), False, id="another-owner"
        ),
    ],
)
def test_signatures(one: Pod, other: Pod, same: bool) -> None:
    plugin = make_plugin(PodTopologySpread)
    assert (plugin.signature(one) == plugin.signature(other)) is same
