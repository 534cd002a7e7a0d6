"""Write requests of the client and their preconditions."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.client import EVENTS, JSON_PATCH, MERGE_PATCH, PODS, STRATEGIC_PATCH, Client, resource_of
from bayplan.errors import ApiError, Conflict, ObjectError
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from support.fakes.http_server import FakeHttpServer, Reply, Request, status
from support.harness.async_tests import async_test

NODES = resource_of(kind_of(Node))


def echo(request: Request) -> Reply:
    return Reply(200, request.json if request.body and isinstance(request.json, dict) else {})


async def sent(write: Any) -> tuple[Request, Any]:
    """The request that a write sends, and its result."""
    async with FakeHttpServer(echo) as server, server.client() as client:
        result = await write(client)
        [request] = server.requests
        return request, result


@async_test
async def test_bind_sends_a_binding() -> None:
    request, _ = await sent(lambda client: client.bind("ns", "pod", "node-1", uid="u"))
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/ns/pods/pod/binding")
    assert request.headers["content-type"] == "application/json"
    assert request.json == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": "ns", "name": "pod", "uid": "u"},
        "target": {"kind": "Node", "name": "node-1"},
    }


@async_test
async def test_a_binding_has_a_uid_only_if_given() -> None:
    request, _ = await sent(lambda client: client.bind("ns", "pod", "node-1"))
    assert request.json["metadata"] == {"namespace": "ns", "name": "pod"}


@async_test
async def test_create() -> None:
    request, body = await sent(lambda client: client.create(EVENTS, {"reason": "Scheduled"}, namespace="ns"))
    assert (request.method, request.path) == ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events")
    assert body == b'{"reason":"Scheduled"}'


@pytest.mark.parametrize("kind", [MERGE_PATCH, STRATEGIC_PATCH, JSON_PATCH])
@async_test
async def test_patch(kind: str) -> None:
    request, _ = await sent(
        lambda client: client.patch(
            PODS, b"[]", namespace="ns", name="p", subresource="status", kind=kind, field_manager="me"
        )
    )
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/ns/pods/p/status")
    assert request.headers["content-type"] == kind
    assert request.options == {"fieldManager": "me"}


@async_test
async def test_delete_with_preconditions() -> None:
    request, _ = await sent(
        lambda client: client.delete(PODS, namespace="ns", name="p", uid="u", resource_version="5", grace_s=0)
    )
    assert (request.method, request.path) == ("DELETE", "/api/v1/namespaces/ns/pods/p")
    assert request.json == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "5"},
        "gracePeriodSeconds": 0,
    }


@async_test
async def test_delete_without_preconditions() -> None:
    request, _ = await sent(lambda client: client.delete(NODES, name="n", propagation="Background"))
    assert request.path == "/api/v1/nodes/n"
    assert request.json == {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}


@async_test
async def test_update_sends_the_resource_version() -> None:
    tree = {"metadata": {"name": "p", "namespace": "ns", "resourceVersion": "5"}, "spec": {"unknownToUs": 1}}
    request, result = await sent(lambda client: client.update(PODS, tree, subresource="status"))
    assert (request.method, request.path) == ("PUT", "/api/v1/namespaces/ns/pods/p/status")
    assert request.json == result == tree


@async_test
async def test_update_without_resource_version_is_refused() -> None:
    async with FakeHttpServer(echo) as server, server.client() as client:
        with pytest.raises(ApiError, match="has no resourceVersion"):
            await client.update(PODS, {"metadata": {"name": "p", "namespace": "ns"}})
        assert server.requests == []


@async_test
async def test_a_409_raises_conflict() -> None:
    refusal = status(409, "Conflict", "the object has been modified")
    async with FakeHttpServer(lambda _: refusal) as server, server.client() as client:
        with pytest.raises(Conflict):
            await client.bind("ns", "p", "n")


@async_test
async def test_get() -> None:
    reply = Reply(200, {"metadata": {"name": "p"}, "spec": {"x": 1}})
    async with FakeHttpServer(lambda _: reply) as server, server.client() as client:
        pod = await client.get(Pod, "ns", "p")
        assert pod.name == "p"
        assert (await client.get_raw(PODS, "ns", "p"))["spec"] == {"x": 1}


@async_test
async def test_get_of_an_undecodable_object_is_an_error() -> None:
    reply = Reply(200, {"metadata": {"name": "p"}, "spec": 5})
    async with FakeHttpServer(lambda _: reply) as server, server.client() as client:
        with pytest.raises(ObjectError, match='Pod "p" cannot be read: spec is'):
            await client.get(Pod, "ns", "p")


@async_test
async def test_names_are_quoted_in_paths() -> None:
    request, _ = await sent(lambda client: client.bind("ns", "../../secrets?x=y", "n"))
    assert request.path == "/api/v1/namespaces/ns/pods/..%2F..%2Fsecrets%3Fx%3Dy/binding"


@async_test
async def test_the_path_of_the_server_url_is_kept() -> None:
    async with FakeHttpServer(echo) as server:
        target = server.target()
        below = type(target)(server=f"{target.server}/clusters/one")
        client: Client = server.client(target=below)
        async with client:
            await client.bind("ns", "p", "n")
        assert server.requests[0].path == "/clusters/one/api/v1/namespaces/ns/pods/p/binding"


@async_test
async def test_the_observer_gets_every_response() -> None:
    seen: list[tuple[str, int]] = []

    def observe(method: str, code: int, _: float) -> None:
        seen.append((method, code))

    script = [Reply(201), status(404, "NotFound")]
    async with FakeHttpServer(script=script) as server, server.client(observer=observe) as client:
        await client.bind("ns", "p", "n")
        with pytest.raises(ApiError):
            await client.get_raw(PODS, "ns", "p")
    assert seen == [("POST", 201), ("GET", 404)]
