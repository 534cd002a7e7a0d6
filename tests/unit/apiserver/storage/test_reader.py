"""Lists: pages, selectors, versions, and the parameters that do not go together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.storage.reader import ListOptions, ResourceReader
from support.harness.apiserver_store import ApiserverStore, config_map, pod


def listed(world: ApiserverStore, kind: str = "ConfigMap", namespace: str = "", **query: str) -> dict[str, Any]:
    reader = ResourceReader(world.kind(kind), world.place(kind))
    entries, metadata = reader.page(namespace, ListOptions.of(query), world.store.version)
    found: dict[str, Any] = json.loads(reader.list_json(entries, metadata))
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [each["metadata"]["name"] for each in found["items"]]


@pytest.fixture
def world() -> ApiserverStore:
    made = ApiserverStore()
    for name in "abcde":
        made.create(config_map(name, labels={"odd": str("ace".count(name) > 0).lower()}))
    return made


def test_a_list_has_the_newest_version_and_items_without_kind(world: ApiserverStore) -> None:
    found = listed(world)
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    assert found["metadata"] == {"resourceVersion": str(world.store.version)}
    assert "kind" not in found["items"][0]


def test_pages_follow_each_other(world: ApiserverStore) -> None:
    first = listed(world, limit="2")
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    world.create(config_map("z"))
    second = listed(world, limit="2", **{"continue": first["metadata"]["continue"]})
    assert names(second) == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    last = listed(world, **{"continue": second["metadata"]["continue"]})
    assert names(last) == ["e", "z"]
    assert "continue" not in last["metadata"]


def test_with_a_selector_nobody_counts_the_rest(world: ApiserverStore) -> None:
    found = listed(world, limit="1", labelSelector="odd=true")
    assert names(found) == ["a"]
    assert "remainingItemCount" not in found["metadata"]


def test_version_zero_ignores_the_limit(world: ApiserverStore) -> None:
    assert len(listed(world, limit="2", resourceVersion="0")["items"]) == 5


def test_a_token_of_a_forgotten_version_is_expired_and_offers_another(world: ApiserverStore) -> None:
    token = listed(world, limit="2")["metadata"]["continue"]
    world.create(config_map("z"))
    world.store.compact()
    with pytest.raises(StatusError) as caught:
        listed(world, **{"continue": token})
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    assert names(listed(world, **{"continue": caught.value.continue_token})) == ["c", "d", "e", "z"]


@pytest.mark.parametrize(
    ("query", "code", "text"),
    [
        pytest.param({"resourceVersionMatch": "Exact"}, 422, "unless resourceVersion is provided", id="no version"),
        pytest.param({"resourceVersion": "0", "resourceVersionMatch": "Exact"}, 422, '"Exact" is forbidden', id="zero"),
        pytest.param({"resourceVersion": "1", "resourceVersionMatch": "x"}, 422, "Unsupported value", id="unknown"),
        pytest.param({"resourceVersion": "1", "resourceVersionMatch": "Exact"}, 410, "is too old", id="exact and old"),
        pytest.param({"sendInitialEvents": "true"}, 422, "forbidden for list", id="initial events of a list"),
        pytest.param({"watch": "1", "sendInitialEvents": "true"}, 422, "NotOlderThan", id="initial events alone"),
        pytest.param({"continue": "e30", "resourceVersion": "5"}, 400, "not allowed when using continue", id="both"),
        pytest.param({"continue": "!"}, 400, "continue key is not valid", id="no token"),
        pytest.param({"resourceVersion": "1a"}, 400, 'parsing "1a": invalid syntax', id="letters in a version"),
        pytest.param({"resourceVersion": "-1"}, 400, 'parsing "-1": invalid syntax', id="negative version"),
        pytest.param({"resourceVersion": "²"}, 400, "invalid syntax", id="digits that are not ASCII"),
        pytest.param({"resourceVersion": str(1 << 64)}, 400, "value out of range", id="version above 64 bits"),
        pytest.param({"resourceVersion": str((1 << 64) - 1)}, 504, "Too large resource version", id="largest version"),
        pytest.param({"limit": "many"}, 400, "invalid syntax", id="no number"),
        pytest.param({"labelSelector": "a=b=c"}, 400, "found '='", id="bad selector"),
    ],
)
def test_parameters_that_do_not_go_together(world: ApiserverStore, query: dict[str, str], code: int, text: str) -> None:
    with pytest.raises(StatusError, match=text) as caught:
        listed(world, **query)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("kind", "selector", "message"),
    [
        pytest.param("Pod", "spec.foo=a", "field label not supported: spec.foo", id="pods"),
        pytest.param(
            "ConfigMap",
            "data.a=b",
            '"data.a" is not a known field selector: only "metadata.name", "metadata.namespace"',
            id="others",
        ),
    ],
)
def test_fields_that_nobody_can_select_by(world: ApiserverStore, kind: str, selector: str, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        listed(world, kind, fieldSelector=selector)
    assert (caught.value.code, caught.value.message) == (400, message)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param("spec.nodeName=n1", ["b"], id="on a node"),
        pytest.param("spec.nodeName=", ["a"], id="on none"),
        pytest.param("metadata.name!=a,spec.nodeName!=", ["b"], id="two terms"),
        pytest.param("spec.hostNetwork=false", ["a", "b"], id="a boolean that is not there"),
    ],
)
def test_pods_by_field(world: ApiserverStore, selector: str, expected: list[str]) -> None:
    world.create(pod("a"))
    world.create(pod("b", node="n1"))
    assert names(listed(world, "Pod", fieldSelector=selector)) == expected
