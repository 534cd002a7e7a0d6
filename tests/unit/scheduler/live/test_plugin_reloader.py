"""Plugin reloader: replaced plugins, pods that are woken, and broken files."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bayplan.app import plugin_source
from bayplan.cache import Cache
from bayplan.client import Client
from bayplan.clock import ManualClock
from bayplan.framework.runtime.plugin_discovery import file_versions
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.scheduler.live.plugin_reloader import PluginReloader
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.scheduler.live.scheduler_factory import new_live_scheduler
from support.builders.framework import make_node, make_pod
from support.harness.async_tests import async_test, wait_until

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
CONFIG = HEAD + "profiles: [{plugins: {multiPoint: {enabled: [{name: Mine}, {name: Other}]}}}]\n"

REJECTING = """
from bayplan.framework.api.status import unschedulable
class Mine:
    name = "Mine"
    events_to_register = ()
    closed = []
    def filter(self, cycle, node):
        return unschedulable("not yet")
    def close(self):
        self.closed.append(self)
"""
ACCEPTING = REJECTING.replace('return unschedulable("not yet")', "return None")
OTHER = 'class Other:\n    name = "Other"\n    def filter(self, cycle, node):\n        return None\n'
WAITING = """
from bayplan.framework.api.plugin import PermitWait
class Mine:
    name = "Mine"
    closed = []
    posts = []
    def permit(self, cycle, node_name):
        return PermitWait(60.0)
    async def post_bind(self, cycle, node_name):
        self.posts.append(cycle.pod.name)
    def close(self):
        self.closed.append(self)
"""


class FakeClient:
    """Fake API client that records bindings."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}

    async def bind(self, namespace: str, name: str, node_name: str, **_: Any) -> None:  # noqa: ARG002
        self.bound[name] = node_name

    async def patch(self, *_: Any, **__: Any) -> None: ...


class NoEvents:
    def record(self, *_: Any, **__: Any) -> None: ...


class ReloaderHarness:
    """A scheduler with plugins of a folder, and their reloader."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.clock, self.writer = folder, ManualClock(), FakeClient()
        self.write("mine.py", source)
        self.write("other.py", OTHER)
        plugins = plugin_source(CONFIG, [folder])
        configuration, registry = plugins.load()
        self.live: LiveScheduler = new_live_scheduler(
            configuration,
            registry,
            Cache(),
            cast(Client, self.writer),
            NoEvents(),
            clock=self.clock,
            chance=random.Random(0),
        )
        self.reloader = PluginReloader(self.live, plugins, self.clock)
        self.reloader.check_once()

    def write(self, name: str, source: str) -> None:
        path = self.folder / name
        path.write_text(source)
        path.chmod(0o644)

    def plugin(self, name: str = "Mine") -> Any:
        return self.live.engine.framework("default-scheduler").profile.instances[name]

    async def wait_until_idle(self) -> None:
        await wait_until(lambda: self.live.is_idle)

    def unschedulable_pods(self) -> int:
        return self.live.queue.counts()["unschedulable"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


async def run_with(harness: ReloaderHarness, work: Callable[[], Any]) -> None:
    """Run a function while the scheduler runs."""
    task = asyncio.ensure_future(harness.live.run())
    try:
        await work()
    finally:
        task.cancel()
        await asyncio.wait([task])


def deliver(harness: ReloaderHarness, *pods: Pod) -> None:
    harness.live.handle_event(None, make_node("a"))
    for pod in pods:
        harness.live.handle_event(None, pod)


def test_a_changed_plugin_is_replaced_and_its_rejected_pods_are_woken(folder: Path) -> None:
    harness = ReloaderHarness(folder, REJECTING)
    before, other = harness.plugin(), harness.plugin("Other")

    async def work() -> None:
        deliver(harness, make_pod("web"))
        await wait_until(lambda: harness.unschedulable_pods() == 1)
        harness.write("mine.py", ACCEPTING)
        harness.reloader.check_once()
        harness.clock.advance(30.0)  # its backoff is over
        await wait_until(lambda: harness.writer.bound == {"web": "a"})
        assert harness.plugin() is not before
        assert harness.plugin("Other") is other, "an unchanged plugin keeps its instance"
        assert before.closed == [before]

    async_test(lambda: run_with(harness, work))()


def test_assumed_pods_keep_the_old_plugin(folder: Path) -> None:
    harness = ReloaderHarness(folder, WAITING)
    before = harness.plugin()

    async def work() -> None:
        deliver(harness, make_pod("web"))
        await wait_until(lambda: list(harness.live.engine.waiting_pods.all()))
        harness.write("mine.py", ACCEPTING)
        harness.reloader.check_once()
        await wait_until(lambda: harness.plugin() is not before)
        assert before.closed == []
        (waiting,) = harness.live.engine.waiting_pods.all()
        waiting.allow("Mine")
        await harness.wait_until_idle()
        assert harness.writer.bound == {"web": "a"}
        assert before.posts == ["web"], "the plugin that delayed the pod runs PostBind"
        assert before.closed == [before]

    async_test(lambda: run_with(harness, work))()


def test_a_pod_that_the_old_plugin_rejects_after_the_reload_is_tried_with_the_new_one(folder: Path) -> None:
    harness = ReloaderHarness(folder, WAITING.replace("closed = []", "closed = []\n    events_to_register = ()"))
    before = harness.plugin()

    async def work() -> None:
        deliver(harness, make_pod("web"))
        await wait_until(lambda: list(harness.live.engine.waiting_pods.all()))
        harness.write("mine.py", ACCEPTING)
        harness.reloader.check_once()
        await wait_until(lambda: harness.plugin() is not before)
        (waiting,) = harness.live.engine.waiting_pods.all()
        waiting.reject("Mine", "too late")
        await wait_until(lambda: harness.writer.bound == {"web": "a"})
        await harness.wait_until_idle()
        assert before.posts == [], "the new plugin ran PostBind"
        assert before.closed == [before]

    async_test(lambda: run_with(harness, work))()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("class Mine(:\n", "not valid Python", id="no-python"),
        pytest.param("1 / 0\n", "ZeroDivisionError", id="breaks-when-loaded"),
        pytest.param(
            ACCEPTING.replace("def close", "def __init__(self, x): ...\n    def close"), "Mine", id="not-built"
        ),
        pytest.param(ACCEPTING.replace('"Mine"', '"Yours"'), '"Mine" does not exist', id="another-name"),
    ],
)
def test_a_broken_file_changes_nothing_and_is_logged_once(
    folder: Path, source: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness = ReloaderHarness(folder, REJECTING)
    before = harness.plugin()
    harness.write("mine.py", source)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            harness.reloader.check_once()
    (logged,) = [record for record in caplog.records if record.name.endswith("plugin_reloader")]
    assert logged.levelname == "ERROR"
    assert words in harness.reloader.fault
    assert words in logged.getMessage()
    assert harness.live.is_idle
    assert harness.plugin() is before
    harness.write("mine.py", ACCEPTING)
    harness.reloader.check_once()
    assert harness.reloader.fault == ""
    assert not harness.live.is_idle, "there is something to install"


def test_files_that_other_users_may_write_are_not_reloaded(folder: Path) -> None:
    harness = ReloaderHarness(folder, REJECTING)
    harness.write("mine.py", ACCEPTING)
    (folder / "mine.py").chmod(0o666)
    harness.reloader.check_once()
    assert "is writable by group or other users" in harness.reloader.fault
    (folder / "mine.py").chmod(0o644)  # the change that the message demands
    harness.reloader.check_once()
    assert harness.reloader.fault == ""
    assert not harness.live.is_idle, "there is something to install"


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_folder_that_other_users_may_write_is_loaded_after_chmod(folder: Path, mode: int) -> None:
    harness = ReloaderHarness(folder, REJECTING)
    folder.chmod(0o777)
    harness.write("mine.py", ACCEPTING)
    harness.reloader.check_once()
    assert "is writable by group or other users" in harness.reloader.fault
    folder.chmod(mode)
    harness.reloader.check_once()
    assert harness.reloader.fault == ""


def test_a_changed_neighbour_counts_as_a_change(folder: Path) -> None:
    harness = ReloaderHarness(folder, REJECTING)
    source = ACCEPTING.replace("return None", "return helper_of_mine.answer()")
    harness.write("helper_of_mine.py".replace("helper", "_helper"), "def answer():\n    return None\n")
    harness.write("mine.py", "import _helper_of_mine as helper_of_mine\n" + source)

    async def work() -> None:
        harness.reloader.check_once()
        await harness.wait_until_idle()
        before = harness.plugin()
        harness.write("_helper_of_mine.py", "def answer():\n    return None  # as before\n")
        harness.reloader.check_once()
        await harness.wait_until_idle()
        assert harness.plugin() is not before

    async_test(lambda: run_with(harness, work))()


def test_files_with_the_same_name_in_two_folders_are_two_files(folder: Path) -> None:
    """Neither is a new version of the other: unchanged plugins must not be built again."""
    folders = [folder / "a", folder / "b"]
    for place, source in zip(folders, (ACCEPTING, OTHER), strict=True):
        place.mkdir(mode=0o755)
        (place / "mine.py").write_text(source)
    first, second = plugin_source(CONFIG, folders).load()[1], plugin_source(CONFIG, folders).load()[1]
    assert {"Mine", "Other"} <= {entry.name for entry in first}
    assert all(second.get(entry.name) == entry for entry in first)


def test_a_check_loads_nothing_while_no_file_changed(folder: Path) -> None:
    harness = ReloaderHarness(folder, REJECTING)
    calls: list[str] = []
    harness.reloader.source = replace(harness.reloader.source, registry=lambda: cast(Registry, calls.append("loaded")))
    harness.reloader.check_once()
    assert calls == []


@pytest.fixture
def config_map(tmp_path: Path) -> Path:
    """A folder as the kubelet mounts a ConfigMap: links to links to files."""
    (tmp_path / "..first").mkdir()
    (tmp_path / "..first" / "mine.py").write_text(REJECTING)
    (tmp_path / "..data").symlink_to("..first")
    (tmp_path / "mine.py").symlink_to("..data/mine.py")
    return tmp_path


def test_a_changed_config_map_is_reloaded(config_map: Path) -> None:
    before = file_versions([config_map])
    assert file_versions([config_map]) == before
    (config_map / "..second").mkdir()
    (config_map / "..second" / "mine.py").write_text(REJECTING)
    seen = (config_map / "..first" / "mine.py").stat()
    os.utime(config_map / "..second" / "mine.py", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    (config_map / "..data_tmp").symlink_to("..second")
    (config_map / "..data_tmp").replace(config_map / "..data")
    assert file_versions([config_map]) != before


def test_checks_follow_the_clock(folder: Path) -> None:
    harness = ReloaderHarness(folder, REJECTING)

    async def work() -> None:
        task = asyncio.ensure_future(harness.reloader.run())
        await wait_until(lambda: harness.clock.sleepers)
        before = harness.plugin()
        harness.write("mine.py", ACCEPTING)
        await asyncio.sleep(0)
        assert harness.plugin() is before
        harness.clock.advance(harness.reloader.every_s)
        await wait_until(lambda: harness.plugin() is not before)
        task.cancel()

    async_test(lambda: run_with(harness, work))()
