"""A batch harness is the real engine on a small cluster: what goes in is a few lines, and so is what comes out."""

# ruff: noqa: ARG002, ARG003  (plugins are told more than these need)

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
    """Racks only, large gangs first, and only small ones can be pushed out."""

    name = "racked"

    def __init__(self, arguments: Arguments) -> None:
        self._bonus = arguments.get_float("racked.bonus", 7.0)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        session.add_job_order_fn(self.name, self._order)
        session.add_predicate_fn(self.name, self._refusal)
        session.add_node_order_fn(self.name, self._score)
        session.add_preemptable_fn(self.name, self._preemptable)

    def _order(self, left: Job, right: Job) -> int:
        return right.min_available - left.min_available

    def _refusal(self, task: Task, node: Node) -> Status | None:
        return None if "rack" in node.labels else unresolvable("node(s) are in no rack")

    def _score(self, task: Task, node: Node) -> float:
        return self._bonus

    def _preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        return [task for task in candidates if self._session.jobs[task.job].min_available == 1]


# what comes out


def test_a_session_in_a_few_readable_lines() -> None:
    gangs = [make_gang("train", 2, cpu=1), make_gang("big", 2, cpu=3)]
    done = BatchHarness([Racked], nodes=NODES, gangs=gangs).run()
    assert str(done).splitlines() == [
        "train: Inqueue; train-0 bound to a; train-1 bound to a",
        "big: Inqueue",
        "  big-0 waits: Pod default/big-0 can possibly be assigned to a, once minAvailable is satisfied",
        "  big-1 waits: 0/2 nodes are unavailable: 1 Insufficient cpu, 1 node(s) are in no rack.",
    ]


def test_what_a_session_did_can_be_asked_for_piece_by_piece() -> None:
    gangs = [make_gang("train", 2, cpu=1), make_gang("big", 2, cpu=3)]
    done = BatchHarness([Racked], nodes=NODES, gangs=gangs).run()
    assert done.bound == {"train-0": "a", "train-1": "a"}
    assert (done.evicted, done.pipelined, done.allocated, done.faults) == ({}, {}, {}, [])
    assert done.phases == {"train": "Inqueue", "big": "Inqueue"}
    assert done.conditions["train"] == {"Scheduled": "tasks in gang are ready to be scheduled"}
    assert done.conditions["big"]["Unschedulable"].startswith("NotEnoughResources: 1/2 tasks in gang unschedulable: ")
    assert [text.split(": ")[0] for text in done.events["big"]] == ["Warning Unschedulable"]
    assert done.messages["big-1"] == "0/2 nodes are unavailable: 1 Insufficient cpu, 1 node(s) are in no rack."
    assert done.outcome.queues["default"]["cpu"].milli_value() == 2000


def test_other_namespaces_are_told() -> None:
    done = BatchHarness(nodes=NODES, gangs=[make_gang("train", namespace="lab", cpu=1)]).run()
    assert list(done.bound) == ["lab/train-0"]
    assert done.phases == {"lab/train": "Inqueue"}
    assert str(done).startswith("lab/train: Inqueue; lab/train-0 bound to ")


def test_room_that_is_left_and_room_that_is_promised_are_told_apart() -> None:
    leaving = make_gang("leaving", 1, cpu=4, on="a", pod={"terminating": True})
    done = BatchHarness(nodes=NODES[:1], gangs=[leaving, make_gang("next", 1, cpu=4)]).run()
    assert (done.bound, done.pipelined) == ({}, {"next-0": "a"})
    assert "next: Inqueue; next-0 pipelined to a" in str(done).splitlines()


def test_a_plugin_that_breaks_is_named_at_the_end() -> None:
    class Broken(Racked):
        name = "broken"

        def _refusal(self, task: Task, node: Node) -> Status | None:
            raise LookupError(f"no price of {node.name}")

    done = BatchHarness([Broken], nodes=NODES[:1], gangs=[make_gang("train", cpu=1)]).run()
    assert done.bound == {"train-0": "a"}
    assert str(done).splitlines()[-1].startswith('fault: plugin "broken"')
    assert "LookupError: no price of a" in done.faults[0]


# questions


def test_who_refuses_a_pod_and_why() -> None:
    cluster = BatchHarness([Racked], nodes=NODES, gangs=[make_gang("train", 2, cpu=1), make_gang("big", cpu=5)])
    assert cluster.refusals("train-0") == {"b": [unresolvable("node(s) are in no rack")]}
    # room is looked at first, as sessions do it
    assert cluster.refusals("big-0") == {name: [unschedulable("Insufficient cpu")] for name in "ab"}


def test_a_pod_that_is_refused_before_any_node_is_looked_at() -> None:
    class Closed(Racked):
        name = "closed"

        def on_session_open(self, session: Session) -> None:
            session.add_pre_predicate_fn(self.name, lambda _: unschedulable("closed on Sundays"))

    cluster = BatchHarness([Closed], nodes=NODES, gangs=[make_gang("train")])
    assert cluster.refusals("train-0") == {name: [unschedulable("closed on Sundays")] for name in "ab"}


def test_scores_are_the_sum_of_all_plugins_or_those_of_one() -> None:
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
    assert cluster.queue_order() == ["new", "old", "default"]  # proportion looks at priorities first


def test_an_open_session_answers_for_single_functions() -> None:
    gangs = [make_gang("old", 1, on="a", cpu=1), make_gang("pair", 2, on="a", cpu=1), make_gang("new", 1, cpu=1)]
    cluster = BatchHarness([Racked], nodes=NODES, gangs=gangs)
    with cluster.session() as session:
        running = [cluster.task(session, name) for name in ("old-0", "pair-0")]
        assert [task.name for task in session.preemptable(cluster.task(session, "new-0"), running)] == ["old-0"]


def test_a_pod_that_no_session_knows() -> None:
    gangs = [make_gang("train"), make_gang("lost", queue="nowhere")]
    with pytest.raises(UsageError, match="no group with a queue has a pod lost-0; the pods are: train-0"):
        BatchHarness([Racked], nodes=NODES, gangs=gangs).scores("lost-0")


def test_questions_change_nothing() -> None:
    cluster = BatchHarness([Racked], nodes=NODES, gangs=[make_gang("train", 2, cpu=1)])
    before = str(BatchHarness([Racked], nodes=NODES, gangs=[make_gang("train", 2, cpu=1)]).run())
    cluster.scores("train-0"), cluster.refusals("train-1"), cluster.job_order()
    assert str(cluster.run()) == before


# which plugins run, and with which flags


def test_own_plugins_come_before_the_built_in_tiers() -> None:
    tiers = BatchHarness([Racked]).engine.configuration.tiers
    assert [[option.name for option in tier] for tier in tiers] == [
        ["racked"],
        ["priority", "gang", "conformance"],
        ["overcommit", "drf", "predicates", "proportion", "nodeorder"],
    ]
    assert [option.name for option in BatchHarness([Racked], only=True).engine.configuration.plugins] == ["racked"]


def test_a_shipped_plugin_can_be_looked_at_alone() -> None:
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
        pytest.param([[], [make_option("racked").with_default_flags()]], ["large", "small"], id="as-a-file-has-it"),
    ],
)
def test_in_tiers_that_are_built_by_hand_an_unset_flag_is_off(tiers: Any, order: list[str]) -> None:
    gangs = [make_gang("small", 1, created=CREATED - timedelta(hours=1)), make_gang("large", 3)]
    assert BatchHarness([Racked], gangs=gangs, tiers=tiers).job_order() == order


def test_a_class_in_a_tier_need_not_be_named_twice() -> None:
    gang = make_gang("train", cpu=1)
    hand = [[Racked], [make_option(Racked, enableNodeOrder=True, arguments={"racked.bonus": 3})]]
    assert BatchHarness(nodes=NODES, gangs=[gang], tiers=hand).scores("train-0") == {"a": 3.0, "b": 3.0}


def test_in_a_file_an_unset_flag_is_on() -> None:
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
    """An action of one's own."""

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


def test_an_action_of_ones_own() -> None:
    Announce.log.clear()
    with BatchHarness(gangs=[make_gang("train", 2)], actions=["enqueue", Announce]) as cluster:
        assert "Normal Seen: 2 tasks" in cluster.run().events["train"]
        assert cluster.run().phases == {"train": "Inqueue"}
    assert Announce.log == ["initialize", "uninitialize"]


def test_a_configuration_may_name_an_action_of_ones_own() -> None:
    cluster = BatchHarness(gangs=[make_gang("train")], actions=[Announce], config="actions: announce")
    assert "Normal Seen: 1 tasks" in cluster.run().events["train"]


class Counting:
    """Keeps a number between sessions."""

    name = "counting"

    def __init__(self, sessions: list[str]) -> None:
        self._sessions = sessions

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> Counting:
        seen: list[str] = handle.keep(cls.name, list)
        return cls(seen)

    def on_session_open(self, session: Session) -> None:
        self._sessions.append(session.clock.now().isoformat())

    def on_session_close(self, session: Session) -> None:
        for job in session.jobs.values():
            session.record_event(job, "Normal", "Counted", " ".join(self._sessions))


def test_time_passes_when_told_to_and_the_handle_remembers() -> None:
    cluster = BatchHarness([Counting], gangs=[make_gang("train")])
    cluster.run()
    cluster.advance(90)
    told = cluster.run().events["train"]
    assert "Normal Counted: 2026-01-01T00:00:00+00:00 2026-01-01T00:01:30+00:00" in told


def test_usage_of_nodes() -> None:
    busy = {"a": NodeUsage(0.0, {"10m": 95.0}, {"10m": 10.0})}
    tiers = [[make_option("usage", enablePredicate=True)]]
    cluster = BatchHarness(nodes=NODES, gangs=[make_gang("train", cpu=1)], tiers=tiers, usage=busy)
    assert list(cluster.refusals("train-0")) == ["a"]


# several sessions


def pushing(*gangs: Gang) -> BatchHarness:
    return BatchHarness(nodes=NODES[:1], gangs=gangs, actions=["enqueue", "allocate", "preempt"])


def test_what_was_decided_comes_true_between_sessions() -> None:
    cluster = pushing(make_gang("old", 2, cpu=2, on="a", min_member=1), make_gang("urgent", cpu=2, priority=9))
    first = cluster.run()
    assert (first.evicted, first.pipelined) == ({"old-0": "preempt"}, {"urgent-0": "a"})
    cluster.settle()
    assert cluster.run().bound == {"urgent-0": "a"}
    assert cluster.run(2).phases == {"old": "Running", "urgent": "Running"}


def test_an_evicted_pod_that_takes_its_time_keeps_its_room_once() -> None:
    old = make_gang("old", 2, cpu=2, on="a", min_member=1)
    cluster = pushing(old, make_gang("urgent", cpu=2, priority=9))
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


def test_sessions_follow_a_cluster_that_changes() -> None:
    cluster = BatchHarness(gangs=[make_gang("train", 2, cpu=3)])
    assert cluster.run().bound == {}
    cluster.add(*NODES, make_gang("more", 1, cpu=1))
    assert sorted(cluster.run().bound) == ["more-0", "train-0", "train-1"]
    cluster.settle()
    cluster.remove(NODES[0], make_pod_group("more"))
    assert list(cluster.run().phases) == ["train"]


# misuse


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(
            {"tiers": [[Racked, "gangg"]]},
            'there is no plugin "gangg"; add its class to `plugins`',
            id="unknown",
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
def test_misuse_is_refused_when_the_cluster_is_built(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        BatchHarness([Racked], **options)


def test_a_configuration_that_volcano_would_refuse() -> None:
    with pytest.raises(ConfigError, match="failed to find Action alocate"):
        BatchHarness(config="actions: alocate")


def test_a_second_plugin_of_a_name() -> None:
    impostor = type("Impostor", (Racked,), {"name": "gang"})
    with pytest.raises(PluginError, match='two batch plugins are called "gang"'):
        BatchHarness([impostor])


def test_a_flag_in_another_spelling() -> None:
    with pytest.raises(UsageError, match="enableOverused is not a flag of a plugin; did you mean enabledOverused"):
        make_option("drf", enableOverused=True)


# builders


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda: make_gang("a", "2"), "size must be the number of pods of a gang; got '2'", id="size"),
        pytest.param(lambda: make_gang("a", -1), "size must be the number of pods of a gang; got -1", id="less-than-nobody"),
        pytest.param(lambda: make_gang("a", 2, on=[5]), "on takes a list of names of nodes; it contains 5", id="on"),
        pytest.param(lambda: make_gang("a", min_member="x"), "this is not a valid PodGroup: .*minMember", id="members"),
        pytest.param(lambda: make_gang("a", queue=5), r"this is not a valid PodGroup: .*`\$.spec.queue`", id="queue"),
        pytest.param(lambda: make_queue("q", weight="x"), r"this is not a valid Queue: .*`\$.spec.weight`", id="weight"),
        pytest.param(lambda: make_queue("q", capability=5), "this is not a valid Queue: .*capability", id="capability"),
        pytest.param(lambda: make_hyper_node("h", nodes="a"), "nodes takes a list of names", id="hypernode"),
        pytest.param(lambda: make_hyper_node("h", tier="x"), "this is not a valid HyperNode: .*tier", id="tier"),
        pytest.param(lambda: make_option("gang", enableJobOrder="yes"), "enableJobOrder must be True or False", id="flag"),
        pytest.param(lambda: make_option(5), "a plugin is a name, or a class", id="option"),
        pytest.param(lambda: BatchHarness(nodes=[make_pod()]), "nodes takes a list of what make_node", id="nodes"),
        pytest.param(lambda: BatchHarness(gangs=[make_pod()]), "gangs takes a list of what make_gang", id="gangs"),
        pytest.param(lambda: BatchHarness(queues=["q"]), "queues takes a list of what make_queue", id="queues"),
        pytest.param(lambda: BatchHarness([5]), "plugins takes a list of classes", id="plugins"),
        pytest.param(lambda: BatchHarness([object]), "a plugin is a name, or a class", id="nameless"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_a_gang_names_only_what_it_is_about() -> None:
    gang = make_gang("train", 3, min_member=2, cpu="500m", queue="research", role="worker")
    assert (gang.group.spec.min_member, gang.group.spec.queue, gang.group.status.phase) == (2, "research", "Pending")
    assert [pod.name for pod in gang.pods] == ["train-0", "train-1", "train-2"]
    assert {pod.spec.scheduler_name for pod in gang.pods} == {"volcano"}
    task = Task(gang.pods[0])
    assert (task.job, task.role, task.resreq.milli_cpu) == ("default/train", "worker", 500.0)
    assert gang.objects == (gang.group, *gang.pods)


@pytest.mark.parametrize(
    ("on", "least", "nodes", "phase"),
    [
        pytest.param("a", None, ["a", "a"], "Running", id="all-on-one"),
        pytest.param(["a", "b"], None, ["a", "b"], "Running", id="one-each"),
        pytest.param(["a"], None, ["a", ""], "Pending", id="not-enough"),
        pytest.param(["a"], 1, ["a", ""], "Running", id="enough"),
        pytest.param((), None, ["", ""], "Pending", id="none"),
    ],
)
def test_where_a_gang_runs(on: Any, least: int | None, nodes: list[str], phase: str) -> None:
    gang = make_gang("train", 2, on=on, min_member=least)
    assert [pod.spec.node_name for pod in gang.pods] == nodes
    assert gang.group.status.phase == phase


def test_priorities_come_with_their_class() -> None:
    cluster = BatchHarness(
        gangs=[make_gang("low", priority=1), make_gang("mid", priority=5), make_gang("too", priority=5)]
    )
    with cluster.session() as session:
        assert {job.name: job.priority for job in session.jobs.values()} == {"low": 1, "mid": 5, "too": 5}


def test_queues_have_limits_and_parents() -> None:
    queue = make_queue("a", weight=3, parent="root", capability={"cpu": 4}, guarantee={"cpu": 1}, reclaimable=False)
    cluster = BatchHarness(queues=[queue], gangs=[make_gang("train", queue="a")])
    with cluster.session() as session:
        seen = session.queues["a"]
        assert (seen.weight, seen.parent, seen.capability.milli_cpu, seen.guarantee.milli_cpu) == (
            3,
            "root",
            4000,
            1000,
        )
        assert (seen.reclaimable, seen.is_open) == (False, True)
        assert "default" in session.queues


def test_hypernodes_by_name_pattern_label_and_tier() -> None:
    places = [
        make_hyper_node("left", nodes=["a"]),
        make_hyper_node("right", pattern="^b"),
        make_hyper_node("racks", labels={"rack": "1"}, tier=3),
        make_hyper_node("hall", tier=2, children=["left", "right"], tier_name="hall"),
    ]
    with BatchHarness(nodes=NODES, objects=places).session() as session:
        found = session.hyper_nodes
        assert {name: sorted(found[name].nodes) for name in ("left", "right", "racks", "hall")} == {
            "left": ["a"],
            "right": ["b"],
            "racks": ["a"],
            "hall": ["a", "b"],
        }
        assert found.tier_names == {"hall": 2}


def test_a_gang_that_must_stay_close_together() -> None:
    places = [make_hyper_node("left", nodes=["a"]), make_hyper_node("right", nodes=["b"])]
    tiers = [
        [make_option("gang").with_default_flags()],
        [make_option("predicates").with_default_flags(), make_option("network-topology-aware").with_default_flags()],
    ]
    fitting, spread = make_gang("fit", 2, cpu=1, topology=1), make_gang("wide", 2, cpu=3, topology=1)
    done = BatchHarness(nodes=NODES, gangs=[fitting, spread], objects=places, tiers=tiers).run()
    assert len(set(done.bound.values())) == 1
    assert sorted(done.bound) == ["fit-0", "fit-1"]


def test_pods_of_others_only_take_room() -> None:
    stranger = make_pod("web", cpu=3, node="a")
    done = BatchHarness(nodes=NODES[:1], pods=[stranger], gangs=[make_gang("train", cpu=2)]).run()
    assert (done.bound, list(done.phases)) == ({}, ["train"])
