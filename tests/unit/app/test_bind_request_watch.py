"""Watches of BindRequests: only failures where the server can select them, else all requests."""

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
from support.harness.reconciler import REQUESTS, ReconcilerHarness, run_reconciler, run_with_reconciler

NAMES = ("default-scheduler", "gpus")
FAILURES = Selection(
    field_selector="status.phase=Failed", label_selector="bayplan.dev/scheduler in (default-scheduler,gpus)"
)
FOREIGN_REQUESTS = Selection(label_selector="bayplan.dev/scheduler notin (default-scheduler,gpus)")


def api_clients(client: Client) -> ApiClients:
    return cast(ApiClients, SimpleNamespace(client=client))


def tracker() -> BindRequestTracker:
    clock = ManualClock()
    no_owner = cast(RequestOwner, SimpleNamespace(waiting_pod=lambda _: None))
    return BindRequestTracker(Cache(), no_owner, BindFailures(clock), clock, asyncio.get_running_loop().create_future)


def older_definition() -> dict[str, Any]:
    definition = copy.deepcopy(bind_request_definition())
    del definition["spec"]["versions"][0]["selectableFields"]
    return definition


@pytest.mark.parametrize("selects", [True, False], ids=["selects by phase", "does not"])
def test_the_selectors_depend_on_the_server(tmp_path: Path, selects: bool) -> None:
    async def run() -> None:
        async with run_reconciler(
            tmp_path, definition=bind_request_definition() if selects else older_definition()
        ) as harness:
            requests = tracker()
            watch = await BindRequestWatch.create(requests, api_clients(harness.client), NAMES)
            assert watch.selections == ((FAILURES, FOREIGN_REQUESTS) if selects else (EVERYTHING,))
            assert requests.only_failures is selects
            assert len(watch.startup_tasks(lambda *_: None)) == selects
            assert len(watch.background_tasks(harness.client.clock)) == 1

    asyncio.run(run())


def test_an_engine_without_binder_watches_no_requests() -> None:
    async def run() -> BindRequestWatch:
        return await BindRequestWatch.create(None, api_clients(cast(Client, None)), NAMES)

    watch = asyncio.run(run())
    assert watch.selections == (EVERYTHING,)
    assert watch.background_tasks(cast(Any, None)) == watch.startup_tasks(lambda *_: None) == ()


def test_schedulers_that_share_a_name_watch_all_requests(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        requests = tracker()
        watch = await BindRequestWatch.create(requests, api_clients(harness.client), ())
        assert watch.selections == (EVERYTHING,)
        assert not requests.only_failures

    run_with_reconciler(tmp_path, test)


def test_foreign_requests_are_watched_and_none_is_watched_twice(tmp_path: Path) -> None:
    """A request without the label may belong to any scheduler: KAI-Scheduler's, or one that a user created."""

    async def test(harness: ReconcilerHarness) -> None:
        labels = {"mine": {SCHEDULER_LABEL: "default-scheduler"}, "theirs": {SCHEDULER_LABEL: "volcano"}, "by-hand": {}}
        for name, more in labels.items():
            await harness.request(await harness.pod(name), name=name)
            await harness.patch(
                REQUESTS, name, {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN, **more}}}
            )
            await harness.patch(REQUESTS, name, {"status": {"phase": "Failed", "failedAttempts": 1}}, sub="status")
        watch = await BindRequestWatch.create(tracker(), api_clients(harness.client), NAMES)
        names = [[each.name for each in (await harness.client.list(REQUESTS, one)).items] for one in watch.selections]
        assert [sorted(each) for each in names] == [["mine"], ["by-hand", "theirs"]]

    run_with_reconciler(tmp_path, test)


def test_all_requests_are_listed_before_the_first_decision_and_failures_are_watched(tmp_path: Path) -> None:
    async def run() -> None:
        async with run_reconciler(tmp_path) as harness:
            for name in ("one", "two"):
                await harness.request(await harness.pod(name), name=name)
                await harness.patch(REQUESTS, name, {"metadata": {"labels": {SCHEDULER_LABEL: "default-scheduler"}}})
            watch = await BindRequestWatch.create(tracker(), api_clients(harness.client), NAMES)
            names: list[str] = []
            (list_existing,) = watch.startup_tasks(lambda _, new: names.append(new.metadata.name if new else ""))
            await list_existing()
            assert sorted(names) == ["one", "two"]
            uids = {(await harness.get(REQUESTS, name))["metadata"]["uid"] for name in names}
            assert await watch.uids() == uids
            assert await watched_requests(harness, watch) == ["two"]

    asyncio.run(run())


class PendingPodEngine:
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
    """A server without answers."""

    async def pod(self, _: BindRequest) -> Pod | None:
        raise Unreachable("no answer", sent=True)


def test_a_stale_request_is_deleted_after_an_unwatched_edit(tmp_path: Path) -> None:
    """The watch has failures only, so the known version is the created one."""

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        pod = await harness.client.get(Pod, "default", "web")
        clock, cache = ManualClock(datetime.now(UTC)), Cache()
        cache.add_node(make_node("n1"))
        engine = PendingPodEngine(pod, BindRequestWrites(harness.client))
        requests = BindRequestTracker(cache, engine, BindFailures(clock), clock, stale_s=1.0)
        watch = await BindRequestWatch.create(requests, api_clients(harness.client), NAMES)
        (list_existing,) = watch.startup_tasks(cast(Handler, requests.handle_event))
        await list_existing()
        await harness.patch(REQUESTS, "web", {"metadata": {"annotations": {"x": "y"}}})
        clock.advance(60)
        requests.run_periodic_checks()
        while engine.writing:
            await engine.writing.pop()
        assert await harness.find(REQUESTS, "web") is None
        assert engine.done == ["taken web", "BindRequestStale", "BindRequestDeleted"]
        clock.advance(60)
        await read_lost_pods(requests, cast(BindRequestReader, SilentServer()))
        assert engine.done[-1] == "BindRequestDeleted", "without an answer the pod keeps its node"
        await read_lost_pods(requests, watch)
        assert engine.done[-1] == "released web from n1"

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("selects", [True, False], ids=["selects by phase", "does not"])
def test_undecodable_requests_without_a_pod_are_deleted(tmp_path: Path, selects: bool) -> None:
    """The binder reports them as failed, and no watch has their content."""

    async def test(harness: ReconcilerHarness) -> None:
        await harness.pod("there")
        invalid = {"resourceClaimAllocations": [{"name": "gpu", "allocation": {"devices": 3}}]}
        for name in ("never", "there"):
            await harness.request(None, name=name, **invalid)
            await harness.patch(REQUESTS, name, {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        async with harness.run_binder():
            for name in ("never", "there"):
                await harness.until_phase("Failed", name)
        clock = ManualClock(datetime.now(UTC))
        engine = PendingPodEngine(await harness.client.get(Pod, "default", "there"), BindRequestWrites(harness.client))
        requests = BindRequestTracker(Cache(), engine, BindFailures(clock), clock)
        watch = await BindRequestWatch.create(requests, api_clients(harness.client), NAMES)
        for _ in range(2):
            await check_unreadable_requests(requests, watch)
            clock.advance(600)
            await delete_orphaned_requests(requests, watch)
            while engine.writing:
                await engine.writing.pop()
        assert await harness.find(REQUESTS, "there") is not None
        assert (await harness.find(REQUESTS, "never") is None) is selects
        await check_unreadable_requests(requests, watch)
        clock.advance(600)
        await delete_orphaned_requests(requests, watch)
        assert engine.writing == [], "what has gone is not deleted again"

    run_with_reconciler(tmp_path, test, definition=bind_request_definition() if selects else older_definition())


@pytest.mark.parametrize("name", ["", "..", "%2e%2e"])
def test_a_pod_with_an_invalid_name_is_not_requested(tmp_path: Path, name: str) -> None:
    """The server would return neither the pod nor 404, and the request would stay."""

    async def test(harness: ReconcilerHarness) -> None:
        request = BindRequest(spec=BindRequestSpec(pod_name=name))
        assert await BindRequestWatch(tracker(), harness.client).pod_uid(request) == ""

    run_with_reconciler(tmp_path, test)


async def watched_requests(harness: ReconcilerHarness, watch: BindRequestWatch) -> list[str]:
    """The requests that the watch reports when the first succeeds and then the second fails."""
    names: list[str] = []
    failed = asyncio.Event()

    def on_event(_: KubeObject | None, new: KubeObject | None) -> None:
        assert isinstance(new, BindRequest)
        names.append(new.name)
        failed.set()

    informer = asyncio.ensure_future(harness.client.informer(REQUESTS, on_event, selection=watch.selections[0]).run())
    await harness.patch(REQUESTS, "one", {"status": {"phase": "Succeeded"}}, sub="status")
    await harness.patch(REQUESTS, "two", {"status": {"phase": "Failed", "failedAttempts": 1}}, sub="status")
    async with asyncio.timeout(60):
        await failed.wait()
    informer.cancel()
    await asyncio.gather(informer, return_exceptions=True)
    return names


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"items": null}', frozenset()),  # an empty list of kube-apiserver
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
