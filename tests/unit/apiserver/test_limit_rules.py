"""What LimitRanges add to a pod and refuse, and what a quota refuses: each amount at both sides of its bound."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.admission.limit_ranger import claim_violations, pod_violations, set_pod_defaults
from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.resources.pod_resources import effective_resources, parse_quantities
from support.harness.apiserver_store import ApiserverStore, Tree, pod


def limit_range(kind: str, **fields: Any) -> Tree:
    return {"metadata": {"name": "l", "namespace": "default"}, "spec": {"limits": [{"type": kind, **fields}]}}


def pod_with(requests: Tree | None = None, limits: Tree | None = None, *, part: str = "containers") -> Tree:
    made = pod("p")
    resources = {name: each for name, each in (("requests", requests), ("limits", limits)) if each}
    made["spec"][part] = [{"name": "c", "image": "c:1", "resources": resources}]
    return made


@pytest.mark.parametrize("kind", ["Container", "Pod"])
@pytest.mark.parametrize(
    ("field", "bound", "requests", "limits", "problem"),
    [
        pytest.param("min", "2", "2", "2", None, id="the-least"),
        pytest.param("min", "2", "1999m", "2", "minimum cpu usage per {} is 2, but request is 1999m", id="too-little"),
        pytest.param("min", "2", "2", "1999m", "minimum cpu usage per {} is 2, but limit is 1999m", id="too-low-limit"),
        pytest.param("min", "2", None, "2", "minimum cpu usage per {} is 2.  No request is specified", id="none"),
        pytest.param("min", "2", "2", None, None, id="a-least-amount-needs-no-limit"),
        pytest.param("max", "2", "2", "2", None, id="the-most"),
        pytest.param(
            "max", "2", "1", "2001m", "maximum cpu usage per {} is 2, but limit is 2001m", id="too-high-limit"
        ),
        pytest.param("max", "2", "2001m", "2", "maximum cpu usage per {} is 2, but request is 2001m", id="too-much"),
        pytest.param("max", "2", "1", None, "maximum cpu usage per {} is 2.  No limit is specified", id="no-limit"),
        pytest.param("max", "2", None, "2", None, id="a-largest-amount-needs-no-request"),
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
def test_the_amounts_of_a_pod_stay_within_a_limit_range(
    kind: str, field: str, bound: str, requests: str | None, limits: str | None, problem: str | None
) -> None:
    item = pod_with({"cpu": requests} if requests else None, {"cpu": limits} if limits else None)
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
def test_the_size_of_a_claim_stays_within_a_limit_range(field: str, size: str | None, problem: str | None) -> None:
    claim = {"spec": {"resources": {"requests": {"storage": size}} if size else {}}}
    limit = limit_range("PersistentVolumeClaim", **{field: {"storage": "2Gi"}})
    assert claim_violations(claim, [limit]) == ([] if problem is None else [problem])
    assert claim_violations(claim, [limit_range("Pod", **{field: {"storage": "2Gi"}})]) == []


def test_only_the_first_limit_range_with_a_problem_is_shown() -> None:
    ranges = [limit_range("Container", max={"cpu": each}) for each in ("4", "2", "1")]
    assert pod_violations(pod_with({"cpu": "1"}, {"cpu": "3"}), ranges) == [
        "maximum cpu usage per Container is 2, but limit is 3"
    ]
    claims = [limit_range("PersistentVolumeClaim", max={"storage": each}) for each in ("4", "2", "1")]
    assert claim_violations({"spec": {"resources": {"requests": {"storage": "3"}}}}, claims) == [
        "maximum storage usage per PersistentVolumeClaim is 2, but request is 3"
    ]


def test_init_containers_are_held_to_the_limit_of_a_container() -> None:
    item = pod_with({"cpu": "1"}, {"cpu": "1"})
    item["spec"]["initContainers"] = pod_with({"cpu": "3"}, {"cpu": "3"})["spec"]["containers"]
    problem = "maximum cpu usage per Container is 2, but limit is 3"
    assert pod_violations(item, [limit_range("Container", max={"cpu": "2"})]) == [problem]


def test_the_amounts_of_the_whole_pod_replace_the_sum_of_its_containers() -> None:
    item = pod_with({"cpu": "1"}, {"cpu": "1"})
    item["spec"]["resources"] = {"limits": {"cpu": "3"}, "requests": {"cpu": "1"}}
    problem = "maximum cpu usage per Pod is 2, but limit is 3"
    assert pod_violations(item, [limit_range("Pod", max={"cpu": "2"})]) == [problem]


def test_a_container_gets_the_defaults_it_does_not_have() -> None:
    item = pod_with({"cpu": "1"})
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


def test_a_container_with_all_amounts_gets_no_note() -> None:
    item = pod_with({"cpu": "1"}, {"cpu": "1"})
    set_pod_defaults(item, [limit_range("Container", default={"cpu": "4"})])
    assert "annotations" not in item["metadata"]


@pytest.mark.parametrize(
    ("cpu", "refused"),
    [
        pytest.param("1", None, id="all-that-is-left"),
        pytest.param("1001m", "exceeded quota: q, requested: requests.cpu=1001m, used: requests.cpu=1", id="too-much"),
        pytest.param(None, "failed quota: q: must specify requests.cpu for: c", id="nothing-is-said"),
    ],
)
def test_a_quota_admits_what_is_left_of_it(cpu: str | None, refused: str | None) -> None:
    world = ApiserverStore()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}}
    world.create({**quota, "spec": {"hard": {"requests.cpu": "2"}}})
    first = pod_with({"cpu": "1"})
    first["metadata"]["name"] = "first"
    world.create(first)
    if refused is None:
        world.create(pod_with({"cpu": cpu}))
        return
    with pytest.raises(StatusError) as raised:
        world.create(pod_with({"cpu": cpu} if cpu else None))
    assert raised.value.code == 403
    assert refused in raised.value.message


@pytest.mark.parametrize(
    ("containers", "starting", "expected"),
    [
        pytest.param(["1", "2"], [], "3", id="containers-run-together"),
        pytest.param(["1", "2"], ["4"], "4", id="the-largest-init-container"),
        pytest.param(["1", "2"], ["3", "1"], "3", id="an-init-container-as-large-as-the-others"),
        pytest.param(["1"], ["2s", "1"], "3", id="an-init-container-beside-a-sidecar"),
        pytest.param(["1"], ["4", "2s"], "4", id="an-init-container-before-a-sidecar"),
        pytest.param(["2"], ["2s"], "4", id="a-sidecar-beside-the-containers"),
    ],
)
def test_what_a_pod_asks_for(containers: list[str], starting: list[str], expected: str) -> None:
    def made(text: str) -> Tree:
        always = {"restartPolicy": "Always"} if text.endswith("s") else {}
        return {"name": "c", "resources": {"requests": {"cpu": text.rstrip("s")}}, **always}

    spec = {"containers": list(map(made, containers)), "initContainers": list(map(made, starting))}
    assert effective_resources(spec, "requests") == parse_quantities({"cpu": expected})
