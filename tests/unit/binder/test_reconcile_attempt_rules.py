"""Rules of an attempt, each by name: what is cleaned up, who is not bound, what is told and how long one waits."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.informer_cache import InformerCache
from bayplan.binder.observer import NoBinderObserver
from bayplan.binder.plugin import RejectBind
from bayplan.binder.status_updater import StatusUpdater, truncate_reason
from bayplan.cache import Cache
from bayplan.errors import BayplanError, LeaseLost
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec, BindRequestStatus
from bayplan.objects.meta import ObjectMeta
from support.harness.reconciler import (
    NODES,
    PODS,
    REQUESTS,
    ReconcilerHarness,
    RecordingPlugin,
    run_with_reconciler,
)

HELD = {"finalizers": ["example.com/held"]}


def test_what_was_left_for_a_pod_that_is_gone_is_cleaned_up(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(None)
        assert await rig.sync() is None
        assert (await rig.status())["reason"] == "the pod is gone"

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting rollback None"]


def test_a_terminating_pod_is_not_bound_and_what_was_left_for_it_is_cleaned_up(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(**HELD))
        await rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
        assert await rig.sync() is None
        status = await rig.status()
        assert (status["reason"], status["failedAttempts"]) == ("the pod is gone: it is being deleted", 3)
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting rollback None"]


def test_a_node_that_is_being_deleted_gets_no_pod(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.patch(NODES, "n1", {"metadata": HELD})
        await rig.client.delete(NODES, name="n1")
        await rig.deliver_event(Node, "n1")
        await rig.request(await rig.pod())
        assert await rig.sync() is not None
        assert (await rig.status())["reason"] == 'node "n1" is being deleted'
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting rollback None"]


class Binding(RecordingPlugin):
    """Somebody else binds the pod while it is prepared; then fails, if told to."""

    rig: ReconcilerHarness

    def __init__(self, node: str, *faults: Exception) -> None:
        super().__init__("noting", *faults)
        self._node = node

    async def pre_bind(self, *args: Any) -> None:
        uid = (await self.rig.get(PODS, "web"))["metadata"]["uid"]
        await self.rig.client.bind("default", "web", self._node, uid=uid)
        await super().pre_bind(*args)


@pytest.mark.parametrize("faults", [(), (BayplanError("no"),), (RejectBind("never"),)], ids=["bound", "no", "never"])
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_only_a_pod_that_is_on_another_node_is_rolled_back(
    tmp_path: Path, node: str, faults: tuple[Exception, ...]
) -> None:
    plugin = Binding(node, *faults)

    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        await rig.request(await rig.pod())
        assert await rig.sync() is None
        status = await rig.status()
        elsewhere = ("Failed", 'the pod is bound elsewhere: to node "n2"')
        assert (status["phase"], status["reason"]) == (("Succeeded", "") if node == "n1" else elsewhere)

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting post_bind" if node == "n1" else "noting rollback 1"]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_what_a_crash_left_for_a_pod_that_is_on_another_node_is_cleaned_up(tmp_path: Path, node: str) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod()
        await rig.request(pod)
        await rig.client.bind("default", "web", node, uid=pod["metadata"]["uid"])
        assert await rig.sync() is None

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting post_bind" if node == "n1" else "noting rollback None"]


def test_what_a_crash_left_for_a_node_that_is_gone_is_cleaned_up(tmp_path: Path) -> None:
    named: list[str] = []

    class Naming(RecordingPlugin):
        async def rollback(self, ctx: Any, pod: Any, node: Any, *args: Any) -> None:
            named.append(node.name)
            await super().rollback(ctx, pod, node, *args)

    plugin = Naming()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), "n9")
        assert await rig.sync() is not None

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting rollback None"]
    assert named == ["n9"]


def test_a_pod_whose_server_does_not_answer_after_a_failure_is_taken_for_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = RecordingPlugin("moody", BayplanError("no"))

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        await rig.deliver_event(Pod, "web")

        async def silent(*_: Any) -> None:
            raise BayplanError("nobody answers")

        monkeypatch.setattr(rig.view, "read_pod", silent)
        assert await rig.sync() is not None
        assert (await rig.status())["reason"] == 'plugin "moody" at pre_bind: no'

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1"]


def test_nobody_guesses_where_a_pod_is_that_the_server_has_refused_to_bind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Binding("n2")

    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        await rig.request(await rig.pod())
        await rig.deliver_event(Pod, "web")

        async def silent(*_: Any) -> None:
            raise BayplanError("nobody answers")

        monkeypatch.setattr(rig.view, "read_pod", silent)
        with pytest.raises(BayplanError, match="nobody answers"):
            await rig.sync()
        assert await rig.status() == {}
        assert plugin.calls == ["noting pre_bind"]

    run_with_reconciler(tmp_path, test, plugin)


@pytest.mark.parametrize("letter", ["x", "é", "\udcff"])
def test_a_reason_is_cut_at_a_kibibyte(tmp_path: Path, letter: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        await rig.sync()
        reason = (await rig.status())["reason"]
        assert 1020 <= len(reason.encode()) <= 1024
        assert reason.startswith('plugin "wordy" at pre_bind: ')
        assert reason.endswith(" ...")

    run_with_reconciler(tmp_path, test, RecordingPlugin("wordy", BayplanError(letter * 5000)))


def test_a_short_reason_is_told_as_it_is() -> None:
    assert truncate_reason("é" * 512) == "é" * 512
    assert len(truncate_reason("é" * 513).encode()) <= 1024


def pauses_s(failures: int, count: int = 50) -> list[float]:
    nobody: Any = None
    reports = StatusUpdater(
        nobody, REQUESTS, nobody, nobody, clock=nobody, chance=random.Random(0), observer=NoBinderObserver()
    )
    return [reports.retry_delay_s(failures) for _ in range(count)]


@pytest.mark.parametrize(
    ("failures", "least_s"), [(0, 1.0), (1, 2.0), (5, 32.0), (6, 60.0), (7, 60.0), (30, 60.0), (10**6, 60.0)]
)
def test_pauses_double_up_to_a_minute(failures: int, least_s: float) -> None:
    assert all(least_s <= each <= 1.1 * least_s for each in pauses_s(failures))


def test_pauses_differ_so_that_what_failed_together_is_not_tried_together() -> None:
    assert len(set(pauses_s(3))) > 40


class Losing(RecordingPlugin):
    """Loses the lease at a stage, as any write of a plugin may."""

    def __init__(self, stage: str, *faults: Exception) -> None:
        super().__init__("losing", *faults)
        self._stage = stage

    async def post_bind(self, *_: Any) -> None:
        if self._stage == "post_bind":
            raise LeaseLost("somebody else leads")

    async def rollback(self, *args: Any) -> None:
        await super().rollback(*args)
        if self._stage == "rollback":
            raise LeaseLost("somebody else leads")


@pytest.mark.parametrize(
    ("plugin", "calls"),
    [
        pytest.param(Losing("", LeaseLost("somebody else leads")), ["losing pre_bind"], id="pre_bind"),
        pytest.param(Losing("post_bind"), ["losing pre_bind"], id="post_bind"),
        pytest.param(Losing("rollback", BayplanError("no")), ["losing pre_bind", "losing rollback 1"], id="rollback"),
    ],
)
def test_who_has_lost_the_lease_writes_no_more_and_fails_no_attempt(
    tmp_path: Path, plugin: Losing, calls: list[str]
) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        with pytest.raises(LeaseLost):
            await rig.sync()
        assert await rig.status() == {}
        assert (rig.reasons, rig.attempts) == ([], [])

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == calls


def test_a_binder_plugin_sees_the_annotations_in_rollback(tmp_path: Path) -> None:
    plugin = RecordingPlugin("moody", BayplanError("no"))

    async def work(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), annotations={"moody.kai.scheduler/x": "1"})
        await rig.sync()

    run_with_reconciler(tmp_path, work, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1"]
    assert [each["moody.kai.scheduler/x"] for each in plugin.seen] == ["1", "1"]


def test_the_pod_is_told_which_numa_zones_were_predicted(tmp_path: Path) -> None:
    zones = [{"zone": "node-0", "amount": {"cpu": "2"}}]

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), predictedNUMAZones=zones)
        assert await rig.sync() is None
        told = (await rig.get(PODS, "web"))["metadata"]["annotations"]
        assert json.loads(told["kai.scheduler/predicted-numa-zones"]) == zones

    run_with_reconciler(tmp_path, test)


def test_a_pod_that_took_the_name_after_an_attempt_is_not_told_of_it(tmp_path: Path) -> None:
    class Replacing(RecordingPlugin):
        rig: ReconcilerHarness

        async def rollback(self, *args: Any) -> None:
            await super().rollback(*args)
            await self.rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
            await self.rig.pod()

    plugin = Replacing("replacing", BayplanError("no"))

    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        pod = await rig.pod()
        await rig.request(None, podUID=pod["metadata"]["uid"])
        assert await rig.sync() is not None
        told = (await rig.get(PODS, "web")).get("status", {}).get("conditions", [])
        assert [each for each in told if each["type"] == "PodBound"] == []
        assert rig.reasons == ["BindingRetry"]

    run_with_reconciler(tmp_path, test, plugin)


def test_a_request_that_took_the_name_after_an_attempt_has_no_status_of_it(tmp_path: Path) -> None:
    class Replacing(RecordingPlugin):
        rig: ReconcilerHarness

        async def post_bind(self, *args: Any) -> None:
            await super().post_bind(*args)
            await self.rig.client.delete(REQUESTS, name="web", namespace="default")
            await self.rig.request(await self.rig.get(PODS, "web"), "n2")

    plugin = Replacing()

    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        await rig.request(await rig.pod())
        assert await rig.sync() is None
        assert rig.reasons == ["Bound"]
        assert await rig.status() == {}
        assert await rig.sync() is None
        assert (await rig.status())["reason"] == 'the pod is bound elsewhere: to node "n1"'

    run_with_reconciler(tmp_path, test, plugin)


def test_a_request_that_has_succeeded_is_done(tmp_path: Path) -> None:
    """Whatever asks for it again, a restart for one: no plugin is called once more."""
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        for _ in range(2):
            assert await rig.sync() is None
        assert rig.reasons == ["Bound"]
        assert rig.attempts == ["bound"]

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting post_bind"]


# what is known


def request_of(uid: str, version: int, phase: str = "") -> BindRequest:
    return BindRequest(
        metadata=ObjectMeta(name="web", namespace="default", uid=uid, resource_version=str(version)),
        spec=BindRequestSpec(pod_name="web", selected_node="n1", backoff_limit=1),
        status=BindRequestStatus(phase, "", 1 if phase == "Failed" else 0),
    )


def a_view() -> InformerCache:
    nobody: Any = None
    return InformerCache(nobody, Cache())


def test_an_older_version_of_a_request_does_not_overwrite_a_newer_one() -> None:
    view, written = a_view(), request_of("u", 10, "Failed")
    view.handle_event(None, request_of("u", 8))
    view.observe(written)
    view.handle_event(None, request_of("u", 9))  # the watch lags behind our own write
    assert view.requests["default", "web"] is written
    newer = request_of("u", 11)
    view.handle_event(written, newer)
    assert view.requests["default", "web"] is newer


def test_an_answer_that_comes_after_the_request_has_gone_brings_nothing_back() -> None:
    view, first, second = a_view(), request_of("first", 1), request_of("second", 3)
    view.handle_event(None, first)
    view.handle_event(first, None)
    view.observe(request_of("first", 2, "Failed"))
    assert view.requests == {}
    view.handle_event(None, second)
    view.observe(request_of("first", 2, "Failed"))
    assert view.requests["default", "web"] is second


def test_another_request_of_the_name_is_not_the_one_that_is_wanted() -> None:
    view, first, second = a_view(), request_of("first", 1), request_of("second", 2)
    view.handle_event(None, first)
    assert view.is_current(first)
    view.handle_event(first, second)
    assert not view.is_current(first)
    assert view.is_current(second)
    view.handle_event(first, None)  # told late: it is not this one that went
    assert view.is_current(second)
