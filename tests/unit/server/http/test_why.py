"""`/why`: its answers, and the refused requests."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bayplan.objects.pod_relaxations import SuggestedChange
from bayplan.server import ALWAYS_ALLOW_PATHS, NotLeader, ServerViews
from bayplan.telemetry.answers import Answer
from bayplan.telemetry.metrics import MetricsRegistry
from support.harness.async_tests import async_test
from support.harness.health_server import FakeReviews, get, run_server

JANE = {"username": "jane", "groups": ["team"]}
ANSWER = Answer(
    pod="shop/web-0",
    sentence="it waits",
    changes=(SuggestedChange(kind="requests", less={"cpu": 500}, node="n1", text="run for 500m less CPU"),),
)


async def why(namespace: str, name: str, now: bool) -> Answer | None:
    await asyncio.sleep(0)
    if name == "elsewhere":
        raise NotLeader("this instance does not lead")
    if (namespace, name) != ("shop", "web-0"):
        return None
    return msgspec.structs.replace(ANSWER, source="now" if now else "record")


VIEWS = ServerViews(metrics=MetricsRegistry(), why=why)


def reviews() -> FakeReviews:
    pods = {("jane", "get", f"pods shop/{name}") for name in ("web-0", "gone", "elsewhere")}
    return FakeReviews(tokens={"t": JANE}, allowed=pods)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@async_test
async def test_a_user_who_may_get_the_pod_gets_the_answer() -> None:
    async with run_server(VIEWS, judge=reviews(), open_paths=ALWAYS_ALLOW_PATHS) as server:
        reply = await get(server, "/why/shop/web-0", headers=bearer("t"))
        assert reply.status == 200
        assert reply.headers["content-type"] == "application/json"
        assert msgspec.json.decode(reply.body, type=Answer) == ANSWER
        assert {"engine": "pod", "state": "pending", "source": "record"}.items() <= reply.json.items()
        reply_now = await get(server, "/why/shop/web-0?now=true", headers=bearer("t"))
        assert reply_now.json["source"] == "now"


@async_test
async def test_the_token_header_of_the_api_servers_proxy_counts() -> None:
    async with run_server(VIEWS, judge=reviews(), open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/why/shop/web-0", headers={"X-Bayplan-Token": "t"})).status == 200
        assert (await get(server, "/why/shop/web-0", headers={"X-Bayplan-Token": "stolen"})).status == 401


@async_test
async def test_a_user_who_may_not_get_the_pod_is_refused_with_kubernetes_text() -> None:
    permissions = reviews()
    async with run_server(VIEWS, judge=permissions, open_paths=ALWAYS_ALLOW_PATHS) as server:
        assert (await get(server, "/why/shop/web-0")).status == 403
        reply = await get(server, "/why/bank/vault", headers=bearer("t"))
        assert reply.status == 403
        assert reply.json["message"] == (
            'pods "vault" is forbidden: User "jane" cannot get resource "pods" in API group "" in the namespace "bank"'
        )
        assert permissions.asked[-1]["resourceAttributes"] == {
            "namespace": "bank",
            "verb": "get",
            "version": "v1",
            "resource": "pods",
            "name": "vault",
        }


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        pytest.param("/why/shop/gone", "GET", 404, id="no-such-pod"),
        pytest.param("/why/shop/elsewhere", "GET", 503, id="another-leads"),
        pytest.param("/why/shop/web-0", "DELETE", 405, id="nothing-can-be-changed"),
        pytest.param("/why/shop", "GET", 403, id="no-pod"),
        pytest.param("/why/shop/web-0/log", "GET", 403, id="more-than-a-pod"),
    ],
)
def test_other_requests_are_status_errors(path: str, method: str, status: int) -> None:
    async def run() -> None:
        async with run_server(VIEWS, judge=reviews(), open_paths=ALWAYS_ALLOW_PATHS) as server:
            reply = await get(server, path, method=method, headers=bearer("t"))
            assert reply.status == status
            assert reply.json["kind"] == "Status"

    asyncio.run(run())


@async_test
async def test_a_server_without_explanations_has_no_such_path() -> None:
    async with run_server(
        ServerViews(metrics=MetricsRegistry()), judge=reviews(), open_paths=ALWAYS_ALLOW_PATHS
    ) as server:
        assert (await get(server, "/why/shop/web-0", headers=bearer("t"))).status == 404


@async_test
async def test_pods_of_unreadable_namespaces_are_redacted() -> None:
    evict = SuggestedChange(
        kind="eviction", evict=("shop/a", "bank/b"), node="n1", text="evict shop/a and bank/b from n1"
    )
    answer = Answer(
        pod="shop/web-0",
        sentence="it fits n1 once bank/b is gone",
        victims=("bank/b",),
        changes=(evict,),
        together=(evict,),
    )

    async def explain(namespace: str, name: str, now: bool) -> Answer:  # noqa: ARG001
        return answer

    views = ServerViews(metrics=MetricsRegistry(), why=explain)
    permissions = reviews()
    async with run_server(views, judge=permissions, open_paths=ALWAYS_ALLOW_PATHS) as server:
        reply = await get(server, "/why/shop/web-0", headers=bearer("t"))
        assert "bank" not in reply.text
        assert reply.json["sentence"] == "it fits n1 once a pod of another namespace is gone"
        assert reply.json["changes"][0]["evict"] == ["shop/a", "a pod of another namespace"]
    permissions.allowed.add(("jane", "get", "pods bank/"))
    async with run_server(views, judge=permissions, open_paths=ALWAYS_ALLOW_PATHS) as server:
        reply = await get(server, "/why/shop/web-0", headers=bearer("t"))
        assert msgspec.json.decode(reply.body, type=Answer) == answer
