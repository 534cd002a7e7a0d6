"""The embedded cluster over HTTPS: access, invalid requests, watches, and Bayplan's client against it."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bayplan.apiserver.http import server, watch_stream
from bayplan.client.resources import resource_of
from bayplan.clock import ManualClock
from bayplan.errors import NotFound
from bayplan.objects.core import Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from support.harness.apiserver_store import config_map, pod
from support.harness.async_tests import async_test, wait_until
from support.harness.embedded_cluster import UNKNOWN_TOKEN, run_embedded_cluster

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
JSON = "application/json"
CLIENT_PODS = resource_of(kind_of(Pod))
MERGE = "application/merge-patch+json"


@async_test
async def test_requests_without_a_valid_token_are_refused(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        for path in ("/api", "/apis", PODS, "/openapi/v3"):
            answer = await cluster.request("GET", path, Authorization="")
            assert (answer.code, answer.json["reason"]) == (403, "Forbidden"), path
            assert 'User "system:anonymous" cannot' in answer.json["message"]
        answer = await cluster.request("GET", PODS, Authorization="Bearer wrong")
        assert (answer.code, answer.json["message"]) == (401, "Unauthorized")
        for path in ("/healthz", "/readyz", "/livez", "/version"):
            assert (await cluster.request("GET", path, Authorization="")).code == 200


@async_test
async def test_a_watch_from_a_version_before_the_restart_gets_410(tmp_path: Path) -> None:
    """Also without a data file: its objects are gone, and no event would ever report that."""
    clock = ManualClock()
    async with run_embedded_cluster(tmp_path, clock=clock) as cluster:
        for number in range(20):
            await cluster.create(CONFIG_MAPS, config_map(f"old-{number}"))
        version = (await cluster.request("GET", CONFIG_MAPS)).json["metadata"]["resourceVersion"]
    clock.advance(1.0)
    async with run_embedded_cluster(tmp_path, clock=clock) as cluster:
        watch = f"{CONFIG_MAPS}?watch=true&resourceVersion={version}&timeoutSeconds=1"
        event = (await cluster.request("GET", watch)).json
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


@async_test
async def test_users_have_the_rights_that_rbac_grants(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        other_user = {"Authorization": f"Bearer {UNKNOWN_TOKEN}"}
        refused = await cluster.request("GET", PODS, **other_user)
        assert refused.json["message"] == (
            'pods is forbidden: User "stranger" cannot list resource "pods" in API group "" in the namespace "default"'
        )
        assert (await cluster.request("GET", "/apis", **other_user)).code == 200
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        await cluster.create(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger"}
        binding = {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [subject]}
        await cluster.create(f"{rbac}/rolebindings", binding)
        assert (await cluster.request("GET", PODS, **other_user)).code == 200
        assert (await cluster.request("GET", "/api/v1/pods", **other_user)).code == 403
        assert (await cluster.request("GET", f"{PODS}/x", **other_user)).code == 403


@async_test
async def test_impersonation_needs_the_right_to_impersonate(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        answer = await cluster.request("GET", PODS, Impersonate_User="bob")
        assert 'User "bob" cannot list' in answer.json["message"]
        answer = await cluster.request("GET", PODS, Impersonate_User="bob", Impersonate_Group="system:masters")
        assert answer.code == 200
        answer = await cluster.request("GET", PODS, Impersonate_User="bob", Authorization=f"Bearer {UNKNOWN_TOKEN}")
        assert answer.json["message"].startswith('users "bob" is forbidden: User "stranger" cannot impersonate')


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "code", "reason", "message"),
    [
        pytest.param("GET", f"{PODS}/x", None, {}, 404, "NotFound", 'pods "x" not found', id="missing"),
        pytest.param(
            "GET", "/api/v1/foos", None, {}, 404, "NotFound", "could not find the requested", id="unknown kind"
        ),
        pytest.param(
            "GET", f"{PODS}/x/foo", None, {}, 404, "NotFound", "could not find the requested", id="unknown sub-resource"
        ),
        pytest.param("POST", f"{PODS}/x", "{}", {}, 405, "MethodNotAllowed", "does not allow", id="method"),
        pytest.param("HEAD", PODS, None, {}, 405, "", "", id="head"),
        pytest.param("POST", PODS, '{"a":', {}, 400, "BadRequest", "unexpected end of JSON input", id="cut off"),
        pytest.param("POST", PODS, "", {}, 400, "BadRequest", "<empty>", id="no body"),
        pytest.param("POST", PODS, b"\xff\xfe{", {}, 400, "BadRequest", "unrecognized", id="not UTF-8"),
        pytest.param("POST", PODS, "[1]", {}, 400, "BadRequest", "cannot unmarshal array", id="a list"),
        pytest.param("POST", PODS, "[" * 100_000, {}, 400, "BadRequest", "", id="very deep"),
        pytest.param(
            "POST", PODS, "a=b", {"Content_Type": "text/plain"}, 415, "UnsupportedMediaType", "media", id="media"
        ),
        pytest.param(
            "PATCH",
            f"{PODS}/x",
            "{}",
            {"Content_Type": JSON},
            415,
            "UnsupportedMediaType",
            "Unsupported Media",
            id="patch",
        ),
        pytest.param("GET", PODS, None, {"Accept": "image/png"}, 406, "NotAcceptable", "Not Acceptable", id="accept"),
        pytest.param("POST", PODS, "x" * (3 << 20), {}, 400, "BadRequest", "", id="the largest body"),
        pytest.param(
            "POST", PODS, "x" * (4 << 20), {}, 413, "RequestEntityTooLarge", "limit is 3145728", id="a larger body"
        ),
        pytest.param(
            "POST",
            "/api/v1/namespaces/a/configmaps",
            {"metadata": {"name": "a", "namespace": "b"}},
            {},
            400,
            "BadRequest",
            "the namespace of the provided object does not match",
            id="another namespace",
        ),
        pytest.param(
            "POST",
            CONFIG_MAPS,
            {"metadata": {"name": "a", "resourceVersion": "4"}},
            {},
            500,
            "InternalError",
            "resourceVersion should not be set on objects to be created",
            id="a resource version",
        ),
        pytest.param(
            "POST", CONFIG_MAPS, {"metadata": {}}, {}, 422, "Invalid", "name or generateName is required", id="no name"
        ),
        pytest.param("GET", f"{PODS}?limit=x", None, {}, 400, "BadRequest", "invalid syntax", id="a bad number"),
        pytest.param(
            "POST", f"{PODS}?dryRun=Some", "{}", {}, 422, "Invalid", 'supported values: "All"', id="a bad dry run"
        ),
    ],
)
def test_invalid_requests_get_a_status(
    tmp_path: Path, method: str, path: str, body: Any, headers: dict[str, str], code: int, reason: str, message: str
) -> None:
    @async_test
    async def run() -> None:
        async with run_embedded_cluster(tmp_path) as cluster:
            answer = await cluster.request(method, path, body, **headers)
            assert answer.code == code, answer.text
            if method != "HEAD":
                status = answer.json
                assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", code)
                assert status["reason"] == reason
                assert message in status["message"]
            assert (await cluster.request("GET", PODS)).code == 200  # the server keeps running

    run()


@async_test
async def test_unknown_paths_get_the_plain_404_of_go(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        for path in ("/foo", "/apis/foo.io/v1/things", "/apis/foo.io"):
            answer = await cluster.request("GET", path)
            assert (answer.code, answer.text) == (404, "404 page not found\n"), path


@async_test
async def test_bytes_that_are_not_http_get_400(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        for text in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
            assert (await cluster.raw(text)).startswith(b"HTTP/1.0 400") or b" 400 " in (await cluster.raw(text))
        assert (await cluster.request("GET", "/version")).code == 200


@pytest.mark.parametrize("text", [pytest.param(b"", id="nothing"), pytest.param(b"GET / HTTP/1.1\r\nHo", id="half")])
def test_connections_without_a_request_are_closed(tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 0.05)

    @async_test
    async def run() -> None:
        async with run_embedded_cluster(tmp_path) as cluster:
            assert await cluster.raw(text) == b""

    run()


@async_test
async def test_a_body_that_does_not_arrive_gets_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_TIMEOUT_S", 0.05)
    async with run_embedded_cluster(tmp_path) as cluster:
        token = cluster.cluster.credentials.token
        head = f"POST {PODS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 100\r\n\r\n{{"
        response = await cluster.raw(head.encode())
        assert response.startswith(b"HTTP/1.1 408 ")
        assert b'"reason":"Timeout"' in response


@async_test
async def test_the_server_listens_on_loopback_by_default(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        http_server = cluster.cluster._http
        assert http_server is not None
        assert http_server._listening is not None
        assert {each.getsockname()[0] for each in http_server._listening.sockets} == {"127.0.0.1"}


@async_test
async def test_a_watch_whose_client_does_not_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SEND_S", 0.05)
    stopped: list[watch_stream.Watch] = []
    stop = watch_stream.Watch.stop
    monkeypatch.setattr(watch_stream.Watch, "stop", lambda self: (stopped.append(self), stop(self))[1])
    async with run_embedded_cluster(tmp_path) as cluster:

        async def make_large(first: int, last: int) -> None:
            for number in range(first, last):
                await cluster.create(CONFIG_MAPS, {"metadata": {"name": f"l-{number}"}, "data": {"a": "x" * 500_000}})

        await make_large(0, 48)  # more than the buffers of both ends
        watch_cache, credentials = (
            cluster.cluster.store.committed_objects(("", "configmaps")).watch_cache,
            cluster.cluster.credentials,
        )
        tls = ssl.create_default_context(cafile=str(credentials.authority))
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.cluster.port, ssl=tls, limit=1024)
        head = f"GET {CONFIG_MAPS}?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {credentials.token}\r\n\r\n"
        writer.write(head.encode())
        await wait_until(lambda: watch_cache._listeners or stopped)
        await make_large(48, 52)
        await wait_until(lambda: stopped)
        assert not watch_cache._listeners
        assert (await cluster.request("GET", "/version")).code == 200
        assert not reader.at_eof()
        writer.transport.abort()


@async_test
async def test_a_watch_whose_client_disconnects_is_removed(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        watch_cache = cluster.cluster.store.committed_objects(("", "configmaps")).watch_cache
        async with cluster.session.get(f"{CONFIG_MAPS}?watch=true") as answer:
            await answer.content.readline()
            assert len(watch_cache._listeners) == 1
        await wait_until(lambda: not watch_cache._listeners)


@async_test
async def test_an_object_is_created_updated_patched_and_deleted(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        created = await cluster.create(CONFIG_MAPS, config_map("a"))
        assert created["metadata"]["managedFields"][0]["manager"] == "Python"
        path = f"{CONFIG_MAPS}/a"
        stale = {**created, "data": {"a": "c"}, "metadata": {**created["metadata"], "resourceVersion": "1"}}
        refused = await cluster.request("PUT", path, stale)
        assert (refused.code, refused.json["details"]) == (409, {"name": "a", "kind": "configmaps"})
        changed = (await cluster.request("PUT", path, {**created, "data": {"a": "c"}})).json
        assert (changed["data"], changed["metadata"]["uid"]) == ({"a": "c"}, created["metadata"]["uid"])
        again = (await cluster.request("PATCH", path, {"data": {"a": "c"}}, Content_Type=MERGE)).json
        assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"], "nothing has changed"
        deleted = (await cluster.request("DELETE", path)).json
        assert (deleted["kind"], deleted["status"]) == ("Status", "Success")
        assert deleted["details"] == {"name": "a", "kind": "configmaps", "uid": created["metadata"]["uid"]}


@async_test
async def test_a_dry_run_stores_nothing(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        dry_run = await cluster.request("POST", f"{CONFIG_MAPS}?dryRun=All", config_map("a"))
        assert dry_run.code == 201
        assert "uid" in dry_run.json["metadata"]
        assert "resourceVersion" not in dry_run.json["metadata"]
        assert (await cluster.request("GET", f"{CONFIG_MAPS}/a")).code == 404


@async_test
async def test_unknown_fields_get_a_warning_or_a_strict_error(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        with_unknown_fields = {**config_map("a"), "foo": 1, "bar": 2}
        answer = await cluster.request("POST", CONFIG_MAPS, with_unknown_fields)
        assert answer.headers.getall("Warning") == [
            '299 - "unknown field \\"foo\\""',
            '299 - "unknown field \\"bar\\""',
        ]
        refused = await cluster.request("POST", f"{CONFIG_MAPS}?fieldValidation=Strict", with_unknown_fields)
        assert 'strict decoding error: unknown field "foo", unknown field "bar"' in refused.json["message"]
        quiet = await cluster.request(
            "POST", f"{CONFIG_MAPS}?fieldValidation=Ignore", {**with_unknown_fields, "metadata": {"name": "b"}}
        )
        assert "Warning" not in quiet.headers
        again = await cluster.request("POST", CONFIG_MAPS, with_unknown_fields)  # the name exists: 409, with warnings
        assert (again.code, len(again.headers.getall("Warning"))) == (409, 2)


@async_test
async def test_the_etag_of_discovery_changes_with_a_new_kind(tmp_path: Path) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    async with run_embedded_cluster(tmp_path) as cluster:
        first = await cluster.request("GET", "/apis", Accept=accept)
        etag = first.headers["Etag"]
        assert first.headers["Content-Type"] == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        assert (await cluster.request("GET", "/apis", Accept=accept, If_None_Match=etag)).code == 304
        await cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
        changed = await cluster.request("GET", "/apis", Accept=accept, If_None_Match=etag)
        assert changed.code == 200
        assert changed.headers["Etag"] != etag
        groups = {each["metadata"].get("name") for each in changed.json["items"]}
        assert "ex.io" in groups
        plain = (await cluster.request("GET", "/apis/ex.io/v1")).json
        assert [each["name"] for each in plain["resources"]] == ["widgets", "widgets/status"]


def definition() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    version["subresources"] = {"status": {}}
    names = {"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.ex.io"},
        "spec": {"group": "ex.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }


@async_test
async def test_bayplans_client_works_with_the_cluster(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        assert (await client.discover()).server_version == "v1.36.4"
        events: list[tuple[bool, bool, str]] = []

        def handle(old: KubeObject | None, new: KubeObject | None) -> None:
            events.append((old is not None, new is not None, (new or old).metadata.name))  # type: ignore[union-attr]

        await cluster.create(PODS, pod("a"))
        informer = client.informer(CLIENT_PODS, handle)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        await cluster.create(PODS, pod("b", node="n1"))
        await wait_until(lambda: len(informer.store) == 2)
        await client.patch(CLIENT_PODS, {"metadata": {"labels": {"x": "y"}}}, namespace="default", name="b")
        await client.delete(CLIENT_PODS, namespace="default", name="b", grace_s=0)
        await wait_until(lambda: len(informer.store) == 1)
        assert events[:3] == [(False, True, "a"), (False, True, "b"), (True, True, "b")]
        assert events[-1] == (True, False, "b")
        with pytest.raises(NotFound):
            await client.get(Pod, "default", "b")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@async_test
async def test_objects_in_a_data_file_survive_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "objects.db"
    async with run_embedded_cluster(tmp_path / "a", data=data) as cluster:
        await cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
        created = await cluster.create("/apis/ex.io/v1/namespaces/default/widgets", widget("w"))
    async with run_embedded_cluster(tmp_path / "a", data=data) as cluster:
        found = (await cluster.request("GET", "/apis/ex.io/v1/namespaces/default/widgets/w")).json
        assert found == created
        created_later = await cluster.create(CONFIG_MAPS, config_map("late"))
        assert int(created_later["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"]) + 1000


def widget(name: str) -> dict[str, Any]:
    return {"apiVersion": "ex.io/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 3}}


def test_the_start_imports_few_packages() -> None:
    """CEL is imported for the first definition; no scheduler module is imported at all."""
    command = "import sys, bayplan.apiserver.embedded; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout.split()
    packages = {".".join(each.split(".")[:2]) for each in loaded if each.startswith("bayplan.")}
    assert packages == {f"bayplan.{each}" for each in ("admission", "apiserver", "clock", "codec", "errors", "objects")}
    assert "numpy" not in loaded


@pytest.mark.parametrize(
    ("other_versions", "warning"),
    [
        pytest.param([], "ex.io/v1beta1 Thing is deprecated", id="no other version"),
        pytest.param([{"name": "v1alpha1"}], "ex.io/v1beta1 Thing is deprecated", id="only an older version"),
        pytest.param(
            [{"name": "v1"}, {"name": "v2"}, {"name": "v3", "served": False}],
            "ex.io/v1beta1 Thing is deprecated; use ex.io/v2 Thing",
            id="newer versions",
        ),
    ],
)
def test_a_deprecated_version_has_a_warning(tmp_path: Path, other_versions: list[dict[str, Any]], warning: str) -> None:
    @async_test
    async def run() -> None:
        common = {"served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}}
        deprecated = {**common, "name": "v1beta1", "storage": True, "deprecated": True}
        spec = {
            "group": "ex.io",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [deprecated, *({**common, **each} for each in other_versions)],
        }
        definition = {"metadata": {"name": "things.ex.io"}, "spec": spec}
        async with run_embedded_cluster(tmp_path) as cluster:
            created = await cluster.request(
                "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition
            )
            assert created.code == 201, created.text
            things = "/apis/ex.io/v1beta1/namespaces/default/things"
            for path, code in ((things, 200), (f"{things}/missing", 404)):
                answer = await cluster.request("GET", path)
                assert (answer.code, answer.headers.getall("Warning")) == (code, [f'299 - "{warning}"'])

    run()
