"""What becomes of a request: bound, tried again, or given up with a sentence; each rule of the loop by name."""

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
from support.harness.reconciler import (
    PODS,
    REQUESTS,
    ReconcilerHarness,
    RecordingPlugin,
    run_with_reconciler,
)


def test_a_pod_is_bound_and_everybody_is_told(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), annotations={"noting.kai.scheduler/x": "1"})
        assert await rig.sync() is None
        pod = await rig.get(PODS, "web")
        assert pod["spec"]["nodeName"] == "n1"
        assert pod["metadata"]["annotations"]["received-resource-type"] == "Regular"
        (condition,) = [each for each in pod["status"]["conditions"] if each["type"] == "PodBound"]
        assert (condition["status"], condition["reason"]) == ("True", "Bound")
        assert (await rig.status())["phase"] == "Succeeded"
        assert rig.reasons == ["Bound"]
        assert rig.steps.reached == ["taken", "prepared", "bound", "finished"]

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting post_bind"]


def test_a_binder_plugin_sees_the_annotations_in_pre_bind_and_post_bind(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def work(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), annotations={"noting.kai.scheduler/x": "1"})
        await rig.sync()

    run_with_reconciler(tmp_path, work, plugin)
    assert [each["noting.kai.scheduler/x"] for each in plugin.seen] == ["1", "1"]


def test_a_binder_plugin_without_its_key_behaves_as_before(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        await rig.sync()
        assert await rig.node_of() == "n1"

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.seen == [{}, {}]


def test_every_failure_is_counted_and_the_last_gives_up(tmp_path: Path) -> None:
    plugin = RecordingPlugin("moody", *(BayplanError(f"no {number}") for number in range(3)))

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        pauses, told = [], []
        for _ in range(3):
            pauses.append(await rig.sync())
            told.append(await rig.status())
        assert [each["failedAttempts"] for each in told] == [1, 2, 3]
        assert [each["reason"] for each in told] == [f'plugin "moody" at pre_bind: no {number}' for number in range(3)]
        assert pauses[2] is None
        assert 1 <= (pauses[0] or 0) < 2 <= (pauses[1] or 0) < 3
        assert await rig.sync() is None  # given up: nobody tries it again
        assert await rig.node_of() == ""
        assert rig.reasons == ["BindingRetry", "BindingRetry", "BindingError"]
        (condition,) = [c for c in (await rig.get(PODS, "web"))["status"]["conditions"] if c["type"] == "PodBound"]
        assert (condition["status"], condition["reason"]) == ("False", "BindingError")

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == [word for n in (1, 3, 5) for word in ("moody pre_bind", f"moody rollback {n}")]


def test_a_failure_that_is_over_ends_well(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        assert await rig.sync() is not None
        assert await rig.sync() is None
        status = await rig.status()
        assert (status["phase"], status["reason"], status["failedAttempts"]) == ("Succeeded", "", 1)
        assert rig.reasons == ["BindingRetry", "Bound"]

    run_with_reconciler(tmp_path, test, RecordingPlugin("moody", BayplanError("not yet")))


def test_no_limit_means_one_attempt(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=None)
        assert await rig.sync() is None
        assert (await rig.status())["phase"] == "Failed"
        assert await rig.sync() is None

    plugin = RecordingPlugin("moody", BayplanError("no"))
    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1"]


def test_a_rejection_is_final(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        assert await rig.sync() is None
        status = await rig.status()
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 3)
        assert status["reason"] == 'plugin "strict" at pre_bind: the node is stale'

    run_with_reconciler(tmp_path, test, RecordingPlugin("strict", RejectBind("the node is stale")))


def test_all_plugins_are_rolled_back_newest_first_and_a_bug_costs_one_attempt(tmp_path: Path) -> None:
    calls: list[str] = []
    first, second = RecordingPlugin("first", calls=calls), RecordingPlugin("second", KeyError("oops"), calls=calls)

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        assert await rig.sync() is not None
        assert "KeyError: 'oops'" in (await rig.status())["reason"]

    run_with_reconciler(tmp_path, test, first, second)
    assert calls == ["first pre_bind", "second pre_bind", "second rollback 2", "first rollback 1"]


def test_post_bind_fails_nothing(tmp_path: Path) -> None:
    class Rude(RecordingPlugin):
        async def post_bind(self, *_: Any, **__: Any) -> None:
            raise SystemExit(3)

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        assert await rig.sync() is None
        assert (await rig.status())["phase"] == "Succeeded"

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
        pytest.param({"podName": "nobody"}, "the pod is gone", id="pod is not there"),
    ],
)
def test_a_malformed_request_ends_as_failed_with_a_sentence(tmp_path: Path, spec: Any, sentence: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), **spec)
        assert await rig.sync() is None
        status = await rig.status()
        assert status["phase"] == "Failed"
        assert sentence in status["reason"]
        assert status["failedAttempts"] == 3  # which everybody takes for given up
        assert await rig.sync() is None
        assert await rig.node_of() == ""
        told = (await rig.get(PODS, "web")).get("status", {}).get("conditions", [])
        assert [(each["type"], each["message"]) for each in told] == (
            [("PodBound", status["reason"])] if spec.get("podName", "web") == "web" else []
        )
        assert rig.reasons == ["BindingError"] * len(told)

    run_with_reconciler(tmp_path, test)


def test_a_malformed_request_says_nothing_to_a_pod_that_does_not_wait_for_it(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod()
        await rig.client.bind("default", "web", "n1", uid=pod["metadata"]["uid"])
        await rig.request(pod, receivedResourceType="Slice")
        assert await rig.sync() is None
        assert (await rig.status())["phase"] == "Failed"
        assert rig.reasons == []

    run_with_reconciler(tmp_path, test)


def test_annotations_that_no_server_would_take_are_refused() -> None:
    """A server of another kind might let them pass."""
    large = new_request(make_pod("web"), "n1", annotations={"x.kai.scheduler/y": "é" * 200_000}, backoff_limit=3)
    assert request_error(large) == "its annotations take 400017 bytes, which is more than the 262144 that are allowed"
    assert request_error(new_request(make_pod("web"), "n1", annotations={}, backoff_limit=3)) == ""


def test_a_request_that_cannot_be_read_ends_as_failed_with_a_sentence(tmp_path: Path) -> None:
    """A definition without a schema lets anything in; the watch finds it, and nobody tries it for ever."""
    loose = copy.deepcopy(bind_request_definition())
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    del loose["spec"]["versions"][0]["selectableFields"]

    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder():
            await rig.request(await rig.pod(), backoffLimit="three")
            assert "spec.backoffLimit" in (await rig.until_phase("Failed"))["reason"]
            assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test, definition=loose)


UNREADABLE = {"resourceClaimAllocations": [{"name": "g", "allocation": {"devices": {"results": "x"}}}]}


def test_a_request_that_cannot_be_read_is_given_up_once_whatever_its_limit(tmp_path: Path) -> None:
    """The definition leaves allocations to whoever reads them, as the kind's own does."""

    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder() as live:
            await rig.request(await rig.pod(), backoffLimit=7, **UNREADABLE)
            status = await rig.until_phase("Failed")
            assert status["failedAttempts"] == 7
            assert "spec.resourceClaimAllocations" in status["reason"]
            written = (await rig.get(REQUESTS, "web"))["metadata"]["resourceVersion"]
            assert live.phases() == {"Pending": 0, "Succeeded": 0, "Failed": 1}
            await rig.patch(REQUESTS, "web", {"metadata": {"annotations": {"x": "y"}}})  # it is told of once more
            await rig.request(await rig.pod("good"), name="good")
            await rig.until_phase("Succeeded", "good")
            assert rig.attempts == ["given_up", "bound"]
            assert rig.reasons == ["BindingError", "Bound"]
            assert int((await rig.get(REQUESTS, "web"))["metadata"]["resourceVersion"]) > int(written)
            assert await rig.status() == status
            await rig.client.delete(REQUESTS, name="web", namespace="default")
            while live.phases()["Failed"]:
                await asyncio.sleep(0.02)
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test)


def test_a_request_that_an_earlier_binder_has_given_up_as_unreadable_is_not_counted_again(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), **UNREADABLE)
        for _ in range(2):
            async with rig.run_binder():
                await rig.until_phase("Failed")
                await rig.request(await rig.pod("good"), name="good")
                await rig.until_phase("Succeeded", "good")
                await rig.client.delete(PODS, name="good", namespace="default", grace_s=0)
                while await rig.find(REQUESTS, "good") is not None:
                    await asyncio.sleep(0.02)
        assert rig.attempts == ["given_up", "bound", "bound"]

    run_with_reconciler(tmp_path, test)


def test_a_request_that_becomes_unreadable_is_over_for_those_who_knew_it_before(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder() as live:
            await rig.request(await rig.pod(), "n9")
            await rig.until_phase("Failed")
            assert rig.view.requests["default", "web"].is_active
            await rig.patch(REQUESTS, "web", {"spec": UNREADABLE})
            while rig.view.requests["default", "web"].is_active:
                await asyncio.sleep(0.02)
            assert live.phases() == {"Pending": 0, "Succeeded": 0, "Failed": 1}

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("phase", ["", "Failed"])
def test_an_engine_replaces_a_request_that_it_cannot_read_once_that_has_failed(tmp_path: Path, phase: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), **UNREADABLE)
        label = {"metadata": {"labels": {"bayplan.dev/binder": "bayplan"}}}
        await rig.patch(REQUESTS, "web", label)
        if phase:
            await rig.patch(REQUESTS, "web", {"status": {"phase": phase, "failedAttempts": 3}}, sub="status")
        pod = await rig.client.get(Pod, "default", "web")
        wanted = new_request(pod, "n2", annotations={}, backoff_limit=3)
        writing = BindRequestWrites(rig.client).create(CreateBindRequest(pod, wanted))
        if phase:
            assert (await writing).spec.selected_node == "n2"
        else:
            with pytest.raises(ObjectError, match="cannot be read"):
                await writing
        assert (await rig.get(REQUESTS, "web"))["spec"]["selectedNode"] == ("n2" if phase else "n1")

    run_with_reconciler(tmp_path, test)


def test_an_unknown_node_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), "n9", backoffLimit=2)
        assert await rig.sync() is not None
        assert await rig.sync() is None
        assert (await rig.status())["reason"] == 'node "n9" is not there'

    run_with_reconciler(tmp_path, test)


def test_a_pod_of_another_uid_is_not_bound(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod()
        await rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
        await rig.pod()
        await rig.request(None, podUID=pod["metadata"]["uid"])  # one that the pod owns would go with it
        assert await rig.sync() is None
        assert (await rig.status())["reason"] == "the pod is gone; another pod has its name"
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test)


def test_a_pod_that_goes_between_the_watch_and_the_binding_is_not_bound(tmp_path: Path) -> None:
    """The binding names the uid: the server refuses it for the pod that took the name meanwhile."""

    class Replacing:
        name = "replacing"
        rig: ReconcilerHarness

        async def pre_bind(self, *_: Any) -> None:
            await self.rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
            await self.rig.pod()

    plugin = Replacing()

    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        pod = await rig.pod()
        await rig.request(None, podUID=pod["metadata"]["uid"])  # owned by nobody, so that it outlives the pod
        await rig.deliver_event(Pod, "web")
        assert await rig.sync() is None
        assert (await rig.status())["phase"] == "Failed"
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)


def test_a_pod_that_has_the_node_already_is_a_success_and_plugins_are_told_again(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod()
        await rig.client.bind("default", "web", "n1", uid=pod["metadata"]["uid"])
        await rig.request(pod)
        assert await rig.sync() is None
        assert (await rig.status())["phase"] == "Succeeded"

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting post_bind"]


def test_a_pod_that_is_bound_elsewhere_fails_the_request(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod()
        await rig.client.bind("default", "web", "n2", uid=pod["metadata"]["uid"])
        await rig.request(pod)
        assert await rig.sync() is None
        assert (await rig.status())["reason"] == 'the pod is bound elsewhere: to node "n2"'

    run_with_reconciler(tmp_path, test)


def test_a_watch_that_lags_behind_the_binding_does_no_harm(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod()
        await rig.deliver_event(Pod, "web")  # the watch still says: no node
        await rig.client.bind("default", "web", "n1", uid=pod["metadata"]["uid"])
        await rig.request(pod)
        assert await rig.sync() is None
        assert (await rig.status())["phase"] == "Succeeded"

    run_with_reconciler(tmp_path, test)


def test_a_request_that_was_deleted_meanwhile_is_not_carried_out(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        await rig.deliver_event(BindRequest, "web")
        request = rig.view.requests["default", "web"]
        rig.steps.at["prepared"] = lambda: rig.view.handle_event(request, None)
        assert await rig.reconciler.reconcile(("default", "web")) is None
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting rollback 1"]


@pytest.mark.parametrize("is_slow", [True, False])
def test_the_server_is_asked_for_the_request_once_more_where_the_preparation_took_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    """The watch has not told yet that it is deleted; whoever was quick binds the pod, which the engine sees by it."""
    monkeypatch.setattr(informer_cache, "READ_AGAIN_AFTER_S", 0.0 if is_slow else 60.0)

    class Deleting(RecordingPlugin):
        rig: ReconcilerHarness

        async def pre_bind(self, *args: Any) -> None:
            await super().pre_bind(*args)
            await self.rig.client.delete(REQUESTS, name="web", namespace="default")

    plugin = Deleting()

    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        await rig.request(await rig.pod())
        assert await rig.sync() is None
        assert await rig.node_of() == ("" if is_slow else "n1")

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting rollback 1" if is_slow else "noting post_bind"]


def test_all_of_it_is_correct_on_a_definition_that_prunes_the_uid(tmp_path: Path) -> None:
    pruning = copy.deepcopy(bind_request_definition())
    spec = pruning["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["podUID"]

    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod()
        await rig.request(pod, podUID=pod["metadata"]["uid"])
        assert "podUID" not in (await rig.get(REQUESTS, "web"))["spec"]
        assert await rig.sync() is None
        assert (await rig.status())["phase"] == "Succeeded"
        known = rig.view.requests["default", "web"]
        assert known.pod_uid == pod["metadata"]["uid"]
        assert not known.is_for(make_pod(name="web", namespace="default", uid="another"))

    run_with_reconciler(tmp_path, test, definition=pruning)
