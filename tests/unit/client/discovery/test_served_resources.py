"""Kinds that a server offers, according to its discovery documents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import EVENTS, LEASES
from bayplan.clock import ManualClock
from bayplan.errors import ApiError, Unreachable
from bayplan.objects.core import Pod
from bayplan.objects.kinds import KINDS, kind_of
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.volcano.types import Queue
from bayplan.objects.workloads import ReplicaSet
from support.fakes.certificates import Authority, server_context
from support.fakes.http_server import FakeHttpServer, Reply, Request, status
from support.harness.async_tests import async_test, wait_until


def server_with(offers: dict[str, list[str]]) -> Any:
    """A server that offers these plurals in each apiVersion."""
    groups: dict[str, list[dict[str, str]]] = {}
    for api_version in offers:
        group, _, version = api_version.rpartition("/")
        if group:
            groups.setdefault(group, []).append({"groupVersion": api_version, "version": version})

    def answer(request: Request) -> Reply:
        if request.path == "/version":
            return Reply(200, {"major": "1", "gitVersion": "v1.36.4"})
        if request.path == "/apis":
            return Reply(200, {"groups": [{"name": name, "versions": versions} for name, versions in groups.items()]})
        plurals = offers.get(request.path.removeprefix("/apis/").removeprefix("/api/"))
        if plurals is None:
            return status(404, "NotFound", "no such group")
        return Reply(200, {"resources": [{"name": each, "verbs": ["list"]} for each in plurals]})

    return answer


CORE = {"v1": ["pods", "pods/binding", "nodes", "events"]}


@async_test
async def test_missing_kinds_are_reported() -> None:
    async with FakeHttpServer(server_with(CORE)) as server, server.client() as client:
        served = await client.discover()
        assert served.server_version == "v1.36.4"
        pods = served.get(kind_of(Pod))
        assert pods is not None
        assert pods.path("ns", "p", "binding") == "/api/v1/namespaces/ns/pods/p/binding"
        assert served.get(kind_of(Queue)) is None
        assert {kind.name for kind in served.missing} == {kind.name for kind in KINDS} - {"Pod", "Node"}


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["v1", "v1beta2", "v1beta1"], "v1"),
        (["v1beta1", "v1beta2"], "v1beta2"),
        (["v1beta1"], "v1beta1"),
        (["v1alpha3"], None),
    ],
)
@async_test
async def test_devices_are_read_at_the_best_version(versions: list[str], expected: str | None) -> None:
    offers = CORE | {f"resource.k8s.io/{version}": ["resourceclaims"] for version in versions}
    async with FakeHttpServer(server_with(offers)) as server, server.client() as client:
        found = (await client.discover()).get(kind_of(ResourceClaim))
        assert (found.version if found else None) == expected


@async_test
async def test_a_version_without_the_kind_is_skipped() -> None:
    offers = CORE | {"resource.k8s.io/v1": ["deviceclasses"], "resource.k8s.io/v1beta1": ["resourceclaims"]}
    async with FakeHttpServer(server_with(offers)) as server, server.client() as client:
        found = (await client.discover()).get(kind_of(ResourceClaim))
        assert found is not None
        assert found.version == "v1beta1"


@async_test
async def test_discovery_includes_resources_that_are_only_written() -> None:
    async with (
        FakeHttpServer(server_with(CORE | {"events.k8s.io/v1": ["events"]})) as server,
        server.client() as client,
    ):
        served = await client.discover([kind_of(Pod)], also=[EVENTS, LEASES])
        assert served.offers(EVENTS)
        assert not served.offers(LEASES)
        assert served.missing == ()


@async_test
async def test_a_server_that_is_not_an_api_server_is_an_error() -> None:
    async with FakeHttpServer(lambda _: Reply(200, b"<html>hello</html>")) as server, server.client() as client:
        with pytest.raises(ApiError, match="did not answer as an API server"):
            await client.discover()


@async_test
async def test_wait_for_server_retries_until_the_server_is_reachable(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    server = FakeHttpServer(server_with(CORE))
    await server.start()
    await server.stop()
    async with server.client(clock) as client:
        waiting = asyncio.ensure_future(client.wait_for_server())
        await wait_until(lambda: caplog.records)
        for _ in range(50):  # several tries
            await asyncio.sleep(0.001)
            clock.advance(1.0)
        assert not waiting.done()
        await server.start()
        await wait_until(waiting.done, tick=lambda: clock.advance(0.5))
        assert (await waiting).get(kind_of(Pod)) is not None
        await server.stop()
    messages = [record.getMessage() for record in caplog.records if "waiting for the API server" in record.getMessage()]
    assert len(set(messages)) == len(messages), "a repeated fault is logged once"
    assert "cannot connect to http://127.0.0.1" in messages[0]


@async_test
async def test_wait_for_server_retries_while_the_server_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    busy = [
        status(503, "ServiceUnavailable", "starting"),
        status(429, "TooManyRequests", "full"),
        Reply(502, b"<html>"),
    ]
    offers = server_with(CORE)
    clock = ManualClock()
    async with (
        FakeHttpServer(lambda request: busy.pop(0) if busy else offers(request)) as server,
        server.client(clock) as client,
    ):
        waiting = asyncio.ensure_future(client.wait_for_server())
        await wait_until(waiting.done, tick=lambda: clock.advance(0.5))
        assert (await waiting).get(kind_of(Pod)) is not None
    messages = [record.getMessage() for record in caplog.records if "waiting for the API server" in record.getMessage()]
    assert [each.split(": ")[2].split()[0] for each in messages] == ["503", "429", "502"]


WHOLE = {**CORE, "events.k8s.io/v1": ["events"], "apps/v1": ["replicasets"]}
KINDS_READ = (kind_of(Pod), kind_of(ReplicaSet))


@pytest.mark.parametrize(
    ("ready", "requests"),
    [
        pytest.param([500, 500, 200], 3, id="not-ready"),
        pytest.param([200, 200], 2, id="ready-after-the-first-discovery"),
        pytest.param([403, 403], 2, id="does-not-say"),
    ],
)
@async_test
async def test_wait_for_server_waits_for_all_groups_of_a_starting_server(ready: list[int], requests: int) -> None:
    """kube-apiserver answers `/apis` before all groups are registered."""
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        seen.append(request.path)
        if request.path == "/readyz":
            code = ready[min(seen.count("/readyz"), len(ready)) - 1]
            return status(code, "", "starting") if code != 200 else Reply(200, b"ok")
        return server_with(CORE if seen.count("/readyz") < requests - 1 else WHOLE)(request)

    clock = ManualClock()
    async with FakeHttpServer(answer) as server, server.client(clock) as client:
        waiting = asyncio.ensure_future(client.wait_for_server(KINDS_READ, also=(EVENTS,)))
        await wait_until(waiting.done, tick=lambda: clock.advance(0.5))
        served = await waiting
    assert served.missing == ()
    assert served.offers(EVENTS)


@async_test
async def test_a_kind_is_missing_when_two_discoveries_of_a_ready_server_agree_on_it() -> None:
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        seen.append(request.path)
        return Reply(200, b"ok") if request.path == "/readyz" else server_with(CORE)(request)

    async with FakeHttpServer(answer) as server, server.client() as client:
        served = await client.wait_for_server(KINDS_READ)
    assert [kind.name for kind in served.missing] == ["ReplicaSet"]
    assert (seen.count("/apis"), seen.count("/readyz")) == (2, 1)


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        pytest.param(status(401, "Unauthorized", "who?"), r"who\?; check the user of the kubeconfig", id="401"),
        pytest.param(status(403, "Forbidden", "not you"), "not you; let this user read", id="403"),
        pytest.param(Reply(404, b"404 page not found"), "not found; check the server's address", id="404"),
    ],
)
@async_test
async def test_wait_for_server_fails_when_the_server_refuses_the_user(answer: Reply, advice: str) -> None:
    async with FakeHttpServer(lambda _: answer) as server, server.client() as client:
        with pytest.raises(ApiError, match=advice):
            await client.wait_for_server()


@async_test
async def test_wait_for_server_fails_when_the_certificate_is_untrusted(tmp_path: Path) -> None:
    tls = server_context(tmp_path, Authority().server("127.0.0.1"))
    async with FakeHttpServer(server_with(CORE), tls=tls) as server, server.client() as client:
        with pytest.raises(Unreachable, match=r"is not trusted.*check the certificate authority"):
            await client.wait_for_server()
