"""Requests as the API server gets them: made once, never changed later, deleted only as what they were known for."""

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
from bayplan.objects.kai.bind_request import (
    HANDLED_BY_BAYPLAN,
    HANDLED_BY_LABEL,
    BindRequest,
    new_request,
)
from support.harness.reconciler import (
    PODS,
    REQUESTS,
    ReconcilerHarness,
    run_with_reconciler,
)

KEY = "noting.kai.scheduler/x"


async def made(rig: ReconcilerHarness, value: str = "1") -> BindRequest:
    """Ask for the request of the pod, with what plugins say this time."""
    if await rig.find(PODS, "web") is None:
        await rig.pod()
    pod = await rig.client.get(Pod, "default", "web")
    request = new_request(pod, "n1", annotations={KEY: value}, backoff_limit=3)
    return await BindRequestWrites(rig.client).create(CreateBindRequest(pod, request))


def test_what_plugins_say_is_written_when_a_request_is_made_and_never_later(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        first = await made(rig)
        again = await made(rig, "2")
        assert again.metadata.annotations == first.metadata.annotations == {KEY: "1"}
        there = (await rig.get(REQUESTS, "web"))["metadata"]
        assert there["annotations"] == {KEY: "1"}
        assert there["resourceVersion"] == first.metadata.resource_version == again.metadata.resource_version

    run_with_reconciler(tmp_path, test)


def test_a_decision_that_has_changed_is_a_request_made_anew(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        first = await made(rig)
        await rig.patch(REQUESTS, "web", {"status": {"phase": "Failed", "failedAttempts": 3}}, sub="status")
        second = await made(rig, "2")
        assert second.metadata.annotations == {KEY: "2"}
        assert second.metadata.uid != first.metadata.uid

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("unchanged", [True, False], ids=["as it was", "as it is"])
def test_a_request_that_changed_is_deleted_unless_it_had_to_be_as_it_was(tmp_path: Path, unchanged: bool) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        request = await made(rig)
        await rig.patch(REQUESTS, "web", {"status": {"phase": "Failed", "failedAttempts": 1}}, sub="status")
        writes, told = BindRequestWrites(rig.client), list[BindRequest | None]()
        if unchanged:
            with pytest.raises(Conflict):
                await writes.delete(DeleteBindRequest(request, only_if_unchanged=True))
            await writes.delete(DeleteBindRequest(request, only_if_unchanged=True, on_deleted=told.append))
            assert [each and each.status.failed_attempts for each in told] == [1]
            assert (await rig.status())["phase"] == "Failed"
        else:
            await writes.delete(DeleteBindRequest(request, on_deleted=told.append))
            await writes.delete(DeleteBindRequest(request, on_deleted=told.append))  # it is gone, which was wanted
            assert await rig.find(REQUESTS, "web") is None
            assert told == [None, None]

    run_with_reconciler(tmp_path, test)


def test_a_request_that_is_there_after_a_404_was_not_deleted(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        request, answers = await made(rig), list[BindRequest | None]()

        async def not_found(*_: object, **__: object) -> None:
            raise NotFound("not found", code=404)

        delete, rig.client.delete = rig.client.delete, not_found  # type: ignore[method-assign, assignment]
        with pytest.raises(NotFound):
            await BindRequestWrites(rig.client).delete(DeleteBindRequest(request, on_deleted=answers.append))
        assert answers == []
        rig.client.delete = delete  # type: ignore[method-assign]
        await BindRequestWrites(rig.client).delete(DeleteBindRequest(request, on_deleted=answers.append))
        assert answers == [None]

    run_with_reconciler(tmp_path, test)


def test_another_request_of_that_name_is_left_alone(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        request = await made(rig)
        earlier = replace(request, metadata=replace(request.metadata, uid="earlier"))
        with pytest.raises(Conflict):
            await BindRequestWrites(rig.client).delete(DeleteBindRequest(earlier))
        assert await rig.find(REQUESTS, "web") is not None

    run_with_reconciler(tmp_path, test)


async def handmade(
    rig: ReconcilerHarness, *, pod: str = "web", node: str = "n2", ours: bool = False, **status: object
) -> None:
    """A request that nobody owns and that does not say which pod of the name it means."""
    await rig.request(None, node, podName=pod)
    if ours:
        await rig.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
    if status:
        await rig.patch(REQUESTS, "web", {"status": status}, sub="status")


@pytest.mark.parametrize(
    ("there", "says"),
    [
        pytest.param({}, "to node n2; another binder (it has no label", id="theirs"),
        pytest.param({"ours": True}, "to node n2; the binder has to carry that one out", id="ours"),
        pytest.param({"phase": "Failed", "failedAttempts": 1}, "another binder (it has no label", id="tried again"),
        pytest.param(
            {"pod": "db"}, "has the name that is needed: it is a live one for pod default/db", id="for another pod"
        ),
        pytest.param({"pod": "db", "ours": True}, "it is a live one for pod default/db", id="ours for another pod"),
    ],
)
def test_a_live_request_that_is_in_the_way_is_named_and_left_alone(
    tmp_path: Path, there: dict[str, Any], says: str
) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await handmade(rig, **there)
        before = await rig.get(REQUESTS, "web")
        with pytest.raises(ApiError, match=re.escape(says)):
            await made(rig)
        assert await rig.get(REQUESTS, "web") == before

    run_with_reconciler(tmp_path, test)


def test_a_live_request_of_an_earlier_pod_is_left_alone_unless_it_is_ours(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(None, "n2", podUID="earlier")
        with pytest.raises(ApiError, match="an earlier pod of that name, with uid earlier"):
            await made(rig)
        await rig.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        assert (await made(rig)).pod_uid != "earlier"

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize(
    "there",
    [
        pytest.param({"phase": "Failed", "failedAttempts": 3}, id="given up"),
        pytest.param({"pod": "db", "phase": "Succeeded"}, id="done, for another pod"),
    ],
)
def test_a_request_of_others_that_is_over_makes_room(tmp_path: Path, there: dict[str, Any]) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await handmade(rig, **there)
        assert (await made(rig)).is_handled_by_bayplan

    run_with_reconciler(tmp_path, test)


def test_a_live_request_of_others_to_the_same_node_is_what_was_wanted(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await handmade(rig, node="n1")
        before = await rig.get(REQUESTS, "web")
        assert (await made(rig)).metadata.uid == before["metadata"]["uid"]

    run_with_reconciler(tmp_path, test)


def test_a_request_that_is_being_deleted_is_waited_for_and_not_taken_for_ours(tmp_path: Path) -> None:
    """It names the pod and the node that are wanted, and nobody carries it out any more."""

    async def test(rig: ReconcilerHarness) -> None:
        first = await made(rig)
        await rig.patch(REQUESTS, "web", {"metadata": {"finalizers": ["example.com/held"]}})
        await rig.client.delete(REQUESTS, name="web", namespace="default")
        with pytest.raises(Conflict, match="default/web is being deleted; it is created again after that"):
            await made(rig)
        await rig.patch(REQUESTS, "web", {"metadata": {"finalizers": None}})
        assert (await made(rig)).metadata.uid != first.metadata.uid

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("status", [{}, {"phase": "Failed", "failedAttempts": 1}], ids=["new", "to be tried again"])
def test_a_live_request_of_ours_that_cannot_be_read_is_left_to_the_binder(
    tmp_path: Path, status: dict[str, Any]
) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        garbled = {"resourceClaimAllocations": [{"name": "gpu", "allocation": {"devices": 3}}]}
        await rig.request(await rig.pod(), **garbled)
        await rig.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        if status:
            await rig.patch(REQUESTS, "web", {"status": status}, sub="status")
        before = await rig.get(REQUESTS, "web")
        with pytest.raises(ObjectError, match="cannot be read"):
            await made(rig)
        assert await rig.get(REQUESTS, "web") == before

    run_with_reconciler(tmp_path, test)
