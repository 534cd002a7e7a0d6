"""Validation of pod groups, flows, cron jobs, hypernodes and pods, and the webhooks that call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bayplan.admission.volcano_defaults import with_pod_group_defaults
from bayplan.admission.volcano_kinds_validation import (
    cron_job_error,
    hyper_node_error,
    job_flow_error,
    pod_error,
    pod_group_error,
)
from bayplan.admission.webhooks import (
    DEFAULT_WEBHOOKS,
    WEBHOOKS,
    AdmissionRequest,
    AdmissionSettings,
    AdmissionWebhook,
    ResourceGroup,
    json_patch,
    run_webhook,
    webhooks_for,
)
from support.builders.volcano_manifests import job, queue

Tree = dict[str, Any]
QUEUES = {"default": queue("default"), "shut": queue("shut", state="Closed")}


class Context:
    """An admission context with two queues."""

    def queues(self) -> Mapping[str, Tree]:
        return QUEUES

    def namespace(self, name: str) -> Tree | None:
        return {"metadata": {"name": name, "annotations": {"scheduling.volcano.sh/queue-name": f"of-{name}"}}}

    def template_errors(self, name: str, namespace: str, template: Tree) -> list[str]:  # noqa: ARG002
        return []


def run(
    path: str, item: Tree, *, old: Tree | None = None, settings: AdmissionSettings | None = None
) -> tuple[Tree, str]:
    (webhook,) = webhooks_for([path])
    operation = "CREATE" if old is None else "UPDATE"
    return run_webhook(webhook, AdmissionRequest(operation, item, old, "x", Context(), settings or AdmissionSettings()))


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"queue": "default"}, ""),
        ({}, ""),
        ({"queue": "none"}, 'unable to find queue: queue.scheduling.volcano.sh "none" not found'),
        ({"queue": "shut"}, "can only submit PodGroup to queue with state `Open`, queue `shut` status is `Closed`. "),
        (
            {"subGroupPolicy": [{"name": "s", "networkTopology": {"highestTierAllowed": 1, "highestTierName": "r"}}]},
            (
                "in subGroupPolicy 's': must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology "
                "simultaneously."
            ),
        ),
    ],
)
def test_pod_group_errors(spec: Tree, error: str) -> None:
    assert pod_group_error({"spec": spec}, QUEUES) == error


def test_the_queue_of_the_namespace_replaces_the_default_queue() -> None:
    assert with_pod_group_defaults({"spec": {"queue": "default"}}, "team")["spec"]["queue"] == "team"
    assert with_pod_group_defaults({"spec": {"queue": "mine"}}, "team")["spec"]["queue"] == "mine"


@pytest.mark.parametrize(
    ("annotations", "error"),
    [
        ({"volcano.sh/jdb-min-available": "2"}, ""),
        ({"volcano.sh/jdb-min-available": "50%"}, ""),
        (
            {"volcano.sh/jdb-min-available": "0"},
            'invalid value <"0"> for volcano.sh/jdb-min-available, it must be a positive integer',
        ),
        (
            {"volcano.sh/jdb-max-unavailable": "100%"},
            (
                'invalid value <"100%"> for volcano.sh/jdb-max-unavailable, it must be a valid percentage which '
                "between 1% ~ 99%"
            ),
        ),
        (
            {"volcano.sh/jdb-min-available": "1", "volcano.sh/jdb-max-unavailable": "1"},
            (
                "not allow configure multiple annotations <[volcano.sh/jdb-min-available "
                "volcano.sh/jdb-max-unavailable]> at same time"
            ),
        ),
    ],
)
def test_pod_annotation_errors(annotations: Tree, error: str) -> None:
    pod = {"metadata": {"annotations": annotations}, "spec": {"schedulerName": "volcano"}}
    assert pod_error(pod, ("volcano",)) == error
    assert pod_error(pod, ("other",)) == ""


def flow_of(**needs: list[str]) -> Tree:
    flows = [
        {"name": name, **({"dependsOn": {"targets": targets}} if targets else {})} for name, targets in needs.items()
    ]
    return {"spec": {"flows": flows}}


@pytest.mark.parametrize(
    ("flow_tree", "error"),
    [
        (flow_of(a=[], b=["a"], c=["a", "b"]), ""),
        (flow_of(a=["b"], b=["a"]), "jobflow Flow is not DAG"),
        (flow_of(a=["x"]), "jobflow Flow is not DAG: vertex is not defined: x"),
    ],
)
def test_job_flow_errors(flow_tree: Tree, error: str) -> None:
    assert job_flow_error(flow_tree) == error


@pytest.mark.parametrize(
    ("name", "spec", "error"),
    [
        ("a", {"schedule": "*/5 * * * *", "timeZone": "Europe/Berlin"}, ""),
        ("a", {"schedule": "@every 1m"}, ""),
        ("a", {}, " schedule is required, but got empty"),
        ("a", {"schedule": "* * *"}, "schedule is not a valid cron expression"),
        (
            "a",
            {"schedule": "TZ=UTC 0 20 * * *"},
            " schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone field",
        ),
        ("a", {"schedule": "@daily", "timeZone": ""}, " timeZone must be nil or non-empty string, got empty string"),
        ("a", {"schedule": "@daily", "timeZone": "Mars/Here"}, " invalid timeZone"),
        (
            "a" * 53,
            {"schedule": "@daily"},
            "cronJob name must be no more than 52 characters to accommodate job name suffix (max 63 total)",
        ),
    ],
)
def test_cron_job_errors(name: str, spec: Tree, error: str) -> None:
    assert cron_job_error({"metadata": {"name": name}, "spec": spec}) == error


def test_hypernode_errors() -> None:
    members = [{"type": "Node", "selector": {"regexMatch": {"pattern": "a(b"}}}]
    error = hyper_node_error({"spec": {"members": members}})
    assert error.startswith('spec.members.selector.regexMatch.pattern: Invalid value: "a(b": member regexMatch pattern')
    assert hyper_node_error({"spec": {}}) == "spec.members: Invalid value: []: member must have at least one member"
    assert hyper_node_error({"spec": {"members": [{"selector": {"exactMatch": {"name": "n"}}}]}}) == ""


# Webhooks


def test_a_job_is_defaulted_by_one_webhook_and_validated_by_the_next() -> None:
    defaulted, error = run("/jobs/mutate", job("a"))
    assert (defaulted["spec"]["queue"], error) == ("default", "")
    assert run("/jobs/validate", defaulted) == (defaulted, "")
    assert run("/jobs/validate", {**defaulted, "spec": {**defaulted["spec"], "queue": "shut"}})[1] == (
        "can only submit job to queue with state `Open`, queue `shut` status is `Closed`;"
    )


def test_a_pod_gets_a_gate_and_the_fields_of_its_resource_group() -> None:
    group = ResourceGroup.parse(
        {
            "resourceGroup": "gpu",
            "object": {"key": "namespace", "value": ["ml"]},
            "schedulerName": "volcano",
            "labels": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": '{"nodeAffinity": {}}',
        }
    )
    annotations = {"scheduling.volcano.sh/queue-allocation-gate": "true"}
    pod = {"metadata": {"namespace": "ml", "annotations": annotations}, "spec": {"nodeSelector": {"zone": "a"}}}
    settings = AdmissionSettings(resource_groups=(group,), allocation_gates=True)
    spec = run("/pods/mutate", pod, settings=settings)[0]["spec"]
    assert spec == {
        "nodeSelector": {"zone": "a", "pool": "gpu"},
        "schedulingGates": [{"name": "scheduling.volcano.sh/queue-allocation-gate"}],
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "schedulerName": "volcano",
    }
    assert run("/pods/mutate", {"metadata": {"namespace": "web"}, "spec": {}}, settings=settings)[0]["spec"] == {}


def test_pods_get_no_gate_by_default() -> None:
    pod = {"metadata": {"annotations": {"scheduling.volcano.sh/queue-allocation-gate": "true"}}, "spec": {}}
    assert run("/pods/mutate", pod)[0]["spec"] == {}


def test_resource_groups_by_annotation() -> None:
    named = ResourceGroup.parse({"resourceGroup": "gpu"})
    annotated = ResourceGroup.parse({"object": {"key": "annotation", "value": ['team: "ml"']}})
    assert named.matches({"metadata": {"annotations": {"volcano.sh/resource-group": "gpu"}}})
    assert annotated.matches({"metadata": {"annotations": {"team": "ml"}}})
    assert not annotated.matches({"metadata": {"annotations": {"team": "web"}}})


def test_a_pod_group_gets_the_queue_of_its_namespace() -> None:
    group = {"metadata": {"namespace": "ml"}, "spec": {"queue": "default"}}
    assert run("/podgroups/mutate", group)[0]["spec"]["queue"] == "of-ml"


@pytest.mark.parametrize("webhook", WEBHOOKS, ids=lambda webhook: webhook.path)
@pytest.mark.parametrize(
    "item", [{"metadata": [], "spec": []}, {"spec": {"tasks": 3, "members": 3, "flows": 3}}], ids=repr
)
def test_fields_of_the_wrong_type_cause_no_traceback(webhook: AdmissionWebhook, item: Tree) -> None:
    result, error = run_webhook(webhook, AdmissionRequest("CREATE", item, None, "x", Context(), AdmissionSettings()))
    assert result is not None
    assert "Traceback" not in error


def test_the_default_webhooks_exist() -> None:
    assert {webhook.path for webhook in webhooks_for(DEFAULT_WEBHOOKS)} == set(DEFAULT_WEBHOOKS)
    with pytest.raises(KeyError, match="/nowhere"):
        webhooks_for(["/nowhere"])


def test_a_json_patch_describes_the_difference() -> None:
    old = {"spec": {"a": 1, "gone": 2, "list": [1]}, "metadata": {"annotations": {"x/y": "1"}}}
    new = {"spec": {"a": 1, "list": [1, 2], "b~c": 3}, "metadata": {"annotations": {"x/y": "2"}}}
    assert list(json_patch(old, new)) == [
        {"op": "remove", "path": "/spec/gone"},
        {"op": "replace", "path": "/spec/list", "value": [1, 2]},
        {"op": "add", "path": "/spec/b~0c", "value": 3},
        {"op": "replace", "path": "/metadata/annotations/x~1y", "value": "2"},
    ]
