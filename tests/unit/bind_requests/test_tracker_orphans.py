"""Orphaned bind requests, given up and without a pod: when they are checked and deleted."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.errors import Forbidden
from bayplan.framework.runtime.bind_failures import BindFailures
from bayplan.intents.pod_intents import DeleteBindRequest
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest, BindRequestStatus, new_request
from bayplan.scheduler.live.bind_request_handlers import delete_orphaned_requests
from bayplan.testing import make_node, make_pod
from support.harness.async_tests import async_test

WEB = make_pod("web", uid="u1")
WATCHED = pytest.mark.parametrize("only_failures", [True, False], ids=["failures are watched", "all are watched"])


class FakeOwner:
    """Fake request owner with pending pods; records deletions."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = {pod.uid: pod for pod in pods}
        self.deleted: list[str] = []

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        return self.pods.get(request.pod_uid)

    def submit(self, intent: object) -> None:
        assert isinstance(intent, DeleteBindRequest)
        self.deleted.append(intent.request.metadata.uid)

    def on_assumed(self, pod: Pod) -> None: ...

    def on_released(self, pod: Pod, was: Pod) -> None: ...

    def record_warning(self, pod: Pod, reason: str, note: str) -> None: ...

    def wake(self, uid: str) -> None: ...


class OrphanHarness:
    def __init__(self, *waiting: Pod, only_failures: bool = True) -> None:
        self.clock, self.engine, cache = ManualClock(), FakeOwner(*waiting), Cache()
        cache.add_node(make_node("n1"))
        self.book = BindRequestTracker(cache, self.engine, BindFailures(self.clock), self.clock)
        self.book.only_failures = only_failures
        self.there: dict[str, str] = {}
        """The uids of the server's pods, by name."""
        self.checked: list[str] = []

    async def uids(self) -> frozenset[str]:
        return self.book.uids

    async def list_unreadable(self) -> list[BindRequest]:
        return []

    async def pod_uid(self, request: BindRequest) -> str:
        self.checked.append(request.spec.pod_name)
        if self.there.get(request.spec.pod_name) == "secret":
            raise Forbidden("not for you")
        return self.there.get(request.spec.pod_name, "")

    async def after(self, seconds: float) -> list[str]:
        """Names of the requests that were deleted by then."""
        self.clock.advance(seconds)
        self.book.run_periodic_checks()
        await delete_orphaned_requests(self.book, self)
        return self.engine.deleted


def failed(pod: Pod = WEB, version: int = 1, **status: Any) -> BindRequest:
    made = new_request(pod, "n1", annotations={}, backoff_limit=3)
    fields = {"phase": "Failed", "failed_attempts": 3, "reason": "the pod is gone", **status}
    meta = replace(made.metadata, uid=f"request-{pod.name}", resource_version=str(version))
    return replace(made, metadata=meta, status=BindRequestStatus(**fields))


@WATCHED
@async_test
async def test_an_orphan_is_deleted_after_a_delay(only_failures: bool) -> None:
    harness = OrphanHarness(only_failures=only_failures)
    harness.book.handle_event(None, failed())
    assert await harness.after(599) == []
    assert harness.checked == []
    assert await harness.after(2) == ["request-web"]
    harness.book.handle_event(failed(), None)
    assert await harness.after(6000) == ["request-web"]
    assert harness.checked == ["web"]


@WATCHED
@async_test
async def test_a_request_of_an_earlier_pod_is_deleted_and_one_of_the_current_pod_stays(only_failures: bool) -> None:
    harness = OrphanHarness(only_failures=only_failures)
    mine = make_pod("mine", uid="u2")
    by_hand = replace(failed(make_pod("by-hand", uid="")), spec=replace(failed().spec, pod_name="by-hand", pod_uid=""))
    harness.there = {"web": "another", "mine": "u2", "by-hand": "u3"}
    for each in (failed(), failed(mine), by_hand):
        harness.book.handle_event(None, each)
    assert await harness.after(601) == ["request-web"]
    assert sorted(harness.checked) == ["by-hand", "mine", "web"]
    harness.book.handle_event(failed(), None)
    harness.there = {}  # their pods are deleted, too: a request without an owner is not garbage-collected
    assert await harness.after(599) == ["request-web"]
    assert sorted(await harness.after(2)) == ["request-by-hand", "request-mine", "request-web"]


@WATCHED
@async_test
async def test_retried_foreign_and_terminating_requests_are_no_orphans(only_failures: bool) -> None:
    harness = OrphanHarness(only_failures=only_failures)
    theirs = failed(make_pod("theirs", uid="u4"))
    theirs = replace(theirs, metadata=replace(theirs.metadata, labels={}))
    going = failed(make_pod("going", uid="u5"))
    going = replace(going, metadata=replace(going.metadata, deletion_timestamp=harness.clock.now()))
    for each in (failed(failed_attempts=1), theirs, going):
        harness.book.handle_event(None, each)
    assert await harness.after(6000) == []
    assert harness.checked == []


@WATCHED
@async_test
async def test_a_request_that_is_retried_is_no_orphan_any_more(only_failures: bool) -> None:
    harness = OrphanHarness(only_failures=only_failures)
    harness.book.handle_event(None, failed())
    again = failed(version=2, phase="Failed", failed_attempts=0)
    harness.book.handle_event(failed(), again)
    assert await harness.after(6000) == []


@WATCHED
@async_test
async def test_the_request_of_a_pending_pod_is_deleted_without_a_check(only_failures: bool) -> None:
    harness = OrphanHarness(WEB, only_failures=only_failures)
    harness.book.handle_event(None, failed())
    assert harness.engine.deleted == ["request-web"]
    assert harness.book.orphans() == []


@async_test
async def test_failed_checks_and_deletions_are_postponed() -> None:
    harness = OrphanHarness()
    harness.there = {"web": "secret"}
    harness.book.handle_event(None, failed())
    harness.book.handle_event(None, failed(make_pod("stuck", uid="u6")))
    for _ in range(10):
        await harness.after(100)
    assert (harness.checked, harness.engine.deleted) == (["web", "stuck"], ["request-stuck"])
    await harness.after(600)
    assert harness.engine.deleted == ["request-stuck", "request-stuck"]  # no event has shown its deletion
    assert harness.checked == ["web", "stuck"] * 2


@async_test
async def test_many_orphans_are_checked_in_batches() -> None:
    harness = OrphanHarness()
    for number in range(120):
        harness.book.handle_event(None, failed(make_pod(f"p{number}", uid=f"u{number}")))
    await harness.after(601)
    assert len(harness.checked) == 50
    await harness.after(5)
    await harness.after(5)
    assert len(set(harness.checked)) == len(harness.checked) == 120
