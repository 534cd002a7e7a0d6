"""Requests that were given up and whose pods never were: who is asked for, when, and what goes."""

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


class Engine:
    """Waits for some pods, and notes what is deleted."""

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


class World:
    def __init__(self, *waiting: Pod, only_failures: bool = True) -> None:
        self.clock, self.engine, cache = ManualClock(), Engine(*waiting), Cache()
        cache.add_node(make_node("n1"))
        self.book = BindRequestTracker(cache, self.engine, BindFailures(self.clock), self.clock)
        self.book.only_failures = only_failures
        self.there: dict[str, str] = {}
        """The uids of the server's pods, by name."""
        self.asked: list[str] = []

    async def uids(self) -> frozenset[str]:
        return self.book.uids

    async def unread(self) -> list[BindRequest]:
        return []

    async def pod_uid(self, request: BindRequest) -> str:
        self.asked.append(request.spec.pod_name)
        if self.there.get(request.spec.pod_name) == "secret":
            raise Forbidden("not for you")
        return self.there.get(request.spec.pod_name, "")

    async def after(self, seconds: float) -> list[str]:
        """What has been deleted by then."""
        self.clock.advance(seconds)
        self.book.run_periodic_checks()
        await delete_orphaned_requests(self.book, self)
        return self.engine.deleted


def failed(pod: Pod = WEB, version: int = 1, **status: Any) -> BindRequest:
    made = new_request(pod, "n1", annotations={}, backoff_limit=3)
    told = {"phase": "Failed", "failed_attempts": 3, "reason": "the pod is gone", **status}
    meta = replace(made.metadata, uid=f"request-{pod.name}", resource_version=str(version))
    return replace(made, metadata=meta, status=BindRequestStatus(**told))


@WATCHED
@async_test
async def test_one_whose_pod_never_was_goes_when_it_could_be_read_for_a_while(only_failures: bool) -> None:
    world = World(only_failures=only_failures)
    world.book.handle_event(None, failed())
    assert await world.after(599) == []
    assert world.asked == []
    assert await world.after(2) == ["request-web"]
    world.book.handle_event(failed(), None)
    assert await world.after(6000) == ["request-web"]
    assert world.asked == ["web"]


@WATCHED
@async_test
async def test_one_of_an_earlier_pod_of_the_name_goes_and_one_of_the_pod_that_is_there_stays(
    only_failures: bool,
) -> None:
    world = World(only_failures=only_failures)
    mine = make_pod("mine", uid="u2")
    by_hand = replace(failed(make_pod("by-hand", uid="")), spec=replace(failed().spec, pod_name="by-hand", pod_uid=""))
    world.there = {"web": "another", "mine": "u2", "by-hand": "u3"}
    for each in (failed(), failed(mine), by_hand):
        world.book.handle_event(None, each)
    assert await world.after(601) == ["request-web"]
    assert sorted(world.asked) == ["by-hand", "mine", "web"]
    world.book.handle_event(failed(), None)
    world.there = {}  # their pods go, too: where nobody owns a request nobody collects it
    assert await world.after(599) == ["request-web"]
    assert sorted(await world.after(2)) == ["request-by-hand", "request-mine", "request-web"]


@WATCHED
@async_test
async def test_what_may_be_tried_again_what_others_made_and_what_is_on_its_way_out_is_left_alone(
    only_failures: bool,
) -> None:
    world = World(only_failures=only_failures)
    theirs = failed(make_pod("theirs", uid="u4"))
    theirs = replace(theirs, metadata=replace(theirs.metadata, labels={}))
    going = failed(make_pod("going", uid="u5"))
    going = replace(going, metadata=replace(going.metadata, deletion_timestamp=world.clock.now()))
    for each in (failed(failed_attempts=1), theirs, going):
        world.book.handle_event(None, each)
    assert await world.after(6000) == []
    assert world.asked == []


@WATCHED
@async_test
async def test_one_that_somebody_has_tried_again_is_no_orphan_any_more(only_failures: bool) -> None:
    world = World(only_failures=only_failures)
    world.book.handle_event(None, failed())
    again = failed(version=2, phase="Failed", failed_attempts=0)
    world.book.handle_event(failed(), again)
    assert await world.after(6000) == []


@WATCHED
@async_test
async def test_the_request_of_a_pod_that_waits_goes_at_once_and_nobody_asks(only_failures: bool) -> None:
    world = World(WEB, only_failures=only_failures)
    world.book.handle_event(None, failed())
    assert world.engine.deleted == ["request-web"]
    assert world.book.orphans() == []


@async_test
async def test_one_that_cannot_be_asked_about_or_deleted_is_no_loop() -> None:
    world = World()
    world.there = {"web": "secret"}
    world.book.handle_event(None, failed())
    world.book.handle_event(None, failed(make_pod("stuck", uid="u6")))
    for _ in range(10):
        await world.after(100)
    assert (world.asked, world.engine.deleted) == (["web", "stuck"], ["request-stuck"])
    await world.after(600)
    assert world.engine.deleted == ["request-stuck", "request-stuck"]  # nobody has told that it went
    assert world.asked == ["web", "stuck"] * 2


@async_test
async def test_many_of_them_are_asked_about_in_turns() -> None:
    world = World()
    for number in range(120):
        world.book.handle_event(None, failed(make_pod(f"p{number}", uid=f"u{number}")))
    await world.after(601)
    assert len(world.asked) == 50
    await world.after(5)
    await world.after(5)
    assert len(set(world.asked)) == len(world.asked) == 120
