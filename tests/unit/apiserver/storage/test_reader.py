"""Lists: pages, selectors, versions, and invalid combinations of parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.storage.reader import ListOptions, ResourceReader
from support.harness.apiserver_store import ApiserverStore, config_map, pod


def list_objects(store: ApiserverStore, kind: str = "ConfigMap", namespace: str = "", **query: str) -> dict[str, Any]:
    reader = ResourceReader(store.kind(kind), store.place(kind))
    entries, metadata = reader.page(namespace, ListOptions.of(query), store.store.version)
    found: dict[str, Any] = json.loads(reader.list_json(entries, metadata))
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [each["metadata"]["name"] for each in found["items"]]


@pytest.fixture
def store() -> ApiserverStore:
    created = ApiserverStore()
    for name in "abcde":
        created.create(config_map(name, labels={"odd": str("ace".count(name) > 0).lower()}))
    return created


def test_a_list_has_the_newest_version_and_items_without_kind_field(store: ApiserverStore) -> None:
    found = list_objects(store)
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    assert found["metadata"] == {"resourceVersion": str(store.store.version)}
    assert "kind" not in found["items"][0]


def test_a_list_continues_on_the_next_page(store: ApiserverStore) -> None:
    first = list_objects(store, limit="2")
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    store.create(config_map("z"))
    second = list_objects(store, limit="2", **{"continue": first["metadata"]["continue"]})
    assert names(second) == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    last = list_objects(store, **{"continue": second["metadata"]["continue"]})
    assert names(last) == ["e", "z"]
    assert "continue" not in last["metadata"]


def test_a_page_with_a_selector_has_no_remaining_item_count(store: ApiserverStore) -> None:
    found = list_objects(store, limit="1", labelSelector="odd=true")
    assert names(found) == ["a"]
    assert "remainingItemCount" not in found["metadata"]


def test_version_zero_ignores_the_limit(store: ApiserverStore) -> None:
    assert len(list_objects(store, limit="2", resourceVersion="0")["items"]) == 5


def test_a_continue_token_of_a_compacted_version_is_expired_and_has_a_successor(store: ApiserverStore) -> None:
    token = list_objects(store, limit="2")["metadata"]["continue"]
    store.create(config_map("z"))
    store.store.compact()
    with pytest.raises(StatusError) as caught:
        list_objects(store, **{"continue": token})
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    assert names(list_objects(store, **{"continue": caught.value.continue_token})) == ["c", "d", "e", "z"]


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
        pytest.param({"continue": "!"}, 400, "continue key is not valid", id="invalid token"),
        pytest.param({"resourceVersion": "1a"}, 400, 'parsing "1a": invalid syntax', id="letters in a version"),
        pytest.param({"resourceVersion": "-1"}, 400, 'parsing "-1": invalid syntax', id="negative version"),
        pytest.param({"resourceVersion": "²"}, 400, "invalid syntax", id="digits that are not ASCII"),
        pytest.param({"resourceVersion": str(1 << 64)}, 400, "value out of range", id="version above 64 bits"),
        pytest.param({"resourceVersion": str((1 << 64) - 1)}, 504, "Too large resource version", id="largest version"),
        pytest.param({"limit": "many"}, 400, "invalid syntax", id="not a number"),
        pytest.param({"labelSelector": "a=b=c"}, 400, "found '='", id="bad selector"),
    ],
)
def test_invalid_combinations_of_parameters_are_refused(
    store: ApiserverStore, query: dict[str, str], code: int, text: str
) -> None:
    with pytest.raises(StatusError, match=text) as caught:
        list_objects(store, **query)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("kind", "selector", "message"),
    [
        pytest.param("Pod", "spec.foo=a", "field label not supported: spec.foo", id="pods"),
        pytest.param(
            "ConfigMap",
            "data.a=b",
            '"data.a" is not a known field selector: only "metadata.name", "metadata.namespace"',
            id="config maps",
        ),
    ],
)
def test_unsupported_field_selectors_are_refused(store: ApiserverStore, kind: str, selector: str, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        list_objects(store, kind, fieldSelector=selector)
    assert (caught.value.code, caught.value.message) == (400, message)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param("spec.nodeName=n1", ["b"], id="on a node"),
        pytest.param("spec.nodeName=", ["a"], id="on no node"),
        pytest.param("metadata.name!=a,spec.nodeName!=", ["b"], id="two terms"),
        pytest.param("spec.hostNetwork=false", ["a", "b"], id="a missing boolean"),
    ],
)
def test_field_selectors_of_pods(store: ApiserverStore, selector: str, expected: list[str]) -> None:
    store.create(pod("a"))
    store.create(pod("b", node="n1"))
    assert names(list_objects(store, "Pod", fieldSelector=selector)) == expected
