"""Foreign bind requests: pods of other schedulers that count on a node because of a request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.bind_requests.foreign_requests import ForeignBindRequests
from bayplan.bind_requests.lost_requests import LostRequests
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.devices.identity import DeviceId
from bayplan.objects.core import Pod, PodResourceClaim
from bayplan.objects.kai.bind_request import BindRequest, BindRequestStatus, ClaimAllocation, new_request
from bayplan.snapshot import PodInfo
from bayplan.testing import make_node, make_pod
from support.builders.devices import DRIVER, make_allocation, make_claim
from support.builders.framework import CREATED, replace_fields

FOREIGN = replace_fields(make_pod("web", uid="u1"), spec={"scheduler_name": "volcano"})
LATER = replace_fields(make_pod("web", uid="u2"), spec={"scheduler_name": "volcano"})
OWN = make_pod("mine", uid="u3")


class ForeignRequestsHarness:
    def __init__(self) -> None:
        self.cache = Cache()
        for name in ("n1", "n2"):
            self.cache.add_node(make_node(name))
        self.freed: list[str] = []
        self.clock = ManualClock()
        self.requests = ForeignBindRequests(
            self.cache,
            lambda pod: pod.scheduler_name == "default-scheduler",
            lambda was: self.freed.append(f"{was.name} from {was.spec.node_name}"),
            LostRequests(self.clock, 60.0),
        )
        self._versions = 0

    def request(self, pod: Pod, node: str = "n1", *, uid: str = "r1", **status: Any) -> BindRequest:
        self._versions += 1
        request = new_request(pod, node, annotations={}, backoff_limit=3)
        meta = msgspec.structs.replace(request.metadata, uid=uid, resource_version=str(self._versions))
        return msgspec.structs.replace(request, metadata=meta, status=BindRequestStatus(**status))

    def request_without_uid(self, pod: Pod, **status: Any) -> BindRequest:
        """A request without the uid of its pod, as an upstream CRD prunes it: it is for any pod of that name."""
        request = self.request(pod, **status)
        meta = msgspec.structs.replace(request.metadata, owner_references=())
        return msgspec.structs.replace(request, metadata=meta, spec=msgspec.structs.replace(request.spec, pod_uid=""))

    def node_of(self, pod: Pod) -> str | None:
        found = self.cache.pod(pod.uid)
        return None if found is None else found.spec.node_name


def test_a_pod_counts_where_its_live_request_says() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    assert harness.node_of(FOREIGN) is None
    harness.requests.handle_event(None, harness.request(FOREIGN))
    assert harness.node_of(FOREIGN) == "n1"
    assert harness.cache.is_assumed(FOREIGN.uid)


def test_a_request_that_arrives_before_its_pod_counts_when_the_pod_arrives() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_event(None, harness.request(FOREIGN))
    assert harness.node_of(FOREIGN) is None
    harness.requests.handle_pending_pod(FOREIGN)
    assert harness.node_of(FOREIGN) == "n1"


def test_own_pods_are_ignored() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(OWN)
    harness.requests.handle_event(None, harness.request(OWN))
    assert harness.node_of(OWN) is None
    assert harness.requests.request_of(OWN) is None


@pytest.mark.parametrize("is_deleted_after_it", [False, True])
def test_a_request_that_was_given_up_frees_the_capacity(is_deleted_after_it: bool) -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    request, given_up = harness.request(FOREIGN), harness.request(FOREIGN, phase="Failed", failed_attempts=3)
    harness.requests.handle_event(None, request)
    harness.requests.handle_event(request, given_up)
    if is_deleted_after_it:
        harness.requests.handle_event(given_up, None)
    assert harness.node_of(FOREIGN) is None
    assert harness.freed == ["web from n1"]
    assert FOREIGN.uid not in harness.requests.lost


def test_a_deleted_live_request_frees_the_capacity_when_its_binding_cannot_take_effect() -> None:
    """The binder may have sent the binding before."""
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    request = harness.request(FOREIGN)
    harness.requests.handle_event(None, request)
    harness.requests.handle_event(request, None)
    harness.clock.advance(59.9)
    harness.requests.handle_pending_pod(replace_fields(FOREIGN, metadata={"labels": {"a": "b"}}))
    assert (harness.node_of(FOREIGN), harness.freed, harness.requests.lost.due()) == ("n1", [], [])
    assert harness.requests.request_of(FOREIGN) is request
    harness.clock.advance(0.1)
    assert harness.requests.lost.due() == [(FOREIGN.uid, request)]
    for found in (None, LATER, replace_fields(FOREIGN, spec={"node_name": "n1"})):  # the watch will show that
        harness.requests.read_pod(FOREIGN.uid, found)
        assert harness.node_of(FOREIGN) == "n1"
    harness.requests.read_pod(FOREIGN.uid, FOREIGN)
    assert (harness.node_of(FOREIGN), harness.freed) == (None, ["web from n1"])
    assert harness.requests.lost.due() == []
    assert harness.requests.request_of(FOREIGN) is None


def test_a_terminating_pod_frees_the_capacity_with_its_request() -> None:
    harness = ForeignRequestsHarness()
    pod = replace_fields(FOREIGN, metadata={"deletion_timestamp": CREATED})
    harness.requests.handle_pending_pod(pod)
    request = harness.request(pod)
    harness.requests.handle_event(None, request)
    harness.requests.handle_event(request, None)
    assert (harness.node_of(pod), harness.freed) == (None, ["web from n1"])


@pytest.mark.parametrize("end", ["placed", "gone"])
def test_a_pod_whose_request_was_deleted_is_not_read_once_the_watch_shows_its_end(end: str) -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    request = harness.request(FOREIGN)
    harness.requests.handle_event(None, request)
    harness.requests.handle_event(request, None)
    if end == "gone":
        harness.requests.handle_pod_delete(FOREIGN)
    else:
        harness.cache.add_pod(replace_fields(FOREIGN, spec={"node_name": "n1"}))
        harness.requests.handle_pod_assigned(replace_fields(FOREIGN, spec={"node_name": "n1"}))
    harness.clock.advance(60.0)
    assert harness.requests.lost.due() == []
    assert harness.node_of(FOREIGN) == ("n1" if end == "placed" else None)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_request_after_a_deleted_one_decides_where_the_pod_counts(node: str) -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    request = harness.request(FOREIGN)
    harness.requests.handle_event(None, request)
    harness.requests.handle_event(request, None)
    again = harness.request(FOREIGN, node, uid="r2")
    harness.requests.handle_event(None, again)
    assert (harness.node_of(FOREIGN), harness.requests.request_of(FOREIGN)) == (node, again)
    harness.clock.advance(60.0)
    assert harness.requests.lost.due() == []


def test_a_retried_failure_and_an_early_success_keep_the_count() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    request, failed = harness.request(FOREIGN), harness.request(FOREIGN, phase="Failed", failed_attempts=1)
    done = harness.request(FOREIGN, phase="Succeeded")
    for old, new in ((None, request), (request, failed), (failed, done)):
        harness.requests.handle_event(old, new)
        assert harness.node_of(FOREIGN) == "n1"
    assert harness.freed == []


def test_a_bound_pod_counts_in_the_cache() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    request = harness.request(FOREIGN)
    harness.requests.handle_event(None, request)
    placed = replace_fields(FOREIGN, spec={"node_name": "n2"})
    harness.cache.add_pod(placed)
    harness.requests.handle_pod_assigned(placed)
    harness.requests.handle_event(request, None)
    assert harness.node_of(FOREIGN) == "n2"
    assert harness.cache.is_confirmed(FOREIGN.uid)
    assert harness.freed == []


def test_a_deleted_pod_loses_its_count_and_the_next_pod_of_its_name_keeps_its_own() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    harness.requests.handle_event(None, harness.request(FOREIGN))
    # before the pod events, which have their own watch
    harness.requests.handle_event(None, harness.request(LATER, "n2", uid="r2"))
    assert harness.node_of(FOREIGN) is None
    harness.requests.handle_pod_delete(FOREIGN)
    harness.requests.handle_pending_pod(LATER)
    assert (harness.node_of(FOREIGN), harness.node_of(LATER)) == (None, "n2")


def test_a_request_for_another_node_moves_the_count() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    request = harness.request(FOREIGN)
    harness.requests.handle_event(None, request)
    harness.requests.handle_event(request, harness.request(FOREIGN, "n2", uid="r2"))
    assert harness.node_of(FOREIGN) == "n2"
    assert harness.freed == ["web from n1"]


def test_an_outdated_list_reverts_nothing() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    before = harness.request(FOREIGN)
    harness.requests.handle_event(None, harness.request(FOREIGN, phase="Failed", failed_attempts=3))
    harness.requests.handle_event(None, before)
    assert harness.node_of(FOREIGN) is None


def test_requests_of_bound_pods_are_not_stored() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_event(None, harness.request(FOREIGN))
    harness.requests.handle_pod_assigned(replace_fields(FOREIGN, spec={"node_name": "n1"}))
    harness.requests.handle_event(None, harness.request(LATER, phase="Succeeded"))
    assert harness.requests.request_of(FOREIGN) is None
    assert harness.requests.request_of(LATER) is None


def test_the_devices_of_a_foreign_request_are_reserved_until_it_ends() -> None:
    harness = ForeignRequestsHarness()
    pod = replace_fields(FOREIGN, spec={"resource_claims": (PodResourceClaim("gpu", resource_claim_name="c"),)})
    harness.cache.upsert(make_claim(name="c"))
    request = harness.request(pod)
    brought = (ClaimAllocation("gpu", make_allocation({"pool": "n1", "device": "a"})),)
    request = msgspec.structs.replace(
        request, spec=msgspec.structs.replace(request.spec, resource_claim_allocations=brought)
    )
    harness.requests.handle_pending_pod(pod)
    harness.requests.handle_event(None, request)
    held = harness.cache.devices.in_use.is_exclusively_allocated
    assert held(DeviceId(DRIVER, "n1", "a"))
    assert harness.requests.request_of(pod) is request
    harness.requests.handle_event(request, None)
    assert held(DeviceId(DRIVER, "n1", "a"))
    harness.clock.advance(60.0)
    harness.requests.read_pod(pod.uid, pod)
    assert not held(DeviceId(DRIVER, "n1", "a"))


def test_the_devices_of_a_deleted_request_are_free_when_the_next_one_has_other_devices() -> None:
    harness = ForeignRequestsHarness()
    pod = replace_fields(FOREIGN, spec={"resource_claims": (PodResourceClaim("gpu", resource_claim_name="c"),)})
    harness.cache.upsert(make_claim(name="c"))
    harness.requests.handle_pending_pod(pod)
    requests = []
    for uid, device in (("r1", "a"), ("r2", "b")):
        request, brought = harness.request(pod, uid=uid), make_allocation({"pool": "n1", "device": device})
        spec = msgspec.structs.replace(request.spec, resource_claim_allocations=(ClaimAllocation("gpu", brought),))
        requests.append(msgspec.structs.replace(request, spec=spec))
    harness.requests.handle_event(None, requests[0])
    harness.requests.handle_event(requests[0], requests[1])
    held = harness.cache.devices.in_use.is_exclusively_allocated
    assert (held(DeviceId(DRIVER, "n1", "a")), held(DeviceId(DRIVER, "n1", "b"))) == (False, True)


@pytest.mark.parametrize(
    "later",
    [pytest.param({"phase": "Failed", "failed_attempts": 3}, id="given-up"), pytest.param(None, id="of-the-next-pod")],
)
def test_only_the_deletion_of_the_request_by_which_a_pod_counts_is_recorded(later: dict[str, Any] | None) -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    first = harness.request(FOREIGN)
    second = harness.request(LATER, uid="r2") if later is None else harness.request(FOREIGN, uid="r2", **later)
    harness.requests.handle_event(None, first)
    harness.requests.handle_event(first, None)
    harness.clock.advance(30.0)
    harness.requests.handle_event(None, second)
    harness.requests.handle_event(second, None)
    harness.clock.advance(30.0)
    assert harness.requests.lost.due() == [(FOREIGN.uid, first)]


@pytest.mark.parametrize("has_other_request", [True, False], ids=["requests-are-known", "no-request-is-known"])
def test_a_request_that_arrives_after_its_pod_was_deleted_takes_no_capacity(has_other_request: bool) -> None:
    harness = ForeignRequestsHarness()
    if has_other_request:
        harness.requests.handle_event(None, harness.request(OWN, uid="r0"))
    harness.requests.handle_pending_pod(FOREIGN)
    harness.requests.handle_pod_delete(FOREIGN)
    harness.requests.handle_event(None, harness.request(FOREIGN))
    assert harness.node_of(FOREIGN) is None


def test_a_deleted_pod_leaves_the_next_pod_of_its_name_pending() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(LATER)
    harness.requests.handle_pod_delete(FOREIGN)
    harness.requests.handle_event(None, harness.request(LATER, "n2"))
    assert harness.node_of(LATER) == "n2"


@pytest.mark.parametrize("end", ["placed", "placed-unseen", "gone", "gone-unseen", "succeeded", "succeeded-unseen"])
def test_a_request_ends_with_its_pod(end: str) -> None:
    """`unseen`: no event showed the pod without a node. The next pod of its name does not get the request."""
    harness = ForeignRequestsHarness()
    if not end.endswith("unseen"):
        harness.requests.handle_pending_pod(FOREIGN)
    harness.requests.handle_event(None, harness.request_without_uid(FOREIGN))
    placed = replace_fields(FOREIGN, spec={"node_name": "n1"})
    if end.startswith("gone"):
        harness.requests.handle_pod_delete(FOREIGN)
    elif end == "succeeded-unseen":
        harness.requests.handle_event(None, harness.request_without_uid(FOREIGN, phase="Succeeded"))
    else:
        harness.cache.add_pod(placed)
        harness.requests.handle_pod_assigned(placed)
        if end == "succeeded":
            harness.requests.handle_event(None, harness.request_without_uid(FOREIGN, phase="Succeeded"))
    assert harness.requests.request_of(FOREIGN) is None
    harness.requests.handle_pending_pod(LATER)
    assert harness.node_of(LATER) is None


def test_a_request_that_has_succeeded_is_known_until_its_pod_is_shown_on_the_node() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    harness.requests.handle_event(None, harness.request(FOREIGN))
    done = harness.request(FOREIGN, phase="Succeeded")
    harness.requests.handle_event(None, done)
    assert harness.requests.request_of(FOREIGN) is done
    harness.requests.handle_pod_assigned(replace_fields(FOREIGN, spec={"node_name": "n1"}))
    assert harness.requests.request_of(FOREIGN) is None


def test_a_request_that_is_deleted_before_the_pod_event_leaves_the_pod_on_its_node() -> None:
    """The cache has the pod from the API server already; only then the request is deleted."""
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    request = harness.request(FOREIGN)
    harness.requests.handle_event(None, request)
    harness.cache.add_pod(replace_fields(FOREIGN, spec={"node_name": "n1"}))
    harness.requests.handle_event(request, None)
    assert harness.cache.is_confirmed(FOREIGN.uid)
    assert harness.freed == []


def test_the_devices_of_a_bound_pod_are_reserved_as_its_claim_says() -> None:
    harness = ForeignRequestsHarness()
    pod = replace_fields(FOREIGN, spec={"resource_claims": (PodResourceClaim("gpu", resource_claim_name="c"),)})
    harness.cache.upsert(make_claim(name="c"))
    request = harness.request(pod)
    brought = (ClaimAllocation("gpu", make_allocation({"pool": "n1", "device": "a"})),)
    request = msgspec.structs.replace(
        request, spec=msgspec.structs.replace(request.spec, resource_claim_allocations=brought)
    )
    harness.requests.handle_pending_pod(pod)
    harness.requests.handle_event(None, request)
    harness.requests.handle_pod_assigned(replace_fields(pod, spec={"node_name": "n1"}))
    harness.requests.handle_event(request, None)
    held = harness.cache.devices.in_use.is_exclusively_allocated
    assert held(DeviceId(DRIVER, "n1", "a"))
    harness.cache.upsert(make_claim(name="c", allocation=make_allocation({"pool": "n1", "device": "a"}), version="2"))
    assert held(DeviceId(DRIVER, "n1", "a"))
    harness.cache.upsert(make_claim(name="c", version="3"))
    assert not held(DeviceId(DRIVER, "n1", "a"))


def test_a_deleted_pod_frees_the_capacity_of_its_request() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    harness.requests.handle_event(None, harness.request(FOREIGN))
    harness.requests.handle_pod_delete(FOREIGN)
    assert harness.node_of(FOREIGN) is None
    assert harness.freed == ["web from n1"]


def test_assumed_own_pods_are_not_changed() -> None:
    harness = ForeignRequestsHarness()
    harness.requests.handle_pending_pod(FOREIGN)
    harness.cache.assume(PodInfo(OWN).bound_to("n1"))
    harness.requests.handle_pod_delete(OWN)
    assert harness.node_of(OWN) == "n1"
    assert harness.freed == []
