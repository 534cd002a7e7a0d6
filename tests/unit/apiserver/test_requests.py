"""Paths, verbs, content negotiation, and events in both of their groups."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.content_negotiation import MediaTypeOptions, negotiate_media_type
from bayplan.apiserver.requests import ResourcePath, parse_resource_path, request_verb
from bayplan.apiserver.resources.kinds import BUILT_IN, ResourceRegistry, version_rank
from bayplan.apiserver.storage import version_conversion
from support.harness.apiserver_store import ApiserverStore


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/api/v1/pods", ResourcePath("", "v1", "pods"), id="all namespaces"),
        pytest.param("/api/v1/namespaces/a/pods", ResourcePath("", "v1", "pods", "a"), id="one namespace"),
        pytest.param("/api/v1/namespaces/a/pods/p", ResourcePath("", "v1", "pods", "a", "p"), id="one object"),
        pytest.param(
            "/api/v1/namespaces/a/pods/p/log", ResourcePath("", "v1", "pods", "a", "p", "log"), id="a sub-resource"
        ),
        pytest.param("/api/v1/namespaces/a", ResourcePath("", "v1", "namespaces", "", "a"), id="a namespace"),
        pytest.param(
            "/api/v1/namespaces/a/status", ResourcePath("", "v1", "namespaces", "", "a", "status"), id="its status"
        ),
        pytest.param("/apis/apps/v1/deployments", ResourcePath("apps", "v1", "deployments"), id="a group"),
        pytest.param("/api/v1/nodes/a%2Fb", ResourcePath("", "v1", "nodes", "", "a/b"), id="escaped"),
        pytest.param("/apis/apps/v1", None, id="discovery"),
        pytest.param("/version", None, id="another path"),
    ],
)
def test_paths_of_resources(path: str, expected: ResourcePath | None) -> None:
    assert parse_resource_path(path) == expected


@pytest.mark.parametrize(
    ("method", "name", "query", "verb"),
    [
        pytest.param("GET", "", {}, "list", id="list"),
        pytest.param("GET", "", {"watch": "1"}, "watch", id="watch"),
        pytest.param("GET", "", {"watch": "false"}, "list", id="no watch"),
        pytest.param("GET", "p", {"watch": "true"}, "get", id="one object is not watched"),
        pytest.param("DELETE", "", {}, "deletecollection", id="all of them"),
        pytest.param("DELETE", "p", {}, "delete", id="one of them"),
    ],
)
def test_verbs_of_requests(method: str, name: str, query: dict[str, str], verb: str) -> None:
    assert request_verb(method, ResourcePath("", "v1", "pods", "a", name), query) == verb


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        pytest.param("", MediaTypeOptions(), id="no header"),
        pytest.param("*/*", MediaTypeOptions(), id="anything"),
        pytest.param(
            "application/vnd.kubernetes.protobuf,application/json", MediaTypeOptions(), id="protobuf, or JSON"
        ),
        pytest.param("application/yaml", MediaTypeOptions(yaml=True), id="YAML"),
        pytest.param(f"{TABLE},application/json", MediaTypeOptions(shape="Table"), id="a table"),
        pytest.param(
            "application/json;as=Table;v=v9;g=meta.k8s.io,application/json", MediaTypeOptions(), id="a future table"
        ),
        pytest.param("application/yaml;q=0.1,application/json", MediaTypeOptions(), id="weights"),
    ],
)
def test_accept_headers(accept: str, expected: MediaTypeOptions) -> None:
    assert negotiate_media_type(accept) == expected


def test_an_unsupported_accept_header_is_refused() -> None:
    with pytest.raises(StatusError) as caught:
        negotiate_media_type("application/vnd.kubernetes.protobuf")
    assert caught.value.code == 406


def test_versions_are_sorted_as_in_kubernetes() -> None:
    order = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    mixed = [*order[5:], *order[:5]]
    assert sorted(mixed, key=version_rank) == order


def test_added_and_removed_kinds_change_the_registry_version() -> None:
    resources = ResourceRegistry()
    before = resources.version
    resource = BUILT_IN[1].__class__("ex.io", "v1", "Thing", "things", "thing", definition={"name": "v1"})
    resources.add("things.ex.io", [resource])
    assert resources.version == before + 1
    assert resources.find("ex.io", "v1", "things") is resource
    resources.add("things.ex.io", [resource])
    assert resources.version == before + 1  # unchanged
    resources.remove("things.ex.io")
    assert resources.find("ex.io", "v1", "things") is None


def test_an_event_is_served_with_the_field_names_of_both_groups() -> None:
    store = ApiserverStore()
    event: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "hello",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reportingController": "c",
        "reportingInstance": "i",
    }
    entry = store.create(event).entry
    assert entry is not None
    core = json.loads(version_conversion.to_json(store.kind("Event"), entry))
    assert (core["message"], core["involvedObject"]["name"], core["reportingComponent"]) == ("hello", "p", "c")
    assert (core["source"], core["firstTimestamp"], core["apiVersion"]) == ({}, None, "v1")
    newer = json.loads(version_conversion.to_json(store.kind("Event", "events.k8s.io"), entry))
    assert (newer["note"], newer["regarding"]["name"], newer["deprecatedSource"]) == ("hello", "p", {})
    assert "message" not in newer
