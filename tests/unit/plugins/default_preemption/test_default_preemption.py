"""Who may preempt, what is answered, and how long the preemptor is held back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bayplan.errors import ConfigError
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.plugin import PostFilterAnswer, PostFilterPlugin, PreEnqueuePlugin
from bayplan.framework.api.preemption_extender import NamedVictims
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    error,
    unresolvable,
    unschedulable,
)
from bayplan.framework.preemption.dry_run import ClearNomination, EvictVictim
from bayplan.framework.preemption.victims import Victims
from bayplan.framework.runtime.filtering import Filtering
from bayplan.framework.runtime.plugin_call import Boundary
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import Condition
from bayplan.plugins.default_preemption.args import DefaultPreemptionArgs
from bayplan.plugins.default_preemption.plugin import DefaultPreemption
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.snapshot import NodeView, PodInfo
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import (
    FakeHandle,
    hints,
    make_cycle,
    make_plugin,
    make_pod,
    make_snapshot,
)
from support.builders.preemption import (
    app,
    budget,
    node,
    vip,
    weak,
)

LEFT = Condition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")


@dataclass
class World:
    """A cluster, and one pod that fits nowhere in it."""

    nodes: Sequence[Node]
    pods: Sequence[Pod] = ()
    objects: Sequence[Any] = ()
    nominated: Mapping[str, Sequence[Pod]] = field(default_factory=dict)
    leaving: Mapping[str, Pod] = field(default_factory=dict)  # by node: a pod whose deletion was sent
    extra: Sequence[Any] = ()  # filters after NodeResourcesFit
    args: DefaultPreemptionArgs = field(default_factory=DefaultPreemptionArgs)
    extenders: Sequence[Any] = ()
    rejected: Status | None = None  # by PreFilter, as a whole
    seed: int = 0

    def preempt(self, pod: Pod) -> PostFilterAnswer:
        snapshot = make_snapshot(self.nodes, self.pods, self.objects)
        handle = FakeHandle(snapshot.catalog)
        handle.chance = random.Random(self.seed)
        handle.nominations.waiting = {name: [PodInfo(pod) for pod in pods] for name, pods in self.nominated.items()}
        handle.nominations.leaving = {name: {pod.uid: object()} for name, pod in self.leaving.items()}
        plugins = [make_plugin(NodeResourcesFit, handle=handle), *self.extra]
        boundary = Boundary(handle.clock, PluginTimings())
        handle.filters = Filtering(plugins[:1], plugins, boundary, handle.nominations)
        cycle = make_cycle(pod, snapshot)
        diagnosis = handle.filters.diagnose(cycle, handle.filters.pre_filter(cycle))
        if self.rejected is not None:
            diagnosis = Diagnosis(snapshot.nodes.names)
            diagnosis.absent = self.rejected
        plugin: DefaultPreemption = make_plugin(DefaultPreemption, args=self.args, handle=handle)
        plugin.extenders = self.extenders
        return plugin.post_filter(cycle, diagnosis)


def told(answer: PostFilterAnswer) -> tuple[str, str, str | None]:
    assert not answer.victims
    assert not answer.writes
    return answer.status.code.label, answer.status.message, answer.nominate


def test_it_extends_its_points() -> None:
    plugin = make_plugin(DefaultPreemption)
    assert isinstance(plugin, PostFilterPlugin)
    assert isinstance(plugin, PreEnqueuePlugin)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"minCandidateNodesPercentage: Invalid value: 101: not in valid range"):
        make_plugin(DefaultPreemption, args=DefaultPreemptionArgs(min_candidate_nodes_percentage=101))


# who may


def leaving(**more: Any) -> Pod:
    return weak("leaving", told=LEFT, terminating=True, **more)


@pytest.mark.parametrize(
    ("pod", "pods", "message"),
    [
        pytest.param(
            vip(preemption_policy="Never"),
            [weak("x", cpu="4")],
            "preemption: not eligible due to preemptionPolicy=Never.",
            id="never",
        ),
        pytest.param(
            vip(nominated="a"),
            [leaving(cpu="3"), weak("x")],
            "preemption: not eligible due to a terminating pod on the nominated node.",
            id="a victim is still leaving",
        ),
    ],
)
def test_who_may_not_preempt(pod: Pod, pods: list[Pod], message: str) -> None:
    assert told(World([node()], pods).preempt(pod)) == ("Unschedulable", message, None)


@pytest.mark.parametrize(
    ("pod", "nominated"),
    [
        pytest.param(vip(nominated="a"), {}, id="the watch has shown the nomination"),
        pytest.param(vip(), {"a": [vip()]}, id="the watch has not shown the nomination"),
    ],
)
def test_a_pod_whose_victim_is_being_deleted_may_not_preempt_before_the_watch_shows_it(
    pod: Pod, nominated: Mapping[str, Sequence[Pod]]
) -> None:
    victim = weak("x", cpu="3")
    others = [node("b"), node("c")]
    pods = [victim, weak("y", node="b", cpu="3"), weak("z", node="c", cpu="3")]
    world = World([node(), *others], pods, nominated=nominated, leaving={"a": victim})
    message = "preemption: not eligible due to a terminating pod on the nominated node."
    assert told(world.preempt(pod)) == ("Unschedulable", message, None)


@pytest.mark.parametrize(
    ("pod", "pods"),
    [
        pytest.param(vip(), [leaving(cpu="3"), weak("x")], id="not nominated"),
        pytest.param(vip(preemption_policy="PreemptLowerPriority"), [weak("x", cpu="3")], id="policy says so"),
        pytest.param(vip(nominated="a"), [weak("x", cpu="3", terminating=True)], id="leaving for another reason"),
        pytest.param(vip(nominated="a"), [weak("x", cpu="3", told=LEFT)], id="told to leave, but not yet leaving"),
        pytest.param(
            vip(nominated="a"), [leaving(priority=100, cpu="1"), weak("x", cpu="3")], id="the leaving one is as strong"
        ),
        pytest.param(vip(nominated="gone"), [leaving(cpu="3"), weak("x")], id="nominated to a node that is gone"),
        pytest.param(vip(nominated="b"), [leaving(cpu="3"), weak("x")], id="leaving from another node"),
    ],
)
def test_who_may_preempt(pod: Pod, pods: list[Pod]) -> None:
    answer = World([node(), node("b", cpu="1")], pods).preempt(pod)
    assert (answer.status, answer.nominate) == (SUCCESS, "a")


def test_a_nomination_that_came_to_nothing_holds_nobody_back() -> None:
    pods = [leaving(node="small", cpu="1"), weak("x", cpu="3")]
    answer = World([node("small", cpu="1"), node()], pods).preempt(vip(nominated="small"))
    assert (answer.status, answer.nominate) == (SUCCESS, "a")


# what is answered


def test_a_node_is_nominated_and_its_victims_evicted() -> None:
    pods = [weak("x", priority=1, started=1, cpu="2"), weak("y", priority=2, cpu="2"), weak("z", node="b", priority=9)]
    answer = World([node(), node("b", cpu="1")], pods).preempt(pod := vip("4"))
    assert (answer.status, answer.nominate) == (SUCCESS, "a")
    assert [victim.name for victim in answer.victims] == ["y", "x"]
    assert answer.writes == (
        EvictVictim(pods[1], "a", pod, "DefaultPreemption"),
        EvictVictim(pods[0], "a", pod, "DefaultPreemption", last=True),
    )


def test_weaker_pods_nominated_to_the_node_lose_it_first() -> None:
    nominated = make_pod("n", priority=5, nominated="a"), make_pod("m", priority=500, nominated="a")
    victim = weak("x", cpu="3")
    answer = World([node()], [victim], nominated={"a": nominated}).preempt(pod := vip())
    assert answer.writes == (
        ClearNomination(nominated[0]),
        EvictVictim(victim, "a", pod, "DefaultPreemption", last=True),
    )


def test_victims_that_are_all_leaving_need_nothing_more() -> None:
    nominated = [make_pod("n", priority=5, nominated="a")]
    gone = weak("x", cpu="3", terminating=True)
    answer = World([node()], [gone], nominated={"a": nominated}).preempt(vip())
    assert (answer.status, answer.nominate, answer.victims, answer.writes) == (SUCCESS, "a", (gone,), ())


@pytest.mark.parametrize(
    ("world", "pod", "message"),
    [
        pytest.param(
            World([node(), node("b", cpu="1")], [weak("x", cpu="3", priority=900)]),
            vip(),
            "0/2 nodes are available: 1 No preemption victims found for incoming pod, "
            "1 Preemption is not helpful for scheduling.",
            id="nobody weaker, and a node too small",
        ),
        pytest.param(
            World([node("a", cpu="1"), node("b", cpu="1")]),
            vip(),
            "0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
            id="no node where removal helps",
        ),
        pytest.param(
            World([node()], [weak("strong", cpu="3", priority=900), weak("x")]),
            vip(),
            "0/1 nodes are available: 1 Insufficient cpu.",
            id="weaker ones are not enough",
        ),
        pytest.param(
            World([node()], [weak("x", cpu="3")], rejected=unresolvable("no")),
            vip(),
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            id="the pod was rejected for good before any node",
        ),
        pytest.param(
            World(
                [node()],
                [weak("x", cpu="3")],
                args=DefaultPreemptionArgs(min_candidate_nodes_percentage=10, min_candidate_nodes_absolute=0),
            ),
            vip(),
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            id="the arguments want no candidate of so few nodes",
        ),
    ],
)
def test_no_candidate_takes_the_nomination_away(world: World, pod: Pod, message: str) -> None:
    assert told(world.preempt(pod)) == ("Unschedulable", f"preemption: {message}", "")


def test_a_pod_rejected_for_now_tries_every_node() -> None:
    world = World(
        [node(), node("b")], [weak("x", priority=2), weak("y", node="b", cpu="3")], rejected=unschedulable("no")
    )
    answer = world.preempt(vip())
    assert (answer.status, answer.nominate) == (SUCCESS, "b")


class BreaksOn:
    """A filter that is broken for a node, once it is empty of its weak pod."""

    name = "BreaksOn"

    def __init__(self, *names: str) -> None:
        self._names = names

    def filter(self, cycle: Any, node: NodeView) -> Status | None:  # noqa: ARG002
        if node.pods:
            return unschedulable("crowded")
        return error("boom") if node.name in self._names else None


def test_an_error_counts_only_without_candidates() -> None:
    pods = [weak("x"), weak("y", node="b")]
    answer = World([node(), node("b")], pods, extra=[BreaksOn("a")]).preempt(vip("1"))
    assert (answer.status, answer.nominate) == (SUCCESS, "b")
    answer = World([node(), node("b")], pods, extra=[BreaksOn("a", "b")]).preempt(vip("1"))
    assert told(answer) == ("Error", 'preemption: running "BreaksOn" filter plugin: boom', None)


def test_budgets_weigh_most() -> None:
    covered = weak("covered", cpu="3", labels={"app": "web"})
    dearer = weak("dearer", node="b", cpu="3", priority=50)
    answer = World([node(), node("b")], [covered, dearer], [budget(selector=app("web"))]).preempt(vip())
    assert answer.nominate == "b"


def test_chance_says_where_the_search_begins() -> None:
    nodes = [node(letter) for letter in "abcdefgh"]
    pods = [weak(f"x{one.name}", node=one.name, cpu="3") for one in nodes]
    args = DefaultPreemptionArgs(min_candidate_nodes_percentage=0, min_candidate_nodes_absolute=1)
    chosen = [World(nodes, pods, args=args, seed=seed).preempt(vip()).nominate for seed in range(40)]
    assert chosen == [nodes[random.Random(seed).randrange(8)].name for seed in range(40)]


@dataclass
class Outsider:
    """An extender with one answer."""

    answer: Mapping[str, NamedVictims]
    name: str = "outsider"
    ignorable: bool = False

    def wants_preemption(self, pod: Pod) -> bool:
        return pod.name == "vip"

    def process_preemption(self, pod: Pod, candidates: Mapping[str, Victims]) -> Mapping[str, NamedVictims]:  # noqa: ARG002
        return self.answer


def test_extenders_are_asked_before_the_choice() -> None:
    pods = [weak("x", cpu="3"), weak("y", node="b", cpu="3", priority=50)]
    only_b = Outsider({"b": NamedVictims((pods[1].uid,))})
    assert World([node(), node("b")], pods, extenders=[only_b]).preempt(vip()).nominate == "b"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({}, ("Unschedulable", "preemption: no candidate node for preemption", None), id="leaves none"),
        pytest.param(
            {"a": NamedVictims(())},
            ("Error", 'preemption: expected at least one victim pod on node "a"', None),
            id="names nobody",
        ),
    ],
)
def test_extenders_may_end_it(answer: Mapping[str, NamedVictims], expected: tuple[str, str, None]) -> None:
    assert told(World([node()], [weak("x", cpu="3")], extenders=[Outsider(answer)]).preempt(vip())) == expected


# holding the preemptor back


def test_the_preemptor_is_held_back_until_the_last_victim_leaves() -> None:
    plugin: DefaultPreemption = make_plugin(DefaultPreemption)
    pod, other = vip(), make_pod("other")
    assert plugin.pre_enqueue(pod) is None
    plugin.begins(pod)
    assert plugin.pre_enqueue(pod) == unresolvable("waiting for the preemption for this pod to be finished")
    assert plugin.pre_enqueue(other) is None
    leaves = False
    plugin.waits_for(pod, lambda: leaves)
    assert plugin.pre_enqueue(pod) is not None
    leaves = True
    assert plugin.pre_enqueue(pod) is None
    plugin.finished(pod)
    assert plugin.pre_enqueue(pod) is None


def test_a_preemption_that_is_given_up_holds_nobody_back() -> None:
    plugin: DefaultPreemption = make_plugin(DefaultPreemption)
    pod = vip()
    plugin.begins(pod)
    plugin.finished(pod)
    plugin.waits_for(pod, lambda: False)  # told too late
    assert plugin.pre_enqueue(pod) is None
    plugin.finished(pod)


def test_a_deletion_wakes_nobody_by_itself() -> None:
    plugin = make_plugin(DefaultPreemption)
    (cure,) = plugin.cured_by
    assert (cure.resource, cure.action.name) == ("Pod", "DELETE")
    assert hints(plugin, "Pod", vip(), weak("x"), None) == ["Skip"]


def test_the_code_of_a_refusal_is_kept() -> None:
    answer = World([node("a", cpu="1")]).preempt(vip())
    assert answer.status.code is Code.UNSCHEDULABLE
