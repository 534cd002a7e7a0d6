"""Rules of an attempt: cleanup, pods that are not bound, reports and retry delays."""

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
from bayplan.errors import BayplanError, LeaseLost
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec, BindRequestStatus
from bayplan.objects.meta import ObjectMeta
from support.harness.reconciler import NODES, PODS, REQUESTS, ReconcilerHarness, RecordingPlugin, run_with_reconciler

HELD = {"finalizers": ["example.com/held"]}


def test_a_deleted_pod_is_cleaned_up(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(None)
        assert await harness.sync() is None
        assert (await harness.status())["reason"] == "the pod is gone"

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting rollback None"]


def test_a_terminating_pod_is_not_bound_and_is_cleaned_up(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(**HELD))
        await harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
        assert await harness.sync() is None
        status = await harness.status()
        assert (status["reason"], status["failedAttempts"]) == ("the pod is gone: it is being deleted", 3)
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting rollback None"]


def test_a_node_that_is_being_deleted_gets_no_pod(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.patch(NODES, "n1", {"metadata": HELD})
        await harness.client.delete(NODES, name="n1")
        await harness.deliver_event(Node, "n1")
        await harness.request(await harness.pod())
        assert await harness.sync() is not None
        assert (await harness.status())["reason"] == 'node "n1" is being deleted'
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting rollback None"]


class Binding(RecordingPlugin):
    """Another client binds the pod during PreBind; then the plugin fails with the given errors."""

    harness: ReconcilerHarness

    def __init__(self, node: str, *faults: Exception) -> None:
        super().__init__("noting", *faults)
        self._node = node

    async def pre_bind(self, *args: Any) -> None:
        uid = (await self.harness.get(PODS, "web"))["metadata"]["uid"]
        await self.harness.client.bind("default", "web", self._node, uid=uid)
        await super().pre_bind(*args)


@pytest.mark.parametrize("faults", [(), (BayplanError("no"),), (RejectBind("never"),)], ids=["bound", "no", "never"])
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_only_a_pod_that_is_on_another_node_is_rolled_back(
    tmp_path: Path, node: str, faults: tuple[Exception, ...]
) -> None:
    plugin = Binding(node, *faults)

    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        await harness.request(await harness.pod())
        assert await harness.sync() is None
        status = await harness.status()
        elsewhere = ("Failed", 'the pod is bound elsewhere: to node "n2"')
        assert (status["phase"], status["reason"]) == (("Succeeded", "") if node == "n1" else elsewhere)

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting post_bind" if node == "n1" else "noting rollback 1"]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_after_a_crash_a_pod_on_another_node_is_cleaned_up(tmp_path: Path, node: str) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.request(pod)
        await harness.client.bind("default", "web", node, uid=pod["metadata"]["uid"])
        assert await harness.sync() is None

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting post_bind" if node == "n1" else "noting rollback None"]


def test_after_a_crash_a_deleted_node_is_cleaned_up(tmp_path: Path) -> None:
    named: list[str] = []

    class Naming(RecordingPlugin):
        async def rollback(self, ctx: Any, pod: Any, node: Any, *args: Any) -> None:
            named.append(node.name)
            await super().rollback(ctx, pod, node, *args)

    plugin = Naming()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), "n9")
        assert await harness.sync() is not None

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting rollback None"]
    assert named == ["n9"]


def test_after_a_failure_without_a_response_the_known_pod_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = RecordingPlugin("moody", BayplanError("no"))

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.deliver_event(Pod, "web")

        async def fail_to_read(*_: Any) -> None:
            raise BayplanError("no response")

        monkeypatch.setattr(harness.view, "read_pod", fail_to_read)
        assert await harness.sync() is not None
        assert (await harness.status())["reason"] == 'plugin "moody" at pre_bind: no'

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1"]


def test_after_a_refused_binding_the_pod_must_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Binding("n2")

    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        await harness.request(await harness.pod())
        await harness.deliver_event(Pod, "web")

        async def fail_to_read(*_: Any) -> None:
            raise BayplanError("no response")

        monkeypatch.setattr(harness.view, "read_pod", fail_to_read)
        with pytest.raises(BayplanError, match="no response"):
            await harness.sync()
        assert await harness.status() == {}
        assert plugin.calls == ["noting pre_bind"]

    run_with_reconciler(tmp_path, test, plugin)


@pytest.mark.parametrize("letter", ["x", "é", "\udcff"])
def test_a_reason_is_cut_at_a_kibibyte(tmp_path: Path, letter: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.sync()
        reason = (await harness.status())["reason"]
        assert 1020 <= len(reason.encode()) <= 1024
        assert reason.startswith('plugin "wordy" at pre_bind: ')
        assert reason.endswith(" ...")

    run_with_reconciler(tmp_path, test, RecordingPlugin("wordy", BayplanError(letter * 5000)))


def test_a_short_reason_is_unchanged() -> None:
    assert truncate_reason("é" * 512) == "é" * 512
    assert len(truncate_reason("é" * 513).encode()) <= 1024


def pauses_s(failures: int, count: int = 50) -> list[float]:
    unused: Any = None
    reports = StatusUpdater(
        unused, REQUESTS, unused, unused, clock=unused, chance=random.Random(0), observer=NoBinderObserver()
    )
    return [reports.retry_delay_s(failures) for _ in range(count)]


@pytest.mark.parametrize(
    ("failures", "least_s"), [(0, 1.0), (1, 2.0), (5, 32.0), (6, 60.0), (7, 60.0), (30, 60.0), (10**6, 60.0)]
)
def test_retry_delays_double_up_to_a_minute(failures: int, least_s: float) -> None:
    assert all(least_s <= each <= 1.1 * least_s for each in pauses_s(failures))


def test_retry_delays_have_jitter() -> None:
    assert len(set(pauses_s(3))) > 40


class Losing(RecordingPlugin):
    """Raises `LeaseLost` at a stage, as any write of a plugin may."""

    def __init__(self, stage: str, *faults: Exception) -> None:
        super().__init__("losing", *faults)
        self._stage = stage

    async def post_bind(self, *_: Any) -> None:
        if self._stage == "post_bind":
            raise LeaseLost("another process leads")

    async def rollback(self, *args: Any) -> None:
        await super().rollback(*args)
        if self._stage == "rollback":
            raise LeaseLost("another process leads")


@pytest.mark.parametrize(
    ("plugin", "calls"),
    [
        pytest.param(Losing("", LeaseLost("another process leads")), ["losing pre_bind"], id="pre_bind"),
        pytest.param(Losing("post_bind"), ["losing pre_bind"], id="post_bind"),
        pytest.param(Losing("rollback", BayplanError("no")), ["losing pre_bind", "losing rollback 1"], id="rollback"),
    ],
)
def test_after_the_lease_is_lost_nothing_is_written_and_no_attempt_fails(
    tmp_path: Path, plugin: Losing, calls: list[str]
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        with pytest.raises(LeaseLost):
            await harness.sync()
        assert await harness.status() == {}
        assert (harness.reasons, harness.attempts) == ([], [])

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == calls


def test_a_binder_plugin_sees_the_annotations_in_rollback(tmp_path: Path) -> None:
    plugin = RecordingPlugin("moody", BayplanError("no"))

    async def work(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), annotations={"moody.kai.scheduler/x": "1"})
        await harness.sync()

    run_with_reconciler(tmp_path, work, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1"]
    assert [each["moody.kai.scheduler/x"] for each in plugin.seen] == ["1", "1"]


def test_the_pod_gets_the_annotation_of_predicted_numa_zones(tmp_path: Path) -> None:
    zones = [{"zone": "node-0", "amount": {"cpu": "2"}}]

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), predictedNUMAZones=zones)
        assert await harness.sync() is None
        annotations = (await harness.get(PODS, "web"))["metadata"]["annotations"]
        assert json.loads(annotations["kai.scheduler/predicted-numa-zones"]) == zones

    run_with_reconciler(tmp_path, test)


def test_a_new_pod_of_the_name_gets_no_condition_of_the_attempt(tmp_path: Path) -> None:
    class Replacing(RecordingPlugin):
        harness: ReconcilerHarness

        async def rollback(self, *args: Any) -> None:
            await super().rollback(*args)
            await self.harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
            await self.harness.pod()

    plugin = Replacing("replacing", BayplanError("no"))

    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        pod = await harness.pod()
        await harness.request(None, podUID=pod["metadata"]["uid"])
        assert await harness.sync() is not None
        conditions = (await harness.get(PODS, "web")).get("status", {}).get("conditions", [])
        assert [each for each in conditions if each["type"] == "PodBound"] == []
        assert harness.reasons == ["BindingRetry"]

    run_with_reconciler(tmp_path, test, plugin)


def test_a_new_request_of_the_name_gets_no_status_of_the_attempt(tmp_path: Path) -> None:
    class Replacing(RecordingPlugin):
        harness: ReconcilerHarness

        async def post_bind(self, *args: Any) -> None:
            await super().post_bind(*args)
            await self.harness.client.delete(REQUESTS, name="web", namespace="default")
            await self.harness.request(await self.harness.get(PODS, "web"), "n2")

    plugin = Replacing()

    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        await harness.request(await harness.pod())
        assert await harness.sync() is None
        assert harness.reasons == ["Bound"]
        assert await harness.status() == {}
        assert await harness.sync() is None
        assert (await harness.status())["reason"] == 'the pod is bound elsewhere: to node "n1"'

    run_with_reconciler(tmp_path, test, plugin)


def test_a_succeeded_request_is_not_carried_out_again(tmp_path: Path) -> None:
    """For example after a restart: no plugin is called again."""
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        for _ in range(2):
            assert await harness.sync() is None
        assert harness.reasons == ["Bound"]
        assert harness.attempts == ["bound"]

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting post_bind"]


# informer cache


def request_of(uid: str, version: int, phase: str = "") -> BindRequest:
    return BindRequest(
        metadata=ObjectMeta(name="web", namespace="default", uid=uid, resource_version=str(version)),
        spec=BindRequestSpec(pod_name="web", selected_node="n1", backoff_limit=1),
        status=BindRequestStatus(phase, "", 1 if phase == "Failed" else 0),
    )


def new_view() -> InformerCache:
    unused: Any = None
    return InformerCache(unused)


def test_an_older_version_of_a_request_does_not_overwrite_a_newer_one() -> None:
    view, written = new_view(), request_of("u", 10, "Failed")
    view.handle_event(None, request_of("u", 8))
    view.observe(written)
    view.handle_event(None, request_of("u", 9))  # the watch is behind an own write
    assert view.requests["default", "web"] is written
    newer = request_of("u", 11)
    view.handle_event(written, newer)
    assert view.requests["default", "web"] is newer


def test_a_response_after_the_deletion_restores_nothing() -> None:
    view, first, second = new_view(), request_of("first", 1), request_of("second", 3)
    view.handle_event(None, first)
    view.handle_event(first, None)
    view.observe(request_of("first", 2, "Failed"))
    assert view.requests == {}
    view.handle_event(None, second)
    view.observe(request_of("first", 2, "Failed"))
    assert view.requests["default", "web"] is second


def test_another_request_of_the_name_is_not_current() -> None:
    view, first, second = new_view(), request_of("first", 1), request_of("second", 2)
    view.handle_event(None, first)
    assert view.is_current(first)
    view.handle_event(first, second)
    assert not view.is_current(first)
    assert view.is_current(second)
    view.handle_event(first, None)  # a late event of another request
    assert view.is_current(second)
