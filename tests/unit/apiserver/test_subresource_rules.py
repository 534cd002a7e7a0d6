"""Binding, eviction, scale, logs and tokens: refusals, on both sides of each bound."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.resources.kinds import ServedResource
from bayplan.apiserver.writes import subresources

Tree = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
READY = {"type": "Ready", "status": "True"}
ACCOUNT = {"metadata": {"name": "a", "namespace": "default", "uid": "u"}}


class Objects:
    """An object lookup that returns the same objects for every kind."""

    def __init__(self, *items: Tree) -> None:
        self._items = items

    def get(self, resource: ServedResource, namespace: str, name: str) -> Tree | None:  # noqa: ARG002
        return next((each for each in self._items if each["metadata"]["name"] == name), None)

    def list(self, resource: ServedResource, namespace: str = "") -> Iterator[Tree]:  # noqa: ARG002
        return iter(self._items)


def pod(*conditions: Tree, phase: str = "Running", **metadata: Any) -> Tree:
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"a": "b"}, **metadata},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": phase, "conditions": list(conditions)},
    }


def budget(*, policy: str = "IfHealthyBudget", generation: int = 1, **status: Any) -> Tree:
    found = {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, **status}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "unhealthyPodEvictionPolicy": policy}
    metadata = {"name": "b", "namespace": "default", "generation": generation}
    return {"metadata": metadata, "spec": spec, "status": found}


def disrupted(count: int) -> dict[str, str]:
    return {f"p{number}": NOW for number in range(count)}


@pytest.mark.parametrize(
    ("pod_tree", "pdb", "uses_budget"),
    [
        pytest.param(pod(READY), budget(), True, id="a-ready-pod-uses-the-budget"),
        pytest.param(pod(READY), budget(disruptedPods=disrupted(2000)), True, id="the-maximum-of-disrupted-pods"),
        pytest.param(pod(READY, phase="Succeeded"), budget(disruptionsAllowed=0), False, id="a-finished-pod"),
        pytest.param(pod(READY, phase="Pending"), budget(disruptionsAllowed=0), False, id="a-pending-pod"),
        pytest.param(pod(READY, deletionTimestamp=NOW), budget(disruptionsAllowed=0), False, id="a-pod-that-goes"),
        pytest.param(pod(READY, labels={"a": "c"}), budget(disruptionsAllowed=0), False, id="other-labels"),
        pytest.param(pod(READY, labels={}), budget(disruptionsAllowed=0), False, id="no-labels"),
        pytest.param(
            pod(), budget(policy="AlwaysAllow", disruptionsAllowed=0), False, id="unhealthy-pods-always-allowed"
        ),
        pytest.param(pod(), budget(currentHealthy=1, disruptionsAllowed=0), False, id="enough-healthy-pods"),
        pytest.param(pod(), budget(desiredHealthy=0), True, id="a-budget-without-desired-healthy-pods"),
        pytest.param(pod({**READY, "status": "False"}), budget(disruptionsAllowed=0), False, id="not-ready"),
    ],
)
def test_admitted_evictions(pod_tree: Tree, pdb: Tree, uses_budget: bool) -> None:
    found = subresources.evict(pod_tree, Objects(pdb), NOW)
    assert found.pod["status"]["conditions"][-1]["type"] == "DisruptionTarget"
    assert (found.budget is not None) == uses_budget
    assert subresources.evict(pod_tree, Objects(pdb), NOW, dry_run=True).budget is None


@pytest.mark.parametrize(
    ("pod_tree", "pdb", "code", "text"),
    [
        pytest.param(
            pod(READY), budget(disruptionsAllowed=0), 429, "needs 1 healthy pods and has 2", id="no-disruption-allowed"
        ),
        pytest.param(pod(READY), budget(generation=2), 429, "is still being processed", id="an-old-status"),
        pytest.param(
            pod(READY), budget(disruptedPods=disrupted(2001)), 403, "DisruptedPods map too big", id="too-many"
        ),
        pytest.param(
            pod(), budget(currentHealthy=0, disruptionsAllowed=0), 429, "needs 1 healthy pods and has 0", id="unhealthy"
        ),
    ],
)
def test_refused_evictions(pod_tree: Tree, pdb: Tree, code: int, text: str) -> None:
    with pytest.raises(StatusError) as raised:
        subresources.evict(pod_tree, Objects(pdb), NOW)
    causes = (raised.value.details or {}).get("causes", ())
    assert raised.value.code == code
    assert text in raised.value.message + "".join(each["message"] for each in causes)


@pytest.mark.parametrize(("allowed", "left", "conditions"), [(2, 1, []), (1, 0, ["DisruptionAllowed"])])
def test_an_eviction_uses_one_allowed_disruption(allowed: int, left: int, conditions: list[str]) -> None:
    changed = subresources.evict(pod(READY), Objects(budget(disruptionsAllowed=allowed)), NOW).budget
    assert changed is not None
    assert changed["status"]["disruptionsAllowed"] == left
    assert changed["status"]["disruptedPods"] == {"p": NOW}
    assert [each["type"] for each in changed["status"].get("conditions", ())] == conditions


def test_a_pod_with_two_budgets_is_not_evicted() -> None:
    with pytest.raises(StatusError, match="more than one PodDisruptionBudget"):
        subresources.evict(pod(READY), Objects(budget(), budget()), NOW)


@pytest.mark.parametrize(
    ("before", "status", "expected_time"),
    [
        pytest.param([], "True", NOW, id="a-new-condition"),
        pytest.param([{"type": "X", "status": "True", "lastTransitionTime": "t"}], "True", "t", id="the-same-status"),
        pytest.param([{"type": "X", "status": "False", "lastTransitionTime": "t"}], "True", NOW, id="another-status"),
    ],
)
def test_a_condition_keeps_its_time_while_its_status_is_the_same(
    before: list[Tree], status: str, expected_time: str
) -> None:
    other_conditions = [{"type": "W", "status": "True"}]
    condition = {"type": "X", "status": status, "lastTransitionTime": NOW}
    found = subresources.with_condition({"conditions": [*other_conditions, *before]}, condition)
    assert found == {"conditions": [*other_conditions, {**condition, "lastTransitionTime": expected_time}]}


@pytest.mark.parametrize(
    ("metadata", "binding", "text"),
    [
        pytest.param({"deletionTimestamp": NOW}, {}, "is being deleted", id="a-pod-that-goes"),
        pytest.param({}, {"metadata": {"uid": "other"}}, "other", id="a-pod-of-another-uid"),
        pytest.param({}, {"target": {"kind": "Pod", "name": "n"}}, "target.kind: Unsupported value", id="no-node"),
        pytest.param({}, {"target": {}}, "target.name: Required value", id="no-name"),
    ],
)
def test_refused_bindings(metadata: Tree, binding: Tree, text: str) -> None:
    with pytest.raises(StatusError) as raised:
        subresources.bind(pod(**metadata), {"target": {"kind": "Node", "name": "n"}, **binding}, NOW)
    assert text in raised.value.message


def test_a_binding_removes_the_nomination_and_adds_its_labels() -> None:
    item = pod()
    item["status"]["nominatedNodeName"] = "m"
    bound = subresources.bind(item, {"metadata": {"uid": "u", "labels": {"c": "d"}}, "target": {"name": "n"}}, NOW)
    assert bound["spec"]["nodeName"] == "n"
    assert bound["metadata"]["labels"] == {"a": "b", "c": "d"}
    assert "nominatedNodeName" not in bound["status"]
    assert [each["type"] for each in bound["status"]["conditions"]] == ["PodScheduled"]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, 3600), (599, None), (600, 600), (1 << 32, 1 << 32), ((1 << 32) + 1, None)]
)
def test_the_lifetime_of_tokens_has_bounds(seconds: int | None, expected: int | None) -> None:
    request = {"spec": {} if seconds is None else {"expirationSeconds": seconds}}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    if expected is None:
        with pytest.raises(StatusError, match="may not specify a duration"):
            subresources.token_request(ACCOUNT, request, now, "issuer")
        return
    answer, claims = subresources.token_request(ACCOUNT, request, now, "issuer")
    assert answer["spec"]["expirationSeconds"] == expected
    assert (claims["exp"] - claims["iat"], claims["aud"]) == (expected, ["issuer"])
    assert claims["sub"] == "system:serviceaccount:default:a"


@pytest.mark.parametrize(("field", "minimum"), [("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)])
def test_numbers_in_log_options_have_a_minimum(field: str, minimum: int) -> None:
    subresources.check_log_options("p", {field: str(minimum)})
    subresources.check_log_options("p", {field: "no number"})
    with pytest.raises(StatusError, match=field):
        subresources.check_log_options("p", {field: str(minimum - 1)})


def pod_with_containers(*names: str, init_containers: tuple[str, ...] = (), default: str = "") -> Tree:
    item = pod(annotations={"kubectl.kubernetes.io/default-container": default})
    item["spec"] = {"containers": [{"name": each} for each in names]}
    item["spec"] |= {"initContainers": [{"name": each} for each in init_containers]} if init_containers else {}
    return item


@pytest.mark.parametrize(
    ("item", "wanted", "found"),
    [
        pytest.param(pod_with_containers("c"), "", "c", id="the-only-one"),
        pytest.param(pod_with_containers("c", "d"), "d", "d", id="the-named-one"),
        pytest.param(pod_with_containers("c", init_containers=("i",)), "i", "i", id="a-named-init-container"),
        pytest.param(pod_with_containers("c", "d", default="d"), "", "d", id="the-default-one"),
        pytest.param(pod_with_containers("c", "d"), "", "choose one of: [c d]", id="two-containers"),
        pytest.param(
            pod_with_containers("c", init_containers=("i",)),
            "",
            "or one of the init containers: [i]",
            id="an-init-container",
        ),
        pytest.param(pod_with_containers("c", "d", default="e"), "", "choose one of: [c d]", id="a-missing-default"),
        pytest.param(pod_with_containers("c"), "e", "container e is not valid for pod p", id="a-missing-container"),
    ],
)
def test_the_container_of_a_request(item: Tree, wanted: str, found: str) -> None:
    if " " not in found:
        assert subresources.container_of(item, wanted) == found
        return
    with pytest.raises(StatusError) as raised:
        subresources.container_of(item, wanted)
    assert found in raised.value.message


@pytest.mark.parametrize(
    ("node", "known", "upgrade", "code"),
    [
        pytest.param("", True, True, 400, id="on-no-node"),
        pytest.param("n", False, False, 404, id="on-a-missing-node"),
        pytest.param("n", True, False, 400, id="without-an-upgrade"),
        pytest.param("n", True, True, 500, id="with-an-upgrade"),
    ],
)
def test_streams_are_refused(node: str, known: bool, upgrade: bool, code: int) -> None:
    item = pod()
    item["spec"]["nodeName"] = node
    nodes = Objects({"metadata": {"name": "n"}}) if known else Objects()
    with pytest.raises(StatusError) as raised:
        subresources.check_stream(item, "", nodes, upgrade=upgrade)
    assert raised.value.code == code
    if not node:
        subresources.check_log(item, "", nodes)


SCALE = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size", "labelSelectorPath": ".status.labels"}
WIDGETS = ServedResource("ex.io", "v1", "Widget", "widgets", "widget", definition={"subresources": {"scale": SCALE}})


@pytest.mark.parametrize(
    ("item", "spec", "status"),
    [
        (
            {"spec": {"size": 3}, "status": {"size": 2, "labels": "a=b"}},
            {"replicas": 3},
            {"replicas": 2, "selector": "a=b"},
        ),
        ({"spec": {"size": 0}}, {}, {"replicas": 0}),
        ({}, {}, {"replicas": 0}),
    ],
)
def test_the_scale_of_a_custom_resource_uses_the_paths_of_its_definition(item: Tree, spec: Tree, status: Tree) -> None:
    found = subresources.to_scale(WIDGETS, {"metadata": {"name": "w", "other": "x"}, **item})
    assert (found["metadata"], found["spec"], found["status"]) == ({"name": "w"}, spec, status)


def test_scaling_a_custom_resource_sets_the_field_of_its_definition() -> None:
    item = {"metadata": {"name": "w"}, "spec": {"a": "b"}}
    scale = {"metadata": {"name": "w"}, "spec": {"replicas": 4}}
    assert subresources.apply_scale(WIDGETS, item, scale)["spec"] == {"a": "b", "size": 4}
    assert subresources.apply_scale(WIDGETS, item, {"metadata": {"name": "w"}})["spec"]["size"] == 0
    with pytest.raises(StatusError, match="must be greater than or equal to 0"):
        subresources.apply_scale(WIDGETS, item, {**scale, "spec": {"replicas": -1}})
    with pytest.raises(StatusError, match="does not match the name on the URL"):
        subresources.apply_scale(WIDGETS, item, {"metadata": {"name": "v"}})
