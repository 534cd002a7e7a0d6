"""Plugins whose files change while pods are placed: what is swapped, who is woken, and what a broken file does."""

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

REFUSES = """
from bayplan.framework.api.status import unschedulable
class Mine:
    name = "Mine"
    cured_by = ()
    closed = []
    def filter(self, cycle, node):
        return unschedulable("not yet")
    def close(self):
        self.closed.append(self)
"""
PERMITS = REFUSES.replace('return unschedulable("not yet")', "return None")
OTHER = 'class Other:\n    name = "Other"\n    def filter(self, cycle, node):\n        return None\n'
WAITS = """
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


class Writer:
    """Stands where the API server's client would."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}

    async def bind(self, namespace: str, name: str, node_name: str, **_: Any) -> None:  # noqa: ARG002
        self.bound[name] = node_name

    async def patch(self, *_: Any, **__: Any) -> None: ...


class Silence:
    def record(self, *_: Any, **__: Any) -> None: ...


class Running:
    """A scheduler at work on plugins of a folder."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.clock, self.writer = folder, ManualClock(), Writer()
        self.write("mine.py", source)
        self.write("other.py", OTHER)
        plugins = plugin_source(CONFIG, [folder])
        configuration, registry = plugins.load()
        self.live: LiveScheduler = new_live_scheduler(
            configuration,
            registry,
            Cache(),
            cast(Client, self.writer),
            Silence(),
            clock=self.clock,
            chance=random.Random(0),
        )
        self.reloading = PluginReloader(self.live, plugins, self.clock)
        self.reloading.check_once()

    def write(self, name: str, source: str) -> None:
        path = self.folder / name
        path.write_text(source)
        path.chmod(0o644)

    def plugin(self, name: str = "Mine") -> Any:
        return self.live.engine.framework("default-scheduler").profile.instances[name]

    async def settled(self) -> None:
        await wait_until(lambda: self.live.is_idle)

    def parked(self) -> int:
        return self.live.queue.counts()["unschedulable"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


async def running(one: Running, work: Callable[[], Any]) -> None:
    """Do something while the scheduler runs."""
    task = asyncio.ensure_future(one.live.run())
    try:
        await work()
    finally:
        task.cancel()
        await asyncio.wait([task])


def appear(one: Running, *pods: Pod) -> None:
    one.live.handle_event(None, make_node("a"))
    for pod in pods:
        one.live.handle_event(None, pod)


def test_a_changed_plugin_is_swapped_and_wakes_whom_it_had_rejected(folder: Path) -> None:
    one = Running(folder, REFUSES)
    before, other = one.plugin(), one.plugin("Other")

    async def work() -> None:
        appear(one, make_pod("web"))
        await wait_until(lambda: one.parked() == 1)
        one.write("mine.py", PERMITS)
        one.reloading.check_once()
        one.clock.advance(30.0)  # its backoff is over
        await wait_until(lambda: one.writer.bound == {"web": "a"})
        assert one.plugin() is not before
        assert one.plugin("Other") is other, "what has not changed is kept"
        assert before.closed == [before]

    async_test(lambda: running(one, work))()


def test_pods_under_way_keep_the_old_plugin(folder: Path) -> None:
    one = Running(folder, WAITS)
    before = one.plugin()

    async def work() -> None:
        appear(one, make_pod("web"))
        await wait_until(lambda: list(one.live.engine.waiting_pods.all()))
        one.write("mine.py", PERMITS)
        one.reloading.check_once()
        await wait_until(lambda: one.plugin() is not before)
        assert before.closed == []
        (waiting,) = one.live.engine.waiting_pods.all()
        waiting.allow("Mine")
        await one.settled()
        assert one.writer.bound == {"web": "a"}
        assert before.posts == ["web"], "the one that held it back sees it bound"
        assert before.closed == [before]

    async_test(lambda: running(one, work))()


def test_a_pod_that_the_old_plugin_rejects_after_the_swap_is_tried_with_the_new_one(folder: Path) -> None:
    one = Running(folder, WAITS.replace("closed = []", "closed = []\n    cured_by = ()"))
    before = one.plugin()

    async def work() -> None:
        appear(one, make_pod("web"))
        await wait_until(lambda: list(one.live.engine.waiting_pods.all()))
        one.write("mine.py", PERMITS)
        one.reloading.check_once()
        await wait_until(lambda: one.plugin() is not before)
        (waiting,) = one.live.engine.waiting_pods.all()
        waiting.reject("Mine", "too late")
        await wait_until(lambda: one.writer.bound == {"web": "a"})
        await one.settled()
        assert before.posts == [], "the new one saw it bound"
        assert before.closed == [before]

    async_test(lambda: running(one, work))()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("class Mine(:\n", "not valid Python", id="no-python"),
        pytest.param("1 / 0\n", "ZeroDivisionError", id="breaks-when-loaded"),
        pytest.param(PERMITS.replace("def close", "def __init__(self, x): ...\n    def close"), "Mine", id="not-built"),
        pytest.param(PERMITS.replace('"Mine"', '"Yours"'), '"Mine" does not exist', id="another-name"),
    ],
)
def test_a_broken_file_changes_nothing_and_is_told_once(
    folder: Path, source: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = Running(folder, REFUSES)
    before = one.plugin()
    one.write("mine.py", source)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            one.reloading.check_once()
    (logged,) = [record for record in caplog.records if record.name.endswith("plugin_reloader")]
    assert logged.levelname == "ERROR"
    assert words in one.reloading.fault
    assert words in logged.getMessage()
    assert one.live.is_idle
    assert one.plugin() is before
    one.write("mine.py", PERMITS)
    one.reloading.check_once()
    assert one.reloading.fault == ""
    assert not one.live.is_idle, "there is something to install"


def test_files_that_others_may_write_are_not_loaded_again(folder: Path) -> None:
    one = Running(folder, REFUSES)
    one.write("mine.py", PERMITS)
    (folder / "mine.py").chmod(0o666)
    one.reloading.check_once()
    assert "is writable by group or other users" in one.reloading.fault
    (folder / "mine.py").chmod(0o644)  # what the message asks for, and nothing else
    one.reloading.check_once()
    assert one.reloading.fault == ""
    assert not one.live.is_idle, "there is something to install"


@pytest.mark.parametrize("mended", [0o755, 0o700])
def test_a_folder_that_others_may_write_is_taken_when_that_is_mended(folder: Path, mended: int) -> None:
    one = Running(folder, REFUSES)
    folder.chmod(0o777)
    one.write("mine.py", PERMITS)
    one.reloading.check_once()
    assert "is writable by group or other users" in one.reloading.fault
    folder.chmod(mended)
    one.reloading.check_once()
    assert one.reloading.fault == ""


def test_a_changed_neighbour_counts_as_a_change(folder: Path) -> None:
    one = Running(folder, REFUSES)
    source = PERMITS.replace("return None", "return helper_of_mine.answer()")
    one.write("helper_of_mine.py".replace("helper", "_helper"), "def answer():\n    return None\n")
    one.write("mine.py", "import _helper_of_mine as helper_of_mine\n" + source)

    async def work() -> None:
        one.reloading.check_once()
        await one.settled()
        before = one.plugin()
        one.write("_helper_of_mine.py", "def answer():\n    return None  # as before\n")
        one.reloading.check_once()
        await one.settled()
        assert one.plugin() is not before

    async_test(lambda: running(one, work))()


def test_files_of_one_name_in_two_folders_are_two_files(folder: Path) -> None:
    """Neither may be taken for a new version of the other: that would make plugins anew that have not changed."""
    folders = [folder / "a", folder / "b"]
    for place, source in zip(folders, (PERMITS, OTHER), strict=True):
        place.mkdir(mode=0o755)
        (place / "mine.py").write_text(source)
    first, second = plugin_source(CONFIG, folders).load()[1], plugin_source(CONFIG, folders).load()[1]
    assert {"Mine", "Other"} <= {entry.name for entry in first}
    assert all(second.get(entry.name) == entry for entry in first)


def test_looking_again_costs_nothing_while_nothing_changed(folder: Path) -> None:
    one = Running(folder, REFUSES)
    calls: list[str] = []
    one.reloading.source = replace(one.reloading.source, registry=lambda: cast(Registry, calls.append("loaded")))
    one.reloading.check_once()
    assert calls == []


@pytest.fixture
def config_map(tmp_path: Path) -> Path:
    """A folder as the kubelet mounts a ConfigMap: links to links to files."""
    (tmp_path / "..first").mkdir()
    (tmp_path / "..first" / "mine.py").write_text(REFUSES)
    (tmp_path / "..data").symlink_to("..first")
    (tmp_path / "mine.py").symlink_to("..data/mine.py")
    return tmp_path


def test_a_swap_of_a_config_map_is_seen(config_map: Path) -> None:
    before = file_versions([config_map])
    assert file_versions([config_map]) == before
    (config_map / "..second").mkdir()
    (config_map / "..second" / "mine.py").write_text(REFUSES)
    seen = (config_map / "..first" / "mine.py").stat()
    os.utime(config_map / "..second" / "mine.py", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    (config_map / "..data_tmp").symlink_to("..second")
    (config_map / "..data_tmp").replace(config_map / "..data")
    assert file_versions([config_map]) != before


def test_the_clock_says_when_to_look(folder: Path) -> None:
    one = Running(folder, REFUSES)

    async def work() -> None:
        task = asyncio.ensure_future(one.reloading.run())
        await wait_until(lambda: one.clock.sleepers)
        before = one.plugin()
        one.write("mine.py", PERMITS)
        await asyncio.sleep(0)
        assert one.plugin() is before
        one.clock.advance(one.reloading.every_s)
        await wait_until(lambda: one.plugin() is not before)
        task.cancel()

    async_test(lambda: running(one, work))()
