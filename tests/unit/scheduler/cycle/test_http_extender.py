"""HTTP extenders: their requests, the parsing of their results, and the effect of failures."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan.app import build_engine, filled_cache
from bayplan.config.load import load_default
from bayplan.config.model import ExtenderConfig as ExtenderConfig
from bayplan.config.model import ExtenderManagedResource
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import FILTER, SCORE
from bayplan.framework.api.status import Code, Status, unresolvable, unschedulable
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.profile import Profile
from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.plugins import default_plugins
from bayplan.scheduler.cycle.http_extender import ExtenderCall, ExtenderError, ExtenderReply, HttpExtender
from bayplan.scheduler.cycle.node_sampling import NodeSampler
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.scheduler.cycle.scheduling_cycle import SchedulingCycle
from bayplan.snapshot import NodeInfo, NodeTable
from bayplan.testing.conformance.scenario_cluster import first_by_name
from support.builders.framework import FakeHandle, make_container, make_cycle, make_node, make_pod, make_snapshot
from support.builders.preemption import high_priority_pod, node, running_pod

URL = "http://extender:8888/"


class Likes:
    name = "Likes"

    def __init__(self, **scores: int) -> None:
        self.scores = scores

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> Any:  # noqa: ARG002
        return np.array([self.scores.get(name, 0) for name in nodes.names], dtype=np.int64)


def extender(**fields: Any) -> HttpExtender:
    """An extender that filters by node names, unless fields say otherwise."""
    fields = {"url_prefix": URL, "filter_verb": "filter", "node_cache_capable": True, **fields}
    return HttpExtender(ExtenderConfig(**fields))


def ok(answer: Any) -> ExtenderReply:
    return ExtenderReply(200, json.dumps(answer).encode())


class World:
    """Extenders with their replies in order."""

    def __init__(self, *extenders: HttpExtender, replies: list[ExtenderReply], likes: Likes | None = None) -> None:
        self.calls: list[ExtenderCall] = []
        self.most_at_once = self._under_way = 0
        self._replies = list(replies)
        plugins = (likes or Likes(),)
        profile = Profile("mine", {FILTER: plugins, SCORE: plugins}, {"Likes": 1}, {}, {}, {})
        self._attempts = SchedulingCycle(
            Framework(profile, FakeHandle()),  # type: ignore[arg-type]
            first_by_name,
            NodeSampler(),
            extenders=extenders,
            handle=FakeHandle(),  # type: ignore[arg-type]
            waiting_assumed={},
        )

    async def _ask(self, call: ExtenderCall) -> ExtenderReply:
        self.calls.append(call)
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        reply = self._replies.pop(0)
        await asyncio.sleep(0)
        self._under_way -= 1
        return reply

    def decide(self, *names: str, pod: Pod | None = None) -> SchedulingDecision:
        snapshot = make_snapshot([make_node(name) for name in names])
        decision = asyncio.run(
            self._attempts.schedule_pod_with_extenders(make_cycle(pod or make_pod(), snapshot), self._ask)
        )
        assert self._replies == [], "an extender was not called"
        return decision


def narrowed(decision: SchedulingDecision) -> list[str]:
    return sorted(decision.nodes.names) if decision.nodes is not None else []


# requests


def test_node_names_are_sent_to_extenders_with_a_node_cache() -> None:
    world = World(extender(), replies=[ok({"NodeNames": ["b"]})])
    world.decide("a", "b")
    (call,) = world.calls
    assert call.url == "http://extender:8888/filter"
    body = json.loads(call.body)
    assert set(body) == {"Pod", "Nodes", "NodeNames"}
    assert body["NodeNames"] == ["a", "b"]
    assert body["Nodes"] is None
    assert body["Pod"]["metadata"]["name"] == "pod"


def test_whole_nodes_are_sent_to_extenders_without_a_node_cache() -> None:
    answer = {"Nodes": {"items": [{"metadata": {"name": "b"}}]}}
    world = World(extender(node_cache_capable=False), replies=[ok(answer)])
    assert world.decide("a", "b").node == "b"
    body = json.loads(world.calls[0].body)
    assert body["NodeNames"] is None
    assert [item["metadata"]["name"] for item in body["Nodes"]["items"]] == ["a", "b"]
    assert body["Nodes"]["items"][0]["status"]["allocatable"]["cpu"] == "8"


def test_each_extender_gets_the_nodes_that_the_earlier_ones_left() -> None:
    replies = [ok({"NodeNames": ["a", "b"]}), ok({"NodeNames": ["b"]})]
    world = World(extender(), extender(), replies=replies)
    assert world.decide("a", "b", "c").node == "b"
    assert [call.arguments["NodeNames"] for call in world.calls] == [["a", "b", "c"], ["a", "b"]]


def test_no_extender_is_called_without_nodes() -> None:
    world = World(extender(), extender(), replies=[ok({"NodeNames": []})])
    assert world.decide("a", "b").node is None


GPU = "x.io/gpu"


@pytest.mark.parametrize(
    ("managed", "pod", "interested"),
    [
        pytest.param((), make_pod(), True, id="manages-nothing-wants-all"),
        pytest.param((GPU,), make_pod(), False, id="not-asked-for"),
        pytest.param((GPU,), make_pod(requests={GPU: "1"}), True, id="requests"),
        pytest.param((GPU,), make_pod(requests={GPU: "0"}), True, id="requests-of-none"),
        pytest.param(
            (GPU,), make_pod(init_containers=(make_container(requests={GPU: "1"}),)), True, id="init-container"
        ),
    ],
)
def test_interest_by_managed_resources(managed: tuple[str, ...], pod: Pod, interested: bool) -> None:
    resources = tuple(ExtenderManagedResource(name=name) for name in managed)
    assert extender(managed_resources=resources).is_interested(pod) is interested


def test_limits_of_managed_resources_count() -> None:
    limited = Container(name="main", resources=ResourceRequirements(limits={GPU: "1"}))
    managed = (ExtenderManagedResource(name=GPU),)
    assert extender(managed_resources=managed).is_interested(make_pod(containers=(limited,)))


def test_uninterested_extenders_are_not_called() -> None:
    managed = (ExtenderManagedResource(name=GPU),)
    one = extender(managed_resources=managed, prioritize_verb="prioritize", weight=1)
    assert World(one, replies=[]).decide("a", "b").node == "a"


# filter


@pytest.mark.parametrize(
    ("answer", "cached", "left"),
    [
        pytest.param({"NodeNames": ["a", "c"]}, True, ["a", "c"], id="names"),
        pytest.param({"nodenames": ["a", "c"]}, True, ["a", "c"], id="names-in-any-case"),
        pytest.param({"NodeNames": ["a", "a"]}, True, ["a"], id="named-twice"),
        pytest.param({"NodeNames": []}, True, [], id="no-names"),
        pytest.param({"Nodes": {"items": [{"metadata": {"name": "b"}}]}}, True, ["b"], id="nodes-without-names"),
        pytest.param(
            {"NodeNames": ["a"], "Nodes": {"items": [{"metadata": {"name": "b"}}]}}, True, ["a"], id="names-win"
        ),
        pytest.param(
            {"NodeNames": ["a"], "Nodes": {"items": [{"metadata": {"name": "b"}}]}}, False, ["b"], id="nodes-win"
        ),
        pytest.param({"NodeNames": ["a"]}, False, [], id="names-from-an-extender-without-node-cache"),
        pytest.param({}, True, [], id="neither"),
        pytest.param(None, True, [], id="null"),
        pytest.param({"Nodes": {"items": None}}, True, [], id="no-items"),
        pytest.param({"NodeNames": ["b"], "Error": ""}, True, ["b"], id="empty-error"),
        pytest.param({"NodeNames": ["b"], "Error": None, "FailedNodes": None}, True, ["b"], id="nulls"),
    ],
)
def test_nodes_that_remain_after_filter(answer: Any, cached: bool, left: list[str]) -> None:
    table = make_snapshot([make_node(name) for name in "abc"]).table
    rows, _ = extender(node_cache_capable=cached).parse_filter(ok(answer), table)
    assert [table.names[row] for row in rows.tolist()] == left


def test_reasons_of_rejected_nodes() -> None:
    answer = {
        "NodeNames": [],
        "FailedNodes": {"a": "busy", "b": "also busy", "elsewhere": "x"},
        "FailedAndUnresolvableNodes": {"b": "broken"},
    }
    world = World(extender(), replies=[ok(answer)])
    decision = world.decide("a", "b", "c")
    assert decision.diagnosis is not None
    assert decision.diagnosis.status(0) == unschedulable("busy")
    assert decision.diagnosis.status(1) == unresolvable("broken")
    assert decision.message == "0/3 nodes are available: 1 broken, 1 busy."
    assert decision.diagnosis.unschedulable_plugins == {"Extender"}


def test_an_extender_that_rejects_no_node_is_no_rejector() -> None:
    decision = World(extender(), replies=[ok({"NodeNames": ["a", "b"]})]).decide("a", "b")
    assert decision.diagnosis is not None
    assert decision.diagnosis.unschedulable_plugins == set()
    assert narrowed(decision) == ["a", "b"]


FAILURES = [
    pytest.param(ExtenderReply(failure="connection refused"), "connection refused", id="no-answer"),
    pytest.param(
        ExtenderReply(500, b"oops"),
        "failed filter with extender at URL http://extender:8888/filter, code 500",
        id="500",
    ),
    pytest.param(ok({"Error": "out of order"}), "out of order", id="error"),
    pytest.param(
        ok({"NodeNames": ["z"]}),
        'extender "http://extender:8888/" claims a filtered node "z" which is not found in the input node list',
        id="an-unknown-node",
    ),
    pytest.param(ExtenderReply(200, b"<html>"), "returned an invalid result of filter", id="not-json"),
    pytest.param(ok([1]), "returned an invalid result of filter", id="a-list"),
    pytest.param(ok({"NodeNames": "a"}), "returned an invalid result of filter", id="names-are-no-list"),
    pytest.param(ok({"FailedNodes": ["a"]}), "returned an invalid result of filter", id="failed-is-no-map"),
    pytest.param(ok({"Nodes": {"items": [7]}}), "returned an invalid result of filter", id="nodes-are-no-nodes"),
]


@pytest.mark.parametrize(("reply", "words"), FAILURES)
def test_a_failure_fails_the_attempt(reply: ExtenderReply, words: str) -> None:
    decision = World(extender(), replies=[reply]).decide("a", "b")
    assert decision.node is None
    assert decision.status.code is Code.ERROR
    assert words in decision.message
    assert decision.nominated_node_name == ""


@pytest.mark.parametrize(("reply", "words"), FAILURES)
def test_a_failure_of_an_ignorable_extender_is_ignored(reply: ExtenderReply, words: str) -> None:
    decision = World(extender(ignorable=True), replies=[reply], likes=Likes(b=5)).decide("a", "b")
    assert (decision.node, narrowed(decision), bool(words)) == ("b", ["a", "b"], True)


# the nominated node


def test_the_nominated_node_is_sent_alone() -> None:
    world = World(extender(), replies=[ok({"NodeNames": ["b"]})])
    assert world.decide("a", "b", pod=make_pod(nominated="b")).node == "b"
    assert world.calls[0].arguments["NodeNames"] == ["b"]


def test_after_a_rejected_nominated_node_all_nodes_are_sent() -> None:
    replies = [ok({"NodeNames": []}), ok({"NodeNames": ["a"]})]
    world = World(extender(), replies=replies)
    assert world.decide("a", "b", pod=make_pod(nominated="b")).node == "a"
    assert [call.arguments["NodeNames"] for call in world.calls] == [["b"], ["a", "b"]]


# prioritize


def prioritizer(**fields: Any) -> HttpExtender:
    return extender(filter_verb="", prioritize_verb="prioritize", **{"weight": 1, **fields})


@pytest.mark.parametrize(
    ("answer", "weight", "added"),
    [
        pytest.param([{"Host": "a", "Score": 10}, {"Host": "b", "Score": 3}], 1, [100, 30], id="times-ten"),
        pytest.param([{"Host": "a", "Score": 1}], 7, [70, 0], id="weighted-and-missing-is-zero"),
        pytest.param([{"host": "a", "score": 2}], 1, [20, 0], id="any-case"),
        pytest.param(
            [{"Host": "a", "Score": 1}, {"Host": "a", "Score": 2}], 1, [30, 0], id="two-scores-of-a-node-add-up"
        ),
        pytest.param([{"Host": "elsewhere", "Score": 9}], 1, [0, 0], id="unknown-host"),
        pytest.param([], 1, [0, 0], id="empty"),
    ],
)
def test_scores_that_are_added(answer: Any, weight: int, added: list[int]) -> None:
    table = make_snapshot([make_node("a"), make_node("b")]).table
    assert prioritizer(weight=weight).parse_prioritize(ok(answer), table).tolist() == added


def test_extender_scores_can_change_the_choice() -> None:
    world = World(prioritizer(weight=2), replies=[ok([{"Host": "b", "Score": 3}])], likes=Likes(a=50))
    decision = world.decide("a", "b")
    assert decision.node == "b"
    assert decision.scores is not None
    assert decision.scores.total.tolist() == [50, 60]
    assert world.calls[0].url == "http://extender:8888/prioritize"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(ExtenderReply(failure="refused"), id="no-answer"),
        pytest.param(ok({"Host": "b"}), id="not-a-list"),
        pytest.param(ok([{"Host": "b", "Score": "high"}]), id="score-is-no-number"),
        pytest.param(ok(["b"]), id="items-are-no-objects"),
        pytest.param(ExtenderReply(404), id="404"),
    ],
)
def test_an_extender_that_fails_to_prioritize_is_ignored(reply: ExtenderReply) -> None:
    world = World(prioritizer(), prioritizer(), replies=[reply, ok([{"Host": "b", "Score": 6}])], likes=Likes(a=50))
    assert world.decide("a", "b").node == "b"


def test_scores_beyond_64_bits_are_an_error() -> None:
    with pytest.raises(ExtenderError, match="connection refused"):
        extender().parse_filter(ExtenderReply(failure="connection refused"), make_snapshot([make_node()]).table)


def test_prioritize_calls_are_concurrent() -> None:
    world = World(prioritizer(), prioritizer(weight=3), replies=[ok([]), ok([{"Host": "b", "Score": 1}])])
    assert world.decide("a", "b").node == "b"
    assert world.most_at_once == 2


# preempt


def preempter(**fields: Any) -> HttpExtender:
    return extender(filter_verb="", preempt_verb="preempt", **fields)


def preempted(*replies: ExtenderReply, **fields: Any) -> tuple[SchedulingDecision, list[ExtenderCall]]:
    """The decision for a strong pod when nodes a and b are full of weaker pods."""
    configuration = load_default(default_plugins().args_kinds)
    settings = preempter(**fields).config
    weaker = [running_pod("x", node="a", cpu="3"), running_pod("y", node="b", cpu="3", priority=5)]
    cache = filled_cache([node("a"), node("b"), *weaker])
    engine = build_engine(replace(configuration, extenders=(settings,)), default_plugins(), cache, seed=0)
    left, calls = list(replies), []

    async def ask(call: ExtenderCall) -> ExtenderReply:
        calls.append(call)
        return left.pop(0)

    return asyncio.run(engine.place_with_extenders(high_priority_pod(), ask)).decision, calls


META_B = {"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": running_pod("y").uid}], "NumPDBViolations": 0}}}


@pytest.mark.parametrize("folded", [False, True], ids=["as-go-writes-it", "in-small-letters"])
def test_an_extender_removes_candidates(folded: bool) -> None:
    answer = json.loads(json.dumps(META_B).lower()) if folded else META_B
    decision, calls = preempted(ok(answer))
    assert (decision.nominated_node_name, decision.victims) == ("b", ("default/y",))
    (call,) = calls
    assert call.url == "http://extender:8888/preempt"
    assert call.arguments["NodeNameToVictims"] is None
    assert call.arguments["NodeNameToMetaVictims"] == {
        "a": {"Pods": [{"UID": running_pod("x").uid}], "NumPDBViolations": 0},
        "b": {"Pods": [{"UID": running_pod("y").uid}], "NumPDBViolations": 0},
    }
    assert call.arguments["Pod"]["metadata"]["name"] == "vip"


def test_whole_victims_are_sent_to_extenders_without_a_node_cache() -> None:
    _, (call,) = preempted(ok(META_B), node_cache_capable=False)
    assert call.arguments["NodeNameToMetaVictims"] is None
    (victim,) = call.arguments["NodeNameToVictims"]["a"]["Pods"]
    assert (victim["metadata"]["name"], victim["spec"]["nodeName"]) == ("x", "a")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        pytest.param(ok({}), "preemption: no candidate node for preemption", id="leaves-none"),
        pytest.param(ExtenderReply(failure="down"), "preemption: down", id="silent"),
        pytest.param(
            ok({"NodeNameToMetaVictims": {"a": None}}),
            'preemption: expected at least one victim pod on node "a"',
            id="names-no-known-pod",
        ),
        pytest.param(
            ExtenderReply(500),
            "preemption: failed preempt with extender at URL http://extender:8888/preempt, code 500",
            id="500",
        ),
        pytest.param(ok({"NodeNameToMetaVictims": {"a": 3}}), "returned an invalid result of preempt", id="nonsense"),
    ],
)
def test_an_extender_may_end_preemption(reply: ExtenderReply, words: str) -> None:
    decision, _ = preempted(reply)
    assert words in decision.message
    assert (decision.victims, decision.writes) == ((), ())


def test_an_ignorable_extender_without_an_answer_is_skipped() -> None:
    decision, _ = preempted(ExtenderReply(failure="down"), ignorable=True)
    assert decision.nominated_node_name == "a", "where the weaker pod is"


def test_uninterested_extenders_take_no_part_in_preemption() -> None:
    decision, calls = preempted(managed_resources=(ExtenderManagedResource(name=GPU),))
    assert (decision.nominated_node_name, calls) == ("a", [])
