"""Deletion of namespaces: the requests that empty them, and the conditions with what remains."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.client.discovery.preferred_resources import PreferredResources, server_preferred_resources
from bayplan.controllers.cleanup.namespaces import (
    NAMESPACE_DELETION_GRACE_PERIOD_S,
    RECHECK_S,
    NamespaceController,
    conditions,
)
from bayplan.controllers.core.api_types import NAMESPACES, Tree, UntypedObject
from bayplan.errors import ApiError as Refused
from bayplan.errors import Conflict, Forbidden, NotFound
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject
from support.harness.async_tests import async_test
from support.harness.single_controller import SingleControllerHarness, run_controller

KEY = ("", "team")
CORE = "/api/v1/namespaces/team"
ALL = ["create", "delete", "deletecollection", "get", "list", "update", "watch"]
BACKGROUND = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
TWO = {"items": [{"metadata": {"name": "a", "namespace": "team", "uid": "ua"}}, {"metadata": {"name": "b"}}]}
TERMINATING = {
    "items": [{"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}}]
}
NONE: Tree = {"items": []}


def namespace(**changes: Any) -> UntypedObject:
    meta = {"name": "team", "uid": "u1", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    tree = {"metadata": meta, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Terminating"}}
    return convert({**tree, **changes}, UntypedObject)


ACTIVE = namespace(metadata={"name": "team", "uid": "u1"})


def kind(plural: str, name: str, *, namespaced: bool = True, verbs: list[str] | None = None) -> Tree:
    return {"name": plural, "kind": name, "namespaced": namespaced, "verbs": ALL if verbs is None else verbs}


def server(*kinds: Tree, uid: str = "u1", finalizers: list[str] | None = None) -> Tree:
    spec = {"finalizers": ["kubernetes"] if finalizers is None else finalizers}
    tree = {"metadata": {"name": "team", "uid": uid, "resourceVersion": "8"}, "spec": spec}
    core = {"resources": [kind("pods", "Pod"), *kinds]}
    return {"GET /apis": {}, "GET /api/v1": core, "GET /api/v1/namespaces/team": tree}


async def sync(
    harness: SingleControllerHarness[NamespaceController], item: UntypedObject | None = None
) -> float | None:
    harness.deliver(harness.controller.namespaces, namespace() if item is None else item)
    return await harness.controller.sync(KEY)


def messages(body: Tree) -> dict[str, str]:
    """Messages of the conditions that are True."""
    return {each["type"]: each["message"] for each in body["status"]["conditions"] if each["status"] == "True"}


@pytest.mark.parametrize(
    ("item", "queued"),
    [
        pytest.param(namespace(), {KEY: NAMESPACE_DELETION_GRACE_PERIOD_S}, id="terminating"),
        pytest.param(ACTIVE, {}, id="not-deleted"),
    ],
)
@async_test
async def test_terminating_namespaces_wait_for_the_grace_period(item: UntypedObject, queued: dict[Any, float]) -> None:
    async with run_controller(NamespaceController) as harness:
        harness.deliver(harness.controller.namespaces, item)
        assert harness.queued() == queued
        harness.deliver_deletion(harness.controller.namespaces, item)
        assert harness.queued() == {}


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(ACTIVE, id="not-deleted"),
        pytest.param(namespace(spec={}), id="no-finalizers"),
        pytest.param(namespace(spec={"finalizers": ["example.com/other"]}), id="finalizer-of-others"),
    ],
)
@async_test
async def test_namespaces_that_need_no_cleanup(item: UntypedObject) -> None:
    async with run_controller(NamespaceController, server()) as harness:
        assert await harness.controller.sync(KEY) is None
        assert await sync(harness, item) is None
        assert harness.requests == []


@async_test
async def test_an_empty_namespace_loses_the_finalizer() -> None:
    kinds = [
        kind("configmaps", "ConfigMap"),
        kind("pods/status", "Pod"),
        kind("events", "Event"),
        kind("nodes", "Node", namespaced=False),
        kind("bindings", "Binding", verbs=["create"]),
        kind("onlylisted", "OnlyListed", verbs=["list", "watch"]),
    ]
    async with run_controller(
        NamespaceController, server(*kinds, finalizers=["example.com/other", "kubernetes"])
    ) as harness:
        assert await sync(harness) is None
        *reads, (line, body) = harness.requests
        assert [each for each, _ in reads] == [
            "GET /readyz",
            "GET /apis",
            "GET /api/v1",
            f"GET {CORE}/pods",
            f"GET {CORE}/configmaps",
            "GET /api/v1/namespaces/team",
        ]
        assert line == "PUT /api/v1/namespaces/team/finalize"
        assert body["spec"] == {"finalizers": ["example.com/other"]}


@async_test
async def test_a_recreated_namespace_keeps_its_finalizer() -> None:
    async with run_controller(NamespaceController, server(uid="another")) as harness:
        assert await sync(harness) is None
        assert harness.writes == []


@pytest.mark.parametrize("refusal", [Conflict("changed", code=409), NotFound("gone", code=404)])
@async_test
async def test_a_refused_finalizer_removal_is_retried(refusal: Refused) -> None:
    async with run_controller(
        NamespaceController, {**server(), "PUT /api/v1/namespaces/team/finalize": refusal}
    ) as harness:
        harness.deliver(harness.controller.namespaces, namespace())
        harness.queued()
        assert await harness.controller.sync(KEY) is None
        assert harness.queued() == {KEY: 0.0}


@async_test
async def test_pods_are_deleted_before_everything_else() -> None:
    answers = server(kind("configmaps", "ConfigMap")) | {f"GET {CORE}/pods": [TWO, TERMINATING]}
    async with run_controller(NamespaceController, answers) as harness:
        assert await sync(harness) == RECHECK_S == 0.5
        deletion, (line, body) = harness.writes
        assert deletion == (f"DELETE {CORE}/pods", BACKGROUND)
        assert line == "PATCH /api/v1/namespaces/team/status"
        assert messages(body) == {
            "NamespaceContentRemaining": "Some resources are remaining: pods. has 1 resource instances",
            "NamespaceFinalizersRemaining": "Some content in the namespace has finalizers remaining: "
            "x/y in 1 resource instances",
        }


@pytest.mark.parametrize(
    ("verbs", "answers", "deletions"),
    [
        pytest.param(ALL, [TWO, NONE], [(f"DELETE {CORE}/configmaps", BACKGROUND)], id="as-a-collection"),
        pytest.param(
            ["list", "delete"],
            [TWO, NONE],
            [
                (f"DELETE {CORE}/configmaps/a", {**BACKGROUND, "preconditions": {"uid": "ua"}}),
                ("DELETE /api/v1/configmaps/b", BACKGROUND),
            ],
            id="one-by-one",
        ),
        pytest.param(ALL, [NONE], [], id="none-there"),
        pytest.param(ALL, [NotFound("no such kind", code=404)], [], id="kind-is-gone"),
        pytest.param(ALL, [Refused("method not allowed", code=405)], [], id="cannot-be-listed"),
    ],
)
@async_test
async def test_deletion_of_the_objects_of_a_resource(
    verbs: list[str], answers: list[Any], deletions: list[Any]
) -> None:
    table = server(kind("configmaps", "ConfigMap", verbs=verbs)) | {f"GET {CORE}/configmaps": answers}
    async with run_controller(NamespaceController, table) as harness:
        assert await sync(harness) is None
        *found, (last, _) = harness.writes
        assert found == deletions
        assert last == "PUT /api/v1/namespaces/team/finalize"


@async_test
async def test_terminating_objects_are_not_deleted_again() -> None:
    table = server(kind("configmaps", "ConfigMap")) | {f"GET {CORE}/configmaps": TERMINATING}
    async with run_controller(NamespaceController, table) as harness:
        assert await sync(harness) == RECHECK_S
        assert [line for line, _ in harness.writes] == ["PATCH /api/v1/namespaces/team/status"]


@async_test
async def test_a_refused_list_is_a_condition_and_blocks_the_deletion() -> None:
    table = server(kind("configmaps", "ConfigMap"), kind("secrets", "Secret"))
    table |= {f"GET {CORE}/configmaps": Forbidden("not allowed", code=403), f"GET {CORE}/secrets": [TWO, NONE]}
    async with run_controller(NamespaceController, table) as harness:
        assert await sync(harness) == RECHECK_S
        assert [line for line, _ in harness.requests if line.startswith("DELETE")] == [f"DELETE {CORE}/secrets"]
        assert await harness.controller.sync(KEY) == RECHECK_S
        (_, body), *_ = harness.writes
        assert messages(body) == {"NamespaceDeletionContentFailure": "Failed to delete all resource types: not allowed"}


@async_test
async def test_a_refused_list_of_pods_blocks_all_further_deletions() -> None:
    table = server(kind("configmaps", "ConfigMap")) | {f"GET {CORE}/pods": Forbidden("not allowed", code=403)}
    async with run_controller(NamespaceController, table) as harness:
        assert await sync(harness) == RECHECK_S
        assert f"GET {CORE}/configmaps" not in [line for line, _ in harness.requests]


@async_test
async def test_a_bug_in_a_deletion_is_raised() -> None:
    async with run_controller(NamespaceController, server() | {f"GET {CORE}/pods": ZeroDivisionError()}) as harness:
        with pytest.raises(ZeroDivisionError):
            await sync(harness)


@async_test
async def test_a_failed_discovery_blocks_the_deletion() -> None:
    version = {"version": "v1"}
    groups = {"groups": [{"name": "metrics.k8s.io", "versions": [version], "preferredVersion": version}]}
    failing = {"GET /apis": groups, "GET /apis/metrics.k8s.io/v1": Refused("unavailable", code=503)}
    async with run_controller(NamespaceController, server() | failing) as harness:
        assert await sync(harness) == RECHECK_S
        ((_, body),) = harness.writes
        discovery = "Discovery failed for some groups: metrics.k8s.io/v1"
        assert messages(body) == {"NamespaceDeletionDiscoveryFailure": discovery}


@async_test
async def test_unchanged_conditions_are_not_written() -> None:
    async with run_controller(NamespaceController, server() | {f"GET {CORE}/pods": TERMINATING}) as harness:
        assert await sync(harness) == RECHECK_S
        ((_, body),) = harness.writes
        item = namespace(status={"phase": "Terminating", **body["status"]})
        harness.clock.advance(60.0)
        assert await sync(harness, item) == RECHECK_S
        assert harness.writes == []


def test_conditions_count_every_kind_and_finalizer() -> None:
    def items(*finalizers: list[str]) -> list[KubeObject]:
        return [convert({"metadata": {"name": "x", "finalizers": each}}, KubeObject) for each in finalizers]

    left = {"pods.": items(["b/b"], []), "jobs.batch": items(["a/a", "b/b"])}
    then = {"type": "NamespaceContentRemaining", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}
    since = {"type": "NamespaceDeletionContentFailure", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}
    found = namespace(status={"conditions": [then, since]})
    now = namespace().metadata.deletion_timestamp
    assert now is not None
    new_conditions = conditions(found, PreferredResources(failed=("a/v1", "b/v1")), left, [], now)
    finalizers = "a/a in 1 resource instances, b/b in 2 resource instances"
    assert [(each["type"], each["status"], each["reason"], each["message"]) for each in new_conditions] == [
        (
            "NamespaceDeletionDiscoveryFailure",
            "True",
            "DiscoveryFailed",
            "Discovery failed for some groups: a/v1, b/v1",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            "False",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            "False",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        (
            "NamespaceContentRemaining",
            "True",
            "SomeResourcesRemain",
            "Some resources are remaining: jobs.batch has 1 resource instances, pods. has 2 resource instances",
        ),
        (
            "NamespaceFinalizersRemaining",
            "True",
            "SomeFinalizersRemain",
            "Some content in the namespace has finalizers remaining: " + finalizers,
        ),
    ]
    assert [each["lastTransitionTime"][:4] for each in new_conditions] == ["2026", "2026", "2026", "2025", "2026"]


# Discovery of resources.


@async_test
async def test_preferred_resources_exclude_subresources_and_events() -> None:
    groups = [
        {
            "name": "apps",
            "versions": [{"version": "v1"}, {"version": "v2"}, {"version": "v3"}],
            "preferredVersion": {"version": "v2"},
        },
        {"name": "events.k8s.io", "versions": [{"version": "v1"}], "preferredVersion": {"version": "v1"}},
        {"name": "broken", "versions": [{"version": "v1"}], "preferredVersion": {"version": "v1"}},
    ]
    verbs = ["delete", "list", "watch"]
    table = {
        "GET /apis": {"groups": groups},
        "GET /api/v1": {"resources": [kind("pods", "Pod"), kind("pods/log", "Pod"), kind("events", "Event")]},
        "GET /apis/apps/v1": {"resources": [kind("deployments", "Deployment"), kind("old", "Old", verbs=verbs)]},
        "GET /apis/apps/v2": {"resources": [kind("deployments", "Deployment"), kind("sets", "Set", verbs=["list"])]},
        "GET /apis/apps/v3": Refused("not now", code=503),
        "GET /apis/events.k8s.io/v1": {"resources": [kind("events", "Event")]},
        "GET /apis/broken/v1": b"<html>",
    }
    async with run_controller(NamespaceController, table) as harness:
        served = await server_preferred_resources(harness.controller.client)
    resources = [f"{each.resource} {each.resource.version}" for each in served.resources]
    assert resources == ["pods v1", "deployments.apps v2", "sets.apps v2", "old.apps v1"]
    assert served.failed == ("apps/v3", "broken/v1")
    assert [each.plural for each in served.watchable()] == ["pods", "deployments", "old"]
    found = served.find("apps/v1", "Deployment")
    assert found is not None
    assert found.path("team") == "/apis/apps/v2/namespaces/team/deployments"
    assert served.find("v1", "Pod") == served.resources[0].resource
    assert served.find("v1", "Deployment") is None
    assert served.find("apps/v2", "Pod") is None
    assert NAMESPACES not in served.watchable()
