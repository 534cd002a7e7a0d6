"""A loop that is held: who is named, and that the process ends; and a loop that turns, or was only stopped."""

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


def test_a_plugin_that_never_returns_is_named_and_the_process_ends(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\nwatchdogSeconds: 1\n")
    done = subprocess.run(
        [sys.executable, "-c", SLEEPER, str(settings)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == EXIT_LOOP_BLOCKED, done.stderr
    lines = iter(done.stderr.splitlines())  # where the machine is slow it is told of other plugins before
    assert any(line.startswith("plugin Sleeps at filter has blocked the event loop for 1 s") for line in lines), done.stderr
    assert any("in filter" in line for line in lines), "the stack is shown"


def watchdog(ended: list[str], describe: str = "") -> Watchdog:
    def described(frame: FrameType) -> str:
        assert frame is not None
        return describe

    return Watchdog(30.0, described, threading.get_ident(), ended.append)


def test_it_barks_when_the_limit_is_over_and_not_before() -> None:
    ended: list[str] = []
    dog = watchdog(ended, "plugin Slow at score")
    assert [dog.tick() for _ in range(10)] == [False] * 10
    assert ended == []
    assert dog.tick()
    (sentence,) = ended
    assert sentence.startswith("plugin Slow at score has blocked the event loop for 30 s and no other work was done;")


def test_every_turn_starts_the_count_anew() -> None:
    ended: list[str] = []
    dog = watchdog(ended)
    for _ in range(50):
        dog.beat()
        assert not dog.tick()
        assert not any(dog.tick() for _ in range(9))
    assert ended == []


def test_a_holder_that_is_no_plugin_is_something() -> None:
    assert watchdog([]).sentence().startswith("unknown code has blocked the event loop for 30 s")
