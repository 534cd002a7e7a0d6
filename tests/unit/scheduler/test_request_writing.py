"""Requests as the API server gets them: made once, never changed later, deleted only as what they were known for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.errors import ApiError, Conflict, NotFound, ObjectError
from bayplan.framework.intents import CreateBindRequest, DeleteBindRequest
from bayplan.objects.bind_requests import OURS, TAKEN_BY, BindRequest, new_request
from bayplan.objects.core import Pod
from bayplan.scheduler.request_writing import RequestWrites
from binder_rig import PODS, REQUESTS, BinderRig, on_rig

KEY = "noting.kai.scheduler/x"


async def made(rig: BinderRig, value: str = "1") -> BindRequest:
    """Ask for the request of the pod, with what plugins say this time."""
    if await rig.find(PODS, "web") is None:
        await rig.pod()
    pod = await rig.client.get(Pod, "default", "web")
    request = new_request(pod, "n1", annotations={KEY: value}, backoff_limit=3)
    return await RequestWrites(rig.client).create(CreateBindRequest(pod, request))


def test_what_plugins_say_is_written_when_a_request_is_made_and_never_later(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        first = await made(rig)
        again = await made(rig, "2")
        assert again.metadata.annotations == first.metadata.annotations == {KEY: "1"}
        there = (await rig.get(REQUESTS, "web"))["metadata"]
        assert there["annotations"] == {KEY: "1"}
        assert there["resourceVersion"] == first.metadata.resource_version == again.metadata.resource_version

    on_rig(tmp_path, test)


def test_a_decision_that_has_changed_is_a_request_made_anew(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        first = await made(rig)
        await rig.patch(REQUESTS, "web", {"status": {"phase": "Failed", "failedAttempts": 3}}, sub="status")
        second = await made(rig, "2")
        assert second.metadata.annotations == {KEY: "2"}
        assert second.metadata.uid != first.metadata.uid

    on_rig(tmp_path, test)


@pytest.mark.parametrize("unchanged", [True, False], ids=["as it was", "as it is"])
def test_a_request_that_changed_is_deleted_unless_it_had_to_be_as_it_was(tmp_path: Path, unchanged: bool) -> None:
    async def test(rig: BinderRig) -> None:
        request = await made(rig)
        await rig.patch(REQUESTS, "web", {"status": {"phase": "Failed", "failedAttempts": 1}}, sub="status")
        writes, told = RequestWrites(rig.client), list[BindRequest | None]()
        if unchanged:
            with pytest.raises(Conflict):
                await writes.delete(DeleteBindRequest(request, unchanged=True))
            await writes.delete(DeleteBindRequest(request, unchanged=True, then=told.append))
            assert [each and each.status.failed_attempts for each in told] == [1]
            assert (await rig.status())["phase"] == "Failed"
        else:
            await writes.delete(DeleteBindRequest(request, then=told.append))
            await writes.delete(DeleteBindRequest(request, then=told.append))  # it is gone, which was wanted
            assert await rig.find(REQUESTS, "web") is None
            assert told == [None, None]

    on_rig(tmp_path, test)


def test_a_request_that_is_there_after_a_404_was_not_deleted(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        request, answers = await made(rig), list[BindRequest | None]()

        async def not_found(*_: object, **__: object) -> None:
            raise NotFound("not found", code=404)

        delete, rig.client.delete = rig.client.delete, not_found  # type: ignore[method-assign, assignment]
        with pytest.raises(NotFound):
            await RequestWrites(rig.client).delete(DeleteBindRequest(request, then=answers.append))
        assert answers == []
        rig.client.delete = delete  # type: ignore[method-assign]
        await RequestWrites(rig.client).delete(DeleteBindRequest(request, then=answers.append))
        assert answers == [None]

    on_rig(tmp_path, test)


def test_another_request_of_that_name_is_left_alone(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        request = await made(rig)
        earlier = replace(request, metadata=replace(request.metadata, uid="earlier"))
        with pytest.raises(Conflict):
            await RequestWrites(rig.client).delete(DeleteBindRequest(earlier))
        assert await rig.find(REQUESTS, "web") is not None

    on_rig(tmp_path, test)


async def handmade(rig: BinderRig, *, pod: str = "web", node: str = "n2", ours: bool = False, **status: object) -> None:
    """A request that nobody owns and that does not say which pod of the name it means."""
    await rig.request(None, node, podName=pod)
    if ours:
        await rig.patch(REQUESTS, "web", {"metadata": {"labels": {TAKEN_BY: OURS}}})
    if status:
        await rig.patch(REQUESTS, "web", {"status": status}, sub="status")


@pytest.mark.parametrize(
    ("there", "says"),
    [
        pytest.param({}, "to node n2; it is not ours", id="theirs"),
        pytest.param({"ours": True}, "to node n2; the binder carries that one out", id="ours"),
        pytest.param({"phase": "Failed", "failedAttempts": 1}, "it is not ours", id="tried again"),
        pytest.param({"pod": "db"}, "in the way: it is a live one for pod default/db", id="for another pod"),
        pytest.param({"pod": "db", "ours": True}, "it is a live one for pod default/db", id="ours for another pod"),
    ],
)
def test_a_live_request_that_is_in_the_way_is_named_and_left_alone(
    tmp_path: Path, there: dict[str, Any], says: str
) -> None:
    async def test(rig: BinderRig) -> None:
        await handmade(rig, **there)
        before = await rig.get(REQUESTS, "web")
        with pytest.raises(ApiError, match=re.escape(says)):
            await made(rig)
        assert await rig.get(REQUESTS, "web") == before

    on_rig(tmp_path, test)


def test_a_live_request_of_an_earlier_pod_is_left_alone_unless_it_is_ours(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.request(None, "n2", podUID="earlier")
        with pytest.raises(ApiError, match="an earlier pod of that name, with uid earlier"):
            await made(rig)
        await rig.patch(REQUESTS, "web", {"metadata": {"labels": {TAKEN_BY: OURS}}})
        assert (await made(rig)).pod_uid != "earlier"

    on_rig(tmp_path, test)


@pytest.mark.parametrize(
    "there",
    [
        pytest.param({"phase": "Failed", "failedAttempts": 3}, id="given up"),
        pytest.param({"pod": "db", "phase": "Succeeded"}, id="done, for another pod"),
    ],
)
def test_a_request_of_others_that_is_over_makes_room(tmp_path: Path, there: dict[str, Any]) -> None:
    async def test(rig: BinderRig) -> None:
        await handmade(rig, **there)
        assert (await made(rig)).is_ours

    on_rig(tmp_path, test)


def test_a_live_request_of_others_to_the_same_node_is_what_was_wanted(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await handmade(rig, node="n1")
        before = await rig.get(REQUESTS, "web")
        assert (await made(rig)).metadata.uid == before["metadata"]["uid"]

    on_rig(tmp_path, test)


def test_a_request_that_is_being_deleted_is_waited_for_and_not_taken_for_ours(tmp_path: Path) -> None:
    """It names the pod and the node that are wanted, and nobody carries it out any more."""

    async def test(rig: BinderRig) -> None:
        first = await made(rig)
        await rig.patch(REQUESTS, "web", {"metadata": {"finalizers": ["example.com/held"]}})
        await rig.client.delete(REQUESTS, name="web", namespace="default")
        with pytest.raises(Conflict, match="default/web is being deleted; it is made anew when it is gone"):
            await made(rig)
        await rig.patch(REQUESTS, "web", {"metadata": {"finalizers": None}})
        assert (await made(rig)).metadata.uid != first.metadata.uid

    on_rig(tmp_path, test)


@pytest.mark.parametrize("status", [{}, {"phase": "Failed", "failedAttempts": 1}], ids=["new", "to be tried again"])
def test_a_live_request_of_ours_that_cannot_be_read_is_left_to_the_binder(
    tmp_path: Path, status: dict[str, Any]
) -> None:
    async def test(rig: BinderRig) -> None:
        garbled = {"resourceClaimAllocations": [{"name": "gpu", "allocation": {"devices": 3}}]}
        await rig.request(await rig.pod(), **garbled)
        await rig.patch(REQUESTS, "web", {"metadata": {"labels": {TAKEN_BY: OURS}}})
        if status:
            await rig.patch(REQUESTS, "web", {"status": status}, sub="status")
        before = await rig.get(REQUESTS, "web")
        with pytest.raises(ObjectError, match="cannot be read"):
            await made(rig)
        assert await rig.get(REQUESTS, "web") == before

    on_rig(tmp_path, test)
