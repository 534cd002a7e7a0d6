"""How a process follows requests: of its own failures alone where the server can select them, everything else whole."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bayplan.api_writes.bind_request_writes import BindRequestWrites
from bayplan.app.api_clients import ApiClients
from bayplan.app.bind_request_watch import BindRequestWatch
from bayplan.bind_requests.tracker import BindRequestTracker, RequestOwner
from bayplan.cache import Cache
from bayplan.client import EVERYTHING, Client, Selection
from bayplan.client.informer.informer import Handler
from bayplan.clock import ManualClock
from bayplan.errors import ObjectError, Unreachable
from bayplan.framework.runtime.bind_failures import BindFailures
from bayplan.intents.pod_intents import DeleteBindRequest
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import (
    HANDLED_BY_BAYPLAN,
    HANDLED_BY_LABEL,
    SCHEDULER_LABEL,
    BindRequest,
    BindRequestSpec,
)
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.live.bind_request_handlers import (
    BindRequestReader,
    check_unreadable_requests,
    delete_orphaned_requests,
    read_lost_pods,
)
from bayplan.testing import make_node
from support.harness.reconciler import (
    REQUESTS,
    ReconcilerHarness,
    run_reconciler,
    run_with_reconciler,
)

NAMES = ("default-scheduler", "gpus")
FAILURES = Selection(
    field_selector="status.phase=Failed", label_selector="bayplan.dev/scheduler in (default-scheduler,gpus)"
)
OF_OTHERS = Selection(label_selector="bayplan.dev/scheduler notin (default-scheduler,gpus)")


def wired(client: Client) -> ApiClients:
    return cast(ApiClients, SimpleNamespace(client=client))


def book() -> BindRequestTracker:
    clock = ManualClock()
    nobody = cast(RequestOwner, SimpleNamespace(waiting_pod=lambda _: None))
    return BindRequestTracker(Cache(), nobody, BindFailures(clock), clock, asyncio.get_running_loop().create_future)


def older() -> dict[str, Any]:
    definition = copy.deepcopy(bind_request_definition())
    del definition["spec"]["versions"][0]["selectableFields"]
    return definition


@pytest.mark.parametrize("selects", [True, False], ids=["selects by phase", "does not"])
def test_what_is_watched_follows_from_what_the_server_can_select(tmp_path: Path, selects: bool) -> None:
    async def run() -> None:
        async with run_reconciler(tmp_path, definition=bind_request_definition() if selects else older()) as rig:
            requests = book()
            watch = await BindRequestWatch.create(requests, wired(rig.client), NAMES)
            assert watch.selections == ((FAILURES, OF_OTHERS) if selects else (EVERYTHING,))
            assert requests.only_failures is selects
            assert len(watch.startup_tasks(lambda *_: None)) == selects
            assert len(watch.background_tasks(rig.client.clock)) == 1

    asyncio.run(run())


def test_an_engine_that_binds_by_itself_asks_for_nothing() -> None:
    async def run() -> BindRequestWatch:
        return await BindRequestWatch.create(None, wired(cast(Client, None)), NAMES)

    watch = asyncio.run(run())
    assert watch.selections == (EVERYTHING,)
    assert watch.background_tasks(cast(Any, None)) == watch.startup_tasks(lambda *_: None) == ()


def test_where_several_schedulers_of_a_name_share_the_pods_all_requests_are_watched(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        requests = book()
        watch = await BindRequestWatch.create(requests, wired(rig.client), ())
        assert watch.selections == (EVERYTHING,)
        assert not requests.only_failures

    run_with_reconciler(tmp_path, test)


def test_requests_for_pods_of_others_are_told_whole_and_none_is_told_twice(tmp_path: Path) -> None:
    """A request without the label may be anybody's: KAI-Scheduler's, or one that was made by hand."""

    async def test(rig: ReconcilerHarness) -> None:
        labels = {"mine": {SCHEDULER_LABEL: "default-scheduler"}, "theirs": {SCHEDULER_LABEL: "volcano"}, "by-hand": {}}
        for name, more in labels.items():
            await rig.request(await rig.pod(name), name=name)
            await rig.patch(REQUESTS, name, {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN, **more}}})
            await rig.patch(REQUESTS, name, {"status": {"phase": "Failed", "failedAttempts": 1}}, sub="status")
        watch = await BindRequestWatch.create(book(), wired(rig.client), NAMES)
        told = [[each.name for each in (await rig.client.list(REQUESTS, one)).items] for one in watch.selections]
        assert [sorted(each) for each in told] == [["mine"], ["by-hand", "theirs"]]

    run_with_reconciler(tmp_path, test)


def test_everything_is_told_before_the_first_decision_and_failures_after_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with run_reconciler(tmp_path) as rig:
            for name in ("one", "two"):
                await rig.request(await rig.pod(name), name=name)
                await rig.patch(REQUESTS, name, {"metadata": {"labels": {SCHEDULER_LABEL: "default-scheduler"}}})
            watch = await BindRequestWatch.create(book(), wired(rig.client), NAMES)
            told: list[str] = []
            (first_look,) = watch.startup_tasks(lambda _, new: told.append(new.metadata.name if new else ""))
            await first_look()
            assert sorted(told) == ["one", "two"]
            uids = {(await rig.get(REQUESTS, name))["metadata"]["uid"] for name in told}
            assert await watch.uids() == uids
            assert await told_by_watch(rig, watch) == ["two"]

    asyncio.run(run())


class StillWaiting:
    """An engine whose only pod waits for the binder."""

    def __init__(self, pod: Pod, writes: BindRequestWrites) -> None:
        self._pod, self._writes = pod, writes
        self.writing: list[asyncio.Task[None]] = []
        self.done: list[str] = []

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        return self._pod if request.pod_key == self._pod.key else None

    def on_assumed(self, pod: Pod) -> None:
        self.done.append(f"taken {pod.name}")

    def on_released(self, pod: Pod, was: Pod) -> None:
        self.done.append(f"released {pod.name} from {was.spec.node_name}")

    def submit(self, intent: object) -> None:
        assert isinstance(intent, DeleteBindRequest)
        self.writing.append(asyncio.ensure_future(self._writes.delete(intent)))

    def record_warning(self, pod: Pod, reason: str, note: str) -> None:  # noqa: ARG002
        self.done.append(reason)

    def wake(self, uid: str) -> None: ...


class SilentServer:
    """Answers nothing."""

    async def pod(self, _: BindRequest) -> Pod | None:
        raise Unreachable("no answer", sent=True)


def test_a_stale_request_goes_though_somebody_has_edited_it_and_nobody_told(tmp_path: Path) -> None:
    """Watched are failures alone, so that the version we know is the one that was made."""

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        await rig.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        pod = await rig.client.get(Pod, "default", "web")
        clock, cache = ManualClock(datetime.now(UTC)), Cache()
        cache.add_node(make_node("n1"))
        engine = StillWaiting(pod, BindRequestWrites(rig.client))
        requests = BindRequestTracker(cache, engine, BindFailures(clock), clock, stale_s=1.0)
        watch = await BindRequestWatch.create(requests, wired(rig.client), NAMES)
        (first_look,) = watch.startup_tasks(cast(Handler, requests.handle_event))
        await first_look()
        await rig.patch(REQUESTS, "web", {"metadata": {"annotations": {"x": "y"}}})
        clock.advance(60)
        requests.run_periodic_checks()
        while engine.writing:
            await engine.writing.pop()
        assert await rig.find(REQUESTS, "web") is None
        assert engine.done == ["taken web", "BindRequestStale", "BindRequestDeleted"]
        clock.advance(60)
        await read_lost_pods(requests, cast(BindRequestReader, SilentServer()))
        assert engine.done[-1] == "BindRequestDeleted", "without an answer the pod keeps its node"
        await read_lost_pods(requests, watch)
        assert engine.done[-1] == "released web from n1"

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("selects", [True, False], ids=["selects by phase", "does not"])
def test_requests_that_nobody_can_read_go_as_well_where_their_pods_never_were(tmp_path: Path, selects: bool) -> None:
    """A binder gives them up, and no watch tells an engine what they say."""

    async def test(rig: ReconcilerHarness) -> None:
        await rig.pod("there")
        garbled = {"resourceClaimAllocations": [{"name": "gpu", "allocation": {"devices": 3}}]}
        for name in ("never", "there"):
            await rig.request(None, name=name, **garbled)
            await rig.patch(REQUESTS, name, {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        async with rig.run_binder():
            for name in ("never", "there"):
                await rig.until_phase("Failed", name)
        clock = ManualClock(datetime.now(UTC))
        engine = StillWaiting(await rig.client.get(Pod, "default", "there"), BindRequestWrites(rig.client))
        requests = BindRequestTracker(Cache(), engine, BindFailures(clock), clock)
        watch = await BindRequestWatch.create(requests, wired(rig.client), NAMES)
        for _ in range(2):
            await check_unreadable_requests(requests, watch)
            clock.advance(600)
            await delete_orphaned_requests(requests, watch)
            while engine.writing:
                await engine.writing.pop()
        assert await rig.find(REQUESTS, "there") is not None
        assert (await rig.find(REQUESTS, "never") is None) is selects
        await check_unreadable_requests(requests, watch)
        clock.advance(600)
        await delete_orphaned_requests(requests, watch)
        assert engine.writing == [], "what has gone is not deleted again"

    run_with_reconciler(tmp_path, test, definition=bind_request_definition() if selects else older())


@pytest.mark.parametrize("name", ["", "..", "%2e%2e"])
def test_a_pod_that_cannot_be_is_not_asked_for(tmp_path: Path, name: str) -> None:
    """The server would answer neither that it is there nor that it is not, and the request would stay."""

    async def test(rig: ReconcilerHarness) -> None:
        request = BindRequest(spec=BindRequestSpec(pod_name=name))
        assert await BindRequestWatch(book(), rig.client).pod_uid(request) == ""

    run_with_reconciler(tmp_path, test)


async def told_by_watch(rig: ReconcilerHarness, watch: BindRequestWatch) -> list[str]:
    """Which requests the watch tells of when the second fails, and when the first succeeds before."""
    told: list[str] = []
    failed = asyncio.Event()

    def hear(_: KubeObject | None, new: KubeObject | None) -> None:
        assert isinstance(new, BindRequest)
        told.append(new.name)
        failed.set()

    watching = asyncio.ensure_future(rig.client.informer(REQUESTS, hear, selection=watch.selections[0]).run())
    await rig.patch(REQUESTS, "one", {"status": {"phase": "Succeeded"}}, sub="status")
    await rig.patch(REQUESTS, "two", {"status": {"phase": "Failed", "failedAttempts": 1}}, sub="status")
    async with asyncio.timeout(60):
        await failed.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return told


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"items": null}', frozenset()),  # kube-apiserver's word for none
        (b'{"items": []}', frozenset()),
        (b'{"items": [{"metadata": {"uid": "a"}}]}', frozenset({"a"})),
        (b'{"items": 3}', None),
        (b"<html>", None),
    ],
)
def test_a_list_of_uids_may_be_empty_or_unreadable(body: bytes, found: frozenset[str] | None) -> None:
    async def answer(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(body=body)

    server = cast(Client, SimpleNamespace(transport=SimpleNamespace(request=answer)))
    watch = BindRequestWatch(None, server)
    if found is None:
        with pytest.raises(ObjectError, match="the list of bind requests cannot be read"):
            asyncio.run(watch.uids())
    else:
        assert asyncio.run(watch.uids()) == found
