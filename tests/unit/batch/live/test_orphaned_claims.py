"""Claims that hold devices of deleted nodes: which are deallocated, and which are not."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from bayplan.batch.live.bind_request_handlers import track_bind_requests
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.orphaned_claims import CHECK_INTERVAL_S
from bayplan.client import REQUEST_TIMEOUT_S
from bayplan.objects.core import Pod, PodResourceClaim, PodStatus
from bayplan.objects.kai.bind_request import new_request
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim, ResourceClaimConsumer
from bayplan.testing.builders import make_node
from support.builders.batch import CREATED, make_group, make_member, make_queue
from support.builders.devices import device, exactly, make_allocation, make_claim, make_class, make_slice
from support.builders.framework import replace_fields
from support.fakes.http_server import status
from support.harness.async_tests import async_test
from support.harness.live_batch import LiveBatchHarness, run_live_batch

NODE = make_node("n", cpu=4)


def member(name: str = "job-w-0") -> Pod:
    pod = make_member(name, requests={"cpu": "1"})
    claims = (PodResourceClaim(name="gpu", resource_claim_name="mine"),)
    return replace_fields(
        pod, spec={"scheduler_name": "volcano", "resource_claims": claims}, status=PodStatus(phase="Pending")
    )


POD = member()


def consumer(pod: Pod) -> ResourceClaimConsumer:
    return ResourceClaimConsumer(resource="pods", name=pod.name, uid=pod.uid)


def on_node(name: str, operator: str = "In") -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": operator, "values": [name]}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}


def allocated_claim(where: Mapping[str, Any], *users: Pod) -> ResourceClaim:
    """The claim of the pod, with a device that can be used from these nodes."""
    device = make_allocation({"device": "d", "pool": "p"}, **where)
    return make_claim(exactly(1), name="mine", allocation=device, reserved_for=tuple(map(consumer, users)))


def deallocations(harness: LiveBatchHarness) -> list[str]:
    """The versions of the claim that was deallocated."""
    sent = harness.sent("PATCH", "/resourceclaims/mine/status")
    return [each["metadata"]["resourceVersion"] for each in sent if each["status"]["allocation"] is None]


def running(*objects: KubeObject, options: BatchOptions | None = None) -> AbstractAsyncContextManager[LiveBatchHarness]:
    return run_live_batch(NODE, make_queue(), make_group("job"), make_class(), *objects, options=options)


GONE = allocated_claim(on_node("gone"), POD)


@async_test
async def test_devices_of_a_deleted_node_are_deallocated_and_the_pod_is_placed_again() -> None:
    async with running(make_slice(device("d"), node="n"), POD, GONE) as harness:
        outcome = await harness.session()
        assert (list(outcome.waiting), outcome.binds) == ([POD.key], {})
        (body,) = harness.sent("PATCH", "/resourceclaims/mine/status")
        assert body["status"] == {"allocation": None, "reservedFor": None, "devices": None}
        harness.deliver(make_claim(exactly(1), name="mine"))
        assert (await harness.session()).binds == {POD.key: "n"}


@async_test
async def test_unreserved_devices_are_deallocated_once_for_all_pending_pods() -> None:
    async with running(POD, member("job-w-1"), allocated_claim(on_node("gone"))) as harness:
        outcome = await harness.session()
        assert len(outcome.waiting) == 2
        assert len(deallocations(harness)) == 1


OTHER = make_member("other")


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(allocated_claim(on_node("gone"), OTHER), id="another pod may use it"),
        pytest.param(allocated_claim(on_node("gone"), POD, OTHER), id="another pod may use it as well"),
        pytest.param(allocated_claim(on_node("n"), POD), id="its node is there"),
        pytest.param(allocated_claim(on_node("gone", "NotIn"), POD), id="a node is there that is not named"),
        pytest.param(allocated_claim({}, POD), id="it can be used from everywhere"),
        pytest.param(allocated_claim(on_node("gone", "Exists"), POD), id="an invalid node selector"),
        pytest.param(make_claim(exactly(1), name="mine"), id="it has no devices"),
        pytest.param(replace_fields(GONE, metadata={"deletion_timestamp": CREATED}), id="it goes itself"),
        pytest.param(replace_fields(GONE, metadata={"name": "another"}), id="it is another pod's"),
    ],
)
def test_other_claims_are_not_deallocated(claim: ResourceClaim) -> None:
    @async_test
    async def run() -> None:
        async with running(replace_fields(POD, spec={"node_selector": {"no": "node"}}), claim) as harness:
            outcome = await harness.session()
            assert POD.key in outcome.waiting
            assert deallocations(harness) == []

    run()


@async_test
async def test_a_pod_with_a_bind_request_keeps_its_allocation_until_the_request_is_deleted() -> None:
    request = replace_fields(new_request(POD, "gone", annotations={}, backoff_limit=3), metadata={"uid": "request"})
    async with running(replace_fields(POD, spec={"node_selector": {"no": "node"}})) as harness:
        live = harness.live
        requests = track_bind_requests(
            live.event_handlers, live.binds, live.writes, harness.events, harness.clock, attempts=3, stale_s=600.0
        )
        outcome = await harness.session()
        harness.clock.advance(CHECK_INTERVAL_S)
        harness.deliver(GONE, request)
        await live.handle_pending_events()
        for callback in live.after_session:
            callback(outcome)  # the request arrived after the session in which the pod was pending
        assert (await harness.session()).waiting == {}
        assert deallocations(harness) == []
        harness.deliver_deletion(request)
        await live.handle_pending_events()
        harness.clock.advance(CHECK_INTERVAL_S)
        assert (await harness.session()).waiting == {}, "its binding may still land"
        assert deallocations(harness) == []
        harness.clock.advance(REQUEST_TIMEOUT_S)
        for uid, _ in requests.lost():
            requests.read_pod(uid, POD)
        assert POD.key in (await harness.session()).waiting
        assert len(deallocations(harness)) == 1


@async_test
async def test_a_failed_deallocation_is_repeated_at_the_next_check() -> None:
    async with running(POD, GONE) as harness:
        harness.fail_next("PATCH", "/resourceclaims/mine/status", status(409, "Conflict"))
        for _ in range(3):
            await harness.session()
        first = deallocations(harness)
        assert len(first) == 1
        harness.clock.advance(CHECK_INTERVAL_S)
        await harness.session()
        assert deallocations(harness) == first * 2


@async_test
async def test_a_node_that_is_deleted_later_is_detected() -> None:
    here = make_node("here", cpu=4, labels={"kind": "slow"})
    where = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kind", "operator": "Exists"}]}]}}
    picky = replace_fields(POD, spec={"node_selector": {"no": "node"}})
    async with running(here, picky, allocated_claim(where, POD)) as harness:
        for _ in range(2):
            await harness.session()
            harness.clock.advance(CHECK_INTERVAL_S)
        assert deallocations(harness) == []
        harness.deliver_deletion(here)
        await harness.session()
        assert len(deallocations(harness)) == 1


@async_test
async def test_with_a_part_of_the_nodes_none_counts_as_deleted() -> None:
    """The node may exist and belong to another scheduler."""
    async with running(POD, GONE, options=BatchOptions(node_selector=("kind:fast",))) as harness:
        outcome = await harness.session()
        assert POD.key in outcome.waiting
        assert deallocations(harness) == []
