"""Parts of the API server: cells, field selectors, metadata, delete options, roles, watch cache."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.auth.rbac import AuthorizationAttributes, RbacAuthorizer
from bayplan.apiserver.requests import RequestUser
from bayplan.apiserver.resources.kinds import BUILT_IN, ServedResource
from bayplan.apiserver.resources.lookup import built_in
from bayplan.apiserver.storage.reader import ListOptions, ResourceReader
from bayplan.apiserver.storage.selection_predicate import field_extractor, parse_selectors
from bayplan.apiserver.storage.store import Store
from bayplan.apiserver.storage.stored_objects import make_stored_object
from bayplan.apiserver.storage.watch_cache import WatchCache, WatchCacheEvent
from bayplan.apiserver.tables import ages, cell_text
from bayplan.apiserver.tables.custom_resources import MISSING, json_path_value
from bayplan.apiserver.writes.deletion import DeleteOptions
from bayplan.apiserver.writes.metadata import (
    generate_name,
    new_uid,
    prepare_create_metadata,
    prepare_update_metadata,
    set_name,
    set_namespace,
    timestamp,
)
from support.harness.apiserver_store import ADMIN, ApiserverStore, config_map

Tree = dict[str, Any]
MINUTE, HOUR, DAY = 60, 3600, 86400
YEAR = 365 * DAY
NOW = datetime(2026, 1, 1, tzinfo=UTC)


# Cells


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (10 * MINUTE - 1, "9m59s"),
        (10 * MINUTE, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + MINUTE, "3h1m"),
        (8 * HOUR - 1, "7h59m"),
        (8 * HOUR, "8h"),
        (48 * HOUR - 1, "47h"),
        (48 * HOUR, "2d"),
        (49 * HOUR, "2d1h"),
        (8 * DAY - 1, "7d23h"),
        (8 * DAY, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR, "2y"),
        (2 * YEAR + DAY, "2y1d"),
        (8 * YEAR - 1, "7y364d"),
        (8 * YEAR, "8y"),
    ],
)
def test_the_format_of_ages(seconds: int, text: str) -> None:
    assert ages.format_age(timedelta(seconds=seconds)) == text


def test_the_age_of_an_object_without_a_timestamp_is_unknown() -> None:
    assert ages.age_cell(NOW, None) == "<unknown>"
    assert ages.age_cell(NOW, "2025-12-31T23:59:00Z") == "60s"


@pytest.mark.parametrize(
    ("items", "limit", "total", "text"),
    [
        ([], 2, None, "<unset>"),
        (["a", "b"], 2, None, "a,b"),
        (["a", "b", "c"], 2, None, "a,b + 1 more..."),
        (["a", "b"], 2, 5, "a,b + 3 more..."),
    ],
)
def test_a_long_list_shows_how_many_items_follow(items: list[str], limit: int, total: int | None, text: str) -> None:
    assert cell_text.list_text(items, limit, total=total) == text


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (None, "<none>"),
        ({"matchLabels": {"b": "2", "a": "1"}}, "a=1,b=2"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}]}, "a in (x,y)"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}, "a notin (x)"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "a"),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, "!a"),
    ],
)
def test_selector_cells(selector: Tree | None, text: str) -> None:
    assert cell_text.selector_cell(selector) == text


ITEM = {"spec": {"list": [{"n": "a", "v": 1}, {"n": "b", "v": 2}], "none": None, "map": {"x": 1}}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".spec.list[0].n", "a"),
        (".spec.list[1].n", "b"),
        (".spec.list[2].n", MISSING),
        (".spec.list[-1].n", "b"),
        (".spec.list[-2].n", "a"),
        (".spec.list[-3].n", MISSING),
        (".spec.list[*].v", 1),
        (".spec.map[*]", 1),
        ('.spec.list[?(@.n=="b")].v', 2),
        ('.spec.list[?(@.n!="a")].v', 2),
        ('.spec.list[?(@.n=="c")].v', MISSING),
        (".spec.none", None),
        (".spec.list.n", MISSING),
        (".spec['map'].x", 1),
    ],
)
def test_json_paths_of_printer_columns(path: str, value: Any) -> None:
    assert json_path_value(path, ITEM) == value


# Field selectors


@pytest.mark.parametrize(
    ("kind", "group", "tree", "field", "value"),
    [
        ("Pod", "", {"spec": {"nodeName": "n"}}, "spec.nodeName", "n"),
        ("Pod", "", {"spec": {}}, "spec.hostNetwork", "false"),
        ("Pod", "", {"spec": {"hostNetwork": True}}, "spec.hostNetwork", "true"),
        ("Pod", "", {"status": {"podIP": "1.2.3.4"}}, "status.podIPs", "1.2.3.4"),
        ("Node", "", {}, "spec.unschedulable", "false"),
        ("Job", "batch", {"status": {"succeeded": 2}}, "status.successful", "2"),
        ("Job", "batch", {}, "status.successful", "0"),
        ("ReplicationController", "", {"status": {"replicas": 3}}, "status.replicas", "3"),
        ("Secret", "", {"type": "Opaque"}, "type", "Opaque"),
        ("Event", "", {"source": {"component": "c"}}, "source", "c"),
        ("Event", "", {"involvedObject": {"name": "p"}}, "involvedObject.name", "p"),
        ("Event", "", {}, "involvedObject.name", ""),
        ("Event", "events.k8s.io", {"involvedObject": {"name": "p"}}, "regarding.name", "p"),
    ],
)
def test_field_selectors_by_kind(kind: str, group: str, tree: Tree, field: str, value: str) -> None:
    resource = built_in(kind, group)
    tree = {"metadata": {"name": "a", "namespace": "n"}, **tree}
    entry = make_stored_object(tree, 1, field_extractor(resource))
    assert parse_selectors(resource, "", "", f"{field}={value}").matches(entry)
    assert not parse_selectors(resource, "", "", f"{field}!={value}").matches(entry)
    assert not parse_selectors(resource, "", "", f"{field}={value}x").matches(entry)
    assert parse_selectors(resource, "n", "", "metadata.namespace=n").matches(entry)
    assert not parse_selectors(resource, "m", "", "metadata.name=a").matches(entry)


@pytest.mark.parametrize(
    ("kind", "group", "message"),
    [
        ("Job", "batch", 'field label "spec.x" not supported for Job'),
        ("CronJob", "batch", '"spec.x" is not a known field selector: only "metadata.name", "metadata.namespace"'),
        (
            "ResourceSlice",
            "resource.k8s.io",
            "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.x",
        ),
        ("Pod", "", "field label not supported: spec.x"),
        ("Event", "events.k8s.io", "field label not supported: spec.x"),
    ],
)
def test_an_unsupported_field_selector_has_the_message_of_its_kind(kind: str, group: str, message: str) -> None:
    with pytest.raises(StatusError) as raised:
        parse_selectors(built_in(kind, group), "", "", "spec.x=1")
    assert (raised.value.code, raised.value.message) == (400, message)


def test_a_selector_of_one_name() -> None:
    found = parse_selectors(built_in("Pod"), "n", "", "metadata.name=a")
    assert (found.name, found.matches_all) == ("a", False)
    assert parse_selectors(built_in("Pod"), "n", "", "metadata.name!=a").name is None
    assert parse_selectors(built_in("Pod"), "n", "", "").matches_all


# Lists


@pytest.mark.parametrize(
    ("limit", "names", "remaining"), [(0, "abc", None), (2, "ab", 1), (3, "abc", None), (4, "abc", None)]
)
def test_a_page_has_the_remaining_item_count(limit: int, names: str, remaining: int | None) -> None:
    store = ApiserverStore()
    for name in "abc":
        store.create(config_map(name))
    reader = ResourceReader(store.kind("ConfigMap"), store.place("ConfigMap"))
    found, metadata = reader.page("default", ListOptions.of({"limit": str(limit)}), store.store.version)
    assert "".join(each.name for each in found) == names
    assert metadata.get("remainingItemCount") == remaining
    assert ("continue" in metadata) == (remaining is not None)


@pytest.mark.parametrize("limit", [str(1 << 63), str(-(1 << 63) - 1)])
def test_a_limit_of_more_than_64_bits_is_refused(limit: str) -> None:
    with pytest.raises(StatusError, match="value out of range"):
        ListOptions.of({"limit": limit})
    assert ListOptions.of({"limit": str((1 << 63) - 1)}).limit == (1 << 63) - 1
    assert ListOptions.of({"limit": str(-(1 << 63))}).limit <= 0


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"resourceVersionMatch": "NotOlderThan"}, "is forbidden for watch unless sendInitialEvents is provided"),
        ({"sendInitialEvents": "1", "resourceVersionMatch": "Exact"}, "Unsupported value"),
        ({"continue": "x"}, "resourceVersionMatch is forbidden when continue is provided"),
        ({"sendInitialEvents": "1", "resourceVersionMatch": "NotOlderThan"}, ""),
        ({}, ""),
    ],
)
def test_combinations_of_watch_parameters(query: dict[str, str], message: str) -> None:
    if message:
        with pytest.raises(StatusError, match=message):
            ListOptions.of({"watch": "1", **query})
    else:
        assert ListOptions.of({"watch": "1", **query}).watch


# Metadata


def test_timestamps_are_cached_by_all_their_parts() -> None:
    for moment in (
        datetime(2026, 1, 1, 0, 0, 0, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 1, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 2, 1, 1, 1, tzinfo=UTC),
        datetime(2026, 2, 2, 1, 1, 1, tzinfo=UTC),
        datetime(2027, 2, 2, 1, 1, 1, 999999, tzinfo=UTC),
    ):
        assert timestamp(moment) == f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def test_uids_are_random_and_of_version_4() -> None:
    chance = random.Random(0)
    found = [new_uid(chance) for _ in range(50)]
    assert len(set(found)) == 50
    assert all((len(each), each[14], each[19] in "89ab") == (36, "4", True) for each in found)


@pytest.mark.parametrize(("length", "prefix_length"), [(57, 57), (58, 58), (59, 58)])
def test_a_generated_name_fits_a_label(length: int, prefix_length: int) -> None:
    name = generate_name("a" * length, random.Random(0))
    assert (len(name), name[:prefix_length]) == (prefix_length + 5, "a" * prefix_length)


def test_namespace_and_name_must_match_the_path() -> None:
    tree: Tree = {"metadata": {"name": "a"}}
    set_namespace(built_in("Pod"), tree, "n")
    set_name(tree, "a")
    assert tree == {"metadata": {"name": "a", "namespace": "n"}}
    with pytest.raises(StatusError, match="namespace of the provided object does not match"):
        set_namespace(built_in("Pod"), tree, "m")
    with pytest.raises(StatusError, match="does not match the name on the URL"):
        set_name(tree, "b")
    with pytest.raises(StatusError, match="name must be provided"):
        set_name({}, "b")
    set_namespace(built_in("Node"), tree, "")
    assert tree == {"metadata": {"name": "a"}}


def test_the_server_sets_the_identity_of_a_new_object() -> None:
    given = dict.fromkeys(("uid", "resourceVersion", "selfLink", "creationTimestamp", "deletionTimestamp"), "x")
    tree: Tree = {"metadata": {"name": "a", "generation": 3, "deletionGracePeriodSeconds": 5, **given}}
    prepare_create_metadata(built_in("Pod"), tree, NOW, random.Random(0))
    uid = tree["metadata"].pop("uid")
    assert tree == {"metadata": {"name": "a", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z"}}
    assert uid != "x"


@pytest.mark.parametrize(
    ("new", "field"),
    [
        ({}, ""),
        ({"uid": "u"}, ""),
        ({"uid": "other"}, "metadata.uid"),
        ({"deletionTimestamp": "t"}, ""),
        ({"deletionTimestamp": "s"}, "metadata.deletionTimestamp"),
        ({"deletionGracePeriodSeconds": 1}, "metadata.deletionGracePeriodSeconds"),
    ],
)
def test_identity_fields_are_immutable(new: Tree, field: str) -> None:
    old = {"metadata": {"name": "a", "uid": "u", "deletionTimestamp": "t", "generation": 2}}
    tree: Tree = {"metadata": {"name": "a", "selfLink": "x", "generation": 7, "creationTimestamp": "c", **new}}
    if field:
        with pytest.raises(StatusError, match=field):
            prepare_update_metadata(built_in("Pod"), tree, old)
    else:
        prepare_update_metadata(built_in("Pod"), tree, old)
        assert tree == old


# Delete options, roles, watch cache


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"propagationPolicy": "Orphan", "orphanDependents": True}, "orphanDependents and deletionPropagation cannot"),
        ({"propagationPolicy": "Odd"}, "propagationPolicy: Unsupported value"),
        ({"dryRun": ["Some"]}, "dryRun: Unsupported value"),
    ],
)
def test_invalid_delete_options(body: Tree, message: str) -> None:
    with pytest.raises(StatusError, match=message):
        DeleteOptions.of(body)


@pytest.mark.parametrize(
    ("body", "policy"),
    [
        ({"orphanDependents": True}, "Orphan"),
        ({"orphanDependents": False}, "Background"),
        ({"propagationPolicy": "Foreground"}, "Foreground"),
        ({}, ""),
    ],
)
def test_the_propagation_policy_of_delete_options(body: Tree, policy: str) -> None:
    assert DeleteOptions.of(body) == DeleteOptions(policy=policy)


RBAC = "rbac.authorization.k8s.io"


def binding(kind: str, subject: Tree, role: str = "Role") -> Tree:
    reference = {"apiGroup": RBAC, "kind": role, "name": "r"}
    metadata = {"name": "b", **({"namespace": "default"} if kind == "RoleBinding" else {})}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "roleRef": reference, "subjects": [subject]}


@pytest.mark.parametrize(
    ("subject", "user", "namespace", "allowed"),
    [
        ({"kind": "ServiceAccount", "name": "a"}, "system:serviceaccount:default:a", "default", True),
        ({"kind": "ServiceAccount", "name": "a"}, "system:serviceaccount:other:a", "default", False),
        (
            {"kind": "ServiceAccount", "name": "a", "namespace": "other"},
            "system:serviceaccount:other:a",
            "default",
            True,
        ),
        ({"kind": "ServiceAccount", "name": "a"}, "system:serviceaccount:default:a", "other", False),
        ({"kind": "ServiceAccount", "name": "a"}, "system:serviceaccount:default:a", "", False),
        ({"kind": "User", "name": "u", "apiGroup": RBAC}, "u", "default", True),
        ({"kind": "User", "name": "u", "apiGroup": RBAC}, "v", "default", False),
    ],
)
def test_a_role_binding_applies_in_its_namespace(subject: Tree, user: str, namespace: str, allowed: bool) -> None:
    store = ApiserverStore()
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    roles = RbacAuthorizer(store.store)
    attributes = AuthorizationAttributes("get", resource="pods", namespace=namespace)
    assert not roles.allows(RequestUser(user), attributes)
    store.create({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": rules})
    store.create(binding("RoleBinding", subject))
    assert roles.allows(RequestUser(user), attributes) == allowed
    assert roles.allows(ADMIN, attributes)


@pytest.mark.parametrize("resource", [each for each in BUILT_IN if each.subresources], ids=lambda each: each.qualified)
def test_every_subresource_has_a_kind_and_verbs(resource: ServedResource) -> None:
    for subresource in resource.subresources:
        assert subresource.kind
        assert subresource.verbs
        assert resource.subresource(subresource.name) is subresource
    assert resource.subresource("none") is None


def changes(store: Store, count: int) -> list[WatchCacheEvent]:
    found: list[WatchCacheEvent] = []
    store.add_commit_listener(lambda _, change: found.append(change))
    for number in range(count):
        store.put(("", "pods"), {"metadata": {"name": f"p{number}", "namespace": "n", "uid": "u"}})
    return found


def test_a_watch_cache_drops_the_oldest_event_above_its_limits() -> None:
    events = changes(Store(), 4)
    size = len(events[0].entry.raw)
    for cache in (WatchCache(max_events=3), WatchCache(max_bytes=3 * size)):
        for change in events[:3]:
            cache.append(change)
        assert ([each.version for each in cache.events_after(0)], cache.compacted_version) == ([1, 2, 3], 0)
        cache.append(events[3])
        assert ([each.version for each in cache.events_after(1)], cache.compacted_version) == ([2, 3, 4], 1)
        assert [each.version for each in cache.events_after(3)] == [4]
        cache.compact(3)
        assert ([each.version for each in cache.events_after(3)], cache.compacted_version) == ([4], 3)
        cache.compact(2)
        assert cache.compacted_version == 3


def test_a_listener_gets_events_until_it_is_removed() -> None:
    first, second, *_ = changes(Store(), 2)
    versions: list[int] = []
    cache, listener = WatchCache(), lambda change: versions.append(change.version)
    cache.add_listener(listener)
    cache.append(first)
    cache.remove_listener(listener)
    cache.append(second)
    assert versions == [1]
