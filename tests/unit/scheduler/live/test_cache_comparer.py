"""Cache comparer: no output without differences, and a message for every kind of difference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.objects.meta import KubeObject
from bayplan.scheduler.live.cache_comparer import CacheComparison, compare_cache
from support.builders.framework import make_node, make_pod
from support.fakes.http_server import NoAnswer
from support.harness.async_tests import async_test
from support.harness.live_scheduler import LiveSchedulerHarness, run_live_scheduler

NODE = make_node("n", cpu="4")
BOUND = make_pod("bound", cpu="1", node="n")
LARGE = make_pod("large", cpu="100")


def compared(harness: LiveSchedulerHarness) -> CacheComparison:
    known: list[KubeObject] = list(harness._known.values())
    return compare_cache(harness.live, known, known)


@async_test
async def test_no_differences() -> None:
    elsewhere = make_pod("elsewhere", cpu="1", node="unknown")
    foreign = make_pod("foreign", cpu="1", scheduler_name="another")
    async with run_live_scheduler(NODE, BOUND, LARGE, elsewhere, foreign) as harness:
        found = compared(harness)
        assert found.differences == []
        assert found.nodes["n"].pods == {"default/bound"}
        assert found.nodes["n"].requested["cpu"] == 1000
        assert found.queued == {"default/large": "unschedulable"}
        last = list(found.lines())[-1]
        assert json.loads(last.removeprefix("comparison: ")) == found.summary()


@async_test
async def test_assumed_pods_are_no_difference() -> None:
    async with run_live_scheduler(NODE) as harness:
        harness.fail_next("POST", "/binding", NoAnswer())
        harness.deliver(make_pod("p", cpu="1"))
        await harness.wait_for_request("POST", "/binding")
        found = compared(harness)
        assert found.differences == []
        assert found.assumed == ["default/p"]
        assert found.nodes["n"].pods == {"default/p"}


def forget_node(harness: LiveSchedulerHarness) -> None:
    harness.live.engine.cache.remove_node("n")


def forget_pod(harness: LiveSchedulerHarness) -> None:
    harness.live.engine.cache.remove_pod(harness.latest(BOUND))


def forget_waiting(harness: LiveSchedulerHarness) -> None:
    harness.live.queue.delete(harness.latest(LARGE))


def invent_pod(harness: LiveSchedulerHarness) -> None:
    harness.live.engine.cache.add_pod(make_pod("ghost", cpu="1", node="n"))


def invent_node(harness: LiveSchedulerHarness) -> None:
    harness.live.engine.cache.add_node(make_node("ghost"))


def miscount(harness: LiveSchedulerHarness) -> None:
    harness.live.engine.cache._nodes.requested[0, 0] += 5


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (forget_node, "node n is missing"),
        (forget_pod, "node n lacks pods ['default/bound']"),
        (forget_waiting, "pod default/large is pending and in no queue"),
        (invent_pod, "node n has redundant pods ['default/ghost']"),
        (invent_node, "node ghost is redundant"),
        (miscount, "node n has {"),
    ],
)
def test_differences(spoil: Any, fault: str) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(NODE, BOUND, LARGE) as harness:
            spoil(harness)
            found = compared(harness)
            assert any(each.startswith(fault) for each in found.differences), found.differences
            assert any(line.startswith(f"cache mismatch: {fault}") for line in found.lines())

    test()
