"""A blocked loop ends the process and is reported; a running or a stopped one is not."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

from bayplan.telemetry.watchdog import EXIT_LOOP_BLOCKED, Watchdog

SLEEPER = """
import asyncio, sys, time
from pathlib import Path
from bayplan.app import build_engine, configured, filled_cache
from bayplan.config.bayplan_settings import load_settings
from bayplan.framework.runtime.plugin_call import plugin_call_of_frame
from bayplan.plugins import default_plugins
from bayplan.telemetry.watchdog import watched_loop
from bayplan.testing import make_node, make_pod

class Sleeps:
    name = "Sleeps"
    def filter(self, cycle, node):
        time.sleep(600)

CONFIG = '''
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{plugins: {multiPoint: {enabled: [{name: Sleeps}]}}}]
'''
registry = default_plugins().with_plugins(Sleeps)
engine = build_engine(configured(CONFIG, registry), registry, filled_cache([make_node("a")]))
settings = load_settings(Path(sys.argv[1]).read_text(), sys.argv[1])

async def main():
    async with watched_loop(settings.watchdog_seconds, plugin_call_of_frame):
        engine.place(make_pod("web"))

asyncio.run(main())
"""


def test_a_plugin_that_never_returns_is_reported_and_ends_the_process(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\nwatchdogSeconds: 1\n")
    done = subprocess.run(
        [sys.executable, "-c", SLEEPER, str(settings)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == EXIT_LOOP_BLOCKED, done.stderr
    lines = iter(done.stderr.splitlines())  # on a slow machine other plugins are reported first
    assert any(line.startswith("plugin Sleeps at filter has blocked the event loop for 1 s") for line in lines), (
        done.stderr
    )
    assert any("in filter" in line for line in lines), "the stack is shown"


def watchdog(ended: list[str], describe: str = "") -> Watchdog:
    def describe_frame(frame: FrameType) -> str:
        assert frame is not None
        return describe

    return Watchdog(30.0, describe_frame, threading.get_ident(), ended.append)


def test_the_process_ends_when_the_limit_is_exceeded() -> None:
    ended: list[str] = []
    thread = watchdog(ended, "plugin Slow at score")
    assert [thread.tick() for _ in range(10)] == [False] * 10
    assert ended == []
    assert thread.tick()
    (sentence,) = ended
    assert sentence.startswith("plugin Slow at score has blocked the event loop for 30 s and no other work was done;")


def test_every_beat_restarts_the_count() -> None:
    ended: list[str] = []
    thread = watchdog(ended)
    for _ in range(50):
        thread.beat()
        assert not thread.tick()
        assert not any(thread.tick() for _ in range(9))
    assert ended == []


def test_code_that_is_no_plugin_is_reported_as_unknown() -> None:
    assert watchdog([]).sentence().startswith("unknown code has blocked the event loop for 30 s")
