"""Pods that are held by a gate until their queue has room: who is let go, and when."""

from __future__ import annotations

import pytest

from bayplan.batch.live.gate_removal import LAST_PAUSE_S
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.model.tasks import QUEUE_ALLOCATION_GATE
from bayplan.objects.core import Pod
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import GANGS
from support.fakes.http_server import status
from support.harness.async_tests import async_test
from support.harness.live_batch import run_live_batch

CAPACITY = GANGS.replace("nodeorder", "capacity")
ADMITS = BatchOptions(queue_admission=True)
WORLD = (make_node("n", cpu=8), make_queue(capability={"cpu": "2"}), make_group(min_member=1, queue="q"))
REMOVAL = {"schedulingGates": [{"name": QUEUE_ALLOCATION_GATE, "$patch": "delete"}]}


def held(name: str, *others: str, asked: bool = True) -> Pod:
    """A pod that is held until its queue has room, and by others."""
    annotations = {QUEUE_ALLOCATION_GATE: "true"} if asked else {}
    return make_member(name, gates=(QUEUE_ALLOCATION_GATE, *others), annotations=annotations)


def admitted(name: str) -> Pod:
    return make_member(name, annotations={QUEUE_ALLOCATION_GATE: "true"})


@async_test
async def test_who_has_room_in_the_queue_loses_the_gate_and_is_placed_when_that_is_seen() -> None:
    async with run_live_batch(*WORLD, held("a"), conf=CAPACITY, options=ADMITS) as rig:
        outcome = await rig.session()
        assert (outcome.binds, outcome.messages) == ({}, {})
        (patch,) = rig.sent("PATCH", "/pods/a")
        assert patch == {"metadata": {"uid": "pod-a"}, "spec": REMOVAL}
        rig.deliver(admitted("a"))
        assert (await rig.session()).binds == {"default/a": "n"}
        assert len(rig.sent("PATCH", "/pods/a")) == 1


@pytest.mark.parametrize(
    ("pod", "options"),
    [
        pytest.param(held("a"), BatchOptions(), id="feature-gate-off"),
        pytest.param(held("a", "example.com/mine"), ADMITS, id="held-by-another-gate"),
        pytest.param(held("a", asked=False), ADMITS, id="nobody-asked-for-the-gate"),
    ],
)
def test_whose_gate_is_not_for_us_to_remove(pod: Pod, options: BatchOptions) -> None:
    @async_test
    async def left_alone() -> None:
        async with run_live_batch(*WORLD, pod, conf=CAPACITY, options=options) as rig:
            assert not (await rig.session()).admitted
            assert rig.sent("PATCH", "/pods/a") == []

    left_alone()


@async_test
async def test_no_more_are_let_go_than_the_queue_has_room_for() -> None:
    pods = [held(name) for name in "abcd"]
    async with run_live_batch(*WORLD, *pods, conf=CAPACITY, options=ADMITS) as rig:
        first = set((await rig.session()).admitted)
        assert len(first) == 2
        names = sorted(key.removeprefix("default/") for key in first)
        rig.deliver(admitted(names[0]))  # the room of who was let go and has no node yet stays kept
        outcome = await rig.session()
        assert set(outcome.admitted) <= first
        assert outcome.binds == {f"default/{names[0]}": "n"}


@async_test
async def test_room_is_kept_for_who_was_let_go_and_finds_no_node() -> None:
    big = make_member("big", requests={"cpu": "2"}, annotations={QUEUE_ALLOCATION_GATE: "true"})
    small = make_node("n", cpu=1)
    async with run_live_batch(small, *WORLD[1:], big, held("a"), conf=CAPACITY, options=ADMITS) as rig:
        assert not (await rig.session()).admitted


@async_test
async def test_a_removal_that_is_refused_is_tried_again_after_a_pause() -> None:
    async with run_live_batch(*WORLD, held("a"), conf=CAPACITY, options=ADMITS) as rig:
        rig.fail_next("PATCH", "/pods/a", status(403, "Forbidden"))
        await rig.session()
        await rig.session()
        assert len(rig.sent("PATCH", "/pods/a")) == 1
        rig.clock.advance(10)
        await rig.session()
        assert len(rig.sent("PATCH", "/pods/a")) == 2


@async_test
async def test_a_gate_whose_removal_is_refused_is_tried_less_and_less_often() -> None:
    async with run_live_batch(*WORLD, held("a"), conf=CAPACITY, options=ADMITS) as rig:
        rig.fail_next("PATCH", "/pods/a", *[status(403, "Forbidden")] * 5)
        counts = []
        for _ in range(3):
            for _ in range(50):
                await rig.session()
                rig.clock.advance(1)
            counts.append(len(rig.sent("PATCH", "/pods/a")))
        assert counts == [3, 4, 5]


@async_test
async def test_the_pause_of_one_pod_goes_on_when_the_removal_of_another_is_refused() -> None:
    async with run_live_batch(*WORLD, held("a"), held("b"), conf=CAPACITY, options=ADMITS) as rig:
        for name in "ab":
            rig.fail_next("PATCH", f"/pods/{name}", status(403, "Forbidden"))
        for _ in range(3):
            await rig.session()
        assert [len(rig.sent("PATCH", f"/pods/{name}")) for name in "ab"] == [1, 1]


@async_test
async def test_refusals_are_forgotten_some_time_after_the_last_one() -> None:
    pods = held("a"), held("b")
    async with run_live_batch(*WORLD, *pods, conf=CAPACITY, options=ADMITS) as rig:
        removals = rig.live.admissions
        for pod in pods:
            rig.fail_next("PATCH", f"/pods/{pod.name}", *[status(403, "Forbidden")] * 9)
        for pod, pause_s in ((pods[0], 10.0), (pods[0], 20.0 + 2 * LAST_PAUSE_S), (pods[1], 0.0)):
            removals.start(pod)
            await rig.live.writes.drain()
            rig.clock.advance(pause_s)
        assert set(removals._refused) == {pods[1].uid}
