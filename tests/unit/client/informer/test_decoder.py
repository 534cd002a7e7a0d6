"""Decoding of lists and events: slices, undecodable objects, and conversion of v1beta1 device objects."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import msgspec
import pytest

from bayplan.client import GroupVersionResource, UndecodableObject, resource_of
from bayplan.client.http.api_status import ApiStatus
from bayplan.client.informer import decoder as decoder_module
from bayplan.client.informer.decoder import Decoder, ListPage, is_initial_events_end, read_page
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.objects.workloads import StatefulSet
from support.fakes.http_server import added, bookmark, error, node

NODES = Decoder(resource_of(kind_of(Node)))


def text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def names(slices: Any) -> list[list[str]]:
    return [[item.name if isinstance(item, KubeObject) else f"!{item.key[1]}" for item in each] for each in slices]


def flat(slices: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(slices))


def test_an_error_event_contains_a_status_for_every_kind() -> None:
    found = NODES.event(text(error(410, "Expired", "too old")))
    assert isinstance(found.object, ApiStatus)
    assert (found.object.code, found.object.reason, found.object.message) == (410, "Expired", "too old")


def test_an_error_event_without_a_valid_status_gets_one() -> None:
    found = NODES.event(text({"type": "ERROR", "object": {"code": "many"}}))
    assert isinstance(found.object, ApiStatus)
    assert found.object.code == 500


def test_a_bookmark_marks_the_end_of_the_initial_events() -> None:
    assert is_initial_events_end(NODES.event(text(bookmark(5, initial_end=True))))
    assert not is_initial_events_end(NODES.event(text(bookmark(5))))


def test_null_values_count_as_absent() -> None:
    pods = Decoder(resource_of(kind_of(Pod)))
    pod = {
        "metadata": {"name": "p", "labels": None},
        "spec": {"containers": None},
        "status": {"conditions": [{"lastProbeTime": None, "type": "Ready"}]},
    }
    found = pods.event(text(added(pod))).object
    assert isinstance(found, Pod)
    assert found.spec.containers == ()


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(node("n", 7, status={"allocatable": []}), id="wrong-type"),
        pytest.param({"metadata": {"name": "n", "resourceVersion": "7", "labels": "x"}}, id="in-metadata"),
    ],
)
def test_an_undecodable_object_has_name_and_version(item: dict[str, Any]) -> None:
    found = NODES.event(text(added(item))).object
    assert isinstance(found, UndecodableObject)
    assert (found.key, found.resource_version) == (("", "n"), "7")
    assert 'Node "n" cannot be read' in found.reason


def test_an_object_without_a_valid_name_is_undecodable() -> None:
    found = NODES.event(text(added({"metadata": {"name": 5}}))).object
    assert isinstance(found, UndecodableObject)
    assert found.key == ("", "")


def page(*items: dict[str, Any], **fields: Any) -> bytes:
    return text(
        {"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": list(items), **fields}
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(page(node("a", 1), node("b", 2)), id="typed"),
        pytest.param(
            text({"items": [node("a", 1), node("b", 2)], "metadata": {"resourceVersion": "9"}}), id="items-first"
        ),
        pytest.param(json.dumps(json.loads(page(node("a", 1), node("b", 2))), indent=2).encode(), id="pretty"),
    ],
)
@pytest.mark.parametrize("size", [1, 60, 1 << 20], ids=["one-by-one", "few", "at-once"])
def test_slices_contain_the_whole_list(body: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "DECODE_SLICE_BYTES", size)
    found = read_page(body)
    assert (found.resource_version, found.continue_token) == ("9", "")
    assert flat(names(NODES.slices(found))) == ["a", "b"]


def test_a_large_list_has_several_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "DECODE_SLICE_BYTES", 200)
    found = names(NODES.slices(read_page(page(*(node(f"n{number}", number) for number in range(40))))))
    assert len(found) == 10
    assert flat(found) == [f"n{number}" for number in range(40)]


def test_nested_objects_do_not_split_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "DECODE_SLICE_BYTES", 1)
    sets = Decoder(resource_of(kind_of(StatefulSet)))
    claims = [{"metadata": {"name": f"claim{number}"}} for number in range(3)]
    items = [{"metadata": {"name": name}, "spec": {"volumeClaimTemplates": claims}} for name in ("a", "b")]
    assert names(sets.slices(read_page(page(*items)))) == [["a"], ["b"]]


def test_undecodable_items_of_a_list_are_marked() -> None:
    bad = node("bad", 2, spec={"unschedulable": "perhaps"})
    assert names(NODES.slices(read_page(page(node("a", 1), bad, node("c", 3))))) == [["a", "!bad", "c"]]


@pytest.mark.parametrize("items", ["null", "[]", "[ ]"])
def test_a_list_may_be_empty(items: str) -> None:
    found = read_page(b'{"metadata":{"resourceVersion":"9"},"items":%b}' % items.encode())
    assert flat(names(NODES.slices(found))) == []


def test_invalid_lists_are_errors() -> None:
    with pytest.raises(msgspec.DecodeError):
        read_page(b"<html>")
    with pytest.raises(msgspec.DecodeError):
        list(NODES.slices(ListPage("", "", b'{"metadata":{},', 0, 14)))


def v1beta1_decoder(kind: type[KubeObject]) -> Decoder:
    found = kind_of(kind)
    return Decoder(GroupVersionResource(found.group, "v1beta1", found.plural, found.namespaced, found))


def test_v1beta1_claims_are_converted() -> None:
    old = {
        "metadata": {"name": "c", "namespace": "ns"},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "one", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
                    {"name": "two", "firstAvailable": [{"name": "x", "deviceClassName": "big"}]},
                ]
            }
        },
    }
    found = v1beta1_decoder(ResourceClaim).event(text(added(old))).object
    assert isinstance(found, ResourceClaim)
    one, two = found.spec.devices.requests
    assert one.exactly is not None
    assert (one.exactly.device_class_name, one.exactly.count) == ("gpu", 2)
    assert two.exactly is None
    assert two.first_available[0].device_class_name == "big"


def test_v1beta1_slices_are_converted() -> None:
    basic = {"attributes": {"model": {"string": "a100"}}, "capacity": {"memory": {"value": "40Gi"}}}
    old = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.example",
            "pool": {"name": "p", "resourceSliceCount": 1},
            "devices": [{"name": "d", "basic": basic}],
        },
    }
    [found] = next(v1beta1_decoder(ResourceSlice).slices(ListPage("", "", text(old), 0, len(text(old)))))
    new = {**old, "spec": {**old["spec"], "devices": [{"name": "d", **basic}]}}  # type: ignore[dict-item]
    assert found == msgspec.json.decode(text(new), type=ResourceSlice)


def test_v1beta1_device_classes_need_no_conversion() -> None:
    found = (
        v1beta1_decoder(DeviceClass)
        .event(text(added({"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}})))
        .object
    )
    assert isinstance(found, DeviceClass)
    assert found.spec.selectors[0].cel is not None


def test_invalid_v1beta1_devices_are_undecodable() -> None:
    found = (
        v1beta1_decoder(ResourceClaim)
        .event(text(added({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [5]}}})))
        .object
    )
    assert isinstance(found, UndecodableObject)
    found = v1beta1_decoder(ResourceSlice).event(text(added({"metadata": {"name": "c"}, "spec": []}))).object
    assert isinstance(found, UndecodableObject)
