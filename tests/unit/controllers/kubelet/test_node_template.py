"""Fake nodes from templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.kubelet.node_template import NodeTemplate
from bayplan.errors import ObjectError

RICH: dict[str, Any] = {
    "metadata": {
        "name": "big-{index}",
        "labels": {"zone": "z{index%3}", "rack": "r{index/40}", "same": "{other}"},
        "annotations": {"of-{index}": "x"},
    },
    "spec": {"taints": [{"key": "dedicated", "value": "t{index}", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "8", "memory": "64Gi", "pods": "20"},
        "allocatable": {"cpu": "7500m", "memory": "60Gi", "pods": "20"},
        "images": [{"names": ["registry.example/app:{index}"], "sizeBytes": 100}],
        "nodeInfo": {"kubeletVersion": "v1.30.1"},
        "conditions": [{"type": "Ready", "status": "False"}],
    },
}


def test_a_node_without_a_template() -> None:
    node = NodeTemplate().node(7)
    assert node["metadata"] == {
        "name": "fake-7",
        "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "fake-7"},
    }
    assert node["status"]["capacity"] == node["status"]["allocatable"]
    assert node["status"]["addresses"][0] == {"type": "InternalIP", "address": "127.0.0.1"}
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 1}}


def test_the_index_is_rendered_in_every_text() -> None:
    node = NodeTemplate(RICH).node(85)
    assert node["metadata"]["name"] == "big-85"
    labels = node["metadata"]["labels"]
    assert (labels["zone"], labels["rack"], labels["same"]) == ("z1", "r2", "{other}")
    assert node["metadata"]["annotations"] == {"of-85": "x"}
    assert node["spec"]["taints"][0]["value"] == "t85"
    assert node["status"]["images"][0]["names"] == ["registry.example/app:85"]


def test_missing_fields_are_filled_in() -> None:
    status = NodeTemplate(RICH).node(0)["status"]
    assert (status["capacity"]["cpu"], status["allocatable"]["cpu"]) == ("8", "7500m")
    assert status["nodeInfo"]["kubeletVersion"] == "v1.30.1"
    assert status["nodeInfo"]["operatingSystem"] == "linux"
    assert "conditions" not in status


def test_rendered_nodes_share_no_state() -> None:
    template = NodeTemplate(RICH)
    template.node(1)["metadata"]["labels"]["zone"] = "changed"
    assert template.node(1)["metadata"]["labels"]["zone"] == "z1"
    assert template.name(3) == "big-3"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("kind: Pod\nmetadata: {name: x}", "not a node template", id="another kind"),
        pytest.param("kind: Node\n---\nkind: Node", "not a node template", id="two of them"),
        pytest.param("kind: Node\nmetadata: {labels: {a: 1}}", "in quotes", id="a label that is no text"),
        pytest.param("kind: Node\nstatus: {capacity: {cpu: much}}", "quantities must match", id="no quantity"),
        pytest.param("kind: Node\nmetadata: [1]", "metadata", id="metadata that is none"),
    ],
)
def test_an_invalid_template_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    with pytest.raises(ObjectError, match=fault):
        NodeTemplate.read(path)


def test_a_template_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("metadata: {name: mine}\nstatus: {capacity: {cpu: '1'}}")
    assert NodeTemplate.read(path).name(2) == "mine-2"
