"""BindRequests as objects: what is created, what counts as given up, and whose each is."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.objects.kai.bind_request import (
    BindRequest,
    BindRequestSpec,
    BindRequestStatus,
    annotation_key,
    annotations_for_plugin,
    label_value,
    manifest,
    new_request,
)
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.objects.kinds import convert
from bayplan.objects.name_validation import label_value_problems
from bayplan.testing import make_pod

POD = make_pod("web", uid="u-1")


def test_a_request_has_the_name_of_its_pod_is_owned_by_it_and_marked_as_ours() -> None:
    tree = msgspec.json.decode(msgspec.json.encode(manifest(new_request(POD, "n1", annotations={}, backoff_limit=3))))
    assert (tree["apiVersion"], tree["kind"]) == ("scheduling.run.ai/v1alpha2", "BindRequest")
    assert tree["metadata"] == {
        "name": "web",
        "namespace": "default",
        "labels": {
            "bayplan.dev/binder": "bayplan",
            "selected-node": "n1",
            "bayplan.dev/scheduler": "default-scheduler",
        },
        "annotations": {},  # there even where there are none
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u-1"}],
    }
    assert tree["spec"] == {
        "podName": "web",
        "podUID": "u-1",
        "selectedNode": "n1",
        "receivedResourceType": "Regular",
        "backoffLimit": 3,
    }


def test_fields_have_upstreams_names() -> None:
    spec = bind_request_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(spec["properties"]) == set(BindRequestSpec.__struct_encode_fields__)
    status = bind_request_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert set(status["properties"]) == set(BindRequestStatus.__struct_encode_fields__)


@pytest.mark.parametrize("name", ["n1", "n" * 63, "n" * 64, f"{'a' * 52}.{'b' * 60}", "x" * 253])
def test_the_name_of_a_node_fits_a_label_whatever_its_length(name: str) -> None:
    value = label_value(name)
    assert label_value_problems(value) == []
    assert (value == name) is (len(name) <= 63)
    assert label_value(f"{name}y") != value or len(name) < 63


@pytest.mark.parametrize(
    ("limit", "status", "given_up"),
    [
        pytest.param(3, BindRequestStatus(), False, id="new"),
        pytest.param(3, BindRequestStatus("Pending"), False, id="pending"),
        pytest.param(3, BindRequestStatus("Failed", "no", 2), False, id="tried again"),
        pytest.param(3, BindRequestStatus("Failed", "no", 3), True, id="too often"),
        pytest.param(None, BindRequestStatus("Failed", "no", 1), True, id="no limit"),
        pytest.param(0, BindRequestStatus("Failed", "no", 1), True, id="never again"),
        pytest.param(3, BindRequestStatus("Succeeded", "", 3), False, id="well in the end"),
    ],
)
def test_when_a_request_is_given_up(limit: int | None, status: BindRequestStatus, given_up: bool) -> None:
    request = replace(new_request(POD, "n1", annotations={}, backoff_limit=limit), status=status)
    assert request.has_failed is given_up
    assert request.is_active is not given_up


def test_whose_a_request_is_follows_from_the_owner_where_the_server_has_pruned_the_uid() -> None:
    request = new_request(POD, "n1", annotations={}, backoff_limit=3)
    pruned = replace(request, spec=replace(request.spec, pod_uid=""))
    for each in (request, pruned):
        assert each.pod_uid == "u-1"
        assert each.is_for(POD)
        assert not each.is_for(make_pod("web", uid="u-2"))
    assert not request.is_for(make_pod("other", uid="u-1"))


def test_one_made_by_hand_is_for_whoever_has_the_name() -> None:
    request = convert({"metadata": {"name": "x", "namespace": "default"}, "spec": {"podName": "web"}}, BindRequest)
    assert request.pod_uid == ""
    assert request.is_for(POD)
    assert not request.is_handled_by_bayplan


def test_a_plugin_finds_its_own_annotations_by_bare_keys() -> None:
    handed = {annotation_key("one", "a"): "1", annotation_key("other", "b"): "2", "example.com/c": "3"}
    request = new_request(POD, "n1", annotations=handed, backoff_limit=3)
    assert annotation_key("one", "a") == "one.kai.scheduler/a"
    assert annotations_for_plugin(request, "one") == {"a": "1"}
    assert annotations_for_plugin(request, "none") == {}
