"""Which pods of other schedulers count on a node because of a request, rule by rule."""

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
from bayplan.objects.kai.bind_request import (
    BindRequest,
    BindRequestStatus,
    ClaimAllocation,
    new_request,
)
from bayplan.snapshot import PodInfo
from bayplan.testing import make_node, make_pod
from support.builders.devices import DRIVER, make_allocation, make_claim
from support.builders.framework import CREATED, replace_fields

THEIRS = replace_fields(make_pod("web", uid="u1"), spec={"scheduler_name": "volcano"})
LATER = replace_fields(make_pod("web", uid="u2"), spec={"scheduler_name": "volcano"})
OURS = make_pod("mine", uid="u3")


class World:
    def __init__(self) -> None:
        self.cache = Cache()
        for name in ("n1", "n2"):
            self.cache.add_node(make_node(name))
        self.freed: list[str] = []
        self.clock = ManualClock()
        self.others = ForeignBindRequests(
            self.cache,
            lambda pod: pod.scheduler_name == "default-scheduler",
            lambda was: self.freed.append(f"{was.name} from {was.spec.node_name}"),
            LostRequests(self.clock, 60.0),
        )
        self._versions = 0

    def request(self, pod: Pod, node: str = "n1", *, uid: str = "r1", **status: Any) -> BindRequest:
        self._versions += 1
        made = new_request(pod, node, annotations={}, backoff_limit=3)
        meta = msgspec.structs.replace(made.metadata, uid=uid, resource_version=str(self._versions))
        return msgspec.structs.replace(made, metadata=meta, status=BindRequestStatus(**status))

    def of_any_uid(self, pod: Pod, **status: Any) -> BindRequest:
        """A request without the uid of its pod, as an upstream CRD prunes it: it is for any pod of that name."""
        made = self.request(pod, **status)
        meta = msgspec.structs.replace(made.metadata, owner_references=())
        return msgspec.structs.replace(made, metadata=meta, spec=msgspec.structs.replace(made.spec, pod_uid=""))

    def node_of(self, pod: Pod) -> str | None:
        found = self.cache.pod(pod.uid)
        return None if found is None else found.spec.node_name


def test_a_pod_counts_where_its_live_request_says() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    assert world.node_of(THEIRS) is None
    world.others.handle_event(None, world.request(THEIRS))
    assert world.node_of(THEIRS) == "n1"
    assert world.cache.is_assumed(THEIRS.uid)


def test_a_request_that_is_told_before_its_pod_counts_when_the_pod_comes() -> None:
    world = World()
    world.others.handle_event(None, world.request(THEIRS))
    assert world.node_of(THEIRS) is None
    world.others.handle_pending_pod(THEIRS)
    assert world.node_of(THEIRS) == "n1"


def test_pods_of_ours_are_left_to_who_follows_them() -> None:
    world = World()
    world.others.handle_pending_pod(OURS)
    world.others.handle_event(None, world.request(OURS))
    assert world.node_of(OURS) is None
    assert world.others.request_of(OURS) is None


@pytest.mark.parametrize("is_deleted_after_it", [False, True])
def test_a_request_that_was_given_up_frees_the_room(is_deleted_after_it: bool) -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    made, given_up = world.request(THEIRS), world.request(THEIRS, phase="Failed", failed_attempts=3)
    world.others.handle_event(None, made)
    world.others.handle_event(made, given_up)
    if is_deleted_after_it:
        world.others.handle_event(given_up, None)
    assert world.node_of(THEIRS) is None
    assert world.freed == ["web from n1"]
    assert THEIRS.uid not in world.others.lost


def test_a_live_request_that_is_deleted_frees_the_room_when_its_binding_cannot_land() -> None:
    """The binder may have sent the binding before."""
    world = World()
    world.others.handle_pending_pod(THEIRS)
    made = world.request(THEIRS)
    world.others.handle_event(None, made)
    world.others.handle_event(made, None)
    world.clock.advance(59.9)
    world.others.handle_pending_pod(replace_fields(THEIRS, metadata={"labels": {"a": "b"}}))
    assert (world.node_of(THEIRS), world.freed, world.others.lost.due()) == ("n1", [], [])
    assert world.others.request_of(THEIRS) is made
    world.clock.advance(0.1)
    assert world.others.lost.due() == [(THEIRS.uid, made)]
    for found in (None, LATER, replace_fields(THEIRS, spec={"node_name": "n1"})):  # the watch is about to show that
        world.others.read_pod(THEIRS.uid, found)
        assert world.node_of(THEIRS) == "n1"
    world.others.read_pod(THEIRS.uid, THEIRS)
    assert (world.node_of(THEIRS), world.freed) == (None, ["web from n1"])
    assert world.others.lost.due() == []
    assert world.others.request_of(THEIRS) is None


def test_a_terminating_pod_frees_the_room_with_its_request() -> None:
    world = World()
    pod = replace_fields(THEIRS, metadata={"deletion_timestamp": CREATED})
    world.others.handle_pending_pod(pod)
    made = world.request(pod)
    world.others.handle_event(None, made)
    world.others.handle_event(made, None)
    assert (world.node_of(pod), world.freed) == (None, ["web from n1"])


@pytest.mark.parametrize("end", ["placed", "gone"])
def test_a_pod_whose_request_was_deleted_is_not_read_once_the_watch_shows_its_end(end: str) -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    made = world.request(THEIRS)
    world.others.handle_event(None, made)
    world.others.handle_event(made, None)
    if end == "gone":
        world.others.handle_pod_delete(THEIRS)
    else:
        world.cache.add_pod(replace_fields(THEIRS, spec={"node_name": "n1"}))
        world.others.handle_pod_assigned(replace_fields(THEIRS, spec={"node_name": "n1"}))
    world.clock.advance(60.0)
    assert world.others.lost.due() == []
    assert world.node_of(THEIRS) == ("n1" if end == "placed" else None)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_request_after_a_deleted_one_says_where_the_pod_counts(node: str) -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    made = world.request(THEIRS)
    world.others.handle_event(None, made)
    world.others.handle_event(made, None)
    again = world.request(THEIRS, node, uid="r2")
    world.others.handle_event(None, again)
    assert (world.node_of(THEIRS), world.others.request_of(THEIRS)) == (node, again)
    world.clock.advance(60.0)
    assert world.others.lost.due() == []


def test_a_failure_that_is_tried_again_and_a_success_that_is_told_early_keep_it() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    made, failed = world.request(THEIRS), world.request(THEIRS, phase="Failed", failed_attempts=1)
    done = world.request(THEIRS, phase="Succeeded")
    for old, new in ((None, made), (made, failed), (failed, done)):
        world.others.handle_event(old, new)
        assert world.node_of(THEIRS) == "n1"
    assert world.freed == []


def test_a_pod_that_is_placed_counts_by_itself() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    made = world.request(THEIRS)
    world.others.handle_event(None, made)
    placed = replace_fields(THEIRS, spec={"node_name": "n2"})
    world.cache.add_pod(placed)
    world.others.handle_pod_assigned(placed)
    world.others.handle_event(made, None)
    assert world.node_of(THEIRS) == "n2"
    assert world.cache.is_confirmed(THEIRS.uid)
    assert world.freed == []


def test_a_pod_that_goes_takes_its_count_along_and_not_that_of_the_next_of_its_name() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    world.others.handle_event(None, world.request(THEIRS))
    world.others.handle_event(
        None, world.request(LATER, "n2", uid="r2")
    )  # told before the pods, which have a watch of their own
    assert world.node_of(THEIRS) is None
    world.others.handle_pod_delete(THEIRS)
    world.others.handle_pending_pod(LATER)
    assert (world.node_of(THEIRS), world.node_of(LATER)) == (None, "n2")


def test_a_request_for_another_node_moves_the_count() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    made = world.request(THEIRS)
    world.others.handle_event(None, made)
    world.others.handle_event(made, world.request(THEIRS, "n2", uid="r2"))
    assert world.node_of(THEIRS) == "n2"
    assert world.freed == ["web from n1"]


def test_what_a_list_tells_late_undoes_nothing() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    before = world.request(THEIRS)
    world.others.handle_event(None, world.request(THEIRS, phase="Failed", failed_attempts=3))
    world.others.handle_event(None, before)
    assert world.node_of(THEIRS) is None


def test_requests_of_pods_that_are_on_their_nodes_are_not_kept() -> None:
    world = World()
    world.others.handle_event(None, world.request(THEIRS))
    world.others.handle_pod_assigned(replace_fields(THEIRS, spec={"node_name": "n1"}))
    world.others.handle_event(None, world.request(LATER, phase="Succeeded"))
    assert world.others.request_of(THEIRS) is None
    assert world.others.request_of(LATER) is None


def test_the_devices_of_such_a_request_are_nobody_elses_until_it_goes() -> None:
    world = World()
    pod = replace_fields(THEIRS, spec={"resource_claims": (PodResourceClaim("gpu", resource_claim_name="c"),)})
    world.cache.upsert(make_claim(name="c"))
    made = world.request(pod)
    brought = (ClaimAllocation("gpu", make_allocation({"pool": "n1", "device": "a"})),)
    made = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, resource_claim_allocations=brought))
    world.others.handle_pending_pod(pod)
    world.others.handle_event(None, made)
    held = world.cache.devices.in_use.is_exclusively_allocated
    assert held(DeviceId(DRIVER, "n1", "a"))
    assert world.others.request_of(pod) is made
    world.others.handle_event(made, None)
    assert held(DeviceId(DRIVER, "n1", "a"))
    world.clock.advance(60.0)
    world.others.read_pod(pod.uid, pod)
    assert not held(DeviceId(DRIVER, "n1", "a"))


def test_the_devices_of_a_deleted_request_are_free_when_the_next_one_names_others() -> None:
    world = World()
    pod = replace_fields(THEIRS, spec={"resource_claims": (PodResourceClaim("gpu", resource_claim_name="c"),)})
    world.cache.upsert(make_claim(name="c"))
    world.others.handle_pending_pod(pod)
    requests = []
    for uid, device in (("r1", "a"), ("r2", "b")):
        made, brought = world.request(pod, uid=uid), make_allocation({"pool": "n1", "device": device})
        spec = msgspec.structs.replace(made.spec, resource_claim_allocations=(ClaimAllocation("gpu", brought),))
        requests.append(msgspec.structs.replace(made, spec=spec))
    world.others.handle_event(None, requests[0])
    world.others.handle_event(requests[0], requests[1])
    held = world.cache.devices.in_use.is_exclusively_allocated
    assert (held(DeviceId(DRIVER, "n1", "a")), held(DeviceId(DRIVER, "n1", "b"))) == (False, True)


@pytest.mark.parametrize(
    "later",
    [pytest.param({"phase": "Failed", "failed_attempts": 3}, id="given-up"), pytest.param(None, id="of-the-next-pod")],
)
def test_only_the_deletion_of_the_request_by_which_a_pod_counts_is_remembered(later: dict[str, Any] | None) -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    first = world.request(THEIRS)
    second = world.request(LATER, uid="r2") if later is None else world.request(THEIRS, uid="r2", **later)
    world.others.handle_event(None, first)
    world.others.handle_event(first, None)
    world.clock.advance(30.0)
    world.others.handle_event(None, second)
    world.others.handle_event(second, None)
    world.clock.advance(30.0)
    assert world.others.lost.due() == [(THEIRS.uid, first)]


@pytest.mark.parametrize("told_of_others", [True, False], ids=["requests-are-known", "no-request-is-known"])
def test_a_request_that_comes_after_its_pod_is_gone_takes_no_room(told_of_others: bool) -> None:
    world = World()
    if told_of_others:
        world.others.handle_event(None, world.request(OURS, uid="r0"))
    world.others.handle_pending_pod(THEIRS)
    world.others.handle_pod_delete(THEIRS)
    world.others.handle_event(None, world.request(THEIRS))
    assert world.node_of(THEIRS) is None


def test_a_pod_that_goes_leaves_the_next_of_its_name_waiting() -> None:
    world = World()
    world.others.handle_pending_pod(LATER)
    world.others.handle_pod_delete(THEIRS)
    world.others.handle_event(None, world.request(LATER, "n2"))
    assert world.node_of(LATER) == "n2"


@pytest.mark.parametrize("end", ["placed", "placed-unseen", "gone", "gone-unseen", "succeeded", "succeeded-unseen"])
def test_a_request_ends_with_its_pod(end: str) -> None:
    """`unseen`: the pod was never shown without a node. The next pod of its name does not inherit the request."""
    world = World()
    if not end.endswith("unseen"):
        world.others.handle_pending_pod(THEIRS)
    world.others.handle_event(None, world.of_any_uid(THEIRS))
    placed = replace_fields(THEIRS, spec={"node_name": "n1"})
    if end.startswith("gone"):
        world.others.handle_pod_delete(THEIRS)
    elif end == "succeeded-unseen":
        world.others.handle_event(None, world.of_any_uid(THEIRS, phase="Succeeded"))
    else:
        world.cache.add_pod(placed)
        world.others.handle_pod_assigned(placed)
        if end == "succeeded":
            world.others.handle_event(None, world.of_any_uid(THEIRS, phase="Succeeded"))
    assert world.others.request_of(THEIRS) is None
    world.others.handle_pending_pod(LATER)
    assert world.node_of(LATER) is None


def test_a_request_that_has_succeeded_is_known_until_its_pod_is_shown_on_the_node() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    world.others.handle_event(None, world.request(THEIRS))
    done = world.request(THEIRS, phase="Succeeded")
    world.others.handle_event(None, done)
    assert world.others.request_of(THEIRS) is done
    world.others.handle_pod_assigned(replace_fields(THEIRS, spec={"node_name": "n1"}))
    assert world.others.request_of(THEIRS) is None


def test_a_request_that_goes_before_the_news_of_its_pod_leaves_the_pod_on_its_node() -> None:
    """The cache has the pod from the API server already; only then the request is deleted."""
    world = World()
    world.others.handle_pending_pod(THEIRS)
    made = world.request(THEIRS)
    world.others.handle_event(None, made)
    world.cache.add_pod(replace_fields(THEIRS, spec={"node_name": "n1"}))
    world.others.handle_event(made, None)
    assert world.cache.is_confirmed(THEIRS.uid)
    assert world.freed == []


def test_the_devices_of_a_pod_on_its_node_are_held_as_its_claim_says() -> None:
    world = World()
    pod = replace_fields(THEIRS, spec={"resource_claims": (PodResourceClaim("gpu", resource_claim_name="c"),)})
    world.cache.upsert(make_claim(name="c"))
    made = world.request(pod)
    brought = (ClaimAllocation("gpu", make_allocation({"pool": "n1", "device": "a"})),)
    made = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, resource_claim_allocations=brought))
    world.others.handle_pending_pod(pod)
    world.others.handle_event(None, made)
    world.others.handle_pod_assigned(replace_fields(pod, spec={"node_name": "n1"}))
    world.others.handle_event(made, None)
    held = world.cache.devices.in_use.is_exclusively_allocated
    assert held(DeviceId(DRIVER, "n1", "a"))
    world.cache.upsert(make_claim(name="c", allocation=make_allocation({"pool": "n1", "device": "a"}), version="2"))
    assert held(DeviceId(DRIVER, "n1", "a"))
    world.cache.upsert(make_claim(name="c", version="3"))
    assert not held(DeviceId(DRIVER, "n1", "a"))


def test_a_pod_that_goes_frees_the_room_that_its_request_took() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    world.others.handle_event(None, world.request(THEIRS))
    world.others.handle_pod_delete(THEIRS)
    assert world.node_of(THEIRS) is None
    assert world.freed == ["web from n1"]


def test_what_we_assume_of_our_own_pods_is_left_alone() -> None:
    world = World()
    world.others.handle_pending_pod(THEIRS)
    world.cache.assume(PodInfo(OURS).bound_to("n1"))
    world.others.handle_pod_delete(OURS)
    assert world.node_of(OURS) == "n1"
    assert world.freed == []
