"""How a leader marks its lease, and how others find it by that."""

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


def test_a_mark_names_the_pod_and_the_port(tmp_path: Path) -> None:
    marks = leader_annotations("me_1", 10259, ENV, tmp_path)
    assert marks is not None
    assert json.loads(marks[LEADER_ANNOTATION]) == {
        "identity": "me_1",
        "namespace": "kube-system",
        "pod": "bayplan-7",
        "port": 10259,
    }
    assert leader_annotations("me_1", 10259, {}, tmp_path) is None  # no pod, nothing that a proxy could lead to
    (tmp_path / "namespace").write_text("ours\n")
    marks = leader_annotations("me_1", 10259, {"POD_NAME": "bayplan-7"}, tmp_path)
    assert marks is not None
    assert json.loads(marks[LEADER_ANNOTATION])["namespace"] == "ours"


@async_test
async def test_the_leader_is_found_by_its_mark() -> None:
    marks = leader_annotations("me_1", 10259, ENV)
    async with FakeHttpServer(script=[lease("me_1", marks)]) as server, server.client() as client:
        found = await leader_proxy_path(client, "kube-system", "kube-scheduler")
        assert found == "/api/v1/namespaces/kube-system/pods/https:bayplan-7:10259/proxy"
        assert server.request_lines() == [f"GET {LEASE}"]


@pytest.mark.parametrize(
    ("answer", "words"),
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
def test_a_lease_that_leads_nowhere_says_so(answer: Reply, words: str) -> None:
    @async_test
    async def ask() -> None:
        async with FakeHttpServer(script=[answer]) as server, server.client() as client:
            with pytest.raises(UsageError, match=words):
                await leader_proxy_path(client, "kube-system", "kube-scheduler")

    ask()


@async_test
async def test_a_holder_marks_the_lease_and_leaves_other_annotations_alone() -> None:
    marks = leader_annotations("me_1", 10259, ENV)
    written: list[dict[str, Any]] = []

    def answer(request: Request) -> Reply:
        if request.method == "GET":
            meta = {"name": "kube-scheduler", "namespace": "kube-system", "resourceVersion": "1"}
            meta |= {"annotations": {"a": "b"}}
            return Reply(200, {"metadata": meta, "spec": {"holderIdentity": ""}})
        written.append(request.json)
        return Reply(200, request.json)

    async with FakeHttpServer(answer) as server, server.client() as client:
        lock = LeaseLock(client, namespace="kube-system", name="kube-scheduler", marks=marks)
        await lock.get()
        await lock.update(LeaderElectionRecord())
        assert written[-1]["metadata"]["annotations"] == {"a": "b"}  # nobody holds it: there is nobody to mark
        await lock.update(LeaderElectionRecord(holder="me_1"))
        assert written[-1]["metadata"]["annotations"] == {"a": "b", **(marks or {})}
        await lock.create(LeaderElectionRecord(holder="me_1"))
        assert written[-1]["metadata"]["annotations"] == marks


@async_test
async def test_a_token_is_known_to_its_owner_and_other_proofs_are_not() -> None:
    async with FakeHttpServer() as server:
        async with server.client(target=server.target(token=Secret("mine"))) as client:
            assert await client.transport.own_token() == "mine"
        async with server.client(target=server.target(username="u", password=Secret("p"))) as client:
            assert await client.transport.own_token() == ""
        async with server.client() as client:
            assert await client.transport.own_token() == ""


@async_test
async def test_headers_of_a_request_are_sent_besides_ours() -> None:
    async with FakeHttpServer(script=[Reply(), status(404, "NotFound")]) as server, server.client() as client:
        await client.transport.request("GET", "/x", headers={"X-Bayplan-Token": "t"})
        assert server.requests[0].headers["x-bayplan-token"] == "t"
