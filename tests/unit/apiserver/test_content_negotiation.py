"""Output formats and refused requests, compared with a real kube-apiserver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.harness.apiserver_store import config_map
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


@async_test
async def test_an_empty_list_of_metadata_has_null_items_and_other_lists_an_empty_list(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        no_match = f"{CONFIG_MAPS}?labelSelector=a%3Db"
        assert (await cluster.request("GET", no_match, Accept=METADATA_LIST)).json["items"] is None
        assert (await cluster.request("GET", no_match)).json["items"] == []
        table = "application/json;as=Table;g=meta.k8s.io;v=v1"
        assert (await cluster.request("GET", no_match, Accept=table)).json["rows"] == []
        items = (await cluster.request("GET", CONFIG_MAPS, Accept=METADATA_LIST)).json["items"]
        assert [each["metadata"]["name"] for each in items] == ["kube-root-ca.crt"]


@async_test
async def test_the_metadata_kind_must_match_object_or_list(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        for path, accept, message in (
            (
                CONFIG_MAPS,
                METADATA,
                "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)",
            ),
            (
                f"{CONFIG_MAPS}/kube-root-ca.crt",
                METADATA_LIST,
                "you requested PartialObjectMetadataList, but the requested object is not a list (*core.ConfigMap)",
            ),
        ):
            answer = await cluster.request("GET", path, Accept=accept)
            assert (answer.code, answer.json["reason"], answer.json["message"]) == (406, "NotAcceptable", message)


@async_test
async def test_yaml_quotes_ambiguous_scalars(tmp_path: Path) -> None:
    texts = {"a": "yes", "b": "y", "c": "1e3", "d": "", "e": "two\nlines\n", "f": "plain", "g": "0x1f", "h": "a: b"}
    async with run_embedded_cluster(tmp_path) as cluster:
        await cluster.create(CONFIG_MAPS, {**config_map("texts"), "data": texts})
        answer = await cluster.request("GET", f"{CONFIG_MAPS}/texts", Accept="application/yaml")
        assert yaml.safe_load(answer.text)["data"] == texts
        data_text = answer.text.partition("data:\n")[2].partition("kind:")[0]
        assert data_text == (
            '  a: "yes"\n  b: "y"\n  c: "1e3"\n  d: ""\n  e: |\n    two\n    lines\n  f: plain\n  g: "0x1f"\n'
            "  h: 'a: b'\n"
        )
        missing = await cluster.request("GET", f"{CONFIG_MAPS}/nope", Accept="application/yaml")
        assert yaml.safe_load(missing.text)["message"] == 'configmaps "nope" not found'


@pytest.mark.parametrize(
    ("query", "agent", "pretty"),
    [
        pytest.param("", "kubectl/v1.36.4", False, id="a program"),
        pytest.param("?pretty=true", "kubectl/v1.36.4", True, id="a program with pretty=true"),
        pytest.param("", "curl/8.5.0", True, id="curl"),
        pytest.param("?pretty=false", "curl/8.5.0", False, id="curl with pretty=false"),
    ],
)
def test_responses_are_pretty_for_curl_or_on_request(tmp_path: Path, query: str, agent: str, pretty: bool) -> None:
    @async_test
    async def run() -> None:
        async with run_embedded_cluster(tmp_path) as cluster:
            for path in (CONFIG_MAPS, f"{CONFIG_MAPS}/nope"):
                answer = await cluster.request("GET", f"{path}{query}", User_Agent=agent)
                assert answer.text.startswith('{\n  "kind": "') == pretty, answer.text

    run()


@async_test
async def test_root_health_and_version_paths(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        paths = (await cluster.request("GET", "/")).json["paths"]
        assert {"/api/v1", "/apis/apps/v1", "/openapi/v3", "/readyz", "/version"} <= set(paths)
        for path in paths:
            assert (await cluster.request("GET", path)).code == 200, path
        assert (await cluster.request("GET", "/readyz?verbose")).text == "[+]ping ok\n[+]etcd ok\nreadyz check passed\n"
        assert (await cluster.request("GET", "/livez/etcd")).text == "ok"
        assert (await cluster.request("GET", "/livez/nonsense")).code == 404
        assert (await cluster.request("GET", "/version")).text.startswith('{\n  "major": "1",\n')
        assert (await cluster.request("GET", "/openapi/v2", Accept="application/json")).json["swagger"] == "2.0"


@async_test
async def test_cluster_scoped_objects_lose_the_namespace_in_the_body(tmp_path: Path) -> None:
    role = {"metadata": {"name": "reader", "namespace": "somewhere"}, "rules": []}
    async with run_embedded_cluster(tmp_path) as cluster:
        for method, path in (("POST", ROLES), ("PUT", f"{ROLES}/reader")):
            answer = await cluster.request(method, path, role)
            assert answer.code in (200, 201), answer.text
            assert "namespace" not in answer.json["metadata"]


@async_test
async def test_apply_creates_an_object_with_the_version_of_a_deleted_one(tmp_path: Path) -> None:
    saved = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "saved", "resourceVersion": "5"}}
    async with run_embedded_cluster(tmp_path) as cluster:
        path = f"{CONFIG_MAPS}/saved?fieldManager=tests"
        assert (await cluster.request("PATCH", path, saved, Content_Type=APPLY)).code == 201
        assert (await cluster.request("PATCH", path, saved, Content_Type=APPLY)).code == 409


@async_test
async def test_a_dry_run_create_accepts_a_resource_version(tmp_path: Path) -> None:
    saved = config_map("saved")
    saved["metadata"]["resourceVersion"] = "5"
    async with run_embedded_cluster(tmp_path) as cluster:
        assert (await cluster.request("POST", f"{CONFIG_MAPS}?dryRun=All", saved)).code == 201
        refused = await cluster.request("POST", CONFIG_MAPS, saved)
        assert (refused.code, refused.json["reason"]) == (500, "InternalError")
        wrong = {**saved, "metadata": {"name": "Not_A_Name", "resourceVersion": "5"}}
        assert (await cluster.request("POST", CONFIG_MAPS, wrong)).code == 422


@async_test
async def test_apply_with_the_uid_of_a_missing_object_is_refused(tmp_path: Path) -> None:
    saved = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "saved", "uid": "u-1"}}
    async with run_embedded_cluster(tmp_path) as cluster:
        answer = await cluster.request("PATCH", f"{CONFIG_MAPS}/saved?fieldManager=tests", saved, Content_Type=APPLY)
        message = "uid mismatch: the provided object specified uid u-1, and no existing object was found"
        assert (answer.code, answer.json["reason"]) == (409, "Conflict")
        assert answer.json["message"].endswith(message)


@async_test
async def test_invalid_managed_fields_in_the_body_are_dropped(tmp_path: Path) -> None:
    entry = {
        "manager": "other",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:key": "a text"}},
    }
    created = {**config_map("odd"), "data": {"key": "value"}}
    created["metadata"]["managedFields"] = [entry]
    async with run_embedded_cluster(tmp_path) as cluster:
        answer = await cluster.request("POST", CONFIG_MAPS, created, User_Agent="tests/1")
        assert answer.code == 201, answer.text
        assert [each["manager"] for each in answer.json["metadata"]["managedFields"]] == ["tests"]


@async_test
async def test_the_default_port_of_an_api_service_and_the_warning_for_external_id(tmp_path: Path) -> None:
    spec = {"group": "metrics.k8s.io", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100}
    metrics = {
        "metadata": {"name": "v1.metrics.k8s.io"},
        "spec": {**spec, "service": {"name": "metrics", "namespace": "kube-system"}, "insecureSkipTLSVerify": True},
    }
    node = {"metadata": {"name": "old"}, "spec": {"externalID": "i-1"}}
    async with run_embedded_cluster(tmp_path) as cluster:
        created = await cluster.request("POST", "/apis/apiregistration.k8s.io/v1/apiservices", metrics)
        assert created.json["spec"]["service"]["port"] == 443
        with_warning = await cluster.request("POST", "/api/v1/nodes", node)
        assert "spec.externalID: this field is deprecated" in with_warning.headers["Warning"]


@async_test
async def test_the_status_of_a_new_custom_resource_is_the_default_of_its_schema(tmp_path: Path) -> None:
    status = {"type": "object", "default": {"phase": "Waiting"}, "properties": {"phase": {"type": "string"}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"status": status}}},
    }
    names = {"plural": "gates", "kind": "Gate"}
    definition = {
        "metadata": {"name": "gates.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]},
    }
    gate = {"apiVersion": "example.com/v1", "kind": "Gate", "metadata": {"name": "a"}, "status": {"phase": "Open"}}
    async with run_embedded_cluster(tmp_path) as cluster:
        await cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        created = await cluster.request("POST", "/apis/example.com/v1/gates", gate)
        assert (created.code, created.json["status"]) == (201, {"phase": "Waiting"})
        assert (await cluster.request("GET", "/apis/example.com/v1/gates/a")).json["status"] == {"phase": "Waiting"}


@async_test
async def test_custom_resources_support_all_patch_types_but_strategic_merge(tmp_path: Path) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "gates", "kind": "Gate"}
    definition = {
        "metadata": {"name": "gates.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]},
    }
    gate, path = {"apiVersion": "example.com/v1", "kind": "Gate"}, "/apis/example.com/v1/gates/a"
    patches: list[tuple[str, Any, int]] = [
        ("merge-patch", {"a": 1}, 200),
        ("json-patch", [{"op": "add", "path": "/b", "value": 2}], 200),
        ("strategic-merge-patch", {"c": 3}, 415),
    ]
    async with run_embedded_cluster(tmp_path) as cluster:
        await cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        await cluster.create("/apis/example.com/v1/gates", {**gate, "metadata": {"name": "a"}})
        for patch_type, patch, code in patches:
            answer = await cluster.request("PATCH", path, patch, Content_Type=f"application/{patch_type}+json")
            assert answer.code == code, patch_type
        found = (await cluster.request("GET", path)).json
        assert {key: found[key] for key in ("a", "b", "c") if key in found} == {"a": 1, "b": 2}
        assert "application/merge-patch+json" in answer.json["message"]


_FUTURE = "9" * 18


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "message"),
    [
        pytest.param("DELETE", "/api/v1/pods", None, 405, "does not allow this method", id="clear all namespaces"),
        pytest.param(
            "POST", "/api/v1/configmaps", {}, 405, "does not allow this method", id="create without a namespace"
        ),
        pytest.param(
            "GET", "/api/v1/configmaps/x", None, 404, "could not find the requested", id="get without a namespace"
        ),
        pytest.param("PUT", CONFIG_MAPS, {}, 405, "does not allow this method", id="update of a collection"),
        pytest.param("PATCH", CONFIG_MAPS, {}, 405, "does not allow this method", id="patch of a collection"),
        pytest.param("GET", "/apis/apps/v9", None, 404, "could not find the requested", id="version"),
        pytest.param("GET", "/apis/apps/v9/deployments", None, 404, "could not find the requested", id="its kinds"),
        pytest.param(
            "PUT",
            f"{CONFIG_MAPS}/kube-root-ca.crt",
            {"metadata": {}},
            400,
            "the name of the object (kube-root-ca.crt based on URL) was undeterminable: name must be provided",
            id="no name",
        ),
        pytest.param(
            "PATCH",
            f"{CONFIG_MAPS}/kube-root-ca.crt?force=true",
            {},
            422,
            "force: Forbidden: may not be specified for non-apply patch",
            id="force",
        ),
        pytest.param("GET", f"{CONFIG_MAPS}?limit={'9' * 20}", None, 400, "value out of range", id="limit"),
        pytest.param(
            "GET",
            f"{CONFIG_MAPS}?resourceVersion={_FUTURE}",
            None,
            504,
            "Too large resource",
            id="list of a future version",
        ),
        pytest.param(
            "GET",
            f"{CONFIG_MAPS}/x?resourceVersion={_FUTURE}",
            None,
            504,
            "Too large resource",
            id="get of a future version",
        ),
        pytest.param(
            "GET",
            f"{CONFIG_MAPS}?watch=true&continue=abc",
            None,
            422,
            "is forbidden when continue",
            id="watch with continue",
        ),
        pytest.param(
            "GET",
            f"{CONFIG_MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=Exact",
            None,
            422,
            'resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"',
            id="exact",
        ),
    ],
)
def test_unsupported_requests_are_refused(
    tmp_path: Path, method: str, path: str, body: Any, code: int, message: str
) -> None:
    @async_test
    async def run() -> None:
        async with run_embedded_cluster(tmp_path) as cluster:
            headers = {"Content_Type": MERGE} if method == "PATCH" else {}
            answer = await cluster.request(method, path, body, **headers)
            assert (answer.code, answer.json["code"]) == (code, code)
            assert message in answer.json["message"]

    run()


@async_test
async def test_a_negative_limit_means_no_limit(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        assert len((await cluster.request("GET", "/api/v1/namespaces?limit=-1")).json["items"]) == 4
