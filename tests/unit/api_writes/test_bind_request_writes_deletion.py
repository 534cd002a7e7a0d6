"""Requests that the engine deletes itself: a pod is placed anew when its binding cannot land, and gets to know why."""

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


async def handed_over(rig: LiveSchedulerHarness, pod: Pod) -> tuple[BindRequestTracker, BindRequest]:
    """A pod that the binder has. Of its request the watch would tell if it failed, and nothing else."""
    requests = rig.live.bind_requests
    assert requests is not None
    requests.only_failures = True
    rig.deliver(pod)
    await wait_until(lambda: rig.live.pods_at_binder == 1)
    return requests, requests.requests[pod.key]


async def made_anew(rig: LiveSchedulerHarness) -> str:
    """The node that the pod is to go to next, once the answer to the deletion is there."""
    await wait_until(lambda: rig.sent("DELETE", "/bindrequests/web") and not rig.live.writes.busy)
    assert rig.live.bind_requests is not None
    assert rig.live.bind_requests.requests == {}, "the answer has told that it is gone"
    assert rig.live.pods_at_binder == 1, "the binder may have sent its binding"
    rig.clock.advance(60)
    for uid, request in rig.live.bind_requests.lost():
        rig.live.bind_requests.read_pod(uid, rig.live.engine.pending[request.pod_uid])
    await wait_until(lambda: len(rig.sent("POST", "/bindrequests")) >= 2, tick=lambda: rig.clock.advance(0.01))
    second: str = rig.sent("POST", "/bindrequests")[1]["spec"]["selectedNode"]
    return second


@pytest.mark.parametrize("there", [True, False], ids=["deleted", "it was gone already"])
@pytest.mark.parametrize("why", ["its node {node} is gone", "no binder has carried it out for 3601 s"])
def test_a_pod_is_placed_anew_as_soon_as_its_request_is_deleted_and_told_why(why: str, there: bool) -> None:
    async def run() -> None:
        async with run_with_bind_requests(*NODES.values(), config=bind_request_config()) as rig:
            store_bind_requests(rig)
            requests, first = await handed_over(rig, POD)
            node = first.spec.selected_node
            if "node" in why:
                rig.hear_gone(NODES[node])
                await rig.live.handle_pending_events()
            else:
                rig.clock.advance(3601)
            if not there:
                rig.fail_next("DELETE", "/bindrequests/web", Reply(404, {"kind": "Status", "reason": "NotFound"}))
            requests.run_periodic_checks()
            second = await made_anew(rig)
            assert f"{LOST}: {why.format(node=node)}" in [each.note for each in rig.events.told]
            assert len(rig.sent("DELETE", "/bindrequests/web")) == 1
            assert second != node or "node" not in why

    asyncio.run(run())


def test_what_the_watch_tells_late_of_a_request_that_was_deleted_is_not_told_of_the_one_after_it() -> None:
    """The binder has given it up just before it was deleted; when that is told there is another one."""

    async def run() -> None:
        async with run_with_bind_requests(*NODES.values(), config=bind_request_config()) as rig:
            store_bind_requests(rig)
            requests, first = await handed_over(rig, POD)
            rig.hear_gone(NODES[first.spec.selected_node])
            await rig.live.handle_pending_events()
            requests.run_periodic_checks()
            second = await made_anew(rig)
            await wait_until(lambda: rig.live.pods_at_binder == 1)
            rig.live.handle_event(None, replace(first, status=BindRequestStatus("Failed", "no quota", 3)))
            await rig.live.handle_pending_events()
            assert requests.requests[POD.key].spec.selected_node == second
            assert rig.live.pods_at_binder == 1
            assert not requests.failures.excluded_nodes(POD.uid)

    asyncio.run(run())
