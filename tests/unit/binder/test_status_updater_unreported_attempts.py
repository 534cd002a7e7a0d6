"""A starting binder counts attempts before it makes them. A failed write of the result is no crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.informer_cache import RequestKey
from bayplan.binder.status_updater import ATTEMPT_IN_PROGRESS, ROLLBACK_IN_PROGRESS
from bayplan.errors import NotFound, Unreachable
from bayplan.objects.kai.bind_request import BindRequest
from support.harness.reconciler import REQUESTS, FailingPlugin, ReconcilerHarness, RecordingPlugin, run_with_reconciler

KEY: RequestKey = ("default", "web")


async def lose_status(harness: ReconcilerHarness, *, lost: int) -> None:
    """Make an attempt for a request that existed at the start; one of its status writes is lost."""
    write: Callable[..., Any] = harness.client.patch_typed
    written = 0

    async def patch_status(*args: Any, **more: Any) -> Any:
        nonlocal written
        written += 1
        if written < lost:
            return await write(*args, **more)
        raise Unreachable("no response")

    with pytest.MonkeyPatch.context() as cut:
        cut.setattr(harness.client, "patch_typed", patch_status)
        with pytest.raises(Unreachable):
            await harness.reconciler.reconcile(KEY, existed_at_start=True)
    assert written == lost
    await harness.deliver_event(BindRequest, "web")


@pytest.mark.parametrize("limit", [1, 3])
def test_a_success_whose_write_failed_is_written_without_counting_an_attempt(tmp_path: Path, limit: int) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=limit)
        await harness.deliver_event(BindRequest, "web")
        await lose_status(harness, lost=2)
        assert (await harness.status())["reason"] == ATTEMPT_IN_PROGRESS
        assert await harness.node_of() == "n1"
        await lose_status(harness, lost=2)
        assert await harness.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert await harness.status() == {"phase": "Succeeded", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, RecordingPlugin())


@pytest.mark.parametrize(("limit", "again"), [(1, False), (3, True)])
def test_a_failure_whose_write_failed_is_written_with_its_reason(tmp_path: Path, limit: int, *, again: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=limit)
        await harness.deliver_event(BindRequest, "web")
        await lose_status(harness, lost=2)
        assert (await harness.reconciler.reconcile(KEY, existed_at_start=True) is not None) is again
        assert await harness.status() == {
            "phase": "Failed",
            "reason": 'plugin "failing" at pre_bind: not now',
            "failedAttempts": 1,
        }

    run_with_reconciler(tmp_path, test, FailingPlugin())


@pytest.mark.parametrize("lands", [True, False])
def test_a_status_with_a_lost_response_is_found_or_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lands: bool
) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=1)
        await harness.deliver_event(BindRequest, "web")
        write: Callable[..., Any] = harness.client.patch_typed
        sends = 0

        async def patch_status(*args: Any, **more: Any) -> Any:
            nonlocal sends
            sends += 1
            if sends > 1 or lands:
                written = await write(*args, **more)
            if sends == 1:
                raise Unreachable("the connection was cut", sent=True)
            return written

        monkeypatch.setattr(harness.client, "patch_typed", patch_status)
        assert await harness.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert sends == (2 if lands else 3)  # the mark, a repetition if it was lost, and the result
        assert await harness.status() == {"phase": "Succeeded", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, plugin)


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("is_written", [False, True], ids=["not-written", "written"])
def test_an_existing_request_is_not_forgotten_after_a_404(tmp_path: Path, *, is_written: bool, inherited: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.deliver_event(BindRequest, "web")
        write: Callable[..., Any] = harness.client.patch_typed
        refusals = [NotFound("not found")]

        async def patch_status(*args: Any, **more: Any) -> Any:
            if is_written or not refusals:
                written = await write(*args, **more)
            if refusals:
                raise refusals.pop()
            return written

        with pytest.MonkeyPatch.context() as cut:
            cut.setattr(harness.client, "patch_typed", patch_status)
            if is_written:
                assert await harness.reconciler.reconcile(KEY, existed_at_start=inherited) is None
            else:
                with pytest.raises(NotFound):  # the caller retries
                    await harness.reconciler.reconcile(KEY, existed_at_start=inherited)
                assert await harness.reconciler.reconcile(KEY, existed_at_start=inherited) is None
        assert (await harness.status())["phase"] == "Succeeded"
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, RecordingPlugin())


def test_an_earlier_crash_is_reported_although_the_first_write_of_it_is_lost(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=1)
        died = {"phase": "Pending", "reason": ATTEMPT_IN_PROGRESS, "failedAttempts": 1}
        await harness.patch(REQUESTS, "web", {"status": died}, sub="status")
        await harness.deliver_event(BindRequest, "web")
        await lose_status(harness, lost=2)
        assert (await harness.status())["reason"] == ROLLBACK_IN_PROGRESS
        assert await harness.reconciler.reconcile(KEY, existed_at_start=True) is None
        status = await harness.status()
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 1)
        assert status["reason"].startswith("the binder died during attempt 1 of 1")

    run_with_reconciler(tmp_path, test, RecordingPlugin())


def test_a_written_result_clears_the_stored_status(tmp_path: Path) -> None:
    """A client that restores the status of an attempt in progress causes the same as a crash."""

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=1)
        await harness.deliver_event(BindRequest, "web")
        assert await harness.reconciler.reconcile(KEY, existed_at_start=True) is None
        died = {"phase": "Pending", "reason": ATTEMPT_IN_PROGRESS, "failedAttempts": 1}
        await harness.patch(REQUESTS, "web", {"status": died}, sub="status")
        await harness.deliver_event(BindRequest, "web")
        assert await harness.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert (await harness.status())["reason"].startswith("the binder died")

    run_with_reconciler(tmp_path, test, FailingPlugin())
