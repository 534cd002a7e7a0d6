"""Batch explainer: pods of gangs and queues."""

from __future__ import annotations

from bayplan.batch.model.node_accounts import OVERSUBSCRIPTION_CPU
from bayplan.explain.answer_builder import NO_CHANGE_HELPS, NO_RECORD
from bayplan.explain.batch_explainer import BatchExplainer
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.volcano.types import QueueStatus
from bayplan.telemetry.answers import Answer, NodeRejection, ScoreMargin
from bayplan.telemetry.decisions import DecisionRing
from bayplan.testing.builders import make_node, make_pod
from support.builders.batch import make_group, make_member, make_queue
from support.builders.framework import replace_fields
from support.harness.async_tests import async_test
from support.harness.live_batch import LiveBatchHarness, run_live_batch

NODE = make_node("n", cpu=4, memory="8Gi")
SHARED = """\
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


def volcano_pods(*pods: Pod) -> list[Pod]:
    return [replace_fields(pod, spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending")) for pod in pods]


async def why(harness: LiveBatchHarness, name: str, *, now: bool = False) -> Answer:
    explainer = BatchExplainer(harness.live)
    pod = explainer.find("default", name)
    assert pod is not None
    assert explainer.serves(pod)
    return await explainer.answer(pod, now=now)


@async_test
async def test_the_answer_names_the_members_that_hold_the_gang_back_and_what_would_help() -> None:
    group = make_group("job", min_member=2)
    pods = volcano_pods(make_member("job-w-0", requests={"cpu": "1"}), make_member("job-m-0", requests={"cpu": "6"}))
    async with run_live_batch(NODE, make_queue(), group, *pods) as harness:
        await harness.session()
        await harness.session()
        answer = await why(harness, "job-m-0")
        assert (answer.engine, answer.state, answer.attempts) == ("batch", "pending", 2)
        assert answer.gang is not None
        assert (answer.gang.name, answer.gang.least, answer.gang.ready, answer.gang.tasks) == ("default/job", 2, 0, 2)
        assert answer.gang.holding_back[0].pod == "default/job-m-0"
        assert answer.gang.holding_back[0].reason.startswith("0/1 nodes are unavailable: 1 Insufficient cpu")
        assert [each.text for each in answer.reasons] == ["Insufficient cpu"]
        assert [change.text for change in answer.changes] == ["ask for 2 less CPU"]
        other = await why(harness, "job-w-0")
        assert other.closest == "n"
        assert other.no_change == "none is needed: it fits n now"


@async_test
async def test_the_answer_has_the_share_of_the_queue_and_its_borrowers() -> None:
    queues = [make_queue("q"), make_queue("greedy")]
    running = [
        replace_fields(make_member(f"big-w-{n}", "big", requests={"cpu": "1"}), spec={"node_name": "n"})
        for n in range(4)
    ]
    groups = [make_group("big", min_member=1, queue="greedy"), make_group("job", min_member=1)]
    waits = volcano_pods(make_member("job-w-0", requests={"cpu": "1"}))
    async with run_live_batch(NODE, *queues, *groups, *running, *waits, conf=SHARED) as harness:
        await harness.session()
        answer = await why(harness, "job-w-0")
        assert answer.queue is not None
        assert (answer.queue.name, answer.queue.share) == ("q", 0.0)
        assert answer.queue.deserved["cpu"] == "1"
        assert [(each.queue, each.over["cpu"]) for each in answer.queue.borrowers] == [("greedy", "1")]


@async_test
async def test_a_closed_queue_is_named() -> None:
    waits = volcano_pods(make_member("job-w-0", requests={"cpu": "1"}))
    shut = replace_fields(make_queue(), status=QueueStatus(state="Closed"))
    async with run_live_batch(NODE, shut, make_group("job", min_member=1), *waits, conf=SHARED) as harness:
        await harness.session()
        answer = await why(harness, "job-w-0")
        assert "its queue q is Closed and admits no job until it is opened" in answer.sentence


@async_test
async def test_the_counts_of_the_session_and_the_current_ones() -> None:
    group, (waits,) = make_group("job", min_member=1), volcano_pods(make_member("job-w-0", requests={"cpu": "6"}))
    async with run_live_batch(NODE, make_queue(), group, waits) as harness:
        await harness.session()
        recorded = await why(harness, "job-w-0")
        assert (recorded.source, recorded.reasons) == (
            "record",
            (NodeRejection(plugin="room", text="Insufficient cpu", nodes=1, names=("n",)),),
        )
        harness.deliver(make_node("m", cpu=4, memory="8Gi"), make_node("large", cpu=8, memory="8Gi"))
        await harness.live.handle_pending_events()
        still = await why(harness, "job-w-0")  # the record does not change with the cluster; suggestions do
        assert [(each.text, each.nodes, each.names) for each in still.reasons] == [("Insufficient cpu", 1, ())]
        assert still.closest == "large"
        afresh = await why(harness, "job-w-0", now=True)
        assert (afresh.source, afresh.nodes, afresh.feasible) == ("now", 3, 1)
        assert [(each.text, {*each.names}) for each in afresh.reasons] == [("Insufficient cpu", {"m", "n"})]
        assert "1 of 3 nodes would take it" in afresh.sentence


@async_test
async def test_an_overcommitted_node_takes_no_pod() -> None:
    guests = [make_pod(f"guest-{n}", node="n", memory="5Gi", priority=-n) for n in (1, 2)]
    group, (waits,) = make_group("job", min_member=1), volcano_pods(make_member("job-w-0", requests={"cpu": "1"}))
    async with run_live_batch(NODE, *guests, make_queue(), group, waits) as harness:
        await harness.session()
        answer = await why(harness, "job-w-0")
        assert answer.reasons == (NodeRejection(plugin="room", text="Insufficient memory", nodes=1, names=("n",)),)
        assert answer.sentence.endswith("0/1 nodes are unavailable: 1 Insufficient memory.")
        assert [(each.kind, each.evict) for each in answer.changes] == [("eviction", ("default/guest-2",))]


@async_test
async def test_oversubscribed_resources_of_a_node_count() -> None:
    lender = replace_fields(NODE, metadata={"annotations": {OVERSUBSCRIPTION_CPU: "2000"}})
    group, (waits,) = make_group("job", min_member=1), volcano_pods(make_member("job-w-0", requests={"cpu": "7"}))
    async with run_live_batch(lender, make_queue(), group, waits) as harness:
        await harness.session()
        assert [each.text for each in (await why(harness, "job-w-0")).changes] == ["ask for 1 less CPU"]


@async_test
async def test_a_pod_without_requests_waits_without_backfill() -> None:
    group, (waits,) = make_group("job", min_member=1), volcano_pods(make_member("job-w-0", requests={}))
    async with run_live_batch(NODE, make_queue(), group, waits, conf=SHARED) as harness:
        await harness.session()
        answer = await why(harness, "job-w-0")
        assert "backfill, which places such pods, is not among the actions" in answer.sentence
        assert (answer.changes, answer.together, answer.no_change) == ((), (), NO_CHANGE_HELPS)


@async_test
async def test_a_placed_pod_has_the_best_nodes_by_plugin() -> None:
    nodes = [make_node(name, cpu=cpu, memory="8Gi") for name, cpu in (("small", 2), ("mid", 4), ("large", 16))]
    group, (placed,) = make_group("job", min_member=1), volcano_pods(make_member("job-w-0", requests={"cpu": "1"}))
    async with run_live_batch(*nodes, make_queue(), group, placed, conf=SHARED) as harness:
        outcome = await harness.session()
        assert outcome.binds == {"default/job-w-0": "large"}
        answer = await why(harness, "job-w-0")
        assert (answer.state, answer.node, answer.waits_for) == ("binding", "large", "the binding to be written")
        harness.deliver(placed.bound_to("large"))
        await harness.live.handle_pending_events()
        answer = await why(harness, "job-w-0")
        assert (answer.state, answer.node, answer.source) == ("placed", "large", "record")
        assert [each.node for each in answer.best] == ["large", "mid", "small"]
        assert (answer.nodes, answer.feasible) == (3, 3)
        totals = [each.total for each in answer.best]
        assert totals == sorted(totals, reverse=True)
        for each in answer.best:
            assert each.by_plugin.keys() == {"nodeorder"}
            assert sum(each.by_plugin.values()) == each.total
        assert answer.choice == ScoreMargin(
            second="mid", ahead=totals[0] - totals[1], plugin="nodeorder", margin=totals[0] - totals[1]
        )
        assert answer.sentence.startswith("default/job-w-0 is on large: best of 3 with ")
        assert answer.decided_at is not None


@async_test
async def test_a_discarded_placement_leaves_no_record() -> None:
    group = make_group("job", min_member=2)
    pods = volcano_pods(make_member("job-w-0", requests={"cpu": "1"}), make_member("job-m-0", requests={"cpu": "6"}))
    other = make_node("m", cpu=4, memory="8Gi")
    async with run_live_batch(NODE, other, make_queue(), group, *pods) as harness:
        await harness.session()
        assert len(harness.live.engine.records) == 0
        assert (await why(harness, "job-w-0")).state == "pending"


@async_test
async def test_a_pod_without_a_group_and_one_that_is_placed() -> None:
    (groupless,) = volcano_pods(replace_fields(make_member("lonely"), metadata={"annotations": {}}))
    group, (placed,) = make_group("job", min_member=1), volcano_pods(make_member("job-w-0", requests={"cpu": "1"}))
    async with run_live_batch(NODE, make_queue(), group, groupless, placed) as harness:
        await harness.session()
        assert "the pod has no pod group in the annotation" in (await why(harness, "lonely")).sentence
        harness.deliver(placed.bound_to("n"))
        await harness.live.handle_pending_events()
        answer = await why(harness, "job-w-0")
        assert (answer.state, answer.node) == ("placed", "n")
        assert answer.sentence == "default/job-w-0 is on n: the only node that fits"
        harness.live.engine.handle.decision_records = DecisionRing()  # as after a restart
        assert (await why(harness, "job-w-0")).sentence == f"default/job-w-0 is on n; {NO_RECORD}"
        assert BatchExplainer(harness.live).find("default", "unknown") is None
