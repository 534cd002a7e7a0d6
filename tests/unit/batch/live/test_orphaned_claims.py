"""Claims that hold devices of nodes that are gone: which are given back, and which are left alone."""

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
from support.builders.batch import (
    CREATED,
    make_group,
    make_member,
    make_queue,
)
from support.builders.devices import (
    device,
    exactly,
    make_allocation,
    make_claim,
    make_class,
    make_slice,
)
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


def user(pod: Pod) -> ResourceClaimConsumer:
    return ResourceClaimConsumer(resource="pods", name=pod.name, uid=pod.uid)


def on_node(name: str, operator: str = "In") -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": operator, "values": [name]}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}


def allocated(where: Mapping[str, Any], *users: Pod) -> ResourceClaim:
    """The claim of the pod, with a device that can be used from there."""
    device = make_allocation({"device": "d", "pool": "p"}, **where)
    return make_claim(exactly(1), name="mine", allocation=device, reserved_for=tuple(map(user, users)))


def given_back(rig: LiveBatchHarness) -> list[str]:
    """The versions of the claim of which the devices were given back."""
    sent = rig.sent("PATCH", "/resourceclaims/mine/status")
    return [each["metadata"]["resourceVersion"] for each in sent if each["status"]["allocation"] is None]


def running(*objects: KubeObject, options: BatchOptions | None = None) -> AbstractAsyncContextManager[LiveBatchHarness]:
    return run_live_batch(NODE, make_queue(), make_group("job"), make_class(), *objects, options=options)


GONE = allocated(on_node("gone"), POD)


@async_test
async def test_devices_of_a_node_that_is_gone_are_given_back_and_the_pod_is_placed_anew() -> None:
    async with running(make_slice(device("d"), node="n"), POD, GONE) as rig:
        outcome = await rig.session()
        assert (list(outcome.waiting), outcome.binds) == ([POD.key], {})
        (body,) = rig.sent("PATCH", "/resourceclaims/mine/status")
        assert body["status"] == {"allocation": None, "reservedFor": None, "devices": None}
        rig.deliver(make_claim(exactly(1), name="mine"))
        assert (await rig.session()).binds == {POD.key: "n"}


@async_test
async def test_devices_that_nobody_has_reserved_are_given_back_as_well_and_once_for_all_who_wait() -> None:
    async with running(POD, member("job-w-1"), allocated(on_node("gone"))) as rig:
        outcome = await rig.session()
        assert len(outcome.waiting) == 2
        assert len(given_back(rig)) == 1


OTHER = make_member("other")


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(allocated(on_node("gone"), OTHER), id="another pod may use it"),
        pytest.param(allocated(on_node("gone"), POD, OTHER), id="another pod may use it as well"),
        pytest.param(allocated(on_node("n"), POD), id="its node is there"),
        pytest.param(allocated(on_node("gone", "NotIn"), POD), id="a node is there that is not named"),
        pytest.param(allocated({}, POD), id="it can be used from everywhere"),
        pytest.param(allocated(on_node("gone", "Exists"), POD), id="nobody can say from where"),
        pytest.param(make_claim(exactly(1), name="mine"), id="it has no devices"),
        pytest.param(replace_fields(GONE, metadata={"deletion_timestamp": CREATED}), id="it goes itself"),
        pytest.param(replace_fields(GONE, metadata={"name": "another"}), id="it is another pod's"),
    ],
)
def test_other_claims_are_left_alone(claim: ResourceClaim) -> None:
    @async_test
    async def run() -> None:
        async with running(replace_fields(POD, spec={"node_selector": {"no": "node"}}), claim) as rig:
            outcome = await rig.session()
            assert POD.key in outcome.waiting
            assert given_back(rig) == []

    run()


@async_test
async def test_a_pod_with_a_live_request_keeps_what_was_prepared_until_that_is_gone() -> None:
    request = replace_fields(new_request(POD, "gone", annotations={}, backoff_limit=3), metadata={"uid": "request"})
    async with running(replace_fields(POD, spec={"node_selector": {"no": "node"}})) as rig:
        live = rig.live
        requests = track_bind_requests(
            live.event_handlers, live.binds, live.writes, rig.events, rig.clock, attempts=3, stale_s=600.0
        )
        outcome = await rig.session()
        rig.clock.advance(CHECK_INTERVAL_S)
        rig.deliver(GONE, request)
        await live.handle_pending_events()
        for told in live.after_session:
            told(outcome)  # the request came after the session in which the pod had to wait
        assert (await rig.session()).waiting == {}
        assert given_back(rig) == []
        rig.deliver_deletion(request)
        await live.handle_pending_events()
        rig.clock.advance(CHECK_INTERVAL_S)
        assert (await rig.session()).waiting == {}, "its binding may still land"
        assert given_back(rig) == []
        rig.clock.advance(REQUEST_TIMEOUT_S)
        for uid, _ in requests.lost():
            requests.read_pod(uid, POD)
        assert POD.key in (await rig.session()).waiting
        assert len(given_back(rig)) == 1


@async_test
async def test_what_could_not_be_given_back_is_tried_again_at_the_next_look() -> None:
    async with running(POD, GONE) as rig:
        rig.fail_next("PATCH", "/resourceclaims/mine/status", status(409, "Conflict"))
        for _ in range(3):
            await rig.session()
        first = given_back(rig)
        assert len(first) == 1
        rig.clock.advance(CHECK_INTERVAL_S)
        await rig.session()
        assert given_back(rig) == first * 2


@async_test
async def test_a_node_that_goes_later_is_missed_then() -> None:
    here = make_node("here", cpu=4, labels={"kind": "slow"})
    where = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kind", "operator": "Exists"}]}]}}
    picky = replace_fields(POD, spec={"node_selector": {"no": "node"}})
    async with running(here, picky, allocated(where, POD)) as rig:
        for _ in range(2):
            await rig.session()
            rig.clock.advance(CHECK_INTERVAL_S)
        assert given_back(rig) == []
        rig.deliver_deletion(here)
        await rig.session()
        assert len(given_back(rig)) == 1


@async_test
async def test_whoever_knows_some_nodes_only_takes_none_for_gone() -> None:
    """The node may be there, and another scheduler's."""
    async with running(POD, GONE, options=BatchOptions(node_selector=("kind:fast",))) as rig:
        outcome = await rig.session()
        assert POD.key in outcome.waiting
        assert given_back(rig) == []
