"""Finding the kind of a word, on a server with aggregated discovery and on one without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.client import GroupVersionResource, KindMapping, NoKindMatch, RestMapper, discover_rest_mapper
from bayplan.errors import ApiError, UsageError
from support.fakes.http_server import FakeHttpServer, Reply, Request, status
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster

PODS = KindMapping(GroupVersionResource("", "v1", "pods"), "Pod", "pod", ("po",), ("all",), ("list",))
EVENTS = KindMapping(GroupVersionResource("", "v1", "events"), "Event", "event", ("ev",), (), ("list",))
NEW_EVENTS = KindMapping(
    GroupVersionResource("events.k8s.io", "v1", "events"), "Event", "event", ("ev",), (), ("list",)
)
DEPLOYMENTS = KindMapping(
    GroupVersionResource("apps", "v1", "deployments"), "Deployment", "deployment", ("deploy",), ("all",), ("list",)
)
KNOWN = RestMapper((PODS, EVENTS, DEPLOYMENTS, NEW_EVENTS))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        pytest.param("pods", [PODS], id="plural"),
        pytest.param("Pod", [PODS], id="kind"),
        pytest.param("deploy", [DEPLOYMENTS], id="short"),
        pytest.param("deployments.apps", [DEPLOYMENTS], id="group"),
        pytest.param("deployments.v1.apps", [DEPLOYMENTS], id="version"),
        pytest.param("events", [EVENTS], id="first-group"),
        pytest.param("events.events.k8s.io", [NEW_EVENTS], id="other-group"),
        pytest.param("all", [PODS, DEPLOYMENTS], id="category"),
    ],
)
def test_matching_kinds(word: str, expected: list[KindMapping]) -> None:
    assert KNOWN.matching_kinds(word) == expected


def test_unknown_and_ambiguous_words_are_refused() -> None:
    with pytest.raises(NoKindMatch, match='no kind "deploi"; did you mean deploy'):
        KNOWN.matching_kinds("deploi")
    with pytest.raises(NoKindMatch, match=r'no kind "deployments\.batch"'):
        KNOWN.matching_kinds("deployments.batch")
    with pytest.raises(UsageError, match='"all" is several kinds'):
        KNOWN.find_kind("all")


def test_a_manifest_is_found_in_its_own_version() -> None:
    found = KNOWN.kind_of_manifest("apps/v1beta1", "Deployment")
    assert found is not None
    assert found.resource.api_version == "apps/v1beta1"
    assert found.matches_name("web") == "deployment.apps/web"
    assert KNOWN.kind_of_manifest("apps/v1", "Pod") is None


def plain(request: Request) -> Reply:
    """A server without aggregated discovery. One of its groups is unavailable."""
    documents: dict[str, Any] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [
                {"name": name, "preferredVersion": {"groupVersion": f"{name}/v1", "version": "v1"}}
                for name in ("apps", "away.example.com")
            ],
        },
        "/api/v1": {"resources": [_entry(PODS), {"name": "pods/binding", "kind": "Binding", "namespaced": True}]},
        "/apis/apps/v1": {"resources": [_entry(DEPLOYMENTS)]},
    }
    found = documents.get(request.path)
    return Reply(200, found) if found is not None else status(503, "ServiceUnavailable", "away")


def _entry(kind: KindMapping) -> dict[str, Any]:
    return {
        "name": kind.resource.plural,
        "kind": kind.kind,
        "namespaced": True,
        "singularName": kind.singular,
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
        "verbs": list(kind.verbs),
    }


@async_test
async def test_discovery_group_by_group() -> None:
    async with FakeHttpServer(plain) as server, server.client() as client:
        assert list(await discover_rest_mapper(client.transport)) == [PODS, DEPLOYMENTS]


@async_test
async def test_aggregated_discovery(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        found = await discover_rest_mapper(client.transport)
        assert found.find_kind("po").resource == GroupVersionResource("", "v1", "pods")
        assert found.find_kind("deploy").resource.api_version == "apps/v1"
        assert not found.find_kind("nodes").resource.namespaced
        assert {"pods", "deployments", "services"} <= {each.resource.plural for each in found.matching_kinds("all")}


@async_test
async def test_a_server_that_is_not_an_api_server_is_an_error() -> None:
    async with FakeHttpServer(lambda _: Reply(200, "hello")) as server, server.client() as client:
        with pytest.raises(ApiError, match="did not answer as an API server does"):
            await discover_rest_mapper(client.transport)
