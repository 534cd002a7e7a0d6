"""Bindings by an extender: how long the pod keeps its node after the extender has failed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.api_writes.writes import ApiWrites
from bayplan.client import REQUEST_TIMEOUT_S
from bayplan.clock import ManualClock
from bayplan.errors import ApiError
from bayplan.intents.pod_intents import BindPod
from bayplan.objects.core import Pod
from support.harness.live_scheduler import RecordedEvents
from support.harness.reconciler import ReconcilerHarness, run_with_reconciler


class SkippingClock(ManualClock):
    """Sleeping takes no time and moves the clock on."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("lands_s", "known_after_s"),
    [
        pytest.param(0.0, 0.0, id="it-sent-the-binding-before-it-failed"),
        pytest.param(30.0, 30.0, id="its-binding-lands-later"),
        pytest.param(None, REQUEST_TIMEOUT_S, id="it-sent-no-binding"),
    ],
)
def test_a_pod_keeps_its_node_while_a_binding_may_land(
    tmp_path: Path, lands_s: float | None, known_after_s: float
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        await harness.pod()
        pod = await harness.client.get(Pod, "default", "web")
        find, start_s = writes._find_binding, clock.monotonic_s()

        async def finding(intent: BindPod) -> Any:
            if lands_s is not None and clock.monotonic_s() - start_s >= lands_s and not await harness.node_of():
                await harness.client.bind("default", "web", "n1", uid=pod.uid)
            return await find(intent)

        writes._find_binding = finding  # type: ignore[method-assign]
        refusal = ApiError("the extender answers with an error")
        refusal.outcome_unknown = True
        assert await writes.await_binding(BindPod(pod, "n1"), refusal) is (lands_s is not None)
        assert known_after_s <= clock.monotonic_s() - start_s <= known_after_s + 5.0

    run_with_reconciler(tmp_path, test)
