"""Who gets in: tokens, certificates, proxies, open paths, and what is remembered of the answers."""

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
from support.harness.health_server import (
    FakeReviews,
    client_tls_context,
    get,
    run_server,
)

JANE = {"username": "jane", "uid": "u1", "groups": ["team"], "extra": {"k": ["v"]}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@async_test
async def test_open_paths_need_nothing_and_ask_nobody() -> None:
    judge = FakeReviews()
    async with run_server(judge=judge, open_paths=ALWAYS_ALLOW_PATHS) as server:
        for path in ("/healthz", "/livez", "/readyz", "/healthz?verbose"):
            assert (await get(server, path)).status == 200
        assert judge.asked == []


@async_test
async def test_strangers_are_refused_as_upstream_words_it() -> None:
    judge = FakeReviews()
    async with run_server(judge=judge, open_paths=ALWAYS_ALLOW_PATHS) as server:
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
        assert judge.asked == [
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
async def test_a_token_is_reviewed_and_its_user_judged() -> None:
    judge = FakeReviews(tokens={"t1": JANE}, allowed={("jane", "get", "/metrics")}, reason="because")
    async with run_server(judge=judge, open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/metrics", headers=bearer("t1"))).status == 200
        assert judge.asked[0] == {"token": "t1"}
        assert judge.asked[1]["groups"] == ["team", "system:authenticated"]
        assert judge.asked[1]["uid"] == "u1"
        assert judge.asked[1]["extra"] == {"k": ["v"]}
        refused = await get(server, "/configz", headers=bearer("t1"))
        assert refused.json["message"] == 'forbidden: User "jane" cannot get path "/configz": because'


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
@async_test
async def test_a_wrong_token_is_refused_even_where_none_is_needed(path: str) -> None:
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
async def test_masters_are_not_asked_about() -> None:
    judge = FakeReviews(tokens={"t": {"username": "root", "groups": ["system:masters"]}})
    async with run_server(judge=judge, open_paths=()) as server:
        assert (await get(server, "/metrics", headers=bearer("t"))).status == 200
        assert len(judge.asked) == 1


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer", "Bearer "])
@async_test
async def test_what_is_no_token_is_not_looked_at(header: str) -> None:
    judge = FakeReviews()
    async with run_server(judge=judge, open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/healthz", headers={"Authorization": header})).status == 200
        assert judge.asked == []


@async_test
async def test_without_a_judge_tokens_prove_nothing_and_only_open_paths_are_open() -> None:
    async with run_server(open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/healthz", headers=bearer("x"))).status == 200
        assert (await get(server, "/metrics", headers=bearer("x"))).status == 403


@async_test
async def test_a_judge_that_is_ill() -> None:
    judge = FakeReviews(broken=True)
    async with run_server(judge=judge, open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/metrics", headers=bearer("x"))).status == 401
        reply = await get(server, "/metrics?a=b")
        assert reply.status == 500
        assert reply.text == 'Internal Server Error: "/metrics?a=b": the judge is ill\n'
        judge.broken = False  # nothing of it is remembered
        assert (await get(server, "/metrics")).status == 403


@async_test
async def test_answers_hold_for_ten_seconds() -> None:
    clock, judge = ManualClock(), FakeReviews(tokens={"t1": JANE}, allowed={("jane", "get", "/metrics")})
    async with run_server(judge=judge, clock=clock, open_paths=()) as server:
        for _ in range(3):
            assert (await get(server, "/metrics", headers=bearer("t1"))).status == 200
            assert (await get(server, "/metrics", headers=bearer("none"))).status == 401
        assert len(judge.asked) == 3
        judge.tokens.clear()
        clock.advance(9.9)
        assert (await get(server, "/metrics", headers=bearer("t1"))).status == 200
        clock.advance(0.2)
        assert (await get(server, "/metrics", headers=bearer("t1"))).status == 401


@async_test
async def test_a_denial_outweighs_a_permission() -> None:
    judge = FakeReviews(tokens={"t1": JANE}, allowed={("jane", "get", "/metrics")}, denied=True)
    async with run_server(judge=judge, open_paths=()) as server:
        assert (await get(server, "/metrics", headers=bearer("t1"))).status == 403


@async_test
async def test_long_questions_are_not_remembered() -> None:
    judge = FakeReviews()
    async with run_server(judge=judge, open_paths=()) as server:
        for _ in range(2):
            assert (await get(server, f"/{'a' * 20_000}")).status == 403
        assert len(judge.asked) == 2


@async_test
async def test_the_same_question_is_asked_once_at_a_time() -> None:
    judge = FakeReviews(tokens={"t1": JANE}, allowed={("jane", "get", "/metrics")}, gate=asyncio.Event())
    async with run_server(judge=judge, open_paths=()) as server:
        asking = [asyncio.create_task(get(server, "/metrics", headers=bearer("t1"))) for _ in range(5)]
        await wait_until(lambda: judge.asked and len(server._connections) == 5)
        assert len(judge.asked) == 1
        assert judge.gate is not None
        judge.gate.set()
        assert {reply.status for reply in await asyncio.gather(*asking)} == {200}
        assert len(judge.asked) == 2


@async_test
async def test_who_goes_away_takes_the_answer_from_nobody() -> None:
    known: TtlCache[int] = TtlCache(ManualClock(), lambda _: 1.0, limit=1)
    gate = asyncio.Event()

    async def ask() -> int:
        await gate.wait()
        return 7

    first, second = (asyncio.create_task(known.get("k", ask)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second == 7

    async def other() -> int:
        return 8

    assert await known.get("l", other) == 8
    assert await known.get("k", other) == 8  # the oldest had to go


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
async def test_open_paths(open_paths: list[str], path: str, status: int) -> None:
    async with run_server(open_paths=tuple(open_paths)) as server:
        assert (await get(server, path)).status == status


def test_an_asterisk_stands_last() -> None:
    with pytest.raises(ServingError, match="may only end with"):
        Authorizer(None, ManualClock(), always_allowed=["/a*/b"])


# Certificates


CLIENTS, PROXIES, OTHERS = Authority("clients"), Authority("proxies"), Authority("others")
TRUST = ClientAuthorities(
    client_ca=CLIENTS.certificate,
    front_proxy=FrontProxy(ca=PROXIES.certificate, allowed_names=("front",), uid_headers=("X-Remote-Uid",)),
)


def permitting(*users: str) -> FakeReviews:
    return FakeReviews(allowed={(user, "get", "/metrics") for user in users})


async def shown(server: Server, folder: Path, pair: Any, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await get(server, "/metrics", headers=named, context=client_tls_context(folder, pair))).status


@async_test
async def test_a_certificate_of_the_clients_authority_names_a_user(tmp_path: Path) -> None:
    judge = permitting("jane")
    async with run_server(judge=judge, open_paths=()) as server:
        server.trust(TRUST)
        assert await shown(server, tmp_path, CLIENTS.user("jane", "team", "staff")) == 200
        assert judge.asked[0]["groups"] == ["team", "staff", "system:authenticated"]
        credential = judge.asked[0]["extra"]["authentication.kubernetes.io/credential-id"][0]
        assert credential.startswith("X509SHA256=")
        assert len(credential) == 75
        assert await shown(server, tmp_path, CLIENTS.user("joe")) == 403
        assert (await get(server, "/metrics")).status == 403  # who shows none is anonymous


@async_test
async def test_a_proxy_speaks_for_others_and_nobody_else_does(tmp_path: Path) -> None:
    judge = permitting("jane")
    async with run_server(judge=judge, open_paths=()) as server:
        server.trust(TRUST)
        front = PROXIES.user("front")
        headers = {"X_Remote_User": "jane", "X_Remote_Group": "team", "X_Remote_Extra_Scope%2Fa": "b"}
        assert await shown(server, tmp_path, front, X_Remote_Uid="7", **headers) == 200
        assert judge.asked[0]["user"] == "jane"
        assert judge.asked[0]["uid"] == "7"
        assert judge.asked[0]["groups"] == ["team", "system:authenticated"]
        assert judge.asked[0]["extra"] == {"scope/a": ["b"]}
        assert await shown(server, tmp_path, front) == 401  # its own name is no user's
        assert await shown(server, tmp_path, PROXIES.user("stranger"), **headers) == 401
        assert await shown(server, tmp_path, CLIENTS.user("front"), **headers) == 403  # a user called front
        assert (await get(server, "/metrics", headers={"X-Remote-User": "jane"})).status == 403


@async_test
async def test_a_certificate_of_nobody_we_know_is_turned_away(tmp_path: Path) -> None:
    async with run_server(open_paths=("*",)) as server:
        server.trust(TRUST)
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError, ValueError)):
            await shown(server, tmp_path, OTHERS.user("jane"))
        assert (await get(server, "/livez")).text == "ok"


@async_test
async def test_a_token_counts_beside_a_certificate_that_names_nobody(tmp_path: Path) -> None:
    judge = permitting("jane")
    judge.tokens["t1"] = {"username": "jane"}
    async with run_server(judge=judge, open_paths=()) as server:
        server.trust(TRUST)
        assert await shown(server, tmp_path, PROXIES.user("stranger"), Authorization="Bearer t1") == 200


# Where authorities come from


class Published:
    def __init__(self, **data: str) -> None:
        self.data = {key.replace("_", "-"): value for key, value in data.items()}
        self.refuses = False
        self.refusal = "you may not"

    async def get_raw(self, resource: GroupVersionResource, namespace: str, name: str) -> dict[str, Any]:
        assert (resource.plural, namespace, name) == (
            "configmaps",
            "kube-system",
            "extension-apiserver-authentication",
        )
        if self.refuses:
            raise Forbidden(self.refusal, code=403)
        return {"data": self.data}


@async_test
async def test_what_the_cluster_publishes_is_looked_up_and_followed() -> None:
    clock, told = ManualClock(), []
    published = Published(
        client_ca_file="A", requestheader_client_ca_file="B", requestheader_username_headers=json.dumps(["X-User"])
    )
    keeper = ClientAuthorityReloader(ClientAuthorityOptions(), published, clock, told.append)
    await keeper.refresh()
    assert told == [
        ClientAuthorities(
            client_ca="A",
            front_proxy=FrontProxy(ca="B", user_headers=("X-User",), group_headers=(), extra_prefixes=()),
        )
    ]
    running = asyncio.create_task(keeper.run())
    published.data["client-ca-file"] = "C"
    await wait_until(lambda: len(told) > 1, tick=lambda: clock.advance(10))
    assert told[-1].client_ca == "C"
    published.refuses = True
    await wait_until(lambda: clock.monotonic_s() > 300, tick=lambda: clock.advance(30))
    assert len(told) == 2  # the previous client authorities stay in use
    running.cancel()


@async_test
async def test_files_come_before_what_is_published(tmp_path: Path) -> None:
    told: list[ClientAuthorities] = []
    (tmp_path / "ca").write_text("FILE")
    options = ClientAuthorityOptions(
        client_ca_file=str(tmp_path / "ca"),
        front_proxy_ca_file=str(tmp_path / "ca"),
        front_proxy=FrontProxy(allowed_names=("x",)),
    )
    published = Published(client_ca_file="A")
    published.refuses = True  # nobody asks
    await ClientAuthorityReloader(options, published, ManualClock(), told.append).refresh()
    assert told == [ClientAuthorities(client_ca="FILE", front_proxy=FrontProxy(ca="FILE", allowed_names=("x",)))]


@pytest.mark.parametrize(
    "options",
    [ClientAuthorityOptions(), ClientAuthorityOptions(skip_lookup=True, tolerate_lookup_failure=False)],
    ids=["tolerated", "skipped"],
)
@async_test
async def test_a_lookup_that_fails_may_be_tolerated(options: ClientAuthorityOptions) -> None:
    published, told = Published(client_ca_file="A", requestheader_allowed_names="nonsense"), []
    published.refuses = True
    await ClientAuthorityReloader(options, published, ManualClock(), told.append).refresh()
    assert [trust.authorities for trust in told] == [""]


@async_test
async def test_a_lookup_that_goes_on_failing_is_told_once_until_it_is_cured(caplog: pytest.LogCaptureFixture) -> None:
    published = Published()  # nothing is published: whoever has found something is not told of failures
    keeper = ClientAuthorityReloader(ClientAuthorityOptions(), published, ManualClock(), lambda _: None)
    told = "client certificates are ignored: cannot read kube-system/extension-apiserver-authentication: "
    for refusal, lines in (
        ("you may not", [f"{told}you may not"]),
        ("gone", [f"{told}gone"]),
        ("", []),
        ("gone", [f"{told}gone"]),
    ):
        published.refuses, published.refusal = bool(refusal), refusal
        caplog.clear()
        for _ in range(3):
            await keeper.refresh()
        assert caplog.messages == lines


async def passing(clock: ManualClock, seconds: float) -> None:
    end_s = clock.monotonic_s() + seconds
    await wait_until(lambda: clock.monotonic_s() > end_s, tick=lambda: clock.advance(30))


@async_test
async def test_a_file_that_stays_away_is_told_once_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = ManualClock(), tmp_path / "ca"
    path.write_text("A")
    keeper = ClientAuthorityReloader(ClientAuthorityOptions(client_ca_file=str(path)), None, clock, lambda _: None)
    await keeper.refresh()
    running = asyncio.create_task(keeper.run())
    for _ in range(2):
        caplog.clear()
        path.unlink()
        await passing(clock, 300)
        (told,) = caplog.messages
        assert told.endswith("the previous client authorities stay in use")
        path.write_text("A")
        await passing(clock, 120)
    running.cancel()


@async_test
async def test_a_lookup_that_fails_may_be_fatal() -> None:
    published = Published()
    published.refuses = True
    keeper = ClientAuthorityReloader(
        ClientAuthorityOptions(tolerate_lookup_failure=False), published, ManualClock(), lambda _: None
    )
    with pytest.raises(ServingError, match="let this user read it"):
        await keeper.refresh()


@async_test
async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    options = ClientAuthorityOptions(client_ca_file=str(tmp_path / "none"))
    with pytest.raises(ServingError, match="cannot read the client authority"):
        await ClientAuthorityReloader(options, None, ManualClock(), lambda _: None).refresh()


@async_test
async def test_tokens_are_not_kept() -> None:
    judge = FakeReviews(tokens={"a-secret-token": JANE}, allowed={("jane", "get", "/metrics")})
    async with run_server(ServerViews(metrics=MetricsRegistry()), judge=judge, open_paths=()) as server:
        await get(server, "/metrics", headers=bearer("a-secret-token"))
        authenticator = server._access.authenticator
        assert "a-secret-token" not in repr(vars(authenticator._tokens))


@async_test
async def test_who_came_is_counted_and_users_are_put_into_few_drawers() -> None:
    people = {name: {"username": name} for name in ("admin", "jane@example.com", "system:serviceaccount:a:b")}
    judge = FakeReviews(tokens=people, allowed={("admin", "get", "/metrics")})
    metrics = MetricsRegistry()
    async with run_server(judge=judge, open_paths=ALWAYS_ALLOW_PATHS, metrics=metrics) as server:
        for name in (*people, "nobody"):
            await get(server, "/metrics", headers=bearer(name))
        await get(server, "/healthz")
        judge.broken = True
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
