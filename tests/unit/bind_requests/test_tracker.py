"""Bind request tracker: pods that count because of a request, after restarts, failures, lost nodes and timeouts."""

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
from bayplan.objects.kai.bind_request import BindRequest, BindRequestStatus, ClaimAllocation, new_request
from bayplan.snapshot import PodInfo
from bayplan.testing import make_node, make_pod
from support.builders.devices import DRIVER, make_allocation, make_claim
from support.builders.framework import replace_fields


class FakeOwner:
    """Fake request owner: pending pods and the calls of the tracker."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = {pod.key: pod for pod in pods}
        self.calls: list[tuple[str, str]] = []
        self.deleted: list[DeleteBindRequest] = []

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        return self.pods.get(request.pod_key)

    def on_assumed(self, pod: Pod) -> None:
        self.calls.append(("taken", pod.name))

    def on_released(self, pod: Pod, was: Pod) -> None:
        self.calls.append(("released", f"{pod.name} from {was.spec.node_name}"))

    def submit(self, intent: object) -> None:
        assert isinstance(intent, DeleteBindRequest)
        self.deleted.append(intent)

    def record_warning(self, pod: Pod, reason: str, note: str) -> None:
        self.calls.append((reason, f"{pod.name}: {note}"))

    def wake(self, uid: str) -> None:
        self.calls.append(("wake", uid))


class TrackerHarness:
    def __init__(self, *pods: Pod, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
        self.clock, self.cache, self.engine = ManualClock(), Cache(), FakeOwner(*pods)
        for name in nodes:
            self.cache.add_node(make_node(name))
        self.failures = BindFailures(self.clock)
        self.tracker = BindRequestTracker(self.cache, self.engine, self.failures, self.clock)
        self._versions = 0

    def request(self, pod: Pod, node: str = "n1", **status: Any) -> BindRequest:
        """The same request in a new version at each call."""
        self._versions += 1
        made = new_request(pod, node, annotations={}, backoff_limit=3)
        meta = msgspec.structs.replace(
            made.metadata,
            uid=f"request-{pod.uid}-{node}",
            resource_version=str(self._versions),
            creation_timestamp=self.clock.now(),
        )
        return msgspec.structs.replace(made, metadata=meta, status=BindRequestStatus(**status))

    def pass_request_timeout(self) -> None:
        """Advance past the request timeout and read the pods of deleted requests, which have no nodes."""
        self.clock.advance(60)
        for uid, request in self.tracker.lost():
            found = self.engine.pods[request.pod_key]
            assert found.uid == uid
            self.tracker.read_pod(uid, found)

    def node_of(self, pod: Pod) -> str | None:
        found = self.cache.pod(pod.uid)
        return None if found is None else found.spec.node_name


DELETED = "the bind request was deleted before the pod was bound"
BECAUSE = "because the binder may have sent its binding"
WEB = make_pod("web", uid="u1")
LATER = make_pod("web", uid="u2")


def test_a_pod_with_a_live_request_counts_on_its_node() -> None:
    harness = TrackerHarness(WEB)
    harness.tracker.handle_event(None, harness.request(WEB))
    assert harness.node_of(WEB) == "n1"
    assert harness.cache.is_assumed("u1")
    assert harness.engine.calls == [("taken", "web")]


def test_a_request_that_arrives_before_its_pod_counts_when_the_pod_arrives() -> None:
    harness = TrackerHarness()
    harness.tracker.handle_event(None, harness.request(WEB))
    assert harness.node_of(WEB) is None
    assert harness.tracker.handle_pod_add(WEB)
    assert harness.node_of(WEB) == "n1"


def test_a_request_of_an_earlier_pod_of_that_name_is_ignored() -> None:
    harness = TrackerHarness(LATER)
    harness.tracker.handle_event(None, harness.request(WEB))
    assert not harness.tracker.handle_pod_add(LATER)
    assert harness.node_of(LATER) is None


def test_a_request_that_has_succeeded_still_counts_while_the_watch_of_pods_lags() -> None:
    harness = TrackerHarness(WEB)
    harness.tracker.handle_event(None, harness.request(WEB, phase="Succeeded"))
    assert harness.node_of(WEB) == "n1"


def test_a_retried_failure_keeps_the_capacity() -> None:
    harness = TrackerHarness(WEB)
    harness.tracker.handle_event(None, harness.request(WEB))
    harness.tracker.handle_event(None, harness.request(WEB, phase="Failed", failed_attempts=1))
    assert harness.node_of(WEB) == "n1"


def test_a_request_that_is_given_up_frees_the_pod_excludes_the_node_and_is_deleted() -> None:
    harness = TrackerHarness(WEB)
    harness.tracker.handle_event(None, harness.request(WEB))
    harness.tracker.handle_event(None, harness.request(WEB, phase="Failed", failed_attempts=3, reason="no quota"))
    assert harness.node_of(WEB) is None
    assert harness.engine.calls[-1] == ("released", "web from n1")
    assert harness.failures.excluded_nodes("u1") == {"n1"}
    assert [each.request.metadata.uid for each in harness.engine.deleted] == ["request-u1-n1"]
    harness.clock.advance(30)
    harness.tracker.run_periodic_checks()
    assert harness.engine.calls[-1] == ("wake", "u1")


def test_a_pod_with_several_excluded_nodes_is_woken_for_each_of_them() -> None:
    harness = TrackerHarness(WEB)
    for node in ("n1", "n2"):
        harness.tracker.handle_event(None, harness.request(WEB, node))
        harness.tracker.handle_event(
            None, harness.request(WEB, node, phase="Failed", failed_attempts=3, reason="no quota")
        )
        harness.clock.advance(10)
    woken = []
    for _ in range(5):
        harness.engine.calls.clear()
        harness.clock.advance(5)
        harness.tracker.run_periodic_checks()
        woken.append(("wake", "u1") in harness.engine.calls)
    assert woken == [False, True, False, True, False]
    assert harness.failures.excluded_nodes("u1") == frozenset()


def test_an_outdated_event_does_not_revert_a_newer_one() -> None:
    harness = TrackerHarness(WEB)
    old, new = harness.request(WEB), harness.request(WEB, phase="Succeeded")
    harness.tracker.observe_created(new, WEB)
    harness.tracker.handle_event(None, old)
    assert harness.tracker.requests[WEB.key].has_succeeded


def test_a_deleted_request_is_not_restored_by_a_late_response() -> None:
    harness = TrackerHarness(WEB)
    request = harness.request(WEB)
    harness.tracker.handle_event(None, request)
    harness.tracker.handle_event(request, None)
    harness.pass_request_timeout()
    harness.tracker.handle_pod_delete(WEB)
    harness.tracker.observe_created(request, WEB)
    assert harness.node_of(WEB) is None


def test_a_pod_keeps_its_node_after_its_live_request_was_deleted_until_its_binding_cannot_take_effect() -> None:
    harness = TrackerHarness(WEB)
    request = harness.request(WEB)
    harness.tracker.handle_event(None, request)
    harness.tracker.handle_event(request, None)
    assert harness.node_of(WEB) == "n1"
    assert harness.tracker.request_of(WEB) is request
    assert harness.tracker.handle_pod_add(WEB)  # it must not be scheduled
    assert harness.engine.calls[-1] == (
        "BindRequestDeleted",
        f"web: {DELETED}; the pod keeps its capacity on node n1 for 60 s, {BECAUSE}, and is scheduled again after that",
    )
    harness.clock.advance(59)
    assert harness.tracker.lost() == []
    harness.clock.advance(1)
    assert harness.tracker.lost() == [("u1", request)]
    harness.tracker.read_pod("u1", None)  # deleted, or another pod has its name: the watch will show that
    harness.tracker.read_pod("u1", LATER)
    harness.tracker.read_pod("u1", replace_fields(WEB, spec={"node_name": "n1"}))
    assert harness.node_of(WEB) == "n1"
    harness.tracker.read_pod("u1", WEB)
    assert harness.node_of(WEB) is None
    assert harness.engine.calls[-1] == ("released", "web from n1")
    assert harness.tracker.lost() == []


@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "gone"])
def test_a_pod_whose_request_was_deleted_ends_its_wait_with_the_pod_event(is_bound: bool) -> None:
    harness, results = TrackerHarness(WEB), list[Status]()
    harness.tracker.observe_created(harness.request(WEB), WEB)
    assert harness.tracker.track(WEB, results.append) is None
    harness.tracker.handle_event(harness.tracker.requests[WEB.key], None)
    (harness.tracker.handle_pod_assigned if is_bound else harness.tracker.handle_pod_delete)(WEB)
    assert [each.ok for each in results] == [is_bound]
    harness.clock.advance(60)
    assert harness.tracker.lost() == []


def test_the_next_request_of_a_pod_replaces_the_deleted_one() -> None:
    """An earlier create of it took effect late, or a user created it."""
    harness = TrackerHarness(WEB)
    first = harness.request(WEB)
    harness.tracker.handle_event(None, first)
    harness.tracker.handle_event(first, None)
    second = harness.request(WEB)
    second = replace_fields(second, metadata={"uid": "second"})
    harness.tracker.handle_event(None, second)
    harness.clock.advance(60)
    assert harness.tracker.lost() == []
    assert harness.node_of(WEB) == "n1"
    assert harness.tracker.request_of(WEB) == second


def test_a_terminating_pod_cannot_be_bound_and_is_free_at_once() -> None:
    harness = TrackerHarness(replace_fields(WEB, metadata={"deletion_timestamp": ManualClock().now()}))
    request = harness.request(WEB)
    harness.tracker.handle_event(None, request)
    harness.tracker.handle_event(request, None)
    assert harness.engine.calls[-1] == ("released", "web from n1")


def test_a_create_response_after_the_deletion_keeps_the_capacity_too() -> None:
    harness, results = TrackerHarness(WEB), list[Status]()
    harness.cache.assume(PodInfo(WEB).bound_to("n1"))
    request = harness.request(WEB)
    harness.tracker.only_failures = True
    harness.tracker._handle_request_delete(request)  # from a list; the watch has not shown the request
    harness.tracker.observe_created(request, WEB)
    assert harness.tracker.track(WEB, results.append) is None
    assert harness.node_of(WEB) == "n1"
    harness.pass_request_timeout()
    assert [each.message for each in results] == ["the bind request was deleted before the pod was bound"]


def test_a_request_that_may_come_back_is_not_deleted_and_its_pod_is_not_tried() -> None:
    """A create of it with an unknown outcome may still land: the next request would have the same name."""
    harness = TrackerHarness(WEB)
    harness.tracker.handle_event(None, harness.request(WEB))
    harness.tracker.handle_event(None, harness.request(WEB, phase="Failed", failed_attempts=3, reason="no quota"))
    (deletion,) = harness.engine.deleted
    assert deletion.postponed is not None
    deletion.postponed(harness.clock.monotonic_s() + 60)
    assert harness.node_of(WEB) is None  # the capacity of the request is free
    assert harness.failures.backoff_message("u1") == (
        "BindFailed: the bind request to node n1 was given up and cannot be replaced yet: an earlier create of it, "
        "whose outcome is unknown, may still land; it is retried in 60 s"
    )
    harness.clock.advance(59)
    harness.tracker.run_periodic_checks()
    assert ("wake", "u1") not in harness.engine.calls
    assert len(harness.engine.deleted) == 2
    harness.clock.advance(1)
    harness.tracker.run_periodic_checks()
    assert harness.engine.calls[-1] == ("wake", "u1")
    assert harness.failures.backoff_message("u1") == ""


def test_a_live_request_that_may_come_back_keeps_its_pod_on_its_node() -> None:
    harness = TrackerHarness(WEB, nodes=("n2",))
    harness.tracker.handle_event(None, harness.request(WEB))
    harness.tracker.run_periodic_checks()
    (deletion,) = harness.engine.deleted
    assert deletion.postponed is not None
    deletion.postponed(harness.clock.monotonic_s() + 60)
    assert harness.node_of(WEB) == "n1"
    assert harness.failures.backoff_message("u1") == ""


def test_a_request_to_a_deleted_node_is_deleted() -> None:
    harness = TrackerHarness(WEB, nodes=("n2",))
    harness.tracker.handle_event(None, harness.request(WEB))
    harness.tracker.run_periodic_checks()
    assert [each.request.spec.selected_node for each in harness.engine.deleted] == ["n1"]


def test_a_failed_deletion_is_retried() -> None:
    harness = TrackerHarness(WEB, nodes=("n2",))
    harness.tracker.handle_event(None, harness.request(WEB))
    for _ in range(2):
        harness.tracker.run_periodic_checks()
    assert len(harness.engine.deleted) == 2


def test_a_foreign_pod_is_read_like_an_own_one_after_its_request_was_deleted() -> None:
    harness, freed = TrackerHarness(), list[str]()
    theirs = replace_fields(WEB, spec={"scheduler_name": "volcano"})
    lost = LostRequests(harness.clock, 60.0)
    harness.tracker.foreign_requests = ForeignBindRequests(
        harness.cache, lambda _: False, lambda was: freed.append(was.name), lost
    )
    harness.tracker.handle_foreign_pod(theirs)
    made = harness.request(theirs)
    harness.tracker.handle_event(None, made)
    harness.tracker.handle_event(made, None)
    assert (harness.node_of(theirs), harness.tracker.lost()) == ("n1", [])
    assert harness.tracker.request_of(theirs) is made
    harness.clock.advance(60.0)
    assert harness.tracker.lost() == [(theirs.uid, made)]
    harness.tracker.read_pod(theirs.uid, theirs)
    assert (harness.node_of(theirs), freed, harness.tracker.lost()) == (None, ["web"], [])


def test_requests_of_other_binders_are_not_deleted() -> None:
    harness = TrackerHarness(WEB)
    request = harness.request(WEB, phase="Failed", failed_attempts=3)
    theirs = msgspec.structs.replace(request, metadata=msgspec.structs.replace(request.metadata, labels={}))
    harness.tracker.handle_event(None, theirs)
    harness.tracker.run_periodic_checks()
    assert harness.engine.deleted == []


def test_an_unhandled_request_causes_one_warning_and_is_deleted_much_later() -> None:
    harness = TrackerHarness(WEB)
    harness.tracker.handle_event(None, harness.request(WEB))
    for seconds in (599, 2, 100):
        harness.clock.advance(seconds)
        harness.tracker.run_periodic_checks()
    (warning,) = warnings(harness)
    assert warning == (
        "web: no binder has updated the bind request to node n1 for 601 s; "
        "see whether `bayplan binder` runs, and what it waits for"
    )
    assert len(harness.tracker.stale) == 1
    assert harness.engine.deleted == []
    harness.clock.advance(3000)
    harness.tracker.run_periodic_checks()
    # a request that the binder handles now stays
    assert [each.only_if_unchanged for each in harness.engine.deleted] == [True]


def stale_and_refused() -> tuple[TrackerHarness, DeleteBindRequest]:
    """A stale request whose deletion was refused because another client has changed it."""
    harness = failures_only(WEB)
    harness.tracker.handle_event(None, harness.request(WEB))
    harness.clock.advance(3601)
    harness.tracker.run_periodic_checks()
    (refused,) = harness.engine.deleted
    harness.engine.deleted.clear()
    return harness, refused


def edited(refused: DeleteBindRequest, version: int = 100, **status: Any) -> BindRequest:
    was = refused.request
    meta = msgspec.structs.replace(was.metadata, resource_version=str(version), annotations={"x": "y"})
    return msgspec.structs.replace(was, metadata=meta, status=BindRequestStatus(**status))


def test_a_stale_request_that_another_client_changed_is_deleted_in_its_new_version() -> None:
    harness, refused = stale_and_refused()
    assert refused.on_deleted is not None
    refused.on_deleted(edited(refused))
    (again,) = harness.engine.deleted
    assert (again.request.metadata.resource_version, again.only_if_unchanged) == ("100", True)
    assert again.on_deleted is not None
    again.on_deleted(edited(again, 101))
    assert [each.request.metadata.resource_version for each in harness.engine.deleted] == ["100", "101"]


def test_a_deletion_refused_without_any_change_is_retried_at_the_next_check() -> None:
    harness, refused = stale_and_refused()
    assert refused.on_deleted is not None
    refused.on_deleted(refused.request)
    assert harness.engine.deleted == []
    harness.tracker.run_periodic_checks()
    assert len(harness.engine.deleted) == 1


@pytest.mark.parametrize(
    ("status", "node", "deleted"),
    [
        pytest.param({"phase": "Succeeded"}, "n1", 0, id="bound"),
        pytest.param({"phase": "Failed", "failed_attempts": 1}, "n1", 0, id="the binder is there again"),
        pytest.param({"phase": "Failed", "failed_attempts": 3}, None, 1, id="given up"),
    ],
)
def test_a_stale_request_that_the_binder_handles_meanwhile_is_tracked(
    status: dict[str, Any], node: str | None, deleted: int
) -> None:
    harness, refused = stale_and_refused()
    assert refused.on_deleted is not None
    refused.on_deleted(edited(refused, **status))
    assert harness.node_of(WEB) == node
    assert not harness.tracker.stale
    assert [each.only_if_unchanged for each in harness.engine.deleted] == [False] * deleted


@pytest.mark.parametrize("again", [True, False], ids=["made anew", "gone"])
def test_another_request_of_the_name_means_that_the_stale_one_is_deleted(again: bool) -> None:
    harness, refused = stale_and_refused()
    assert refused.on_deleted is not None
    refused.on_deleted(harness.request(WEB, "n2") if again else None)
    if not again:
        harness.pass_request_timeout()
    assert ("released", "web from n1") in harness.engine.calls
    assert harness.node_of(WEB) == ("n2" if again else None)
    assert harness.engine.deleted == []


def warnings(harness: TrackerHarness) -> list[str]:
    return [note for reason, note in harness.engine.calls if reason == "BindRequestStale"]


def test_a_recently_attempted_request_is_not_stale() -> None:
    harness = TrackerHarness(WEB)
    request = harness.request(WEB, phase="Failed", failed_attempts=1)
    harness.clock.advance(timedelta(hours=2).total_seconds())
    harness.tracker.handle_event(None, request)
    for seconds in (1, 660):  # the longest retry delay, then the time that makes it stale
        harness.clock.advance(seconds)
        harness.tracker.run_periodic_checks()
    assert harness.engine.deleted == []
    assert not harness.tracker.stale
    assert warnings(harness) == []


@pytest.mark.parametrize("only_failures", [False, True], ids=["all are watched", "failures are watched"])
def test_a_request_without_retries_causes_one_warning_and_is_deleted_much_later(only_failures: bool) -> None:
    harness = TrackerHarness(WEB)
    harness.tracker.only_failures = only_failures
    harness.tracker.handle_event(None, harness.request(WEB, phase="Failed", failed_attempts=2))
    for seconds in (667, 100):
        harness.clock.advance(seconds)
        harness.tracker.run_periodic_checks()
    (warning,) = warnings(harness)
    assert warning.startswith(
        "web: no binder has updated the bind request to node n1 for 601 s, "
        "though it was to be retried after 2 failures; "
    )
    assert len(harness.tracker.stale) == 1
    assert harness.engine.deleted == []
    harness.clock.advance(2900)
    harness.tracker.run_periodic_checks()
    assert [each.only_if_unchanged for each in harness.engine.deleted] == [True]


def test_a_retry_renews_a_request_and_an_edit_does_not() -> None:
    harness = TrackerHarness(WEB)
    failed = {"phase": "Failed", "failed_attempts": 1}
    harness.tracker.handle_event(None, harness.request(WEB, **failed))
    harness.clock.advance(600)
    harness.tracker.handle_event(None, harness.request(WEB, **failed))  # another version without an attempt
    harness.clock.advance(100)
    harness.tracker.run_periodic_checks()
    assert len(harness.tracker.stale) == 1
    harness.tracker.handle_event(None, harness.request(WEB, **failed))
    assert len(harness.tracker.stale) == 1
    harness.tracker.handle_event(None, harness.request(WEB, phase="Failed", failed_attempts=2))
    assert not harness.tracker.stale
    harness.clock.advance(600)
    harness.tracker.run_periodic_checks()
    assert not harness.tracker.stale
    assert len(warnings(harness)) == 1


def test_the_phase_pending_counts_as_not_attempted() -> None:
    harness = TrackerHarness(WEB)
    request = harness.request(WEB)
    pending = msgspec.structs.replace(request, status=BindRequestStatus("Pending"))
    harness.tracker.handle_event(None, request)
    harness.clock.advance(601)
    harness.tracker.run_periodic_checks()
    assert len(warnings(harness)) == len(harness.tracker.stale) == 1
    harness.tracker.handle_event(None, pending)
    assert len(harness.tracker.stale) == 1
    harness.clock.advance(3000)
    harness.tracker.run_periodic_checks()
    assert [each.only_if_unchanged for each in harness.engine.deleted] == [True]


def test_the_longest_retry_delay_of_the_binder_is_awaited() -> None:
    chance = SimpleNamespace(random=lambda: 1.0)
    pausing = cast(StatusUpdater, SimpleNamespace(_chance=chance))
    assert StatusUpdater.retry_delay_s(pausing, 100) == MAX_RETRY_DELAY_S


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        pytest.param(
            lambda harness: harness.tracker.handle_event(None, harness.request(WEB, phase="Succeeded")), "", id="bound"
        ),
        pytest.param(lambda harness: harness.tracker.handle_pod_assigned(WEB), "", id="the pod is there first"),
        pytest.param(
            lambda harness: harness.tracker.handle_event(
                None, harness.request(WEB, phase="Failed", failed_attempts=3, reason="no")
            ),
            "the binder could not bind the pod to node n1: no",
            id="given up",
        ),
        pytest.param(
            lambda harness: harness.tracker.handle_event(harness.tracker.requests[WEB.key], None),
            "the bind request was deleted before the pod was bound",
            id="deleted",
        ),
        pytest.param(lambda harness: harness.tracker.handle_pod_delete(WEB), "pod default/web is gone", id="pod gone"),
    ],
)
def test_the_result_callback_is_called_once(ends: Any, message: str) -> None:
    harness, results = TrackerHarness(WEB), list[Status]()
    harness.tracker.observe_created(harness.request(WEB), WEB)
    assert harness.tracker.track(WEB, results.append) is None
    assert harness.tracker.waiting == 1
    ends(harness)
    harness.pass_request_timeout()
    harness.tracker.handle_pod_delete(WEB)
    assert [(each.ok, each.message) for each in results] == [(not message, message)], "only one result"
    assert harness.tracker.waiting == 0


def test_track_returns_a_known_result_at_once() -> None:
    harness, results = TrackerHarness(WEB), list[Status]()
    harness.tracker.observe_created(harness.request(WEB, phase="Succeeded"), WEB)
    status = harness.tracker.track(WEB, results.append)
    assert status is not None
    assert status.ok
    assert (results, harness.tracker.waiting) == ([], 0)


def test_a_pod_without_a_request_does_not_wait_for_the_binder() -> None:
    """One profile uses the binder, another binds itself: the pod is assumed, and no event has shown its binding."""

    harness, results = TrackerHarness(WEB), list[Status]()
    harness.cache.assume(PodInfo(WEB).bound_to("n1"))
    status = harness.tracker.track(WEB, results.append)
    assert status is not None
    assert status.ok
    assert (results, harness.tracker.waiting) == ([], 0)


def test_a_request_that_was_deleted_before_track_is_lost() -> None:
    harness, results = TrackerHarness(WEB), list[Status]()
    harness.cache.assume(PodInfo(WEB).bound_to("n1"))
    harness.tracker.observe_created(harness.request(WEB), WEB)
    harness.tracker.handle_event(harness.tracker.requests[WEB.key], None)
    assert harness.tracker.track(WEB, results.append) is None
    harness.pass_request_timeout()
    assert [each.message for each in results] == ["the bind request was deleted before the pod was bound"]
    assert harness.tracker.waiting == 0


def test_stop_tracking_drops_all_callbacks() -> None:
    harness, results = TrackerHarness(WEB), list[Status]()
    for stops in (False, True):  # callbacks before and after the stop
        if stops:
            harness.tracker.stop_tracking()
        harness.tracker.observe_created(harness.request(WEB), WEB)
        assert harness.tracker.track(WEB, results.append) is None
    assert harness.tracker.waiting == 0
    harness.tracker.handle_pod_assigned(WEB)
    assert results == []


# watch of failures only


def failures_only(*pods: Pod) -> TrackerHarness:
    harness = TrackerHarness(*pods)
    harness.tracker.only_failures = True
    return harness


def test_a_bound_pod_ends_its_request_without_an_event_of_the_request() -> None:
    harness = failures_only(WEB)
    harness.tracker.observe_created(harness.request(WEB), WEB)
    assert set(harness.tracker.requests) == {WEB.key}
    harness.engine.pods.clear()
    harness.tracker.handle_pod_assigned(WEB)
    assert harness.tracker.requests == {}
    harness.tracker.observe_created(harness.request(WEB), WEB)  # the response was slower than the binder
    assert harness.tracker.requests == {}
    assert not harness.tracker.needs_list


def test_requests_of_pending_pods_count_at_the_start() -> None:
    harness = failures_only(WEB)
    for pod in (WEB, make_pod("other", uid="u9")):
        harness.tracker.handle_event(None, harness.request(pod))
    assert harness.node_of(WEB) == "n1"
    assert set(harness.tracker.requests) == {WEB.key}  # the other pod is bound, or not of this engine


def test_a_request_without_news_is_listed_and_freed_if_it_was_deleted() -> None:
    harness = failures_only(WEB)
    harness.tracker.handle_event(None, harness.request(WEB))
    assert not harness.tracker.needs_list
    harness.clock.advance(16)
    assert harness.tracker.needs_list
    harness.tracker.reconcile_with_list(harness.tracker.uids, harness.tracker.uids)
    assert not harness.tracker.needs_list
    assert harness.node_of(WEB) == "n1"
    harness.clock.advance(16)
    harness.tracker.reconcile_with_list(frozenset(), harness.tracker.uids)
    harness.pass_request_timeout()
    assert harness.engine.calls[-1] == ("released", "web from n1")
    assert not harness.tracker.needs_list


def test_a_list_is_made_later_while_the_binder_binds_other_pods() -> None:
    other_pods = [make_pod(f"other-{number}") for number in range(8)]
    harness = failures_only(WEB, *other_pods)
    for pod in (WEB, *other_pods):
        harness.tracker.handle_event(None, harness.request(pod))
    doubts = []
    for pod in other_pods:
        harness.clock.advance(10)
        harness.tracker.handle_pod_assigned(pod)
        doubts.append(harness.tracker.needs_list)
    assert doubts == [False] * 6 + [True] * 2  # after a minute a list is made in any case
    harness.tracker.reconcile_with_list(harness.tracker.uids, harness.tracker.uids)
    harness.clock.advance(16)
    assert harness.tracker.needs_list  # without any event, 15 s are enough


def test_a_request_that_was_created_during_the_list_is_not_taken_as_deleted() -> None:
    harness = failures_only(WEB)
    before = harness.tracker.uids
    harness.tracker.handle_event(None, harness.request(WEB))
    harness.tracker.reconcile_with_list(frozenset(), before)
    assert harness.node_of(WEB) == "n1"


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "tried again"])
def test_a_failure_that_leaves_the_watch_was_retried_or_deleted(deleted: bool) -> None:
    harness = failures_only(WEB)
    failed = harness.request(WEB, phase="Failed", failed_attempts=1)
    harness.tracker.handle_event(None, failed)
    harness.tracker.handle_event(failed, None)
    assert harness.node_of(WEB) == "n1"
    assert harness.tracker.needs_list
    harness.tracker.reconcile_with_list(frozenset() if deleted else harness.tracker.uids, harness.tracker.uids)
    harness.pass_request_timeout()
    assert harness.node_of(WEB) == (None if deleted else "n1")


def test_a_request_that_was_given_up_leaves_the_watch_only_when_it_is_deleted() -> None:
    harness = failures_only(WEB)
    harness.tracker.handle_event(None, harness.request(WEB))
    given_up = harness.request(WEB, phase="Failed", failed_attempts=3)
    harness.tracker.handle_event(None, given_up)
    harness.tracker.handle_event(given_up, None)
    assert harness.tracker.requests == {}
    assert not harness.tracker.needs_list


def test_a_binder_that_is_faster_than_the_create_response_leaves_no_waiting_pod() -> None:
    """The watch shows the pod on its node before the response to the create arrives."""

    harness, results = failures_only(WEB), list[Status]()
    request = harness.request(WEB)
    harness.cache.add_pod(msgspec.structs.replace(WEB, spec=msgspec.structs.replace(WEB.spec, node_name="n1")))
    harness.tracker.handle_pod_assigned(WEB)
    harness.tracker.observe_created(request, WEB)  # the engine still has the pod as pending
    status = harness.tracker.track(WEB, results.append)
    assert status is not None
    assert status.ok
    harness.engine.pods.clear()
    harness.tracker.run_periodic_checks()
    assert (harness.tracker.requests, harness.tracker.waiting, results) == ({}, 0, [])


# devices


def request_with_device(harness: TrackerHarness, pod: Pod, **status: Any) -> BindRequest:
    """A request with a device allocation for the pod's claim."""
    made = harness.request(pod, **status)
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
def test_the_device_of_a_live_request_is_reserved(status: dict[str, Any], held: bool) -> None:
    """Whatever its claim says: between two attempts of the binder, and after a restart, it has no allocation."""
    pod = claiming_pod()
    harness = TrackerHarness(pod)
    harness.cache.upsert(make_claim(name="c"))
    first = request_with_device(harness, pod)
    harness.tracker.handle_event(None, first)
    assert harness.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))
    harness.tracker.handle_event(first, request_with_device(harness, pod, **status))
    assert harness.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a")) is held


def test_the_device_of_a_request_that_arrives_before_its_pod_is_reserved_when_the_pod_arrives() -> None:
    """For example after a restart: either list may be read first."""
    pod, harness = claiming_pod(), TrackerHarness()
    harness.cache.upsert(make_claim(name="c"))
    harness.tracker.handle_event(None, request_with_device(harness, pod))
    assert harness.tracker.handle_pod_add(pod)
    assert harness.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))


@pytest.mark.parametrize("end", ["gone", "deleted"])
def test_the_device_is_free_when_the_request_ends_without_a_binding(end: str) -> None:
    pod = claiming_pod()
    harness = TrackerHarness(pod)
    harness.cache.upsert(make_claim(name="c"))
    request = request_with_device(harness, pod)
    harness.tracker.handle_event(None, request)
    if end == "gone":
        harness.tracker.handle_pod_delete(pod)
    else:
        harness.tracker.handle_event(request, None)
        assert harness.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))
        harness.pass_request_timeout()
    assert not harness.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))


def test_the_device_stays_reserved_when_the_pod_is_bound() -> None:
    pod, claim = claiming_pod(), make_claim(name="c", version="1")
    harness = TrackerHarness(pod)
    harness.cache.upsert(claim)
    harness.tracker.handle_event(None, request_with_device(harness, pod))
    harness.tracker.handle_pod_assigned(replace_fields(pod, spec={"node_name": "n1"}))
    # the event of the claim is still to come
    assert harness.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))
    given = make_allocation({"pool": "n1", "device": "a"})
    harness.cache.upsert(make_claim(name="c", version="2", allocation=given))
    assert harness.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))
    harness.cache.upsert(make_claim(name="c", version="3"))
    assert not harness.cache.devices.in_use.is_exclusively_allocated(DeviceId(DRIVER, "n1", "a"))


def test_a_pod_that_is_deleted_before_the_create_response_is_not_waited_for() -> None:
    harness = TrackerHarness(WEB)
    harness.cache.assume(PodInfo(WEB).bound_to("n1"))
    harness.engine.pods.clear()
    harness.tracker.handle_pod_delete(WEB)
    harness.tracker.observe_created(harness.request(WEB), WEB)
    results: list[Status] = []
    status = harness.tracker.track(WEB, results.append)
    assert status is not None
    assert status.message == "pod default/web is gone"
    assert harness.tracker.waiting == 0
