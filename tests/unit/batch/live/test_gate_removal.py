"""Removal of the queue admission gate: the pods that lose it, and when."""

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


def gated_pod(name: str, *other_gates: str, is_requested: bool = True) -> Pod:
    """A pod with the queue admission gate, and perhaps other gates."""
    annotations = {QUEUE_ALLOCATION_GATE: "true"} if is_requested else {}
    return make_member(name, gates=(QUEUE_ALLOCATION_GATE, *other_gates), annotations=annotations)


def ungated_pod(name: str) -> Pod:
    return make_member(name, annotations={QUEUE_ALLOCATION_GATE: "true"})


@async_test
async def test_a_pod_within_its_queues_capacity_loses_the_gate_and_is_placed() -> None:
    async with run_live_batch(*WORLD, gated_pod("a"), conf=CAPACITY, options=ADMITS) as rig:
        outcome = await rig.session()
        assert (outcome.binds, outcome.messages) == ({}, {})
        (patch,) = rig.sent("PATCH", "/pods/a")
        assert patch == {"metadata": {"uid": "pod-a"}, "spec": REMOVAL}
        rig.deliver(ungated_pod("a"))
        assert (await rig.session()).binds == {"default/a": "n"}
        assert len(rig.sent("PATCH", "/pods/a")) == 1


@pytest.mark.parametrize(
    ("pod", "options"),
    [
        pytest.param(gated_pod("a"), BatchOptions(), id="feature-gate-off"),
        pytest.param(gated_pod("a", "example.com/mine"), ADMITS, id="held-by-another-gate"),
        pytest.param(gated_pod("a", is_requested=False), ADMITS, id="gate-not-requested"),
    ],
)
def test_gates_that_are_not_removed(pod: Pod, options: BatchOptions) -> None:
    @async_test
    async def run() -> None:
        async with run_live_batch(*WORLD, pod, conf=CAPACITY, options=options) as rig:
            assert not (await rig.session()).admitted
            assert rig.sent("PATCH", "/pods/a") == []

    run()


@async_test
async def test_only_as_many_gates_are_removed_as_the_queue_has_capacity() -> None:
    pods = [gated_pod(name) for name in "abcd"]
    async with run_live_batch(*WORLD, *pods, conf=CAPACITY, options=ADMITS) as rig:
        first = set((await rig.session()).admitted)
        assert len(first) == 2
        names = sorted(key.removeprefix("default/") for key in first)
        rig.deliver(ungated_pod(names[0]))  # the resources of an admitted pod without a node stay reserved
        outcome = await rig.session()
        assert set(outcome.admitted) <= first
        assert outcome.binds == {f"default/{names[0]}": "n"}


@async_test
async def test_resources_stay_reserved_for_an_admitted_pod_without_a_node() -> None:
    big = make_member("big", requests={"cpu": "2"}, annotations={QUEUE_ALLOCATION_GATE: "true"})
    small = make_node("n", cpu=1)
    async with run_live_batch(small, *WORLD[1:], big, gated_pod("a"), conf=CAPACITY, options=ADMITS) as rig:
        assert not (await rig.session()).admitted


@async_test
async def test_a_refused_removal_is_retried_after_a_backoff() -> None:
    async with run_live_batch(*WORLD, gated_pod("a"), conf=CAPACITY, options=ADMITS) as rig:
        rig.fail_next("PATCH", "/pods/a", status(403, "Forbidden"))
        await rig.session()
        await rig.session()
        assert len(rig.sent("PATCH", "/pods/a")) == 1
        rig.clock.advance(10)
        await rig.session()
        assert len(rig.sent("PATCH", "/pods/a")) == 2


@async_test
async def test_the_backoff_of_a_refused_removal_grows() -> None:
    async with run_live_batch(*WORLD, gated_pod("a"), conf=CAPACITY, options=ADMITS) as rig:
        rig.fail_next("PATCH", "/pods/a", *[status(403, "Forbidden")] * 5)
        counts = []
        for _ in range(3):
            for _ in range(50):
                await rig.session()
                rig.clock.advance(1)
            counts.append(len(rig.sent("PATCH", "/pods/a")))
        assert counts == [3, 4, 5]


@async_test
async def test_the_backoff_of_a_pod_is_independent_of_other_pods() -> None:
    async with run_live_batch(*WORLD, gated_pod("a"), gated_pod("b"), conf=CAPACITY, options=ADMITS) as rig:
        for name in "ab":
            rig.fail_next("PATCH", f"/pods/{name}", status(403, "Forbidden"))
        for _ in range(3):
            await rig.session()
        assert [len(rig.sent("PATCH", f"/pods/{name}")) for name in "ab"] == [1, 1]


@async_test
async def test_refusals_expire_some_time_after_the_last_one() -> None:
    pods = gated_pod("a"), gated_pod("b")
    async with run_live_batch(*WORLD, *pods, conf=CAPACITY, options=ADMITS) as rig:
        removals = rig.live.admissions
        for pod in pods:
            rig.fail_next("PATCH", f"/pods/{pod.name}", *[status(403, "Forbidden")] * 9)
        for pod, pause_s in ((pods[0], 10.0), (pods[0], 20.0 + 2 * LAST_PAUSE_S), (pods[1], 0.0)):
            removals.start(pod)
            await rig.live.writes.drain()
            rig.clock.advance(pause_s)
        assert set(removals._refused) == {pods[1].uid}
