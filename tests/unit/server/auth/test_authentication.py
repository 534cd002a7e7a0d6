"""Authentication and authorization: tokens, certificates, front proxies, open paths, and caches."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import GroupVersionResource
from bayplan.clock import ManualClock
from bayplan.errors import Forbidden, ServingError
from bayplan.server import (
    ALWAYS_ALLOW_PATHS,
    Authorizer,
    ClientAuthorities,
    ClientAuthorityOptions,
    ClientAuthorityReloader,
    FrontProxy,
    Server,
    ServerViews,
)
from bayplan.server.auth.ttl_cache import TtlCache
from bayplan.telemetry.metrics import MetricsRegistry
from support.fakes.certificates import Authority
from support.harness.async_tests import async_test, wait_until
from support.harness.health_server import FakeReviews, client_tls_context, get, run_server

JANE = {"username": "jane", "uid": "u1", "groups": ["team"], "extra": {"k": ["v"]}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@async_test
async def test_open_paths_need_no_credentials_and_no_review() -> None:
    reviews = FakeReviews()
    async with run_server(judge=reviews, open_paths=ALWAYS_ALLOW_PATHS) as server:
        for path in ("/healthz", "/livez", "/readyz", "/healthz?verbose"):
            assert (await get(server, path)).status == 200
        assert reviews.asked == []


@async_test
async def test_anonymous_users_are_refused_with_upstreams_text() -> None:
    reviews = FakeReviews()
    async with run_server(judge=reviews, open_paths=ALWAYS_ALLOW_PATHS) as server:
        reply = await get(server, "/metrics", headers={"User-Agent": "curl/8"})
        assert reply.status == 403
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["cache-control"] == "no-cache, private"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.text == (
            '{\n  "kind": "Status",\n  "apiVersion": "v1",\n  "metadata": {},\n  "status": "Failure",\n'
            '  "message": "forbidden: User \\"system:anonymous\\" cannot get path \\"/metrics\\"",\n'
            '  "reason": "Forbidden",\n  "details": {},\n  "code": 403\n}'
        )
        assert reviews.asked == [
            {
                "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
                "user": "system:anonymous",
                "uid": "",
                "groups": ["system:unauthenticated"],
                "extra": {},
            }
        ]
        terse = await get(server, "/healthz/ping", method="DELETE")
        assert terse.text.endswith("}\n")
        assert 'cannot delete path \\"/healthz/ping\\"' in terse.text


@async_test
async def test_a_token_is_reviewed_and_its_user_authorized() -> None:
    reviews = FakeReviews(tokens={"t1": JANE}, allowed={("jane", "get", "/metrics")}, reason="because")
    async with run_server(judge=reviews, open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/metrics", headers=bearer("t1"))).status == 200
        assert reviews.asked[0] == {"token": "t1"}
        assert reviews.asked[1]["groups"] == ["team", "system:authenticated"]
        assert reviews.asked[1]["uid"] == "u1"
        assert reviews.asked[1]["extra"] == {"k": ["v"]}
        refused = await get(server, "/configz", headers=bearer("t1"))
        assert refused.json["message"] == 'forbidden: User "jane" cannot get path "/configz": because'


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
@async_test
async def test_an_invalid_token_is_refused_also_on_open_paths(path: str) -> None:
    async with run_server(judge=FakeReviews(), open_paths=ALWAYS_ALLOW_PATHS) as server:
        reply = await get(server, path, headers=bearer("wrong"))
        assert reply.status == 401
        assert "x-content-type-options" not in reply.headers
        assert reply.json == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Unauthorized",
            "reason": "Unauthorized",
            "code": 401,
        }


@async_test
async def test_masters_need_no_access_review() -> None:
    reviews = FakeReviews(tokens={"t": {"username": "root", "groups": ["system:masters"]}})
    async with run_server(judge=reviews, open_paths=()) as server:
        assert (await get(server, "/metrics", headers=bearer("t"))).status == 200
        assert len(reviews.asked) == 1


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer", "Bearer "])
@async_test
async def test_other_authorization_headers_are_ignored(header: str) -> None:
    reviews = FakeReviews()
    async with run_server(judge=reviews, open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/healthz", headers={"Authorization": header})).status == 200
        assert reviews.asked == []


@async_test
async def test_without_a_reviewer_only_open_paths_are_allowed() -> None:
    async with run_server(open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/healthz", headers=bearer("x"))).status == 200
        assert (await get(server, "/metrics", headers=bearer("x"))).status == 403


@async_test
async def test_failed_reviews_are_errors_and_are_not_cached() -> None:
    reviews = FakeReviews(broken=True)
    async with run_server(judge=reviews, open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/metrics", headers=bearer("x"))).status == 401
        reply = await get(server, "/metrics?a=b")
        assert reply.status == 500
        assert reply.text == 'Internal Server Error: "/metrics?a=b": the judge is ill\n'
        reviews.broken = False  # errors are not cached
        assert (await get(server, "/metrics")).status == 403


@async_test
async def test_reviews_are_cached_for_ten_seconds() -> None:
    clock, reviews = ManualClock(), FakeReviews(tokens={"t1": JANE}, allowed={("jane", "get", "/metrics")})
    async with run_server(judge=reviews, clock=clock, open_paths=()) as server:
        for _ in range(3):
            assert (await get(server, "/metrics", headers=bearer("t1"))).status == 200
            assert (await get(server, "/metrics", headers=bearer("none"))).status == 401
        assert len(reviews.asked) == 3
        reviews.tokens.clear()
        clock.advance(9.9)
        assert (await get(server, "/metrics", headers=bearer("t1"))).status == 200
        clock.advance(0.2)
        assert (await get(server, "/metrics", headers=bearer("t1"))).status == 401


@async_test
async def test_denied_overrides_allowed() -> None:
    reviews = FakeReviews(tokens={"t1": JANE}, allowed={("jane", "get", "/metrics")}, denied=True)
    async with run_server(judge=reviews, open_paths=()) as server:
        assert (await get(server, "/metrics", headers=bearer("t1"))).status == 403


@async_test
async def test_long_paths_are_not_cached() -> None:
    reviews = FakeReviews()
    async with run_server(judge=reviews, open_paths=()) as server:
        for _ in range(2):
            assert (await get(server, f"/{'a' * 20_000}")).status == 403
        assert len(reviews.asked) == 2


@async_test
async def test_concurrent_requests_share_a_review() -> None:
    reviews = FakeReviews(tokens={"t1": JANE}, allowed={("jane", "get", "/metrics")}, gate=asyncio.Event())
    async with run_server(judge=reviews, open_paths=()) as server:
        requests = [asyncio.create_task(get(server, "/metrics", headers=bearer("t1"))) for _ in range(5)]
        await wait_until(lambda: reviews.asked and len(server._connections) == 5)
        assert len(reviews.asked) == 1
        assert reviews.gate is not None
        reviews.gate.set()
        assert {reply.status for reply in await asyncio.gather(*requests)} == {200}
        assert len(reviews.asked) == 2


@async_test
async def test_a_cancelled_caller_does_not_cancel_the_shared_request() -> None:
    cache: TtlCache[int] = TtlCache(ManualClock(), lambda _: 1.0, limit=1)
    gate = asyncio.Event()

    async def fetch() -> int:
        await gate.wait()
        return 7

    first, second = (asyncio.create_task(cache.get("k", fetch)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second == 7

    async def other() -> int:
        return 8

    assert await cache.get("l", other) == 8
    assert await cache.get("k", other) == 8  # the oldest entry was removed


@pytest.mark.parametrize(
    ("open_paths", "path", "status"),
    [
        (["/metrics"], "/metrics", 200),
        (["metrics"], "/metrics", 200),
        (["/metrics"], "/metrics/slis", 403),
        (["/metrics*"], "/metrics/slis", 200),
        (["/"], "/", 404),
        ([], "/healthz", 403),
    ],
)
@async_test
async def test_paths_without_authorization(open_paths: list[str], path: str, status: int) -> None:
    async with run_server(open_paths=tuple(open_paths)) as server:
        assert (await get(server, path)).status == status


def test_an_asterisk_must_be_the_last_character() -> None:
    with pytest.raises(ServingError, match="may only end with"):
        Authorizer(None, ManualClock(), always_allowed=["/a*/b"])


# Certificates.


CLIENTS, PROXIES, UNKNOWN = Authority("clients"), Authority("proxies"), Authority("others")
TRUST = ClientAuthorities(
    client_ca=CLIENTS.certificate,
    front_proxy=FrontProxy(ca=PROXIES.certificate, allowed_names=("front",), uid_headers=("X-Remote-Uid",)),
)


def reviews_allowing(*users: str) -> FakeReviews:
    return FakeReviews(allowed={(user, "get", "/metrics") for user in users})


async def status_with_certificate(server: Server, folder: Path, pair: Any, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await get(server, "/metrics", headers=named, context=client_tls_context(folder, pair))).status


@async_test
async def test_a_client_certificate_names_the_user(tmp_path: Path) -> None:
    reviews = reviews_allowing("jane")
    async with run_server(judge=reviews, open_paths=()) as server:
        server.trust(TRUST)
        assert await status_with_certificate(server, tmp_path, CLIENTS.user("jane", "team", "staff")) == 200
        assert reviews.asked[0]["groups"] == ["team", "staff", "system:authenticated"]
        credential = reviews.asked[0]["extra"]["authentication.kubernetes.io/credential-id"][0]
        assert credential.startswith("X509SHA256=")
        assert len(credential) == 75
        assert await status_with_certificate(server, tmp_path, CLIENTS.user("joe")) == 403
        assert (await get(server, "/metrics")).status == 403  # without a certificate the user is anonymous


@async_test
async def test_only_a_front_proxy_names_users_in_headers(tmp_path: Path) -> None:
    reviews = reviews_allowing("jane")
    async with run_server(judge=reviews, open_paths=()) as server:
        server.trust(TRUST)
        front = PROXIES.user("front")
        headers = {"X_Remote_User": "jane", "X_Remote_Group": "team", "X_Remote_Extra_Scope%2Fa": "b"}
        assert await status_with_certificate(server, tmp_path, front, X_Remote_Uid="7", **headers) == 200
        assert reviews.asked[0]["user"] == "jane"
        assert reviews.asked[0]["uid"] == "7"
        assert reviews.asked[0]["groups"] == ["team", "system:authenticated"]
        assert reviews.asked[0]["extra"] == {"scope/a": ["b"]}
        assert await status_with_certificate(server, tmp_path, front) == 401  # the proxy itself is no user
        assert await status_with_certificate(server, tmp_path, PROXIES.user("stranger"), **headers) == 401
        # the user front, not the proxy
        assert await status_with_certificate(server, tmp_path, CLIENTS.user("front"), **headers) == 403
        assert (await get(server, "/metrics", headers={"X-Remote-User": "jane"})).status == 403


@async_test
async def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    async with run_server(open_paths=("*",)) as server:
        server.trust(TRUST)
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError, ValueError)):
            await status_with_certificate(server, tmp_path, UNKNOWN.user("jane"))
        assert (await get(server, "/livez")).text == "ok"


@async_test
async def test_a_token_counts_beside_a_certificate_without_a_user(tmp_path: Path) -> None:
    reviews = reviews_allowing("jane")
    reviews.tokens["t1"] = {"username": "jane"}
    async with run_server(judge=reviews, open_paths=()) as server:
        server.trust(TRUST)
        assert (
            await status_with_certificate(server, tmp_path, PROXIES.user("stranger"), Authorization="Bearer t1") == 200
        )


# Sources of client authorities.


class FakeConfigMap:
    def __init__(self, **data: str) -> None:
        self.data = {key.replace("_", "-"): value for key, value in data.items()}
        self.refuses = False
        self.refusal = "you may not"

    async def get_raw(self, resource: GroupVersionResource, namespace: str, name: str) -> dict[str, Any]:
        assert (resource.plural, namespace, name) == ("configmaps", "kube-system", "extension-apiserver-authentication")
        if self.refuses:
            raise Forbidden(self.refusal, code=403)
        return {"data": self.data}


@async_test
async def test_authorities_of_the_config_map_are_read_again() -> None:
    clock, reported = ManualClock(), []
    config_map = FakeConfigMap(
        client_ca_file="A", requestheader_client_ca_file="B", requestheader_username_headers=json.dumps(["X-User"])
    )
    reloader = ClientAuthorityReloader(ClientAuthorityOptions(), config_map, clock, reported.append)
    await reloader.refresh()
    assert reported == [
        ClientAuthorities(
            client_ca="A", front_proxy=FrontProxy(ca="B", user_headers=("X-User",), group_headers=(), extra_prefixes=())
        )
    ]
    running = asyncio.create_task(reloader.run())
    config_map.data["client-ca-file"] = "C"
    await wait_until(lambda: len(reported) > 1, tick=lambda: clock.advance(10))
    assert reported[-1].client_ca == "C"
    config_map.refuses = True
    await wait_until(lambda: clock.monotonic_s() > 300, tick=lambda: clock.advance(30))
    assert len(reported) == 2  # the previous client authorities stay in use
    running.cancel()


@async_test
async def test_files_override_the_config_map(tmp_path: Path) -> None:
    reported: list[ClientAuthorities] = []
    (tmp_path / "ca").write_text("FILE")
    options = ClientAuthorityOptions(
        client_ca_file=str(tmp_path / "ca"),
        front_proxy_ca_file=str(tmp_path / "ca"),
        front_proxy=FrontProxy(allowed_names=("x",)),
    )
    config_map = FakeConfigMap(client_ca_file="A")
    config_map.refuses = True  # it must not be read
    await ClientAuthorityReloader(options, config_map, ManualClock(), reported.append).refresh()
    assert reported == [ClientAuthorities(client_ca="FILE", front_proxy=FrontProxy(ca="FILE", allowed_names=("x",)))]


@pytest.mark.parametrize(
    "options",
    [ClientAuthorityOptions(), ClientAuthorityOptions(skip_lookup=True, tolerate_lookup_failure=False)],
    ids=["tolerated", "skipped"],
)
@async_test
async def test_a_failed_lookup_may_be_tolerated(options: ClientAuthorityOptions) -> None:
    config_map, reported = FakeConfigMap(client_ca_file="A", requestheader_allowed_names="nonsense"), []
    config_map.refuses = True
    await ClientAuthorityReloader(options, config_map, ManualClock(), reported.append).refresh()
    assert [trust.authorities for trust in reported] == [""]


@async_test
async def test_a_repeated_lookup_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    config_map = FakeConfigMap()  # nothing was found before; after a success, failures are not logged
    reloader = ClientAuthorityReloader(ClientAuthorityOptions(), config_map, ManualClock(), lambda _: None)
    reported = "client certificates are ignored: cannot read kube-system/extension-apiserver-authentication: "
    for refusal, lines in (
        ("you may not", [f"{reported}you may not"]),
        ("gone", [f"{reported}gone"]),
        ("", []),
        ("gone", [f"{reported}gone"]),
    ):
        config_map.refuses, config_map.refusal = bool(refusal), refusal
        caplog.clear()
        for _ in range(3):
            await reloader.refresh()
        assert caplog.messages == lines


async def advance_in_steps(clock: ManualClock, seconds: float) -> None:
    end_s = clock.monotonic_s() + seconds
    await wait_until(lambda: clock.monotonic_s() > end_s, tick=lambda: clock.advance(30))


@async_test
async def test_a_missing_file_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, path = ManualClock(), tmp_path / "ca"
    path.write_text("A")
    reloader = ClientAuthorityReloader(ClientAuthorityOptions(client_ca_file=str(path)), None, clock, lambda _: None)
    await reloader.refresh()
    running = asyncio.create_task(reloader.run())
    for _ in range(2):
        caplog.clear()
        path.unlink()
        await advance_in_steps(clock, 300)
        (reported,) = caplog.messages
        assert reported.endswith("the previous client authorities stay in use")
        path.write_text("A")
        await advance_in_steps(clock, 120)
    running.cancel()


@async_test
async def test_a_failed_lookup_may_be_fatal() -> None:
    config_map = FakeConfigMap()
    config_map.refuses = True
    reloader = ClientAuthorityReloader(
        ClientAuthorityOptions(tolerate_lookup_failure=False), config_map, ManualClock(), lambda _: None
    )
    with pytest.raises(ServingError, match="let this user read it"):
        await reloader.refresh()


@async_test
async def test_a_missing_file_at_start_is_an_error(tmp_path: Path) -> None:
    options = ClientAuthorityOptions(client_ca_file=str(tmp_path / "none"))
    with pytest.raises(ServingError, match="cannot read the client authority"):
        await ClientAuthorityReloader(options, None, ManualClock(), lambda _: None).refresh()


@async_test
async def test_tokens_are_not_stored() -> None:
    reviews = FakeReviews(tokens={"a-secret-token": JANE}, allowed={("jane", "get", "/metrics")})
    async with run_server(ServerViews(metrics=MetricsRegistry()), judge=reviews, open_paths=()) as server:
        await get(server, "/metrics", headers=bearer("a-secret-token"))
        authenticator = server._access.authenticator
        assert "a-secret-token" not in repr(vars(authenticator._tokens))


@async_test
async def test_authentications_are_counted_with_a_bounded_set_of_users() -> None:
    users = {name: {"username": name} for name in ("admin", "jane@example.com", "system:serviceaccount:a:b")}
    reviews = FakeReviews(tokens=users, allowed={("admin", "get", "/metrics")})
    metrics = MetricsRegistry()
    async with run_server(judge=reviews, open_paths=ALWAYS_ALLOW_PATHS, metrics=metrics) as server:
        for name in (*users, "nobody"):
            await get(server, "/metrics", headers=bearer(name))
        await get(server, "/healthz")
        reviews.broken = True
        await get(server, "/flagz")
    text = b"".join(metrics.render()).decode()
    for line in (
        'authenticated_user_requests{username="admin"} 1',
        'authenticated_user_requests{username="email_id"} 1',
        'authenticated_user_requests{username="other"} 3',
        'authentication_attempts{result="failure"} 1',
        'authentication_duration_seconds_count{result="success"} 5',
        'authorization_attempts_total{result="allowed"} 2',
        'authorization_attempts_total{result="no-opinion"} 2',
        'authorization_duration_seconds_count{result="error"} 1',
    ):
        assert line in text.splitlines()
