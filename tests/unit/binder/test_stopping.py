"""A binder that is stopped finishes its writes, ends its waits, and gives its lease up only if no write is left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.app.binder import BinderProcess
from bayplan.devices.claim_intents import WaitForDevices
from bayplan.intents.pod_intents import AnnotatePod
from bayplan.objects.core import Pod
from support.harness.async_tests import async_test, wait_until
from support.harness.reconciler import PODS, ReconcilerHarness, run_with_reconciler


class Gate:
    """Delays the responses to requests until the test opens it."""

    def __init__(self, harness: ReconcilerHarness, ending: str) -> None:
        self.opened, self.requests = asyncio.Event(), 0
        request = harness.client.transport.request

        async def send_after_gate(method: str, path: str, *args: Any, **more: Any) -> Any:
            if method != "GET" and path.partition("?")[0].endswith(ending):
                self.requests += 1
                await self.opened.wait()
            return await request(method, path, *args, **more)

        harness.client.transport.request = send_after_gate  # type: ignore[method-assign]


class Awaits:
    """Waits for devices that never become ready."""

    name = "awaits"
    is_waiting = False
    is_rolled_back = False

    async def pre_bind(self, ctx: Any, pod: Pod, *_: Any) -> None:
        self.is_waiting = True
        await ctx.writes.perform(WaitForDevices(pod, "waiting", lambda: False, 600.0))

    async def rollback(self, *_: Any) -> None:
        self.is_rolled_back = True


class Annotates:
    """Has a write in progress beyond the plugin limit, and records its result."""

    name = "annotates"
    is_written = False
    is_written_at_rollback = False

    async def pre_bind(self, ctx: Any, pod: Pod, *_: Any) -> None:
        await ctx.writes.perform(AnnotatePod(pod, {"example.com/a": "b"}))
        self.is_written = True
        await asyncio.Event().wait()

    async def rollback(self, *_: Any) -> None:
        self.is_written_at_rollback = self.is_written


def test_draining_waits_for_a_binding_and_starts_no_other(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        gate = Gate(harness, "/binding")
        async with harness.run_binder(workers=1) as live:
            await harness.request(await harness.pod("first"), name="first")
            await wait_until(lambda: gate.requests)
            await harness.request(await harness.pod("second"), name="second")
            draining = asyncio.ensure_future(live.drain())
            await asyncio.sleep(0.05)
            assert live.has_open_writes
            assert not draining.done()
            gate.opened.set()
            await draining
            assert not live.has_open_writes
            assert await harness.node_of("first") == "n1"
            assert await harness.node_of("second") == ""

    run_with_reconciler(tmp_path, test)


def test_draining_ends_a_wait_without_a_rollback(tmp_path: Path) -> None:
    plugin = Awaits()

    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder(workers=1) as live:
            await harness.request(await harness.pod())
            await wait_until(lambda: plugin.is_waiting)
            await asyncio.wait_for(live.drain(), 10.0)
            assert not live.has_open_writes
            assert not plugin.is_rolled_back

    run_with_reconciler(tmp_path, test, plugin)


def test_an_attempt_that_reaches_a_wait_during_draining_ends_there(tmp_path: Path) -> None:
    plugin = Awaits()

    async def test(harness: ReconcilerHarness) -> None:
        harness.waits.end()
        async with harness.run_binder(workers=1) as live:
            await harness.request(await harness.pod())
            await wait_until(lambda: plugin.is_waiting)
            await asyncio.wait_for(live.drain(), 10.0)
            assert not live.has_open_writes

    run_with_reconciler(tmp_path, test, plugin)


def test_the_limit_of_a_plugin_cancels_no_write(tmp_path: Path) -> None:
    plugin = Annotates()

    async def test(harness: ReconcilerHarness) -> None:
        gate = Gate(harness, "/pods/web")
        async with harness.run_binder(workers=1):
            await harness.request(await harness.pod(), backoffLimit=1)
            await wait_until(lambda: gate.requests)
            await asyncio.sleep(0.3)
            gate.opened.set()
            failed = await harness.until_phase("Failed")
        assert "it has not come to an end within 0.1 s" in failed["reason"]
        assert plugin.is_written_at_rollback
        assert (await harness.get(PODS, "web"))["metadata"]["annotations"] == {"example.com/a": "b"}

    run_with_reconciler(tmp_path, test, plugin, limit_s=0.1)


class Informed:
    synced = True

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def wait_synced(self) -> None: ...

    async def catch_up(self) -> None: ...


class Binder:
    """A fake binder with one write that the test ends."""

    def __init__(self) -> None:
        self.written = asyncio.Event()

    @property
    def has_open_writes(self) -> bool:
        return not self.written.is_set()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def drain(self) -> None:
        await self.written.wait()


class Lease:
    leading = True
    is_released = is_retained = False

    async def observe(self) -> None: ...
    async def acquire(self) -> None: ...

    def retain(self) -> None:
        self.is_retained = True

    def report_unsent(self) -> None: ...

    async def renew_until_lost(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_released = not self.is_retained


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "outcome unknown"])
def test_the_lease_is_released_only_if_no_write_is_open(answered: bool) -> None:
    @async_test
    async def test() -> None:
        binder: Any = Binder()
        informers: Any = Informed()
        lease: Any = Lease()
        process = BinderProcess(binder, informers, lease, stop_s=60.0 if answered else 0.05)
        running = asyncio.ensure_future(process.run())
        await process.ready.wait()
        running.cancel()
        await asyncio.sleep(0.01)
        assert not running.done()
        if answered:
            binder.written.set()
        await asyncio.wait([running])
        assert running.cancelled()
        assert lease.is_released is answered

    test()
