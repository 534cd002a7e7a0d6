"""LimitRange defaults and constraints, and quotas: each amount on both sides of its bound."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.admission.limit_ranger import claim_violations, pod_violations, set_pod_defaults
from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.resources.pod_resources import effective_resources, parse_quantities
from support.harness.apiserver_store import ApiserverStore, Tree, pod


def limit_range(kind: str, **fields: Any) -> Tree:
    return {"metadata": {"name": "l", "namespace": "default"}, "spec": {"limits": [{"type": kind, **fields}]}}


def pod_with_resources(
    requests: Tree | None = None, limits: Tree | None = None, *, field_name: str = "containers"
) -> Tree:
    tree = pod("p")
    resources = {name: each for name, each in (("requests", requests), ("limits", limits)) if each}
    tree["spec"][field_name] = [{"name": "c", "image": "c:1", "resources": resources}]
    return tree


@pytest.mark.parametrize("kind", ["Container", "Pod"])
@pytest.mark.parametrize(
    ("field", "bound", "requests", "limits", "problem"),
    [
        pytest.param("min", "2", "2", "2", None, id="the-minimum"),
        pytest.param("min", "2", "1999m", "2", "minimum cpu usage per {} is 2, but request is 1999m", id="too-little"),
        pytest.param("min", "2", "2", "1999m", "minimum cpu usage per {} is 2, but limit is 1999m", id="too-low-limit"),
        pytest.param("min", "2", None, "2", "minimum cpu usage per {} is 2.  No request is specified", id="no-request"),
        pytest.param("min", "2", "2", None, None, id="a-minimum-needs-no-limit"),
        pytest.param("max", "2", "2", "2", None, id="the-maximum"),
        pytest.param(
            "max", "2", "1", "2001m", "maximum cpu usage per {} is 2, but limit is 2001m", id="too-high-limit"
        ),
        pytest.param("max", "2", "2001m", "2", "maximum cpu usage per {} is 2, but request is 2001m", id="too-much"),
        pytest.param("max", "2", "1", None, "maximum cpu usage per {} is 2.  No limit is specified", id="no-limit"),
        pytest.param("max", "2", None, "2", None, id="a-maximum-needs-no-request"),
        pytest.param("maxLimitRequestRatio", "2", "1", "2", None, id="the-ratio"),
        pytest.param(
            "maxLimitRequestRatio",
            "2",
            "1",
            "2001m",
            "cpu max limit to request ratio per {} is 2, but provided ratio is 2.001000",
            id="above-the-ratio",
        ),
        pytest.param(
            "maxLimitRequestRatio",
            "2",
            "0",
            "2",
            "cpu max limit to request ratio per {} is 2, but no request is specified or request is 0",
            id="a-ratio-to-nothing",
        ),
        pytest.param(
            "maxLimitRequestRatio",
            "2",
            "1",
            "0",
            "cpu max limit to request ratio per {} is 2, but no limit is specified or limit is 0",
            id="a-ratio-of-nothing",
        ),
    ],
)
def test_constraints_of_a_limit_range_on_pods(
    kind: str, field: str, bound: str, requests: str | None, limits: str | None, problem: str | None
) -> None:
    item = pod_with_resources({"cpu": requests} if requests else None, {"cpu": limits} if limits else None)
    found = pod_violations(item, [limit_range(kind, **{field: {"cpu": bound}})])
    assert found == ([] if problem is None else [problem.format(kind)])


@pytest.mark.parametrize(
    ("field", "size", "problem"),
    [
        ("min", "2Gi", None),
        ("min", "1Gi", "minimum storage usage per PersistentVolumeClaim is 2Gi, but request is 1Gi"),
        ("min", None, "minimum storage usage per PersistentVolumeClaim is 2Gi.  No request is specified"),
        ("max", "2Gi", None),
        ("max", "3Gi", "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
        ("max", None, "maximum storage usage per PersistentVolumeClaim is 2Gi.  No request is specified"),
    ],
)
def test_constraints_of_a_limit_range_on_claims(field: str, size: str | None, problem: str | None) -> None:
    claim = {"spec": {"resources": {"requests": {"storage": size}} if size else {}}}
    limit = limit_range("PersistentVolumeClaim", **{field: {"storage": "2Gi"}})
    assert claim_violations(claim, [limit]) == ([] if problem is None else [problem])
    assert claim_violations(claim, [limit_range("Pod", **{field: {"storage": "2Gi"}})]) == []


def test_only_violations_of_the_first_limit_range_are_returned() -> None:
    ranges = [limit_range("Container", max={"cpu": each}) for each in ("4", "2", "1")]
    assert pod_violations(pod_with_resources({"cpu": "1"}, {"cpu": "3"}), ranges) == [
        "maximum cpu usage per Container is 2, but limit is 3"
    ]
    claims = [limit_range("PersistentVolumeClaim", max={"storage": each}) for each in ("4", "2", "1")]
    assert claim_violations({"spec": {"resources": {"requests": {"storage": "3"}}}}, claims) == [
        "maximum storage usage per PersistentVolumeClaim is 2, but request is 3"
    ]


def test_container_constraints_apply_to_init_containers() -> None:
    item = pod_with_resources({"cpu": "1"}, {"cpu": "1"})
    item["spec"]["initContainers"] = pod_with_resources({"cpu": "3"}, {"cpu": "3"})["spec"]["containers"]
    problem = "maximum cpu usage per Container is 2, but limit is 3"
    assert pod_violations(item, [limit_range("Container", max={"cpu": "2"})]) == [problem]


def test_pod_level_resources_replace_the_sum_of_containers() -> None:
    item = pod_with_resources({"cpu": "1"}, {"cpu": "1"})
    item["spec"]["resources"] = {"limits": {"cpu": "3"}, "requests": {"cpu": "1"}}
    problem = "maximum cpu usage per Pod is 2, but limit is 3"
    assert pod_violations(item, [limit_range("Pod", max={"cpu": "2"})]) == [problem]


def test_containers_get_missing_defaults() -> None:
    item = pod_with_resources({"cpu": "1"})
    item["spec"]["initContainers"] = [{"name": "i", "image": "i:1"}]
    item["metadata"]["annotations"] = {"a": "b"}
    defaults = {"defaultRequest": {"cpu": "2", "memory": "1Gi"}, "default": {"cpu": "4"}}
    set_pod_defaults(item, [limit_range("Pod", **defaults), limit_range("Container", **defaults)])
    assert item["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "1", "memory": "1Gi"},
        "limits": {"cpu": "4"},
    }
    assert item["spec"]["initContainers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi"},
        "limits": {"cpu": "4"},
    }
    assert item["metadata"]["annotations"] == {
        "a": "b",
        "kubernetes.io/limit-ranger": (
            "LimitRanger plugin set: memory request for container c; cpu limit for container c; "
            "cpu, memory request for init container i; cpu limit for init container i"
        ),
    }


def test_a_container_with_all_resources_gets_no_annotation() -> None:
    item = pod_with_resources({"cpu": "1"}, {"cpu": "1"})
    set_pod_defaults(item, [limit_range("Container", default={"cpu": "4"})])
    assert "annotations" not in item["metadata"]


@pytest.mark.parametrize(
    ("cpu", "refused"),
    [
        pytest.param("1", None, id="all-that-is-left"),
        pytest.param("1001m", "exceeded quota: q, requested: requests.cpu=1001m, used: requests.cpu=1", id="too-much"),
        pytest.param(None, "failed quota: q: must specify requests.cpu for: c", id="no-request"),
    ],
)
def test_a_quota_admits_its_remaining_amount(cpu: str | None, refused: str | None) -> None:
    store = ApiserverStore()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}}
    store.create({**quota, "spec": {"hard": {"requests.cpu": "2"}}})
    first = pod_with_resources({"cpu": "1"})
    first["metadata"]["name"] = "first"
    store.create(first)
    if refused is None:
        store.create(pod_with_resources({"cpu": cpu}))
        return
    with pytest.raises(StatusError) as raised:
        store.create(pod_with_resources({"cpu": cpu} if cpu else None))
    assert raised.value.code == 403
    assert refused in raised.value.message


@pytest.mark.parametrize(
    ("containers", "init_containers", "expected"),
    [
        pytest.param(["1", "2"], [], "3", id="containers-run-together"),
        pytest.param(["1", "2"], ["4"], "4", id="the-largest-init-container"),
        pytest.param(["1", "2"], ["3", "1"], "3", id="an-init-container-as-large-as-the-containers"),
        pytest.param(["1"], ["2s", "1"], "3", id="an-init-container-beside-a-sidecar"),
        pytest.param(["1"], ["4", "2s"], "4", id="an-init-container-before-a-sidecar"),
        pytest.param(["2"], ["2s"], "4", id="a-sidecar-beside-the-containers"),
    ],
)
def test_effective_requests_of_a_pod(containers: list[str], init_containers: list[str], expected: str) -> None:
    def tree(text: str) -> Tree:
        always = {"restartPolicy": "Always"} if text.endswith("s") else {}
        return {"name": "c", "resources": {"requests": {"cpu": text.rstrip("s")}}, **always}

    spec = {"containers": list(map(tree, containers)), "initContainers": list(map(tree, init_containers))}
    assert effective_resources(spec, "requests") == parse_quantities({"cpu": expected})
