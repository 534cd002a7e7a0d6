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
    async with run_live_batch(*WORLD, gated_pod("a"), conf=CAPACITY, options=ADMITS) as harness:
        outcome = await harness.session()
        assert (outcome.binds, outcome.messages) == ({}, {})
        (patch,) = harness.sent("PATCH", "/pods/a")
        assert patch == {"metadata": {"uid": "pod-a"}, "spec": REMOVAL}
        harness.deliver(ungated_pod("a"))
        assert (await harness.session()).binds == {"default/a": "n"}
        assert len(harness.sent("PATCH", "/pods/a")) == 1


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
        async with run_live_batch(*WORLD, pod, conf=CAPACITY, options=options) as harness:
            assert not (await harness.session()).admitted
            assert harness.sent("PATCH", "/pods/a") == []

    run()


@async_test
async def test_only_as_many_gates_are_removed_as_the_queue_has_capacity() -> None:
    pods = [gated_pod(name) for name in "abcd"]
    async with run_live_batch(*WORLD, *pods, conf=CAPACITY, options=ADMITS) as harness:
        first = set((await harness.session()).admitted)
        assert len(first) == 2
        names = sorted(key.removeprefix("default/") for key in first)
        harness.deliver(ungated_pod(names[0]))  # the resources of an admitted pod without a node stay reserved
        outcome = await harness.session()
        assert set(outcome.admitted) <= first
        assert outcome.binds == {f"default/{names[0]}": "n"}


@async_test
async def test_resources_stay_reserved_for_an_admitted_pod_without_a_node() -> None:
    big = make_member("big", requests={"cpu": "2"}, annotations={QUEUE_ALLOCATION_GATE: "true"})
    small = make_node("n", cpu=1)
    async with run_live_batch(small, *WORLD[1:], big, gated_pod("a"), conf=CAPACITY, options=ADMITS) as harness:
        assert not (await harness.session()).admitted


@async_test
async def test_a_refused_removal_is_retried_after_a_backoff() -> None:
    async with run_live_batch(*WORLD, gated_pod("a"), conf=CAPACITY, options=ADMITS) as harness:
        harness.fail_next("PATCH", "/pods/a", status(403, "Forbidden"))
        await harness.session()
        await harness.session()
        assert len(harness.sent("PATCH", "/pods/a")) == 1
        harness.clock.advance(10)
        await harness.session()
        assert len(harness.sent("PATCH", "/pods/a")) == 2


@async_test
async def test_the_backoff_of_a_refused_removal_grows() -> None:
    async with run_live_batch(*WORLD, gated_pod("a"), conf=CAPACITY, options=ADMITS) as harness:
        harness.fail_next("PATCH", "/pods/a", *[status(403, "Forbidden")] * 5)
        counts = []
        for _ in range(3):
            for _ in range(50):
                await harness.session()
                harness.clock.advance(1)
            counts.append(len(harness.sent("PATCH", "/pods/a")))
        assert counts == [3, 4, 5]


@async_test
async def test_the_backoff_of_a_pod_is_independent_of_other_pods() -> None:
    async with run_live_batch(*WORLD, gated_pod("a"), gated_pod("b"), conf=CAPACITY, options=ADMITS) as harness:
        for name in "ab":
            harness.fail_next("PATCH", f"/pods/{name}", status(403, "Forbidden"))
        for _ in range(3):
            await harness.session()
        assert [len(harness.sent("PATCH", f"/pods/{name}")) for name in "ab"] == [1, 1]


@async_test
async def test_refusals_expire_some_time_after_the_last_one() -> None:
    pods = gated_pod("a"), gated_pod("b")
    async with run_live_batch(*WORLD, *pods, conf=CAPACITY, options=ADMITS) as harness:
        removals = harness.live.admissions
        for pod in pods:
            harness.fail_next("PATCH", f"/pods/{pod.name}", *[status(403, "Forbidden")] * 9)
        for pod, pause_s in ((pods[0], 10.0), (pods[0], 20.0 + 2 * LAST_PAUSE_S), (pods[1], 0.0)):
            removals.start(pod)
            await harness.live.writes.drain()
            harness.clock.advance(pause_s)
        assert set(removals._refused) == {pods[1].uid}
