"""Group preemption: victims for a whole group, anywhere in the cluster, and no more than it needs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from bayplan.app import known_plugins
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.framework.api.status import unschedulable
from bayplan.objects.core import Node, Pod, PodSchedulingGroup
from bayplan.objects.meta import KubeObject, LabelSelector, ObjectMeta
from bayplan.objects.workloads import (
    GangPolicy,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    PodGroup,
    PodGroupSchedulingConstraints,
    PodGroupSchedulingPolicy,
    PodGroupSpec,
    TopologyConstraint,
)
from bayplan.queue.queued_pod import SubQueue
from bayplan.scheduler.cycle.http_extender import ExtenderCall, ExtenderReply
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.scheduler.pod_groups.group_attempts import GroupAttempts
from bayplan.scheduler.pod_groups.group_preemption import GroupPreemption
from support.builders.framework import make_node, make_pod, replace_fields
from support.fakes.http_server import status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_scheduler import LiveSchedulerHarness, conditions, run_live_scheduler

GATES = ("GenericWorkload", "GangScheduling", "WorkloadAwarePreemption")
NODES = [make_node(name, cpu="2") for name in ("n1", "n2")]
ALONE = "pod group is unschedulable"
CONFIG = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def group(name: str = "gang", count: int = 2, priority: int | None = 10, **spec: Any) -> PodGroup:
    policy = PodGroupSchedulingPolicy(gang=GangPolicy(min_count=count))
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-of-{name}")
    return PodGroup(metadata=meta, spec=PodGroupSpec(scheduling_policy=policy, priority=priority, **spec))


def of(name: str, pod: Pod) -> Pod:
    return replace_fields(pod, spec={"scheduling_group": PodSchedulingGroup(pod_group_name=name)})


def strong(*names: str, cpu: str = "2", **fields: Any) -> list[Pod]:
    return [of("gang", make_pod(name, cpu=cpu, priority=10, **fields)) for name in names]


def weak(name: str, node: str, cpu: str = "1", **fields: Any) -> Pod:
    return make_pod(name, node=node, cpu=cpu, **{"priority": 0, **fields})


def started(pod: Pod, minute: int) -> Pod:
    return replace_fields(pod, status={"start_time": datetime(2025, 1, 1, 0, minute, tzinfo=UTC)})


def written_conditions(harness: LiveSchedulerHarness) -> list[tuple[str, str, str]]:
    """Every condition that was written to the group."""
    written = [patch["status"]["conditions"][-1] for patch in harness.sent("PATCH", "/podgroups/gang/status")]
    return [(each["status"], each["reason"], each["message"]) for each in written]


def evicted_pods(harness: LiveSchedulerHarness) -> set[str]:
    return {each.path.rpartition("/")[2] for each in harness.server.requests if each.method == "DELETE"}


def member_messages(harness: LiveSchedulerHarness) -> list[str]:
    return [each["message"] for each in conditions(harness)]


async def victims(*objects: KubeObject, nodes: list[Node] = NODES, expected: int) -> set[str]:
    """Names of the evicted pods."""
    async with run_live_scheduler(*nodes, *objects, gates=GATES) as harness:
        await harness.wait_for_request("DELETE", "", times=expected)
        await harness.idle()
        assert harness.bound() == {}
        return evicted_pods(harness)


@async_test
async def test_victims_are_evicted_and_the_group_is_placed() -> None:
    theirs = [weak("w1", "n1"), weak("w2", "n2")]
    async with run_live_scheduler(*NODES, *theirs, group(), *strong("a", "b"), gates=GATES) as harness:
        await harness.wait_for_request("DELETE", "", times=2)
        await harness.idle()
        assert harness.bound() == {}
        assert evicted_pods(harness) == {"w1", "w2"}
        assert written_conditions(harness) == [("False", "Unschedulable", ALONE)]
        own = "preemption: not eligible due to workload aware preemption enabled"
        assert all(message.endswith(own) for message in member_messages(harness))
        notes = {event.about: event.note for event in harness.events.recorded if event.reason == "Preempted"}
        assert notes == dict.fromkeys(("w1", "w2"), "Preempted by podgroup uid-of-gang on node cluster")
        (patch,) = harness.sent("PATCH", "/pods/w1/status")
        assert patch["status"]["conditions"][0]["message"] == (
            "default-scheduler: preempting to accommodate a higher priority podgroup"
        )
        harness.deliver_deletion(*theirs)
        harness.clock.advance(30)
        await harness.idle()
        assert set(harness.bound()) == {"a", "b"}
        assert written_conditions(harness)[-1][:2] == ("True", "Scheduled")


@async_test
async def test_pods_on_other_nodes_are_not_evicted() -> None:
    theirs = [weak("w1", "n1", "2"), weak("w2", "n2", "2"), weak("w3", "n3", "1")]
    nodes = [*NODES, make_node("n3", cpu="2")]
    assert await victims(*theirs, group(count=1), *strong("a"), nodes=nodes, expected=1) == {"w3"}


@async_test
async def test_the_most_important_pods_are_not_evicted() -> None:
    theirs = [weak("high", "n1", "2", priority=5), weak("low", "n2", "2", priority=1)]
    assert await victims(*theirs, group(count=1), *strong("a"), expected=1) == {"low"}


@async_test
async def test_of_equal_pods_the_older_one_is_not_evicted() -> None:
    theirs = [started(weak("young", "n1", "2"), 9), started(weak("old", "n2", "2"), 1)]
    assert await victims(*theirs, group(count=1), *strong("a"), expected=1) == {"young"}


@async_test
async def test_a_pod_of_a_group_is_more_important_than_a_pod_without_one() -> None:
    theirs = [started(weak("alone", "n1", "2"), 1), of("other", started(weak("mate", "n2", "2"), 9))]
    assert await victims(*theirs, group("other", 1, 0), group(count=1), *strong("a"), expected=1) == {"alone"}


@async_test
async def test_a_group_that_is_disrupted_as_a_whole_is_evicted_as_a_whole() -> None:
    theirs = [of("unit", weak("u1", "n1", "2")), of("unit", weak("u2", "n2", "2"))]
    unit = group("unit", 1, 0, disruption_mode="PodGroup")
    assert await victims(*theirs, unit, group(count=1), *strong("a"), expected=2) == {"u1", "u2"}


@async_test
async def test_the_priority_of_a_unit_is_that_of_its_group() -> None:
    unit = group("unit", 1, 10, disruption_mode="PodGroup")
    async with run_live_scheduler(
        *NODES, of("unit", weak("u1", "n1")), unit, group(), *strong("a", "b"), gates=GATES
    ) as harness:
        assert evicted_pods(harness) == set()
        assert written_conditions(harness)[-1][2] == f"{ALONE}, No preemption victims found for incoming preemptor"


@async_test
async def test_the_smaller_of_two_groups_is_evicted() -> None:
    large = [of("large", weak(name, "n1")) for name in ("l1", "l2")]
    small = [of("small", weak("s1", "n2", "2"))]
    units = [group(name, 1, 0, disruption_mode="PodGroup") for name in ("large", "small")]
    assert await victims(*large, *small, *units, group(count=1), *strong("a"), expected=1) == {"s1"}


@async_test
async def test_a_disruption_budget_comes_before_importance() -> None:
    theirs = [weak("high", "n1", "2", priority=5), weak("low", "n2", "2", labels={"app": "db"})]
    spec = PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "db"}))
    none_allowed = PodDisruptionBudget(metadata=ObjectMeta(name="db", namespace="default"), spec=spec)
    assert await victims(*theirs, none_allowed, group(count=1), *strong("a"), expected=1) == {"high"}


def budget(label: str, allowed: int) -> PodDisruptionBudget:
    """A budget of the pods with this label that allows so many disruptions."""
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=label, namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={label: "yes"})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )


@pytest.mark.parametrize(
    ("labels", "budgets", "expected"),
    [
        pytest.param(("", "", "a"), {"a": 1}, "low", id="one-allowed-and-one-covered"),
        pytest.param(("", "", "a"), {"a": 0}, "mid", id="none-allowed"),
        pytest.param(("", "a", "a"), {"a": 1}, "mid", id="the-less-important-of-two-violates"),
        pytest.param(("", "a", "a"), {"a": 2}, "low", id="two-allowed-and-two-covered"),
        pytest.param(("", "ab", "b"), {"a": 0, "b": 1}, "low", id="a-violation-charges-no-further-budget"),
        pytest.param(("", "ab", "b"), {"a": 1, "b": 1}, "mid", id="a-pod-is-charged-to-each-of-its-budgets"),
        pytest.param(("", "", "b"), {"a": 0, "b": 0}, "mid", id="a-budget-of-another-namespace-is-ignored"),
    ],
)
@async_test
async def test_a_budget_is_charged_for_each_pod_that_it_covers(
    labels: tuple[str, ...], budgets: dict[str, int], expected: str
) -> None:
    """One of three pods on three nodes is evicted: the least important whose eviction violates no budget."""
    theirs = [
        weak(name, f"n{number}", "2", priority=4 - number, labels=dict.fromkeys(covered, "yes"))
        for number, (name, covered) in enumerate(zip(("high", "mid", "low"), labels, strict=True), 1)
    ]
    nodes = [*NODES, make_node("n3", cpu="2")]
    given = [budget(label, allowed) for label, allowed in budgets.items()]
    assert await victims(*theirs, *given, group(count=1), *strong("a"), nodes=nodes, expected=1) == {expected}


TOPOLOGY = PodGroupSchedulingConstraints(topology=(TopologyConstraint(key="zone"),))


@pytest.mark.parametrize(
    ("asking", "fields", "why"),
    [
        (group(priority=0), {}, "No preemption victims found for incoming preemptor"),
        (group(priority=None), {}, "No preemption victims found for incoming preemptor"),
        (group(), {"preemption_policy": "Never"}, "not eligible due to preemptionPolicy=Never."),
        (
            group(scheduling_constraints=TOPOLOGY),
            {},
            "workload aware preemption is not supported for pod groups with scheduling constraints",
        ),
        (group(), {"cpu": "3"}, ALONE),
    ],
    ids=["equal", "none", "never", "topology", "in vain"],
)
@async_test
async def test_reasons_against_preemption(asking: PodGroup, fields: dict[str, Any], why: str) -> None:
    async with run_live_scheduler(
        *NODES, weak("w1", "n1"), weak("w2", "n2"), asking, *strong("a", "b", **fields), gates=GATES
    ) as harness:
        assert (harness.bound(), evicted_pods(harness)) == ({}, set())
        assert written_conditions(harness) == [("False", "Unschedulable", f"{ALONE}, {why}")]
        assert [info.name for info in harness.live.engine.cache.pods()] == ["w1", "w2"]
        counts = harness.live.engine.snapshot().nodes.pod_count
        assert list(counts[:2]) == [1, 1]


@async_test
async def test_without_the_plugin_there_is_no_preemption() -> None:
    config = f"{CONFIG}profiles: [{{plugins: {{multiPoint: {{disabled: [{{name: DefaultPreemption}}]}}}}}}]"
    async with run_live_scheduler(
        *NODES, weak("w1", "n1"), group(), *strong("a", "b"), gates=GATES, config=config
    ) as harness:
        assert evicted_pods(harness) == set()
        reason = "default preemption plugin is not registered, workload aware preemption is disabled"
        assert written_conditions(harness) == [("False", "Unschedulable", f"{ALONE}, {reason}")]


@async_test
async def test_all_pods_of_the_group_are_gated_while_victims_are_evicted() -> None:
    pods = strong("a", "b")
    async with run_live_scheduler(*NODES, weak("w1", "n1"), weak("w2", "n2"), group(), gates=GATES) as harness:
        plugin = harness.live.engine.framework("default-scheduler").profile.instances["DefaultPreemption"]
        plugin.groups_preempt = True
        plugin.on_preemption_started(group())
        harness.deliver(*pods)
        await harness.idle()
        assert [harness.pool(pod) for pod in pods] == [SubQueue.UNSCHEDULABLE] * 2
        status = plugin.pre_enqueue(pods[0])
        assert status.message == "waiting for the preemption for this pod group to be finished"
        plugin.on_preemption_finished(group())
        assert plugin.pre_enqueue(pods[0]) is None


@async_test
async def test_the_group_is_retried_after_a_pause_if_a_victim_cannot_be_deleted() -> None:
    async with run_live_scheduler(*NODES, weak("w1", "n1"), weak("w2", "n2"), group(), gates=GATES) as harness:
        harness.objects["/api/v1/namespaces/default/pods/w1"] = weak("w1", "n1")
        harness.fail_next("DELETE", "/pods/w1", status(403, "Forbidden"))
        harness.deliver(*strong("a", "b"))
        await harness.wait_for_request("DELETE", "/pods/w1")
        await wait_until(lambda: harness.count("DELETE", "/pods/w1") == 2, tick=lambda: harness.clock.advance(0.1))
        await harness.idle()
        assert harness.clock.monotonic_s() >= 10.0
        assert (
            not harness.live.engine.framework("default-scheduler")
            .profile.instances["DefaultPreemption"]
            .is_preempting("uid-of-gang")
        )


@async_test
async def test_dry_runs_leave_no_record() -> None:
    async with run_live_scheduler(
        *NODES, weak("w1", "n1"), weak("w2", "n2"), group(), *strong("a", "b"), gates=GATES
    ) as harness:
        await harness.wait_for_request("DELETE", "", times=2)
        records = list(harness.live.engine.records)
        assert [record.node for record in records] == [None, None]


@async_test
async def test_other_tasks_run_and_see_all_pods() -> None:
    """During a long search other tasks see the real cluster."""
    seen: list[int] = []
    async with run_live_scheduler(
        *NODES, *(weak(f"w{n}", "n1", "100m") for n in range(5)), weak("w9", "n2"), gates=GATES
    ) as harness:
        assert harness.live.pod_group_cycle is not None
        preemption = harness.live.pod_group_cycle.preemption
        assert preemption is not None
        preemption.slice_s = -1.0

        class Clock:
            monotonic_s, now = harness.clock.monotonic_s, harness.clock.now

            async def sleep(self, _: float) -> None:
                seen.append(int(harness.live.engine.cache.snapshot().nodes.pod_count.sum()))

        preemption.clock = Clock()  # type: ignore[assignment]
        harness.deliver(group(), *strong("a", "b"))
        await harness.wait_for_request("DELETE", "", times=6)
        assert seen == [6] * 6


@async_test
async def test_during_an_extender_call_all_pods_are_visible() -> None:
    seen: list[int] = []

    def extended(live: LiveScheduler) -> None:
        async def ask(call: ExtenderCall) -> ExtenderReply:
            seen.append(sum(info.priority == 0 for pods in live.engine.cache.snapshot().nodes.pods for info in pods))
            return ExtenderReply(200, json.dumps({"NodeNames": call.arguments["NodeNames"]}).encode())

        assert live.pod_group_cycle is not None
        live.pod_group_cycle.groups = GroupAttempts(live.engine, live.queue, ask)
        live.pod_group_cycle.preemption = GroupPreemption(live.pod_group_cycle.groups, live.engine, live.clock)

    config = f"{CONFIG}extenders: [{{urlPrefix: 'http://x', filterVerb: f, nodeCacheCapable: true}}]"
    objects = weak("w1", "n1"), weak("w2", "n2", "100m"), group(), *strong("a", "b")
    async with run_live_scheduler(*NODES, *objects, gates=GATES, config=config, prepare=extended) as harness:
        await harness.wait_for_request("DELETE", "", times=2)
        assert evicted_pods(harness) == {"w1", "w2"}
        assert len(seen) > 2, "it is called for trials, too"
        assert set(seen) == {2}


class Acting:
    """A PostFilter plugin that records its calls."""

    name = "Acting"
    calls: ClassVar[list[str]] = []

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterResult:  # noqa: ARG002
        self.calls.append(cycle.pod.name)
        return PostFilterResult(unschedulable("in vain"))


@async_test
async def test_no_post_filter_runs_in_dry_runs() -> None:
    Acting.calls.clear()
    config = f"{CONFIG}profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: Acting}}]}}}}}}]"
    registry = known_plugins().with_plugins(Acting)
    objects = weak("w1", "n1"), weak("w2", "n2"), group(), *strong("a", "b")
    async with run_live_scheduler(*NODES, *objects, gates=GATES, config=config, registry=registry) as harness:
        await harness.wait_for_request("DELETE", "", times=2)
        assert sorted(Acting.calls) == ["a", "b"]
