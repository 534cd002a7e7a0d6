"""`bayplan get`, `apply`, `delete` and `top` with the user's kubeconfig: equal on the embedded and on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.run import Cluster
from support.harness.cluster_command_line import InProcessCommandLine

DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: barges.five.example.com}
spec:
  group: five.example.com
  scope: Namespaced
  names: {plural: barges, singular: barge, kind: Barge, shortNames: [bg]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {berth: {type: string}}}}}}
    additionalPrinterColumns: [{name: Berth, type: string, jsonPath: .spec.berth}]
"""


@pytest.fixture
def bayplan(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> InProcessCommandLine:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig()))
    return InProcessCommandLine(capsys)


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[..., Path]:
    def written(*trees: Any) -> Path:
        path = tmp_path / "manifest.yaml"
        path.write_text(yaml.safe_dump_all(trees), encoding="utf-8")
        return path

    return written


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"of": "ours"}}, "data": data}


def deployment(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_objects_are_created_changed_and_deleted(
    bayplan: InProcessCommandLine, namespace: str, manifest: Callable[..., Path]
) -> None:
    here = ("-n", namespace)
    path = manifest(config_map("one", a="1"), deployment("web", 0))
    assert bayplan.lines("apply", "-f", path, *here) == ["configmap/one created", "deployment.apps/web created"]
    assert bayplan.lines("apply", "-f", path, *here)[0] == "configmap/one unchanged"
    assert bayplan.lines("apply", "-f", manifest(config_map("one", a="2")), *here) == ["configmap/one configured"]
    assert json.loads(bayplan("get", "cm", "one", "-o", "json", *here).out)["data"] == {"a": "2"}
    head, row = bayplan.lines("get", "deploy", *here)
    assert head.split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert row.split()[:2] == ["web", "0/0"]
    assert "SELECTOR" in bayplan.lines("get", "deploy", "-o", "wide", *here)[0]
    assert bayplan.lines("get", "cm", "-l", "of=ours", "-o", "name", *here) == ["configmap/one"]
    assert bayplan.lines("delete", "cm", "-l", "of=ours", *here) == ["configmap/one deleted"]
    assert bayplan.lines("delete", "deploy/web", *here) == ["deployment.apps/web deleted"]
    gone = bayplan("get", "deploy/web", *here)
    assert (gone.code, gone.err.count("\n")) == (1, 1)
    assert gone.err.startswith('error: deployments.apps "web" not found; ')


def test_kinds_of_crds(bayplan: InProcessCommandLine, namespace: str, manifest: Callable[..., Path]) -> None:
    barge = {
        "apiVersion": "five.example.com/v1",
        "kind": "Barge",
        "metadata": {"name": "maria"},
        "spec": {"berth": "north"},
    }
    path = manifest(yaml.safe_load(DEFINITION), barge)
    created = bayplan.lines("apply", "-f", path, "-n", namespace)
    assert created[1] == "barge.five.example.com/maria created"
    head, row = bayplan.lines("get", "bg", "-A")
    assert (head.split(), row.split()) == (["NAMESPACE", "NAME", "BERTH"], [namespace, "maria", "north"])
    assert len(bayplan.lines("delete", "-f", path, "-n", namespace)) == 2


def test_a_conflict_names_the_owner(
    bayplan: InProcessCommandLine, namespace: str, manifest: Callable[..., Path]
) -> None:
    here = ("-n", namespace)
    bayplan.lines("apply", "-f", manifest(config_map("shared", a="1")), "--field-manager", "editor", *here)
    refused = bayplan("apply", "-f", manifest(config_map("shared", a="2")), *here)
    assert refused.code == 1
    assert 'conflict with "editor"' in refused.err
    assert "--force-conflicts" in refused.err


def test_a_user_without_rights_gets_an_error(cluster: Cluster, bayplan: InProcessCommandLine, namespace: str) -> None:
    told = bayplan("get", "secrets", "-n", namespace, "--kubeconfig", cluster.kubeconfig("limited"))
    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert 'User "limited" cannot list resource "secrets"' in told.err
    assert "choose another --context" in told.err


def test_top_prints_one_screen_without_a_terminal(bayplan: InProcessCommandLine) -> None:
    lines = bayplan.lines("top", "--once")
    assert lines[0].startswith("nodes ")
    assert "decisions: " in lines[1]
