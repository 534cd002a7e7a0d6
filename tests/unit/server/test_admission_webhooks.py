"""Answers to AdmissionReviews, directly and over HTTPS."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bayplan.admission.gpu_sharing import match_conditions
from bayplan.admission.webhooks import GPU_WEBHOOKS, WEBHOOKS, AdmissionSettings, webhooks_for
from bayplan.clock import SystemClock
from bayplan.errors import ServingError
from bayplan.server.admission_webhooks import (
    MAX_BODY_BYTES,
    AdmissionHandler,
    InvalidAdmissionReview,
    WebhookServer,
    webhook_configurations,
)
from bayplan.server.http.serving_tls import ServingTls, TlsOptions
from support.builders.volcano_manifests import job, queue, task
from support.fakes.certificates import Authority
from support.harness.async_tests import async_test
from support.harness.health_server import client_tls_context

Tree = dict[str, Any]


class FakeContext:
    def queues(self) -> Mapping[str, Tree]:
        return {"default": queue("default")}

    def namespace(self, name: str) -> Tree | None:
        return {"metadata": {"name": name, "annotations": {"scheduling.volcano.sh/queue-name": "team"}}}

    def template_errors(self, name: str, namespace: str, template: Tree) -> list[str]:  # noqa: ARG002
        return []


HANDLER = AdmissionHandler(WEBHOOKS, FakeContext(), AdmissionSettings())


def review(item: Tree | None, *, operation: str = "CREATE", old: Tree | None = None) -> bytes:
    request = {"uid": "1", "operation": operation, "object": item, "oldObject": old, "namespace": "ml", "name": "x"}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def test_a_job_is_defaulted_by_a_patch() -> None:
    answer = HANDLER.respond("/jobs/mutate", review(job("a", task("worker", 2))))
    response = answer["response"]
    assert (answer["kind"], response["uid"], response["allowed"], response["patchType"]) == (
        *("AdmissionReview", "1", True, "JSONPatch"),
    )
    patch = {each["path"]: each["value"] for each in json.loads(base64.b64decode(response["patch"]))}
    assert (patch["/spec/queue"], patch["/spec/minAvailable"]) == ("default", 2)
    assert "/metadata/namespace" not in patch


def test_without_defaults_there_is_no_patch() -> None:
    full = {**queue("q", weight=1, reclaimable=True), "status": {}}
    assert "patch" not in HANDLER.respond("/queues/mutate", review(full))["response"]


def test_the_namespace_of_the_request_is_used() -> None:
    group = {"metadata": {"name": "g"}, "spec": {"queue": "default"}}
    patch = json.loads(base64.b64decode(HANDLER.respond("/podgroups/mutate", review(group))["response"]["patch"]))
    assert patch == [{"op": "replace", "path": "/spec/queue", "value": "team"}]


def test_a_rejection_has_a_message() -> None:
    response = HANDLER.respond("/jobs/validate", review(job("a", task("w"), task("w"), queue="default")))["response"]
    assert response == {"uid": "1", "allowed": False, "status": {"message": "duplicated task name w;"}}


def test_a_deletion_is_validated_by_name() -> None:
    body = review(None, operation="DELETE", old=queue("default")).replace(b'"name": "x"', b'"name": "default"')
    response = HANDLER.respond("/queues/validate", body)["response"]
    assert response["status"]["message"] == "`default` queue can not be deleted"


def test_an_unsupported_operation_is_rejected() -> None:
    response = HANDLER.respond("/pods/validate", review({}, operation="CONNECT"))["response"]
    assert response["allowed"] is False


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"kind":"AdmissionReview"}', b'{"kind":"AdmissionReview","request":{"object":3}}']
)
def test_invalid_reviews_raise(body: bytes) -> None:
    with pytest.raises(InvalidAdmissionReview):
        HANDLER.respond("/jobs/mutate", body)


def test_the_webhook_configurations() -> None:
    found = webhook_configurations(
        WEBHOOKS, name="v", client={"service": {"name": "s", "namespace": "n"}, "caBundle": "x"}
    )
    assert len(found) == len(WEBHOOKS)
    first = next(each for each in found if each["metadata"]["name"] == "v-jobs-mutate")
    assert first["kind"] == "MutatingWebhookConfiguration"
    (hook,) = first["webhooks"]
    assert hook["clientConfig"]["service"] == {"name": "s", "namespace": "n", "path": "/jobs/mutate"}
    assert hook["rules"][0]["operations"] == ["CREATE"]
    by_url = webhook_configurations(WEBHOOKS[:1], name="v", client={"url": "https://h:1/"})
    assert by_url[0]["webhooks"][0]["clientConfig"] == {"url": f"https://h:1{WEBHOOKS[0].path}"}


def test_match_conditions_select_the_pods_that_share_gpus() -> None:
    webhooks = [*GPU_WEBHOOKS, *webhooks_for(["/pods/mutate"])]
    found = webhook_configurations(webhooks, name="v", client={"url": "https://h:1"}, sharing=["bayplan", "other"])
    assert [each["metadata"]["name"] for each in found] == [
        "bayplan-gpus-mutate",
        "bayplan-gpus-validate",
        "v-pods-mutate",
    ]
    for each in found[:2]:
        assert each["metadata"]["annotations"] == {"bayplan.dev/scheduler-names": "bayplan,other"}
        assert each["webhooks"][0]["matchConditions"] == match_conditions(["bayplan", "other"])
    assert "matchConditions" not in found[2]["webhooks"][0]


def test_a_pod_that_shares_a_gpu_gets_references_by_a_patch() -> None:
    pod = {
        "metadata": {"name": "p", "annotations": {"gpu-fraction": "0.5"}},
        "spec": {"containers": [{"name": "main"}]},
    }
    response = HANDLER.respond("/gpus/mutate", review(pod))["response"]
    patch = {each["path"]: each for each in json.loads(base64.b64decode(response["patch"]))}
    assert set(patch) == {"/metadata/annotations/runai~1shared-gpu-configmap", "/spec/containers", "/spec/volumes"}


@asynccontextmanager
async def run_server(options: TlsOptions | None = None) -> AsyncIterator[WebhookServer]:
    clock = SystemClock()
    tls = ServingTls(options or TlsOptions(), clock, address="127.0.0.1")
    server = WebhookServer(HANDLER, tls=tls, clock=clock, address="127.0.0.1", port=0)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def webhook_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a running webhook server."""
    async with run_server() as server:
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(f"https://127.0.0.1:{server.port}", connector=connector) as session:
            yield session


@async_test
async def test_reviews_over_https() -> None:
    async with webhook_session() as session:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        for weight in (1, 2):  # the second on the same connection
            body = review(queue("q", weight=weight))
            async with session.post("/queues/mutate", data=body, headers=headers) as answer:
                assert answer.content_type == "application/json"
                assert (await answer.json())["response"]["allowed"] is True
        async with session.get("/healthz") as answer:
            assert await answer.text() == "ok"


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "expected"),
    [
        pytest.param("POST", "/queues/mutate", b"{}", "application/json", 400, id="no review"),
        pytest.param("POST", "/nowhere", b"{}", "application/json", 404, id="unknown path"),
        pytest.param("POST", "/healthz", b"{}", "application/json", 404, id="a review for the health check"),
        pytest.param("GET", "/queues/mutate", b"", "", 405, id="no POST"),
        pytest.param("POST", "/jobs/mutate", b"x", "text/plain", 415, id="other content type"),
    ],
)
@async_test
async def test_invalid_requests_are_refused(
    method: str, path: str, body: bytes, content_type: str, expected: int
) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    async with webhook_session() as session, session.request(method, path, data=body, headers=headers) as answer:
        assert answer.status == expected


@async_test
async def test_reviews_may_be_as_large_as_requests_of_the_api_server() -> None:
    headers = {"Content-Type": "application/json"}
    largest = review(queue("q")).ljust(MAX_BODY_BYTES)
    async with webhook_session() as session:
        async with session.post("/queues/mutate", data=largest, headers=headers) as answer:
            assert (await answer.json())["response"]["allowed"] is True
        too_large = {**headers, "Content-Length": str(MAX_BODY_BYTES + 1), "Expect": "100-continue"}
        async with session.post("/queues/mutate", data=largest + b" ", headers=too_large) as answer:
            assert answer.status == 413


@async_test
async def test_a_port_in_use_is_an_error() -> None:
    clock = SystemClock()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        tls = ServingTls(TlsOptions(), clock)
        server = WebhookServer(HANDLER, tls=tls, clock=clock, address="127.0.0.1", port=port)
        with pytest.raises(ServingError, match=f"cannot listen on 127.0.0.1:{port}: .*; choose another --port"):
            await server.start()
        await server.close()


@async_test
async def test_a_rotated_certificate_is_read_again(tmp_path: Path) -> None:
    options = TlsOptions(cert_file=str(tmp_path / "tls.crt"), key_file=str(tmp_path / "tls.key"))
    authorities = [Authority("first"), Authority("second")]
    write_pair(tmp_path, authorities[0])
    async with run_server(options) as server:
        for authority in authorities:
            write_pair(tmp_path, authority)
            context = client_tls_context(ca=authority.certificate)
            url = f"https://127.0.0.1:{server.port}/healthz"
            async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
                assert answer.status == 200


def write_pair(folder: Path, authority: Authority) -> None:
    pair = authority.server("127.0.0.1")
    (folder / "tls.crt").write_text(pair.certificate)
    (folder / "tls.key").write_text(pair.key)
