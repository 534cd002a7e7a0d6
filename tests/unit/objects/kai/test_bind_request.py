"""BindRequests as objects: new requests, failed requests, and the pod of a request."""

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


def test_a_request_has_its_pods_name_an_owner_reference_and_bayplans_label() -> None:
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
        "annotations": {},  # always present
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
    ("limit", "status", "has_failed"),
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
def test_a_request_has_failed_at_its_backoff_limit(
    limit: int | None, status: BindRequestStatus, has_failed: bool
) -> None:
    request = replace(new_request(POD, "n1", annotations={}, backoff_limit=limit), status=status)
    assert request.has_failed is has_failed
    assert request.is_active is not has_failed


def test_the_pod_uid_comes_from_the_owner_if_the_server_has_pruned_the_field() -> None:
    request = new_request(POD, "n1", annotations={}, backoff_limit=3)
    pruned = replace(request, spec=replace(request.spec, pod_uid=""))
    for each in (request, pruned):
        assert each.pod_uid == "u-1"
        assert each.is_for(POD)
        assert not each.is_for(make_pod("web", uid="u-2"))
    assert not request.is_for(make_pod("other", uid="u-1"))


def test_a_request_without_uid_is_for_any_pod_of_the_name() -> None:
    request = convert({"metadata": {"name": "x", "namespace": "default"}, "spec": {"podName": "web"}}, BindRequest)
    assert request.pod_uid == ""
    assert request.is_for(POD)
    assert not request.is_handled_by_bayplan


def test_a_plugin_gets_its_annotations_by_bare_keys() -> None:
    handed = {annotation_key("one", "a"): "1", annotation_key("other", "b"): "2", "example.com/c": "3"}
    request = new_request(POD, "n1", annotations=handed, backoff_limit=3)
    assert annotation_key("one", "a") == "one.kai.scheduler/a"
    assert annotations_for_plugin(request, "one") == {"a": "1"}
    assert annotations_for_plugin(request, "none") == {}
