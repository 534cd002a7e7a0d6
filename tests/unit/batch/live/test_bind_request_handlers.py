"""Bind requests of sessions: the devices that they name are the same as those of the pod engine's requests."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.batch.live.bind_request_handlers import track_bind_requests
from bayplan.explain.batch_explainer import BatchExplainer
from bayplan.objects.core import Pod, PodResourceClaim, PodStatus
from bayplan.objects.kai.bind_request import BindRequest, BindRequestStatus, new_request
from bayplan.objects.kai.gpu_sharing import whole_device_spec
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaimConsumer
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.devices import exactly, make_allocation, make_claim
from support.builders.framework import replace_fields
from support.fakes.http_server import Reply, Request, status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_batch import run_live_batch

MIG = "nvidia.com/mig-1g.5gb"
NODE = make_node("n", cpu=4, capacity={"nvidia.com/gpu": "4", MIG: "4"})


async def bind_request_of(pod: Pod, *objects: KubeObject) -> dict[str, Any]:
    """The bind request of a pod that a session has placed."""
    waiting = replace_fields(pod, spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending"))
    async with run_live_batch(NODE, make_queue(), make_group("job"), *objects, waiting) as harness:
        live = harness.live
        arguments = live.writes, harness.events, harness.clock
        track_bind_requests(live.event_handlers, live.binds, *arguments, attempts=3, stale_s=600.0)
        await live.handle_pending_events()
        await live.run_session()
        await wait_until(lambda: bool(harness.sent("POST", "/bindrequests")))
        (sent,) = harness.sent("POST", "/bindrequests")
        assert harness.bound() == {}
        found: dict[str, Any] = sent["spec"]
        return found


def member(**requests: str) -> Pod:
    return make_member("job-w-0", requests={"cpu": "1", **requests})


@pytest.mark.parametrize(
    ("requests", "given"),
    [
        pytest.param({}, {"receivedResourceType": "Regular"}, id="no devices"),
        pytest.param(
            {"nvidia.com/gpu": "2"},
            {"receivedResourceType": "Regular", "receivedGPU": {"count": 2, "portion": "1.00"}},
            id="whole devices",
        ),
        pytest.param({MIG: "1"}, {"receivedResourceType": "MigInstance"}, id="instances"),
    ],
)
def test_a_request_names_the_devices_of_the_pod(requests: dict[str, str], given: dict[str, Any]) -> None:
    @async_test
    async def run() -> None:
        spec = await bind_request_of(member(**requests))
        assert {key: value for key, value in spec.items() if key.startswith("received")} == given
        assert spec["selectedNode"] == "n"
        assert "resourceClaimAllocations" not in spec

    run()


@async_test
async def test_a_request_contains_the_allocations_of_the_pods_claims() -> None:
    pod = member()
    claims = (PodResourceClaim(name="gpu", resource_claim_name="mine"),)
    pod = replace(pod, spec=replace(pod.spec, resource_claims=claims))
    claim = make_claim(
        exactly(1),
        name="mine",
        allocation=make_allocation({"device": "d", "pool": "n"}),
        reserved_for=(ResourceClaimConsumer(resource="pods", name=pod.name, uid=pod.uid),),
    )
    spec = await bind_request_of(pod, claim)
    (given,) = spec["resourceClaimAllocations"]
    assert given["name"] == "gpu"  # the name of the pod's entry, not of the claim
    assert [each["device"] for each in given["allocation"]["devices"]["results"]] == ["d"]


def test_whole_devices_are_preferred_to_instances() -> None:
    assert whole_device_spec(member(**{"nvidia.com/gpu": "1", MIG: "1"})).keys() == {"received_gpu"}


@async_test
async def test_a_pod_of_another_scheduler_counts_once_it_has_a_request() -> None:
    theirs = replace_fields(make_member("web", requests={"cpu": "3"}), spec={"scheduler_name": "default-scheduler"})
    ours = replace_fields(member(cpu="2"), spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending"))
    request = replace_fields(new_request(theirs, "n", annotations={}, backoff_limit=3), metadata={"uid": "request"})
    async with run_live_batch(NODE, make_queue(), make_group("job")) as harness:
        live = harness.live
        how: dict[str, Any] = {"attempts": 3, "stale_s": 600.0}
        requests = track_bind_requests(
            live.event_handlers, live.binds, live.writes, harness.events, harness.clock, **how
        )
        harness.deliver(theirs, ours, request)
        await harness.session()
        assert harness.sent("POST", "/bindrequests") == []
        live.handle_event(request, None)
        await harness.session()
        assert harness.sent("POST", "/bindrequests") == []
        harness.clock.advance(60.0)
        assert [uid for uid, _ in requests.lost()] == [theirs.uid]
        requests.read_pod(theirs.uid, theirs)
        await harness.session()
        await wait_until(lambda: bool(harness.sent("POST", "/bindrequests")))
        (sent,) = harness.sent("POST", "/bindrequests")
        assert sent["spec"]["podName"] == "job-w-0"


@async_test
async def test_a_partly_placed_gang_that_never_fits_keeps_its_pods_and_is_reported() -> None:
    """The state after a crash of a scheduler within a gang. Like Volcano, Bayplan does not evict such gangs."""
    pods = [
        replace_fields(
            make_member(f"job-w-{number}", requests={"cpu": "3"}),
            spec={"scheduler_name": "volcano"},
            status=PodStatus(phase="Pending"),
        )
        for number in range(2)
    ]
    request = new_request(pods[0], "n", annotations={}, backoff_limit=3)
    async with run_live_batch(NODE, make_queue(), make_group("job", min_member=2)) as harness:
        live = harness.live
        track_bind_requests(
            live.event_handlers, live.binds, live.writes, harness.events, harness.clock, attempts=3, stale_s=600.0
        )
        harness.deliver(*pods, replace_fields(request, metadata={"uid": "request"}))
        for _ in range(3):
            outcome = await harness.session()
            harness.clock.advance(3600)
            assert (outcome.binds, outcome.evicts) == ({}, {})
        assert [pod.name for pod in live.engine.cache.pods()] == ["job-w-0"]
        assert harness.sent("POST", "/bindrequests") == harness.sent("DELETE", "/bindrequests/job-w-0") == []
        written = [each["status"]["conditions"] for each in harness.sent("PATCH", "/podgroups/job")]
        assert [(each["type"], each["reason"]) for each in written[-1]] == [("Unschedulable", "NotEnoughResources")]


@pytest.mark.parametrize("ends", ["bound", "lost", "lost as it stops"])
def test_a_pod_at_the_binder_is_in_flight_until_its_result_arrives(ends: str) -> None:
    """The Scheduled event is recorded before that."""

    @async_test
    async def run() -> None:
        pod = replace_fields(member(), spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending"))
        async with run_live_batch(NODE, make_queue(), make_group("job"), pod) as harness:
            live, numbers = harness.live, itertools.count(1)
            requests = track_bind_requests(
                live.event_handlers, live.binds, live.writes, harness.events, harness.clock, attempts=3, stale_s=600.0
            )
            answer = harness.server.route

            def as_server(request: Request) -> Any:
                if request.method != "POST" or not request.path.endswith("/bindrequests"):
                    return answer(request)
                sent = msgspec.convert(request.json, BindRequest)
                meta = replace(sent.metadata, uid=f"request-{next(numbers)}", resource_version="1")
                return Reply(201, msgspec.json.encode(replace(sent, metadata=meta)))

            harness.server.route = as_server
            await live.handle_pending_events()
            await live.run_session()
            await wait_until(lambda: requests.waiting == 1)
            assert live.binds.in_flight == {pod.uid}
            assert any("Successfully assigned default/job-w-0 to n" in each for each in harness.events.told)
            if ends == "bound":
                requests.handle_pod_assigned(pod)
            else:
                requests.handle_event(requests.requests[pod.key], None)
                assert live.binds.in_flight == {pod.uid}  # its binding may be in progress
                harness.clock.advance(60)
                for uid, _ in requests.lost():
                    requests.read_pod(uid, pod)
            if ends == "lost as it stops":
                await live.binds.drain()
                assert live.engine.cache.pod(pod.uid) is None, "what has ended is not left to chance"
            await wait_until(lambda: not live.binds.in_flight)
            assert (live.engine.cache.pod(pod.uid) is not None) == (ends == "bound")

    run()


@async_test
async def test_a_refused_request_is_reported_like_a_refused_binding_and_created_later() -> None:
    pod = replace_fields(member(), spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending"))
    async with run_live_batch(NODE, make_queue(), make_group("job"), pod) as harness:
        live = harness.live
        requests = track_bind_requests(
            live.event_handlers, live.binds, live.writes, harness.events, harness.clock, attempts=3, stale_s=600.0
        )
        harness.fail_next("POST", "/bindrequests", status(403, "Forbidden", "exceeded quota: requests"))
        await harness.session()
        ((_, why),) = harness.events.about("FailedScheduling")
        assert why.startswith("failed to bind to node n: ")
        assert "exceeded quota: requests" in why
        (written,) = [each["status"]["conditions"][0] for each in harness.sent("PATCH", "/pods/job-w-0/status")]
        assert (written["type"], written["status"], written["reason"]) == ("PodScheduled", "False", "SchedulerError")
        assert written["message"] == why
        assert requests.failures.excluded_nodes(pod.uid) == frozenset()
        await live.run_session()
        await wait_until(lambda: len(harness.sent("POST", "/bindrequests")) == 2)


@async_test
async def test_the_explanation_contains_the_state_of_the_binder() -> None:
    pod = replace_fields(member(), spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending"))
    request = replace_fields(new_request(pod, "n", annotations={}, backoff_limit=3), metadata={"uid": "request"})
    failed = replace(request, status=BindRequestStatus("Failed", "no quota", 3))
    async with run_live_batch(NODE, make_queue(), make_group("job")) as harness:
        live = harness.live
        track_bind_requests(
            live.event_handlers, live.binds, live.writes, harness.events, harness.clock, attempts=3, stale_s=600.0
        )
        explainer = BatchExplainer(live)
        harness.deliver(pod, request)
        await harness.session()
        on_its_way = await explainer.answer(pod)
        assert on_its_way.sentence.startswith("default/job-w-0 is to go to n; ")
        assert on_its_way.waits_for == "the binder to handle the bind request default/job-w-0"
        assert on_its_way.request is not None
        harness.deliver(failed)
        await harness.session()
        answer = await explainer.answer(pod)
        (given_up,) = answer.excluded_nodes
        assert (given_up.node, given_up.times, given_up.error) == ("n", 1, "no quota")
        assert (answer.state, answer.next_try) == ("pending", given_up.until)
        assert answer.waits_for == "the pause after the binding to n that was given up to end"
