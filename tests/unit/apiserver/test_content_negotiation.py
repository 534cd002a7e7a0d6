"""In which form answers come, and which requests have no answer but a refusal; each as a real kube-apiserver has it."""

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
async def test_a_list_of_metadata_without_items_has_null_and_all_others_an_empty_list(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        nobody = f"{CONFIG_MAPS}?labelSelector=a%3Db"
        assert (await cluster.request("GET", nobody, Accept=METADATA_LIST)).json["items"] is None
        assert (await cluster.request("GET", nobody)).json["items"] == []
        table = "application/json;as=Table;g=meta.k8s.io;v=v1"
        assert (await cluster.request("GET", nobody, Accept=table)).json["rows"] == []
        somebody = (await cluster.request("GET", CONFIG_MAPS, Accept=METADATA_LIST)).json["items"]
        assert [each["metadata"]["name"] for each in somebody] == ["kube-root-ca.crt"]


@async_test
async def test_metadata_of_one_are_not_those_of_many(tmp_path: Path) -> None:
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
async def test_yaml_quotes_what_another_reader_could_mistake(tmp_path: Path) -> None:
    texts = {"a": "yes", "b": "y", "c": "1e3", "d": "", "e": "two\nlines\n", "f": "plain", "g": "0x1f", "h": "a: b"}
    async with run_embedded_cluster(tmp_path) as cluster:
        await cluster.create(CONFIG_MAPS, {**config_map("texts"), "data": texts})
        answer = await cluster.request("GET", f"{CONFIG_MAPS}/texts", Accept="application/yaml")
        assert yaml.safe_load(answer.text)["data"] == texts
        told = answer.text.partition("data:\n")[2].partition("kind:")[0]
        assert told == (
            '  a: "yes"\n  b: "y"\n  c: "1e3"\n  d: ""\n  e: |\n    two\n    lines\n  f: plain\n  g: "0x1f"\n'
            "  h: 'a: b'\n"
        )
        missing = await cluster.request("GET", f"{CONFIG_MAPS}/nope", Accept="application/yaml")
        assert yaml.safe_load(missing.text)["message"] == 'configmaps "nope" not found'


@pytest.mark.parametrize(
    ("query", "agent", "laid_out"),
    [
        pytest.param("", "kubectl/v1.36.4", False, id="a program"),
        pytest.param("?pretty=true", "kubectl/v1.36.4", True, id="a program that wants it so"),
        pytest.param("", "curl/8.5.0", True, id="a person"),
        pytest.param("?pretty=false", "curl/8.5.0", False, id="a person who does not want it so"),
    ],
)
def test_answers_are_laid_out_for_people(tmp_path: Path, query: str, agent: str, laid_out: bool) -> None:
    @async_test
    async def run() -> None:
        async with run_embedded_cluster(tmp_path) as cluster:
            for path in (CONFIG_MAPS, f"{CONFIG_MAPS}/nope"):
                answer = await cluster.request("GET", f"{path}{query}", User_Agent=agent)
                assert answer.text.startswith('{\n  "kind": "') == laid_out, answer.text

    run()


@async_test
async def test_what_people_ask_a_server_first(tmp_path: Path) -> None:
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
async def test_cluster_wide_objects_lose_the_namespace_that_a_manifest_gives_them(tmp_path: Path) -> None:
    role = {"metadata": {"name": "reader", "namespace": "somewhere"}, "rules": []}
    async with run_embedded_cluster(tmp_path) as cluster:
        for method, path in (("POST", ROLES), ("PUT", f"{ROLES}/reader")):
            answer = await cluster.request(method, path, role)
            assert answer.code in (200, 201), answer.text
            assert "namespace" not in answer.json["metadata"]


@async_test
async def test_what_was_there_once_is_applied_with_the_version_that_it_had(tmp_path: Path) -> None:
    saved = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "saved", "resourceVersion": "5"}}
    async with run_embedded_cluster(tmp_path) as cluster:
        path = f"{CONFIG_MAPS}/saved?fieldManager=tests"
        assert (await cluster.request("PATCH", path, saved, Content_Type=APPLY)).code == 201
        assert (await cluster.request("PATCH", path, saved, Content_Type=APPLY)).code == 409


@async_test
async def test_a_dry_run_does_not_mind_a_version_that_the_store_would_refuse(tmp_path: Path) -> None:
    saved = config_map("saved")
    saved["metadata"]["resourceVersion"] = "5"
    async with run_embedded_cluster(tmp_path) as cluster:
        assert (await cluster.request("POST", f"{CONFIG_MAPS}?dryRun=All", saved)).code == 201
        refused = await cluster.request("POST", CONFIG_MAPS, saved)
        assert (refused.code, refused.json["reason"]) == (500, "InternalError")
        wrong = {**saved, "metadata": {"name": "Not_A_Name", "resourceVersion": "5"}}
        assert (await cluster.request("POST", CONFIG_MAPS, wrong)).code == 422


@async_test
async def test_what_was_another_object_once_is_not_applied_in_its_name(tmp_path: Path) -> None:
    saved = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "saved", "uid": "u-1"}}
    async with run_embedded_cluster(tmp_path) as cluster:
        answer = await cluster.request("PATCH", f"{CONFIG_MAPS}/saved?fieldManager=tests", saved, Content_Type=APPLY)
        why = "uid mismatch: the provided object specified uid u-1, and no existing object was found"
        assert (answer.code, answer.json["reason"]) == (409, "Conflict")
        assert answer.json["message"].endswith(why)


@async_test
async def test_managed_fields_written_by_hand_that_are_none_are_forgotten(tmp_path: Path) -> None:
    entry = {
        "manager": "somebody",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:key": "a text"}},
    }
    made = {**config_map("odd"), "data": {"key": "value"}}
    made["metadata"]["managedFields"] = [entry]
    async with run_embedded_cluster(tmp_path) as cluster:
        answer = await cluster.request("POST", CONFIG_MAPS, made, User_Agent="tests/1")
        assert answer.code == 201, answer.text
        assert [each["manager"] for each in answer.json["metadata"]["managedFields"]] == ["tests"]


@async_test
async def test_an_api_service_is_asked_at_the_port_of_https_and_an_id_of_old_is_warned_of(tmp_path: Path) -> None:
    spec = {"group": "metrics.k8s.io", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100}
    metrics = {
        "metadata": {"name": "v1.metrics.k8s.io"},
        "spec": {**spec, "service": {"name": "metrics", "namespace": "kube-system"}, "insecureSkipTLSVerify": True},
    }
    node = {"metadata": {"name": "old"}, "spec": {"externalID": "i-1"}}
    async with run_embedded_cluster(tmp_path) as cluster:
        made = await cluster.request("POST", "/apis/apiregistration.k8s.io/v1/apiservices", metrics)
        assert made.json["spec"]["service"]["port"] == 443
        warned = await cluster.request("POST", "/api/v1/nodes", node)
        assert "spec.externalID: this field is deprecated" in warned.headers["Warning"]


@async_test
async def test_a_status_has_the_default_of_its_schema_whatever_its_maker_says(tmp_path: Path) -> None:
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
        made = await cluster.request("POST", "/apis/example.com/v1/gates", gate)
        assert (made.code, made.json["status"]) == (201, {"phase": "Waiting"})
        assert (await cluster.request("GET", "/apis/example.com/v1/gates/a")).json["status"] == {"phase": "Waiting"}


@async_test
async def test_custom_resources_are_patched_in_every_form_but_the_strategic_one(tmp_path: Path) -> None:
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
        for form, patch, code in patches:
            answer = await cluster.request("PATCH", path, patch, Content_Type=f"application/{form}+json")
            assert answer.code == code, form
        found = (await cluster.request("GET", path)).json
        assert {key: found[key] for key in ("a", "b", "c") if key in found} == {"a": 1, "b": 2}
        assert "application/merge-patch+json" in answer.json["message"]


_FUTURE = "9" * 18


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "message"),
    [
        pytest.param("DELETE", "/api/v1/pods", None, 405, "does not allow this method", id="clear all namespaces"),
        pytest.param("POST", "/api/v1/configmaps", {}, 405, "does not allow this method", id="create nowhere"),
        pytest.param("GET", "/api/v1/configmaps/x", None, 404, "could not find the requested", id="one of nowhere"),
        pytest.param("PUT", CONFIG_MAPS, {}, 405, "does not allow this method", id="replace many"),
        pytest.param("PATCH", CONFIG_MAPS, {}, 405, "does not allow this method", id="patch many"),
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
            "GET", f"{CONFIG_MAPS}?resourceVersion={_FUTURE}", None, 504, "Too large resource", id="list ahead"
        ),
        pytest.param(
            "GET", f"{CONFIG_MAPS}/x?resourceVersion={_FUTURE}", None, 504, "Too large resource", id="get ahead"
        ),
        pytest.param(
            "GET", f"{CONFIG_MAPS}?watch=true&continue=abc", None, 422, "is forbidden when continue", id="watch on"
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
def test_what_nobody_may_ask(tmp_path: Path, method: str, path: str, body: Any, code: int, message: str) -> None:
    @async_test
    async def run() -> None:
        async with run_embedded_cluster(tmp_path) as cluster:
            headers = {"Content_Type": MERGE} if method == "PATCH" else {}
            answer = await cluster.request(method, path, body, **headers)
            assert (answer.code, answer.json["code"]) == (code, code)
            assert message in answer.json["message"]

    run()


@async_test
async def test_a_limit_below_nothing_is_none(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster:
        assert len((await cluster.request("GET", "/api/v1/namespaces?limit=-1")).json["items"]) == 4
