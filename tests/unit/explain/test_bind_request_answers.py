"""Answers about pods that the binder binds: the progress of their requests, and nodes where it gave up."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from bayplan.explain.live_pod_explainer import LivePodExplainer
from bayplan.framework.runtime.bind_failures import FAILURES_BEFORE_POD_BACKOFF
from bayplan.framework.runtime.bind_request_mutation import EXCLUDED_NODE_REASON
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest, BindRequestStatus, new_request
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.answers import Answer, BindRequestProgress, ExcludedNode
from bayplan.testing import make_node, make_pod
from support.harness.async_tests import async_test
from support.harness.live_scheduler import LiveSchedulerHarness, bind_request_config, run_with_bind_requests

NODE = make_node("n1")
WEB = make_pod("web")


def run_harness(*objects: KubeObject) -> AbstractAsyncContextManager[LiveSchedulerHarness]:
    return run_with_bind_requests(*objects, config=bind_request_config())


def request(pod: Pod, version: int = 1, *, is_own: bool = True, **status: Any) -> BindRequest:
    new = new_request(pod, "n1", annotations={}, backoff_limit=3)
    meta = replace(new.metadata, uid="request", resource_version=str(version))
    meta = meta if is_own else replace(meta, labels={})
    return replace(new, metadata=meta, status=BindRequestStatus(**status))


async def why(harness: LiveSchedulerHarness, name: str = "web") -> Answer:
    await harness.live.handle_pending_events()
    explainer = LivePodExplainer(harness.live)
    pod = explainer.find("default", name)
    assert pod is not None
    return await explainer.answer(pod)


@async_test
async def test_a_pod_with_an_unhandled_request_is_not_reported_as_bound() -> None:
    async with run_harness(NODE) as harness:
        harness.deliver(request(WEB), WEB)
        answer = await why(harness)
        assert (answer.state, answer.node, answer.next_try) == ("binding", "n1", None)
        assert answer.sentence.startswith("default/web is to go to n1; ")
        assert answer.waits_for == "the binder to handle the bind request default/web"
        assert answer.request == BindRequestProgress(
            name="default/web", node="n1", phase="Pending", failed_attempts=0, limit=3, is_ours=True
        )


@async_test
async def test_a_failed_binding_has_attempts_reason_and_the_next_try() -> None:
    async with run_harness(NODE) as harness:
        harness.deliver(request(WEB), WEB)
        await harness.live.handle_pending_events()
        harness.deliver(request(WEB, 2, phase="Failed", failed_attempts=2, reason="no quota"))
        answer = await why(harness)
        assert answer.request is not None
        assert (answer.request.phase, answer.request.failed_attempts, answer.request.reason) == (
            "Failed",
            2,
            "no quota",
        )
        assert answer.waits_for == "the binder to try the bind request default/web again"
        assert answer.next_try == harness.clock.now() + timedelta(seconds=2)
        harness.clock.advance(3)
        assert (await why(harness)).next_try is None  # the retry is overdue: its time is unknown


@async_test
async def test_a_foreign_request_waits_for_another_binder() -> None:
    async with run_harness(NODE) as harness:
        harness.deliver(request(WEB, is_own=False), WEB)
        answer = await why(harness)
        assert answer.request is not None
        assert not answer.request.is_ours
        assert answer.waits_for.startswith("another binder, or `bayplan binder --all`, to handle ")


@async_test
async def test_a_pod_that_was_given_up_has_the_excluded_node_and_waits_for_the_pause() -> None:
    async with run_harness(NODE) as harness:
        harness.live.engine.bind_request_factory.failures.record_failure(WEB.uid, "n1", "no quota")
        harness.deliver(WEB)
        await harness.idle()
        ends = harness.clock.now() + timedelta(seconds=30)
        answer = await why(harness)
        assert answer.excluded_nodes == (ExcludedNode(node="n1", times=1, error="no quota", until=ends),)
        assert [each.text for each in answer.reasons] == [EXCLUDED_NODE_REASON]
        assert answer.waits_for.startswith(
            "the pause after the binding to n1 that was given up to end, or one of these changes: Node Add"
        )
        assert answer.next_try == ends
        harness.clock.advance(31)
        (past,) = (await why(harness)).excluded_nodes
        assert past.until is None


@async_test
async def test_a_repeated_event_of_a_failure_counts_once() -> None:
    """Another client annotates the request before its deletion: the failure counts once and the pause stays the
    same."""
    async with run_harness(NODE) as harness:
        over: dict[str, Any] = {"phase": "Failed", "failed_attempts": 3, "reason": "no quota"}
        harness.deliver(request(WEB), WEB)
        for version in (2, 3):
            harness.deliver(request(WEB, version, **over))
        ends = harness.clock.now() + timedelta(seconds=30)
        assert (await why(harness)).excluded_nodes == (ExcludedNode(node="n1", times=1, error="no quota", until=ends),)


@async_test
async def test_a_pod_that_was_given_up_too_often_waits_for_the_long_pause() -> None:
    async with run_harness(NODE, make_node("n2")) as harness:
        failures = harness.live.engine.bind_request_factory.failures
        for number in range(FAILURES_BEFORE_POD_BACKOFF):
            failures.record_failure(WEB.uid, "n1" if number else "n2", f"fault {number}")
        harness.deliver(WEB)
        await harness.idle()
        answer = await why(harness)
        assert answer.waits_for == f"the pause after {FAILURES_BEFORE_POD_BACKOFF} bindings that were given up to end"
        assert answer.next_try == harness.clock.now() + timedelta(seconds=failures.backoff_left_s(WEB.uid))
        assert {(each.node, each.times, each.error) for each in answer.excluded_nodes} == {
            ("n2", 1, "fault 0"),
            ("n1", FAILURES_BEFORE_POD_BACKOFF - 1, f"fault {FAILURES_BEFORE_POD_BACKOFF - 1}"),
        }


@async_test
async def test_a_pod_without_failures_has_no_excluded_nodes() -> None:
    async with run_harness(make_node("n1", cpu="1"), make_pod("web", cpu="2")) as harness:
        await harness.idle()
        answer = await why(harness)
        assert (answer.request, answer.excluded_nodes, answer.next_try) == (None, (), None)
