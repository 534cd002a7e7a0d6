"""Bindings and status patches from templates: byte for byte the same as on the normal path."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.apiserver.auth.credentials import ClusterCredentials
from bayplan.apiserver.embedded import credentials_for
from support.harness.create_template_twins import TemplateTwin

Tree = dict[str, Any]
Report = tuple[str, Tree]

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> ClusterCredentials:
    return credentials_for(tmp_path_factory.mktemp("credentials"), "127.0.0.1")


def body(tree: Tree) -> bytes:
    return json.dumps(tree).encode()


def time_text(now: datetime, delay_s: float = 0.0) -> str:
    return (now + timedelta(seconds=delay_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def running(uid: str, now: str, *, address: str, containers: int = 1, main: str = "main") -> Tree:
    """The status patch of a kubelet for a running pod."""
    statuses = [
        {
            "name": f"{main}-{number}",
            "image": "example.com/a:1",
            "imageID": "",
            "containerID": f"fake://{uid}/{main}-{number}",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for number in range(containers)
    ]
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Initialized", "Ready")]
    status = {"phase": "Running", "startTime": now, "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}]}
    status |= {"podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
    return {"metadata": {"uid": uid}, "status": {**status, "containerStatuses": statuses}}


class Twins:
    """A cluster with templates and one without. Both get the same requests and must give the same responses."""

    def __init__(self, credentials: ClusterCredentials) -> None:
        self.templated, self.normal = TemplateTwin(credentials), TemplateTwin(credentials, naive=True)

    @property
    def now(self) -> datetime:
        return self.normal.clock.now()

    def wait(self, seconds: float) -> None:
        for twin in (self.templated, self.normal):
            twin.clock.advance(max(seconds, 0.0))
            twin.clock.set_back(max(-seconds, 0.0))

    def ask(self, method: str, path: str, tree: Tree) -> Tree:
        found = self.templated.ask(method, path, body(tree))
        assert found == self.normal.ask(method, path, body(tree))
        answer: Tree = json.loads(found[2])
        return answer

    def create_bound_pod(
        self,
        name: str,
        node: str,
        *,
        containers: int = 1,
        note: str = "",
        wait_s: float = 0.0,
        unusual: Tree | None = None,
        main: str = "main",
    ) -> str:
        """Create and bind a pod. Returns its uid. `odd`: unusual fields of the binding."""
        container_list = [{"name": f"{main}-{number}", "image": "example.com/a:1"} for number in range(containers)]
        normal = {"metadata": {"name": name, "annotations": {"say": note}}, "spec": {"containers": container_list}}
        uid: str = self.ask("POST", PODS, normal).get("metadata", {}).get("uid", "")
        self.wait(wait_s)
        binding = {"metadata": {"name": name, "uid": uid}, "target": {"kind": "Node", "name": node}}
        self.ask("POST", f"{PODS}/{name}/binding", {**binding, **(unusual or {})})
        return uid


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
WAITS = st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0, 2.0])
UNUSUAL_BINDINGS: list[Tree] = [
    {},
    {},
    {},
    {"metadata": {}},
    {"metadata": {"name": "pod-0"}},
    {"metadata": {"name": "pod-0", "uid": "other"}},
    {"metadata": {"name": "pod-0", "annotations": {"a": "100%"}}},
    {"target": {"kind": "Service", "name": "n-0"}},
    {"target": {"name": ""}},
    {"target": {"name": "n-\u00e9"}},
    {"strange": 1},
]
UNUSUAL_STATUSES: list[Tree] = [
    {},
    {"reason": "2020-01-01T00:00:00Z"},
    {"startTime": "2020-01-01T01:00:00+01:00"},
    {"startTime": None},
    {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
    {"podIPs": [{"ip": "10.1.0.1"}, {"ip": "10.1.0.2"}]},
    {"podIP": "nowhere", "podIPs": [{"ip": "nowhere"}]},
    {"message": "100% %(uid)b"},
    {"qosClass": "Guaranteed"},
    {"phase": "Pending"},
    {"strange": 1},
    {"conditions": [UNSCHEDULABLE]},
]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_states_give_the_same_bytes_as_the_normal_path(
    credentials: ClusterCredentials, data: st.DataObject
) -> None:
    twins = Twins(credentials)
    containers, note = data.draw(st.integers(1, 2)), data.draw(st.sampled_from(["", "%s", "2020-01-01T00:00:00Z"]))
    steady = data.draw(st.booleans())
    for number in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from([f"pod-{number}"] * 6 + ["pod-0", "main-0", f"n-{number % 2}"]))
        node = data.draw(st.sampled_from(["n-0", "n-1", "n-0", name]))
        wait_s_drawn = 0.0 if steady else data.draw(WAITS)
        unusual = data.draw(st.sampled_from(UNUSUAL_BINDINGS)) if data.draw(st.integers(0, 5)) == 0 else {}
        if data.draw(st.integers(0, 9)) == 0:  # the pod was unschedulable before
            twins.ask("PATCH", f"{PODS}/pod-{number - 1}/status", {"status": {"conditions": [UNSCHEDULABLE]}})
        uid = twins.create_bound_pod(name, node, containers=containers, note=note, wait_s=wait_s_drawn, unusual=unusual)
        reported = time_text(twins.now, 0.0 if steady else data.draw(st.sampled_from([0.0, 0.0, -1.0, 1.0])))
        twins.wait(0.0 if steady else data.draw(WAITS))
        report = running(uid, reported, address=f"10.1.0.{number}", containers=containers)
        if data.draw(st.integers(0, 5)) == 0:
            report["status"] |= data.draw(st.sampled_from(UNUSUAL_STATUSES))
        if data.draw(st.integers(0, 9)) == 0:
            report["metadata"] = data.draw(st.sampled_from([{}, {"uid": "other"}, {"uid": uid, "labels": {"a": "b"}}]))
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2]))):
            twins.ask("PATCH", f"{PODS}/{name}/status", report)
    assert twins.templated.everything() == twins.normal.everything()


def test_a_pod_that_was_unschedulable_is_bound_from_a_template(credentials: ClusterCredentials) -> None:
    """Its condition has a time of its own, which the binding removes."""
    twins = Twins(credentials)
    for number in range(8):
        name = f"pod-{number}"
        normal = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "example.com/a:1"}]}}
        uid = twins.ask("POST", PODS, normal)["metadata"]["uid"]
        reported = {**UNSCHEDULABLE, "lastTransitionTime": time_text(twins.now)}
        twins.ask("PATCH", f"{PODS}/{name}/status", {"status": {"conditions": [reported]}})
        twins.wait(1.0 + number % 2)
        binding = {"metadata": {"name": name, "uid": uid}, "target": {"kind": "Node", "name": "n"}}
        twins.ask("POST", f"{PODS}/{name}/binding", binding)
    assert twins.templated.everything() == twins.normal.everything()
    assert twins.templated.states.counts == {"binding": 5}


@pytest.mark.parametrize("containers", [1, 2])
def test_all_but_three_of_a_hundred_equal_states_use_the_template(
    credentials: ClusterCredentials, containers: int
) -> None:
    twins = Twins(credentials)
    for number in range(100):
        uid = twins.create_bound_pod(f"pod-{number}", f"n-{number % 7}", containers=containers)
        report = running(uid, time_text(twins.now), address=f"10.1.0.{number + 2}", containers=containers)
        assert twins.ask("PATCH", f"{PODS}/pod-{number}/status", report)["status"]["phase"] == "Running"
        twins.wait(1.0)
    assert twins.templated.everything() == twins.normal.everything()
    assert twins.templated.states.counts == {"binding": 97, "status": 97}


@pytest.mark.parametrize(
    ("bound_after_s", "reported_after_s", "received_after_s"),
    [
        pytest.param(1.0, 0.0, 0.0, id="bound-later"),
        pytest.param(0.0, 1.0, 0.0, id="reported-later"),
        pytest.param(0.0, 0.0, 1.0, id="received-later"),
        pytest.param(1.0, 1.0, 1.0, id="all-later"),
    ],
)
def test_another_order_of_times_uses_another_template(
    credentials: ClusterCredentials, bound_after_s: float, reported_after_s: float, received_after_s: float
) -> None:
    """A template of one order of times is not used for another order."""
    twins = Twins(credentials)
    for number in range(10):
        late = number >= 5
        uid = twins.create_bound_pod(f"pod-{number}", "n", wait_s=bound_after_s * late)
        twins.wait(reported_after_s * late)
        report = running(uid, time_text(twins.now), address=f"10.1.0.{number + 2}")
        twins.wait(received_after_s * late)
        twins.ask("PATCH", f"{PODS}/pod-{number}/status", report)
    assert twins.templated.everything() == twins.normal.everything()
    assert twins.templated.states.counts["status"] == 4


def test_managers_are_sorted_by_time_after_the_clock_was_set_back(credentials: ClusterCredentials) -> None:
    twins = Twins(credentials)
    orders = set()
    for number in range(10):
        uid = twins.create_bound_pod(f"pod-{number}", "n")
        report = running(uid, time_text(twins.now), address=f"10.1.0.{number + 2}")
        twins.wait(1.0 if number < 5 else -1.0)
        answer = twins.ask("PATCH", f"{PODS}/pod-{number}/status", report)
        orders.add(tuple(each.get("subresource", "") for each in answer["metadata"]["managedFields"]))
    assert twins.templated.everything() == twins.normal.everything()
    assert orders == {("", "status"), ("status", "")}
    assert twins.templated.states.counts["status"] == 4


def test_a_time_in_an_annotation_of_the_pod_is_not_changed(credentials: ClusterCredentials) -> None:
    twins = Twins(credentials)
    for number in range(6):
        uid = twins.create_bound_pod(f"pod-{number}", "n", note=time_text(twins.now))
        report = running(uid, time_text(twins.now), address=f"10.1.0.{number + 2}")
        twins.ask("PATCH", f"{PODS}/pod-{number}/status", report)
        twins.wait(1.0 if number > 2 else 0.0)
    assert twins.templated.everything() == twins.normal.everything()
    assert twins.templated.states.counts["status"] == 0


def test_a_pod_with_the_name_of_its_container_uses_no_template(credentials: ClusterCredentials) -> None:
    twins = Twins(credentials)
    for main in ("a", "a", "a", "b"):
        name = f"{main}-0"
        uid = twins.create_bound_pod(name, "n", main=main)
        report = running(uid, time_text(twins.now), address="10.1.0.2", main=main)
        twins.ask("PATCH", f"{PODS}/{name}/status", report)
        twins.ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", {})
    assert twins.templated.everything() == twins.normal.everything()
    assert twins.templated.states.counts["status"] == 0
