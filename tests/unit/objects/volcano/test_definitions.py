"""The definitions of Volcano's kinds: their names, their fields, and those that a cluster lacks."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from bayplan.objects.kinds import KINDS
from bayplan.objects.volcano.definitions import definitions_to_install, volcano_definitions

CLIENT_SIDE_APPLY_LIMIT = 262_144
"""The maximum size of annotations. `kubectl apply` stores a copy of the object in one."""


def definition(name: str) -> dict[str, Any]:
    return next(each for each in volcano_definitions() if each["metadata"]["name"] == name)


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = definition(name)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize(
    ("name", "version", "scope", "status"),
    [
        ("commands.bus.volcano.sh", "v1alpha1", "Namespaced", False),
        ("cronjobs.batch.volcano.sh", "v1alpha1", "Namespaced", True),
        ("hypernodes.topology.volcano.sh", "v1alpha1", "Cluster", True),
        ("jobflows.flow.volcano.sh", "v1alpha1", "Namespaced", True),
        ("jobs.batch.volcano.sh", "v1alpha1", "Namespaced", True),
        ("jobtemplates.flow.volcano.sh", "v1alpha1", "Namespaced", True),
        ("nodeshards.shard.volcano.sh", "v1alpha1", "Cluster", True),
        ("numatopologies.nodeinfo.volcano.sh", "v1alpha1", "Cluster", False),
        ("podgroups.scheduling.volcano.sh", "v1beta1", "Namespaced", False),
        ("queues.scheduling.volcano.sh", "v1beta1", "Cluster", True),
    ],
)
def test_group_version_scope_and_status(name: str, version: str, scope: str, status: bool) -> None:
    spec = definition(name)["spec"]
    assert (spec["scope"], [each["name"] for each in spec["versions"]]) == (scope, [version])
    assert ("status" in spec["versions"][0].get("subresources", {})) is status


def test_there_are_ten_definitions() -> None:
    assert len(volcano_definitions()) == 10


def test_a_pod_template_is_complete() -> None:
    task = schema("jobs.batch.volcano.sh")["properties"]["spec"]["properties"]["tasks"]["items"]["properties"]
    containers = task["template"]["properties"]["spec"]["properties"]["containers"]
    assert containers["items"]["properties"]["image"] == {"type": "string"}
    assert containers["items"]["required"] == ["name"]


def test_definitions_have_no_references_and_no_descriptions() -> None:
    text = json.dumps(volcano_definitions())
    assert '"$"' not in text
    assert '"description": "' not in text


def test_kubectl_can_apply_each_definition() -> None:
    assert [each["metadata"]["name"] for each in volcano_definitions() if len(json.dumps(each)) > 200_000] == []
    assert max(len(json.dumps(each)) for each in volcano_definitions()) < CLIENT_SIDE_APPLY_LIMIT


def test_every_volcano_kind_that_bayplan_reads_has_a_definition() -> None:
    defined = {f"{each['spec']['names']['plural']}.{each['spec']['group']}" for each in volcano_definitions()}
    assert {f"{kind.plural}.{kind.group}" for kind in KINDS if kind.group.endswith("volcano.sh")} <= defined


def test_a_definition_installed_with_the_same_version_is_not_missing() -> None:
    theirs = copy.deepcopy(definition("queues.scheduling.volcano.sh"))
    theirs["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": {"type": "object"}}
    missing = {each["metadata"]["name"] for each in definitions_to_install([theirs])}
    assert missing == {each["metadata"]["name"] for each in volcano_definitions()} - {"queues.scheduling.volcano.sh"}


def test_a_definition_installed_with_another_version_is_missing() -> None:
    theirs = copy.deepcopy(definition("queues.scheduling.volcano.sh"))
    theirs["spec"]["versions"][0]["name"] = "v1alpha1"
    assert definition("queues.scheduling.volcano.sh") in list(definitions_to_install([theirs]))
