"""Bind request writes: created once, never changed, and deleted only in the known version if required."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api_writes.bind_request_writes import BindRequestWrites
from bayplan.errors import ApiError, Conflict, NotFound, ObjectError
from bayplan.intents.pod_intents import CreateBindRequest, DeleteBindRequest
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import HANDLED_BY_BAYPLAN, HANDLED_BY_LABEL, BindRequest, new_request
from support.harness.reconciler import PODS, REQUESTS, ReconcilerHarness, run_with_reconciler

KEY = "noting.kai.scheduler/x"


async def create_request(harness: ReconcilerHarness, value: str = "1") -> BindRequest:
    """Create the request of the pod with a plugin's annotation."""
    if await harness.find(PODS, "web") is None:
        await harness.pod()
    pod = await harness.client.get(Pod, "default", "web")
    request = new_request(pod, "n1", annotations={KEY: value}, backoff_limit=3)
    return await BindRequestWrites(harness.client).create(CreateBindRequest(pod, request))


def test_annotations_of_plugins_are_written_only_at_the_create(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        first = await create_request(harness)
        again = await create_request(harness, "2")
        assert again.metadata.annotations == first.metadata.annotations == {KEY: "1"}
        there = (await harness.get(REQUESTS, "web"))["metadata"]
        assert there["annotations"] == {KEY: "1"}
        assert there["resourceVersion"] == first.metadata.resource_version == again.metadata.resource_version

    run_with_reconciler(tmp_path, test)


def test_a_changed_decision_replaces_the_request(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        first = await create_request(harness)
        await harness.patch(REQUESTS, "web", {"status": {"phase": "Failed", "failedAttempts": 3}}, sub="status")
        second = await create_request(harness, "2")
        assert second.metadata.annotations == {KEY: "2"}
        assert second.metadata.uid != first.metadata.uid

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("unchanged", [True, False], ids=["as it was", "as it is"])
def test_a_changed_request_is_deleted_unless_its_version_is_required(tmp_path: Path, unchanged: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        request = await create_request(harness)
        await harness.patch(REQUESTS, "web", {"status": {"phase": "Failed", "failedAttempts": 1}}, sub="status")
        writes, results = BindRequestWrites(harness.client), list[BindRequest | None]()
        if unchanged:
            with pytest.raises(Conflict):
                await writes.delete(DeleteBindRequest(request, only_if_unchanged=True))
            await writes.delete(DeleteBindRequest(request, only_if_unchanged=True, on_deleted=results.append))
            assert [each and each.status.failed_attempts for each in results] == [1]
            assert (await harness.status())["phase"] == "Failed"
        else:
            await writes.delete(DeleteBindRequest(request, on_deleted=results.append))
            await writes.delete(DeleteBindRequest(request, on_deleted=results.append))  # already deleted
            assert await harness.find(REQUESTS, "web") is None
            assert results == [None, None]

    run_with_reconciler(tmp_path, test)


def test_a_request_that_exists_after_a_404_was_not_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        request, answers = await create_request(harness), list[BindRequest | None]()

        async def not_found(*_: object, **__: object) -> None:
            raise NotFound("not found", code=404)

        delete, harness.client.delete = harness.client.delete, not_found  # type: ignore[method-assign, assignment]
        with pytest.raises(NotFound):
            await BindRequestWrites(harness.client).delete(DeleteBindRequest(request, on_deleted=answers.append))
        assert answers == []
        harness.client.delete = delete  # type: ignore[method-assign]
        await BindRequestWrites(harness.client).delete(DeleteBindRequest(request, on_deleted=answers.append))
        assert answers == [None]

    run_with_reconciler(tmp_path, test)


def test_another_request_of_that_name_is_not_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        request = await create_request(harness)
        earlier = replace(request, metadata=replace(request.metadata, uid="earlier"))
        with pytest.raises(Conflict):
            await BindRequestWrites(harness.client).delete(DeleteBindRequest(earlier))
        assert await harness.find(REQUESTS, "web") is not None

    run_with_reconciler(tmp_path, test)


async def create_foreign_request(
    harness: ReconcilerHarness, *, pod: str = "web", node: str = "n2", is_own: bool = False, **status: object
) -> None:
    """Create a request without owner and without the uid of its pod."""
    await harness.request(None, node, podName=pod)
    if is_own:
        await harness.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
    if status:
        await harness.patch(REQUESTS, "web", {"status": status}, sub="status")


@pytest.mark.parametrize(
    ("there", "says"),
    [
        pytest.param({}, "to node n2; another binder (it has no label", id="foreign"),
        pytest.param({"is_own": True}, "to node n2; the binder has to carry that one out", id="own"),
        pytest.param({"phase": "Failed", "failedAttempts": 1}, "another binder (it has no label", id="tried again"),
        pytest.param(
            {"pod": "db"}, "has the name that is needed: it is a live one for pod default/db", id="for another pod"
        ),
        pytest.param({"pod": "db", "is_own": True}, "it is a live one for pod default/db", id="own for another pod"),
    ],
)
def test_a_live_request_that_blocks_the_name_is_reported_and_not_changed(
    tmp_path: Path, there: dict[str, Any], says: str
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_foreign_request(harness, **there)
        before = await harness.get(REQUESTS, "web")
        with pytest.raises(ApiError, match=re.escape(says)):
            await create_request(harness)
        assert await harness.get(REQUESTS, "web") == before

    run_with_reconciler(tmp_path, test)


def test_a_live_request_of_an_earlier_pod_is_replaced_only_if_it_is_own(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(None, "n2", podUID="earlier")
        with pytest.raises(ApiError, match="an earlier pod of that name, with uid earlier"):
            await create_request(harness)
        await harness.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        assert (await create_request(harness)).pod_uid != "earlier"

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize(
    "there",
    [
        pytest.param({"phase": "Failed", "failedAttempts": 3}, id="given up"),
        pytest.param({"pod": "db", "phase": "Succeeded"}, id="done, for another pod"),
    ],
)
def test_a_finished_foreign_request_is_replaced(tmp_path: Path, there: dict[str, Any]) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_foreign_request(harness, **there)
        assert (await create_request(harness)).is_handled_by_bayplan

    run_with_reconciler(tmp_path, test)


def test_a_live_foreign_request_to_the_same_node_is_used(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_foreign_request(harness, node="n1")
        before = await harness.get(REQUESTS, "web")
        assert (await create_request(harness)).metadata.uid == before["metadata"]["uid"]

    run_with_reconciler(tmp_path, test)


def test_a_terminating_request_is_not_used(tmp_path: Path) -> None:
    """It has the wanted pod and node, but no binder will carry it out."""

    async def test(harness: ReconcilerHarness) -> None:
        first = await create_request(harness)
        await harness.patch(REQUESTS, "web", {"metadata": {"finalizers": ["example.com/held"]}})
        await harness.client.delete(REQUESTS, name="web", namespace="default")
        with pytest.raises(Conflict, match="default/web is being deleted; it is created again after that"):
            await create_request(harness)
        await harness.patch(REQUESTS, "web", {"metadata": {"finalizers": None}})
        assert (await create_request(harness)).metadata.uid != first.metadata.uid

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("status", [{}, {"phase": "Failed", "failedAttempts": 1}], ids=["new", "to be tried again"])
def test_a_live_own_request_that_cannot_be_decoded_is_left_to_the_binder(
    tmp_path: Path, status: dict[str, Any]
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        garbled = {"resourceClaimAllocations": [{"name": "gpu", "allocation": {"devices": 3}}]}
        await harness.request(await harness.pod(), **garbled)
        await harness.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        if status:
            await harness.patch(REQUESTS, "web", {"status": status}, sub="status")
        before = await harness.get(REQUESTS, "web")
        with pytest.raises(ObjectError, match="cannot be read"):
            await create_request(harness)
        assert await harness.get(REQUESTS, "web") == before

    run_with_reconciler(tmp_path, test)
