"""BatchHarness: the real batch engine on a small cluster, with short results."""

# ruff: noqa: ARG002, ARG003  (plugin methods have more parameters than these use)

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch import Arguments, BatchHandle, Job, Node, NodeUsage, Session, Task
from bayplan.batch.plugins.binpack import BinpackPlugin
from bayplan.errors import ConfigError, PluginError, UsageError
from bayplan.framework import Status, unresolvable, unschedulable
from bayplan.objects.core import Pod
from bayplan.testing import (
    BatchHarness,
    Gang,
    make_gang,
    make_hyper_node,
    make_node,
    make_option,
    make_pod,
    make_pod_group,
    make_queue,
)
from bayplan.testing.builders import CREATED

NODES = [make_node("a", cpu=4, labels={"rack": "1"}), make_node("b", cpu=4)]


class Racked:
    """Accepts nodes in racks only, orders large gangs first, and allows only gangs of one as victims."""

    name = "racked"

    def __init__(self, arguments: Arguments) -> None:
        self._bonus = arguments.get_float("racked.bonus", 7.0)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        session.add_job_order_fn(self.name, self._order)
        session.add_predicate_fn(self.name, self._reject)
        session.add_node_order_fn(self.name, self._score)
        session.add_preemptable_fn(self.name, self._preemptable)

    def _order(self, left: Job, right: Job) -> int:
        return right.min_available - left.min_available

    def _reject(self, task: Task, node: Node) -> Status | None:
        return None if "rack" in node.labels else unresolvable("node(s) are in no rack")

    def _score(self, task: Task, node: Node) -> float:
        return self._bonus

    def _preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        return [task for task in candidates if self._session.jobs[task.job].min_available == 1]


# Results


def test_a_result_as_text() -> None:
    gangs = [make_gang("train", 2, cpu=1), make_gang("big", 2, cpu=3)]
    result = BatchHarness([Racked], nodes=NODES, gangs=gangs).run()
    assert str(result).splitlines() == [
        "train: Inqueue; train-0 bound to a; train-1 bound to a",
        "big: Inqueue",
        "  big-0 waits: Pod default/big-0 can possibly be assigned to a, once minAvailable is satisfied",
        "  big-1 waits: 0/2 nodes are unavailable: 1 Insufficient cpu, 1 node(s) are in no rack.",
    ]


def test_fields_of_a_result() -> None:
    gangs = [make_gang("train", 2, cpu=1), make_gang("big", 2, cpu=3)]
    result = BatchHarness([Racked], nodes=NODES, gangs=gangs).run()
    assert result.bound == {"train-0": "a", "train-1": "a"}
    assert (result.evicted, result.pipelined, result.allocated, result.faults) == ({}, {}, {}, [])
    assert result.phases == {"train": "Inqueue", "big": "Inqueue"}
    assert result.conditions["train"] == {"Scheduled": "tasks in gang are ready to be scheduled"}
    assert result.conditions["big"]["Unschedulable"].startswith("NotEnoughResources: 1/2 tasks in gang unschedulable: ")
    assert [text.split(": ")[0] for text in result.events["big"]] == ["Warning Unschedulable"]
    assert result.messages["big-1"] == "0/2 nodes are unavailable: 1 Insufficient cpu, 1 node(s) are in no rack."
    assert result.outcome.queues["default"]["cpu"].milli_value() == 2000


def test_names_of_other_namespaces_are_qualified() -> None:
    result = BatchHarness(nodes=NODES, gangs=[make_gang("train", namespace="lab", cpu=1)]).run()
    assert list(result.bound) == ["lab/train-0"]
    assert result.phases == {"lab/train": "Inqueue"}
    assert str(result).startswith("lab/train: Inqueue; lab/train-0 bound to ")


def test_bound_and_pipelined_pods_are_distinguished() -> None:
    leaving = make_gang("leaving", 1, cpu=4, on="a", pod={"terminating": True})
    result = BatchHarness(nodes=NODES[:1], gangs=[leaving, make_gang("next", 1, cpu=4)]).run()
    assert (result.bound, result.pipelined) == ({}, {"next-0": "a"})
    assert "next: Inqueue; next-0 pipelined to a" in str(result).splitlines()


def test_faults_of_plugins_are_at_the_end_of_the_text() -> None:
    class Broken(Racked):
        name = "broken"

        def _reject(self, task: Task, node: Node) -> Status | None:
            raise LookupError(f"no price of {node.name}")

    result = BatchHarness([Broken], nodes=NODES[:1], gangs=[make_gang("train", cpu=1)]).run()
    assert result.bound == {"train-0": "a"}
    assert str(result).splitlines()[-1].startswith('fault: plugin "broken"')
    assert "LookupError: no price of a" in result.faults[0]


# Queries


def test_refusals_of_nodes() -> None:
    cluster = BatchHarness([Racked], nodes=NODES, gangs=[make_gang("train", 2, cpu=1), make_gang("big", cpu=5)])
    assert cluster.refusals("train-0") == {"b": [unresolvable("node(s) are in no rack")]}
    # resources are checked first, as in sessions
    assert cluster.refusals("big-0") == {name: [unschedulable("Insufficient cpu")] for name in "ab"}


def test_refusal_by_a_pre_predicate() -> None:
    class Closed(Racked):
        name = "closed"

        def on_session_open(self, session: Session) -> None:
            session.add_pre_predicate_fn(self.name, lambda _: unschedulable("closed on Sundays"))

    cluster = BatchHarness([Closed], nodes=NODES, gangs=[make_gang("train")])
    assert cluster.refusals("train-0") == {name: [unschedulable("closed on Sundays")] for name in "ab"}


def test_scores_of_all_plugins_or_of_one() -> None:
    gang = make_gang("train", cpu=1)
    assert BatchHarness([Racked], nodes=NODES, gangs=[gang], only=True).scores("train-0") == {"a": 7.0}
    beside = BatchHarness([Racked], nodes=NODES, gangs=[gang]).scores(gang.pods[0])
    assert beside["a"] > 7.0
    args = {"racked": {"racked.bonus": 2}}
    assert BatchHarness([Racked], nodes=NODES, gangs=[gang], only=True, args=args).scores("train-0") == {"a": 2.0}


def test_orders_of_jobs_and_queues() -> None:
    gangs = [make_gang("small", 1), make_gang("large", 3)]
    queues = [make_queue("old", created=CREATED - timedelta(days=1)), make_queue("new", priority=5)]
    cluster = BatchHarness([Racked], gangs=gangs, queues=queues)
    assert cluster.job_order() == ["large", "small"]
    assert cluster.queue_order() == ["new", "old", "default"]  # proportion compares priorities first


def test_session_functions_can_be_called_directly() -> None:
    gangs = [make_gang("old", 1, on="a", cpu=1), make_gang("pair", 2, on="a", cpu=1), make_gang("new", 1, cpu=1)]
    cluster = BatchHarness([Racked], nodes=NODES, gangs=gangs)
    with cluster.session() as session:
        running = [cluster.task(session, name) for name in ("old-0", "pair-0")]
        assert [task.name for task in session.preemptable(cluster.task(session, "new-0"), running)] == ["old-0"]


def test_a_pod_without_a_queue_is_an_error() -> None:
    gangs = [make_gang("train"), make_gang("lost", queue="nowhere")]
    with pytest.raises(UsageError, match="no group with a queue has a pod lost-0; the pods are: train-0"):
        BatchHarness([Racked], nodes=NODES, gangs=gangs).scores("lost-0")


def test_queries_change_nothing() -> None:
    cluster = BatchHarness([Racked], nodes=NODES, gangs=[make_gang("train", 2, cpu=1)])
    before = str(BatchHarness([Racked], nodes=NODES, gangs=[make_gang("train", 2, cpu=1)]).run())
    cluster.scores("train-0"), cluster.refusals("train-1"), cluster.job_order()
    assert str(cluster.run()) == before


# Plugins and flags


def test_plugins_under_test_come_before_the_built_in_tiers() -> None:
    tiers = BatchHarness([Racked]).engine.configuration.tiers
    assert [[option.name for option in tier] for tier in tiers] == [
        ["racked"],
        ["priority", "gang", "conformance"],
        ["overcommit", "drf", "predicates", "proportion", "nodeorder"],
    ]
    assert [option.name for option in BatchHarness([Racked], only=True).engine.configuration.plugins] == ["racked"]


def test_a_built_in_plugin_can_run_alone() -> None:
    gangs = [make_gang("there", on="a", cpu=2), make_gang("train", cpu=1)]
    scores = BatchHarness([BinpackPlugin], nodes=NODES, gangs=gangs, only=True).scores("train-0")
    assert scores == {"a": 75.0, "b": 25.0}


@pytest.mark.parametrize(
    ("tiers", "order"),
    [
        pytest.param([[Racked]], ["small", "large"], id="unset-is-off"),
        pytest.param([["racked"]], ["small", "large"], id="by-name"),
        pytest.param([[make_option(Racked, enableJobOrder=True)]], ["large", "small"], id="on"),
        pytest.param([[make_option(Racked, enableNodeOrder=True)]], ["small", "large"], id="another-flag"),
        pytest.param([[], [make_option("racked").with_default_flags()]], ["large", "small"], id="default-flags"),
    ],
)
def test_unset_flags_are_off_in_tiers_of_a_test(tiers: Any, order: list[str]) -> None:
    gangs = [make_gang("small", 1, created=CREATED - timedelta(hours=1)), make_gang("large", 3)]
    assert BatchHarness([Racked], gangs=gangs, tiers=tiers).job_order() == order


def test_a_class_in_a_tier_need_not_be_listed_in_plugins() -> None:
    gang = make_gang("train", cpu=1)
    tiers = [[Racked], [make_option(Racked, enableNodeOrder=True, arguments={"racked.bonus": 3})]]
    assert BatchHarness(nodes=NODES, gangs=[gang], tiers=tiers).scores("train-0") == {"a": 3.0, "b": 3.0}


def test_unset_flags_are_on_in_a_configuration_file() -> None:
    text = """
actions: allocate
tiers:
- plugins:
  - {name: racked, enablePredicate: false}
"""
    gangs = [make_gang("small", 1), make_gang("large", 3)]
    cluster = BatchHarness([Racked], nodes=NODES, gangs=gangs, config=text)
    assert cluster.job_order() == ["large", "small"]
    assert cluster.refusals("small-0") == {}


class Announce:
    """A custom action."""

    name = "announce"
    log: list[str] = []

    def initialize(self) -> None:
        self.log.append("initialize")

    def execute(self, session: Session) -> Iterator[None] | None:
        for job in session.jobs.values():
            session.record_event(job, "Normal", "Seen", f"{len(job.tasks)} tasks")
        return None

    def uninitialize(self) -> None:
        self.log.append("uninitialize")


def test_a_custom_action() -> None:
    Announce.log.clear()
    with BatchHarness(gangs=[make_gang("train", 2)], actions=["enqueue", Announce]) as cluster:
        assert "Normal Seen: 2 tasks" in cluster.run().events["train"]
        assert cluster.run().phases == {"train": "Inqueue"}
    assert Announce.log == ["initialize", "uninitialize"]


def test_a_configuration_can_name_a_custom_action() -> None:
    cluster = BatchHarness(gangs=[make_gang("train")], actions=[Announce], config="actions: announce")
    assert "Normal Seen: 1 tasks" in cluster.run().events["train"]


class Counting:
    """Stores the times of its sessions in the handle."""

    name = "counting"

    def __init__(self, sessions: list[str]) -> None:
        self._sessions = sessions

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> Counting:
        sessions: list[str] = handle.keep(cls.name, list)
        return cls(sessions)

    def on_session_open(self, session: Session) -> None:
        self._sessions.append(session.clock.now().isoformat())

    def on_session_close(self, session: Session) -> None:
        for job in session.jobs.values():
            session.record_event(job, "Normal", "Counted", " ".join(self._sessions))


def test_advance_moves_the_clock_and_the_handle_keeps_state() -> None:
    cluster = BatchHarness([Counting], gangs=[make_gang("train")])
    cluster.run()
    cluster.advance(90)
    events = cluster.run().events["train"]
    assert "Normal Counted: 2026-01-01T00:00:00+00:00 2026-01-01T00:01:30+00:00" in events


def test_usage_of_nodes() -> None:
    busy = {"a": NodeUsage(0.0, {"10m": 95.0}, {"10m": 10.0})}
    tiers = [[make_option("usage", enablePredicate=True)]]
    cluster = BatchHarness(nodes=NODES, gangs=[make_gang("train", cpu=1)], tiers=tiers, usage=busy)
    assert list(cluster.refusals("train-0")) == ["a"]


# Several sessions


def preempting_cluster(*gangs: Gang) -> BatchHarness:
    return BatchHarness(nodes=NODES[:1], gangs=gangs, actions=["enqueue", "allocate", "preempt"])


def test_settle_applies_the_results_of_a_session() -> None:
    cluster = preempting_cluster(
        make_gang("old", 2, cpu=2, on="a", min_member=1), make_gang("urgent", cpu=2, priority=9)
    )
    first = cluster.run()
    assert (first.evicted, first.pipelined) == ({"old-0": "preempt"}, {"urgent-0": "a"})
    cluster.settle()
    assert cluster.run().bound == {"urgent-0": "a"}
    assert cluster.run(2).phases == {"old": "Running", "urgent": "Running"}


def test_a_terminating_victim_is_counted_once() -> None:
    old = make_gang("old", 2, cpu=2, on="a", min_member=1)
    cluster = preempting_cluster(old, make_gang("urgent", cpu=2, priority=9))
    assert cluster.run().evicted == {"old-0": "preempt"}
    cluster.add(_terminating(old.pods[0]))
    assert cluster.run().pipelined == {"urgent-0": "a"}
    with cluster.session() as session:
        (node,) = session.nodes
        assert (node.used.milli_cpu, node.releasing.milli_cpu) == (4000, 2000)
    cluster.remove(old.pods[0])
    assert cluster.run().bound == {"urgent-0": "a"}


def _terminating(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp=CREATED))


def test_sessions_see_added_and_removed_objects() -> None:
    cluster = BatchHarness(gangs=[make_gang("train", 2, cpu=3)])
    assert cluster.run().bound == {}
    cluster.add(*NODES, make_gang("more", 1, cpu=1))
    assert sorted(cluster.run().bound) == ["more-0", "train-0", "train-1"]
    cluster.settle()
    cluster.remove(NODES[0], make_pod_group("more"))
    assert list(cluster.run().phases) == ["train"]


# Misuse


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"tiers": [[Racked, "gangg"]]}, 'there is no plugin "gangg"; add its class to `plugins`', id="unknown"
        ),
        pytest.param({"tiers": [["gang"]]}, 'no tier of the configuration has "racked"; add it to one', id="idle"),
        pytest.param({"config": "actions: allocate"}, 'no tier of the configuration has "racked"', id="idle-in-file"),
        pytest.param({"config": "actions: allocate", "only": True}, "config excludes tiers, args and only", id="two"),
        pytest.param({"tiers": [[Racked]], "args": {"racked": {}}}, "tiers excludes args and only", id="tiers-args"),
        pytest.param(
            {"args": {"rocked": {}}}, r"args name rocked, which is not among the plugins \(racked\)", id="args"
        ),
        pytest.param(
            {"actions": ["alocate"]}, 'unknown action "alocate"; expected one of enqueue, allocate', id="action"
        ),
        pytest.param(
            {"gangs": [make_gang("t", cpu=1), make_gang("t", cpu=2)]}, 'two different Pods are called "t-0"', id="twins"
        ),
    ],
)
def test_misuse_is_rejected_by_the_constructor(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BatchHarness([Racked], **options)


def test_a_configuration_that_volcano_rejects() -> None:
    with pytest.raises(ConfigError, match="failed to find Action alocate"):
        BatchHarness(config="actions: alocate")


def test_two_plugins_with_one_name_are_rejected() -> None:
    impostor = type("Impostor", (Racked,), {"name": "gang"})
    with pytest.raises(PluginError, match='two batch plugins are called "gang"'):
        BatchHarness([impostor])


def test_a_misspelt_flag_is_rejected() -> None:
    with pytest.raises(UsageError, match="enableOverused is not a flag of a plugin; did you mean enabledOverused"):
        make_option("drf", enableOverused=True)


# Builders


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: make_gang("a", "2"), "size must be the number of pods of a gang; got '2'", id="size"),
        pytest.param(
            lambda: make_gang("a", -1), "size must be the number of pods of a gang; got -1", id="negative-size"
        ),
        pytest.param(lambda: make_gang("a", 2, on=[5]), "on takes a list of names of nodes; it contains 5", id="on"),
        pytest.param(lambda: make_gang("a", min_member="x"), "this is not a valid PodGroup: .*minMember", id="members"),
        pytest.param(lambda: make_gang("a", queue=5), r"this is not a valid PodGroup: .*`\$.spec.queue`", id="queue"),
        pytest.param(
            lambda: make_queue("q", weight="x"), r"this is not a valid Queue: .*`\$.spec.weight`", id="weight"
        ),
        pytest.param(lambda: make_queue("q", capability=5), "this is not a valid Queue: .*capability", id="capability"),
        pytest.param(lambda: make_hyper_node("h", nodes="a"), "nodes takes a list of names", id="hypernode"),
        pytest.param(lambda: make_hyper_node("h", tier="x"), "this is not a valid HyperNode: .*tier", id="tier"),
        pytest.param(
            lambda: make_option("gang", enableJobOrder="yes"), "enableJobOrder must be True or False", id="flag"
        ),
        pytest.param(lambda: make_option(5), "a plugin is a name, or a class", id="option"),
        pytest.param(lambda: BatchHarness(nodes=[make_pod()]), "nodes takes a list of what make_node", id="nodes"),
        pytest.param(lambda: BatchHarness(gangs=[make_pod()]), "gangs takes a list of what make_gang", id="gangs"),
        pytest.param(lambda: BatchHarness(queues=["q"]), "queues takes a list of what make_queue", id="queues"),
        pytest.param(lambda: BatchHarness([5]), "plugins takes a list of classes", id="plugins"),
        pytest.param(lambda: BatchHarness([object]), "a plugin is a name, or a class", id="nameless"),
    ],
)
def test_invalid_arguments_are_rejected_by_the_builder(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_defaults_of_a_gang() -> None:
    gang = make_gang("train", 3, min_member=2, cpu="500m", queue="research", role="worker")
    assert (gang.group.spec.min_member, gang.group.spec.queue, gang.group.status.phase) == (2, "research", "Pending")
    assert [pod.name for pod in gang.pods] == ["train-0", "train-1", "train-2"]
    assert {pod.spec.scheduler_name for pod in gang.pods} == {"volcano"}
    task = Task(gang.pods[0])
    assert (task.job, task.role, task.resreq.milli_cpu) == ("default/train", "worker", 500.0)
    assert gang.objects == (gang.group, *gang.pods)


@pytest.mark.parametrize(
    ("on", "min_member", "nodes", "phase"),
    [
        pytest.param("a", None, ["a", "a"], "Running", id="all-on-one"),
        pytest.param(["a", "b"], None, ["a", "b"], "Running", id="one-each"),
        pytest.param(["a"], None, ["a", ""], "Pending", id="not-enough"),
        pytest.param(["a"], 1, ["a", ""], "Running", id="enough"),
        pytest.param((), None, ["", ""], "Pending", id="none"),
    ],
)
def test_nodes_of_a_gang(on: Any, min_member: int | None, nodes: list[str], phase: str) -> None:
    gang = make_gang("train", 2, on=on, min_member=min_member)
    assert [pod.spec.node_name for pod in gang.pods] == nodes
    assert gang.group.status.phase == phase


def test_a_gang_with_a_priority_has_a_priority_class() -> None:
    cluster = BatchHarness(
        gangs=[make_gang("low", priority=1), make_gang("mid", priority=5), make_gang("too", priority=5)]
    )
    with cluster.session() as session:
        assert {job.name: job.priority for job in session.jobs.values()} == {"low": 1, "mid": 5, "too": 5}


def test_queues_have_limits_and_parents() -> None:
    queue = make_queue("a", weight=3, parent="root", capability={"cpu": 4}, guarantee={"cpu": 1}, reclaimable=False)
    cluster = BatchHarness(queues=[queue], gangs=[make_gang("train", queue="a")])
    with cluster.session() as session:
        queue_in_session = session.queues["a"]
        assert (
            queue_in_session.weight,
            queue_in_session.parent,
            queue_in_session.capability.milli_cpu,
            queue_in_session.guarantee.milli_cpu,
        ) == (3, "root", 4000, 1000)
        assert (queue_in_session.reclaimable, queue_in_session.is_open) == (False, True)
        assert "default" in session.queues


def test_hypernodes_by_name_pattern_label_and_tier() -> None:
    hyper_nodes = [
        make_hyper_node("left", nodes=["a"]),
        make_hyper_node("right", pattern="^b"),
        make_hyper_node("racks", labels={"rack": "1"}, tier=3),
        make_hyper_node("hall", tier=2, children=["left", "right"], tier_name="hall"),
    ]
    with BatchHarness(nodes=NODES, objects=hyper_nodes).session() as session:
        found = session.hyper_nodes
        assert {name: sorted(found[name].nodes) for name in ("left", "right", "racks", "hall")} == {
            "left": ["a"],
            "right": ["b"],
            "racks": ["a"],
            "hall": ["a", "b"],
        }
        assert found.tier_names == {"hall": 2}


def test_a_gang_with_a_topology() -> None:
    hyper_nodes = [make_hyper_node("left", nodes=["a"]), make_hyper_node("right", nodes=["b"])]
    tiers = [
        [make_option("gang").with_default_flags()],
        [make_option("predicates").with_default_flags(), make_option("network-topology-aware").with_default_flags()],
    ]
    fitting, wide = make_gang("fit", 2, cpu=1, topology=1), make_gang("wide", 2, cpu=3, topology=1)
    result = BatchHarness(nodes=NODES, gangs=[fitting, wide], objects=hyper_nodes, tiers=tiers).run()
    assert len(set(result.bound.values())) == 1
    assert sorted(result.bound) == ["fit-0", "fit-1"]


def test_pods_of_other_schedulers_only_use_resources() -> None:
    foreign_pod = make_pod("web", cpu=3, node="a")
    result = BatchHarness(nodes=NODES[:1], pods=[foreign_pod], gangs=[make_gang("train", cpu=2)]).run()
    assert (result.bound, list(result.phases)) == ({}, ["train"])
