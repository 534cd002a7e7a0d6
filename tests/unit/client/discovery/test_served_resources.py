"""Which kinds a server offers, from its discovery documents."""

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


def server_of(offers: dict[str, list[str]]) -> Any:
    """A server that has these api versions, each with these plurals."""
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
async def test_kinds_that_are_missing_are_named() -> None:
    async with FakeHttpServer(server_of(CORE)) as server, server.client() as client:
        offered = await client.discover()
        assert offered.server_version == "v1.36.4"
        pods = offered.get(kind_of(Pod))
        assert pods is not None
        assert pods.path("ns", "p", "binding") == "/api/v1/namespaces/ns/pods/p/binding"
        assert offered.get(kind_of(Queue)) is None
        assert {kind.name for kind in offered.missing} == {kind.name for kind in KINDS} - {"Pod", "Node"}


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["v1", "v1beta2", "v1beta1"], "v1"),
        (["v1beta1", "v1beta2"], "v1beta2"),
        (["v1beta1"], "v1beta1"),
        (["v1alpha3"], None),
    ],
)
@async_test
async def test_devices_are_read_at_the_best_version(versions: list[str], chosen: str | None) -> None:
    offers = CORE | {f"resource.k8s.io/{version}": ["resourceclaims"] for version in versions}
    async with FakeHttpServer(server_of(offers)) as server, server.client() as client:
        found = (await client.discover()).get(kind_of(ResourceClaim))
        assert (found.version if found else None) == chosen


@async_test
async def test_a_version_without_the_kind_is_passed_over() -> None:
    offers = CORE | {"resource.k8s.io/v1": ["deviceclasses"], "resource.k8s.io/v1beta1": ["resourceclaims"]}
    async with FakeHttpServer(server_of(offers)) as server, server.client() as client:
        found = (await client.discover()).get(kind_of(ResourceClaim))
        assert found is not None
        assert found.version == "v1beta1"


@async_test
async def test_what_is_only_written_can_be_asked_for() -> None:
    async with FakeHttpServer(server_of(CORE | {"events.k8s.io/v1": ["events"]})) as server, server.client() as client:
        offered = await client.discover([kind_of(Pod)], also=[EVENTS, LEASES])
        assert offered.offers(EVENTS)
        assert not offered.offers(LEASES)
        assert offered.missing == ()


@async_test
async def test_what_is_no_api_server_is_told() -> None:
    async with FakeHttpServer(lambda _: Reply(200, b"<html>hello</html>")) as server, server.client() as client:
        with pytest.raises(ApiError, match="did not answer as an API server"):
            await client.discover()


@async_test
async def test_a_server_that_is_not_there_yet_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    server = FakeHttpServer(server_of(CORE))
    await server.start()
    await server.stop()
    async with server.client(clock) as client:
        reaching = asyncio.ensure_future(client.wait_for_server())
        await wait_until(lambda: caplog.records)
        for _ in range(50):  # several tries
            await asyncio.sleep(0.001)
            clock.advance(1.0)
        assert not reaching.done()
        await server.start()
        await wait_until(reaching.done, tick=lambda: clock.advance(0.5))
        assert (await reaching).get(kind_of(Pod)) is not None
        await server.stop()
    told = [record.getMessage() for record in caplog.records if "waiting for the API server" in record.getMessage()]
    assert len(set(told)) == len(told), "not for every try"
    assert "cannot connect to http://127.0.0.1" in told[0]


@async_test
async def test_a_server_that_has_no_time_yet_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    busy = [
        status(503, "ServiceUnavailable", "starting"),
        status(429, "TooManyRequests", "full"),
        Reply(502, b"<html>"),
    ]
    offers = server_of(CORE)
    clock = ManualClock()
    async with (
        FakeHttpServer(lambda ask: busy.pop(0) if busy else offers(ask)) as server,
        server.client(clock) as client,
    ):
        reaching = asyncio.ensure_future(client.wait_for_server())
        await wait_until(reaching.done, tick=lambda: clock.advance(0.5))
        assert (await reaching).get(kind_of(Pod)) is not None
    told = [record.getMessage() for record in caplog.records if "waiting for the API server" in record.getMessage()]
    assert [each.split(": ")[2].split()[0] for each in told] == ["503", "429", "502"]


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
async def test_a_server_that_is_starting_lists_some_of_its_groups(ready: list[int], requests: int) -> None:
    """kube-apiserver answers `/apis` before it has registered all groups."""
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        seen.append(request.path)
        if request.path == "/readyz":
            code = ready[min(seen.count("/readyz"), len(ready)) - 1]
            return status(code, "", "starting") if code != 200 else Reply(200, b"ok")
        return server_of(CORE if seen.count("/readyz") < requests - 1 else WHOLE)(request)

    clock = ManualClock()
    async with FakeHttpServer(answer) as server, server.client(clock) as client:
        reaching = asyncio.ensure_future(client.wait_for_server(KINDS_READ, also=(EVENTS,)))
        await wait_until(reaching.done, tick=lambda: clock.advance(0.5))
        offered = await reaching
    assert offered.missing == ()
    assert offered.offers(EVENTS)


@async_test
async def test_a_kind_is_missing_when_two_discoveries_of_a_ready_server_agree() -> None:
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        seen.append(request.path)
        return Reply(200, b"ok") if request.path == "/readyz" else server_of(CORE)(request)

    async with FakeHttpServer(answer) as server, server.client() as client:
        offered = await client.wait_for_server(KINDS_READ)
    assert [kind.name for kind in offered.missing] == ["ReplicaSet"]
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
async def test_who_does_not_want_us_is_not_waited_for(answer: Reply, advice: str) -> None:
    async with FakeHttpServer(lambda _: answer) as server, server.client() as client:
        with pytest.raises(ApiError, match=advice):
            await client.wait_for_server()


@async_test
async def test_whom_we_do_not_trust_is_not_waited_for(tmp_path: Path) -> None:
    tls = server_context(tmp_path, Authority().server("127.0.0.1"))
    async with FakeHttpServer(server_of(CORE), tls=tls) as server, server.client() as client:
        with pytest.raises(Unreachable, match=r"is not trusted.*check the certificate authority"):
            await client.wait_for_server()
