"""Requests that the engine deletes: the pod is scheduled again when its binding cannot take effect, with the reason."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest, BindRequestStatus
from bayplan.testing import make_node, make_pod
from support.fakes.http_server import Reply
from support.harness.async_tests import wait_until
from support.harness.live_scheduler import (
    LiveSchedulerHarness,
    bind_request_config,
    run_with_bind_requests,
    store_bind_requests,
)

POD = make_pod("web")
NODES = {name: make_node(name) for name in ("n1", "n2")}
LOST = "the bind request was deleted before the pod was bound"


async def hand_over(harness: LiveSchedulerHarness, pod: Pod) -> tuple[BindRequestTracker, BindRequest]:
    """Hand a pod to the binder, with a watch that delivers only failures."""
    requests = harness.live.bind_requests
    assert requests is not None
    requests.only_failures = True
    harness.deliver(pod)
    await wait_until(lambda: harness.live.pods_at_binder == 1)
    return requests, requests.requests[pod.key]


async def next_node(harness: LiveSchedulerHarness) -> str:
    """Wait for the deletion, pass the request timeout, and return the node of the next request."""
    await wait_until(lambda: harness.sent("DELETE", "/bindrequests/web") and not harness.live.writes.busy)
    assert harness.live.bind_requests is not None
    assert harness.live.bind_requests.requests == {}, "the response has shown the deletion"
    assert harness.live.pods_at_binder == 1, "the binder may have sent its binding"
    harness.clock.advance(60)
    for uid, request in harness.live.bind_requests.lost():
        harness.live.bind_requests.read_pod(uid, harness.live.engine.pending[request.pod_uid])
    await wait_until(lambda: len(harness.sent("POST", "/bindrequests")) >= 2, tick=lambda: harness.clock.advance(0.01))
    second: str = harness.sent("POST", "/bindrequests")[1]["spec"]["selectedNode"]
    return second


@pytest.mark.parametrize("there", [True, False], ids=["deleted", "already deleted"])
@pytest.mark.parametrize("why", ["its node {node} is gone", "no binder has carried it out for 3601 s"])
def test_a_pod_is_scheduled_again_with_the_reason_after_its_request_was_deleted(why: str, there: bool) -> None:
    async def run() -> None:
        async with run_with_bind_requests(*NODES.values(), config=bind_request_config()) as harness:
            store_bind_requests(harness)
            requests, first = await hand_over(harness, POD)
            node = first.spec.selected_node
            if "node" in why:
                harness.deliver_deletion(NODES[node])
                await harness.live.handle_pending_events()
            else:
                harness.clock.advance(3601)
            if not there:
                harness.fail_next("DELETE", "/bindrequests/web", Reply(404, {"kind": "Status", "reason": "NotFound"}))
            requests.run_periodic_checks()
            second = await next_node(harness)
            assert f"{LOST}: {why.format(node=node)}" in [each.note for each in harness.events.recorded]
            assert len(harness.sent("DELETE", "/bindrequests/web")) == 1
            assert second != node or "node" not in why

    asyncio.run(run())


def test_a_late_event_of_a_deleted_request_does_not_change_the_next_one() -> None:
    """The binder gave it up just before its deletion; the event arrives after the next request was created."""

    async def run() -> None:
        async with run_with_bind_requests(*NODES.values(), config=bind_request_config()) as harness:
            store_bind_requests(harness)
            requests, first = await hand_over(harness, POD)
            harness.deliver_deletion(NODES[first.spec.selected_node])
            await harness.live.handle_pending_events()
            requests.run_periodic_checks()
            second = await next_node(harness)
            await wait_until(lambda: harness.live.pods_at_binder == 1)
            harness.live.handle_event(None, replace(first, status=BindRequestStatus("Failed", "no quota", 3)))
            await harness.live.handle_pending_events()
            assert requests.requests[POD.key].spec.selected_node == second
            assert harness.live.pods_at_binder == 1
            assert not requests.failures.excluded_nodes(POD.uid)

    asyncio.run(run())
