"""The leader creates the queues `root` and `default`, however often the API server refuses."""

from __future__ import annotations

import logging

import pytest

from bayplan.batch.live.default_queues import RETRY_INTERVAL_S
from support.builders.batch import make_queue
from support.fakes.http_server import status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_batch import run_live_batch


@async_test
async def test_creation_is_retried_while_the_server_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """Volcano exits after sixty refusals."""
    async with run_live_batch() as harness:
        harness.fail_next("POST", "/queues", *(status(500, "InternalError"),) * 70)
        harness.fail_next("PATCH", "/queues/default/status", status(500, "InternalError"))
        harness.deliver(make_queue("root"), make_queue("default"))
        await harness.live.handle_pending_events()
        created = [False]

        async def create_queues() -> None:
            await harness.live.prepare()
            created[0] = True

        with caplog.at_level(logging.WARNING):
            task = harness.live.writes.start(create_queues(), "making queues")
            await wait_until(lambda: created[0], tick=lambda: harness.clock.advance(RETRY_INTERVAL_S))
            await task
        names = [each["metadata"]["name"] for each in harness.sent("POST", "/queues")]
        assert names == ["root"] * 71 + ["default"] * 2
        assert [each["status"] for each in harness.sent("PATCH", "/queues/default/status")] == [{"state": "Open"}] * 2
        assert harness.clock.monotonic_s() >= 71 * RETRY_INTERVAL_S
        warnings = [each for each in caplog.messages if "nothing is scheduled until it is" in each]
        assert len(warnings) == 2  # one warning per queue, not seventy
