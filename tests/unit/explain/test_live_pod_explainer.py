"""Live pod explainer: answers from the record, with the pod's attempts, its age and what it waits for."""

from __future__ import annotations

from bayplan.explain.live_pod_explainer import LivePodExplainer
from bayplan.telemetry.answers import Answer
from support.builders.framework import make_node, make_pod, replace_fields
from support.fakes.http_server import NoAnswer
from support.harness.async_tests import async_test
from support.harness.live_scheduler import LiveSchedulerHarness, run_live_scheduler

BIG, SMALL = make_node("big", cpu="8", memory="8Gi"), make_node("small", cpu="2", memory="8Gi")


async def why(harness: LiveSchedulerHarness, name: str, *, now: bool = False) -> Answer:
    explainer = LivePodExplainer(harness.live)
    pod = explainer.find("default", name)
    assert pod is not None
    return await explainer.answer(pod, now=now)


@async_test
async def test_a_placed_pod_has_the_deciding_plugin_and_the_second_node() -> None:
    web = make_pod("web", cpu="1", memory="1Gi")
    async with run_live_scheduler(BIG, SMALL, web) as harness:
        harness.deliver(web.bound_to("big"))
        await harness.idle()
        answer = await why(harness, "web")
        assert (answer.state, answer.node, answer.source, answer.feasible) == ("placed", "big", "record", 2)
        assert [each.node for each in answer.best] == ["big", "small"]
        assert sum(answer.best[0].by_plugin.values()) == answer.best[0].total
        assert answer.choice is not None
        assert (answer.choice.second, answer.choice.plugin) == ("small", "NodeResourcesFit")
        assert answer.choice.ahead == answer.best[0].total - answer.best[1].total
        assert answer.sentence.startswith("default/web is on big: best of 2 with ")


@async_test
async def test_a_pending_pod_has_reasons_with_nodes_and_suggestions() -> None:
    async with run_live_scheduler(BIG, SMALL, make_pod("huge", cpu="9")) as harness:
        answer = await why(harness, "huge")
        assert (answer.state, answer.source, answer.attempts) == ("pending", "record", 1)
        assert [(each.plugin, each.text, each.nodes) for each in answer.reasons] == [
            ("NodeResourcesFit", "Insufficient cpu", 2)
        ]
        assert set(answer.reasons[0].names) == {"big", "small"}
        assert [change.text for change in answer.changes] == ["ask for 1 less CPU"]
        assert answer.closest == "big"
        assert answer.since is not None
        assert answer.waits_for.startswith("one of these changes: Pod Delete|UpdatePodScaleDown, Node Add|")
        assert "resource.k8s.io/DeviceClass Add|Update," in f"{answer.waits_for},"


@async_test
async def test_rows_that_have_changed_since_the_record_are_not_named() -> None:
    async with run_live_scheduler(BIG, SMALL, make_pod("huge", cpu="9")) as harness:
        harness.deliver_deletion(BIG)
        await harness.idle()
        (reason,) = (await why(harness, "huge")).reasons
        assert (reason.nodes, reason.names) == (2, ())
        (fresh,) = (await why(harness, "huge", now=True)).reasons
        assert (fresh.nodes, fresh.names) == (1, ("small",))


@async_test
async def test_a_new_filter_run_changes_nothing() -> None:
    async with run_live_scheduler(SMALL, make_pod("huge", cpu="9")) as harness:
        records = list(harness.live.engine.records)
        answer = await why(harness, "huge", now=True)
        assert answer.source == "now"
        assert list(harness.live.engine.records) == records
        assert harness.live.queue.counts()["unschedulable"] == 1


@async_test
async def test_a_pod_behind_a_gate() -> None:
    async with run_live_scheduler(SMALL, make_pod("gated", gates=["later"])) as harness:
        answer = await why(harness, "gated")
        assert answer.sentence == "default/gated is gated: waiting for scheduling gates: [later]"
        assert answer.waits_for == "SchedulingGates to admit it"
        assert [change.text for change in answer.changes] == ["remove scheduling gate later"]


@async_test
async def test_a_preemptor_waits_for_its_victims() -> None:
    weak = make_pod("weak", cpu="2", node="small", priority=0)
    async with run_live_scheduler(SMALL, weak, make_pod("strong", cpu="2", priority=10)) as harness:
        answer = await why(harness, "strong")
        assert (answer.nominated, answer.victims) == ("small", ("default/weak",))
        assert answer.waits_for == "default/weak to leave small"
        assert answer.changes[-1].evict == ("default/weak",)


@async_test
async def test_an_assumed_pod_and_a_foreign_one() -> None:
    async with run_live_scheduler(SMALL, decide=True) as harness:
        harness.fail_next("POST", "/binding", NoAnswer())
        harness.deliver(make_pod("slow", cpu="1"))
        await harness.wait_for_request("POST", "/binding")
        answer = await why(harness, "slow")
        assert (answer.state, answer.node, answer.waits_for) == ("binding", "small", "the binding to be written")
        harness.deliver(make_pod("theirs", node="small", scheduler_name="other"))
        await harness.live.handle_pending_events()
        answer = await why(harness, "theirs")
        assert answer.sentence == "default/theirs is on small; other placed it, which is not served here"


@async_test
async def test_another_pod_of_the_same_name_does_not_inherit_the_record() -> None:
    async with run_live_scheduler(SMALL, make_pod("huge", cpu="9"), decide=True) as harness:
        old = make_pod("huge", cpu="9")
        harness.live.stop_scheduling()
        harness.deliver_deletion(old)
        harness.deliver(replace_fields(old, metadata={"uid": "another"}))
        await harness.live.handle_pending_events()
        answer = await why(harness, "huge")
        assert (answer.source, answer.attempts) == ("now", 0)


@async_test
async def test_an_unknown_pod_is_not_found() -> None:
    async with run_live_scheduler(SMALL) as harness:
        assert LivePodExplainer(harness.live).find("default", "unknown") is None
