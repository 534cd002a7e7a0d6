"""Misconfigured objects get one event, as do all objects that wait for them."""

from __future__ import annotations

import pytest

from bayplan.explain.batch_explainer import BatchExplainer
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.volcano import types as volcano
from bayplan.objects.volcano.types import NetworkTopology
from bayplan.testing import make_hyper_node
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import GANGS
from support.builders.framework import replace_fields
from support.harness.async_tests import async_test
from support.harness.live_batch import LiveBatchHarness, run_live_batch

NODE = make_node("n", cpu=4)
IN_A_TREE = """\
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
- plugins:
  - name: predicates
  - name: capacity
    enableHierarchy: true
"""
ROOT, PARENT = make_queue("root"), make_queue("par", parent="root")
CHILD, OTHER = make_queue("kid", parent="par"), make_queue("other", parent="root")
NO_PARENT = (
    "capacity: the parent par of queue kid does not exist; create it, or give kid another parent; "
    "no queue gets anything until this is fixed"
)
CLOSE = f"{GANGS}  - name: network-topology-aware\n"
UNREADY = "jobs that ask for a network topology wait until this is corrected"
HARD = NetworkTopology(mode="hard", highest_tier_allowed=1)


def pending_pod(name: str) -> Pod:
    """A pod of the group with this name, as the API server reports it."""
    pod = make_member(f"{name}-w-0", name, requests={"cpu": "1"})
    return replace_fields(pod, spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending"))


def misconfigured_events(harness: LiveBatchHarness) -> list[tuple[str, str]]:
    return sorted(harness.events.about("Misconfigured"))


async def condition_message(harness: LiveBatchHarness, name: str) -> str:
    explainer = BatchExplainer(harness.live)
    pod = explainer.find("default", name)
    assert pod is not None
    return (await explainer.answer(pod)).sentence


@async_test
async def test_a_deleted_parent_is_reported_on_its_children_and_on_all_waiting_groups() -> None:
    groups = [make_group("theirs", queue="other"), make_group("coming", queue="other", min_member=1)]
    queues = [ROOT, PARENT, CHILD, OTHER]
    async with run_live_batch(
        NODE, *queues, make_group("runs", queue="kid"), pending_pod("runs"), conf=IN_A_TREE
    ) as harness:
        await harness.session()
        assert harness.bound() == {"runs-w-0": "n"}
        assert misconfigured_events(harness) == []
        harness.deliver(replace_fields(pending_pod("runs"), spec={"node_name": "n"}, status=PodStatus(phase="Running")))
        harness.deliver_deletion(PARENT)
        harness.deliver(*groups, pending_pod("theirs"))
        await harness.session()
        await harness.session()
        stopped = [("default/coming", NO_PARENT), ("default/theirs", NO_PARENT), ("kid", NO_PARENT)]
        # once each: groups that wait for their pods get it, running groups do not
        assert misconfigured_events(harness) == stopped
        assert NO_PARENT in await condition_message(harness, "theirs-w-0")
        assert set(harness.bound()) == {"runs-w-0"}
        harness.deliver(PARENT)
        await harness.session()
        assert set(harness.bound()) == {"runs-w-0", "theirs-w-0"}
        harness.deliver_deletion(PARENT)
        await harness.session()
        # a repeated problem is reported again
        assert len([key for key, _ in misconfigured_events(harness) if key == "kid"]) == 2


@async_test
async def test_every_misconfigured_queue_is_reported() -> None:
    lost = [make_queue("a", parent="gone"), make_queue("b", parent="nowhere")]
    async with run_live_batch(NODE, ROOT, OTHER, *lost, make_group("g", queue="other"), conf=IN_A_TREE) as harness:
        await harness.session()
        (_, first), (_, second), (group, reason) = misconfigured_events(harness)
        assert "the parent gone of queue a" in first
        assert "the parent nowhere of queue b" in second
        assert (group, reason) == ("default/g", first)  # one reason is enough


@async_test
async def test_a_parent_with_jobs_is_reported() -> None:
    async with run_live_batch(NODE, ROOT, PARENT, CHILD, make_group("g", queue="par"), conf=IN_A_TREE) as harness:
        await harness.session()
        assert [key for key, _ in misconfigured_events(harness)] == ["default/g", "par"]
        assert all(
            "queue par has jobs and is the parent of kid; move the jobs" in note
            for _, note in misconfigured_events(harness)
        )


@async_test
async def test_only_queues_below_a_cycle_are_reported_in_one_event() -> None:
    ring = [make_queue("x", parent="y"), make_queue("y", parent="x"), make_queue("below", parent="x")]
    groups = [make_group("lost", queue="below"), make_group("fine", queue="other")]
    async with run_live_batch(NODE, ROOT, OTHER, *ring, *groups, pending_pod("fine"), conf=IN_A_TREE) as harness:
        await harness.session()
        await harness.session()
        assert [key for key, _ in misconfigured_events(harness)] == ["below", "default/lost", "x", "y"]
        note = dict(misconfigured_events(harness))["x"]
        assert "queues form a cycle of parents" in note
        assert "queue x is its own ancestor, or below one that is; it gets nothing" in note
        assert harness.bound() == {"fine-w-0": "n"}


@async_test
async def test_contradicting_hypernodes_are_reported_on_them_and_on_waiting_groups() -> None:
    places = [make_hyper_node("h-top", tier=2, children=["h-top"]), make_hyper_node("leaf", nodes=["n"])]
    close, loose = make_group("close", network_topology=HARD), make_group("loose")
    objects = [NODE, make_queue(), *places, close, loose]
    async with run_live_batch(*objects, pending_pod("close"), pending_pod("loose")) as harness:
        await harness.session()
        await harness.session()
        fault = f"hypernodes form a cycle: h-top > h-top; remove one of them; {UNREADY}"
        assert misconfigured_events(harness) == [("default/close", fault), ("h-top", fault)]
        assert fault in await condition_message(harness, "close-w-0")
        assert harness.bound() == {"loose-w-0": "n"}
        harness.deliver_deletion(places[0])
        await harness.session()
        assert harness.bound() == {"loose-w-0": "n", "close-w-0": "n"}
        assert len(misconfigured_events(harness)) == 2


def of_type(kind: str) -> volcano.HyperNode:
    member = volcano.MemberSpec(kind, volcano.MemberSelector(exact_match=volcano.ExactMatch("n")))
    return volcano.HyperNode(metadata=ObjectMeta(name="h"), spec=volcano.HyperNodeSpec(1, "", (member,)))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        pytest.param(make_hyper_node("h", pattern="node-["), 'the pattern "node-[" is invalid', id="pattern"),
        pytest.param(of_type("Rack"), 'the member type "Rack" is unknown; use Node or HyperNode', id="type"),
    ],
)
@async_test
async def test_invalid_members_are_reported_on_the_hypernode_and_on_waiting_groups(
    place: volcano.HyperNode, words: str
) -> None:
    close, loose = make_group("close", network_topology=HARD), make_group("loose")
    objects = [NODE, make_queue(), place, close, loose]
    async with run_live_batch(*objects, pending_pod("close"), pending_pod("loose"), conf=CLOSE) as harness:
        await harness.session()
        await harness.session()
        (group, reason), (name, note) = misconfigured_events(harness)
        assert (group, name) == ("default/close", "h")
        assert words in note
        assert note.endswith("; the member matches no node")
        assert reason == f"{note}; the group has a network topology and may wait for this"
        assert reason in await condition_message(harness, "close-w-0")


@async_test
async def test_missing_members_are_reported_on_the_hypernode() -> None:
    async with run_live_batch(NODE, make_queue(), make_hyper_node("h", nodes=["n", "gone"])) as harness:
        await harness.session()
        assert misconfigured_events(harness) == [
            ("h", "hypernode h: 1 member(s) do not exist: gone; they match no node")
        ]
