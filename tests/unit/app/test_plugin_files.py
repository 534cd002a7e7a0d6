"""A scheduler process with a plugin source checks the plugin files while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bayplan.app import configured, known_plugins, scheduler_process
from bayplan.scheduler.live.plugin_reloader import PluginSource
from support.harness.async_tests import async_test
from support.harness.controllers import NO_SERVING, SHORT_BACKOFF_CONFIG
from support.harness.deadlines import DEADLINE_S
from support.harness.embedded_cluster import run_embedded_cluster


@async_test
async def test_a_process_checks_its_plugin_files(tmp_path: Path) -> None:
    registry, checked = known_plugins(), asyncio.Event()
    configuration = configured(SHORT_BACKOFF_CONFIG, registry)
    source = PluginSource(checked.set, lambda: registry, lambda _: configuration)
    async with (
        run_embedded_cluster(tmp_path) as cluster,
        scheduler_process(configuration, registry, cluster.target(), options=NO_SERVING, plugins=source) as process,
    ):
        running = asyncio.create_task(process.run())
        try:
            await asyncio.wait_for(checked.wait(), DEADLINE_S)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
