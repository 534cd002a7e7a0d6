"""A binder that starts counts attempts before it makes them. One whose end it could not tell is no death: it lives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.informer_cache import RequestKey
from bayplan.binder.status_updater import ATTEMPT_IN_PROGRESS, ROLLBACK_IN_PROGRESS
from bayplan.errors import NotFound, Unreachable
from bayplan.objects.kai.bind_request import BindRequest
from support.harness.reconciler import (
    REQUESTS,
    FailingPlugin,
    ReconcilerHarness,
    RecordingPlugin,
    run_with_reconciler,
)

KEY: RequestKey = ("default", "web")


async def untold(rig: ReconcilerHarness, *, lost: int) -> None:
    """An attempt at a request that was there before, of whose statuses that one is lost."""
    write: Callable[..., Any] = rig.client.patch_typed
    written = 0

    async def patched(*args: Any, **more: Any) -> Any:
        nonlocal written
        written += 1
        if written < lost:
            return await write(*args, **more)
        raise Unreachable("nobody answers")

    with pytest.MonkeyPatch.context() as cut:
        cut.setattr(rig.client, "patch_typed", patched)
        with pytest.raises(Unreachable):
            await rig.reconciler.reconcile(KEY, existed_at_start=True)
    assert written == lost
    await rig.deliver_event(BindRequest, "web")


@pytest.mark.parametrize("limit", [1, 3])
def test_a_success_that_could_not_be_told_is_told_as_if_nothing_had_been(tmp_path: Path, limit: int) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=limit)
        await rig.deliver_event(BindRequest, "web")
        await untold(rig, lost=2)
        assert (await rig.status())["reason"] == ATTEMPT_IN_PROGRESS
        assert await rig.node_of() == "n1"
        await untold(rig, lost=2)
        assert await rig.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert await rig.status() == {"phase": "Succeeded", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, RecordingPlugin())


@pytest.mark.parametrize(("limit", "again"), [(1, False), (3, True)])
def test_a_failure_that_could_not_be_told_is_told_in_its_own_words(tmp_path: Path, limit: int, *, again: bool) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=limit)
        await rig.deliver_event(BindRequest, "web")
        await untold(rig, lost=2)
        assert (await rig.reconciler.reconcile(KEY, existed_at_start=True) is not None) is again
        assert await rig.status() == {
            "phase": "Failed",
            "reason": 'plugin "failing" at pre_bind: not now',
            "failedAttempts": 1,
        }

    run_with_reconciler(tmp_path, test, FailingPlugin())


@pytest.mark.parametrize("lands", [True, False])
def test_a_status_with_a_lost_answer_is_found_or_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lands: bool
) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=1)
        await rig.deliver_event(BindRequest, "web")
        write: Callable[..., Any] = rig.client.patch_typed
        sends = 0

        async def patched(*args: Any, **more: Any) -> Any:
            nonlocal sends
            sends += 1
            if sends > 1 or lands:
                written = await write(*args, **more)
            if sends == 1:
                raise Unreachable("the connection was cut", sent=True)
            return written

        monkeypatch.setattr(rig.client, "patch_typed", patched)
        assert await rig.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert sends == (2 if lands else 3)  # that the attempt began, again if it was lost, and how it ended
        assert await rig.status() == {"phase": "Succeeded", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, plugin)


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("is_written", [False, True], ids=["not-written", "written"])
def test_a_request_that_is_there_is_not_forgotten_after_a_404(
    tmp_path: Path, *, is_written: bool, inherited: bool
) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        await rig.deliver_event(BindRequest, "web")
        write: Callable[..., Any] = rig.client.patch_typed
        refusals = [NotFound("not found")]

        async def patched(*args: Any, **more: Any) -> Any:
            if is_written or not refusals:
                written = await write(*args, **more)
            if refusals:
                raise refusals.pop()
            return written

        with pytest.MonkeyPatch.context() as cut:
            cut.setattr(rig.client, "patch_typed", patched)
            if is_written:
                assert await rig.reconciler.reconcile(KEY, existed_at_start=inherited) is None
            else:
                with pytest.raises(NotFound):  # the caller tries again
                    await rig.reconciler.reconcile(KEY, existed_at_start=inherited)
                assert await rig.reconciler.reconcile(KEY, existed_at_start=inherited) is None
        assert (await rig.status())["phase"] == "Succeeded"
        assert await rig.node_of() == "n1"

    run_with_reconciler(tmp_path, test, RecordingPlugin())


def test_a_death_before_us_is_told_though_our_first_word_of_it_is_lost(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=1)
        died = {"phase": "Pending", "reason": ATTEMPT_IN_PROGRESS, "failedAttempts": 1}
        await rig.patch(REQUESTS, "web", {"status": died}, sub="status")
        await rig.deliver_event(BindRequest, "web")
        await untold(rig, lost=2)
        assert (await rig.status())["reason"] == ROLLBACK_IN_PROGRESS
        assert await rig.reconciler.reconcile(KEY, existed_at_start=True) is None
        status = await rig.status()
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 1)
        assert status["reason"].startswith("the binder died during attempt 1 of 1")

    run_with_reconciler(tmp_path, test, RecordingPlugin())


def test_what_has_been_told_is_remembered_no_longer(tmp_path: Path) -> None:
    """Whoever sets the status to what it was in the midst of an attempt gets what a death would get."""

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=1)
        await rig.deliver_event(BindRequest, "web")
        assert await rig.reconciler.reconcile(KEY, existed_at_start=True) is None
        died = {"phase": "Pending", "reason": ATTEMPT_IN_PROGRESS, "failedAttempts": 1}
        await rig.patch(REQUESTS, "web", {"status": died}, sub="status")
        await rig.deliver_event(BindRequest, "web")
        assert await rig.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert (await rig.status())["reason"].startswith("the binder died")

    run_with_reconciler(tmp_path, test, FailingPlugin())
