from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.objects.core import Affinity, ContainerPort, Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from bayplan.objects.meta import LabelSelector
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import GANGS, build_engine

HOST = "kubernetes.io/hostname"
ONLY = GANGS.replace("  - name: nodeorder\n", "")
WEB = LabelSelector(match_labels={"app": "web"})


def hosts(*names: str, **node: Any) -> list[Any]:
    return [make_node(name, labels={HOST: name}, **node) for name in names]


def apart(pod: Pod) -> Pod:
    term = PodAffinityTerm(topology_key=HOST, label_selector=WEB)
    return replace(pod, spec=replace(pod.spec, affinity=Affinity(pod_anti_affinity=PodAffinity(required=(term,)))))


def web(name: str, **pod: Any) -> Pod:
    return make_member(name, labels={"app": "web"}, **pod)


def only_task(session: Session) -> Task:
    (task,) = session.jobs["default/job"].pending.values()
    return task


def reasons(session: Session, node: str) -> list[tuple[str, str]]:
    task, found = only_task(session), session.node(node)
    assert session.pre_predicate(task) is None
    assert found is not None
    return [(status.code.label, status.message) for status in session.predicate(task, found)]


def test_a_full_node_is_filtered_further_and_an_unresolvable_one_is_not() -> None:
    port = ContainerPort(container_port=80, host_port=80, protocol="TCP")
    pod = make_member("p")
    container = replace(pod.spec.containers[0], ports=(port,))
    pod = replace(pod, spec=replace(pod.spec, containers=(container,)))
    taken = replace(make_member("old", "", node="full"), spec=replace(pod.spec, node_name="full"))
    nodes = [*hosts("full", capacity={"pods": 1}), *hosts("tainted", taints=["gpu:NoSchedule"], capacity={"pods": 0})]
    with build_engine(conf=ONLY, nodes=nodes, pods=[pod, taken], objects=[make_group()]).session() as session:
        assert reasons(session, "full") == [
            ("Unschedulable", "node(s) pod number exceeded"),
            ("Unschedulable", "node(s) didn't have free ports for the requested pod ports"),
        ]
        assert reasons(session, "tainted") == [
            ("Unschedulable", "node(s) pod number exceeded"),
            ("UnschedulableAndUnresolvable", "node(s) had untolerated taint(s)"),
        ]


def test_an_argument_disables_a_filter() -> None:
    conf = ONLY.replace(
        "  - name: predicates\n", "  - name: predicates\n    arguments:\n      predicate.TaintTolerationEnable: false\n"
    )
    cluster: dict[str, Any] = {"nodes": hosts("a", taints=["gpu:NoSchedule"]), "pods": [make_member("p")]}
    assert not build_engine(conf=ONLY, **cluster, objects=[make_group()]).run_session().binds
    assert build_engine(conf=conf, **cluster, objects=[make_group()]).run_session().binds


def test_tasks_placed_in_the_session_count_for_later_tasks() -> None:
    pods = [apart(web(f"job-w-{number}")) for number in range(3)]
    outcome = build_engine(conf=ONLY, nodes=hosts("a", "b"), pods=pods, objects=[make_group()]).run_session()
    assert sorted(outcome.binds.values()) == ["a", "b"]


def test_affinity_terms_of_placed_tasks_count_only_on_nodes_that_had_such_pods_at_open() -> None:
    """Upstream lists the nodes of pods with such terms once per session."""
    first = replace(apart(make_member("a-w-0", "first")), status=make_member("x").status)
    second = web("b-w-0")
    groups = [make_group("first"), make_group()]
    outcome = build_engine(conf=ONLY, nodes=hosts("a"), pods=[first, second], objects=groups).run_session()
    assert outcome.binds == {"default/a-w-0": "a", "default/b-w-0": "a"}
    with_terms = replace(apart(make_member("old", "", node="a")), status=make_member("x", node="a").status)
    outcome_with_terms = build_engine(
        conf=ONLY, nodes=hosts("a"), pods=[first, second, with_terms], objects=groups
    ).run_session()
    assert outcome_with_terms.binds == {"default/a-w-0": "a"}


def test_topology_spread_holds_within_a_gang() -> None:
    spread = TopologySpreadConstraint(
        max_skew=1, topology_key=HOST, when_unsatisfiable="DoNotSchedule", label_selector=WEB
    )
    pods = [
        replace(pod, spec=replace(pod.spec, topology_spread_constraints=(spread,)))
        for pod in (web(f"job-w-{number}") for number in range(4))
    ]
    outcome = build_engine(
        conf=ONLY, nodes=hosts("a", "b"), pods=pods, objects=[make_group(min_member=4)]
    ).run_session()
    assert sorted(outcome.binds.values()) == ["a", "a", "b", "b"]


def test_without_enable_predicate_only_best_effort_tasks_are_placed() -> None:
    """Reserve finds no state of PreFilter and fails; only backfill ignores the failure."""
    conf = ONLY.replace("  - name: predicates\n", "  - name: predicates\n    enablePredicate: false\n")
    pods = [make_member("job-w-0"), make_member("job-w-1", requests={})]
    outcome = build_engine(conf=conf, nodes=hosts("a"), pods=pods, objects=[make_group(min_member=0)]).run_session()
    assert list(outcome.binds) == ["default/job-w-1"]


def test_a_prefilter_rejection_is_reported_for_every_node() -> None:
    term = PodAffinityTerm(topology_key=HOST, label_selector=LabelSelector(match_labels={"": "x"}))
    pod = make_member("p")
    pod = replace(pod, spec=replace(pod.spec, affinity=Affinity(pod_affinity=PodAffinity(required=(term,)))))
    spread = TopologySpreadConstraint(max_skew=1, topology_key=HOST, when_unsatisfiable="DoNotSchedule")
    broken = replace(spread, label_selector=LabelSelector(match_labels={"": "x"}))
    pod = replace(pod, spec=replace(pod.spec, affinity=None, topology_spread_constraints=(broken,)))
    outcome = build_engine(conf=ONLY, nodes=hosts("a", "b"), pods=[pod], objects=[make_group()]).run_session()
    message = outcome.messages["default/p"].message
    assert message.startswith("0/2 nodes are unavailable: 2 plugin PodTopologySpread pre-predicates failed ")


@pytest.mark.parametrize("removed", [True, False])
def test_a_simulation_on_one_node_updates_affinity(removed: bool) -> None:
    pods = [apart(web("p")), web("old", node="a")]
    with build_engine(conf=ONLY, nodes=hosts("a"), pods=pods, objects=[make_group()]).session() as session:
        task, node = only_task(session), session.node("a")
        assert node is not None
        assert session.pre_predicate(task) is None
        simulation = Simulation(task, node)
        (victim,) = node.tasks.values()
        if removed:
            assert session.simulate_remove_task(simulation, victim) is None
        found = session.simulate_predicate(simulation)
        assert (found is None) is removed
        if removed:
            session.simulate_add_task(simulation, victim)
            assert session.simulate_predicate(simulation) is not None
