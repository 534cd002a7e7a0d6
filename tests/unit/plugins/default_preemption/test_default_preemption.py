"""DefaultPreemption: eligibility, results, and gating of the preemptor."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bayplan.errors import ConfigError
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.plugin import PostFilterPlugin, PostFilterResult, PreEnqueuePlugin
from bayplan.framework.api.preemption_extender import NamedVictims
from bayplan.framework.api.status import SUCCESS, Code, Status, error, unresolvable, unschedulable
from bayplan.framework.preemption.dry_run import ClearNomination, EvictVictim
from bayplan.framework.preemption.victims import Victims
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import Condition
from bayplan.plugins.default_preemption.args import DefaultPreemptionArgs
from bayplan.plugins.default_preemption.plugin import DefaultPreemption
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.snapshot import NodeInfo, PodInfo
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import FakeHandle, evaluate_hints, make_cycle, make_plugin, make_pod, make_snapshot
from support.builders.preemption import app_selector, budget, high_priority_pod, node, running_pod

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

    def preempt(self, pod: Pod) -> PostFilterResult:
        snapshot = make_snapshot(self.nodes, self.pods, self.objects)
        handle = FakeHandle(snapshot.catalog)
        handle.random = random.Random(self.seed)
        handle.nominator.waiting = {name: [PodInfo(pod) for pod in pods] for name, pods in self.nominated.items()}
        handle.nominator.leaving = {name: {pod.uid: object()} for name, pod in self.leaving.items()}
        plugins = [make_plugin(NodeResourcesFit, handle=handle), *self.extra]
        caller = PluginCaller(handle.clock, PluginTimings())
        handle.filter_runner = FilterPoints(plugins[:1], plugins, caller, handle.nominator)
        cycle = make_cycle(pod, snapshot)
        diagnosis = handle.filter_runner.run_filters(cycle, handle.filter_runner.pre_filter(cycle))
        if self.rejected is not None:
            diagnosis = Diagnosis(snapshot.nodes.names)
            diagnosis.absent = self.rejected
        plugin: DefaultPreemption = make_plugin(DefaultPreemption, args=self.args, handle=handle)
        plugin.extenders = self.extenders
        return plugin.post_filter(cycle, diagnosis)


def result_summary(answer: PostFilterResult) -> tuple[str, str, str | None]:
    assert not answer.victims
    assert not answer.writes
    return answer.status.code.label, answer.status.message, answer.nominated_node_name


def test_it_extends_its_points() -> None:
    plugin = make_plugin(DefaultPreemption)
    assert isinstance(plugin, PostFilterPlugin)
    assert isinstance(plugin, PreEnqueuePlugin)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"minCandidateNodesPercentage: Invalid value: 101: not in valid range"):
        make_plugin(DefaultPreemption, args=DefaultPreemptionArgs(min_candidate_nodes_percentage=101))


# eligibility


def leaving(**more: Any) -> Pod:
    return running_pod("leaving", told=LEFT, terminating=True, **more)


@pytest.mark.parametrize(
    ("pod", "pods", "message"),
    [
        pytest.param(
            high_priority_pod(preemption_policy="Never"),
            [running_pod("x", cpu="4")],
            "preemption: not eligible due to preemptionPolicy=Never.",
            id="never",
        ),
        pytest.param(
            high_priority_pod(nominated="a"),
            [leaving(cpu="3"), running_pod("x")],
            "preemption: not eligible due to a terminating pod on the nominated node.",
            id="a victim is still leaving",
        ),
    ],
)
def test_ineligible_pods(pod: Pod, pods: list[Pod], message: str) -> None:
    assert result_summary(World([node()], pods).preempt(pod)) == ("Unschedulable", message, None)


@pytest.mark.parametrize(
    ("pod", "nominated"),
    [
        pytest.param(high_priority_pod(nominated="a"), {}, id="the watch has shown the nomination"),
        pytest.param(high_priority_pod(), {"a": [high_priority_pod()]}, id="the watch has not shown the nomination"),
    ],
)
def test_a_pod_whose_victim_is_being_deleted_may_not_preempt_before_the_watch_shows_it(
    pod: Pod, nominated: Mapping[str, Sequence[Pod]]
) -> None:
    victim = running_pod("x", cpu="3")
    others = [node("b"), node("c")]
    pods = [victim, running_pod("y", node="b", cpu="3"), running_pod("z", node="c", cpu="3")]
    world = World([node(), *others], pods, nominated=nominated, leaving={"a": victim})
    message = "preemption: not eligible due to a terminating pod on the nominated node."
    assert result_summary(world.preempt(pod)) == ("Unschedulable", message, None)


@pytest.mark.parametrize(
    ("pod", "pods"),
    [
        pytest.param(high_priority_pod(), [leaving(cpu="3"), running_pod("x")], id="not nominated"),
        pytest.param(
            high_priority_pod(preemption_policy="PreemptLowerPriority"),
            [running_pod("x", cpu="3")],
            id="policy says so",
        ),
        pytest.param(
            high_priority_pod(nominated="a"),
            [running_pod("x", cpu="3", terminating=True)],
            id="leaving for another reason",
        ),
        pytest.param(
            high_priority_pod(nominated="a"),
            [running_pod("x", cpu="3", told=LEFT)],
            id="evicted, but not yet terminating",
        ),
        pytest.param(
            high_priority_pod(nominated="a"),
            [leaving(priority=100, cpu="1"), running_pod("x", cpu="3")],
            id="the leaving one is as strong",
        ),
        pytest.param(
            high_priority_pod(nominated="gone"),
            [leaving(cpu="3"), running_pod("x")],
            id="nominated to a node that is gone",
        ),
        pytest.param(
            high_priority_pod(nominated="b"), [leaving(cpu="3"), running_pod("x")], id="leaving from another node"
        ),
    ],
)
def test_eligible_pods(pod: Pod, pods: list[Pod]) -> None:
    answer = World([node(), node("b", cpu="1")], pods).preempt(pod)
    assert (answer.status, answer.nominated_node_name) == (SUCCESS, "a")


def test_a_failed_nomination_does_not_prevent_preemption() -> None:
    pods = [leaving(node="small", cpu="1"), running_pod("x", cpu="3")]
    answer = World([node("small", cpu="1"), node()], pods).preempt(high_priority_pod(nominated="small"))
    assert (answer.status, answer.nominated_node_name) == (SUCCESS, "a")


# results


def test_a_node_is_nominated_and_its_victims_evicted() -> None:
    pods = [
        running_pod("x", priority=1, started=1, cpu="2"),
        running_pod("y", priority=2, cpu="2"),
        running_pod("z", node="b", priority=9),
    ]
    answer = World([node(), node("b", cpu="1")], pods).preempt(pod := high_priority_pod("4"))
    assert (answer.status, answer.nominated_node_name) == (SUCCESS, "a")
    assert [victim.name for victim in answer.victims] == ["y", "x"]
    assert answer.writes == (
        EvictVictim(pods[1], "a", pod, "DefaultPreemption"),
        EvictVictim(pods[0], "a", pod, "DefaultPreemption", is_last=True),
    )


def test_lower_priority_nominations_are_cleared_first() -> None:
    nominated = make_pod("n", priority=5, nominated="a"), make_pod("m", priority=500, nominated="a")
    victim = running_pod("x", cpu="3")
    answer = World([node()], [victim], nominated={"a": nominated}).preempt(pod := high_priority_pod())
    assert answer.writes == (
        ClearNomination(nominated[0]),
        EvictVictim(victim, "a", pod, "DefaultPreemption", is_last=True),
    )


def test_terminating_victims_need_no_writes() -> None:
    nominated = [make_pod("n", priority=5, nominated="a")]
    terminated = running_pod("x", cpu="3", terminating=True)
    answer = World([node()], [terminated], nominated={"a": nominated}).preempt(high_priority_pod())
    assert (answer.status, answer.nominated_node_name, answer.victims, answer.writes) == (
        SUCCESS,
        "a",
        (terminated,),
        (),
    )


@pytest.mark.parametrize(
    ("world", "pod", "message"),
    [
        pytest.param(
            World([node(), node("b", cpu="1")], [running_pod("x", cpu="3", priority=900)]),
            high_priority_pod(),
            "0/2 nodes are available: 1 No preemption victims found for incoming pod, "
            "1 Preemption is not helpful for scheduling.",
            id="no lower-priority pod, and a node too small",
        ),
        pytest.param(
            World([node("a", cpu="1"), node("b", cpu="1")]),
            high_priority_pod(),
            "0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
            id="no node where removal helps",
        ),
        pytest.param(
            World([node()], [running_pod("strong", cpu="3", priority=900), running_pod("x")]),
            high_priority_pod(),
            "0/1 nodes are available: 1 Insufficient cpu.",
            id="weaker ones are not enough",
        ),
        pytest.param(
            World([node()], [running_pod("x", cpu="3")], rejected=unresolvable("no")),
            high_priority_pod(),
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            id="the pod was rejected for good before any node",
        ),
        pytest.param(
            World(
                [node()],
                [running_pod("x", cpu="3")],
                args=DefaultPreemptionArgs(min_candidate_nodes_percentage=10, min_candidate_nodes_absolute=0),
            ),
            high_priority_pod(),
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            id="the arguments want no candidate of so few nodes",
        ),
    ],
)
def test_no_candidate_takes_the_nomination_away(world: World, pod: Pod, message: str) -> None:
    assert result_summary(world.preempt(pod)) == ("Unschedulable", f"preemption: {message}", "")


def test_a_pod_rejected_for_now_tries_every_node() -> None:
    world = World(
        [node(), node("b")],
        [running_pod("x", priority=2), running_pod("y", node="b", cpu="3")],
        rejected=unschedulable("no"),
    )
    answer = world.preempt(high_priority_pod())
    assert (answer.status, answer.nominated_node_name) == (SUCCESS, "b")


class BreaksOn:
    """A filter that fails for a node without its lower-priority pod."""

    name = "BreaksOn"

    def __init__(self, *names: str) -> None:
        self._names = names

    def filter(self, cycle: Any, node: NodeInfo) -> Status | None:  # noqa: ARG002
        if node.pods:
            return unschedulable("crowded")
        return error("boom") if node.name in self._names else None


def test_an_error_counts_only_without_candidates() -> None:
    pods = [running_pod("x"), running_pod("y", node="b")]
    answer = World([node(), node("b")], pods, extra=[BreaksOn("a")]).preempt(high_priority_pod("1"))
    assert (answer.status, answer.nominated_node_name) == (SUCCESS, "b")
    answer = World([node(), node("b")], pods, extra=[BreaksOn("a", "b")]).preempt(high_priority_pod("1"))
    assert result_summary(answer) == ("Error", 'preemption: running "BreaksOn" filter plugin: boom', None)


def test_budgets_count_most() -> None:
    covered = running_pod("covered", cpu="3", labels={"app": "web"})
    dearer = running_pod("dearer", node="b", cpu="3", priority=50)
    answer = World([node(), node("b")], [covered, dearer], [budget(selector=app_selector("web"))]).preempt(
        high_priority_pod()
    )
    assert answer.nominated_node_name == "b"


def test_the_search_starts_at_a_random_row() -> None:
    nodes = [node(letter) for letter in "abcdefgh"]
    pods = [running_pod(f"x{one.name}", node=one.name, cpu="3") for one in nodes]
    args = DefaultPreemptionArgs(min_candidate_nodes_percentage=0, min_candidate_nodes_absolute=1)
    chosen = [
        World(nodes, pods, args=args, seed=seed).preempt(high_priority_pod()).nominated_node_name for seed in range(40)
    ]
    assert chosen == [nodes[random.Random(seed).randrange(8)].name for seed in range(40)]


@dataclass
class Outsider:
    """An extender with one answer."""

    answer: Mapping[str, NamedVictims]
    name: str = "outsider"
    ignorable: bool = False

    def supports_preemption(self, pod: Pod) -> bool:
        return pod.name == "vip"

    def process_preemption(self, pod: Pod, candidates: Mapping[str, Victims]) -> Mapping[str, NamedVictims]:  # noqa: ARG002
        return self.answer


def test_extenders_are_called_before_the_choice() -> None:
    pods = [running_pod("x", cpu="3"), running_pod("y", node="b", cpu="3", priority=50)]
    only_b = Outsider({"b": NamedVictims((pods[1].uid,))})
    assert World([node(), node("b")], pods, extenders=[only_b]).preempt(high_priority_pod()).nominated_node_name == "b"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({}, ("Unschedulable", "preemption: no candidate node for preemption", None), id="leaves none"),
        pytest.param(
            {"a": NamedVictims(())},
            ("Error", 'preemption: expected at least one victim pod on node "a"', None),
            id="names no victim",
        ),
    ],
)
def test_extenders_may_end_it(answer: Mapping[str, NamedVictims], expected: tuple[str, str, None]) -> None:
    assert (
        result_summary(
            World([node()], [running_pod("x", cpu="3")], extenders=[Outsider(answer)]).preempt(high_priority_pod())
        )
        == expected
    )


# gating of the preemptor


def test_the_preemptor_is_gated_until_the_last_victim_terminates() -> None:
    plugin: DefaultPreemption = make_plugin(DefaultPreemption)
    pod, other = high_priority_pod(), make_pod("other")
    assert plugin.pre_enqueue(pod) is None
    plugin.on_preemption_started(pod)
    assert plugin.pre_enqueue(pod) == unresolvable("waiting for the preemption for this pod to be finished")
    assert plugin.pre_enqueue(other) is None
    leaves = False
    plugin.on_waiting_for_victim(pod, lambda: leaves)
    assert plugin.pre_enqueue(pod) is not None
    leaves = True
    assert plugin.pre_enqueue(pod) is None
    plugin.on_preemption_finished(pod)
    assert plugin.pre_enqueue(pod) is None


def test_a_failed_preemption_gates_no_pod() -> None:
    plugin: DefaultPreemption = make_plugin(DefaultPreemption)
    pod = high_priority_pod()
    plugin.on_preemption_started(pod)
    plugin.on_preemption_finished(pod)
    plugin.on_waiting_for_victim(pod, lambda: False)  # too late
    assert plugin.pre_enqueue(pod) is None
    plugin.on_preemption_finished(pod)


def test_a_deletion_moves_no_pod_by_itself() -> None:
    plugin = make_plugin(DefaultPreemption)
    (registration,) = plugin.events_to_register
    assert (registration.resource, registration.action.name) == ("Pod", "DELETE")
    assert evaluate_hints(plugin, "Pod", high_priority_pod(), running_pod("x"), None) == ["Skip"]


def test_the_status_code_is_preserved() -> None:
    answer = World([node("a", cpu="1")]).preempt(high_priority_pod())
    assert answer.status.code is Code.UNSCHEDULABLE
