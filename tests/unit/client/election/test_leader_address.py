"""The annotation of a leader on its lease, and how clients find the leader by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import leader_annotations, leader_proxy_path
from bayplan.client.auth.secret import Secret
from bayplan.client.election.leader_address import LEADER_ANNOTATION
from bayplan.client.election.lease_lock import LeaderElectionRecord, LeaseLock
from bayplan.errors import UsageError
from support.fakes.http_server import FakeHttpServer, Reply, Request, status
from support.harness.async_tests import async_test

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
ENV = {"POD_NAMESPACE": "kube-system", "POD_NAME": "bayplan-7"}


def lease(holder: str, annotations: dict[str, str] | None = None) -> Reply:
    return Reply(200, {"metadata": {"annotations": annotations or {}}, "spec": {"holderIdentity": holder}})


def test_the_annotation_names_pod_and_port(tmp_path: Path) -> None:
    annotations = leader_annotations("me_1", 10259, ENV, tmp_path)
    assert annotations is not None
    assert json.loads(annotations[LEADER_ANNOTATION]) == {
        "identity": "me_1",
        "namespace": "kube-system",
        "pod": "bayplan-7",
        "port": 10259,
    }
    assert leader_annotations("me_1", 10259, {}, tmp_path) is None  # outside of a pod no proxy path exists
    (tmp_path / "namespace").write_text("ours\n")
    annotations = leader_annotations("me_1", 10259, {"POD_NAME": "bayplan-7"}, tmp_path)
    assert annotations is not None
    assert json.loads(annotations[LEADER_ANNOTATION])["namespace"] == "ours"


@async_test
async def test_the_leader_is_found_by_its_annotation() -> None:
    annotations = leader_annotations("me_1", 10259, ENV)
    async with FakeHttpServer(script=[lease("me_1", annotations)]) as server, server.client() as client:
        found = await leader_proxy_path(client, "kube-system", "kube-scheduler")
        assert found == "/api/v1/namespaces/kube-system/pods/https:bayplan-7:10259/proxy"
        assert server.request_lines() == [f"GET {LEASE}"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(status(404, "NotFound"), "there is no lease .* name another with --lease", id="no-lease"),
        pytest.param(lease(""), "no process holds the lease", id="nobody-leads"),
        pytest.param(lease("kube_9"), "is not Bayplan in a pod", id="no-mark"),
        pytest.param(
            lease("kube_9", leader_annotations("me_1", 1, ENV)), "is not Bayplan in a pod", id="mark-of-another"
        ),
        pytest.param(lease("me_1", {LEADER_ANNOTATION: "no json"}), "is not Bayplan in a pod", id="no-mark-of-ours"),
    ],
)
def test_the_error_says_why_a_lease_has_no_address(answer: Reply, expected: str) -> None:
    @async_test
    async def run() -> None:
        async with FakeHttpServer(script=[answer]) as server, server.client() as client:
            with pytest.raises(UsageError, match=expected):
                await leader_proxy_path(client, "kube-system", "kube-scheduler")

    run()


@async_test
async def test_a_holder_adds_its_annotation_to_the_existing_ones() -> None:
    annotations = leader_annotations("me_1", 10259, ENV)
    writes: list[dict[str, Any]] = []

    def answer(request: Request) -> Reply:
        if request.method == "GET":
            meta = {"name": "kube-scheduler", "namespace": "kube-system", "resourceVersion": "1"}
            meta |= {"annotations": {"a": "b"}}
            return Reply(200, {"metadata": meta, "spec": {"holderIdentity": ""}})
        writes.append(request.json)
        return Reply(200, request.json)

    async with FakeHttpServer(answer) as server, server.client() as client:
        lock = LeaseLock(client, namespace="kube-system", name="kube-scheduler", annotations=annotations)
        await lock.get()
        await lock.update(LeaderElectionRecord())
        assert writes[-1]["metadata"]["annotations"] == {"a": "b"}  # a record without holder gets no annotation
        await lock.update(LeaderElectionRecord(holder="me_1"))
        assert writes[-1]["metadata"]["annotations"] == {"a": "b", **(annotations or {})}
        await lock.create(LeaderElectionRecord(holder="me_1"))
        assert writes[-1]["metadata"]["annotations"] == annotations


@async_test
async def test_own_token_returns_bearer_tokens_only() -> None:
    async with FakeHttpServer() as server:
        async with server.client(target=server.target(token=Secret("mine"))) as client:
            assert await client.transport.own_token() == "mine"
        async with server.client(target=server.target(username="u", password=Secret("p"))) as client:
            assert await client.transport.own_token() == ""
        async with server.client() as client:
            assert await client.transport.own_token() == ""


@async_test
async def test_headers_of_a_request_are_added() -> None:
    async with FakeHttpServer(script=[Reply(), status(404, "NotFound")]) as server, server.client() as client:
        await client.transport.request("GET", "/x", headers={"X-Bayplan-Token": "t"})
        assert server.requests[0].headers["x-bayplan-token"] == "t"
