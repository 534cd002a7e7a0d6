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
from support.builders.batch import (
    NOW,
    make_group,
    make_member,
    make_queue,
)
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
KEPT = {"volcano.sh/preemptable": "false"}


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
    made = make_member(name, group, **{"requests": ONE, **rest})
    changes = {"priority": priority, **(spec or {})}
    return replace(made, spec=replace(made.spec, **changes), status=replace(made.status, **(status or {})))


def run(
    pods: list[Pod], objects: list[KubeObject], *, conf: str = CONF, nodes: Any = None, **world: Any
) -> SessionResult:
    nodes = [make_node("a", cpu=2)] if nodes is None else nodes
    return build_engine(conf=conf, nodes=nodes, pods=pods, objects=[*classes(), *objects], **world).run_session()


def names(found: dict[str, str]) -> set[str]:
    return {key.removeprefix("default/") for key in found}


FULL = [pod("low-w-0", "low", node="a"), pod("low-w-1", "low", node="a")]


# between jobs


def test_who_matters_less_goes_and_the_room_is_promised() -> None:
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
            [pod(f"low-w-{each}", "low", node="a", annotations=KEPT) for each in range(2)],
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
def test_who_stays(victims: list[Pod], groups: list[KubeObject]) -> None:
    outcome = run([*victims, pod("new", "new")], [*groups, waiting("new")])
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_gang_that_cannot_start_evicts_nobody() -> None:
    outcome = run(
        [*FULL, *(pod(f"new-w-{each}", "new") for each in range(3))], [running("low"), waiting("new", min_member=3)]
    )
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_gang_takes_no_more_than_it_needs_to_start() -> None:
    pods = [pod(f"low-w-{each}", "low", node="a") for each in range(4)]
    new = [pod(f"new-w-{each}", "new") for each in range(3)]
    conf = CONF.replace("  - name: priority\n", "  - name: priority\n    enableJobStarving: false\n")
    outcome = run(
        [*pods, *new], [running("low"), waiting("new", min_member=2)], nodes=[make_node("a", cpu=4)], conf=conf
    )
    assert names(outcome.pipelined) == {"new-w-0", "new-w-1"}
    assert names(outcome.evicts) == {"low-w-2", "low-w-3"}


def test_room_that_is_being_released_needs_no_victim() -> None:
    leaving = pod("leaving", "low", node="a")
    leaving = replace(leaving, metadata=replace(leaving.metadata, deletion_timestamp=NOW))
    pods = [leaving, pod("low-w-1", "low", node="a"), pod("new", "new")]
    conf = CONF.replace("allocate, preempt", "preempt")
    outcome = run(pods, [running("low"), waiting("new")], conf=conf)
    assert not outcome.evicts
    assert outcome.pipelined == {"default/new": "a"}
    assert not outcome.messages["default/new"].nominated_node


def test_who_asks_for_nothing_takes_nothing_from_those_who_do() -> None:
    node = make_node("a", capacity={"pods": 2})
    pods = [pod("asks", "low", node="a"), pod("idle", "low", node="a", requests={}), pod("new", "new", requests={})]
    conf = CONF.replace("allocate, preempt", "preempt")
    outcome = run(pods, [running("low"), waiting("new")], nodes=[node], conf=conf)
    assert names(outcome.evicts) == {"idle"}
    assert not outcome.messages["default/new"].nominated_node  # nothing worth mentioning was evicted


def test_jobs_with_a_network_topology_do_not_preempt() -> None:
    group = waiting("new", network_topology=NetworkTopology(mode="soft"))
    assert not run([*FULL, pod("new", "new")], [running("low"), group]).evicts


def test_gated_tasks_wait() -> None:
    pods = [*FULL, pod("new", "new", gates=["example.com/hold"])]
    assert not run(pods, [running("low"), waiting("new", min_member=0)]).evicts


# within a job


def test_tasks_of_a_job_make_room_for_its_better_ones() -> None:
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


# who may preempt

GOING = Condition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")


def _cleared_before(*, leaving: bool = True, condition: Condition = GOING, priority: int = 0) -> list[Pod]:
    """Two nodes: `a` was cleared for the task before, `b` could be now."""
    old = pod("old", "low", node="a", priority=priority, status={"conditions": (condition,)})
    if leaving:
        old = replace(old, metadata=replace(old.metadata, deletion_timestamp=NOW))
    return [old, pod("low-w-1", "low", node="b")]


@pytest.mark.parametrize(
    ("pods", "spec", "status", "preempts"),
    [
        pytest.param(_cleared_before(), {}, {}, True, id="no-nomination"),
        pytest.param(_cleared_before(), {"preemption_policy": "Never"}, {}, False, id="does-not-want-to"),
        pytest.param(_cleared_before(), {}, {"nominated_node_name": "gone"}, False, id="nominated-node-is-gone"),
        pytest.param(_cleared_before(), {}, {"nominated_node_name": "a"}, False, id="a-victim-is-still-leaving"),
        pytest.param(_cleared_before(leaving=False), {}, {"nominated_node_name": "a"}, True, id="nobody-leaves"),
        pytest.param(
            _cleared_before(condition=Condition(type="DisruptionTarget", status="True", reason="EvictionByAPI")),
            {},
            {"nominated_node_name": "a"},
            True,
            id="leaves-for-another-reason",
        ),
        pytest.param(_cleared_before(priority=50), {}, {"nominated_node_name": "a"}, True, id="a-better-one-leaves"),
        pytest.param(_cleared_before(), {}, {"nominated_node_name": "b"}, False, id="the-node-would-do-as-it-is"),
        pytest.param(_cleared_before(), {}, {"nominated_node_name": "c"}, True, id="the-node-is-no-longer-possible"),
    ],
)
def test_who_may_preempt(pods: list[Pod], spec: Any, status: Any, preempts: bool) -> None:
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


class Picky:
    """Takes only the second task."""

    name = "picky"
    gravely = True

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        session.add_predicate_fn(self.name, self._refuse)

    def _refuse(self, task: Task, node: object) -> Status | None:  # noqa: ARG002
        if task.name != "new-w-0":
            return None
        return unresolvable("not this one") if self.gravely else unschedulable("not this one")


class PickyForNow(Picky):
    gravely = False


@pytest.mark.parametrize(
    ("plugin", "role", "remembers", "placed"),
    [
        pytest.param(Picky, "worker", True, set(), id="what-failed-one-of-a-role-fails-the-others"),
        pytest.param(Picky, "worker", False, {"new-w-1"}, id="unless-nobody-remembers"),
        pytest.param(Picky, "", True, {"new-w-1"}, id="or-there-is-no-role"),
        pytest.param(PickyForNow, "worker", True, {"new-w-0"}, id="evicting-may-cure-it"),
    ],
)
def test_what_failed_is_remembered_by_role(plugin: type[Picky], role: str, remembers: bool, placed: set[str]) -> None:
    conf = CONF.replace("allocate, preempt", "preempt").replace("  - name: nodeorder\n", "  - name: picky\n")
    conf += f"configurations:\n- name: preempt\n  arguments:\n    predicateErrorCacheEnable: {str(remembers).lower()}\n"
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


# nodes compared by their victims


def _two_nodes(first: list[Pod], second: list[Pod], asked: str = "1") -> SessionResult:
    nodes = [make_node("a", cpu=2), make_node("b", cpu=2)]
    new = pod("new", "new", requests={"cpu": asked})
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
    ("first", "second", "asked", "evicted"),
    [
        pytest.param(_victims("a", 7, 7), _victims("b", 3, 8), "1", {"b-w-0"}, id="the-lowest"),
        pytest.param(_victims("a", 3, 3), _victims("b", 3, cpu="2"), "2", {"b-w-0"}, id="the-fewest"),
        pytest.param(_victims("a", 3, 4), _victims("b", 4, 1), "2", {"b-w-0", "b-w-1"}, id="the-smallest-sum"),
        pytest.param(
            _victims("a", 3, 3, age_s=60), _victims("b", 3, 3, age_s=10), "1", {"b-w-1"}, id="those-who-lose-least-work"
        ),
    ],
)
def test_the_node_that_loses_least_is_cleared(
    first: list[Pod], second: list[Pod], asked: str, evicted: set[str]
) -> None:
    outcome = _two_nodes(first, second, asked)
    assert names(outcome.evicts) == evicted
    assert set(outcome.pipelined) == {"default/new"}


def test_who_need_not_go_is_given_back() -> None:
    small, large = pod("a-w-0", "low", node="a", requests={"cpu": "500m"}, priority=1), _victims("a", 2, cpu="1500m")[0]
    large = replace(large, metadata=replace(large.metadata, name="a-w-9", uid="large"))
    outcome = _two_nodes([small, large], [pod("kept", "low", node="b", requests={"cpu": "2"}, annotations=KEPT)])
    assert names(outcome.evicts) == {"a-w-9"}  # the small one went first, and then was not needed


# settings


@pytest.mark.parametrize(
    ("settings", "nodes", "wanted"),
    [
        pytest.param(PreemptSettings(), 5, 1, id="at-least-one"),
        pytest.param(PreemptSettings(), 200, 20, id="a-tenth"),
        pytest.param(PreemptSettings(), 5000, 100, id="not-too-many"),
        pytest.param(PreemptSettings(min_percentage=100), 7, 7, id="all"),
        pytest.param(PreemptSettings(min_absolute=50), 7, 7, id="no-more-than-there-are"),
        pytest.param(PreemptSettings(max_absolute=0), 7, 0, id="none"),
    ],
)
def test_how_many_nodes_are_compared(settings: PreemptSettings, nodes: int, wanted: int) -> None:
    assert settings.candidates_wanted(nodes) == wanted


def test_a_key_that_is_gone_keeps_its_value() -> None:
    first = PreemptSettings().updated(Arguments({"minCandidateNodesAbsolute": 3, "predicateErrorCacheEnable": "false"}))
    second = first.updated(Arguments({"maxCandidateNodesAbsolute": 5}))
    assert second == PreemptSettings(caches_errors=False, min_absolute=3, max_absolute=5)
