# ruff: noqa: ARG002
"""Plugins that hang, or await a cancelled task: each fails one attempt of its own pod only."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.plugin import POST_BIND, PRE_BIND, ROLLBACK
from bayplan.errors import BayplanError
from support.harness.reconciler import ReconcilerHarness, run_with_reconciler


class Bad:
    """Misbehaves at one stage for pods whose name begins with "bad"; for the rollback stage its PreBind fails."""

    name = "bad"

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.calls: list[str] = []

    async def harm(self) -> None:
        raise NotImplementedError

    async def _at(self, stage: str, pod: Any) -> None:
        if pod.name.startswith("bad"):
            self.calls.append(stage)
            if stage == self._stage:
                await self.harm()

    async def pre_bind(self, ctx: Any, pod: Any, node: Any, bind_request: Any, state: Any) -> None:
        await self._at(PRE_BIND, pod)
        if self._stage == ROLLBACK and pod.name.startswith("bad"):
            raise BayplanError("not now")

    async def post_bind(self, ctx: Any, pod: Any, node: Any, bind_request: Any, state: Any) -> None:
        await self._at(POST_BIND, pod)

    async def rollback(self, ctx: Any, pod: Any, node: Any, bind_request: Any, state: Any) -> None:
        await self._at(ROLLBACK, pod)


class Cancelling(Bad):
    async def harm(self) -> None:
        work = asyncio.ensure_future(asyncio.sleep(100))
        work.cancel()
        await work


class Hanging(Bad):
    async def harm(self) -> None:
        await asyncio.Event().wait()


def _words(plugin: Bad) -> str:
    cancelled = "what it waited for was cancelled"
    late = "it has not come to an end within 0.2 s, the limit that binderPluginSeconds sets"
    return cancelled if isinstance(plugin, Cancelling) else late


@pytest.mark.parametrize("stage", [PRE_BIND, POST_BIND, ROLLBACK])
@pytest.mark.parametrize("kind", [Cancelling, Hanging])
def test_a_plugin_that_hangs_or_awaits_a_cancelled_task_blocks_no_worker(
    tmp_path: Path, kind: type[Bad], stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = kind(stage)

    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder(workers=2):
            for name in ("bad-1", "bad-2"):
                await harness.request(await harness.pod(name), name=name, backoffLimit=1)
            ends = "Succeeded" if stage == POST_BIND else "Failed"
            reasons = [(await harness.until_phase(ends, name))["reason"] for name in ("bad-1", "bad-2")]
            await harness.request(await harness.pod("good"), name="good")
            await harness.until_phase("Succeeded", "good")
        if stage == PRE_BIND:
            assert reasons == [f'plugin "bad" at pre_bind: {_words(plugin)}'] * 2

    caplog.set_level(logging.WARNING)
    run_with_reconciler(tmp_path, test, plugin, limit_s=0.2)
    rolled_back = [] if stage == POST_BIND else [ROLLBACK]
    wanted = [PRE_BIND, *([POST_BIND] if stage == POST_BIND else []), *rolled_back]
    assert sorted(plugin.calls) == sorted(wanted * 2)
    assert _words(plugin) in caplog.text


def test_a_cancelled_worker_ends_inside_a_plugin(tmp_path: Path) -> None:
    """Unlike above, the worker itself is cancelled."""
    plugin = Hanging(PRE_BIND)

    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder():
            await harness.request(await harness.pod("bad"), name="bad")
            while not plugin.calls:
                await asyncio.sleep(0.01)
        assert "phase" not in await harness.status("bad")

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == [PRE_BIND]


def test_a_timeout_of_the_plugin_itself_is_reported_as_such(tmp_path: Path) -> None:
    class Impatient(Bad):
        async def harm(self) -> None:
            raise TimeoutError("its own")

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod("bad"), name="bad", backoffLimit=1)
        assert await harness.sync("bad") is None
        assert (await harness.status("bad"))["reason"] == 'plugin "bad" at pre_bind: TimeoutError: its own'

    run_with_reconciler(tmp_path, test, Impatient(PRE_BIND))
