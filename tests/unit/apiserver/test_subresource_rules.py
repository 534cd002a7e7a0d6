"""Binding, eviction, scale, logs and tokens: what refuses them, at both sides of each bound."""

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
    """A lookup that finds the same objects whatever the kind."""

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
    ("evicted", "guard", "pays"),
    [
        pytest.param(pod(READY), budget(), True, id="a-ready-pod-is-paid-for"),
        pytest.param(pod(READY), budget(disruptedPods=disrupted(2000)), True, id="as-many-disrupted-as-there-may-be"),
        pytest.param(pod(READY, phase="Succeeded"), budget(disruptionsAllowed=0), False, id="a-pod-that-ended"),
        pytest.param(pod(READY, phase="Pending"), budget(disruptionsAllowed=0), False, id="a-pod-that-waits"),
        pytest.param(pod(READY, deletionTimestamp=NOW), budget(disruptionsAllowed=0), False, id="a-pod-that-goes"),
        pytest.param(pod(READY, labels={"a": "c"}), budget(disruptionsAllowed=0), False, id="other-labels"),
        pytest.param(pod(READY, labels={}), budget(disruptionsAllowed=0), False, id="no-labels"),
        pytest.param(pod(), budget(policy="AlwaysAllow", disruptionsAllowed=0), False, id="unhealthy-pods-may-go"),
        pytest.param(pod(), budget(currentHealthy=1, disruptionsAllowed=0), False, id="just-enough-others-are-healthy"),
        pytest.param(pod(), budget(desiredHealthy=0), True, id="a-budget-that-wants-none-healthy"),
        pytest.param(pod({**READY, "status": "False"}), budget(disruptionsAllowed=0), False, id="not-ready"),
    ],
)
def test_an_eviction_that_is_admitted(evicted: Tree, guard: Tree, pays: bool) -> None:
    found = subresources.evict(evicted, Objects(guard), NOW)
    assert found.pod["status"]["conditions"][-1]["type"] == "DisruptionTarget"
    assert (found.budget is not None) == pays
    assert subresources.evict(evicted, Objects(guard), NOW, dry_run=True).budget is None


@pytest.mark.parametrize(
    ("evicted", "guard", "code", "words"),
    [
        pytest.param(pod(READY), budget(disruptionsAllowed=0), 429, "needs 1 healthy pods and has 2", id="no-room"),
        pytest.param(pod(READY), budget(generation=2), 429, "is still being processed", id="an-old-status"),
        pytest.param(
            pod(READY), budget(disruptedPods=disrupted(2001)), 403, "DisruptedPods map too big", id="too-many"
        ),
        pytest.param(
            pod(), budget(currentHealthy=0, disruptionsAllowed=0), 429, "needs 1 healthy pods and has 0", id="unhealthy"
        ),
    ],
)
def test_an_eviction_that_is_refused(evicted: Tree, guard: Tree, code: int, words: str) -> None:
    with pytest.raises(StatusError) as raised:
        subresources.evict(evicted, Objects(guard), NOW)
    causes = (raised.value.details or {}).get("causes", ())
    assert raised.value.code == code
    assert words in raised.value.message + "".join(each["message"] for each in causes)


@pytest.mark.parametrize(("allowed", "left", "conditions"), [(2, 1, []), (1, 0, ["DisruptionAllowed"])])
def test_a_budget_pays_with_one_disruption(allowed: int, left: int, conditions: list[str]) -> None:
    paid = subresources.evict(pod(READY), Objects(budget(disruptionsAllowed=allowed)), NOW).budget
    assert paid is not None
    assert paid["status"]["disruptionsAllowed"] == left
    assert paid["status"]["disruptedPods"] == {"p": NOW}
    assert [each["type"] for each in paid["status"].get("conditions", ())] == conditions


def test_a_pod_of_two_budgets_is_not_evicted() -> None:
    with pytest.raises(StatusError, match="more than one PodDisruptionBudget"):
        subresources.evict(pod(READY), Objects(budget(), budget()), NOW)


@pytest.mark.parametrize(
    ("before", "status", "since"),
    [
        pytest.param([], "True", NOW, id="a-new-condition"),
        pytest.param([{"type": "X", "status": "True", "lastTransitionTime": "t"}], "True", "t", id="the-same-status"),
        pytest.param([{"type": "X", "status": "False", "lastTransitionTime": "t"}], "True", NOW, id="another-status"),
    ],
)
def test_a_condition_keeps_its_time_while_its_status_stays(before: list[Tree], status: str, since: str) -> None:
    others = [{"type": "W", "status": "True"}]
    condition = {"type": "X", "status": status, "lastTransitionTime": NOW}
    found = subresources.with_condition({"conditions": [*others, *before]}, condition)
    assert found == {"conditions": [*others, {**condition, "lastTransitionTime": since}]}


@pytest.mark.parametrize(
    ("metadata", "binding", "words"),
    [
        pytest.param({"deletionTimestamp": NOW}, {}, "is being deleted", id="a-pod-that-goes"),
        pytest.param({}, {"metadata": {"uid": "other"}}, "other", id="a-pod-of-another-uid"),
        pytest.param({}, {"target": {"kind": "Pod", "name": "n"}}, "target.kind: Unsupported value", id="no-node"),
        pytest.param({}, {"target": {}}, "target.name: Required value", id="no-name"),
    ],
)
def test_a_binding_that_is_refused(metadata: Tree, binding: Tree, words: str) -> None:
    with pytest.raises(StatusError) as raised:
        subresources.bind(pod(**metadata), {"target": {"kind": "Node", "name": "n"}, **binding}, NOW)
    assert words in raised.value.message


def test_a_binding_takes_the_nomination_away_and_adds_its_labels() -> None:
    item = pod()
    item["status"]["nominatedNodeName"] = "m"
    bound = subresources.bind(item, {"metadata": {"uid": "u", "labels": {"c": "d"}}, "target": {"name": "n"}}, NOW)
    assert bound["spec"]["nodeName"] == "n"
    assert bound["metadata"]["labels"] == {"a": "b", "c": "d"}
    assert "nominatedNodeName" not in bound["status"]
    assert [each["type"] for each in bound["status"]["conditions"]] == ["PodScheduled"]


@pytest.mark.parametrize(
    ("seconds", "lasts"), [(None, 3600), (599, None), (600, 600), (1 << 32, 1 << 32), ((1 << 32) + 1, None)]
)
def test_a_token_lasts_ten_minutes_at_least(seconds: int | None, lasts: int | None) -> None:
    request = {"spec": {} if seconds is None else {"expirationSeconds": seconds}}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    if lasts is None:
        with pytest.raises(StatusError, match="may not specify a duration"):
            subresources.token_request(ACCOUNT, request, now, "issuer")
        return
    answer, claims = subresources.token_request(ACCOUNT, request, now, "issuer")
    assert answer["spec"]["expirationSeconds"] == lasts
    assert (claims["exp"] - claims["iat"], claims["aud"]) == (lasts, ["issuer"])
    assert claims["sub"] == "system:serviceaccount:default:a"


@pytest.mark.parametrize(("field", "least"), [("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)])
def test_numbers_of_a_request_for_logs_have_a_least_value(field: str, least: int) -> None:
    subresources.check_log_options("p", {field: str(least)})
    subresources.check_log_options("p", {field: "no number"})
    with pytest.raises(StatusError, match=field):
        subresources.check_log_options("p", {field: str(least - 1)})


def several(*names: str, starting: tuple[str, ...] = (), default: str = "") -> Tree:
    item = pod(annotations={"kubectl.kubernetes.io/default-container": default})
    item["spec"] = {"containers": [{"name": each} for each in names]}
    item["spec"] |= {"initContainers": [{"name": each} for each in starting]} if starting else {}
    return item


@pytest.mark.parametrize(
    ("item", "wanted", "found"),
    [
        pytest.param(several("c"), "", "c", id="the-only-one"),
        pytest.param(several("c", "d"), "d", "d", id="the-named-one"),
        pytest.param(several("c", starting=("i",)), "i", "i", id="a-named-init-container"),
        pytest.param(several("c", "d", default="d"), "", "d", id="the-default-one"),
        pytest.param(several("c", "d"), "", "choose one of: [c d]", id="two"),
        pytest.param(several("c", starting=("i",)), "", "or one of the init containers: [i]", id="an-init-container"),
        pytest.param(several("c", "d", default="e"), "", "choose one of: [c d]", id="a-default-that-is-not-there"),
        pytest.param(several("c"), "e", "container e is not valid for pod p", id="one-that-is-not-there"),
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
        pytest.param("n", False, False, 404, id="on-a-node-that-is-not-there"),
        pytest.param("n", True, False, 400, id="without-an-upgrade"),
        pytest.param("n", True, True, 500, id="with-an-upgrade"),
    ],
)
def test_no_kubelet_answers_a_stream(node: str, known: bool, upgrade: bool, code: int) -> None:
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
def test_the_scale_of_a_custom_object_is_where_its_definition_says(item: Tree, spec: Tree, status: Tree) -> None:
    found = subresources.to_scale(WIDGETS, {"metadata": {"name": "w", "other": "x"}, **item})
    assert (found["metadata"], found["spec"], found["status"]) == ({"name": "w"}, spec, status)


def test_scaling_a_custom_object_changes_the_field_that_its_definition_names() -> None:
    item = {"metadata": {"name": "w"}, "spec": {"a": "b"}}
    scale = {"metadata": {"name": "w"}, "spec": {"replicas": 4}}
    assert subresources.apply_scale(WIDGETS, item, scale)["spec"] == {"a": "b", "size": 4}
    assert subresources.apply_scale(WIDGETS, item, {"metadata": {"name": "w"}})["spec"]["size"] == 0
    with pytest.raises(StatusError, match="must be greater than or equal to 0"):
        subresources.apply_scale(WIDGETS, item, {**scale, "spec": {"replicas": -1}})
    with pytest.raises(StatusError, match="does not match the name on the URL"):
        subresources.apply_scale(WIDGETS, item, {"metadata": {"name": "v"}})
