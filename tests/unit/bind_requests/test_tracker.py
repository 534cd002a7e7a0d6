"""Which pods count on a node because of a request, rule by rule: after a restart, a failure, a node that went, age."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bayplan.bind_requests.foreign_requests import ForeignBindRequests
from bayplan.bind_requests.lost_requests import LostRequests
from bayplan.bind_requests.tracker import MAX_RETRY_DELAY_S, BindRequestTracker
from bayplan.binder.status_updater import StatusUpdater
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.devices.identity import DeviceId
from bayplan.framework.api.status import Status
from bayplan.framework.runtime.bind_failures import BindFailures
from bayplan.intents.pod_intents import DeleteBindRequest
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
from support.builders.framework import replace_fields


class Engine:
    """Pods that wait, and what was done about them."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = {pod.key: pod for pod in pods}
        self.done: list[tuple[str, str]] = []
        self.deleted: list[DeleteBindRequest] = []

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        return self.pods.get(request.pod_key)

    def on_assumed(self, pod: Pod) -> None:
        self.done.append(("taken", pod.name))

    def on_released(self, pod: Pod, was: Pod) -> None:
        self.done.append(("released", f"{pod.name} from {was.spec.node_name}"))

    def submit(self, intent: object) -> None:
        assert isinstance(intent, DeleteBindRequest)
        self.deleted.append(intent)

    def record_warning(self, pod: Pod, reason: str, note: str) -> None:
        self.done.append((reason, f"{pod.name}: {note}"))

    def wake(self, uid: str) -> None:
        self.done.append(("wake", uid))


class World:
    def __init__(self, *pods: Pod, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
        self.clock, self.cache, self.engine = ManualClock(), Cache(), Engine(*pods)
        for name in nodes:
            self.cache.add_node(make_node(name))
        self.failures = BindFailures(self.clock)
        self.book = BindRequestTracker(self.cache, self.engine, self.failures, self.clock)
        self._versions = 0

    def request(self, pod: Pod, node: str = "n1", **status: Any) -> BindRequest:
        """The same request in another version, each time."""
        self._versions += 1
        made = new_request(pod, node, annotations={}, backoff_limit=3)
        meta = msgspec.structs.replace(
            made.metadata,
            uid=f"request-{pod.uid}-{node}",
            resource_version=str(self._versions),
            creation_timestamp=self.clock.now(),
        )
        return msgspec.structs.replace(made, metadata=meta, status=BindRequestStatus(**status))

    def request_timeout_passes(self) -> None:
        """The API server is asked then for the pods of requests that were deleted, and they have no nodes."""
        self.clock.advance(60)
        for uid, request in self.book.lost():
            found = self.engine.pods[request.pod_key]
            assert found.uid == uid
            self.book.read_pod(uid, found)

    def node_of(self, pod: Pod) -> str | None:
        found = self.cache.pod(pod.uid)
        return None if found is None else found.spec.node_name


DELETED = "the bind request was deleted before the pod was bound"
BECAUSE = "because the binder may have sent its binding"
WEB = make_pod("web", uid="u1")
LATER = make_pod("web", uid="u2")


def test_a_pod_with_a_live_request_counts_on_its_node() -> None:
    world = World(WEB)
    world.book.handle_event(None, world.request(WEB))
    assert world.node_of(WEB) == "n1"
    assert world.cache.is_assumed("u1")
    assert world.engine.done == [("taken", "web")]


def test_a_request_that_is_told_before_its_pod_counts_when_the_pod_comes() -> None:
    world = World()
    world.book.handle_event(None, world.request(WEB))
    assert world.node_of(WEB) is None
    assert world.book.handle_pod_add(WEB)
    assert world.node_of(WEB) == "n1"


def test_a_request_of_an_earlier_pod_of_that_name_counts_for_nobody() -> None:
    world = World(LATER)
    world.book.handle_event(None, world.request(WEB))
    assert not world.book.handle_pod_add(LATER)
    assert world.node_of(LATER) is None


def test_a_request_that_has_succeeded_still_counts_while_the_watch_of_pods_lags() -> None:
    world = World(WEB)
    world.book.handle_event(None, world.request(WEB, phase="Succeeded"))
    assert world.node_of(WEB) == "n1"


def test_a_failure_that_is_tried_again_keeps_the_room() -> None:
    world = World(WEB)
    world.book.handle_event(None, world.request(WEB))
    world.book.handle_event(None, world.request(WEB, phase="Failed", failed_attempts=1))
    assert world.node_of(WEB) == "n1"


def test_a_request_that_is_given_up_frees_the_pod_keeps_it_from_the_node_and_is_deleted() -> None:
    world = World(WEB)
    world.book.handle_event(None, world.request(WEB))
    world.book.handle_event(None, world.request(WEB, phase="Failed", failed_attempts=3, reason="no quota"))
    assert world.node_of(WEB) is None
    assert world.engine.done[-1] == ("released", "web from n1")
    assert world.failures.excluded_nodes("u1") == {"n1"}
    assert [each.request.metadata.uid for each in world.engine.deleted] == ["request-u1-n1"]
    world.clock.advance(30)
    world.book.run_periodic_checks()
    assert world.engine.done[-1] == ("wake", "u1")


def test_a_pod_that_is_kept_from_several_nodes_is_woken_for_each_of_them() -> None:
    world = World(WEB)
    for node in ("n1", "n2"):
        world.book.handle_event(None, world.request(WEB, node))
        world.book.handle_event(None, world.request(WEB, node, phase="Failed", failed_attempts=3, reason="no quota"))
        world.clock.advance(10)
    woken = []
    for _ in range(5):
        world.engine.done.clear()
        world.clock.advance(5)
        world.book.run_periodic_checks()
        woken.append(("wake", "u1") in world.engine.done)
    assert woken == [False, True, False, True, False]
    assert world.failures.excluded_nodes("u1") == frozenset()


def test_an_old_word_of_the_watch_does_not_undo_a_newer_one() -> None:
    world = World(WEB)
    old, new = world.request(WEB), world.request(WEB, phase="Succeeded")
    world.book.observe_created(new, WEB)
    world.book.handle_event(None, old)
    assert world.book.requests[WEB.key].has_succeeded


def test_what_was_deleted_is_not_brought_back_by_a_late_answer() -> None:
    world = World(WEB)
    request = world.request(WEB)
    world.book.handle_event(None, request)
    world.book.handle_event(request, None)
    world.request_timeout_passes()
    world.book.handle_pod_delete(WEB)
    world.book.observe_created(request, WEB)
    assert world.node_of(WEB) is None


def test_a_pod_keeps_its_node_after_its_live_request_was_deleted_until_its_binding_cannot_land() -> None:
    world = World(WEB)
    request = world.request(WEB)
    world.book.handle_event(None, request)
    world.book.handle_event(request, None)
    assert world.node_of(WEB) == "n1"
    assert world.book.request_of(WEB) is request
    assert world.book.handle_pod_add(WEB)  # it is not to be placed
    assert world.engine.done[-1] == (
        "BindRequestDeleted",
        f"web: {DELETED}; the pod keeps its capacity on node n1 for 60 s, {BECAUSE}, and is scheduled again after that",
    )
    world.clock.advance(59)
    assert world.book.lost() == []
    world.clock.advance(1)
    assert world.book.lost() == [("u1", request)]
    world.book.read_pod("u1", None)  # it went, or another has its name: the watch is about to tell
    world.book.read_pod("u1", LATER)
    world.book.read_pod("u1", replace_fields(WEB, spec={"node_name": "n1"}))
    assert world.node_of(WEB) == "n1"
    world.book.read_pod("u1", WEB)
    assert world.node_of(WEB) is None
    assert world.engine.done[-1] == ("released", "web from n1")
    assert world.book.lost() == []


@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "gone"])
def test_a_pod_whose_request_was_deleted_waits_no_longer_than_the_watch_needs(is_bound: bool) -> None:
    world, told = World(WEB), list[Status]()
    world.book.observe_created(world.request(WEB), WEB)
    assert world.book.track(WEB, told.append) is None
    world.book.handle_event(world.book.requests[WEB.key], None)
    (world.book.handle_pod_assigned if is_bound else world.book.handle_pod_delete)(WEB)
    assert [each.ok for each in told] == [is_bound]
    world.clock.advance(60)
    assert world.book.lost() == []


def test_the_next_request_of_a_pod_takes_over_from_the_one_that_was_deleted() -> None:
    """An earlier create of it landed late, or a person made it."""
    world = World(WEB)
    first = world.request(WEB)
    world.book.handle_event(None, first)
    world.book.handle_event(first, None)
    second = world.request(WEB)
    second = replace_fields(second, metadata={"uid": "second"})
    world.book.handle_event(None, second)
    world.clock.advance(60)
    assert world.book.lost() == []
    assert world.node_of(WEB) == "n1"
    assert world.book.request_of(WEB) == second


def test_a_pod_that_is_being_deleted_cannot_be_bound_and_is_free_at_once() -> None:
    world = World(replace_fields(WEB, metadata={"deletion_timestamp": ManualClock().now()}))
    request = world.request(WEB)
    world.book.handle_event(None, request)
    world.book.handle_event(request, None)
    assert world.engine.done[-1] == ("released", "web from n1")


def test_an_answer_that_comes_after_the_deletion_holds_the_room_too() -> None:
    world, told = World(WEB), list[Status]()
    world.cache.assume(PodInfo(WEB).bound_to("n1"))
    request = world.request(WEB)
    world.book.only_failures = True
    world.book._handle_request_delete(request)  # told by a list; the watch has not told that there was one
    world.book.observe_created(request, WEB)
    assert world.book.track(WEB, told.append) is None
    assert world.node_of(WEB) == "n1"
    world.request_timeout_passes()
    assert [each.message for each in told] == ["the bind request was deleted before the pod was bound"]


def test_a_request_that_may_come_back_stays_and_its_pod_is_not_tried() -> None:
    """A create of it with an unknown outcome may still land: the next request would have the same name."""
    world = World(WEB)
    world.book.handle_event(None, world.request(WEB))
    world.book.handle_event(None, world.request(WEB, phase="Failed", failed_attempts=3, reason="no quota"))
    (deletion,) = world.engine.deleted
    assert deletion.postponed is not None
    deletion.postponed(world.clock.monotonic_s() + 60)
    assert world.node_of(WEB) is None  # what the request gave up is free
    assert world.failures.backoff_message("u1") == (
        "BindFailed: the bind request to node n1 was given up and cannot be replaced yet: an earlier create of it, "
        "whose outcome is unknown, may still land; it is tried again in 60 s"
    )
    world.clock.advance(59)
    world.book.run_periodic_checks()
    assert ("wake", "u1") not in world.engine.done
    assert len(world.engine.deleted) == 2
    world.clock.advance(1)
    world.book.run_periodic_checks()
    assert world.engine.done[-1] == ("wake", "u1")
    assert world.failures.backoff_message("u1") == ""


def test_a_live_request_that_may_come_back_keeps_its_pod_on_its_node() -> None:
    world = World(WEB, nodes=("n2",))
    world.book.handle_event(None, world.request(WEB))
    world.book.run_periodic_checks()
    (deletion,) = world.engine.deleted
    assert deletion.postponed is not None
    deletion.postponed(world.clock.monotonic_s() + 60)
    assert world.node_of(WEB) == "n1"
    assert world.failures.backoff_message("u1") == ""


def test_a_request_to_a_node_that_is_gone_is_deleted() -> None:
    world = World(WEB, nodes=("n2",))
    world.book.handle_event(None, world.request(WEB))
    world.book.run_periodic_checks()
    assert [each.request.spec.selected_node for each in world.engine.deleted] == ["n1"]


def test_what_could_not_be_deleted_is_deleted_again() -> None:
    world = World(WEB, nodes=("n2",))
    world.book.handle_event(None, world.request(WEB))
    for _ in range(2):
        world.book.run_periodic_checks()
    assert len(world.engine.deleted) == 2


def test_a_pod_of_another_scheduler_is_read_as_one_of_ours_after_its_request_was_deleted() -> None:
    world, freed = World(), list[str]()
    theirs = replace_fields(WEB, spec={"scheduler_name": "volcano"})
    lost = LostRequests(world.clock, 60.0)
    world.book.foreign_requests = ForeignBindRequests(
        world.cache, lambda _: False, lambda was: freed.append(was.name), lost
    )
    world.book.handle_foreign_pod(theirs)
    made = world.request(theirs)
    world.book.handle_event(None, made)
    world.book.handle_event(made, None)
    assert (world.node_of(theirs), world.book.lost()) == ("n1", [])
    assert world.book.request_of(theirs) is made
    world.clock.advance(60.0)
    assert world.book.lost() == [(theirs.uid, made)]
    world.book.read_pod(theirs.uid, theirs)
    assert (world.node_of(theirs), freed, world.book.lost()) == (None, ["web"], [])


def test_requests_of_others_are_not_deleted() -> None:
    world = World(WEB)
    request = world.request(WEB, phase="Failed", failed_attempts=3)
    theirs = msgspec.structs.replace(request, metadata=msgspec.structs.replace(request.metadata, labels={}))
    world.book.handle_event(None, theirs)
    world.book.run_periodic_checks()
    assert world.engine.deleted == []


def test_a_request_that_nobody_takes_up_is_complained_about_once_and_deleted_much_later() -> None:
    world = World(WEB)
    world.book.handle_event(None, world.request(WEB))
    for seconds in (599, 2, 100):
        world.clock.advance(seconds)
        world.book.run_periodic_checks()
    (told,) = complaints(world)
    assert told == (
        "web: no binder has updated the bind request to node n1 for 601 s; "
        "see whether `bayplan binder` runs, and what it waits for"
    )
    assert len(world.book.stale) == 1
    assert world.engine.deleted == []
    world.clock.advance(3000)
    world.book.run_periodic_checks()
    assert [each.only_if_unchanged for each in world.engine.deleted] == [True]  # one that the binder takes up now stays


def stale_and_refused() -> tuple[World, DeleteBindRequest]:
    """A request that was to be deleted for its age, and somebody has changed it."""
    world = failures_only(WEB)
    world.book.handle_event(None, world.request(WEB))
    world.clock.advance(3601)
    world.book.run_periodic_checks()
    (refused,) = world.engine.deleted
    world.engine.deleted.clear()
    return world, refused


def edited(refused: DeleteBindRequest, version: int = 100, **status: Any) -> BindRequest:
    was = refused.request
    meta = msgspec.structs.replace(was.metadata, resource_version=str(version), annotations={"x": "y"})
    return msgspec.structs.replace(was, metadata=meta, status=BindRequestStatus(**status))


def test_a_stale_request_that_somebody_has_edited_is_deleted_in_its_new_version() -> None:
    world, refused = stale_and_refused()
    assert refused.on_deleted is not None
    refused.on_deleted(edited(refused))
    (again,) = world.engine.deleted
    assert (again.request.metadata.resource_version, again.only_if_unchanged) == ("100", True)
    assert again.on_deleted is not None
    again.on_deleted(edited(again, 101))
    assert [each.request.metadata.resource_version for each in world.engine.deleted] == ["100", "101"]


def test_a_server_that_refuses_without_any_change_is_asked_again_at_the_next_look_only() -> None:
    world, refused = stale_and_refused()
    assert refused.on_deleted is not None
    refused.on_deleted(refused.request)
    assert world.engine.deleted == []
    world.book.run_periodic_checks()
    assert len(world.engine.deleted) == 1


@pytest.mark.parametrize(
    ("status", "node", "deleted"),
    [
        pytest.param({"phase": "Succeeded"}, "n1", 0, id="bound"),
        pytest.param({"phase": "Failed", "failed_attempts": 1}, "n1", 0, id="the binder is there again"),
        pytest.param({"phase": "Failed", "failed_attempts": 3}, None, 1, id="given up"),
    ],
)
def test_a_stale_request_that_the_binder_has_taken_up_meanwhile_is_followed(
    status: dict[str, Any], node: str | None, deleted: int
) -> None:
    world, refused = stale_and_refused()
    assert refused.on_deleted is not None
    refused.on_deleted(edited(refused, **status))
    assert world.node_of(WEB) == node
    assert not world.book.stale
    assert [each.only_if_unchanged for each in world.engine.deleted] == [False] * deleted


@pytest.mark.parametrize("again", [True, False], ids=["made anew", "gone"])
def test_where_another_request_is_there_the_stale_one_is_gone(again: bool) -> None:
    world, refused = stale_and_refused()
    assert refused.on_deleted is not None
    refused.on_deleted(world.request(WEB, "n2") if again else None)
    if not again:
        world.request_timeout_passes()
    assert ("released", "web from n1") in world.engine.done
    assert world.node_of(WEB) == ("n2" if again else None)
    assert world.engine.deleted == []


def complaints(world: World) -> list[str]:
    return [note for reason, note in world.engine.done if reason == "BindRequestStale"]


def test_a_request_that_was_tried_lately_is_not_stale_however_old_it_is() -> None:
    world = World(WEB)
    request = world.request(WEB, phase="Failed", failed_attempts=1)
    world.clock.advance(timedelta(hours=2).total_seconds())
    world.book.handle_event(None, request)
    for seconds in (1, 660):  # the longest pause, and then the time that makes it stale
        world.clock.advance(seconds)
        world.book.run_periodic_checks()
    assert world.engine.deleted == []
    assert not world.book.stale
    assert complaints(world) == []


@pytest.mark.parametrize("only_failures", [False, True], ids=["all are watched", "failures are watched"])
def test_a_request_that_nobody_tries_again_is_complained_about_once_and_deleted_much_later(only_failures: bool) -> None:
    world = World(WEB)
    world.book.only_failures = only_failures
    world.book.handle_event(None, world.request(WEB, phase="Failed", failed_attempts=2))
    for seconds in (667, 100):
        world.clock.advance(seconds)
        world.book.run_periodic_checks()
    (told,) = complaints(world)
    assert told.startswith(
        "web: no binder has updated the bind request to node n1 for 601 s, "
        "though it was to be retried after 2 failures; "
    )
    assert len(world.book.stale) == 1
    assert world.engine.deleted == []
    world.clock.advance(2900)
    world.book.run_periodic_checks()
    assert [each.only_if_unchanged for each in world.engine.deleted] == [True]


def test_a_binder_that_tries_again_makes_a_request_young_and_an_edit_does_not() -> None:
    world = World(WEB)
    failed = {"phase": "Failed", "failed_attempts": 1}
    world.book.handle_event(None, world.request(WEB, **failed))
    world.clock.advance(600)
    world.book.handle_event(None, world.request(WEB, **failed))  # another version, and nothing was tried
    world.clock.advance(100)
    world.book.run_periodic_checks()
    assert len(world.book.stale) == 1
    world.book.handle_event(None, world.request(WEB, **failed))
    assert len(world.book.stale) == 1
    world.book.handle_event(None, world.request(WEB, phase="Failed", failed_attempts=2))
    assert not world.book.stale
    world.clock.advance(600)
    world.book.run_periodic_checks()
    assert not world.book.stale
    assert len(complaints(world)) == 1


def test_pending_is_another_word_for_not_taken_up() -> None:
    world = World(WEB)
    request = world.request(WEB)
    pending = msgspec.structs.replace(request, status=BindRequestStatus("Pending"))
    world.book.handle_event(None, request)
    world.clock.advance(601)
    world.book.run_periodic_checks()
    assert len(complaints(world)) == len(world.book.stale) == 1
    world.book.handle_event(None, pending)
    assert len(world.book.stale) == 1
    world.clock.advance(3000)
    world.book.run_periodic_checks()
    assert [each.only_if_unchanged for each in world.engine.deleted] == [True]


def test_the_longest_pause_of_the_binder_is_given_its_due() -> None:
    chance = SimpleNamespace(random=lambda: 1.0)
    pausing = cast(StatusUpdater, SimpleNamespace(_chance=chance))
    assert StatusUpdater.retry_delay_s(pausing, 100) == MAX_RETRY_DELAY_S


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        pytest.param(
            lambda world: world.book.handle_event(None, world.request(WEB, phase="Succeeded")), "", id="bound"
        ),
        pytest.param(lambda world: world.book.handle_pod_assigned(WEB), "", id="the pod is there first"),
        pytest.param(
            lambda world: world.book.handle_event(
                None, world.request(WEB, phase="Failed", failed_attempts=3, reason="no")
            ),
            "the binder could not bind the pod to node n1: no",
            id="given up",
        ),
        pytest.param(
            lambda world: world.book.handle_event(world.book.requests[WEB.key], None),
            "the bind request was deleted before the pod was bound",
            id="deleted",
        ),
        pytest.param(lambda world: world.book.handle_pod_delete(WEB), "pod default/web is gone", id="pod gone"),
    ],
)
def test_who_made_a_request_is_told_how_it_ended(ends: Any, message: str) -> None:
    world, told = World(WEB), list[Status]()
    world.book.observe_created(world.request(WEB), WEB)
    assert world.book.track(WEB, told.append) is None
    assert world.book.waiting == 1
    ends(world)
    world.request_timeout_passes()
    world.book.handle_pod_delete(WEB)
    assert [(each.ok, each.message) for each in told] == [(not message, message)], "once, whatever comes later"
    assert world.book.waiting == 0


def test_who_comes_late_is_told_at_once() -> None:
    world, told = World(WEB), list[Status]()
    world.book.observe_created(world.request(WEB, phase="Succeeded"), WEB)
    status = world.book.track(WEB, told.append)
    assert status is not None
    assert status.ok
    assert (told, world.book.waiting) == ([], 0)


def test_nobody_waits_for_the_binder_who_has_not_asked_it() -> None:
    """One profile hands its pods over, another binds by itself: the pod counts on its node, and no watch has told."""

    world, told = World(WEB), list[Status]()
    world.cache.assume(PodInfo(WEB).bound_to("n1"))
    status = world.book.track(WEB, told.append)
    assert status is not None
    assert status.ok
    assert (told, world.book.waiting) == ([], 0)


def test_a_request_that_went_before_anybody_could_wait_for_it_is_lost() -> None:
    world, told = World(WEB), list[Status]()
    world.cache.assume(PodInfo(WEB).bound_to("n1"))
    world.book.observe_created(world.request(WEB), WEB)
    world.book.handle_event(world.book.requests[WEB.key], None)
    assert world.book.track(WEB, told.append) is None
    world.request_timeout_passes()
    assert [each.message for each in told] == ["the bind request was deleted before the pod was bound"]
    assert world.book.waiting == 0


def test_whoever_stops_lets_go_of_what_was_handed_over() -> None:
    world, told = World(WEB), list[Status]()
    for stops in (False, True):  # who is there already, and who comes later
        if stops:
            world.book.stop_tracking()
        world.book.observe_created(world.request(WEB), WEB)
        assert world.book.track(WEB, told.append) is None
    assert world.book.waiting == 0
    world.book.handle_pod_assigned(WEB)
    assert told == []


# where the watch tells of failures alone


def failures_only(*pods: Pod) -> World:
    world = World(*pods)
    world.book.only_failures = True
    return world


def test_a_pod_that_is_placed_takes_its_request_with_it_where_nobody_tells_of_its_end() -> None:
    world = failures_only(WEB)
    world.book.observe_created(world.request(WEB), WEB)
    assert set(world.book.requests) == {WEB.key}
    world.engine.pods.clear()
    world.book.handle_pod_assigned(WEB)
    assert world.book.requests == {}
    world.book.observe_created(world.request(WEB), WEB)  # the answer was slower than the binder
    assert world.book.requests == {}
    assert not world.book.needs_list


def test_what_is_there_at_the_start_counts_as_far_as_its_pods_wait() -> None:
    world = failures_only(WEB)
    for pod in (WEB, make_pod("other", uid="u9")):
        world.book.handle_event(None, world.request(pod))
    assert world.node_of(WEB) == "n1"
    assert set(world.book.requests) == {WEB.key}  # the other is bound, or not ours


def test_a_request_of_which_nobody_hears_is_asked_for_and_freed_where_it_is_gone() -> None:
    world = failures_only(WEB)
    world.book.handle_event(None, world.request(WEB))
    assert not world.book.needs_list
    world.clock.advance(16)
    assert world.book.needs_list
    world.book.reconcile_with_list(world.book.uids, world.book.uids)
    assert not world.book.needs_list
    assert world.node_of(WEB) == "n1"
    world.clock.advance(16)
    world.book.reconcile_with_list(frozenset(), world.book.uids)
    world.request_timeout_passes()
    assert world.engine.done[-1] == ("released", "web from n1")
    assert not world.book.needs_list


def test_while_the_binder_brings_others_to_their_nodes_nobody_asks_so_soon() -> None:
    others = [make_pod(f"other-{number}") for number in range(8)]
    world = failures_only(WEB, *others)
    for pod in (WEB, *others):
        world.book.handle_event(None, world.request(pod))
    doubts = []
    for pod in others:
        world.clock.advance(10)
        world.book.handle_pod_assigned(pod)
        doubts.append(world.book.needs_list)
    assert doubts == [False] * 6 + [True] * 2  # whatever the others do, a minute is long enough
    world.book.reconcile_with_list(world.book.uids, world.book.uids)
    world.clock.advance(16)
    assert world.book.needs_list  # and so is a quarter of one where nothing happens at all


def test_a_request_that_was_made_while_that_was_asked_is_not_taken_for_gone() -> None:
    world = failures_only(WEB)
    before = world.book.uids
    world.book.handle_event(None, world.request(WEB))
    world.book.reconcile_with_list(frozenset(), before)
    assert world.node_of(WEB) == "n1"


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "tried again"])
def test_a_failure_that_leaves_the_watch_was_tried_again_or_deleted(deleted: bool) -> None:
    world = failures_only(WEB)
    failed = world.request(WEB, phase="Failed", failed_attempts=1)
    world.book.handle_event(None, failed)
    world.book.handle_event(failed, None)
    assert world.node_of(WEB) == "n1"
    assert world.book.needs_list
    world.book.reconcile_with_list(frozenset() if deleted else world.book.uids, world.book.uids)
    world.request_timeout_passes()
    assert world.node_of(WEB) == (None if deleted else "n1")


def test_one_that_was_given_up_leaves_the_watch_only_when_it_is_deleted() -> None:
    world = failures_only(WEB)
    world.book.handle_event(None, world.request(WEB))
    given_up = world.request(WEB, phase="Failed", failed_attempts=3)
    world.book.handle_event(None, given_up)
    world.book.handle_event(given_up, None)
    assert world.book.requests == {}
    assert not world.book.needs_list


def test_a_binder_that_is_quicker_than_the_answer_leaves_nobody_waiting() -> None:
    """The pod is seen on its node while the answer to the request is still on its way."""

    world, told = failures_only(WEB), list[Status]()
    request = world.request(WEB)
    world.cache.add_pod(msgspec.structs.replace(WEB, spec=msgspec.structs.replace(WEB.spec, node_name="n1")))
    world.book.handle_pod_assigned(WEB)
    world.book.observe_created(request, WEB)  # the engine has not come to take the pod from those that wait
    status = world.book.track(WEB, told.append)
    assert status is not None
    assert status.ok
    world.engine.pods.clear()
    world.book.run_periodic_checks()
    assert (world.book.requests, world.book.waiting, told) == ({}, 0, [])


# devices


def with_device(world: World, pod: Pod, **status: Any) -> BindRequest:
    """A request that brings a device for the pod's claim."""
    made = world.request(pod, **status)
    given = ClaimAllocation("gpu", make_allocation({"pool": "n1", "device": "a"}))
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, resource_claim_allocations=(given,)))


def claiming_pod() -> Pod:
    entry = PodResourceClaim("gpu", resource_claim_name="c")
    return replace_fields(make_pod("web"), spec={"resource_claims": (entry,)})


@pytest.mark.parametrize(
    ("status", "held"),
    [
        pytest.param({}, True, id="waiting"),
        pytest.param({"phase": "Failed", "failed_attempts": 1}, True, id="tried-again"),
        pytest.param({"phase": "Failed", "failed_attempts": 3}, False, id="given-up"),
    ],
)
def test_the_device_of_a_live_request_is_nobody_elses(status: dict[str, Any], held: bool) -> None:
    """Whatever its claim says: between two attempts of the binder, and after our restart, it says nothing."""
    pod = claiming_pod()
    world = World(pod)
    world.cache.upsert(make_claim(name="c"))
    first = with_device(world, pod)
    world.book.handle_event(None, first)
    assert world.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))
    world.book.handle_event(first, with_device(world, pod, **status))
    assert world.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a")) is held


def test_the_device_of_a_request_that_is_told_before_its_pod_is_held_when_the_pod_comes() -> None:
    """After our restart, say: which of the two lists is read first is up to chance."""
    pod, world = claiming_pod(), World()
    world.cache.upsert(make_claim(name="c"))
    world.book.handle_event(None, with_device(world, pod))
    assert world.book.handle_pod_add(pod)
    assert world.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))


@pytest.mark.parametrize("end", ["gone", "deleted"])
def test_the_device_is_free_when_nobody_is_to_get_it(end: str) -> None:
    pod = claiming_pod()
    world = World(pod)
    world.cache.upsert(make_claim(name="c"))
    request = with_device(world, pod)
    world.book.handle_event(None, request)
    if end == "gone":
        world.book.handle_pod_delete(pod)
    else:
        world.book.handle_event(request, None)
        assert world.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))
        world.request_timeout_passes()
    assert not world.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))


def test_the_device_stays_the_pods_own_when_it_is_placed() -> None:
    pod, claim = claiming_pod(), make_claim(name="c", version="1")
    world = World(pod)
    world.cache.upsert(claim)
    world.book.handle_event(None, with_device(world, pod))
    world.book.handle_pod_assigned(replace_fields(pod, spec={"node_name": "n1"}))
    assert world.cache.devices.in_use.is_exclusively_allocated(
        DeviceId(DRIVER, "n1", "a")
    )  # the word on the claim is still to come
    given = make_allocation({"pool": "n1", "device": "a"})
    world.cache.upsert(make_claim(name="c", version="2", allocation=given))
    assert world.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))
    world.cache.upsert(make_claim(name="c", version="3"))
    assert not world.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))


def test_a_pod_that_goes_before_its_request_is_answered_is_not_waited_for() -> None:
    world = World(WEB)
    world.cache.assume(PodInfo(WEB).bound_to("n1"))
    world.engine.pods.clear()
    world.book.handle_pod_delete(WEB)
    world.book.observe_created(world.request(WEB), WEB)
    told: list[Status] = []
    status = world.book.track(WEB, told.append)
    assert status is not None
    assert status.message == "pod default/web is gone"
    assert world.book.waiting == 0
