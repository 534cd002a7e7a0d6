"""The queues `root` and `default` are made by whoever leads, however often the server refuses."""

from __future__ import annotations

import logging

import pytest

from bayplan.batch.live.default_queues import RETRY_INTERVAL_S
from support.builders.batch import make_queue
from support.fakes.http_server import status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_batch import run_live_batch


@async_test
async def test_an_ill_server_is_asked_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """Volcano ends after sixty refusals."""
    async with run_live_batch() as rig:
        rig.fail_next("POST", "/queues", *(status(500, "InternalError"),) * 70)
        rig.fail_next("PATCH", "/queues/default/status", status(500, "InternalError"))
        rig.deliver(make_queue("root"), make_queue("default"))
        await rig.live.handle_pending_events()
        made = [False]

        async def make() -> None:
            await rig.live.prepare()
            made[0] = True

        with caplog.at_level(logging.WARNING):
            task = rig.live.writes.start(make(), "making queues")
            await wait_until(lambda: made[0], tick=lambda: rig.clock.advance(RETRY_INTERVAL_S))
            await task
        names = [each["metadata"]["name"] for each in rig.sent("POST", "/queues")]
        assert names == ["root"] * 71 + ["default"] * 2
        assert [each["status"] for each in rig.sent("PATCH", "/queues/default/status")] == [{"state": "Open"}] * 2
        assert rig.clock.monotonic_s() >= 71 * RETRY_INTERVAL_S
        told = [each for each in caplog.messages if "nothing is scheduled until it is" in each]
        assert len(told) == 2  # the same sentence once a queue, not seventy times
