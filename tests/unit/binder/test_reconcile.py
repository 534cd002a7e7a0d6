"""Reconciliation of a request: bound, retried, or failed with a reason."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

from bayplan.api_writes.bind_request_writes import BindRequestWrites
from bayplan.binder import informer_cache
from bayplan.binder.plugin import RejectBind
from bayplan.binder.validation import request_error
from bayplan.errors import BayplanError, ObjectError
from bayplan.intents.pod_intents import CreateBindRequest
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest, new_request
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.testing import make_pod
from support.harness.reconciler import PODS, REQUESTS, ReconcilerHarness, RecordingPlugin, run_with_reconciler


def test_a_pod_is_bound_with_status_condition_and_event(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), annotations={"noting.kai.scheduler/x": "1"})
        assert await harness.sync() is None
        pod = await harness.get(PODS, "web")
        assert pod["spec"]["nodeName"] == "n1"
        assert pod["metadata"]["annotations"]["received-resource-type"] == "Regular"
        (condition,) = [each for each in pod["status"]["conditions"] if each["type"] == "PodBound"]
        assert (condition["status"], condition["reason"]) == ("True", "Bound")
        assert (await harness.status())["phase"] == "Succeeded"
        assert harness.reasons == ["Bound"]
        assert harness.steps.reached == ["taken", "prepared", "bound", "finished"]

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting post_bind"]


def test_a_binder_plugin_sees_the_annotations_in_pre_bind_and_post_bind(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def work(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), annotations={"noting.kai.scheduler/x": "1"})
        await harness.sync()

    run_with_reconciler(tmp_path, work, plugin)
    assert [each["noting.kai.scheduler/x"] for each in plugin.seen] == ["1", "1"]


def test_a_binder_plugin_without_its_key_behaves_as_before(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.sync()
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.seen == [{}, {}]


def test_every_failure_is_counted_and_the_last_is_final(tmp_path: Path) -> None:
    plugin = RecordingPlugin("moody", *(BayplanError(f"no {number}") for number in range(3)))

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        pauses, statuses = [], []
        for _ in range(3):
            pauses.append(await harness.sync())
            statuses.append(await harness.status())
        assert [each["failedAttempts"] for each in statuses] == [1, 2, 3]
        assert [each["reason"] for each in statuses] == [
            f'plugin "moody" at pre_bind: no {number}' for number in range(3)
        ]
        assert pauses[2] is None
        assert 1 <= (pauses[0] or 0) < 2 <= (pauses[1] or 0) < 3
        assert await harness.sync() is None  # given up: no retry
        assert await harness.node_of() == ""
        assert harness.reasons == ["BindingRetry", "BindingRetry", "BindingError"]
        (condition,) = [c for c in (await harness.get(PODS, "web"))["status"]["conditions"] if c["type"] == "PodBound"]
        assert (condition["status"], condition["reason"]) == ("False", "BindingError")

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == [word for n in (1, 3, 5) for word in ("moody pre_bind", f"moody rollback {n}")]


def test_a_retry_succeeds_after_a_failure(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        assert await harness.sync() is not None
        assert await harness.sync() is None
        status = await harness.status()
        assert (status["phase"], status["reason"], status["failedAttempts"]) == ("Succeeded", "", 1)
        assert harness.reasons == ["BindingRetry", "Bound"]

    run_with_reconciler(tmp_path, test, RecordingPlugin("moody", BayplanError("not yet")))


def test_no_limit_means_one_attempt(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=None)
        assert await harness.sync() is None
        assert (await harness.status())["phase"] == "Failed"
        assert await harness.sync() is None

    plugin = RecordingPlugin("moody", BayplanError("no"))
    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1"]


def test_a_rejection_is_final(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        assert await harness.sync() is None
        status = await harness.status()
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 3)
        assert status["reason"] == 'plugin "strict" at pre_bind: the node is stale'

    run_with_reconciler(tmp_path, test, RecordingPlugin("strict", RejectBind("the node is stale")))


def test_all_plugins_are_rolled_back_in_reverse_order_and_a_bug_fails_one_attempt(tmp_path: Path) -> None:
    calls: list[str] = []
    first, second = RecordingPlugin("first", calls=calls), RecordingPlugin("second", KeyError("oops"), calls=calls)

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        assert await harness.sync() is not None
        assert "KeyError: 'oops'" in (await harness.status())["reason"]

    run_with_reconciler(tmp_path, test, first, second)
    assert calls == ["first pre_bind", "second pre_bind", "second rollback 2", "first rollback 1"]


def test_a_failure_in_post_bind_changes_nothing(tmp_path: Path) -> None:
    class Rude(RecordingPlugin):
        async def post_bind(self, *_: Any, **__: Any) -> None:
            raise SystemExit(3)

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        assert await harness.sync() is None
        assert (await harness.status())["phase"] == "Succeeded"

    run_with_reconciler(tmp_path, test, Rude("rude"))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        pytest.param({"podName": ""}, "it names no pod; spec.podName must say which one", id="no pod"),
        pytest.param({"selectedNode": ""}, "it names no node; spec.selectedNode must say which one", id="no node"),
        pytest.param({"receivedResourceType": "Slice"}, 'its receivedResourceType is "Slice"', id="bad type"),
        pytest.param({"receivedResourceType": "Fraction"}, "names no GPU group in selectedGPUGroups", id="no groups"),
        pytest.param(
            {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g-1", "a b!"]},
            'its selectedGPUGroups have "a b!", which no pod can have as a label: a valid label must',
            id="bad group",
        ),
        pytest.param(
            {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g" * 64]},
            "which no pod can have as a label: must be no more than 63",
            id="long group",
        ),
        pytest.param(
            {"receivedResourceType": "Fraction", "selectedGPUGroups": [""]},
            'its selectedGPUGroups have "", which no pod can have as a label: a name must not be empty',
            id="group without a name",
        ),
        pytest.param({"podName": "unknown"}, "the pod is gone", id="pod does not exist"),
    ],
)
def test_an_invalid_request_fails_with_a_reason(tmp_path: Path, spec: Any, sentence: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), **spec)
        assert await harness.sync() is None
        status = await harness.status()
        assert status["phase"] == "Failed"
        assert sentence in status["reason"]
        assert status["failedAttempts"] == 3  # which all clients recognise as final
        assert await harness.sync() is None
        assert await harness.node_of() == ""
        found = (await harness.get(PODS, "web")).get("status", {}).get("conditions", [])
        assert [(each["type"], each["message"]) for each in found] == (
            [("PodBound", status["reason"])] if spec.get("podName", "web") == "web" else []
        )
        assert harness.reasons == ["BindingError"] * len(found)

    run_with_reconciler(tmp_path, test)


def test_an_invalid_request_writes_nothing_to_a_pod_that_is_not_pending(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.client.bind("default", "web", "n1", uid=pod["metadata"]["uid"])
        await harness.request(pod, receivedResourceType="Slice")
        assert await harness.sync() is None
        assert (await harness.status())["phase"] == "Failed"
        assert harness.reasons == []

    run_with_reconciler(tmp_path, test)


def test_annotations_that_are_too_large_are_refused() -> None:
    """Another API server might accept them."""
    large = new_request(make_pod("web"), "n1", annotations={"x.kai.scheduler/y": "é" * 200_000}, backoff_limit=3)
    assert request_error(large) == "its annotations take 400017 bytes, which is more than the 262144 that are allowed"
    assert request_error(new_request(make_pod("web"), "n1", annotations={}, backoff_limit=3)) == ""


def test_an_undecodable_request_fails_with_a_reason(tmp_path: Path) -> None:
    """A CRD without a schema accepts anything; the watch reports the request, and it is not retried forever."""
    loose = copy.deepcopy(bind_request_definition())
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    del loose["spec"]["versions"][0]["selectableFields"]

    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder():
            await harness.request(await harness.pod(), backoffLimit="three")
            assert "spec.backoffLimit" in (await harness.until_phase("Failed"))["reason"]
            assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, definition=loose)


UNREADABLE = {"resourceClaimAllocations": [{"name": "g", "allocation": {"devices": {"results": "x"}}}]}


def test_an_undecodable_request_fails_once_whatever_its_limit(tmp_path: Path) -> None:
    """The CRD does not validate allocations, as upstream's."""

    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder() as live:
            await harness.request(await harness.pod(), backoffLimit=7, **UNREADABLE)
            status = await harness.until_phase("Failed")
            assert status["failedAttempts"] == 7
            assert "spec.resourceClaimAllocations" in status["reason"]
            written = (await harness.get(REQUESTS, "web"))["metadata"]["resourceVersion"]
            assert live.phases() == {"Pending": 0, "Succeeded": 0, "Failed": 1}
            await harness.patch(REQUESTS, "web", {"metadata": {"annotations": {"x": "y"}}})  # another event of it
            await harness.request(await harness.pod("good"), name="good")
            await harness.until_phase("Succeeded", "good")
            assert harness.attempts == ["given_up", "bound"]
            assert harness.reasons == ["BindingError", "Bound"]
            assert int((await harness.get(REQUESTS, "web"))["metadata"]["resourceVersion"]) > int(written)
            assert await harness.status() == status
            await harness.client.delete(REQUESTS, name="web", namespace="default")
            while live.phases()["Failed"]:
                await asyncio.sleep(0.02)
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test)


def test_an_undecodable_request_that_an_earlier_binder_failed_is_not_counted_again(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), **UNREADABLE)
        for _ in range(2):
            async with harness.run_binder():
                await harness.until_phase("Failed")
                await harness.request(await harness.pod("good"), name="good")
                await harness.until_phase("Succeeded", "good")
                for resource in (PODS, REQUESTS):
                    await harness.client.delete(resource, name="good", namespace="default", grace_s=0)
        assert harness.attempts == ["given_up", "bound", "bound"]

    run_with_reconciler(tmp_path, test)


def test_a_request_that_becomes_undecodable_is_finished_in_the_cache(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder() as live:
            await harness.request(await harness.pod(), "n9")
            await harness.until_phase("Failed")
            assert harness.view.requests["default", "web"].is_active
            await harness.patch(REQUESTS, "web", {"spec": UNREADABLE})
            while harness.view.requests["default", "web"].is_active:
                await asyncio.sleep(0.02)
            assert live.phases() == {"Pending": 0, "Succeeded": 0, "Failed": 1}

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("phase", ["", "Failed"])
def test_an_engine_replaces_an_undecodable_request_after_it_failed(tmp_path: Path, phase: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), **UNREADABLE)
        label = {"metadata": {"labels": {"bayplan.dev/binder": "bayplan"}}}
        await harness.patch(REQUESTS, "web", label)
        if phase:
            await harness.patch(REQUESTS, "web", {"status": {"phase": phase, "failedAttempts": 3}}, sub="status")
        pod = await harness.client.get(Pod, "default", "web")
        wanted = new_request(pod, "n2", annotations={}, backoff_limit=3)
        writing = BindRequestWrites(harness.client).create(CreateBindRequest(pod, wanted))
        if phase:
            assert (await writing).spec.selected_node == "n2"
        else:
            with pytest.raises(ObjectError, match="cannot be read"):
                await writing
        assert (await harness.get(REQUESTS, "web"))["spec"]["selectedNode"] == ("n2" if phase else "n1")

    run_with_reconciler(tmp_path, test)


def test_an_unknown_node_fails_attempts_until_the_limit(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), "n9", backoffLimit=2)
        assert await harness.sync() is not None
        assert await harness.sync() is None
        assert (await harness.status())["reason"] == 'node "n9" is not there'

    run_with_reconciler(tmp_path, test)


def test_a_pod_of_another_uid_is_not_bound(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
        await harness.pod()
        # a request with an owner would be deleted with the pod
        await harness.request(None, podUID=pod["metadata"]["uid"])
        assert await harness.sync() is None
        assert (await harness.status())["reason"] == "the pod is gone; another pod has its name"
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test)


def test_a_pod_that_is_deleted_before_the_binding_is_not_bound(tmp_path: Path) -> None:
    """The binding has the uid: the server refuses it for a new pod of the name."""

    class Replacing:
        name = "replacing"
        harness: ReconcilerHarness

        async def pre_bind(self, *_: Any) -> None:
            await self.harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
            await self.harness.pod()

    plugin = Replacing()

    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        pod = await harness.pod()
        await harness.request(None, podUID=pod["metadata"]["uid"])  # without an owner, so that it outlives the pod
        await harness.deliver_event(Pod, "web")
        assert await harness.sync() is None
        assert (await harness.status())["phase"] == "Failed"
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)


def test_a_pod_that_has_the_node_already_is_a_success_and_post_bind_runs_again(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.client.bind("default", "web", "n1", uid=pod["metadata"]["uid"])
        await harness.request(pod)
        assert await harness.sync() is None
        assert (await harness.status())["phase"] == "Succeeded"

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting post_bind"]


def test_a_pod_that_is_bound_elsewhere_fails_the_request(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.client.bind("default", "web", "n2", uid=pod["metadata"]["uid"])
        await harness.request(pod)
        assert await harness.sync() is None
        assert (await harness.status())["reason"] == 'the pod is bound elsewhere: to node "n2"'

    run_with_reconciler(tmp_path, test)


def test_an_outdated_pod_in_the_cache_is_read_again(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.deliver_event(Pod, "web")  # the watch still shows no node
        await harness.client.bind("default", "web", "n1", uid=pod["metadata"]["uid"])
        await harness.request(pod)
        assert await harness.sync() is None
        assert (await harness.status())["phase"] == "Succeeded"

    run_with_reconciler(tmp_path, test)


def test_a_request_that_was_deleted_meanwhile_is_not_carried_out(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.deliver_event(BindRequest, "web")
        request = harness.view.requests["default", "web"]
        harness.steps.at["prepared"] = lambda: harness.view.handle_event(request, None)
        assert await harness.reconciler.reconcile(("default", "web")) is None
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting rollback 1"]


@pytest.mark.parametrize("is_slow", [True, False])
def test_the_request_is_read_again_if_pre_bind_took_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    """The watch has not shown the deletion yet. After a short PreBind the pod is bound, and the engine sees that."""
    monkeypatch.setattr(informer_cache, "READ_AGAIN_AFTER_S", 0.0 if is_slow else 60.0)

    class Deleting(RecordingPlugin):
        harness: ReconcilerHarness

        async def pre_bind(self, *args: Any) -> None:
            await super().pre_bind(*args)
            await self.harness.client.delete(REQUESTS, name="web", namespace="default")

    plugin = Deleting()

    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        await harness.request(await harness.pod())
        assert await harness.sync() is None
        assert await harness.node_of() == ("" if is_slow else "n1")

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting rollback 1" if is_slow else "noting post_bind"]


def test_requests_of_a_crd_that_prunes_the_uid_are_carried_out(tmp_path: Path) -> None:
    pruning = copy.deepcopy(bind_request_definition())
    spec = pruning["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["podUID"]

    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.request(pod, podUID=pod["metadata"]["uid"])
        assert "podUID" not in (await harness.get(REQUESTS, "web"))["spec"]
        assert await harness.sync() is None
        assert (await harness.status())["phase"] == "Succeeded"
        known = harness.view.requests["default", "web"]
        assert known.pod_uid == pod["metadata"]["uid"]
        assert not known.is_for(make_pod(name="web", namespace="default", uid="another"))

    run_with_reconciler(tmp_path, test, definition=pruning)
