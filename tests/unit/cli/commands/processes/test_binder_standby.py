"""Output of a standby binder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bayplan.app.binder import BinderProcess, BinderSettings, binder_lease, binder_process
from bayplan.cli.commands.processes import binder
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.reconciler import DEFINITIONS


@async_test
async def test_a_standby_binder_reports_the_leader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = BinderSettings(lease=binder_lease(leader_elect=True, namespace="default"))
    async with run_embedded_cluster(tmp_path) as serving, serving.client() as client:
        await client.create(DEFINITIONS, bind_request_definition())
        async with binder_process(settings, serving.target(), identity="the first") as first:
            process_future: asyncio.Future[BinderProcess] = asyncio.get_running_loop().create_future()
            tasks = [asyncio.ensure_future(first.run())]
            try:
                await first.ready.wait()
                second = binder._run_until_stopped(
                    settings, serving.target(), BayplanSettings(), address="", started=process_future
                )
                tasks.append(asyncio.ensure_future(second))
                async with asyncio.timeout(20):
                    while not (output := capsys.readouterr().out):
                        await asyncio.sleep(0.02)
                assert output == "the binder waits for the lease default/bayplan-binder, which the first holds\n"
                assert not (await process_future).ready.is_set()
            finally:
                for task in reversed(tasks):
                    task.cancel()
                await asyncio.wait(tasks)
