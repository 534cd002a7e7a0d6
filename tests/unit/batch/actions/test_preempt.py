from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.actions.preempt import PreemptSettings
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.framework.api.status import Status, unresolvable, unschedulable
from bayplan.objects.core import Container, ContainerPort, Pod, ResourceRequirements
from bayplan.objects.meta import Condition, KubeObject, ObjectMeta
from bayplan.objects.volcano.types import NetworkTopology
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import NOW, make_group, make_member, make_queue
from support.builders.batch_engines import build_engine

CONF = """\
actions: "allocate, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: predicates
  - name: nodeorder
"""
TOPOLOGY_AWARE = """\
configurations:
- name: preempt
  arguments:
    enableTopologyAwarePreemption: true
    minCandidateNodesPercentage: 100
"""
ONE = {"cpu": "1"}
NOT_PREEMPTABLE = {"volcano.sh/preemptable": "false"}


def classes() -> list[KubeObject]:
    return [
        PriorityClass(metadata=ObjectMeta(name="high"), value=100),
        PriorityClass(metadata=ObjectMeta(name="low"), value=1),
    ]


def running(name: str, **options: Any) -> KubeObject:
    return make_group(name, phase="Running", **{"priority_class_name": "low", "min_member": 0, **options})


def waiting(name: str, **options: Any) -> KubeObject:
    return make_group(name, phase="Inqueue", **{"priority_class_name": "high", **options})


def pod(
    name: str, group: str, *, priority: int | None = None, spec: Any = None, status: Any = None, **rest: Any
) -> Pod:
    member = make_member(name, group, **{"requests": ONE, **rest})
    changes = {"priority": priority, **(spec or {})}
    return replace(member, spec=replace(member.spec, **changes), status=replace(member.status, **(status or {})))


def run(
    pods: list[Pod], objects: list[KubeObject], *, conf: str = CONF, nodes: Any = None, **world: Any
) -> SessionResult:
    nodes = [make_node("a", cpu=2)] if nodes is None else nodes
    return build_engine(conf=conf, nodes=nodes, pods=pods, objects=[*classes(), *objects], **world).run_session()


def names(found: dict[str, str]) -> set[str]:
    return {key.removeprefix("default/") for key in found}


FULL = [pod("low-w-0", "low", node="a"), pod("low-w-1", "low", node="a")]


# Between jobs


def test_a_lower_priority_task_is_evicted_and_the_preemptor_is_pipelined() -> None:
    outcome = run([*FULL, pod("new", "new")], [running("low"), waiting("new")])
    assert outcome.evicts == {"default/low-w-1": "preempt"}
    assert outcome.pipelined == {"default/new": "a"}
    assert outcome.messages["default/new"].nominated_node == "a"


@pytest.mark.parametrize(
    ("victims", "groups"),
    [
        pytest.param(FULL, [running("low", priority_class_name="high")], id="as-important"),
        pytest.param(FULL, [running("low", queue="other"), make_queue("other")], id="of-another-queue"),
        pytest.param(FULL, [running("low", min_member=2)], id="a-gang-at-its-minimum"),
        pytest.param(
            [pod(f"low-w-{each}", "low", node="a", annotations=NOT_PREEMPTABLE) for each in range(2)],
            [running("low")],
            id="not-preemptable",
        ),
        pytest.param(
            [
                pod(f"low-w-{each}", "low", node="a", spec={"priority_class_name": "system-node-critical"})
                for each in (0, 1)
            ],
            [running("low")],
            id="critical",
        ),
        pytest.param([pod(f"low-w-{each}", "", node="a") for each in range(2)], [], id="of-no-group"),
    ],
)
def test_tasks_that_are_not_evicted(victims: list[Pod], groups: list[KubeObject]) -> None:
    outcome = run([*victims, pod("new", "new")], [*groups, waiting("new")])
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_gang_that_cannot_start_evicts_no_task() -> None:
    outcome = run(
        [*FULL, *(pod(f"new-w-{each}", "new") for each in range(3))], [running("low"), waiting("new", min_member=3)]
    )
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_gang_evicts_no_more_than_it_needs_to_start() -> None:
    pods = [pod(f"low-w-{each}", "low", node="a") for each in range(4)]
    new = [pod(f"new-w-{each}", "new") for each in range(3)]
    conf = CONF.replace("  - name: priority\n", "  - name: priority\n    enableJobStarving: false\n")
    outcome = run(
        [*pods, *new], [running("low"), waiting("new", min_member=2)], nodes=[make_node("a", cpu=4)], conf=conf
    )
    assert names(outcome.pipelined) == {"new-w-0", "new-w-1"}
    assert names(outcome.evicts) == {"low-w-2", "low-w-3"}


def test_resources_that_are_being_released_need_no_victim() -> None:
    leaving = pod("leaving", "low", node="a")
    leaving = replace(leaving, metadata=replace(leaving.metadata, deletion_timestamp=NOW))
    pods = [leaving, pod("low-w-1", "low", node="a"), pod("new", "new")]
    conf = CONF.replace("allocate, preempt", "preempt")
    outcome = run(pods, [running("low"), waiting("new")], conf=conf)
    assert not outcome.evicts
    assert outcome.pipelined == {"default/new": "a"}
    assert not outcome.messages["default/new"].nominated_node


def test_a_best_effort_preemptor_evicts_only_best_effort_tasks() -> None:
    node = make_node("a", capacity={"pods": 2})
    pods = [pod("asks", "low", node="a"), pod("idle", "low", node="a", requests={}), pod("new", "new", requests={})]
    conf = CONF.replace("allocate, preempt", "preempt")
    outcome = run(pods, [running("low"), waiting("new")], nodes=[node], conf=conf)
    assert names(outcome.evicts) == {"idle"}
    assert not outcome.messages["default/new"].nominated_node  # the victims have no requests


def test_jobs_with_a_network_topology_do_not_preempt() -> None:
    group = waiting("new", network_topology=NetworkTopology(mode="soft"))
    assert not run([*FULL, pod("new", "new")], [running("low"), group]).evicts


def test_gated_tasks_wait() -> None:
    pods = [*FULL, pod("new", "new", gates=["example.com/hold"])]
    assert not run(pods, [running("low"), waiting("new", min_member=0)]).evicts


# Within a job


def test_a_task_preempts_lower_priority_tasks_of_its_own_job() -> None:
    pods = [
        pod("job-w-0", "job", node="a", priority=1),
        pod("job-w-1", "job", node="a", priority=5),
        pod("job-w-2", "job", priority=9),
    ]
    conf = CONF.replace(
        "  - name: gang\n", "  - name: gang\n    enablePreemptable: false\n    enableJobStarving: false\n"
    )
    outcome = run(pods, [running("job", min_member=3)], conf=conf)
    assert outcome.evicts == {"default/job-w-0": "preempt"}
    assert outcome.pipelined == {"default/job-w-2": "a"}


# Eligible preemptors

PREEMPTED = Condition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")


def _nominated_before(*, leaving: bool = True, condition: Condition = PREEMPTED, priority: int = 0) -> list[Pod]:
    """Two nodes: `a` was cleared for the task by an earlier session, `b` can be cleared now."""
    old = pod("old", "low", node="a", priority=priority, status={"conditions": (condition,)})
    if leaving:
        old = replace(old, metadata=replace(old.metadata, deletion_timestamp=NOW))
    return [old, pod("low-w-1", "low", node="b")]


@pytest.mark.parametrize(
    ("pods", "spec", "status", "preempts"),
    [
        pytest.param(_nominated_before(), {}, {}, True, id="no-nomination"),
        pytest.param(_nominated_before(), {"preemption_policy": "Never"}, {}, False, id="preemption-policy-never"),
        pytest.param(_nominated_before(), {}, {"nominated_node_name": "gone"}, False, id="nominated-node-is-gone"),
        pytest.param(_nominated_before(), {}, {"nominated_node_name": "a"}, False, id="a-victim-is-still-leaving"),
        pytest.param(
            _nominated_before(leaving=False), {}, {"nominated_node_name": "a"}, True, id="no-victim-is-leaving"
        ),
        pytest.param(
            _nominated_before(condition=Condition(type="DisruptionTarget", status="True", reason="EvictionByAPI")),
            {},
            {"nominated_node_name": "a"},
            True,
            id="leaves-for-another-reason",
        ),
        pytest.param(
            _nominated_before(priority=50), {}, {"nominated_node_name": "a"}, True, id="a-higher-priority-pod-leaves"
        ),
        pytest.param(_nominated_before(), {}, {"nominated_node_name": "b"}, False, id="the-node-is-feasible-already"),
        pytest.param(_nominated_before(), {}, {"nominated_node_name": "c"}, True, id="the-node-is-no-longer-possible"),
    ],
)
def test_eligible_preemptors(pods: list[Pod], spec: Any, status: Any, preempts: bool) -> None:
    port = {"containers": (_with_port(),)}
    nodes = [make_node("a", cpu=1), make_node("b", cpu=1), make_node("c", cpu=1, unschedulable=True)]
    pods = [replace(pods[0], spec=replace(pods[0].spec, **port)), pods[1]]
    new = pod("new", "new", priority=10, spec={**port, **spec}, status=status)
    conf = CONF.replace("allocate, preempt", "preempt")
    outcome = run([*pods, new], [running("low"), waiting("new")], nodes=nodes, conf=conf)
    assert bool(outcome.pipelined) is preempts


def _with_port() -> Container:
    ports = (ContainerPort(container_port=80, host_port=80, protocol="TCP"),)
    return Container(ports=ports, resources=ResourceRequirements(requests=ONE))


class RejectsFirstTask:
    """Rejects the task new-w-0 on every node."""

    name = "rejects-first-task"
    unresolvable_rejection = True

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        session.add_predicate_fn(self.name, self._reject)

    def _reject(self, task: Task, node: object) -> Status | None:  # noqa: ARG002
        if task.name != "new-w-0":
            return None
        return unresolvable("not this one") if self.unresolvable_rejection else unschedulable("not this one")


class RejectsFirstTaskResolvably(RejectsFirstTask):
    unresolvable_rejection = False


@pytest.mark.parametrize(
    ("plugin", "role", "cached", "placed"),
    [
        pytest.param(RejectsFirstTask, "worker", True, set(), id="a-failed-node-fails-the-role"),
        pytest.param(RejectsFirstTask, "worker", False, {"new-w-1"}, id="cache-disabled"),
        pytest.param(RejectsFirstTask, "", True, {"new-w-1"}, id="no-role"),
        pytest.param(RejectsFirstTaskResolvably, "worker", True, {"new-w-0"}, id="resolvable-by-eviction"),
    ],
)
def test_infeasible_nodes_are_cached_by_role(
    plugin: type[RejectsFirstTask], role: str, cached: bool, placed: set[str]
) -> None:
    conf = CONF.replace("allocate, preempt", "preempt").replace(
        "  - name: nodeorder\n", "  - name: rejects-first-task\n"
    )
    conf += f"configurations:\n- name: preempt\n  arguments:\n    predicateErrorCacheEnable: {str(cached).lower()}\n"
    annotations = {"volcano.sh/task-spec": role} if role else {}
    new = [pod(f"new-w-{each}", "new", annotations=annotations) for each in range(2)]
    outcome = run(
        [pod("low-w-0", "low", node="a"), *new],
        [running("low"), waiting("new")],
        conf=conf,
        nodes=[make_node("a", cpu=1)],
        plugins=default_batch_plugins().with_plugins(plugin),
    )
    assert names(outcome.pipelined) == placed


# Topology-aware preemption


def _two_nodes(first: list[Pod], second: list[Pod], cpu: str = "1") -> SessionResult:
    nodes = [make_node("a", cpu=2), make_node("b", cpu=2)]
    new = pod("new", "new", requests={"cpu": cpu})
    return run([*first, *second, new], [running("low"), waiting("new")], conf=CONF + TOPOLOGY_AWARE, nodes=nodes)


def _victims(node: str, *priorities: int, cpu: str = "1", age_s: int = 0) -> list[Pod]:
    started = NOW - timedelta(seconds=age_s)
    return [
        pod(
            f"{node}-w-{number}",
            "low",
            node=node,
            priority=priority,
            requests={"cpu": cpu},
            status={"start_time": started},
        )
        for number, priority in enumerate(priorities)
    ]


@pytest.mark.parametrize(
    ("first", "second", "cpu", "evicted"),
    [
        pytest.param(_victims("a", 7, 7), _victims("b", 3, 8), "1", {"b-w-0"}, id="the-lowest"),
        pytest.param(_victims("a", 3, 3), _victims("b", 3, cpu="2"), "2", {"b-w-0"}, id="the-fewest"),
        pytest.param(_victims("a", 3, 4), _victims("b", 4, 1), "2", {"b-w-0", "b-w-1"}, id="the-smallest-sum"),
        pytest.param(
            _victims("a", 3, 3, age_s=60), _victims("b", 3, 3, age_s=10), "1", {"b-w-1"}, id="the-latest-start"
        ),
    ],
)
def test_the_node_with_the_cheapest_victims_is_chosen(
    first: list[Pod], second: list[Pod], cpu: str, evicted: set[str]
) -> None:
    outcome = _two_nodes(first, second, cpu)
    assert names(outcome.evicts) == evicted
    assert set(outcome.pipelined) == {"default/new"}


def test_an_unneeded_victim_is_reprieved() -> None:
    small, large = pod("a-w-0", "low", node="a", requests={"cpu": "500m"}, priority=1), _victims("a", 2, cpu="1500m")[0]
    large = replace(large, metadata=replace(large.metadata, name="a-w-9", uid="large"))
    outcome = _two_nodes(
        [small, large], [pod("kept", "low", node="b", requests={"cpu": "2"}, annotations=NOT_PREEMPTABLE)]
    )
    assert names(outcome.evicts) == {"a-w-9"}  # the small one was removed first and then reprieved


# Settings


@pytest.mark.parametrize(
    ("settings", "nodes", "wanted"),
    [
        pytest.param(PreemptSettings(), 5, 1, id="at-least-one"),
        pytest.param(PreemptSettings(), 200, 20, id="a-tenth"),
        pytest.param(PreemptSettings(), 5000, 100, id="at-most-the-maximum"),
        pytest.param(PreemptSettings(min_percentage=100), 7, 7, id="all"),
        pytest.param(PreemptSettings(min_absolute=50), 7, 7, id="at-most-all-nodes"),
        pytest.param(PreemptSettings(max_absolute=0), 7, 0, id="none"),
    ],
)
def test_number_of_compared_nodes(settings: PreemptSettings, nodes: int, wanted: int) -> None:
    assert settings.candidate_count(nodes) == wanted


def test_a_removed_key_keeps_its_last_value() -> None:
    first = PreemptSettings().with_arguments(
        Arguments({"minCandidateNodesAbsolute": 3, "predicateErrorCacheEnable": "false"})
    )
    second = first.with_arguments(Arguments({"maxCandidateNodesAbsolute": 5}))
    assert second == PreemptSettings(caches_errors=False, min_absolute=3, max_absolute=5)
