"""What somebody must mend is told on the object, once, and to everybody who waits for it."""

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


def waiting(name: str) -> Pod:
    """A pod of the group of this name, as the API server shows it."""
    pod = make_member(f"{name}-w-0", name, requests={"cpu": "1"})
    return replace_fields(pod, spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending"))


def told(rig: LiveBatchHarness) -> list[tuple[str, str]]:
    return sorted(rig.events.about("Misconfigured"))


async def why(rig: LiveBatchHarness, name: str) -> str:
    explainer = BatchExplainer(rig.live)
    pod = explainer.find("default", name)
    assert pod is not None
    return (await explainer.answer(pod)).sentence


@async_test
async def test_a_parent_that_is_deleted_is_told_on_its_children_and_on_all_who_wait() -> None:
    groups = [make_group("theirs", queue="other"), make_group("coming", queue="other", min_member=1)]
    queues = [ROOT, PARENT, CHILD, OTHER]
    async with run_live_batch(NODE, *queues, make_group("runs", queue="kid"), waiting("runs"), conf=IN_A_TREE) as rig:
        await rig.session()
        assert rig.bound() == {"runs-w-0": "n"}
        assert told(rig) == []
        rig.deliver(replace_fields(waiting("runs"), spec={"node_name": "n"}, status=PodStatus(phase="Running")))
        rig.deliver_deletion(PARENT)
        rig.deliver(*groups, waiting("theirs"))
        await rig.session()
        await rig.session()
        stopped = [("default/coming", NO_PARENT), ("default/theirs", NO_PARENT), ("kid", NO_PARENT)]
        assert told(rig) == stopped  # once each; who waits for its pods to be made is told, and who runs is not
        assert NO_PARENT in await why(rig, "theirs-w-0")
        assert set(rig.bound()) == {"runs-w-0"}
        rig.deliver(PARENT)
        await rig.session()
        assert set(rig.bound()) == {"runs-w-0", "theirs-w-0"}
        rig.deliver_deletion(PARENT)
        await rig.session()
        assert len([key for key, _ in told(rig) if key == "kid"]) == 2  # what is wrong again is told again


@async_test
async def test_every_queue_that_must_be_mended_is_told() -> None:
    lost = [make_queue("a", parent="gone"), make_queue("b", parent="nowhere")]
    async with run_live_batch(NODE, ROOT, OTHER, *lost, make_group("g", queue="other"), conf=IN_A_TREE) as rig:
        await rig.session()
        (_, first), (_, second), (group, reason) = told(rig)
        assert "the parent gone of queue a" in first
        assert "the parent nowhere of queue b" in second
        assert (group, reason) == ("default/g", first)  # one reason is enough


@async_test
async def test_a_parent_with_jobs_is_told() -> None:
    async with run_live_batch(NODE, ROOT, PARENT, CHILD, make_group("g", queue="par"), conf=IN_A_TREE) as rig:
        await rig.session()
        assert [key for key, _ in told(rig)] == ["default/g", "par"]
        assert all("queue par has jobs and is the parent of kid; move the jobs" in note for _, note in told(rig))


@async_test
async def test_only_those_below_a_cycle_of_queues_are_told_and_all_in_one_event() -> None:
    ring = [make_queue("x", parent="y"), make_queue("y", parent="x"), make_queue("below", parent="x")]
    groups = [make_group("lost", queue="below"), make_group("fine", queue="other")]
    async with run_live_batch(NODE, ROOT, OTHER, *ring, *groups, waiting("fine"), conf=IN_A_TREE) as rig:
        await rig.session()
        await rig.session()
        assert [key for key, _ in told(rig)] == ["below", "default/lost", "x", "y"]
        note = dict(told(rig))["x"]
        assert "queues form a cycle of parents" in note
        assert "queue x is its own ancestor, or below one that is; it gets nothing" in note
        assert rig.bound() == {"fine-w-0": "n"}


@async_test
async def test_hypernodes_that_contradict_each_other_are_told_and_so_are_groups_that_wait_for_them() -> None:
    places = [make_hyper_node("h-top", tier=2, children=["h-top"]), make_hyper_node("leaf", nodes=["n"])]
    close, loose = make_group("close", network_topology=HARD), make_group("loose")
    objects = [NODE, make_queue(), *places, close, loose]
    async with run_live_batch(*objects, waiting("close"), waiting("loose")) as rig:
        await rig.session()
        await rig.session()
        fault = f"hypernodes form a cycle: h-top > h-top; remove one of them; {UNREADY}"
        assert told(rig) == [("default/close", fault), ("h-top", fault)]
        assert fault in await why(rig, "close-w-0")
        assert rig.bound() == {"loose-w-0": "n"}
        rig.deliver_deletion(places[0])
        await rig.session()
        assert rig.bound() == {"loose-w-0": "n", "close-w-0": "n"}
        assert len(told(rig)) == 2


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
async def test_members_that_cannot_be_read_are_told_on_the_hypernode_and_on_groups_that_wait(
    place: volcano.HyperNode, words: str
) -> None:
    close, loose = make_group("close", network_topology=HARD), make_group("loose")
    objects = [NODE, make_queue(), place, close, loose]
    async with run_live_batch(*objects, waiting("close"), waiting("loose"), conf=CLOSE) as rig:
        await rig.session()
        await rig.session()
        (group, reason), (name, note) = told(rig)
        assert (group, name) == ("default/close", "h")
        assert words in note
        assert note.endswith("; the member matches no node")
        assert reason == f"{note}; the group has a network topology and may wait for this"
        assert reason in await why(rig, "close-w-0")


@async_test
async def test_members_that_are_not_there_are_told_on_the_hypernode() -> None:
    async with run_live_batch(NODE, make_queue(), make_hyper_node("h", nodes=["n", "gone"])) as rig:
        await rig.session()
        assert told(rig) == [("h", "hypernode h: 1 member(s) do not exist: gone; they match no node")]
